//! Constant properties of a GPU that only the NVML of its place reports: its link to the host, its cores, its
//! fans.

/// Invokes a macro with the NVML functions that return such a constant: each returns an `unsigned int` for a
/// device.
#[macro_export]
macro_rules! for_each_board_constant {
    ($then:ident) => {
        $then! {
            nvmlDeviceGetMaxPcieLinkGeneration
            nvmlDeviceGetMaxPcieLinkWidth
            nvmlDeviceGetGpuMaxPcieLinkGeneration
            nvmlDeviceGetCurrPcieLinkGeneration
            nvmlDeviceGetCurrPcieLinkWidth
            nvmlDeviceGetPcieLinkMaxSpeed
            nvmlDeviceGetPcieSpeed
            nvmlDeviceGetBusType
            nvmlDeviceGetNumFans
            nvmlDeviceGetNumGpuCores
            nvmlDeviceGetMultiGpuBoard
        }
    };
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The functions; their index identifies the answer.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

for_each_board_constant!(names);

/// Known constants: index in [`NAMES`], and value.
pub type Constants = Vec<(u32, u32)>;
