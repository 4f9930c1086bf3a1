//! Text that device code has printed at a place, buffered until CUDA would show it.
//!
//! The driver shows such text in certain calls only: in calls that wait, when code is loaded or unloaded and when a context is destroyed;
//! not in launches, whatever CUDA's documentation says (docs/measurements.md). A place may send it earlier, and so may a move; it is
//! buffered here until the program's next such call, so that it is interleaved with the program's own output as natively. It is written
//! through C's streams, as the driver does.

use crate::base::log::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// Buffered text with its stream: 1 is standard output, 2 standard error.
static TEXT: Mutex<Vec<(i32, Vec<u8>)>> = Mutex::new(Vec::new());
/// Whether any text is buffered.
#[unsafe(link_section = "mrcuda_hot")]
static SOME: AtomicBool = AtomicBool::new(false);

/// Buffers text from a worker. Never blocks on the reader of the program's output.
pub(crate) fn arrived(to: i32, text: &[u8]) {
    let mut all = lock(&TEXT);
    match all.last_mut() {
        Some((last, before)) if *last == to => before.extend_from_slice(text),
        _ => all.push((to, text.to_vec())),
    }
    SOME.store(true, Ordering::Release);
}

/// Returns whether [`show`] has anything to write; costs one load.
pub(crate) fn waits() -> bool {
    SOME.load(Ordering::Acquire)
}

/// Writes the buffered text. May block on the reader of the program's output, so it must be called outside the gate.
pub(crate) fn show() {
    // Held over taking and writing, so that two threads cannot change the order.
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
        // SAFETY: C's own streams, which lock themselves; the program may have redirected them. The bytes live during the call. A closed
        // stream loses the text, as it does natively.
        unsafe {
            let stream = if to == 1 { stdout } else { stderr };
            libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream);
            libc::fflush(stream);
        }
    }
}
