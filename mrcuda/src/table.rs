//! Aligned tables, and formatting of figures.

use crate::terminal;
use control::{name, without_numbers};
use cuda_api::clock::unix_ms;
use std::io::Write;

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

    /// Adds a line: a cell that has several could forge others.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    /// Formats the table: columns padded to their widest cell, [FIGURES] aligned right. On a terminal the widest columns of names and
    /// places are made narrower until it fits; text in the last column is left as it is, to be broken by [`say`].
    pub(crate) fn render(&self) -> String {
        self.render_in(terminal::columns())
    }

    /// As [`Table::render`], within so many columns.
    pub(crate) fn render_in(&self, limit: Option<usize>) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let has_figures =
            |c: usize| self.rows.first().and_then(|r| r.get(c)).is_some_and(|name| FIGURES.contains(&name.as_str()));
        let is_text = |c: usize| !has_figures(c);
        let last = columns.saturating_sub(1);
        let heading = |c: usize| self.rows.first().and_then(|r| r.get(c)).map_or(0, |s| s.chars().count());
        // The width of a column if none that can give way is wider than this.
        let within = |most: usize, c: usize| {
            if c == last || !is_text(c) { widths[c] } else { widths[c].min(most.max(heading(c)).max(FEWEST)) }
        };
        let total = |most: usize| {
            let needed = |c: usize| if c == last && is_text(c) { widths[c].min(FEWEST) } else { within(most, c) };
            (0..columns).map(needed).sum::<usize>() + 2 * last
        };
        let most = limit.map_or(usize::MAX, |limit| (0..=limit).rev().find(|most| total(*most) <= limit).unwrap_or(0));
        // The first ones can have what is left by rounding.
        let mut left = limit.unwrap_or(0).saturating_sub(total(most));
        let fitted = |c: usize| {
            let width = within(most.saturating_add(1), c).min(within(most, c) + left);
            left -= width - within(most, c);
            width
        };
        let widths: Vec<usize> = (0..columns).map(fitted).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let width = widths[c];
                let cell = elide(cell, width);
                if has_figures(c) {
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

/// The headings of columns with figures. What is in the others, such as a name, can begin with a digit as well.
const FIGURES: [&str; 29] = [
    "PID", "GPU", "JOB", "WORKER", "SINCE", "AGO", "MEMORY", "FREE", "USED", "BYTES", "DOWNTIME", "TOTAL", "JOBS", "IDLE",
    "SAMPLES", "MEAN", "MEDIAN", "P90", "P95", "MAX", "CALLS/S", "BYTES/S", "MOVED", "UTIL", "MEM-UTIL", "POWER", "LIMIT",
    "TEMP", "SM-CLOCK",
];

/// Narrower columns than this say nothing.
const FEWEST: usize = 8;

/// The text in at most `width` characters: what is left out in the middle is replaced by `…`, because both ends of a place and of a name
/// matter.
fn elide(text: &str, width: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let end = kept / 2;
    let (start, tail) = (&characters[..kept - end], &characters[characters.len() - end..]);
    start.iter().chain(['…'].iter()).chain(tail).collect()
}

/// The text with its long lines broken at spaces, so that they fit. What follows is indented by three more spaces.
fn wrap(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut column = 0;
        for (number, word) in line.split_inclusive(' ').enumerate() {
            let length = word.trim_end().chars().count();
            if number > 0 && length > 0 && column > indent + 3 && column + length > width {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                out.push_str(&" ".repeat(indent + 3));
                column = indent + 3;
            }
            out.push_str(word);
            column += word.chars().count();
        }
    }
    out
}

/// The text with characters that are not [printable](name::is_printable), other than line feeds, as `\u001b`, a form that JSON knows too:
/// what a job, which for root may be another user's, or a file contains must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    escape(text, |c| c != '\n')
}

/// The same for text that must not begin a line of its own.
pub(crate) fn one_line(text: &str) -> String {
    escape(text, |_| true)
}

fn escape(text: &str, is_meant: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if !name::is_printable(c) && is_meant(c) { clean.push_str(&format!("\\u{:04x}", u32::from(c))) } else { clean.push(c) }
    }
    clean
}

/// Writes text for people to stdout, in its [printable] form, and ends its last line. On a terminal, long lines are broken at spaces.
pub(crate) fn say(text: &str) {
    match terminal::columns() {
        Some(width) => say_as_it_is(&wrap(text, width)),
        None => say_as_it_is(text),
    }
}

/// As [`say`], for text with its own lines: JSON, for example.
pub(crate) fn say_as_it_is(text: &str) {
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
            note(&format!("cannot write the output: {e}"));
            std::process::exit(1);
        }
    }
}

/// Writes a line to stderr, in its [printable](one_line) form: an error, or what else the user should know. If that cannot be written,
/// nobody reads it.
pub(crate) fn note(text: &str) {
    let text = one_line(&without_numbers(text));
    let _ = writeln!(std::io::stderr(), "mrcuda: {text}");
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

/// Formats milliseconds with the units that people use for such a time.
pub(crate) fn duration(ms: f64) -> String {
    let seconds = (ms / 1000.0).round() as u64;
    // The limits are where rounding would give the next unit's figure.
    if ms < 9.995 {
        format!("{ms:.2} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else if ms < 59_995.0 {
        format!("{:.2} s", ms / 1000.0)
    } else if seconds < 3600 {
        format!("{} min {} s", seconds / 60, seconds % 60)
    } else {
        format!("{} h {} min", seconds / 3600, seconds % 3600 / 60)
    }
}

/// Formats the time since a time of day, in milliseconds since 1970.
pub(crate) fn since(then: u64) -> String {
    let now = unix_ms();
    let s = now.saturating_sub(then) / 1000;
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
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
    fn the_widest_columns_give_way() {
        let mut t = Table::new(&["PID", "PLACE", "USED"]);
        t.row(vec!["7".into(), "unix:/run/user/1000/mrcuda/gpus/3".into(), bytes(1536)]);
        let text = t.render_in(Some(30));
        assert!(text.lines().all(|line| line.chars().count() <= 30), "{text}");
        assert!(text.ends_with("  7  unix:/ru…/gpus/3  1.5 KiB\n"), "{text}");
        assert_eq!(t.render_in(Some(80)), t.render_in(None));
        assert!(t.render_in(Some(3)).ends_with("  7  unix…s/3  1.5 KiB\n"), "narrower than it can be");
        let mut t = Table::new(&["ID", "TO", "RESULT"]);
        t.row(vec!["m1".into(), "unix:/run/user/1000/gpus/3".into(), "failed: the target is full".into()]);
        assert_eq!(t.render_in(Some(30)), "ID  TO                RESULT\nm1  unix:/ru…/gpus/3  failed: the target is full\n");
        let mut t = Table::new(&["FROM", "TO", "USED"]);
        t.row(vec!["a".repeat(1 << 20), "b".repeat(1 << 20), "7 B".into()]);
        assert_eq!(t.render_in(Some(29)).lines().last(), Some("aaaaa…aaaaa  bbbbb…bbbb   7 B"));
    }

    #[test]
    fn a_name_that_begins_with_a_digit_is_text() {
        let mut t = Table::new(&["PID", "NAME", "RESULT"]);
        t.row(vec!["7".into(), "8-gpus-with-a-very-long-name.py".into(), "3 of 4".into()]);
        t.row(vec!["12".into(), "a".into(), "-".into()]);
        let wanted = "PID  NAME               RESULT\n  7  8-gpus-w…-name.py  3 of 4\n 12  a                  -\n";
        assert_eq!(t.render_in(Some(30)), wanted);
    }

    #[test]
    fn a_cell_is_one_line() {
        let mut t = Table::new(&["PID", "NAME"]);
        t.row(vec!["7".into(), "x\n   1  sshd\u{202e}".into()]);
        assert_eq!(t.render(), "PID  NAME\n  7  x\\u000a   1  sshd\\u202e\n");
        assert_eq!((printable("a\nb\u{2066}"), one_line("a\nb")), ("a\nb\\u2066".into(), "a\\u000ab".into()));
    }

    #[test]
    fn long_lines_are_broken_at_spaces() {
        assert_eq!(wrap("a bb ccc\n", 80), "a bb ccc\n");
        assert_eq!(wrap("one two three four five\nsix", 14), "one two three\n   four five\nsix");
        assert_eq!(wrap("  one two three", 10), "  one two\n     three");
        assert_eq!(wrap("unix:/a/very/long/path and more", 10), "unix:/a/very/long/path\n   and\n   more");
        assert_eq!(wrap("", 10), "");
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(16 << 30), "16.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(duration(0.5), "0.50 ms");
        assert_eq!(duration(12.4), "12 ms");
        assert_eq!(duration(2500.0), "2.50 s");
        assert_eq!((duration(9.994), duration(9.997)), ("9.99 ms".into(), "10 ms".into()));
        assert_eq!((duration(999.4), duration(999.7)), ("999 ms".into(), "1.00 s".into()));
        assert_eq!((duration(59_990.0), duration(59_997.0)), ("59.99 s".into(), "1 min 0 s".into()));
        assert_eq!((duration(125_400.0), duration(3_599_900.0)), ("2 min 5 s".into(), "1 h 0 min".into()));
        assert_eq!((duration(f64::NAN), duration(-1.0)), ("0 min 0 s".into(), "-1.00 ms".into()));
    }
}
