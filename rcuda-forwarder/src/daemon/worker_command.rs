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
use std::time::Duration;

/// Maximum time from a process' change of its user until it executes its program. Its user can stop it meanwhile, and whoever starts it waits.
const UNTIL_EXEC: Duration = Duration::from_secs(10);

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
                if privileges.user.is_some() {
                    end_unless_executed(UNTIL_EXEC)?;
                }
                privileges.give_up()
            });
        }
        c
    }
}

/// Has the kernel end this process after a time, even if it is stopped, unless it executes a program before: that removes its timers. Only
/// system calls.
fn end_unless_executed(limit: Duration) -> io::Result<()> {
    // SAFETY: numbers and a pointer, for which zeros are values.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
    let mut timer: libc::c_int = 0;
    let at = libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    // SAFETY: the kernel reads the local `event` and `once`, and writes the timer's number, an `int`, to `timer`. Not by the C library, which
    // may allocate memory for a timer.
    let done = unsafe {
        libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0
            && libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const once, std::ptr::null_mut::<libc::itimerspec>()) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn with_limit(program: &str, limit: Duration, is_stopped: bool) -> std::process::Command {
        let mut command = std::process::Command::new(program);
        // SAFETY: only system calls.
        unsafe {
            command.pre_exec(move || {
                end_unless_executed(limit)?;
                if is_stopped && libc::raise(libc::SIGSTOP) != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }

    #[test]
    fn a_process_that_is_stopped_before_it_executes_its_program_is_ended() {
        // Returns, other than with a process that stays stopped.
        let mut child = with_limit("true", Duration::from_millis(50), true).spawn().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_program_that_is_executed_has_no_such_limit() {
        if !std::path::Path::new("/proc/self/timers").exists() {
            eprintln!("this kernel does not show timers: nothing was tested");
            return;
        }
        let mut command = with_limit("cat", Duration::from_secs(10_000), false);
        let output = command.arg("/proc/self/timers").output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
