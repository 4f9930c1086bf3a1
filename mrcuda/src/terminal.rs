//! The size of the terminal.

use std::io::IsTerminal;
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
