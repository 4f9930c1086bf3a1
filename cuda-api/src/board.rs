//! What only the NVML of a GPU's place reports: constant properties (its link to the host, its cores, its fans), and what it measures.

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

/// What a GPU measures, and the limits that it keeps to now. As a number it identifies the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reading {
    /// Share of the last sample period in which a kernel ran, in percent.
    Utilization,
    /// Share of it in which its memory was read or written, in percent.
    MemoryUtilization,
    /// Temperature of the chip, in degrees Celsius.
    Temperature,
    /// Power that it draws, in milliwatts.
    Power,
    /// Power that it may draw, in milliwatts.
    PowerLimit,
    /// Clock of the graphics domain, in MHz;
    GraphicsClock,
    /// of the multiprocessors,
    SmClock,
    /// of the memory,
    MemoryClock,
    /// and of the video domain.
    VideoClock,
    /// Its performance state: 0 is the fastest.
    PerformanceState,
}

impl Reading {
    /// All, by their numbers.
    pub const ALL: [Reading; 10] = [
        Reading::Utilization,
        Reading::MemoryUtilization,
        Reading::Temperature,
        Reading::Power,
        Reading::PowerLimit,
        Reading::GraphicsClock,
        Reading::SmClock,
        Reading::MemoryClock,
        Reading::VideoClock,
        Reading::PerformanceState,
    ];

    /// Its value among known ones.
    pub fn of(self, known: &Readings) -> Option<u32> {
        known.iter().find(|(which, _)| *which == self as u32).map(|(_, value)| *value)
    }
}

/// Known readings: the number of a [`Reading`], and its value.
pub type Readings = Vec<(u32, u32)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_found_by_their_numbers() {
        assert!(Reading::ALL.iter().zip(0..).all(|(reading, number)| *reading as u32 == number));
        let known = vec![(3, 700), (2, 40)];
        assert_eq!((Reading::Temperature.of(&known), Reading::Power.of(&known)), (Some(40), Some(700)));
        assert_eq!(Reading::Utilization.of(&known), None);
    }
}
