//! Properties of a CUDA driver's GPUs, for the NVML library.

use crate::board::{self, Constants, Reading, Readings};
use crate::calls::Driver;
use crate::code::{self, Code};
use crate::hex::hex;
use crate::sys::{CUdevice_attribute_enum as A, CUuuid};
use crate::wire_struct;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

wire_struct! {
    /// A GPU.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Gpu {
        /// Name.
        pub name: String,
        /// UUID.
        pub uuid: [u8; 16],
        /// PCI domain, bus, device.
        pub pci: [i32; 3],
        /// Compute capability: major, minor.
        pub capability: [i32; 2],
        /// Total memory, in bytes.
        pub total_bytes: u64,
        /// Free memory, in bytes.
        pub free_bytes: u64,
        /// Clocks of multiprocessors and memory, in kHz.
        pub clocks: [i32; 2],
        /// Width of the memory bus, in bits.
        pub bus_width: i32,
        /// Number of multiprocessors.
        pub multiprocessors: i32,
        /// Ordinals of the GPUs whose memory it can access.
        pub peers: Vec<u32>,
        /// Properties of its board, from the NVML of its place.
        pub board: Constants,
        /// What it measures; nothing unless it was asked for.
        pub readings: Readings,
    }
}

impl Gpu {
    /// The UUID as text, in the format of `CUDA_VISIBLE_DEVICES` and NVML.
    pub fn uuid_text(&self) -> String {
        uuid_text(&self.uuid)
    }
}

/// A GPU's UUID as text, in the format of `CUDA_VISIBLE_DEVICES`, NVML and `nvidia-smi`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = hex(uuid);
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

wire_struct! {
    /// All GPUs, and the driver.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Facts {
        /// `cuDriverGetVersion`
        pub cuda_version: i32,
        /// The driver's version, for example `580.159.03`; empty if unknown.
        pub driver: String,
        /// GPUs by ordinal.
        pub gpus: Vec<Gpu>,
    }
}

fn ok(rc: Code) -> Result<(), Code> {
    if rc == code::SUCCESS { Ok(()) } else { Err(rc) }
}

/// Calls a function of the driver that may be missing.
macro_rules! call {
    ($d:expr, $family:ident.$name:ident($($arg:expr),*)) => {{
        let f = $d.$family.$name.ok_or(code::ERROR_NOT_FOUND)?;
        // SAFETY: the pointers among the arguments point to live values of ours.
        ok(unsafe { f($($arg),*) })
    }};
}

/// Writes one value of a GPU, if it is known: returns 0 if not.
type OneValue = unsafe extern "C" fn(c_uint, c_uint, *mut c_uint) -> c_int;

fn known(function: OneValue, ordinal: c_uint, which: u32) -> Option<u32> {
    let mut value = 0;
    // SAFETY: the value is ours.
    (unsafe { function(ordinal, which, &raw mut value) } != 0).then_some(value)
}

/// The recorder's library, with the functions that it exports beside CUDA's.
#[derive(Debug)]
pub struct Recorder {
    calls: Driver,
    started: unsafe extern "C" fn() -> c_int,
    driver: unsafe extern "C" fn(*mut c_char, usize) -> usize,
    board: OneValue,
    reading: OneValue,
    changing: unsafe extern "C" fn(c_uint, *mut u64, *mut u32) -> c_int,
}

impl Recorder {
    /// The recorder behind a handle of `dlopen`; `None` if that is another library.
    ///
    /// # Safety
    /// The handle is open, and is never closed.
    pub unsafe fn find(handle: *mut c_void) -> Option<Recorder> {
        let symbol = |name: &CStr| -> *const c_void {
            // SAFETY: as the caller says.
            unsafe { libc::dlsym(handle, name.as_ptr()) }
        };
        let known = |name: &CStr| Some(symbol(name)).filter(|found| !found.is_null());
        let (started, driver) = (known(c"mrcuda_shim_started")?, known(c"mrcuda_shim_driver")?);
        let (board, reading) = (known(c"mrcuda_shim_board")?, known(c"mrcuda_shim_reading")?);
        let changing = known(c"mrcuda_shim_changing")?;
        let by_name = |name: &str| CString::new(name).map_or(std::ptr::null(), |n| symbol(&n));
        // SAFETY: only the recorder has these names; it exports CUDA's functions under CUDA's names, and these five
        // with these types.
        unsafe {
            Some(Recorder {
                calls: Driver::from_symbols(&by_name),
                started: std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_int>(started),
                driver: std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_char, usize) -> usize>(driver),
                board: std::mem::transmute::<*const c_void, OneValue>(board),
                reading: std::mem::transmute::<*const c_void, OneValue>(reading),
                changing: std::mem::transmute::<*const c_void, unsafe extern "C" fn(c_uint, *mut u64, *mut u32) -> c_int>(
                    changing,
                ),
            })
        }
    }

    /// Whether CUDA has been started in this process.
    pub fn is_started(&self) -> bool {
        // SAFETY: a function without arguments.
        unsafe { (self.started)() != 0 }
    }

    /// Initializes CUDA and queries everything but the readings. The calling thread's context is unchanged.
    ///
    /// # Errors
    /// The first error of a CUDA function.
    pub fn ask(&self) -> Result<Facts, Code> {
        let d = &self.calls;
        call!(d, device.cuInit(0))?;
        let (mut cuda_version, mut count) = (0, 0);
        call!(d, device.cuDriverGetVersion(&raw mut cuda_version))?;
        call!(d, device.cuDeviceGetCount(&raw mut count))?;
        let gpus = (0..count).map(|ordinal| self.gpu(ordinal)).collect::<Result<_, Code>>()?;
        Ok(Facts { cuda_version, driver: self.driver_version(), gpus })
    }

    fn driver_version(&self) -> String {
        let mut text = [0u8; 256];
        // SAFETY: the buffer has this room.
        let n = unsafe { (self.driver)(text.as_mut_ptr().cast(), text.len()) }.min(text.len());
        String::from_utf8_lossy(&text[..n]).into_owned()
    }

    fn board(&self, ordinal: c_int) -> Constants {
        let ask = |which| Some((which, known(self.board, ordinal as c_uint, which)?));
        (0..board::NAMES.len() as u32).filter_map(ask).collect()
    }

    /// What a GPU measures now, or did a moment ago; `None` if its place does not know.
    pub fn reading(&self, ordinal: u32, which: Reading) -> Option<u32> {
        known(self.reading, ordinal, which as u32)
    }

    /// All that a GPU measures.
    pub fn readings(&self, ordinal: u32) -> Readings {
        let ask = |which: Reading| Some((which as u32, self.reading(ordinal, which)?));
        Reading::ALL.into_iter().filter_map(ask).collect()
    }

    /// Free memory of a GPU, in bytes, and the GPUs whose memory it can access.
    fn changing(&self, ordinal: c_int) -> Result<(u64, Vec<u32>), Code> {
        let (mut free, mut peers) = (0, 0u32);
        // SAFETY: the values are ours.
        ok(unsafe { (self.changing)(ordinal as c_uint, &raw mut free, &raw mut peers) })?;
        Ok((free, (0..u32::BITS).filter(|peer| peers & (1 << peer) != 0).collect()))
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, Code> {
        let (free_bytes, peers) = self.changing(ordinal)?;
        Ok(Gpu { board: self.board(ordinal), free_bytes, peers, ..gpu(&self.calls, ordinal)? })
    }
}

/// The properties of a GPU that CUDA's functions answer and that never change.
fn gpu(d: &Driver, ordinal: c_int) -> Result<Gpu, Code> {
    let mut name = [0u8; 256];
    call!(d, device.cuDeviceGetName(name.as_mut_ptr().cast(), 256, ordinal))?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    call!(d, device.cuDeviceGetUuid_v2(&raw mut uuid, ordinal))?;
    let mut total = 0usize;
    call!(d, device.cuDeviceTotalMem_v2(&raw mut total, ordinal))?;
    let attribute = |which: A| -> Result<i32, Code> {
        let mut value = 0;
        call!(d, device.cuDeviceGetAttribute(&raw mut value, which as u32, ordinal))?;
        Ok(value)
    };
    Ok(Gpu {
        name: String::from_utf8_lossy(name.split(|b| *b == 0).next().unwrap_or_default()).into_owned(),
        uuid: uuid.bytes.map(|b| b as u8),
        pci: [
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ],
        capability: [
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ],
        total_bytes: total as u64,
        free_bytes: 0,
        clocks: [attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?, attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?],
        bus_width: attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        peers: Vec::new(),
        board: Constants::new(),
        readings: Readings::new(),
    })
}
