//! The list of programs to run, with their options.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a list of programs cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The directory or the list cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The directory or the list.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line of the list is wrong.
    #[error("{}:{line}: {error}", list.display())]
    Line {
        /// The list.
        list: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        error: LineError,
    },
}

/// What is wrong with a line of a list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The program does not exist.
    #[error("{} is not a file", .0.display())]
    NoFile(PathBuf),
    /// A time limit cannot be parsed.
    #[error("`{0}` is not a number of seconds")]
    Seconds(String),
    /// A word begins with a quotation mark and does not end with one.
    #[error("a quotation mark is missing")]
    Quote,
}

impl ListError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> ListError {
        |error| ListError::File { path: path.to_owned(), error }
    }
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Name in tables: the path in the directory; further runs of the same file get a number.
    pub name: String,
    /// The executable file.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its working directory. None: a separate one for each run, with links to all files beside the program.
    pub directory: Option<PathBuf>,
    /// Time limit.
    pub limit: Duration,
}

/// All executable files of a directory, by name, with these arguments.
///
/// # Errors
/// The directory cannot be read.
pub fn executables(directory: &Path, args: &[&str], limit: Duration) -> Result<Vec<Program>, ListError> {
    use std::os::unix::fs::PermissionsExt;
    let entries = std::fs::read_dir(directory).map_err(ListError::file(directory))?;
    let mut found: Vec<Program> = entries
        .filter_map(Result::ok)
        .filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let args = args.iter().map(|a| (*a).to_owned()).collect();
            Some(Program { name, path: entry.path(), args, directory: None, limit })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Reads a list of programs of a directory: on each line a program and its arguments, separated by spaces, and then
/// `@directory=PATH` and `@limit=SECONDS` as wanted. Paths are relative to the directory. Words with spaces are put in double
/// quotes; lines with `#` in front are remarks.
///
/// # Errors
/// The list cannot be read, or a line of it names no file or is not as above.
pub fn read_list(directory: &Path, list: &Path, limit: Duration) -> Result<Vec<Program>, ListError> {
    let text = std::fs::read_to_string(list).map_err(ListError::file(list))?;
    let mut programs: Vec<Program> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let failed = |error| ListError::Line { list: list.to_owned(), line: number + 1, error };
        if let Some(mut program) = read_line(directory, line, limit).map_err(failed)? {
            if !program.path.is_file() {
                return Err(failed(LineError::NoFile(program.path)));
            }
            let same = programs.iter().filter(|p| p.path == program.path).count();
            if same > 0 {
                program.name = format!("{} ({})", program.name, same + 1);
            }
            programs.push(program);
        }
    }
    Ok(programs)
}

fn read_line(directory: &Path, line: &str, limit: Duration) -> Result<Option<Program>, LineError> {
    if line.trim_start().starts_with('#') {
        return Ok(None);
    }
    let mut words = words(line)?.into_iter();
    let Some(name) = words.next() else {
        return Ok(None);
    };
    let mut program = Program { path: directory.join(&name), name, args: Vec::new(), directory: None, limit };
    for word in words {
        if let Some(path) = word.strip_prefix("@directory=") {
            program.directory = Some(directory.join(path));
        } else if let Some(seconds) = word.strip_prefix("@limit=") {
            let seconds = seconds.parse().ok().filter(|s| (1..=86400).contains(s));
            program.limit = Duration::from_secs(seconds.ok_or(LineError::Seconds(word))?);
        } else {
            program.args.push(word);
        }
    }
    Ok(Some(program))
}

/// Words between spaces; double quotes keep spaces in a word.
fn words(line: &str) -> Result<Vec<String>, LineError> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quoted { Err(LineError::Quote) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_programs_arguments_and_settings() {
        let (directory, limit) = (Path::new("/a"), Duration::from_secs(60));
        let read = |line| read_line(directory, line, limit);
        assert_eq!(read("  # bfs 3"), Ok(None));
        assert_eq!(read("   "), Ok(None));
        let program = read(r#"bfs/main 3 "a b" ""  @directory=bfs @limit=5"#).unwrap().unwrap();
        assert_eq!((program.name.as_str(), program.path.as_path()), ("bfs/main", Path::new("/a/bfs/main")));
        assert_eq!(program.args, ["3", "a b", ""]);
        assert_eq!((program.directory.as_deref(), program.limit), (Some(Path::new("/a/bfs")), Duration::from_secs(5)));
        let plain = read("x").unwrap().unwrap();
        assert_eq!((plain.args.len(), plain.directory, plain.limit), (0, None, limit));
        for bad in ["x @limit=0", "x @limit=soon", r#"x "y"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
