//! Asks the place's own NVML for what CUDA does not tell of a GPU.

use cuda_api::board::{Constants, NAMES};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// NVML's library; a driver's lies beside the driver.
const LIBRARY: &str = "libnvidia-ml.so.1";

type Device = *mut c_void;

/// A loaded NVML, which is never unloaded.
struct Nvml(*mut c_void);

impl Nvml {
    fn open(path: &Path) -> Option<Nvml> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // The program may have an NVML, ours, whose functions have the same names: this one is to find its own first.
        // SAFETY: loading runs the library's constructors; it belongs to the driver that this place uses.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) };
        Some(Nvml(handle)).filter(|nvml| !nvml.0.is_null() && nvml.find("nvmlInit_v2").is_some())
    }

    /// A function; every one that is asked for here returns 0 when it has done what its name says.
    fn find(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open.
        Some(unsafe { libc::dlsym(self.0, name.as_ptr()) }).filter(|symbol| !symbol.is_null())
    }

    /// Starts it for the time of a question about the GPU with this PCI address.
    fn ask(&self, pci: [i32; 3]) -> Option<Constants> {
        let [init, shutdown] = ["nvmlInit_v2", "nvmlShutdown"].map(|name| self.find(name));
        let (init, shutdown, handle) = (init?, shutdown?, self.find("nvmlDeviceGetHandleByPciBusId_v2")?);
        // SAFETY: NVML's functions have these types.
        let (init, shutdown, handle) = unsafe {
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(init),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(shutdown),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut Device) -> c_int>(handle),
            )
        };
        // SAFETY: no arguments.
        if unsafe { init() } != 0 {
            return None;
        }
        let [domain, bus, device] = pci;
        let address = CString::new(format!("{domain:08x}:{bus:02x}:{device:02x}.0")).ok()?;
        let mut gpu: Device = std::ptr::null_mut();
        // SAFETY: a terminated text, and a variable of ours.
        let found = unsafe { handle(address.as_ptr(), &raw mut gpu) } == 0;
        let known = if found { self.constants(gpu) } else { Constants::new() };
        // SAFETY: it was started above. That it cannot be ended takes nothing away from the answers.
        unsafe { shutdown() };
        Some(known)
    }

    fn constants(&self, gpu: Device) -> Constants {
        let ask = |(which, name): (u32, &&str)| {
            // SAFETY: all functions of this list have this type.
            let get = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Device, *mut c_uint) -> c_int>(self.find(name)?)
            };
            let mut value = 0;
            // SAFETY: a device that NVML has given, and a variable of ours.
            (unsafe { get(gpu, &raw mut value) } == 0).then_some((which, value))
        };
        (0u32..).zip(NAMES).filter_map(ask).collect()
    }
}

/// What is known of the GPU with this PCI address; nothing where there is no NVML. `driver` is the file of the CUDA driver, links
/// followed. A driver that stands for a whole machine answers for NVML itself.
pub(crate) fn ask(driver: &Path, pci: [i32; 3]) -> Constants {
    let nvml = Nvml::open(&driver.with_file_name(LIBRARY)).or_else(|| Nvml::open(driver));
    nvml.and_then(|nvml| nvml.ask(pci)).unwrap_or_default()
}
