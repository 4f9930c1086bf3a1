//! The text of a line.

/// The text without line feeds and other control characters: what a program or a peer has sent cannot imitate a line.
pub(crate) fn one_line(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}
