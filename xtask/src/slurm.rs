//! `cargo xtask slurm`: the plugin for Slurm in a cluster of four nodes on this machine, on softgpu. It needs root, and the packages slurm-wlm,
//! munge and libslurm-dev of Debian.

use crate::error::Error;
use crate::step::step;
use std::process::Command;
use tests::{Install, install};

/// Arguments of `cargo xtask slurm`.
#[derive(Debug, clap::Args)]
pub(crate) struct SlurmArgs {
    /// A day of a cluster, in some minutes, in place of the checks: 40 jobs, an agent, preemptions, what is drained
    #[arg(long)]
    day: bool,
}

/// Runs all checks of `tests/slurm/cluster.sh`, or `day.sh`.
pub(crate) fn slurm(args: &SlurmArgs) -> Result<(), Error> {
    step("building");
    let installed = Install::build(install::PROFILE)?;
    step("Slurm");
    let checks = Command::new("bash")
        .arg(install::root().join("tests/slurm/cluster.sh"))
        .arg(installed.bin)
        .args(args.day.then_some("day"))
        .status()
        .map_err(Error::start("bash"))?;
    Error::unless_success("cluster.sh", checks)
}
