//! Limits of a device that every launch is checked against.

use cuda_api::sys;
use executor::DeviceInfo;

/// Limits of a device that every launch is checked against.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) processors: u32,
}

impl Limits {
    pub(crate) fn of(info: &DeviceInfo) -> Limits {
        use sys::CUdevice_attribute_enum as A;
        let of = |id: A| info.attribute(id as i32).and_then(|v| u32::try_from(v).ok()).unwrap_or(u32::MAX);
        Limits {
            grid: [
                A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
            ]
            .map(of),
            block: [
                A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
            ]
            .map(of),
            threads: of(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            processors: of(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        }
    }
}
