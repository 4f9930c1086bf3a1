//! A Slurm of four nodes on this machine with the plugin: `tests/slurm/cluster.sh`, a test for each part.

use std::path::Path;
use std::process::Command;
use tests::{Install, install};

/// What a part needs, with Debian's package of each. Slurm loads a plugin only if it was built with the headers of its version.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/sbin/slurmctld", "slurmctld"),
    ("/usr/sbin/slurmd", "slurmd"),
    ("/usr/bin/sbatch", "slurm-client"),
    ("/usr/sbin/munged", "munge"),
    ("/usr/include/slurm/slurm_version.h", "libslurm-dev"),
];

/// Runs a part of the script. Where Slurm is not installed, or the user is not root, a line says what is not tested.
fn part(name: &str) {
    let missing: Vec<&str> = NEEDED.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package).collect();
    // SAFETY: the call has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let plugin = Install::get().file("libmrcuda_spank.so");
    if !missing.is_empty() || !is_root || !plugin.exists() {
        let why = match missing.as_slice() {
            [] if is_root => format!("there is no {}", plugin.display()),
            [] => "it needs root".to_owned(),
            packages => format!("it needs the packages {}", packages.join(" ")),
        };
        eprintln!("{why}: not tested: Slurm, {name}");
        return;
    }
    let script = install::root().join("tests/slurm/cluster.sh");
    let output = Command::new("bash").arg(script).arg(&Install::get().bin).arg(name).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" passed, 0 failed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tasks_run_at_their_places() {
    part("places");
}

#[test]
fn the_signal_of_a_job_moves_it_in_every_form() {
    part("signals");
}

#[test]
fn a_suspended_job_is_parked() {
    part("suspension");
}

#[test]
fn remote_gpus_are_counted() {
    part("counting");
}

#[test]
fn a_job_carries_its_home_and_policies() {
    part("policies");
}

#[test]
fn a_drained_node_is_left_by_the_agent() {
    part("nodes");
}

#[test]
fn a_killed_job_leaves_nothing() {
    part("directories");
}

#[test]
fn a_requeued_job_starts_anew() {
    part("requeue");
}

#[test]
fn what_the_login_node_passes_on_does_not_matter() {
    part("runtime");
}
