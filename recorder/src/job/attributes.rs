//! Attributes of a device as the program sees them.

use crate::base::config;
use crate::job::Device;
use cuda_api::sys;

/// Attributes with a fixed value that every place supports, because places differ in them: docs/execution.md, "What the job sees
/// differently from native", lists them.
fn fixed(attribute: u32) -> Option<i32> {
    use sys::CUdevice_attribute_enum as A;
    const ZERO: [A; 5] = [
        A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        A::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
        A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
        A::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
    ];
    // Places are built on the virtual-memory functions; pools are the recorder's own.
    const ONE: [A; 4] = [
        A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        // By descriptors only.
        A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
    ];
    // A program whose host does not touch managed memory while kernels run is told that it must not.
    const OF_CONCURRENT_USE: [A; 2] =
        [A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, A::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST];
    let among = |list: &[A]| list.iter().any(|a| *a as u32 == attribute);
    if among(&ZERO) || config::is_exclusive() && among(&OF_CONCURRENT_USE) { Some(0) } else { among(&ONE).then_some(1) }
}

/// An attribute as the program sees it.
pub(crate) fn attribute(device: &Device, attribute: u32) -> Option<i32> {
    let known = device.info.attributes.iter().find(|(a, _)| *a as u32 == attribute).map(|(_, v)| *v)?;
    Some(fixed(attribute).unwrap_or(known))
}
