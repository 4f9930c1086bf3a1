//! What a job is called: the name that `mrcuda run --name` gives it, otherwise that of its script or program.

use crate::LONGEST_ID;
use std::path::Path;

/// Whether a text can be the name of a job, or the id of a move: 1 to [`LONGEST_ID`] letters, digits, `.`, `_`, `-`.
pub fn is_name(text: &str) -> bool {
    let legal = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(legal)
}

/// Whether a character shows itself and nothing else: not one that controls a terminal, ends a line, or changes the direction of text.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name that can be shown in a line: at most [`LONGEST_ID`] characters, `?` in place of what is not printable.
pub fn printable(name: &str) -> String {
    name.chars().take(LONGEST_ID).map(|c| if is_printable(c) { c } else { '?' }).collect()
}

/// The name of the job that a process is, as far as its environment and its command line say.
pub fn of_process(pid: u32) -> String {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let environment = read("environ");
    let given = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"MRCUDA_NAME="));
    if let Some(name) = given.and_then(|name| std::str::from_utf8(name).ok()).filter(|name| is_name(name)) {
        return name.to_owned();
    }
    let line = read("cmdline");
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let arguments: Vec<String> = line.split(|byte| *byte == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect();
    of_command(&arguments, &std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default())
}

/// The name of a job that gives this one; a program that was started by an older build has none. A
/// job can answer anything, so the name is made [printable].
pub fn of_job(name: &str, program: &str) -> String {
    if name.is_empty() { of_command(&[], program.as_ref()) } else { printable(name) }
}

/// A program that runs scripts.
struct Interpreter {
    name: &'static str,
    /// The options of one letter that have a value: the rest of the argument, or the next one.
    with_value: &'static str,
    /// Those whose value is code.
    code: &'static str,
    /// The one whose value is a module.
    module: Option<char>,
}

const fn interpreter(name: &'static str, with_value: &'static str, code: &'static str, module: Option<char>) -> Interpreter {
    Interpreter { name, with_value, code, module }
}

const INTERPRETERS: [Interpreter; 9] = [
    interpreter("python", "WX", "c", Some('m')),
    interpreter("pypy", "WX", "c", Some('m')),
    interpreter("perl", "ImM", "eE", None),
    interpreter("ruby", "Ir", "e", None),
    interpreter("julia", "JtpL", "eE", None),
    interpreter("Rscript", "", "e", None),
    interpreter("bash", "oO", "c", None),
    interpreter("sh", "o", "c", None),
    interpreter("dash", "o", "c", None),
];

/// The name of a process with these arguments that executes the file `program`: the file name of its script (`python3 train.py`:
/// `train.py`) or module (`python3 -m train`: `train`) if the program is an interpreter, otherwise that of the program.
pub fn of_command(arguments: &[String], program: &Path) -> String {
    let file =
        |path: &str| Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned());
    // The first argument is what the user knows: the file may be what a link or a wrapper leads to.
    let called = arguments.first().map(|first| file(first.trim_start_matches('-'))).filter(|name| !name.is_empty());
    let called = called.unwrap_or_else(|| file(&program.to_string_lossy()));
    let interpreter = INTERPRETERS.iter().find(|interpreter| interpreter.is(&called));
    let script = interpreter.and_then(|interpreter| interpreter.script(arguments.get(1..)?));
    printable(&script.map_or(called, |script| file(&script)))
}

impl Interpreter {
    /// Whether a program is this interpreter, maybe with a version: `python3.12`.
    fn is(&self, called: &str) -> bool {
        called.strip_prefix(self.name).is_some_and(|version| version.bytes().all(|c| c.is_ascii_digit() || c == b'.'))
    }

    /// The script or module among its arguments; `None` if the code comes from elsewhere.
    fn script(&self, arguments: &[String]) -> Option<String> {
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let options = match argument.strip_prefix('-') {
                None => return Some(argument.clone()),
                // The code comes from the standard input.
                Some("") => return None,
                Some("-") => return rest.next().cloned(),
                Some(long) if long.starts_with('-') => continue,
                Some(options) => options,
            };
            // Options of one letter can be written together: `-um train`.
            for (at, letter) in options.char_indices() {
                let attached = options.get(at + letter.len_utf8()..).filter(|value| !value.is_empty());
                if self.code.contains(letter) {
                    return None;
                }
                if self.module == Some(letter) {
                    return attached.map(str::to_owned).or_else(|| rest.next().cloned());
                }
                if self.with_value.contains(letter) {
                    if attached.is_none() {
                        rest.next();
                    }
                    break;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(command: &str) -> String {
        let arguments: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        of_command(&arguments, Path::new("/opt/real/python3.12"))
    }

    #[test]
    fn scripts_and_modules_are_named_after_themselves() {
        assert_eq!(name("/usr/bin/python3 train.py --steps 3"), "train.py");
        assert_eq!(name("python3.12 -u -W ignore /home/you/train.py -c x"), "train.py");
        assert_eq!(name("python -um torch.distributed.run x.py"), "torch.distributed.run");
        assert_eq!(name("python -mtrain"), "train");
        assert_eq!(name("python -Wdefault::ImportWarning -X dev train.py"), "train.py");
        assert_eq!(name("bash -e -o pipefail ./job.sh"), "job.sh");
        assert_eq!(name("perl -w solve.pl"), "solve.pl");
        assert_eq!(name("python3 -- -odd.py"), "-odd.py");
    }

    #[test]
    fn other_programs_are_named_after_their_file() {
        assert_eq!(name("./train --steps 3"), "train");
        assert_eq!(name("pythonic x.py"), "pythonic");
        assert_eq!((name("python3 -c pass x.py"), name("perl -ne print x")), ("python3".into(), "perl".into()));
        assert_eq!((name("python3"), name("python3 -"), name("-bash")), ("python3".into(), "python3".into(), "bash".into()));
        assert_eq!(name(""), "python3.12", "without arguments the file counts");
        assert_eq!(of_command(&[], Path::new("")), "");
    }

    #[test]
    fn names_of_files_are_shown_in_one_line() {
        let of_file = |name: &str| of_command(&[format!("/tmp/{name}")], Path::new("/tmp/x"));
        assert_eq!(of_file("x\n   1  sshd  root"), "x?   1  sshd  root");
        assert_eq!(of_file("a\u{202e}b\u{1b}[2J\u{2066}\u{200f}"), "a?b?[2J??");
        assert_eq!(of_file(&"ä".repeat(200)), "ä".repeat(LONGEST_ID));
    }

    #[test]
    fn a_process_is_named_after_its_command() {
        let own = of_process(std::process::id());
        assert!(own.starts_with("control-"), "{own}");
        assert_eq!(of_process(u32::MAX), "");
    }

    #[test]
    fn names_are_short_and_plain() {
        assert!(["a", "train.py", "run_7-b", &"x".repeat(LONGEST_ID)].into_iter().all(is_name));
        assert!(["", "a b", "ä", "a/b", "\u{1b}[2J", &"x".repeat(LONGEST_ID + 1)].into_iter().all(|text| !is_name(text)));
    }
}
