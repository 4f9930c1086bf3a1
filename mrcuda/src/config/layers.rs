//! Puts the sources of settings over each other: the system's file, the user's file, environment variables.

use super::file::{self, ConfigError};
use super::known::{Known, Setting, TABLES};
use crate::predict;
use clap::Command;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The file of the machine's administrator.
const SYSTEM_FILE: &str = "/etc/mrcuda/config.toml";

/// A file that is read instead of the system's and the user's; empty: no file is read.
pub(crate) const INSTEAD: &str = "MRCUDA_CONFIG";

/// Set in a job that `mrcuda run` has started with places.
const OF_JOB: &str = "MRCUDA_VISIBLE";

/// Commands that use settings without having a table: `doctor` takes `run.driver`, and all take what variables of servers and jobs say.
const WITHOUT_TABLE: [&str; 7] = ["doctor", "gpus", "events", "drain", "top", "agent", "bench"];

/// Whether a command uses settings. The others also work while a file is wrong.
pub(crate) fn is_read_by(command: &str) -> bool {
    TABLES.iter().any(|(_, commands)| commands.contains(&command)) || WITHOUT_TABLE.contains(&command)
}

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is built in.
    Default,
    /// It is in a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
    },
    /// A variable has it.
    Variable(&'static str),
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// As the file or the variable has it. `None`: the built-in default.
    text: Option<OsString>,
    pub(super) origin: Origin,
}

/// A file that may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// Whether it exists.
    pub(super) is_there: bool,
    /// Whether it must exist.
    is_named: bool,
}

/// The settings of this user on this machine.
#[derive(Debug)]
pub(crate) struct Config {
    known: Known,
    /// The files, those that count more later.
    pub(super) sources: Vec<Source>,
    /// The values of the settings, in the same order.
    values: Vec<Value>,
}

impl Config {
    /// Reads the files and the environment. `root` is the command line.
    pub(crate) fn read(root: &Command) -> Result<Config, ConfigError> {
        Config::from_sources(root, sources(|name| std::env::var_os(name)), of_user(|name| std::env::var_os(name)))
    }

    fn from_sources(
        root: &Command,
        mut sources: Vec<Source>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Config, ConfigError> {
        let known = Known::new(root);
        let mut values = vec![Value { text: None, origin: Origin::Default }; known.settings.len()];
        for source in &mut sources {
            let entries = match file::read(&source.path, &known) {
                Err(ConfigError::Read { source: why, .. }) if !source.is_named && is_missing(why.kind()) => continue,
                entries => entries?,
            };
            source.is_there = true;
            for entry in entries {
                let origin = Origin::File { path: source.path.clone(), line: entry.line };
                values[entry.setting] = Value { text: Some(entry.value.into()), origin };
            }
        }
        for (setting, value) in known.settings.iter().zip(&mut values) {
            let Some(name) = setting.variable.map(|variable| variable.name) else { continue };
            if let Some(text) = variable(name) {
                // An empty one hides what files say.
                *value = Value { text: Some(text).filter(|text| !text.is_empty()), origin: Origin::Variable(name) };
            }
        }
        Ok(Config { known, sources, values })
    }

    /// The settings with their values.
    pub(super) fn settings(&self) -> impl Iterator<Item = (&Setting, &Value)> {
        self.known.settings.iter().zip(&self.values)
    }

    /// The command line, with the values as defaults of the options of this command.
    pub(crate) fn as_defaults(&self, mut root: Command, command: &str) -> Result<Command, ConfigError> {
        let table = TABLES.iter().find(|(_, commands)| commands.contains(&command)).map(|(table, _)| *table);
        for (setting, value) in self.settings() {
            let is_used = match table {
                Some(table) => setting.table == table,
                None => command == "doctor" && setting.table == "run" && setting.key == "driver",
            };
            let Some(text) = value.as_option(setting).filter(|_| is_used && setting.only_variable().is_none()) else { continue };
            if let Origin::Variable(name) = value.origin {
                let value = || value.text.as_ref().map(|text| text.display().to_string()).unwrap_or_default();
                self.known.check(setting, &text).map_err(|why| ConfigError::Variable { name, value: value(), why })?;
            }
            root = root.mut_subcommand(command, |sub| {
                let option = sub.get_arguments().find(|arg| arg.get_long() == Some(&setting.key)).map(|arg| arg.get_id().clone());
                match option {
                    Some(id) => sub.mut_arg(id, |arg| arg.default_value(text)),
                    // Another command of the table has it.
                    None => sub,
                }
            });
        }
        Ok(root)
    }

    /// The variables that are to be set, because files have their values, and the environment does not.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let set = |(setting, value): (&Setting, &Value)| {
            let name = setting.only_variable()?.name;
            let text = value.text.clone().filter(|_| matches!(value.origin, Origin::File { .. }))?;
            match (setting.is_switch(), text == "true") {
                (true, true) => Some((name, "1".into())),
                (true, false) => None,
                (false, _) => Some((name, text)),
            }
        };
        self.settings().filter_map(set).collect()
    }
}

impl Value {
    #[cfg(test)]
    pub(super) fn new(text: Option<&str>, origin: Origin) -> Value {
        Value { text: text.map(OsString::from), origin }
    }

    /// As the option of the setting takes it.
    pub(super) fn as_option(&self, setting: &Setting) -> Option<OsString> {
        let text = self.text.as_ref()?;
        Some(match (&self.origin, setting.variable) {
            (Origin::Variable(_), Some(variable)) => variable.as_option(text),
            _ => text.clone(),
        })
    }
}

fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The variables of the user: those that `mrcuda run` has set for a job in which this command runs are about that job.
fn of_user(variable: impl Fn(&str) -> Option<OsString>) -> impl Fn(&str) -> Option<OsString> {
    move |name| match name {
        "MRCUDA_SERVERS" | "MRCUDA_WAIT" if variable(OF_JOB).is_some() => None,
        _ => variable(name),
    }
}

/// The files that may be read.
fn sources(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Source> {
    let source = |path: PathBuf, is_named| Source { path, is_there: false, is_named };
    match variable(INSTEAD) {
        Some(path) if path.is_empty() => Vec::new(),
        Some(path) => vec![source(path.into(), true)],
        None => {
            let user = predict::default_file().map(|models| source(models.with_file_name("config.toml"), false));
            [source(SYSTEM_FILE.into(), false)].into_iter().chain(user).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{ArgMatches, CommandFactory};
    use std::path::Path;

    /// The files of a test.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Files {
            let directory = std::env::temp_dir().join(format!("mrcuda-config-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Files(directory)
        }

        /// The configuration with these texts in the system's and the user's file, and these variables.
        fn config(&self, system: Option<&str>, user: Option<&str>, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
            let source = |name: &str, text: Option<&str>| {
                let path = self.0.join(name);
                let _ = std::fs::remove_file(&path);
                text.iter().for_each(|text| std::fs::write(&path, text).unwrap());
                Source { path, is_there: false, is_named: false }
            };
            let sources = vec![source("system", system), source("user", user)];
            let variable =
                |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(*value));
            Config::from_sources(&Cli::command(), sources, of_user(variable))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The options of a command that is called so.
    fn called(config: &Config, line: &[&str]) -> ArgMatches {
        let command = config.as_defaults(Cli::command(), line[0]).unwrap();
        let mut matches = command.try_get_matches_from([&["mrcuda"], line].concat()).unwrap();
        matches.remove_subcommand().unwrap().1
    }

    fn server(config: &Config, options: &[&str]) -> Option<String> {
        called(config, &[&["run"], options, &["--", "true"]].concat()).get_one::<String>("server").cloned()
    }

    #[test]
    fn each_layer_has_precedence_over_those_before_it() {
        let files = Files::new("layers");
        let (system, user) = (Some("[run]\nserver = 'system:1'\n"), Some("[run]\nserver = 'user:1'\n"));
        let (environment, option): (&[_], &[_]) = (&[("MRCUDA_SERVERS", "environment:1")], &["--server", "option:1"]);
        // Every set of layers; bit by bit, those that count less first.
        for set in 0..16 {
            let has = |bit: u32| set & 1 << bit != 0;
            let config =
                files.config(system.filter(|_| has(0)), user.filter(|_| has(1)), if has(2) { environment } else { &[] }).unwrap();
            let last =
                (0..4).rev().find(|bit| has(*bit)).map(|bit| ["system:1", "user:1", "environment:1", "option:1"][bit as usize]);
            assert_eq!(server(&config, if has(3) { option } else { &[] }).as_deref(), last, "{set:04b}");
        }
    }

    #[test]
    fn files_replace_single_settings_and_built_in_defaults() {
        let files = Files::new("single");
        let system = "[run]\nsignal = 'USR2'\non-signal = 'a:1'\n[serve]\nmax-images = '1G'\nallow-plain = true\n";
        let config = files.config(Some(system), Some("[run]\nsignal = 'HUP'\n"), &[]).unwrap();
        let run = called(&config, &["run", "true"]);
        assert_eq!(run.get_one::<nix::sys::signal::Signal>("signal"), Some(&nix::sys::signal::Signal::SIGHUP));
        assert_eq!(run.get_one::<String>("on_signal").map(String::as_str), Some("a:1"));
        let serve = called(&config, &["serve"]);
        assert_eq!((serve.get_one("max_images"), serve.get_one("warm")), (Some(&(1u64 << 30)), Some(&1u32)));
        assert_eq!((serve.get_one("allow_plain"), serve.get_one("metrics_jobs")), (Some(&true), Some(&false)));
        assert_eq!(called(&config, &["serve", "--allow-plain=false"]).get_one("allow_plain"), Some(&false));
        let config = files.config(None, None, &[]).unwrap();
        assert_eq!(called(&config, &["serve", "--allow-plain"]).get_one("allow_plain"), Some(&true));
        assert_eq!(server(&config, &[]), None);
    }

    #[test]
    fn moves_share_a_table() {
        let files = Files::new("moves");
        let text = "[move]\nwait = '10m'\nverify = 'bytes'\nallow-different = true\nmax-downtime = '1s'\n[serve]\ndrain = ['a:1', 'b:1']\n";
        let config = files.config(None, Some(text), &[]).unwrap();
        for line in [&["migrate", "1", "--to", "local"][..], &["suspend", "1"], &["resume", "1"]] {
            let matches = called(&config, line);
            assert_eq!(
                (matches.get_one("wait"), matches.get_one("max_downtime")),
                (Some(&600_000u64), Some(&1000u64)),
                "{line:?}"
            );
        }
        assert_eq!(called(&config, &["plan", "1", "--to", "local"]).get_one("allow_different"), Some(&true));
        // Options that exclude others exclude them on the command line only.
        assert_eq!(called(&config, &["suspend", "1", "--every", "60s"]).get_one("every"), Some(&60_000u64));
        let drain = called(&config, &["serve"]);
        assert_eq!(drain.get_many::<rcuda_forwarder::PlaceSpec>("drain").map(Iterator::count), Some(2));
    }

    #[test]
    fn variables_are_read_as_before() {
        let files = Files::new("variables");
        let text = Some("[run]\nwait = '1h'\ndriver = '/a'\nwhen-full = 'a:1'\n");
        let config =
            files.config(None, text, &[("MRCUDA_WAIT", "5000"), ("MRCUDA_DRIVER", "soft"), ("MRCUDA_WHEN_FULL", "")]).unwrap();
        let run = called(&config, &["run", "true"]);
        assert_eq!((run.get_one("wait"), run.get_one::<OsString>("driver")), (Some(&5000u64), Some(&"soft".into())));
        assert_eq!(run.get_one::<String>("when_full"), None, "an empty variable hides the file's value");
        assert_eq!(called(&config, &["doctor"]).get_one::<OsString>("driver"), Some(&"soft".into()));
        // In a job these are the job's.
        let inside = [("MRCUDA_VISIBLE", "all"), ("MRCUDA_SERVERS", "job:1"), ("MRCUDA_WAIT", "7")];
        let config = files.config(None, text, &inside).unwrap();
        assert_eq!((server(&config, &[]), called(&config, &["run", "true"]).get_one("wait")), (None, Some(&3_600_000u64)));
        let config = files.config(None, None, &[("MRCUDA_WAIT", "soon")]).unwrap();
        let why = config.as_defaults(Cli::command(), "run").unwrap_err().to_string();
        assert!(why.starts_with("MRCUDA_WAIT is `soon`: it must be a time"), "{why}");
        assert!(config.as_defaults(Cli::command(), "serve").is_ok());
    }

    #[test]
    fn what_jobs_read_is_set_if_it_is_not() {
        let files = Files::new("jobs");
        let text = "[job]\ncopy-threads = 2\nca = '/ca.pem'\n[log]\nfilter = 'debug'\ncalls = true\n[move]\nconnections = 8\n";
        let config = files.config(Some(text), None, &[("MRCUDA_CA", "/other.pem"), ("MRCUDA_LOG", "")]).unwrap();
        let mut set = config.variables();
        set.sort();
        let meant = [("MRCUDA_COPY_THREADS", "2"), ("MRCUDA_LOG_CALLS", "1"), ("MRCUDA_MOVE_CONNECTIONS", "8")];
        assert_eq!(set, meant.map(|(name, value)| (name, value.into())));
        let config = files.config(Some("[log]\ncalls = true\n"), Some("[log]\ncalls = false\n"), &[]).unwrap();
        assert_eq!(config.variables(), []);
    }

    #[test]
    fn a_wrong_file_is_an_error_for_every_command_that_reads_it() {
        let files = Files::new("wrong");
        let why = files.config(Some("[run]\nserver = 5\n"), Some("[run]\nserver = 'a:1'\n"), &[]).unwrap_err().to_string();
        assert!(why.contains("/system:2: [run] server is `5`: invalid place"), "{why}");
        assert!(is_read_by("run") && is_read_by("serve") && is_read_by("migrate") && is_read_by("gpus"));
        assert!(
            !is_read_by("ps")
                && !is_read_by("cancel")
                && !is_read_by("config")
                && !is_read_by("worker")
                && !is_read_by("greeter")
        );
    }

    #[test]
    fn a_variable_names_another_file_or_none() {
        let of = |value: Option<&str>| sources(|name| value.filter(|_| name == INSTEAD).map(OsString::from));
        assert_eq!(of(Some("")), []);
        let named = of(Some("/c.toml"));
        assert_eq!(named, [Source { path: "/c.toml".into(), is_there: false, is_named: true }]);
        assert_eq!(of(None)[0].path, Path::new(SYSTEM_FILE));
        let missing = vec![Source { path: "/no/such/config.toml".into(), is_there: false, is_named: true }];
        let why = Config::from_sources(&Cli::command(), missing, |_| None).unwrap_err().to_string();
        assert!(why.contains("/no/such/config.toml: No such file"), "{why}");
    }
}
