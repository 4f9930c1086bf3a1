//! The supported functions.

use crate::code::{self, Code, Memory, MemoryV2, Pci, Process, ProcessV2, Temperature, Utilization};
use crate::session;
use cuda_api::board::{self, Reading};
use cuda_api::facts::{Facts, Gpu};
use cuda_api::pci;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `nvmlDevice_t`
type Device = *mut c_void;

/// Handles are this constant plus the ordinal.
const HANDLES: usize = 0x6d72_0000;
/// Version and size of [`MemoryV2`], as callers must write it.
const MEMORY_V2: u32 = 2 << 24 | size_of::<MemoryV2>() as u32;
/// `NVML_P2P_STATUS_OK` and `NVML_P2P_STATUS_NOT_SUPPORTED`
const REACHES: c_int = 0;
const REACHES_NOT: c_int = 5;
/// `NVML_TOPOLOGY_SINGLE` and `NVML_TOPOLOGY_SYSTEM`
const TOPOLOGY_SINGLE: c_int = 10;
const TOPOLOGY_SYSTEM: c_int = 50;
/// `NVML_BRAND_NVIDIA`
const BRAND: c_int = 14;
/// Version and size of [`Temperature`], as callers must write it.
const TEMPERATURE: u32 = 1 << 24 | size_of::<Temperature>() as u32;
/// `NVML_TEMPERATURE_GPU`
const CHIP: c_int = 0;
/// `NVML_CLOCK_MEM`; of clocks with higher numbers the maximum is unknown.
const MEMORY_CLOCK: c_int = 2;
/// The name of the table of private functions that nvidia-smi requests.
const PRIVATE_TABLE: [u8; 16] = 0xc4fe_3e6c_c98f_6c4e_a327_ee69_6e12_f7c4_u128.to_be_bytes();
/// The instance id of a process where GPUs are not partitioned.
const NO_INSTANCE: c_uint = u32::MAX;

/// Runs the body of an exported function and catches panics, which must not unwind into C.
fn guard(body: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(rc)) => rc,
        Err(_) => code::UNKNOWN,
    }
}

fn write_out<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's non-null outputs are writable by NVML's contract.
    unsafe { to.write(value) };
    Ok(())
}

fn write_text(to: *mut c_char, room: c_uint, text: &str) -> Result<(), Code> {
    if to.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(code::INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller says that there is room for `room` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

fn read_text<'a>(from: *const c_char) -> Result<&'a str, Code> {
    if from.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's strings are NUL-terminated.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| code::INVALID_ARGUMENT)
}

/// The ordinal of the GPU of a handle.
fn ordinal(device: Device) -> Result<usize, Code> {
    session::check()?;
    (device as usize).checked_sub(HANDLES).filter(|n| *n < 32).ok_or(code::INVALID_ARGUMENT)
}

/// Calls `body` with a GPU; with `fresh` its figures are current.
fn with(device: Device, fresh: bool, body: impl FnOnce(&Gpu, &Facts, usize) -> Result<(), Code>) -> Code {
    guard(|| {
        let index = ordinal(device)?;
        let facts = session::facts(fresh)?;
        body(facts.gpus.get(index).ok_or(code::INVALID_ARGUMENT)?, &facts, index)
    })
}

/// What a GPU measures.
fn reading(device: Device, which: Reading) -> Result<c_uint, Code> {
    session::reading(ordinal(device)?, which)
}

/// Returns the handle of the GPU that satisfies `wanted`.
fn find(to: *mut Device, wanted: impl Fn(usize, &Gpu) -> bool, otherwise: Code) -> Code {
    guard(|| {
        let facts = session::facts(false)?;
        let index = facts.gpus.iter().enumerate().position(|(i, g)| wanted(i, g)).ok_or(otherwise)?;
        write_out(to, std::ptr::without_provenance_mut(HANDLES + index))
    })
}

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut to = [0; N];
    for (to, byte) in to[..N - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    to
}

fn pci_info(gpu: &Gpu) -> Pci {
    let [domain, bus, device] = gpu.pci;
    Pci {
        legacy: chars(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain: domain as c_uint,
        bus: bus as c_uint,
        device: device as c_uint,
        device_id: 0,
        subsystem_id: 0,
        bus_id: chars(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

macro_rules! exports {
    ($(#[doc = $doc:literal] fn $($name:ident),+: $params:tt $body:block)*) => {$($(
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name $params -> Code $body
    )+)*};
}

exports! {
    /// Initializes the library.
    fn nvmlInit, nvmlInit_v2: () {
        session::start();
        code::SUCCESS
    }

    /// Initializes the library; flags have no effect.
    fn nvmlInitWithFlags: (_flags: c_uint) {
        session::start();
        code::SUCCESS
    }

    /// Ends one initialization.
    fn nvmlShutdown: () { guard(session::end) }

    /// The driver's version.
    fn nvmlSystemGetDriverVersion: (version: *mut c_char, length: c_uint) {
        guard(|| match session::facts(false)?.driver.as_str() {
            "" => Err(code::NOT_SUPPORTED),
            known => write_text(version, length, known),
        })
    }

    /// This library's version: the CUDA version that it serves, and the driver's version.
    fn nvmlSystemGetNVMLVersion: (version: *mut c_char, length: c_uint) {
        guard(|| {
            let facts = session::facts(false)?;
            write_text(version, length, format!("{}.{}", facts.cuda_version / 1000, facts.driver).trim_end_matches('.'))
        })
    }

    /// The driver's CUDA version.
    fn nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2: (version: *mut c_int) {
        guard(|| write_out(version, session::facts(false)?.cuda_version))
    }

    /// The name of a process.
    fn nvmlSystemGetProcessName: (pid: c_uint, name: *mut c_char, length: c_uint) {
        guard(|| {
            session::check()?;
            let file = std::fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| code::NOT_FOUND)?;
            write_text(name, length, &file.display().to_string())
        })
    }

    /// Number of GPUs.
    fn nvmlDeviceGetCount, nvmlDeviceGetCount_v2: (count: *mut c_uint) {
        guard(|| write_out(count, session::facts(false)?.gpus.len() as c_uint))
    }

    /// A GPU by its ordinal.
    fn nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2: (index: c_uint, device: *mut Device) {
        find(device, |i, _| i == index as usize, code::INVALID_ARGUMENT)
    }

    /// A GPU by its UUID.
    fn nvmlDeviceGetHandleByUUID: (uuid: *const c_char, device: *mut Device) {
        match read_text(uuid) {
            Ok(text) => find(device, |_, gpu| gpu.uuid_text() == text, code::NOT_FOUND),
            Err(rc) => rc,
        }
    }

    /// A GPU by its PCI address.
    fn nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2: (address: *const c_char, device: *mut Device) {
        match read_text(address).map(pci::parse) {
            Ok(Some(wanted)) => find(device, |_, gpu| gpu.pci == wanted, code::NOT_FOUND),
            Ok(None) => code::INVALID_ARGUMENT,
            Err(rc) => rc,
        }
    }

    /// Ordinal of a GPU; it also serves as the minor number, since there is no device file.
    fn nvmlDeviceGetIndex, nvmlDeviceGetMinorNumber: (device: Device, index: *mut c_uint) {
        with(device, false, |_, _, i| write_out(index, i as c_uint))
    }

    /// Name of a GPU.
    fn nvmlDeviceGetName: (device: Device, name: *mut c_char, length: c_uint) {
        with(device, false, |gpu, _, _| write_text(name, length, &gpu.name))
    }

    /// UUID of a GPU.
    fn nvmlDeviceGetUUID: (device: Device, uuid: *mut c_char, length: c_uint) {
        with(device, false, |gpu, _, _| write_text(uuid, length, &gpu.uuid_text()))
    }

    /// PCI address of a GPU; earlier versions of the structure are its first 36 bytes.
    fn nvmlDeviceGetPciInfo_v3: (device: Device, pci: *mut Pci) {
        with(device, false, |gpu, _, _| write_out(pci, pci_info(gpu)))
    }

    /// Compute capability.
    fn nvmlDeviceGetCudaComputeCapability: (device: Device, major: *mut c_int, minor: *mut c_int) {
        with(device, false, |gpu, _, _| {
            write_out(major, gpu.capability[0])?;
            write_out(minor, gpu.capability[1])
        })
    }

    /// Architecture, in NVML's numbering.
    fn nvmlDeviceGetArchitecture: (device: Device, architecture: *mut c_uint) {
        with(device, false, |gpu, _, _| write_out(architecture, match gpu.capability {
            [3, _] => 2,
            [5, _] => 3,
            [6, _] => 4,
            [7, 5] => 6,
            [7, _] => 5,
            [8, 9] => 8,
            [8, _] => 7,
            [9, _] => 9,
            [10 | 12, _] => 10,
            _ => u32::MAX,
        }))
    }

    /// Brand.
    fn nvmlDeviceGetBrand: (device: Device, brand: *mut c_int) {
        with(device, false, |_, _, _| write_out(brand, BRAND))
    }

    /// Memory: total, free, used.
    fn nvmlDeviceGetMemoryInfo: (device: Device, memory: *mut Memory) {
        with(device, true, |gpu, _, _| {
            let (total, free) = (gpu.total_bytes, gpu.free_bytes);
            write_out(memory, Memory { total, free, used: total.saturating_sub(free) })
        })
    }

    /// The same, with the memory that the driver reserves, which is unknown and reported as 0.
    fn nvmlDeviceGetMemoryInfo_v2: (device: Device, memory: *mut MemoryV2) {
        with(device, true, |gpu, _, _| {
            // SAFETY: not null when it is read; the caller has written the version, which says what there is room for.
            if memory.is_null() || unsafe { (&raw const (*memory).version).read() } != MEMORY_V2 {
                return Err(if memory.is_null() { code::INVALID_ARGUMENT } else { code::ARGUMENT_VERSION_MISMATCH });
            }
            let (total, free) = (gpu.total_bytes, gpu.free_bytes);
            write_out(memory, MemoryV2 { version: MEMORY_V2, total, reserved: 0, free, used: total.saturating_sub(free) })
        })
    }

    /// Maximum clock of multiprocessors or memory, in MHz.
    fn nvmlDeviceGetMaxClockInfo: (device: Device, kind: c_int, clock: *mut c_uint) {
        with(device, false, |gpu, _, _| match kind {
            0..MEMORY_CLOCK => write_out(clock, gpu.clocks[0] as c_uint / 1000),
            MEMORY_CLOCK => write_out(clock, gpu.clocks[1] as c_uint / 1000),
            _ => Err(code::NOT_SUPPORTED),
        })
    }

    /// Shares of the last sample period in which kernels ran, and in which memory was used, in percent.
    fn nvmlDeviceGetUtilizationRates: (device: Device, rates: *mut Utilization) {
        guard(|| {
            let of = |which| reading(device, which);
            write_out(rates, Utilization { gpu: of(Reading::Utilization)?, memory: of(Reading::MemoryUtilization)? })
        })
    }

    /// Temperature of the chip, in degrees Celsius.
    fn nvmlDeviceGetTemperature: (device: Device, sensor: c_int, to: *mut c_uint) {
        guard(|| {
            let value = reading(device, Reading::Temperature)?;
            if sensor == CHIP { write_out(to, value) } else { Err(code::INVALID_ARGUMENT) }
        })
    }

    /// The same, in a structure with a version.
    fn nvmlDeviceGetTemperatureV: (device: Device, to: *mut Temperature) {
        guard(|| {
            if to.is_null() {
                return Err(code::INVALID_ARGUMENT);
            }
            // SAFETY: not null; the caller has filled its first members.
            let (version, sensor) = unsafe { ((*to).version, (*to).sensor) };
            if version != TEMPERATURE {
                return Err(code::ARGUMENT_VERSION_MISMATCH);
            }
            let temperature = reading(device, Reading::Temperature)? as c_int;
            if sensor == CHIP { write_out(to, Temperature { version, sensor, temperature }) } else { Err(code::INVALID_ARGUMENT) }
        })
    }

    /// Power that the GPU draws, in milliwatts.
    fn nvmlDeviceGetPowerUsage: (device: Device, to: *mut c_uint) {
        guard(|| write_out(to, reading(device, Reading::Power)?))
    }

    /// Power that it may draw, in milliwatts.
    fn nvmlDeviceGetEnforcedPowerLimit: (device: Device, to: *mut c_uint) {
        guard(|| write_out(to, reading(device, Reading::PowerLimit)?))
    }

    /// A clock, in MHz.
    fn nvmlDeviceGetClockInfo: (device: Device, kind: c_int, clock: *mut c_uint) {
        guard(|| {
            let which = match kind {
                0 => Reading::GraphicsClock,
                1 => Reading::SmClock,
                MEMORY_CLOCK => Reading::MemoryClock,
                3 => Reading::VideoClock,
                _ => return Err(code::INVALID_ARGUMENT),
            };
            write_out(clock, reading(device, which)?)
        })
    }

    /// Performance state: 0 is the fastest.
    fn nvmlDeviceGetPerformanceState, nvmlDeviceGetPowerState: (device: Device, state: *mut c_int) {
        guard(|| write_out(state, reading(device, Reading::PerformanceState)? as c_int))
    }

    /// Width of the memory bus, in bits.
    fn nvmlDeviceGetMemoryBusWidth: (device: Device, width: *mut c_uint) {
        with(device, false, |gpu, _, _| write_out(width, gpu.bus_width as c_uint))
    }

    /// Compute mode: always the default, shared by all processes.
    fn nvmlDeviceGetComputeMode: (device: Device, mode: *mut c_int) {
        with(device, false, |_, _, _| write_out(mode, 0))
    }

    /// MIG mode: always off.
    fn nvmlDeviceGetMigMode: (device: Device, now: *mut c_uint, pending: *mut c_uint) {
        with(device, false, |_, _, _| {
            write_out(now, 0)?;
            write_out(pending, 0)
        })
    }

    /// Whether the handle is a MIG device: never.
    fn nvmlDeviceIsMigDeviceHandle: (device: Device, is: *mut c_uint) {
        with(device, false, |_, _, _| write_out(is, 0))
    }

    /// Maximum number of MIG devices: 0.
    fn nvmlDeviceGetMaxMigDeviceCount: (device: Device, count: *mut c_uint) {
        with(device, false, |_, _, _| write_out(count, 0))
    }

    /// Whether one GPU can access another's memory, as the recorder reports.
    fn nvmlDeviceGetP2PStatus: (one: Device, other: Device, _what: c_int, status: *mut c_int) {
        with(one, false, |gpu, facts, _| {
            let other = ordinal(other).ok().filter(|n| *n < facts.gpus.len()).ok_or(code::INVALID_ARGUMENT)?;
            write_out(status, if gpu.peers.contains(&(other as u32)) { REACHES } else { REACHES_NOT })
        })
    }

    /// Topological distance of two GPUs, derived from whether they can access each other's memory.
    fn nvmlDeviceGetTopologyCommonAncestor: (one: Device, other: Device, level: *mut c_int) {
        with(one, false, |gpu, facts, index| {
            let other = ordinal(other).ok().filter(|n| *n < facts.gpus.len()).ok_or(code::INVALID_ARGUMENT)?;
            let is_peer = gpu.peers.contains(&(other as u32));
            write_out(level, if other == index { 0 } else if is_peer { TOPOLOGY_SINGLE } else { TOPOLOGY_SYSTEM })
        })
    }

    /// Processes that use a GPU: only this one.
    fn nvmlDeviceGetComputeRunningProcesses: (device: Device, count: *mut c_uint, to: *mut Process) {
        with(device, true, |gpu, _, _| processes(gpu, count, to, |pid, used| Process { pid, used }))
    }

    /// Processes that use a GPU: only this one.
    fn nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3: (device: Device, count: *mut c_uint, to: *mut ProcessV2) {
        with(device, true, |gpu, _, _| processes(gpu, count, to, |pid, used| ProcessV2 {
            pid,
            used,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        }))
    }

    /// A table of private functions. nvidia-smi requests one and checks its size before using it; ours contains only the size.
    fn nvmlInternalGetExportTable: (table: *mut *const usize, name: *const [u8; 16]) {
        static NOTHING: [usize; 512] = {
            let mut words = [0; 512];
            words[0] = size_of::<usize>();
            words
        };
        guard(|| {
            // SAFETY: not null; a name has 16 bytes by NVML's contract.
            let known = !name.is_null() && unsafe { name.read_unaligned() } == PRIVATE_TABLE;
            write_out(table, if known { NOTHING.as_ptr() } else { std::ptr::null() })?;
            if known { Ok(()) } else { Err(code::INVALID_ARGUMENT) }
        })
    }

    /// Processes that use a GPU for graphics: none.
    fn nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3: (device: Device, count: *mut c_uint, _to: *mut c_void) {
        with(device, false, |_, _, _| write_out(count, 0))
    }
}

macro_rules! board_constants {
    ($($name:ident)*) => {$(
        /// A constant of the board, as reported by the NVML of the GPU's place.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: Device, to: *mut c_uint) -> Code {
            with(device, false, |gpu, _, _| {
                let known = gpu.board.iter().find(|(which, _)| board::NAMES.get(*which as usize) == Some(&stringify!($name)));
                write_out(to, known.ok_or(code::NOT_SUPPORTED)?.1)
            })
        }
    )*};
}

cuda_api::for_each_board_constant!(board_constants);

/// Error text of the last call with this name.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: Code) -> *const c_char {
    code::describe(result).as_ptr()
}

fn processes<T>(gpu: &Gpu, count: *mut c_uint, to: *mut T, entry: impl Fn(u32, u64) -> T) -> Result<(), Code> {
    if count.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    if !session::is_user() {
        return write_out(count, 0);
    }
    // SAFETY: not null; the caller has written how many there is room for.
    let room = unsafe { count.read() };
    write_out(count, 1)?;
    if room == 0 {
        return Err(code::INSUFFICIENT_SIZE);
    }
    write_out(to, entry(std::process::id(), gpu.total_bytes.saturating_sub(gpu.free_bytes)))
}
