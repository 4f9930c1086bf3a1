//! `mrcuda ps`: lists the jobs.

use crate::ask::{ANSWER_TIMEOUT, print_json};
use crate::failure::Failure;
use crate::table::{Table, ago, bytes, printable, say};
use control::{AskError, Client, Device, DeviceState, Job, directory};

/// Arguments of `mrcuda ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists the jobs and removes stale sockets of jobs that have ended.
pub(crate) fn ps(args: &PsArgs) -> Result<(), Failure> {
    let (mut jobs, mut silent) = (Vec::new(), false);
    for pid in directory::pids().map_err(Failure::new)? {
        match Client::connect(pid).and_then(|mut c| c.list(Some(ANSWER_TIMEOUT))) {
            Ok(job) => jobs.push(job),
            Err(AskError::NoJob) => directory::remove_stale(pid),
            Err(why) => {
                silent = true;
                eprintln!("mrcuda: job {pid}: {}", printable(&why.to_string()));
            }
        }
    }
    if args.json {
        return print_json(&jobs);
    }
    if jobs.is_empty() {
        say(if silent { "no other jobs" } else { "no jobs" });
        return Ok(());
    }
    let mut table = Table::new(&["PID", "PROGRAM", "GPU", "PLACE", "BY", "SINCE", "STATE", "NAME", "MEMORY", "OBJECTS", "MOVES"]);
    for job in &jobs {
        for device in &job.devices {
            table.row(vec![
                job.pid.to_string(),
                job.program.clone(),
                device.device.to_string(),
                device.place.clone(),
                carried(device),
                ago(device.since_unix_ms),
                state(job, device),
                device.name.clone(),
                bytes(device.used_bytes),
                device.live.values().sum::<u64>().to_string(),
                device.moves.to_string(),
            ]);
        }
    }
    say(&table.render());
    Ok(())
}

/// How calls travel, and the bytes of large copies if they travel otherwise than one expects.
fn carried(device: &Device) -> String {
    let Device { transport, large_copies, .. } = device;
    let is_usual = large_copies.is_empty() || large_copies == transport || transport == "shm";
    if is_usual { transport.clone() } else { format!("{transport}, large copies {large_copies}") }
}

fn state(job: &Job, device: &Device) -> String {
    match device.state {
        DeviceState::Idle => "idle".to_owned(),
        DeviceState::Parked => "parked".to_owned(),
        DeviceState::Moving => format!("moving ({})", job.moving.as_deref().unwrap_or("?")),
        DeviceState::Failed => format!("failed (error {})", device.error),
    }
}
