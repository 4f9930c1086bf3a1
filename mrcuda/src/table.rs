//! Aligned tables, and formatting of figures.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// A table; the first row is the heading.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings.
    pub(crate) fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|h| (*h).to_owned()).collect()] }
    }

    /// Adds a line.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Formats the table: columns padded to their widest cell, figures aligned right.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let figure = |s: &str| s.starts_with(|c: char| c.is_ascii_digit()) && !s.contains([':', '/']);
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let right =
                    if number == 0 { self.rows.get(1).and_then(|r| r.get(c)).is_some_and(|s| figure(s)) } else { figure(cell) };
                let width = widths[c];
                if right {
                    line.push_str(&format!("{cell:>width$}"))
                } else {
                    line.push_str(&format!("{cell:<width$}"))
                }
                line.push_str("  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The text with control characters other than line feeds as `\u001b`, a form that JSON knows too: what a job, which for root may be
/// another user's, or a file contains must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' { clean.push_str(&format!("\\u{:04x}", u32::from(c))) } else { clean.push(c) }
    }
    clean
}

/// Writes the text to stdout, in its [printable] form, and ends its last line.
pub(crate) fn say(text: &str) {
    let mut text = printable(text);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    write(text.as_bytes());
}

/// Writes bytes to stdout. A closed pipe (`| head`) ends the process silently, as with other filters; any other failure, such as a full
/// disk, ends it with exit code 1.
pub(crate) fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => {
            eprintln!("mrcuda: cannot write the output: {e}");
            std::process::exit(1);
        }
    }
}

/// Formats bytes with a binary unit.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Formats milliseconds as ms or s.
pub(crate) fn duration(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1000.0)
    }
}

/// Formats the time since a time of day.
pub(crate) fn ago(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    let s = now.saturating_sub(unix_ms) / 1000;
    match s {
        0..120 => format!("{s} s ago"),
        120..7200 => format!("{} min ago", s / 60),
        7200..172_800 => format!("{} h ago", s / 3600),
        _ => format!("{} days ago", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut t = Table::new(&["PID", "PLACE", "USED"]);
        t.row(vec!["7".into(), "10.0.0.1:7878/0".into(), bytes(1536)]);
        t.row(vec!["12345".into(), "local:0".into(), bytes(12)]);
        assert_eq!(
            t.render(),
            "  PID  PLACE               USED\n    7  10.0.0.1:7878/0  1.5 KiB\n12345  local:0             12 B\n"
        );
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(16 << 30), "16.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(duration(0.5), "0.50 ms");
        assert_eq!(duration(12.4), "12 ms");
        assert_eq!(duration(2500.0), "2.50 s");
    }
}
