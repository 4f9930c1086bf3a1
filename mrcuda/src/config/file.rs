//! Reads a configuration file: TOML, a table for each command or subject, values in the grammar of the command line.

use super::known::{Known, Setting};
use nix::unistd::Uid;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The most that is read of a file.
const LARGEST: u64 = 1 << 20;

/// Why a file, or a variable that belongs to a setting, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The system refuses to read it.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is too large to be one.
    #[error("{}: a configuration file has at most {LARGEST} bytes", .0.display())]
    TooLarge(PathBuf),
    /// Everybody can write it.
    #[error("{}: every user can write this configuration file, so it is not used (chmod o-w makes it safe)", .0.display())]
    Writable(PathBuf),
    /// It belongs to somebody else.
    #[error("{}: this configuration file belongs to user {owner}, so it is not used: it must belong to you or root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// Something in it is wrong.
    #[error("{}:{}: {}", path.display(), problem.line, problem.text)]
    Problem {
        /// The file.
        path: PathBuf,
        /// The first problem.
        problem: Problem,
    },
    /// A variable has a wrong value.
    #[error("{name} is `{value}`: {why}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What is wrong in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line, from 1 on.
    pub(super) line: usize,
    pub(super) text: String,
}

/// The value of a setting in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the setting.
    pub(super) setting: usize,
    pub(super) value: String,
    /// The line, from 1 on.
    pub(super) line: usize,
}

/// The settings of a file; the first problem is an error.
pub(super) fn read(path: &Path, known: &Known) -> Result<Vec<Entry>, ConfigError> {
    let (entries, problems) = parse(&text(path)?, known);
    match problems.into_iter().next() {
        Some(problem) => Err(ConfigError::Problem { path: path.to_owned(), problem }),
        None => Ok(entries),
    }
}

/// The text of a file, which only its owner and members of its group may write.
pub(super) fn text(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    // Opening a pipe would block until another process writes.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(io::Error::other("it is not a file")));
    }
    check_access(path, meta.mode(), meta.uid(), Uid::effective().as_raw())?;
    let mut content = String::new();
    file.take(LARGEST + 1).read_to_string(&mut content).map_err(failed)?;
    match content.len() as u64 > LARGEST {
        true => Err(ConfigError::TooLarge(path.to_owned())),
        false => Ok(content),
    }
}

fn check_access(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), ConfigError> {
    if mode & 0o002 != 0 {
        return Err(ConfigError::Writable(path.to_owned()));
    }
    match owner == 0 || owner == user {
        true => Ok(()),
        false => Err(ConfigError::Owner { path: path.to_owned(), owner }),
    }
}

/// The settings of a text, and everything that is wrong in it, in the order of its lines.
pub(super) fn parse(text: &str, known: &Known) -> (Vec<Entry>, Vec<Problem>) {
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    let line = |offset: usize| text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
    let tables = match DeTable::parse(text) {
        Ok(tables) => tables.into_inner(),
        Err(why) => {
            let text = why.message().replace('\n', ", ");
            return (entries, vec![Problem { line: line(why.span().map_or(0, |at| at.start)), text }]);
        }
    };
    for (name, value) in tables {
        let (at, table) = (line(name.span().start), name.get_ref());
        let DeValue::Table(keys) = value.into_inner() else {
            let of =
                known.settings.iter().find(|setting| setting.key == **table).map(|setting| format!(" as [{}]", setting.table));
            let of = of.unwrap_or_default();
            problems
                .push(Problem { line: at, text: format!("`{table}` is outside of a table: settings are in tables, such{of}") });
            continue;
        };
        if !known.settings.iter().any(|setting| *setting.table == **table) {
            problems.push(Problem { line: at, text: known.unknown_table(table) });
            continue;
        }
        for (key, value) in keys {
            let (line, key) = (line(key.span().start), key.get_ref());
            let entry = known.find(table, key).ok_or_else(|| known.unknown_key(table, key)).and_then(|number| {
                let setting = &known.settings[number];
                let wrong = |why| format!("[{table}] {key}: {why}");
                let value = written(value.get_ref(), setting).map_err(wrong)?;
                let of_value = |why| format!("[{table}] {key} is `{value}`: {why}");
                known.check_in_file(setting, &value).map_err(of_value)?;
                Ok(Entry { setting: number, value, line })
            });
            match entry {
                Ok(entry) => entries.push(entry),
                Err(text) => problems.push(Problem { line, text }),
            }
        }
    }
    problems.sort_by_key(|problem| problem.line);
    (entries, problems)
}

/// A value as the command line would have it. Why it cannot be one is the end of a sentence.
fn written(value: &DeValue<'_>, setting: &Setting) -> Result<String, &'static str> {
    match (value, setting.is_switch()) {
        (DeValue::Boolean(on), true) => Ok(on.to_string()),
        (_, true) => Err("it must be true or false, without quotes"),
        (DeValue::Array(list), false) => {
            let parts: Result<Vec<String>, _> = list.iter().map(|part| scalar(part.get_ref())).collect();
            parts.map(|parts| parts.join(","))
        }
        (value, false) => scalar(value),
    }
}

fn scalar(value: &DeValue<'_>) -> Result<String, &'static str> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| "the number is too large"),
        _ => Err("it must be a text in quotes or a whole number, as on the command line"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;
    use std::os::unix::fs::PermissionsExt;

    fn known() -> Known {
        Known::new(&Cli::command())
    }

    #[test]
    fn values_have_the_grammar_of_the_command_line() {
        let known = known();
        let text = "[run]\nserver = ['a:1', 'b:2/1']\nwait = '1.5h'\n[serve]\nmax-memory = '4G'\nmax-workers = 1_0\nallow-plain = true\n\
                    drain = ['a:1']\n[move]\nverify = 'hash'\nconnections = 0x10\n[log]\nfilter = 1\n";
        let (entries, problems) = parse(text, &known);
        assert_eq!(problems, []);
        let mut found: Vec<(usize, &str, &str)> =
            entries.iter().map(|it| (it.line, known.settings[it.setting].key.as_str(), it.value.as_str())).collect();
        found.sort_unstable();
        let meant = [
            (2, "server", "a:1,b:2/1"),
            (3, "wait", "1.5h"),
            (5, "max-memory", "4G"),
            (6, "max-workers", "10"),
            (7, "allow-plain", "true"),
            (8, "drain", "a:1"),
            (10, "verify", "hash"),
            (11, "connections", "16"),
            (13, "filter", "1"),
        ];
        assert_eq!(found, meant);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let known = known();
        for (text, line, words) in [
            ("[run\n", 1, "]"),
            ("[run]\nserver = 'a:1'\nserver = 'b:1'\n", 3, "duplicate"),
            ("[sevre]\n", 1, "unknown table [sevre]; did you mean [serve]?"),
            ("\n[migrate]\nwait = '5s'\n", 2, "did you mean [move]?"),
            ("server = 'a:1'\n", 1, "`server` is outside of a table: settings are in tables, such as [run]"),
            ("[run]\n\nservr = 'a:1'\n", 3, "[run] has no setting `servr`; did you mean `server`?"),
            ("[run]\nlisten = 'a:1'\n", 2, "it belongs to [serve]"),
            ("[job]\ntoken = 'secret'\n", 2, "did you mean `token-file`?"),
            ("[run]\nname = 'x'\n", 2, "has no setting `name`"),
            ("[move]\nto = 'local'\n", 2, "has no setting `to`"),
            ("[run]\nwait = 5\n", 2, "[run] wait is `5`: it must be a time like"),
            ("[run]\nwait = 1.5\n", 2, "[run] wait: it must be a text in quotes or a whole number"),
            ("[run]\nserver = true\n", 2, "it must be a text in quotes"),
            ("[run.server]\nat = 'a:1'\n", 1, "it must be a text in quotes"),
            ("[run]\nserver = 'nowhere'\n", 2, "[run] server is `nowhere`: invalid place"),
            ("[run]\nserver = ''\n", 2, "the list of places is empty"),
            ("[log]\nfilter = ''\n", 2, "it must not be empty"),
            ("[run]\nserver = 'unix:gpus'\n", 2, "`gpus` is not an absolute path"),
            ("[run]\ndriver = 'libcuda.so.1'\n", 2, "is not an absolute path"),
            ("[job]\nca = '~/ca.pem'\n", 2, "`~/ca.pem` is not an absolute path"),
            ("[serve]\nallow-plain = 'yes'\n", 2, "it must be true or false, without quotes"),
            ("[serve]\nwarm = 65\n", 2, "65 is not in"),
            ("[serve]\nmax-memory = '1.5G'\n", 2, "it must be a number of bytes"),
            ("[serve]\nlog-format = 'xml'\n", 2, "it must be one of text, json"),
            ("[move]\nverify = 'sum'\n", 2, "it must be one of hash, bytes"),
            ("[move]\nconnections = 99999999999999999999\n", 2, "too large"),
        ] {
            let (_, problems) = parse(text, &known);
            let [problem] = &problems[..] else { panic!("{text}: {problems:?}") };
            assert!(problem.line == line && problem.text.contains(words), "{text}: {problem:?}");
            assert!(!problem.text.contains('\n'), "{problem:?}");
        }
        let (entries, problems) = parse("[serve]\nwarm = 0\ngpus = 2\n[x]\n[run]\nwait = 1\n", &known);
        assert_eq!((entries.len(), problems.iter().map(|it| it.line).collect::<Vec<_>>()), (1, vec![2, 4, 6]));
    }

    #[test]
    fn the_file_of_the_packages_is_valid_also_with_all_its_examples() {
        let text = include_str!("../../../packaging/config.toml");
        let known = known();
        assert_eq!(parse(text, &known), (vec![], vec![]));
        // Comments have a space behind the sign.
        let example = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n";
        let (entries, problems) = parse(&text.lines().map(example).collect::<String>(), &known);
        assert!(entries.len() > 5 && problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn files_of_others_are_not_used() {
        let path = Path::new("/c");
        let access = |mode, owner, user| check_access(path, mode, owner, user);
        assert!(access(0o644, 0, 7).is_ok() && access(0o664, 7, 7).is_ok() && access(0o600, 0, 0).is_ok());
        assert!(matches!(access(0o646, 0, 7), Err(ConfigError::Writable(_))));
        assert!(matches!(access(0o600, 8, 7), Err(ConfigError::Owner { owner: 8, .. })));
        assert!(matches!(access(0o600, 8, 0), Err(ConfigError::Owner { owner: 8, .. })));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let directory = std::env::temp_dir().join(format!("mrcuda-config-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("config.toml");
        let error = |path: &Path| read(path, &known()).unwrap_err().to_string();
        assert!(error(&path).contains("config.toml: No such file"), "{}", error(&path));
        assert!(error(&directory).contains("it is not a file"), "{}", error(&directory));
        std::fs::write(&path, b"\xff").unwrap();
        assert!(error(&path).contains("config.toml: "), "{}", error(&path));
        std::fs::write(&path, "[run]\nsignal = 'KILL'\n").unwrap();
        assert!(error(&path).contains("config.toml:2: [run] signal is `KILL`: SIGKILL cannot be handled"), "{}", error(&path));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(error(&path).contains("every user can write"), "{}", error(&path));
        std::fs::write(&path, " ".repeat(LARGEST as usize + 1)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(error(&path).contains("at most"), "{}", error(&path));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
