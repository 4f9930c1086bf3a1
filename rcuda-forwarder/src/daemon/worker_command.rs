//! How processes of the server are started, and the GPUs that its driver has.

use super::env;
use super::error::ServeError;
use super::privileges::Privileges;
use crate::endpoint::GPUS;
use crate::{address_space, worker};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// How a worker is started.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Only the end of the daemon ends it, not a SIGTERM to the daemon's whole process group or service, after which jobs move away.
    pub(crate) ignores_sigterm: bool,
    /// What it gives up.
    pub(crate) privileges: Privileges,
    /// Variables that it gets instead of the server's.
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

impl Command {
    /// Creates a command without the server's variables, except those that a worker inherits.
    pub(super) fn prepare(&self) -> std::process::Command {
        let mut c = std::process::Command::new(&self.program);
        // The program's path may not be its name.
        c.arg0("mrcuda").args(&self.arguments).env_clear();
        c.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(env::is_servers)));
        c.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let (ignores_sigterm, privileges) = (self.ignores_sigterm, self.privileges.clone());
        // SAFETY: between fork and exec only these system calls are made.
        unsafe {
            c.pre_exec(move || {
                // The daemon's threads block signals, which must end a worker.
                let none = nix::sys::signal::SigSet::empty();
                none.thread_set_mask()?;
                if ignores_sigterm && libc::signal(libc::SIGTERM, libc::SIG_IGN) == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
                address_space::before_exec();
                privileges.give_up()
            });
        }
        c
    }
}

/// Counts the GPUs of a driver in a separate process, and chooses those to offer.
pub(super) fn count(command: &Command, driver: &Path, wanted: Option<u32>) -> Result<Vec<u32>, ServeError> {
    let failed = |why: String| ServeError::Driver { driver: driver.into(), why };
    // It serves no client. A driver that root starts may make its device files, for which a worker lacks the rights.
    let mut probe = Command { privileges: Privileges::default(), ..command.clone() }.prepare();
    // Here it selects GPUs; a worker selects by the machine's numbers.
    probe.envs(std::env::var_os(VISIBLE).map(|list| (VISIBLE, list)));
    let out = probe.arg(worker::PROBE).arg(driver).stdin(Stdio::null()).output().map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let there = text.trim().lines().last().and_then(|n| n.parse::<u32>().ok()).filter(|_| out.status.success());
    let there = there.ok_or_else(|| failed(String::from_utf8_lossy(&out.stderr).trim().to_owned()))?;
    let visible = std::env::var(VISIBLE).ok();
    offered(there, visible.as_deref(), wanted)
}

/// The GPUs to offer, as numbers in a worker's driver.
pub(super) fn offered(there: u32, visible: Option<&str>, wanted: Option<u32>) -> Result<Vec<u32>, ServeError> {
    // This process sees a selection already; a worker selects by the machine's numbers.
    let all: Vec<u32> = match visible {
        None => (0..there).collect(),
        Some(list) => list
            .split(',')
            .map(|n| n.trim().parse().map_err(|_| ServeError::Visible(list.to_owned())))
            .take(there as usize)
            .collect::<Result<_, _>>()?,
    };
    let there = all.len() as u32;
    let n = wanted.unwrap_or(there.min(GPUS));
    if n > there || n > GPUS {
        return Err(ServeError::Gpus { there, wanted: n });
    }
    Ok(all[..n as usize].to_vec())
}
