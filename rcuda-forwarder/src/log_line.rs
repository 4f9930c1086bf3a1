//! Lines of a server's log in JSON that are written outside of this library: before it serves, and after.

use tracing::Level;

/// A line that tells of something, with its line feed.
pub fn info_line(text: &str) -> String {
    diagnostics::json_line(Level::INFO, text)
}

/// A line that says why the server does not serve, or has not ended well.
pub fn error_line(text: &str) -> String {
    diagnostics::json_line(Level::ERROR, text)
}
