//! Copies inside this process that the kernel makes and that end where memory cannot be accessed: the program's pointer may be bad, or it
//! may unmap its memory meanwhile, and a thread of ours must not fault for that.

use nix::unistd::gettid;
use std::io;

type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies between `ours`, which can be accessed, and `theirs`. Returns the number of bytes until the first that cannot be accessed.
///
/// # Safety
/// As the copy that `call` makes: nothing else refers to the memory that it writes.
unsafe fn copy(call: Call, ours: *mut u8, theirs: *mut u8, bytes: usize) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes {
        let part = |of: *mut u8| libc::iovec { iov_base: of.wrapping_add(done).cast(), iov_len: bytes - done };
        let (local, remote) = (part(ours), part(theirs));
        // This thread, and not the process: a first thread that has ended, which is allowed, has no memory any more.
        // SAFETY: one part on each side; the kernel checks the addresses.
        match unsafe { call(gettid().as_raw(), &raw const local, 1, &raw const remote, 1, 0) } {
            n @ 1.. => done += n as usize,
            // It ends before memory that cannot be accessed, and the next call says so.
            0 => break,
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e if e.raw_os_error() == Some(libc::EFAULT) => break,
                e => return Err(e),
            },
        }
    }
    Ok(done)
}

/// Copies from the program's memory, as far as it can be read.
///
/// # Safety
/// `to` has so many bytes, to which no reference exists.
pub(super) unsafe fn read(from: *const u8, to: *mut u8, bytes: usize) -> io::Result<usize> {
    // SAFETY: as the caller says.
    unsafe { copy(libc::process_vm_readv, to, from.cast_mut(), bytes) }
}

/// Copies to the program's memory, as far as it can be written.
///
/// # Safety
/// `from` has so many bytes. Nothing but the program refers to what lies at `to`.
pub(super) unsafe fn write(from: *const u8, to: *mut u8, bytes: usize) -> io::Result<usize> {
    // SAFETY: as the caller says.
    unsafe { copy(libc::process_vm_writev, from.cast_mut(), to, bytes) }
}

/// Whether there are such copies: a filter of system calls may forbid them.
pub(super) fn are_possible() -> bool {
    let (from, mut to) = ([1u8, 2], [0u8; 2]);
    // SAFETY: both are this function's, and no reference is used meanwhile.
    let made = unsafe { (read(from.as_ptr(), to.as_mut_ptr(), 1), write(from.as_ptr().add(1), to.as_mut_ptr().add(1), 1)) };
    matches!(made, (Ok(1), Ok(1))) && to == from
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = cuda_api::address_map::PAGE as usize;

    /// Pages of which one in the middle is taken away.
    fn pages(take: impl Fn(*mut libc::c_void)) -> *mut u8 {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 40 * PAGE, prot, flags, -1, 0) }.cast::<u8>();
        take(at.wrapping_add(30 * PAGE).cast());
        at
    }

    #[test]
    fn they_end_where_memory_cannot_be_accessed() {
        assert!(are_possible());
        // SAFETY: a page of the mapping, to which nothing refers.
        let protect = |prot| move |at| assert_eq!(unsafe { libc::mprotect(at, PAGE, prot) }, 0);
        // SAFETY: as above.
        let unmap = |at| assert_eq!(unsafe { libc::munmap(at, PAGE) }, 0);
        let mut ours = vec![7u8; 40 * PAGE];
        for (at, can_be_read) in
            [(pages(unmap), false), (pages(protect(libc::PROT_NONE)), false), (pages(protect(libc::PROT_READ)), true)]
        {
            // SAFETY: memory of this test; what of it cannot be accessed is what the kernel is to notice.
            let (written, read) =
                unsafe { (write(ours.as_ptr(), at, 40 * PAGE), read(at.wrapping_add(5), ours.as_mut_ptr(), 40 * PAGE - 5)) };
            assert_eq!(written.unwrap(), 30 * PAGE);
            assert_eq!(read.unwrap(), if can_be_read { 40 * PAGE - 5 } else { 30 * PAGE - 5 });
            // SAFETY: as above.
            assert_eq!(unsafe { write(ours.as_ptr(), at.wrapping_add(30 * PAGE), 1) }.unwrap(), 0);
        }
    }
}
