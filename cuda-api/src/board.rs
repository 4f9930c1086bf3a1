//! What only a place's NVML can tell of a GPU and never changes: its link to the machine, its cores, its fans.

/// Calls a macro with the NVML functions that tell such a constant: each gives an `unsigned int` of a device.
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
        /// The functions, in the order in which their answers are numbered.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

for_each_board_constant!(names);

/// Constants that are known: number in [`NAMES`], and value.
pub type Constants = Vec<(u32, u32)>;
