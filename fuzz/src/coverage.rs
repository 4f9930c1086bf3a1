//! Which code was reached, where the compiler was asked to count (`cargo xtask verify --long`); else nothing is ever new.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Address and length of each array of counters: one byte for each branch of the code.
static COUNTERS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn counters() -> MutexGuard<'static, Vec<(usize, usize)>> {
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called before `main` by code that was compiled with `-sanitizer-coverage-inline-8bit-counters` (LLVM's SanitizerCoverage), once for
/// each part of the program.
#[unsafe(no_mangle)]
pub extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let mut all = counters();
    if start < stop && all.iter().all(|(at, _)| *at != start.addr()) {
        all.push((start.expose_provenance(), stop.addr() - start.addr()));
    }
}

/// Calls `f` with the counters, numbered one after the other, that are not zero, eight at a time.
fn each(mut f: impl FnMut(usize, [u8; 8])) {
    let mut first = 0;
    for (at, len) in counters().iter() {
        for i in (0..*len).step_by(8) {
            let n = (*len - i).min(8);
            let mut some = [0; 8];
            let from = std::ptr::with_exposed_provenance::<u8>(at + i);
            // SAFETY: so many counters follow (LLVM's promise). Other threads may count meanwhile, which changes a byte at most.
            unsafe { std::ptr::copy_nonoverlapping(from, some.as_mut_ptr(), n) };
            if u64::from_ne_bytes(some) != 0 {
                f(first + i, some);
            }
        }
        first += len;
    }
}

/// Counts anew.
pub(crate) fn reset() {
    for (at, len) in counters().iter() {
        // SAFETY: as in `each`.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(*at).write_bytes(0, *len) };
    }
}

/// What has been reached so far: for each counter a bit for each magnitude.
#[derive(Default)]
pub(crate) struct Coverage {
    seen: Vec<u8>,
}

impl Coverage {
    fn add(&mut self, magnitude: impl Fn(u8) -> u8) -> bool {
        let mut new = false;
        each(|at, some| {
            if self.seen.len() < at + some.len() {
                self.seen.resize(at + some.len(), 0);
            }
            for (seen, count) in self.seen[at..].iter_mut().zip(some) {
                let bit = if count == 0 { 0 } else { 1 << magnitude(count) };
                new |= *seen & bit != bit;
                *seen |= bit;
            }
        });
        new
    }

    /// Whether code was reached since [`reset`] that had not been, or much more or less often.
    pub(crate) fn is_new(&mut self) -> bool {
        self.add(|count| count.ilog2() as u8)
    }

    /// Whether code was reached since [`reset`] that had not been.
    pub(crate) fn is_new_code(&mut self) -> bool {
        self.add(|_| 0)
    }
}
