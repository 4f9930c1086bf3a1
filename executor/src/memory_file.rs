//! Memory files that two processes map, of which neither trusts the other.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The seals of a file that keeps its size. An access to a mapping beyond the end of its file would kill the process.
pub const SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Makes a file of this size with these seals; 0: none yet.
///
/// # Errors
/// The system's.
pub fn create(bytes: usize, name: &CStr, seals: i32) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor with no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one `rlimit`, to memory that is one.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0 && (bytes as u64) > limit.rlim_cur {
        // A larger size would not only fail: it would kill the job with SIGXFSZ.
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // SAFETY: plain system calls on a descriptor of ours.
    let made = unsafe {
        libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) == 0
            && (seals == 0 || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0)
    };
    if made { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// The size of a file that cannot become smaller; `None` for any other.
pub fn fixed_size(fd: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: plain system call; other kinds of files have no seals.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    // SAFETY: all-zero is a valid stat, which the call fills.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable.
    let known = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut about) } == 0;
    (seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 && known).then_some(about.st_size as u64)
}
