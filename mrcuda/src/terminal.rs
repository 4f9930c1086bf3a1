//! The size of the terminal, and its second screen.

use crate::failure::Failure;
use crate::table::write;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};

/// Columns and rows of the terminal that this is; `None` if it is none, or does not say.
pub(crate) fn size(file: &(impl AsFd + IsTerminal)) -> Option<(usize, usize)> {
    if !file.is_terminal() {
        return None;
    }
    // SAFETY: all-zero is a valid window size.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the window size.
    let known = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) } == 0;
    (known && size.ws_col > 0).then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// The columns that the output should fit: those of the terminal, or what the variable `COLUMNS` says; `None`: as many as it needs.
pub(crate) fn columns() -> Option<usize> {
    /// Narrower than this nothing can be read.
    const FEWEST: usize = 20;
    if cfg!(test) {
        return None;
    }
    let told = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok());
    told.or_else(|| size(&std::io::stdout()).map(|(columns, _)| columns)).filter(|n| *n >= FEWEST)
}

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
pub(crate) fn leave_second_screen() {
    write(LEAVE);
}
