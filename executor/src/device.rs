//! What a place reports about its GPU.

use crate::gpu::Gpu;
use cuda_api::code::{self, Code};
use cuda_api::sys::CUdevice_attribute_enum as A;
use cuda_api::wire_struct;
use std::path::Path;

/// Higher attribute numbers do not exist (CUDA 13.0's header ends at 146).
const ATTRIBUTES: u32 = 150;

wire_struct! {
    /// A GPU as its driver describes it.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct DeviceInfo {
        /// Name.
        pub name: String,
        /// `cuDeviceGetUuid`
        pub uuid: [u8; 16],
        /// PCI domain, bus, device.
        pub pci: [i32; 3],
        /// Total memory, in bytes.
        pub total_bytes: u64,
        /// Free when the place was opened, in bytes.
        pub free_bytes: u64,
        /// `cuDriverGetVersion`: 1000 × major + 10 × minor.
        pub driver_version: i32,
        /// The driver's version, for example `580.159.03`; empty if unknown.
        pub driver_build: String,
        /// Compute capability: major, minor.
        pub capability: [i32; 2],
        /// Every attribute that the driver knows, with its number.
        pub attributes: Vec<(i32, i32)>,
        /// Least and greatest priority of streams.
        pub priorities: [i32; 2],
        /// Path of the driver's file, with links resolved: a real driver's file name contains its version.
        pub driver_path: String,
        /// Number of processors that the place's process can use.
        pub processors: u32,
    }
}

/// Number of processors that this process can use: as many as its main thread, because a program may bind other threads to few
/// of them. A limit of CPU time counts if it is less than the calling thread may use.
pub fn processors() -> u32 {
    let allowed = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    let main_thread = std::process::id() as libc::pid_t;
    match [main_thread, 0].map(processors_of) {
        [Some(main), Some(calling)] if allowed == calling => main,
        _ => allowed,
    }
}

/// Number of processors to which a thread is bound; 0: the calling thread.
fn processors_of(thread: libc::pid_t) -> Option<u32> {
    // SAFETY: a set of bits; zeros are an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set has the size that is given.
    let rc = unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: the set is valid.
    (rc == 0).then(|| unsafe { libc::CPU_COUNT(&set) } as u32)
}

impl DeviceInfo {
    /// Queries the driver; a context must be current.
    pub(crate) fn ask(gpu: &Gpu, driver: &Path) -> Result<DeviceInfo, Code> {
        let attributes: Vec<(i32, i32)> = (1..=ATTRIBUTES).filter_map(|a| gpu.attribute(a).ok().map(|v| (a as i32, v))).collect();
        let get = |a: A| attributes.iter().find(|(id, _)| *id == a as i32).map(|(_, v)| *v).ok_or(code::ERROR_UNKNOWN);
        let path = std::fs::canonicalize(driver).unwrap_or_else(|_| driver.to_owned());
        Ok(DeviceInfo {
            driver_build: crate::board::driver_build(&path),
            name: gpu.device_name()?,
            uuid: gpu.device_uuid()?,
            pci: [
                get(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
                get(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
                get(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
            ],
            total_bytes: gpu.total_bytes()?,
            free_bytes: gpu.memory_info()?.0,
            driver_version: gpu.driver_version()?,
            capability: [
                get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ],
            priorities: gpu.priorities()?,
            driver_path: path.display().to_string(),
            processors: processors(),
            attributes,
        })
    }

    /// The compute capability as code names it: 10 × major + minor.
    pub(crate) fn sm(&self) -> u32 {
        let [major, minor] = self.capability.map(|part| u32::try_from(part).unwrap_or_default());
        major.saturating_mul(10).saturating_add(minor)
    }

    /// Value of an attribute (`CUdevice_attribute`), if the driver knows it.
    pub fn attribute(&self, attribute: i32) -> Option<i32> {
        self.attributes.iter().find(|(id, _)| *id == attribute).map(|(_, v)| *v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_bound_to_a_processor_does_not_speak_for_its_process() {
        let all = processors();
        let bound = std::thread::spawn(|| {
            // SAFETY: a set of bits; zeros are an empty one.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            let first = (0..libc::CPU_SETSIZE as usize).find(|processor| {
                // SAFETY: the set is valid, and the number within it.
                unsafe {
                    libc::CPU_ZERO(&mut set);
                    libc::CPU_SET(*processor, &mut set);
                }
                // SAFETY: the set has the size that is given.
                unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
            });
            assert!(first.is_some());
            (processors_of(0), processors())
        });
        assert_eq!(bound.join().unwrap(), (Some(1), all));
    }
}
