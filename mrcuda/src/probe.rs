//! Queries a driver library in a separate process, so that a library that hangs or crashes when it is loaded affects
//! only the probe.

use crate::failure::Failure;
use crate::limited::output_within;
use crate::table::say_as_it_is;
use cuda_api::driver::Loaded;
use cuda_api::sys::CUuuid;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Timeout for starting a driver: with eight GPUs and no persistence daemon the genuine one needs several seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of the hidden `mrcuda probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// The library
    library: PathBuf,
    /// Only load it
    #[arg(long)]
    load_only: bool,
}

/// Loads the library and prints its properties as one line of JSON.
pub(crate) fn probe(args: &ProbeArgs) -> Result<(), Failure> {
    let loaded = Loaded::open(&args.library).map_err(Failure::new)?;
    if args.load_only {
        say_as_it_is(&json!({}).to_string());
        return Ok(());
    }
    let device = &loaded.calls.device;
    let mut version = 0;
    if let Some(f) = device.cuDriverGetVersion {
        // SAFETY: a driver's function, called with a valid place for its answer; allowed before cuInit.
        unsafe { f(&raw mut version) };
    }
    let init = match device.cuInit {
        // SAFETY: the call that starts a driver.
        Some(f) => unsafe { f(0) },
        None => cuda_api::code::ERROR_NOT_FOUND,
    };
    let mut gpus = 0;
    if let (0, Some(f)) = (init, device.cuDeviceGetCount) {
        // SAFETY: after a successful cuInit, with a valid place for the answer.
        unsafe { f(&raw mut gpus) };
    }
    let uuid = |ordinal| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as before; the output is writable.
        let rc = unsafe { device.cuDeviceGetUuid_v2?(&raw mut uuid, ordinal) };
        (rc == 0).then(|| uuid.bytes.map(|b| b as u8))
    };
    let uuids: Option<Vec<[u8; 16]>> = (0..gpus).map(uuid).collect();
    say_as_it_is(&json!({"version": version, "init": init, "gpus": gpus, "uuids": uuids}).to_string());
    Ok(())
}

/// The hidden `mrcuda facts`: queries the recorder, as found by the linker, for the facts that the NVML library
/// reports, and writes them to standard input, which is a socket of that library. The process is a separate job with
/// the same places.
pub(crate) fn facts() -> Result<(), Failure> {
    use cuda_api::wire::Wire;
    // A process that reads the output of the requesting process must not wait for this one, nor for what this one
    // starts.
    rcuda_forwarder::orphan::shed(&[1]);
    use std::io::Write;
    use std::os::fd::AsFd;
    let recorder = crate::layout::library_directory().map_err(Failure::new)?.join("libcuda.so.1");
    let loaded = Loaded::open(&recorder).map_err(Failure::new)?;
    // SAFETY: a loaded driver stays loaded.
    let recorder = unsafe { cuda_api::facts::Recorder::find(loaded.handle) }
        .ok_or_else(|| Failure::new(format!("{} is another library", recorder.display())))?;
    let mut facts = recorder.ask().map_err(|rc| Failure::new(format!("CUDA error {rc}")))?;
    (0..).zip(&mut facts.gpus).for_each(|(ordinal, gpu)| gpu.readings = recorder.readings(ordinal));
    let mut answer = Vec::new();
    facts.put(&mut answer);
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(Failure::new)?;
    std::fs::File::from(socket).write_all(&answer).map_err(Failure::new)
}

/// The results of a probe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Probed {
    /// 1000 × major + 10 × minor.
    pub(crate) version: i64,
    /// Result of `cuInit`.
    pub(crate) init: i64,
    /// Number of GPUs.
    pub(crate) gpus: i64,
    /// Their UUIDs, by their numbers, if the driver says them.
    pub(crate) uuids: Vec<[u8; 16]>,
}

/// Why a probe has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// The process could not be started or awaited.
    #[error(transparent)]
    Process(#[from] io::Error),
    /// The library took too long.
    #[error("does not answer within {} s", START_TIMEOUT.as_secs())]
    Timeout,
    /// The process has reported why it failed.
    #[error("{0}")]
    Reported(String),
    /// The process has failed without a report.
    #[error("loading it ended with {0}")]
    Ended(ExitStatus),
    /// The process has printed something else.
    #[error(transparent)]
    Answer(#[from] serde_json::Error),
}

/// Probes a library in a separate process.
pub(crate) fn ask(library: &Path, load_only: bool) -> Result<Probed, ProbeError> {
    let exe = std::env::current_exe()?;
    let mut command = Command::new(exe);
    command.arg("probe").arg(library);
    if load_only {
        command.arg("--load-only");
    }
    let output = output_within(&mut command, START_TIMEOUT)?.ok_or(ProbeError::Timeout)?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let words = words.trim().trim_start_matches("mrcuda: ");
        return Err(if words.is_empty() { ProbeError::Ended(output.status) } else { ProbeError::Reported(words.to_owned()) });
    }
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let number = |key: &str| answer.get(key).and_then(Value::as_i64).unwrap_or(0);
    let uuids: Option<Vec<[u8; 16]>> = serde_json::from_value(answer["uuids"].clone())?;
    Ok(Probed { version: number("version"), init: number("init"), gpus: number("gpus"), uuids: uuids.unwrap_or_default() })
}
