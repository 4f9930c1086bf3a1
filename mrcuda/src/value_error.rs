//! Why the value of an option or argument is refused.

use control::LONGEST_ID;
use cuda_api::address_map::DEVICES;

/// Why a value in the command line, or one of the environment with the same form, cannot be used. The message follows the name of the
/// option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    /// It is not a time with its unit.
    #[error("it must be a time like 200ms, 1.5s, 10m, 2h or 3d")]
    Time,
    /// It is not a number of seconds within the bounds.
    #[error("it must be a number of seconds from 0.1 to 3600")]
    Seconds,
    /// It is not a time between two frames.
    #[error("it must be a time from 100ms to 1h")]
    Interval,
    /// It is not a process id.
    #[error("it must be a process id, a number from 1 on (mrcuda ps lists the jobs)")]
    Pid,
    /// It is not a number of bytes.
    #[error("it must be a number of bytes, or one with K, M, G or T (3G or 3GiB)")]
    Bytes,
    /// It is not a GPU of a job.
    #[error("it must be a GPU's number (0 to {}) or `all`", DEVICES - 1)]
    Gpu,
    /// It cannot be the name of a job.
    #[error("it must have 1 to {LONGEST_ID} letters, digits, dots, dashes or underscores")]
    JobName,
}
