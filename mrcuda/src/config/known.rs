//! The settings that configuration files may have. Each is an option of `clap`, whose parser checks its values.

use clap::builder::NonEmptyStringValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, value_parser};
use std::any::TypeId;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The tables that have the options of commands, and these commands. An option that several commands of a table have is one setting.
pub(super) const TABLES: [(&str, &[&str]); 3] =
    [("run", &["run"]), ("serve", &["serve"]), ("move", &["migrate", "suspend", "resume", "plan"])];

/// Options that say what one call of a command is about: not settings.
const OF_ONE_CALL: [&str; 10] = ["to", "gpu", "id", "json", "dry-run", "trace", "no-wait", "every", "export", "take-over"];

/// As [`OF_ONE_CALL`]: a file would give all jobs the same name.
const NAME: &str = "name";

/// An environment variable and the setting that it has precedence over.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    form: Form,
}

/// The form of a variable's values.
#[derive(Debug)]
enum Form {
    /// That of the option of this name.
    Option,
    /// As that, but in milliseconds.
    Milliseconds,
    /// The variable is read by jobs, servers or commands; there is no option. With the default, for people.
    Only(Kind, &'static str),
}

/// What the values of a variable without an option are.
#[derive(Debug)]
enum Kind {
    Text,
    File,
    Switch,
    Number(RangeInclusive<i64>),
}

/// All variables of settings.
pub(super) const VARIABLES: [Variable; 23] = [
    of_option("MRCUDA_SERVERS", "run", "server"),
    Variable { name: "MRCUDA_WAIT", table: "run", key: "wait", form: Form::Milliseconds },
    of_option("MRCUDA_WHEN_FULL", "run", "when-full"),
    of_option("MRCUDA_ON_STOP", "run", "on-stop"),
    of_option("MRCUDA_HOME_PLACE", "run", "home"),
    of_option("MRCUDA_POLICY", "run", "policy"),
    of_option("MRCUDA_MANAGED", "run", "managed"),
    of_option("MRCUDA_DRIVER", "run", "driver"),
    of_option("MRCUDA_DRIVER", "serve", "driver"),
    of_option("MRCUDA_TOKEN_FILE", "serve", "token-file"),
    only("MRCUDA_MOVE_CONNECTIONS", "move", "connections", Kind::Number(1..=64), "4 to 16, by the processors of both ends"),
    only("MRCUDA_TOKEN_FILE", "job", "token-file", Kind::File, "~/.config/mrcuda/token"),
    of_option("MRCUDA_MUNGE_SOCKET", "serve", "munge-socket"),
    only("MRCUDA_MUNGE", "job", "munge", Kind::Text, "none: servers get a token"),
    only("MRCUDA_MUNGE_SOCKET", "job", "munge-socket", Kind::File, "that of libmunge"),
    only("MRCUDA_CA", "job", "ca", Kind::File, "none: certificates are recorded in known_servers"),
    only("MRCUDA_CERTIFICATE", "job", "certificate", Kind::File, "none"),
    only("MRCUDA_BULK_CONNECTIONS", "job", "bulk-connections", Kind::Number(0..=64), "2 to 8, by the processors of both ends"),
    only("MRCUDA_COPY_THREADS", "job", "copy-threads", Kind::Number(0..=64), "half of the processors, at most 8"),
    only("MRCUDA_SERVER_MOVES", "job", "server-moves", Kind::Text, "any"),
    only("MRCUDA_KEEP_JOURNAL", "job", "keep-journal", Kind::File, "none"),
    only("MRCUDA_LOG", "log", "filter", Kind::Text, "off"),
    only("MRCUDA_LOG_CALLS", "log", "calls", Kind::Switch, "false"),
];

const fn of_option(name: &'static str, table: &'static str, key: &'static str) -> Variable {
    Variable { name, table, key, form: Form::Option }
}

const fn only(name: &'static str, table: &'static str, key: &'static str, kind: Kind, default: &'static str) -> Variable {
    Variable { name, table, key, form: Form::Only(kind, default) }
}

impl Variable {
    /// A value as the option takes it.
    pub(super) fn as_option(&self, value: &OsStr) -> OsString {
        let mut text = value.to_owned();
        if matches!(self.form, Form::Milliseconds) {
            text.push("ms");
        }
        text
    }

    /// The option that stands for a variable without one.
    fn arg(&self) -> Option<Arg> {
        let Form::Only(kind, default) = &self.form else { return None };
        let arg = Arg::new(self.key).long(self.key).help(format!("[default: {default}]"));
        Some(match kind {
            Kind::Text => arg.value_parser(NonEmptyStringValueParser::new()),
            Kind::File => arg.value_parser(value_parser!(PathBuf)),
            Kind::Switch => arg.value_parser(value_parser!(bool)).action(ArgAction::Set),
            Kind::Number(range) => arg.value_parser(value_parser!(u32).range(range.clone())),
        })
    }
}

/// A setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(super) table: &'static str,
    pub(super) key: String,
    pub(super) variable: Option<&'static Variable>,
    arg: Arg,
    /// The number of a command that has the option.
    command: usize,
}

impl Setting {
    /// Whether it is on or off.
    pub(super) fn is_switch(&self) -> bool {
        self.has_type(TypeId::of::<bool>())
    }

    fn has_type(&self, id: TypeId) -> bool {
        self.arg.get_value_parser().type_id() == id
    }

    /// Whether it is the variable alone that carries the value.
    pub(super) fn only_variable(&self) -> Option<&'static Variable> {
        self.variable.filter(|variable| matches!(variable.form, Form::Only(..)))
    }

    /// The value that is built in, if it is one.
    pub(super) fn built_in(&self) -> Option<String> {
        let values: Vec<_> = self.arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        (!values.is_empty()).then(|| values.join(","))
    }

    /// The built-in default: its value, or what the help says about it.
    pub(super) fn default(&self) -> Option<String> {
        if let Some(value) = self.built_in() {
            return Some(value);
        }
        let help = self.arg.get_help()?.to_string();
        let (_, text) = help.rsplit_once("[default: ")?;
        Some(text.strip_suffix(']')?.to_owned())
    }

    /// Why a value would mean something else in another directory.
    fn relative(&self, text: &str) -> Option<String> {
        let is_path = self.has_type(TypeId::of::<PathBuf>()) || self.has_type(TypeId::of::<OsString>()) && text != "soft";
        let is_relative = |path: &&str| !Path::new(path).is_absolute();
        let in_places = || text.split(',').filter_map(|place| place.strip_prefix("unix:").or(place.strip_prefix("file:")));
        let path = if is_path { Some(text).filter(is_relative) } else { in_places().find(is_relative) }?;
        Some(format!("`{path}` is not an absolute path: it must begin with `/` in a configuration file"))
    }
}

/// All settings.
#[derive(Debug)]
pub(crate) struct Known {
    pub(super) settings: Vec<Setting>,
    commands: Vec<Command>,
}

impl Known {
    /// Collects the settings from the options of the commands, and the variables without one.
    pub(super) fn new(root: &Command) -> Known {
        let mut known = Known { settings: Vec::new(), commands: Vec::new() };
        for (table, commands) in TABLES {
            commands.iter().filter_map(|name| root.find_subcommand(name)).for_each(|command| known.add(table, command));
        }
        for variable in &VARIABLES {
            known.add(variable.table, &Command::new(variable.table).args(variable.arg()));
        }
        known
            .settings
            .sort_by_key(|setting| TABLES.iter().position(|(table, _)| *table == setting.table).unwrap_or(TABLES.len()));
        known
    }

    fn add(&mut self, table: &'static str, command: &Command) {
        let is_setting = |key: &str| !OF_ONE_CALL.contains(&key) && key != NAME;
        for arg in command.get_arguments() {
            let Some(key) = arg.get_long().filter(|key| is_setting(key)) else { continue };
            if self.find(table, key).is_none() {
                let variable = VARIABLES.iter().find(|variable| variable.table == table && variable.key == key);
                let (key, command) = (key.to_owned(), self.commands.len());
                self.settings.push(Setting { table, key, variable, arg: arg.clone(), command });
            }
        }
        self.commands.push(command.clone());
    }

    /// The number of a setting.
    pub(super) fn find(&self, table: &str, key: &str) -> Option<usize> {
        self.settings.iter().position(|setting| setting.table == table && setting.key == key)
    }

    /// Why a value cannot be used, as the end of a sentence.
    pub(super) fn check(&self, setting: &Setting, value: &OsStr) -> Result<(), String> {
        let mut option = OsString::from(format!("--{}=", setting.key));
        option.push(value);
        // What else is wrong with this command line, such as an argument that is missing, is not about the value.
        match self.commands[setting.command].clone().try_get_matches_from([OsStr::new("mrcuda"), &option]) {
            Err(why) => value_error(&why).map_or(Ok(()), Err),
            Ok(_) => Ok(()),
        }
    }

    /// The same for a value in a file.
    pub(super) fn check_in_file(&self, setting: &Setting, text: &str) -> Result<(), String> {
        setting.relative(text).map_or(Ok(()), Err)?;
        self.check(setting, OsStr::new(text))
    }

    /// Says what an unknown table could mean.
    pub(super) fn unknown_table(&self, table: &str) -> String {
        let of_command = TABLES.iter().find(|(_, commands)| commands.contains(&table)).map(|(table, _)| *table);
        let tables = self.settings.iter().map(|setting| setting.table);
        match of_command.or_else(|| nearest(table, tables)) {
            Some(meant) => format!("unknown table [{table}]; did you mean [{meant}]?"),
            None => format!("unknown table [{table}]"),
        }
    }

    /// Says what an unknown setting could mean.
    pub(super) fn unknown_key(&self, table: &str, key: &str) -> String {
        if let Some(other) = self.settings.iter().find(|setting| setting.key == key) {
            return format!("[{table}] has no setting `{key}`; it belongs to [{}]", other.table);
        }
        let keys = self.settings.iter().filter(|setting| setting.table == table).map(|setting| setting.key.as_str());
        match nearest(key, keys) {
            Some(meant) => format!("[{table}] has no setting `{key}`; did you mean `{meant}`?"),
            None => format!("[{table}] has no setting `{key}`"),
        }
    }
}

/// What a parser says against a value, if it is the value that it is against.
fn value_error(why: &clap::Error) -> Option<String> {
    match why.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::InvalidUtf8 => (),
        _ => return None,
    }
    Some(match (why.source(), why.get(ContextKind::ValidValue)) {
        (Some(reason), _) => reason.to_string(),
        (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => format!("it must be one of {}", valid.join(", ")),
        (None, _) => "it must not be empty".to_owned(),
    })
}

/// The word with the fewest differences.
fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    words.min_by_key(|other| distance(word, other))
}

/// How many characters are to be inserted, removed or replaced to make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (number, character) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = number + 1;
        for column in 0..to.len() {
            let replaced = diagonal + usize::from(to[column] != character);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_can_replace_every_setting() {
        let known = Known::new(&Cli::command());
        for setting in &known.settings {
            // `--allow-plain` alone could not switch off what a file switches on.
            assert!(!matches!(setting.arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse), "{}", setting.key);
            let off = setting.is_switch() && setting.only_variable().is_none();
            assert!(!off || known.check(setting, OsStr::new("false")).is_ok(), "{}", setting.key);
        }
    }

    #[test]
    fn variables_belong_to_settings_and_are_documented() {
        let (known, readme) = (Known::new(&Cli::command()), include_str!("../../../README.md"));
        for variable in &VARIABLES {
            let setting = &known.settings[known.find(variable.table, variable.key).expect(variable.name)];
            assert_eq!(setting.variable.map(|it| it.name), Some(variable.name));
            assert!(readme.contains(&format!("\n| `{}` |", variable.name)), "{}", variable.name);
        }
    }

    #[test]
    fn every_setting_is_in_the_manual() {
        let manual = include_str!("../../../docs/settings.md");
        for table in Known::new(&Cli::command()).settings.iter().map(|setting| setting.table) {
            assert!(manual.contains(&format!("\n| `[{table}]` |")), "{table}");
        }
    }

    #[test]
    fn the_nearest_word() {
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("a", "a")), (3, 2, 0));
        assert_eq!(nearest("sevre", ["run", "serve", "move"].into_iter()), Some("serve"));
        assert_eq!(nearest("x", [].into_iter()), None);
    }

    #[test]
    fn defaults_are_values_or_words() {
        let known = Known::new(&Cli::command());
        let default = |table, key| known.settings[known.find(table, key).unwrap()].default();
        assert_eq!(default("run", "server").as_deref(), Some("local"));
        assert_eq!(default("run", "signal").as_deref(), Some("USR1"));
        assert_eq!(default("serve", "allow-plain").as_deref(), Some("false"));
        assert!(default("serve", "max-workers").unwrap().starts_with("64 for each shared GPU"));
        assert_eq!((default("run", "driver"), default("log", "filter").as_deref()), (None, Some("off")));
    }
}
