//! Moves of a job that keeps memory and works on little of it ([`crate::live`]).

use super::lab::Lab;
use crate::bench::stage::Stage;
use crate::error::Error;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a job keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) mib: u64,
    /// Allocations that the memory is divided into.
    pub(super) regions: u64,
    pub(super) events: u32,
}

/// Pages that its kernels change all the time.
const TOUCHED: u32 = 16;

/// A file of its own for each job: when it exists, the job ends.
fn stop(stage: &Stage) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    stage.directory.join(format!("stop{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// The report of a move of such a job, which checks every word of its memory at its end.
pub(super) fn moved(lab: &Lab<'_>, from: &str, to: &str, kept: Kept) -> Result<Value, Error> {
    acted(lab, from, kept, |stage, pid| stage.migrate(pid, to))
}

/// What comes of something that is done to such a job while it works.
pub(super) fn acted<T>(
    lab: &Lab<'_>,
    at: &str,
    kept: Kept,
    act: impl FnOnce(&Stage, u32) -> Result<T, Error>,
) -> Result<T, Error> {
    let stage = lab.bench.stage;
    let stop = stop(stage);
    let args = [
        ("--mib", kept.mib.to_string()),
        ("--regions", kept.regions.to_string()),
        ("--events", kept.events.to_string()),
        ("--touched", TOUCHED.to_string()),
        ("--until", stop.display().to_string()),
    ];
    let args: Vec<&str> = ["live"].into_iter().chain(args.iter().flat_map(|(key, value)| [*key, value.as_str()])).collect();
    // Places of one GPU represent those of several machines: memory is copied, not handed over.
    let mut job = stage.job(at, &args, &[("MRCUDA_FAULT_NO_ADOPTION", "1")])?;
    job.answer()?;
    let done = act(stage, job.pid())?;
    std::fs::write(&stop, "")?;
    let end = job.answer()?;
    job.finish().map_err(|why| format!("{why}: {end}"))?;
    Ok(done)
}
