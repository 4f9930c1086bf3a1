//! The process of a worker: its end, and what it writes.

use super::cgroups::WorkerCgroup;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Maximum length of a worker's line that is passed on in one piece.
const LINE: u64 = 16 << 10;

/// The process of a worker.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) child: Child,
    /// Where its host memory is limited, if it is.
    pub(super) cgroup: Option<WorkerCgroup>,
}

/// How the process of a worker has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: io::Result<ExitStatus>,
    /// Why the kernel has ended it, if that was for its host memory.
    pub(super) for_memory: Option<String>,
}

impl Process {
    /// Waits for its end, once its channel is closed, as [`reap`]; then its cgroup is removed.
    pub(super) fn reap(mut self, limit: impl Fn() -> Duration) -> Ended {
        let status = reap(&mut self.child, limit);
        // Another one of its cgroup may have been killed before, which it has survived.
        let is_killed = status.as_ref().is_ok_and(|status| status.signal() == Some(libc::SIGKILL));
        let for_memory = self.cgroup.as_ref().filter(|_| is_killed).and_then(WorkerCgroup::why_killed);
        Ended { status, for_memory }
    }
}

impl Ended {
    /// Whether it has ended by itself, as it should.
    pub(super) fn is_success(&self) -> bool {
        self.status.as_ref().is_ok_and(ExitStatus::success)
    }

    /// In words, unless it is a success.
    pub(super) fn failure(&self) -> Option<String> {
        let how = match &self.status {
            Ok(status) if status.success() => return None,
            Ok(status) => status.to_string(),
            Err(e) => format!("exit status unknown: {e}"),
        };
        Some(self.for_memory.as_ref().map_or_else(|| how.clone(), |why| format!("{how}: {why}")))
    }
}

/// Waits for the end of a process whose channel is closed; kills it on timeout.
pub(super) fn reap(child: &mut Child, limit: impl Fn() -> Duration) -> io::Result<ExitStatus> {
    let since = Instant::now();
    while since.elapsed() < limit() {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()
}

/// Passes on the output of a process line by line.
pub(super) fn pass_on(output: PipeReader, line: &dyn Fn(&str)) {
    let mut lines = BufReader::new(output);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match lines.by_ref().take(LINE).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            // It may contain a client's text, which must not insert line breaks or terminal control codes.
            Ok(_) => line(&String::from_utf8_lossy(&bytes).trim_end().replace(char::is_control, " ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(raw: i32, for_memory: Option<&str>) -> Ended {
        Ended { status: Ok(ExitStatus::from_raw(raw)), for_memory: for_memory.map(str::to_owned) }
    }

    #[test]
    fn a_failure_is_told_with_its_reason() {
        assert_eq!(ended(0, None).failure(), None);
        assert!(ended(0, None).is_success() && !ended(libc::SIGKILL, None).is_success());
        assert_eq!(ended(3 << 8, None).failure().unwrap(), "exit status: 3");
        assert_eq!(ended(libc::SIGKILL, None).failure().unwrap(), "signal: 9 (SIGKILL)");
        assert_eq!(ended(libc::SIGKILL, Some("too much")).failure().unwrap(), "signal: 9 (SIGKILL): too much");
        let unknown = Ended { status: Err(io::ErrorKind::NotFound.into()), for_memory: None };
        assert!(!unknown.is_success() && unknown.failure().unwrap().starts_with("exit status unknown: "));
    }
}
