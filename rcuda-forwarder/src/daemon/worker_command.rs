//! How processes of the server are started.

use super::env;
use super::privileges::{Privileges, WorkerUser};
use crate::address_space;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

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
    /// The same as another user.
    pub(super) fn as_user(&self, user: &WorkerUser) -> Command {
        let mut command = self.clone();
        command.privileges = Privileges { user: Some(user.clone()), without_capabilities: false };
        command.variables.extend([("HOME", user.home.clone().into()), ("USER", user.name.clone().into())]);
        if let Some(directory) = &user.jit_cache {
            command.variables.retain(|(name, _)| *name != "CUDA_CACHE_DISABLE");
            command.variables.push(("CUDA_CACHE_PATH", directory.into()));
        }
        command
    }

    /// Creates a command without the server's variables, except those that a worker inherits. Its process enters the cgroup of this
    /// [`entrance`](super::cgroups::WorkerCgroup::entrance) first of all.
    pub(super) fn prepare(&self, cgroup: Option<File>) -> std::process::Command {
        let mut c = std::process::Command::new(&self.program);
        // The program's path may not be its name.
        c.arg0("mrcuda").args(&self.arguments).env_clear();
        c.envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(env::is_servers)));
        c.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let (ignores_sigterm, privileges) = (self.ignores_sigterm, self.privileges.clone());
        // SAFETY: between fork and exec only these system calls are made.
        unsafe {
            c.pre_exec(move || {
                if let Some(cgroup) = &cgroup
                    && libc::write(cgroup.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1
                {
                    return Err(io::Error::last_os_error());
                }
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
