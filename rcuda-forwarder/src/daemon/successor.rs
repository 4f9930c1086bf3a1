//! SIGUSR2: the daemon starts its program once more, as it is on the disk now and with the same arguments, and that process takes over. So a
//! service manager can replace a server after an upgrade of its package without ending jobs.

use super::error::ServeError;
use super::log::{Log, LogLine};
use crate::threads;
use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The option by which a process takes over.
const TAKE_OVER: &str = "--take-over";

/// Waits for a signal that ends the daemon, and starts a successor for each SIGUSR2.
pub(super) fn wait_for_end(signals: &SigSet, log: Log) -> Result<Signal, ServeError> {
    loop {
        match signals.wait().map_err(|e| ServeError::Start(e.into()))? {
            Signal::SIGUSR2 => {
                if let Err(why) = start(log) {
                    log(&LogLine::warning(format!("cannot start a process that takes over: {why}")));
                }
            }
            signal => return Ok(signal),
        }
    }
}

fn start(log: Log) -> io::Result<()> {
    let program = without_mark(&std::env::current_exe()?);
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1).filter(|arg| arg != TAKE_OVER)).arg(TAKE_OVER).stdin(Stdio::null());
    let mut child = command.spawn()?;
    log(&LogLine::info(format!("process {} of {} takes over", child.id(), program.display())));
    let wait = move || {
        let ended = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        log(&LogLine::warning(format!("process {}, which was to take over, has ended: {ended}", child.id())));
    };
    threads::spawn("successor", wait).map(drop)
}

/// The path of a program, also if another file has taken its place, which Linux marks.
fn without_mark(program: &Path) -> PathBuf {
    program.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map_or_else(|| program.to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_found() {
        assert_eq!(without_mark(Path::new("/usr/bin/mrcuda (deleted)")), Path::new("/usr/bin/mrcuda"));
        assert_eq!(without_mark(Path::new("/usr/bin/mrcuda")), Path::new("/usr/bin/mrcuda"));
    }
}
