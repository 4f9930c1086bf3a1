//! What everything else uses: it knows nothing of the job.

pub(crate) mod answers;
pub(crate) mod completion_cache;
pub(crate) mod config;
pub(crate) mod coverage;
pub(crate) mod encoding;
pub(crate) mod log;
pub(crate) mod output;
pub(crate) mod server_moves;
pub(crate) mod spawn;
pub(crate) mod sync;
pub(crate) mod traced_calls;

/// The job's name: that of the configuration, otherwise that of the script or program.
pub(crate) fn job_name() -> &'static str {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| {
        let given = config::get().ok().and_then(|config| config.name.clone());
        given.unwrap_or_else(|| ::control::name::of_process(std::process::id()))
    })
}

/// The file of the program that runs in this process; empty if the system does not say.
pub(crate) fn program() -> std::path::PathBuf {
    std::fs::read_link("/proc/self/exe").unwrap_or_default()
}
