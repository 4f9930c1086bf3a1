//! Where lines go: standard error, or a file that is opened once.
//!
//! Each line is one write, so lines of several threads and processes do not mix. Nothing is locked: a forked child may log as well.

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) enum Sink {
    Stderr,
    File(LogFile),
}

/// A file that lines are appended to.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    /// The open descriptor; negative before the first line.
    fd: AtomicI32,
    /// Device and inode of the open file. Programs close descriptors that they do not know and use the numbers again, so the number alone
    /// does not show that it is still our file.
    identity: [AtomicU64; 2],
}

impl Sink {
    pub(crate) fn file(path: PathBuf) -> Sink {
        Sink::File(LogFile { path, fd: AtomicI32::new(-1), identity: [const { AtomicU64::new(0) }; 2] })
    }

    /// Writes a line, which ends with a line feed.
    pub(crate) fn write(&self, line: &str) {
        match self {
            Sink::Stderr => write_stderr(line),
            Sink::File(file) => file.write(line),
        }
    }
}

impl LogFile {
    fn write(&self, line: &str) {
        let written = self.descriptor().and_then(|fd| write_all(fd, line.as_bytes()));
        if let Err(e) = written {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| write_stderr(&format!("mrcuda: MRCUDA_LOG: cannot write to {}: {e}\n", self.path.display())));
        }
    }

    /// The open descriptor. Opens the file at the first line, and again if the program has closed the descriptor.
    fn descriptor(&self) -> std::io::Result<i32> {
        let fd = self.fd.load(Ordering::Acquire);
        let known = self.identity.each_ref().map(|word| word.load(Ordering::Relaxed));
        if fd >= 0 && identity(fd).is_some_and(|now| now == known) {
            return Ok(fd);
        }
        let file = open(&self.path)?;
        let new = file.as_raw_fd();
        let Some(now) = identity(new) else { return Err(std::io::Error::last_os_error()) };
        for (word, value) in self.identity.iter().zip(now) {
            word.store(value, Ordering::Relaxed);
        }
        match self.fd.compare_exchange(fd, new, Ordering::AcqRel, Ordering::Acquire) {
            // The old number, if there was one, belongs to the program now.
            Ok(_) => Ok(file.into_raw_fd()),
            // Another thread was faster; this descriptor is closed again.
            Err(theirs) => Ok(theirs),
        }
    }
}

fn open(path: &Path) -> std::io::Result<OwnedFd> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    if file.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(file.into());
    }
    // The program has closed a standard stream. What it reads from there, or writes, must not be the log.
    let elsewhere = fcntl(&file, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: a descriptor that was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(elsewhere) })
}

/// Device and inode of an open descriptor.
fn identity(fd: i32) -> Option<[u64; 2]> {
    // SAFETY: only used for `fstat`, which reports a descriptor that is not open.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some([stat.st_dev, stat.st_ino])
}

/// Writes to standard error without the lock of the standard library, which a forked child may find taken.
pub(crate) fn write_stderr(text: &str) {
    // A program may have closed it.
    let _ = write_all(libc::STDERR_FILENO, text.as_bytes());
}

fn write_all(fd: i32, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: only used for `write`, which reports a descriptor that is not open.
        match nix::unistd::write(unsafe { BorrowedFd::borrow_raw(fd) }, bytes) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_opened_once_and_again_if_the_program_closes_it() {
        let path = std::env::temp_dir().join(format!("mrcuda-sink-{}", std::process::id()));
        let Sink::File(file) = Sink::file(path.clone()) else { unreachable!() };
        file.write("one\n");
        let fd = file.fd.load(Ordering::Acquire);
        file.write("two\n");
        assert_eq!(file.fd.load(Ordering::Acquire), fd);
        // As a program does that closes all descriptors; the number may then stand for a file of its own.
        let other = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: both descriptors are open.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        file.write("three\n");
        assert_ne!(file.fd.load(Ordering::Acquire), fd);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\n");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_file_is_none_of_the_standard_streams() {
        let path = std::env::temp_dir().join(format!("mrcuda-sink-low-{}", std::process::id()));
        let Sink::File(file) = Sink::file(path.clone()) else { unreachable!() };
        // SAFETY: the child only closes and opens descriptors, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::close(libc::STDIN_FILENO);
                libc::close(libc::STDOUT_FILENO);
            }
            file.write("one\n");
            let is_above = file.fd.load(Ordering::Acquire) > libc::STDERR_FILENO;
            // SAFETY: as above; both numbers are free, or the test has failed.
            let are_free = unsafe { libc::fcntl(libc::STDIN_FILENO, libc::F_GETFD) < 0 };
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!(is_above && are_free))) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, std::fs::read_to_string(&path).unwrap().as_str()), (0, "one\n"));
        std::fs::remove_file(path).unwrap();
    }
}
