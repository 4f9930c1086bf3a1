//! What Slurm's controller says of a job, by `scontrol`.

use std::process::Command;
use std::time::{Duration, Instant};

/// What `scontrol` writes while there is no controller. It has tried for a while itself (`MessageTimeout`).
const AWAY: &str = "Unable to contact slurm controller";
/// Before it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The job as `scontrol show job --oneliner` prints it. A controller that is away, because it is started anew for example, is waited for for so
/// long: the job itself needs none.
pub(crate) fn shown(scontrol: &str, job: u32, patience: Duration) -> Result<String, String> {
    let begun = Instant::now();
    loop {
        let asked = Command::new(scontrol).args(["show", "job", "--oneliner", &job.to_string()]).output();
        let asked = asked.map_err(|why| format!("cannot run {scontrol}: {why}"))?;
        if asked.status.success() {
            return Ok(String::from_utf8_lossy(&asked.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&asked.stderr);
        if !why.contains(AWAY) || begun.elapsed() >= patience {
            return Err(format!("scontrol show job: {}", why.trim()));
        }
        std::thread::sleep(PAUSE);
    }
}
