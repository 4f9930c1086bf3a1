//! Captures what the driver writes to the worker's standard output and error: text of device code and of failed
//! assertions. Natively it is part of the job's own output, so it is sent to the job.
//!
//! Both are pipes. One thread sends whatever arrives; before an answer that the job may wait for, the contents of the
//! pipes are sent first ([`Text::pass_on`]), so that a kernel's text arrives before the wait for the kernel ends.

use crate::sync::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

/// Maximum bytes of one message.
const MAX_TEXT: usize = 64 << 10;
/// Descriptors of standard output and error.
const STREAMS: [i32; 2] = [libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Standard error as inherited from the daemon: its log.
static LOG: OnceLock<File> = OnceLock::new();

/// Writes a line to the daemon's log, which may be closed.
pub(crate) fn complain(why: &dyn Display) {
    let line = format!("{why}\n");
    let _ = match LOG.get() {
        Some(mut log) => log.write_all(line.as_bytes()),
        None => io::stderr().write_all(line.as_bytes()),
    };
}

/// The reading ends.
#[derive(Debug)]
pub(super) struct Text {
    pipes: Mutex<[PipeReader; 2]>,
    /// The same, for polling.
    ready: [OwnedFd; 2],
}

impl Text {
    /// Replaces the process's standard output and error, so that text written there is sent to the job.
    pub(super) fn capture() -> io::Result<Text> {
        let log = io::stderr().as_fd().try_clone_to_owned()?;
        LOG.get_or_init(|| File::from(log));
        let [(out, into_out), (err, into_err)] = [io::pipe()?, io::pipe()?];
        for (pipe, fd) in [(into_out, STREAMS[0]), (into_err, STREAMS[1])] {
            // SAFETY: both descriptors are open; those of the standard streams belong to the process as a whole.
            if unsafe { libc::dup2(pipe.as_raw_fd(), fd) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let ready = [out.as_fd().try_clone_to_owned()?, err.as_fd().try_clone_to_owned()?];
        for pipe in [&out, &err] {
            // SAFETY: an open descriptor of ours; writers are not affected.
            if unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Text { pipes: Mutex::new([out, err]), ready })
    }

    /// Sends what has been written so far, with `send(1 or 2, text)`. What another thread has read before has been sent
    /// when this returns.
    pub(super) fn pass_on(&self, send: &dyn Fn(i32, &[u8])) {
        // SAFETY: flushes all of C's streams, each under its lock. A driver may print without flushing.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        self.read(send);
    }

    fn read(&self, send: &dyn Fn(i32, &[u8])) {
        let mut pipes = lock(&self.pipes);
        let mut bytes = [0; MAX_TEXT];
        for (pipe, to) in pipes.iter_mut().zip(STREAMS) {
            loop {
                match pipe.read(&mut bytes) {
                    Ok(n) if n > 0 => send(to, &bytes[..n]),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    // Empty: the writing ends are never closed.
                    _ => break,
                }
            }
        }
    }

    /// Sends whatever arrives. Never returns.
    pub(super) fn run(&self, send: &dyn Fn(i32, &[u8])) {
        loop {
            let mut fds = self.ready.each_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
            // An interrupted wait is repeated.
            let _ = poll(&mut fds, PollTimeout::NONE);
            // Without flushing: a thread that holds a stream's lock may be waiting for room in the pipe.
            self.read(send);
        }
    }
}
