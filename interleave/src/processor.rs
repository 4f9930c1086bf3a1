//! Which processors run a thread.

use std::mem::{MaybeUninit, size_of};

/// While it exists, the calling thread and those that it starts run on the processor on which it was at first. Where that is not
/// permitted, and under Miri, nothing changes.
pub(crate) struct OneProcessor {
    before: Option<libc::cpu_set_t>,
}

impl OneProcessor {
    pub(crate) fn begin() -> OneProcessor {
        if cfg!(miri) {
            return OneProcessor { before: None };
        }
        let mut before = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: writes at most so many bytes, to memory of that size.
        let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), before.as_mut_ptr()) } == 0;
        // SAFETY: takes nothing.
        let now = usize::try_from(unsafe { libc::sched_getcpu() });
        let (true, Ok(now)) = (known, now) else { return OneProcessor { before: None } };
        // SAFETY: a set of bits, for which zeros are valid.
        let (before, mut one) = unsafe { (before.assume_init(), MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init()) };
        // SAFETY: a processor beyond the set's end is a panic there.
        unsafe { libc::CPU_SET(now, &mut one) };
        OneProcessor { before: run_on(&one).then_some(before) }
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            run_on(before);
        }
    }
}

/// Whether the calling thread runs on these processors from now on.
fn run_on(processors: &libc::cpu_set_t) -> bool {
    // SAFETY: reads a set of that size.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) == 0 }
}
