//! Where the memory of a worker or a helper lies: apart from where programs have theirs.
//!
//! Host memory that a job registers has the same address in its worker, so the worker must not use that address itself; if it does, it ends,
//! and the job loses its GPU. By default the kernel maps libraries, thread stacks and large allocations of every
//! process below the main thread's stack, at a random distance of up to 1 TiB (16 TiB on systems with more randomness), so a worker of some
//! GiB meets the memory of some job now and then. The kernel leaves room below the stack for as much as the stack may grow: with a limit of
//! [`DISTANCE`] everything but the stack, the program and its heap is that much lower, and the heap does not grow.

use cuda_api::address_map::PAGE;
use std::io;

/// By how much the mappings of a worker lie lower than those of other processes: in the middle between the ranges of docs/memory.md,
/// "Addresses", and those where the kernel maps by default.
const DISTANCE: u64 = 1 << 44;
/// From `linux/personality.h`: nothing lies where the kernel chooses by chance, which debuggers set.
const ADDR_NO_RANDOMIZE: libc::c_int = 0x004_0000;
/// From there too: mappings grow upwards, from a third of the address space.
const ADDR_COMPAT_LAYOUT: libc::c_int = 0x020_0000;
/// The stack limit that is usual, for the main thread, and for threads that are created without a size.
const STACK: u64 = 8 << 20;

unsafe extern "C" {
    /// From glibc (2.18); the `libc` crate does not have it.
    fn pthread_setattr_default_np(attributes: *const libc::pthread_attr_t) -> libc::c_int;
}

fn stack_limit() -> io::Result<libc::rlimit> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut now) } == 0 { Ok(now) } else { Err(io::Error::last_os_error()) }
}

fn set_stack_limit(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: only read.
    if unsafe { libc::setrlimit(libc::RLIMIT_STACK, limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the program that this process becomes lie apart, if the system allows so high a limit, and lie where the kernel chooses by chance,
/// also below a debugger. Where this fails, it lies as usual. Only system calls: to be called between fork and exec.
pub(crate) fn before_exec() {
    // SAFETY: asks for the present value.
    let persona = unsafe { libc::personality(0xffff_ffff) };
    if persona >= 0 {
        // SAFETY: a number; of this process only.
        unsafe { libc::personality((persona & !(ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT)) as libc::c_ulong) };
    }
    let Ok(mut limit) = stack_limit() else { return };
    if limit.rlim_max >= DISTANCE {
        limit.rlim_cur = DISTANCE;
        let _ = set_stack_limit(&limit);
    }
}

/// Completes what [`before_exec`] has begun, in the program that was started: its stacks are as large as usual again, and its heap does not
/// grow beside programs' heaps. To be called before it has other threads.
pub(crate) fn after_exec() {
    stop_heap();
    restore_stack_limit();
}

fn restore_stack_limit() {
    let Some(limit) = stack_limit().ok().filter(|limit| limit.rlim_cur == DISTANCE) else { return };
    // If it fails, threads whose creator names no size cannot be created, and the driver says so.
    let _ = set_stack_limit(&libc::rlimit { rlim_cur: STACK, ..limit });
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let at = attributes.as_mut_ptr();
    // SAFETY: initialized by the first function, used by the next two, ended by the last.
    unsafe {
        if libc::pthread_attr_init(at) == 0 {
            libc::pthread_attr_setstacksize(at, STACK as usize);
            pthread_setattr_default_np(at);
            libc::pthread_attr_destroy(at);
        }
    }
}

/// Puts a page behind the heap that ends at the program break: glibc then takes all further memory from where libraries are.
fn stop_heap() {
    let (protection, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: asks for the end of the heap.
    let Some(end) = (unsafe { libc::sbrk(0) } as usize).checked_next_multiple_of(PAGE as usize) else { return };
    // SAFETY: a page that is mapped only where nothing is.
    unsafe { libc::mmap(end as *mut _, PAGE as usize, protection, flags, -1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_too_low_for_it_stays() {
        // The test's own process must keep its limit: threads are created meanwhile.
        let before = stack_limit().unwrap();
        restore_stack_limit();
        let after = stack_limit().unwrap();
        assert_eq!((before.rlim_cur, before.rlim_max), (after.rlim_cur, after.rlim_max));
    }
}
