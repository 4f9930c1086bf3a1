//! `cargo xtask slurm`: the plugin for Slurm in a cluster of four nodes on this machine, on softgpu. It needs root, and the packages slurm-wlm,
//! munge and libslurm-dev of Debian; CI has none of them.

use crate::error::Error;
use crate::step::step;
use std::process::Command;
use tests::install;

/// Arguments of `cargo xtask slurm`.
#[derive(Debug, clap::Args)]
pub(crate) struct SlurmArgs {
    /// A day of a cluster, in some minutes, in place of the checks: 40 jobs, an agent, preemptions, what is drained
    #[arg(long)]
    day: bool,
}

/// Runs the checks of `slurm.sh`, or `slurm-day.sh`.
pub(crate) fn slurm(args: &SlurmArgs) -> Result<(), Error> {
    let target = install::target_directory()?;
    step("building");
    let mut cargo = install::cargo();
    cargo.args(["build", "--profile", install::PROFILE, "--target-dir"]).arg(&target);
    cargo.args(
        ["mrcuda", "mhelper", "recorder", "nvml", "softgpu", "spank", "tests"].iter().flat_map(|package| ["--package", package]),
    );
    Error::unless_success("cargo build", cargo.status().map_err(Error::start("cargo"))?)?;
    step("Slurm");
    let script = install::root().join("xtask/src/slurm.sh");
    let checks = Command::new("bash")
        .arg(script)
        .arg(target.join(install::PROFILE))
        .args(args.day.then_some("--day"))
        .status()
        .map_err(Error::start("bash"))?;
    Error::unless_success("slurm.sh", checks)
}
