//! Text that device code has printed in a place, kept until CUDA shows it.
//!
//! The driver shows such text in certain calls only: in calls that wait, when code is loaded or unloaded and when a context ends;
//! not in launches, whatever CUDA's documentation says (docs/measurements.md). A place may show it earlier, and a move does;
//! here it waits for the program's next such call, so that it lies between what the program prints itself as natively.
//! It goes through C's streams, as the driver's own does.

use crate::log::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// What has arrived, with its stream: 1 is standard output, 2 standard error.
static TEXT: Mutex<Vec<(i32, Vec<u8>)>> = Mutex::new(Vec::new());
/// Whether there is any.
static SOME: AtomicBool = AtomicBool::new(false);

/// Text from a worker. Never waits for whoever reads the program's output.
pub(crate) fn arrived(to: i32, text: &[u8]) {
    let mut all = lock(&TEXT);
    match all.last_mut() {
        Some((last, before)) if *last == to => before.extend_from_slice(text),
        _ => all.push((to, text.to_vec())),
    }
    SOME.store(true, Ordering::Release);
}

/// Whether [`show`] has anything to write: one load.
pub(crate) fn waits() -> bool {
    SOME.load(Ordering::Acquire)
}

/// Writes what has arrived. It may wait for whoever reads the program's output: to be called outside the gate.
pub(crate) fn show() {
    // Held over taking and writing: two threads must not change the order.
    static WRITING: Mutex<()> = Mutex::new(());
    if !waits() {
        return;
    }
    let _writing = lock(&WRITING);
    let texts = {
        let mut all = lock(&TEXT);
        SOME.store(false, Ordering::Release);
        std::mem::take(&mut *all)
    };
    for (to, text) in texts {
        // SAFETY: C's own streams, which lock themselves; the program may have replaced what they write to. The bytes live
        // during the call. A stream that is closed loses the text, as it does natively.
        unsafe {
            let stream = if to == 1 { stdout } else { stderr };
            libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream);
            libc::fflush(stream);
        }
    }
}
