//! What everything else uses: it knows nothing of the job.

pub(crate) mod answers;
pub(crate) mod cancellation;
pub(crate) mod clock;
pub(crate) mod completion_cache;
pub(crate) mod config;
pub(crate) mod coverage;
pub(crate) mod encoding;
pub(crate) mod log;
pub(crate) mod output;
pub(crate) mod spawn;
pub(crate) mod sync;

/// The file of the program that runs in this process; empty if the system does not say.
pub(crate) fn program() -> std::path::PathBuf {
    std::fs::read_link("/proc/self/exe").unwrap_or_default()
}
