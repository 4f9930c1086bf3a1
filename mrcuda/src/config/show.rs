//! `mrcuda config`: shows the settings with their sources, and checks a file.

use super::file;
use super::known::{Known, Setting};
use super::layers::{Config, Origin, Source, Value};
use crate::ask::print_json;
use crate::failure::Failure;
use crate::table::{Table, say};
use clap::Command;
use serde::Serialize;
use std::path::PathBuf;

/// The commands of `mrcuda config`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print each setting with its value, and where the value comes from
    #[command(after_help = crate::examples::CONFIG_SHOW)]
    Show(ShowArgs),
    /// Check a configuration file, and print everything that is wrong in it
    #[command(after_help = crate::examples::CONFIG_CHECK)]
    Check(CheckArgs),
}

/// Arguments of `mrcuda config show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mrcuda config check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Where the value of a setting comes from.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum From {
    /// It is built in.
    Default,
    /// A configuration file.
    File,
    /// An environment variable.
    Environment,
}

/// A setting as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShownSetting {
    /// Its table in files.
    table: &'static str,
    /// Its name in the table: that of the option, without the dashes.
    key: String,
    /// Its value as the option takes it; null if there is none: `default` says what then holds.
    value: Option<String>,
    from: From,
    /// The file that has the value.
    file: Option<String>,
    /// Its line, from 1 on.
    line: Option<usize>,
    /// The environment variable that has precedence over files.
    variable: Option<&'static str>,
    /// What holds without a value, for people.
    default: Option<String>,
}

/// A file as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShownFile {
    path: String,
    exists: bool,
}

/// All settings as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Shown {
    /// The files that are read; later ones have precedence.
    files: Vec<ShownFile>,
    settings: Vec<ShownSetting>,
}

impl ShownSetting {
    fn new((setting, value): (&Setting, &Value)) -> ShownSetting {
        let (from, file, line) = match &value.origin {
            Origin::Default => (From::Default, None, None),
            Origin::File { path, line } => (From::File, Some(path.display().to_string()), Some(*line)),
            Origin::Variable(_) => (From::Environment, None, None),
        };
        ShownSetting {
            table: setting.table,
            key: setting.key.clone(),
            value: value.as_option(setting).map(|text| text.display().to_string()).or_else(|| setting.built_in()),
            from,
            file,
            line,
            variable: setting.variable.map(|variable| variable.name),
            default: setting.default(),
        }
    }

    /// Its row in the table for people.
    fn row(&self) -> Vec<String> {
        let value = self.value.as_ref().or(self.default.as_ref()).map_or("-", String::as_str);
        let from = match (&self.from, &self.file, self.line, self.variable) {
            (From::File, Some(file), Some(line), _) => format!("{file}:{line}"),
            (From::Environment, _, _, Some(variable)) => variable.to_owned(),
            _ => "default".to_owned(),
        };
        vec![format!("{}.{}", self.table, self.key), from, value.to_owned()]
    }
}

impl Shown {
    fn new(config: &Config) -> Shown {
        let file = |source: &Source| ShownFile { path: source.path.display().to_string(), exists: source.is_there };
        Shown { files: config.sources.iter().map(file).collect(), settings: config.settings().map(ShownSetting::new).collect() }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for file in &self.files {
            text.push_str(&format!("file {}{}\n", file.path, if file.exists { "" } else { " (does not exist)" }));
        }
        let mut table = Table::new(&["SETTING", "FROM", "VALUE"]);
        self.settings.iter().for_each(|setting| table.row(setting.row()));
        text + &table.render()
    }
}

/// Carries out `mrcuda config`. `root` is the command line.
pub(crate) fn config(command: &ConfigCommand, root: &Command) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show(args) => show(args, root),
        ConfigCommand::Check(args) => check(args, root),
    }
}

fn show(args: &ShowArgs, root: &Command) -> Result<(), Failure> {
    let config = Config::read(root).map_err(|why| Failure::with_code(2, why))?;
    let shown = Shown::new(&config);
    if args.json {
        return print_json(&shown);
    }
    say(&shown.render());
    Ok(())
}

/// Exit code 1 if something is wrong.
fn check(args: &CheckArgs, root: &Command) -> Result<(), Failure> {
    let text = file::text(&args.file).map_err(Failure::new)?;
    let (entries, problems) = file::parse(&text, &Known::new(root));
    let name = args.file.display();
    if problems.is_empty() {
        let count = entries.len();
        say(&format!("{name}: {count} {}, nothing is wrong", if count == 1 { "setting" } else { "settings" }));
        return Ok(());
    }
    problems.iter().for_each(|problem| say(&format!("{name}:{}: {}", problem.line, problem.text)));
    Err(Failure::silent(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn settings_are_shown_with_their_sources() {
        let known = Known::new(&Cli::command());
        let shown =
            |table: &str, key: &str, value: Value| ShownSetting::new((&known.settings[known.find(table, key).unwrap()], &value));
        let file = Origin::File { path: "/etc/mrcuda/config.toml".into(), line: 3 };
        let it = shown("run", "server", Value::new(Some("a:1"), file));
        assert_eq!(it.row(), ["run.server", "/etc/mrcuda/config.toml:3", "a:1"]);
        let json = serde_json::to_value(&it).unwrap();
        assert!(json["from"] == "file" && json["line"] == 3 && json["variable"] == "MRCUDA_SERVERS", "{json}");
        let it = shown("run", "wait", Value::new(Some("5000"), Origin::Variable("MRCUDA_WAIT")));
        assert_eq!(it.row(), ["run.wait", "MRCUDA_WAIT", "5000ms"]);
        // A variable that is set and empty.
        let it = shown("run", "server", Value::new(None, Origin::Variable("MRCUDA_SERVERS")));
        assert_eq!((it.row()[2].as_str(), it.value), ("local", None));
        let it = shown("serve", "drain-timeout", Value::new(None, Origin::Default));
        assert_eq!(
            (it.row(), it.value.as_deref()),
            (["serve.drain-timeout", "default", "30s"].map(str::to_owned).into(), Some("30s"))
        );
        assert_eq!(shown("run", "driver", Value::new(None, Origin::Default)).row()[2], "-");
    }
}
