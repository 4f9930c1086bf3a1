//! The list of programs to run, with their options.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
pub fn executables(directory: &Path, args: &[&str], limit: Duration) -> Result<Vec<Program>, String> {
    use std::os::unix::fs::PermissionsExt;
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
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
pub fn read_list(directory: &Path, list: &Path, limit: Duration) -> Result<Vec<Program>, String> {
    let text = std::fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
    let mut programs: Vec<Program> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let failed = |why: &str| format!("{}:{}: {why}", list.display(), number + 1);
        if let Some(mut program) = read_line(directory, line, limit).map_err(|why| failed(&why))? {
            if !program.path.is_file() {
                return Err(failed(&format!("{} is not a file", program.path.display())));
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

fn read_line(directory: &Path, line: &str, limit: Duration) -> Result<Option<Program>, String> {
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
            program.limit = Duration::from_secs(seconds.ok_or(format!("`{word}` is not a number of seconds"))?);
        } else {
            program.args.push(word);
        }
    }
    Ok(Some(program))
}

/// Words between spaces; double quotes keep spaces in a word.
fn words(line: &str) -> Result<Vec<String>, String> {
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
    if quoted { Err("a quotation mark is missing".to_owned()) } else { Ok(words) }
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
