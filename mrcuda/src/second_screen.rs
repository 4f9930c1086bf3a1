//! The terminal's second screen, and what Ctrl-C ends.

use crate::failure::Failure;
use crate::table::write;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;

/// Leaves the second screen.
const LEAVE: &[u8] = b"\x1b[?1049l";

/// Has Ctrl-C end the process as something that went well; what is on the terminal's `second_screen` then makes room for what was there before.
pub(crate) fn end_by_interrupt(second_screen: bool) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Failure::new)?;
    if second_screen {
        write(b"\x1b[?1049h");
    }
    std::thread::spawn(move || {
        let signal = signals.forever().next();
        // Until the end nothing else is written.
        let mut out = std::io::stdout().lock();
        if second_screen {
            // A terminal that is gone needs it no more.
            let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        }
        if signal == Some(SIGTERM) {
            let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
        }
        std::process::exit(0)
    });
    Ok(())
}

/// Leaves the second screen, for the message of a failure.
pub(crate) fn leave() {
    write(LEAVE);
}
