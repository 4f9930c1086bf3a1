//! Limits of the kernel for this process.

use std::io;

/// Sets a limit, and the one in force with it, to so much, or to what the process may have if that is less. Only system calls: it is called between fork
/// and exec.
pub(crate) fn limit(what: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is writable, and then read.
    unsafe {
        if libc::getrlimit(what, &raw mut now) != 0 {
            return Err(io::Error::last_os_error());
        }
        now.rlim_max = now.rlim_max.min(most);
        now.rlim_cur = now.rlim_max;
        if libc::setrlimit(what, &raw const now) != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Allows as many descriptors as the system does. A helper inherits the job's limit, which may be low, and a connection that cannot be
/// received ends it. A daemon inherits a shell's or service's, and has several descriptors for each worker and each client that waits.
pub(crate) fn raise_descriptors() {
    // If it fails, the limit stays.
    let _ = limit(libc::RLIMIT_NOFILE, u64::MAX);
}
