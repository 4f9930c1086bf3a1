//! Reads from the place's own NVML what CUDA does not report about a GPU.

use cuda_api::board::{Constants, NAMES, Reading, Readings};
use cuda_api::facts::uuid_text;
use cuda_api::wire_struct;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE`
const VERSION_BYTES: usize = 80;
/// NVML's library; a driver's NVML is in the driver's directory.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_ERROR_INSUFFICIENT_SIZE`
const INSUFFICIENT_SIZE: c_int = 7;

type Device = *mut c_void;

/// Most processes of a GPU that are listed.
pub const MOST_PROCESSES: usize = 512;

wire_struct! {
    /// Who uses a GPU, mrcuda or not.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Usage {
        /// Free memory in bytes, if it is known.
        pub free_bytes: Option<u64>,
        /// The processes that compute with it, if they are known: at most [`MOST_PROCESSES`].
        pub processes: Option<Vec<u32>>,
    }
}

wire_struct! {
    /// What NVML says of a GPU at a time.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct NvmlFacts {
        /// What it measures.
        pub readings: Readings,
        /// Who uses it.
        pub usage: Usage,
    }
}

/// A loaded NVML, which is never unloaded.
#[derive(Debug)]
struct Nvml(*mut c_void);

impl Nvml {
    fn open(path: &Path) -> Option<Nvml> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // The program may have loaded mrcuda's NVML, whose functions have the same names: the library must resolve its own
        // symbols first. SAFETY: loading runs the library's constructors; it belongs to the driver that this place uses.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) };
        Some(Nvml(handle)).filter(|nvml| !nvml.0.is_null() && nvml.find("nvmlInit_v2").is_some())
    }

    /// Finds a function; all functions that are looked up here return 0 on success.
    fn find(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open.
        Some(unsafe { libc::dlsym(self.0, name.as_ptr()) }).filter(|symbol| !symbol.is_null())
    }

    /// Calls a function without arguments, of which 0 means success.
    fn call(&self, name: &str) -> Option<()> {
        // SAFETY: the functions that are called so, those that initialize and shut down, have this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(self.find(name)?) };
        // SAFETY: no arguments.
        (unsafe { function() } == 0).then_some(())
    }

    fn init(&self) -> Option<()> {
        self.call("nvmlInit_v2")
    }

    /// Initializes NVML, runs the queries of `ask` and shuts it down.
    fn started<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        self.init()?;
        let answer = ask();
        // A failure of the shutdown does not affect the results.
        self.call("nvmlShutdown");
        answer
    }

    /// The driver's version.
    fn driver_version(&self) -> Option<String> {
        let get = self.find("nvmlSystemGetDriverVersion")?;
        // SAFETY: NVML's function has this type.
        let get = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_uint) -> c_int>(get) };
        let mut text = [0u8; VERSION_BYTES];
        // SAFETY: the buffer has this size.
        let is_known = unsafe { get(text.as_mut_ptr().cast(), VERSION_BYTES as c_uint) } == 0;
        let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
        is_known.then(|| text.to_owned())
    }

    /// What `ask` learns of the GPU with this UUID; nothing of one that NVML does not know. An instance of a partitioned GPU (MIG) has a
    /// UUID of its own, so that what the whole GPU measures is not taken for what the instance does.
    fn of_gpu<T: Default>(&self, uuid: &[u8; 16], ask: impl FnOnce(Device) -> T) -> Option<T> {
        let handle = self.find("nvmlDeviceGetHandleByUUID")?;
        // SAFETY: NVML's function has this type.
        let handle =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut Device) -> c_int>(handle) };
        let uuid = CString::new(uuid_text(uuid)).ok()?;
        let mut gpu: Device = std::ptr::null_mut();
        // SAFETY: a NUL-terminated string, and a local variable.
        let found = unsafe { handle(uuid.as_ptr(), &raw mut gpu) } == 0;
        Some(if found { ask(gpu) } else { T::default() })
    }

    /// What a function returns that has one value, of what `selector` names if it takes one.
    fn one(&self, gpu: Device, name: &str, selector: Option<c_uint>) -> Option<c_uint> {
        type Get = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;
        type GetOf = unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> c_int;
        let (function, mut value) = (self.find(name)?, 0);
        // SAFETY: NVML's functions with these names have these types; a device that NVML has returned, and a local variable.
        let rc = unsafe {
            match selector {
                Some(which) => std::mem::transmute::<*mut c_void, GetOf>(function)(gpu, which, &raw mut value),
                None => std::mem::transmute::<*mut c_void, Get>(function)(gpu, &raw mut value),
            }
        };
        (rc == 0).then_some(value)
    }

    fn constants(&self, gpu: Device) -> Constants {
        let ask = |(which, name): (u32, &&str)| Some((which, self.one(gpu, name, None)?));
        (0u32..).zip(NAMES).filter_map(ask).collect()
    }

    fn readings(&self, gpu: Device) -> Readings {
        /// `nvmlUtilization_t`
        #[repr(C)]
        #[derive(Default)]
        struct Rates {
            gpu: c_uint,
            memory: c_uint,
        }
        let one = |name: &str, selector| self.one(gpu, name, selector);
        let rates = self.find("nvmlDeviceGetUtilizationRates").and_then(|function| {
            let mut rates = Rates::default();
            // SAFETY: NVML's function has this type; a device that NVML has returned, and a local variable.
            let rc = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Device, *mut Rates) -> c_int>(function)(
                    gpu,
                    &raw mut rates,
                )
            };
            (rc == 0).then_some(rates)
        });
        let clock = |domain| one("nvmlDeviceGetClockInfo", Some(domain));
        let value = |reading| match reading {
            Reading::Utilization => rates.as_ref().map(|rates| rates.gpu),
            Reading::MemoryUtilization => rates.as_ref().map(|rates| rates.memory),
            // Its only sensor is that of the chip.
            Reading::Temperature => one("nvmlDeviceGetTemperature", Some(0)),
            Reading::Power => one("nvmlDeviceGetPowerUsage", None),
            Reading::PowerLimit => one("nvmlDeviceGetEnforcedPowerLimit", None),
            Reading::GraphicsClock => clock(0),
            Reading::SmClock => clock(1),
            Reading::MemoryClock => clock(2),
            Reading::VideoClock => clock(3),
            Reading::PerformanceState => one("nvmlDeviceGetPerformanceState", None),
        };
        Reading::ALL.into_iter().filter_map(|reading| Some((reading as u32, value(reading)?))).collect()
    }

    fn usage(&self, gpu: Device) -> Usage {
        Usage { free_bytes: self.free_bytes(gpu), processes: self.processes(gpu) }
    }

    fn free_bytes(&self, gpu: Device) -> Option<u64> {
        /// `nvmlMemory_t`
        #[repr(C)]
        #[derive(Default)]
        struct Memory {
            total: u64,
            free: u64,
            used: u64,
        }
        type Get = unsafe extern "C" fn(Device, *mut Memory) -> c_int;
        let (function, mut memory) = (self.find("nvmlDeviceGetMemoryInfo")?, Memory::default());
        // SAFETY: NVML's function has this type; a device that NVML has returned, and a local variable.
        let rc = unsafe { std::mem::transmute::<*mut c_void, Get>(function)(gpu, &raw mut memory) };
        (rc == 0).then_some(memory.free)
    }

    /// The processes with a context there. Those that only draw are left out: a desktop has some all the time.
    fn processes(&self, gpu: Device) -> Option<Vec<u32>> {
        /// `nvmlProcessInfo_t`
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        struct Process {
            pid: c_uint,
            used: u64,
            instance: c_uint,
            compute_instance: c_uint,
        }
        type Get = unsafe extern "C" fn(Device, *mut c_uint, *mut Process) -> c_int;
        let function = self.find("nvmlDeviceGetComputeRunningProcesses_v3")?;
        let (mut list, mut n) = (vec![Process::default(); MOST_PROCESSES], MOST_PROCESSES as c_uint);
        // SAFETY: NVML's function has this type; a device that NVML has returned, and an array with so many elements.
        let rc = unsafe { std::mem::transmute::<*mut c_void, Get>(function)(gpu, &raw mut n, list.as_mut_ptr()) };
        if rc != 0 && rc != INSUFFICIENT_SIZE {
            return None;
        }
        // Of more than there is room for, it has written none or some: whoever has a number has a context.
        list.truncate(n as usize);
        Some(list.into_iter().map(|process| process.pid).collect())
    }
}

/// The known constants of the GPU with this UUID; none without NVML. `driver` is the path of the CUDA driver, with links
/// resolved. A driver that simulates a whole machine provides NVML itself.
pub(crate) fn ask(driver: &Path, uuid: &[u8; 16]) -> Constants {
    of_driver(driver).and_then(|nvml| nvml.started(|| nvml.of_gpu(uuid, |gpu| nvml.constants(gpu)))).unwrap_or_default()
}

/// As [`ask`]: what the GPU measures. NVML is opened for it and closed again, some milliseconds on an H200 machine.
pub(crate) fn readings(driver: &Path, uuid: &[u8; 16]) -> Readings {
    of_driver(driver).and_then(|nvml| nvml.started(|| nvml.of_gpu(uuid, |gpu| nvml.readings(gpu)))).unwrap_or_default()
}

/// The NVML of a driver, which stays open until the process ends: for who asks again and again. It creates no context.
#[derive(Debug)]
pub struct Sensors(Nvml);

/// Why there are no [`Sensors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SensorsError {
    /// There is no library.
    #[error("there is no NVML ({LIBRARY}) beside the driver")]
    Missing,
    /// The library refuses to be used.
    #[error("NVML cannot be initialized")]
    Init,
}

impl Sensors {
    /// Opens the NVML of the CUDA driver at this path.
    ///
    /// # Errors
    /// There is none, or it cannot be used.
    pub fn open(driver: &Path) -> Result<Sensors, SensorsError> {
        let driver = std::fs::canonicalize(driver).unwrap_or_else(|_| driver.to_owned());
        let nvml = of_driver(&driver).ok_or(SensorsError::Missing)?;
        nvml.init().ok_or(SensorsError::Init)?;
        Ok(Sensors(nvml))
    }

    /// Who uses the GPU with this UUID; nothing is known of one that NVML does not know.
    pub fn usage(&self, uuid: &[u8; 16]) -> Usage {
        self.0.of_gpu(uuid, |gpu| self.0.usage(gpu)).unwrap_or_default()
    }

    /// What the GPU with this UUID measures now; nothing of one that NVML does not know.
    pub fn read(&self, uuid: &[u8; 16]) -> Readings {
        self.0.of_gpu(uuid, |gpu| self.0.readings(gpu)).unwrap_or_default()
    }
}

fn of_driver(driver: &Path) -> Option<Nvml> {
    Nvml::open(&driver.with_file_name(LIBRARY)).or_else(|| Nvml::open(driver))
}

/// The driver's version, for example `580.159.03`; empty if unknown. A real driver's file name contains it, and its kernel module
/// reports it in a file.
pub(crate) fn driver_build(driver: &Path) -> String {
    let in_name = driver.file_name().and_then(|name| name.to_str()?.strip_prefix("libcuda.so."));
    let in_name = in_name.filter(|version| version.contains('.')).map(str::to_owned);
    let of_module = || if in_name_of_real(driver) { of_kernel_module() } else { None };
    let of_nvml = || of_driver(driver).and_then(|nvml| nvml.started(|| nvml.driver_version()));
    in_name.or_else(of_module).or_else(of_nvml).unwrap_or_default()
}

fn in_name_of_real(driver: &Path) -> bool {
    driver.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"))
}

/// `NVRM version: NVIDIA UNIX … Kernel Module  580.159.03  …`
fn of_kernel_module() -> Option<String> {
    version_in(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

fn version_in(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_driver_is_found() {
        assert_eq!(driver_build(Path::new("/usr/lib/libcuda.so.580.159.03")), "580.159.03");
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs)\nGCC version: gcc 12.2.0\n";
        assert_eq!(version_in(text).as_deref(), Some("580.159.03"));
        assert_eq!(version_in("GCC version: 12.2.0"), None);
    }
}
