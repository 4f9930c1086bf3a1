//! A controller that is away for a while loses no task.

#[path = "../src/controller.rs"]
mod controller;

use controller::shown;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A `scontrol` that does this; its directory is removed with it.
struct Scontrol(PathBuf);

impl Scontrol {
    fn new(name: &str, script: &str) -> Scontrol {
        let directory = std::env::temp_dir().join(format!("mrcuda-spank-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let it = Scontrol(directory.join("scontrol"));
        std::fs::write(&it.0, format!("#!/bin/sh\ncd {}\n{script}\n", directory.display())).unwrap();
        std::fs::set_permissions(&it.0, std::fs::Permissions::from_mode(0o755)).unwrap();
        it
    }

    fn shown(&self, patience: Duration) -> Result<String, String> {
        shown(self.0.to_str().unwrap(), 7, patience)
    }
}

impl Drop for Scontrol {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

const AWAY: &str = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1";

// One after the other: a script that is written while another thread starts a process may be busy.
#[test]
fn a_controller_that_is_away_is_waited_for_and_what_is_wrong_otherwise_is_said_at_once() {
    let second = Scontrol::new("second", &format!("[ -e asked ] && echo \"$@\" && exit; touch asked; {AWAY}"));
    assert_eq!(second.shown(LONG), Ok("show job --oneliner 7\n".to_owned()));
    let never = Scontrol::new("never", AWAY);
    assert!(never.shown(Duration::ZERO).unwrap_err().contains("Unable to contact slurm controller"));
    let wrong = Scontrol::new("wrong", "[ -e asked ] && exit; touch asked; echo 'Invalid job id specified' >&2; exit 1");
    assert_eq!(wrong.shown(LONG), Err("scontrol show job: Invalid job id specified".to_owned()));
    assert!(shown("/nowhere/scontrol", 7, LONG).unwrap_err().starts_with("cannot run /nowhere/scontrol"));
}
