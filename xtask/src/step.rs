//! Progress.

use std::sync::OnceLock;
use std::time::Instant;

/// Says what happens next, and how long it has taken to get there.
pub(crate) fn step(text: &str) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    eprintln!("==> {text} ({} s)", BEGAN.get_or_init(Instant::now).elapsed().as_secs());
}
