//! A scheduler in 30 lines: `bring PLACE` moves every job of this user to a place as soon as it fits there, and ends after the last job.
//! The place is written as `mrcuda ps` shows it, with the number of the GPU. docs/tutorials/scheduler.md explains it.

use control::{AskError, Client, DeviceState, Migrate, directory};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let to = std::env::args().nth(1).ok_or("usage: bring PLACE")?;
    loop {
        let mut jobs = 0;
        for pid in directory::pids()? {
            match bring(pid, &to) {
                // A job that was killed leaves its socket behind.
                Err(AskError::NoJob) => continue,
                Err(why) => eprintln!("job {pid}: {why}"),
                Ok(()) => {}
            }
            jobs += 1;
        }
        if jobs == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Moves a job, if it is at work elsewhere and nothing prevents the move.
fn bring(pid: u32, to: &str) -> Result<(), AskError> {
    let mut job = Client::connect(pid)?;
    let state = job.list(Some(Duration::from_secs(5)))?;
    let gpus = &state.devices;
    if gpus.iter().any(|gpu| gpu.state != DeviceState::Running) || gpus.iter().all(|gpu| gpu.place == to) {
        return Ok(());
    }
    let plan = job.plan(to, None, false)?;
    if plan.ok {
        let done = job.migrate(Migrate { max_downtime_ms: Some(10_000), ..Migrate::to(to) })?;
        println!("{}: {} -> {to}: {:?}", state.name, plan.from, done.state);
    } else {
        println!("{}: stays at {}: {}", state.name, plan.from, plan.reason.unwrap_or_default());
    }
    Ok(())
}
