//! Progress.

/// Says what happens next.
pub(crate) fn step(text: &str) {
    eprintln!("==> {text}");
}
