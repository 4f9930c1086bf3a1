//! `mrcuda completions` and `mrcuda man`: what shells and `man` want to know of the commands, made from their help texts.

use crate::failure::Failure;
use crate::table::{say, write};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::{Path, PathBuf};

/// The version, with the commit that this was built from.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("MRCUDA_COMMIT"), ")");

/// Arguments of `mrcuda completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script
    shell: Shell,
}

/// Arguments of `mrcuda man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages of all commands; created if it is missing [default: print the page of mrcuda alone]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints the script that completes commands and options in a shell.
pub(crate) fn completions(command: &Command, args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(command), "mrcuda", &mut script);
    write(&script);
    Ok(())
}

/// Prints the manual page of mrcuda, or writes those of all commands.
pub(crate) fn man(command: &Command, args: &ManArgs) -> Result<(), Failure> {
    let mut root = visible(command);
    // Names of subcommands get those of their commands in front: mrcuda-models-fit.
    root.build();
    let Some(directory) = &args.directory else {
        write(&page(&root).map_err(Failure::new)?);
        return Ok(());
    };
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |e: io::Error| Failure::new(format!("cannot write {path}: {e}"))
    };
    std::fs::create_dir_all(directory).map_err(failed(directory))?;
    let pages = pages(&root).map_err(Failure::new)?;
    for (name, page) in &pages {
        let path = directory.join(name);
        std::fs::write(&path, page).map_err(failed(&path))?;
    }
    say(&format!("{} pages in {}", pages.len(), directory.display()));
    Ok(())
}

/// The command without those that only mrcuda itself uses.
fn visible(command: &Command) -> Command {
    let all: Vec<Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let mut shown = Command::new("mrcuda").subcommands(all);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(examples) = command.get_after_help() {
        shown = shown.after_help(examples.clone());
    }
    shown.version(VERSION).subcommand_required(true)
}

/// The pages of a command and all its subcommands, by their file names.
fn pages(command: &Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut all = vec![(format!("{name}.1"), page(command)?)];
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        all.extend(pages(sub)?);
    }
    Ok(all)
}

/// How the command is used, as its help says it.
fn synopsis(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([roman(usage.trim_start_matches("Usage: "))]);
    roff.to_writer(out)
}

/// The environment variables of the commands and of jobs.
const ENVIRONMENT: [(&str, &str); 27] = [
    ("MRCUDA_CONFIG", "a configuration file that is read instead of those of the machine and the user; empty: none is read"),
    ("MRCUDA_SERVERS", "the places of the job, as --server of run"),
    ("MRCUDA_WAIT", "as --wait of run, in milliseconds"),
    ("MRCUDA_WHEN_FULL", "as --when-full of run"),
    ("MRCUDA_ON_STOP", "as --on-stop of run"),
    ("MRCUDA_HOME_PLACE", "as --home of run"),
    ("MRCUDA_POLICY", "as --policy of run"),
    ("MRCUDA_SERVER_MOVES", "where servers may ask the job to move: any, none, or a list of places [default: any]"),
    ("MRCUDA_MANAGED", "as --managed of run"),
    ("MRCUDA_LOG", "1, or levels such as debug,migrate=trace: what a job logs to stderr; a path with a slash: to this file"),
    ("MRCUDA_LOG_CALLS", "set to any value: a line of the log for each call"),
    ("MRCUDA_KEEP_JOURNAL", "a directory in which jobs keep their journals"),
    ("MRCUDA_COPY_THREADS", "how many threads make large copies of pageable memory in-process"),
    ("MRCUDA_BULK_CONNECTIONS", "how many connections in each direction carry large copies"),
    ("MRCUDA_MOVE_CONNECTIONS", "how many connections carry memory between two places"),
    ("MRCUDA_NAME", "the name of the job, as --name of run"),
    ("MRCUDA_TOKEN_FILE", "the token file [default: ~/.config/mrcuda/token]"),
    ("MRCUDA_MUNGE", "the user that servers of this cluster run as: a job shows them a credential of munge in place of a token"),
    ("MRCUDA_MUNGE_SOCKET", "the socket of munged [default: that of libmunge]"),
    ("MRCUDA_CA", "certificates of the authorities whose servers are accepted"),
    ("MRCUDA_CERTIFICATE", "the job's certificate with its key, for servers with --client-ca"),
    ("MRCUDA_DRIVER", "the CUDA driver, as --driver: a path, or soft"),
    ("CUDA_CACHE_PATH", "a job's compiled kernels are cached in its directory mrcuda/compiled [default: ~/.cache]"),
    ("COLUMNS", "the width of tables and lines [default: that of the terminal]"),
    ("XDG_STATE_HOME", "jobs add their moves to the history in its directory mrcuda [default: ~/.local/state]"),
    ("XDG_RUNTIME_DIR", "jobs have their control sockets in its directory mrcuda [default: /tmp/mrcuda-UID]"),
    ("CUDA_VISIBLE_DEVICES", "the GPUs that serve shares, and that local and helper mean; in a job: which of its places it sees"),
];

/// The exit codes of all commands but `run`.
const EXIT_STATUS: [(&str, &str); 3] =
    [("0", "success"), ("1", "no success, or the output could not be written"), ("2", "error in the command line")];
/// Those of `run`.
const EXIT_STATUS_OF_RUN: [(&str, &str); 3] =
    [("0 to 255", "that of the program"), ("126, 127", "the program cannot be started"), ("2", "error in the command line")];

/// A section with a list of names and what they mean.
fn list(title: &str, entries: &[(&str, &str)], out: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (name, meaning) in entries {
        roff.control("TP", []).text([bold(*name)]).text([roman(*meaning)]);
    }
    roff.to_writer(out)
}

/// The manual page of a command. Its examples keep their lines.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).manual("mrcuda").source(format!("mrcuda {VERSION}"));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    synopsis(command, &mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if command.get_name() == "mrcuda" {
        list("ENVIRONMENT", &ENVIRONMENT, &mut out)?;
    }
    list("EXIT STATUS", if command.get_name() == "run" { &EXIT_STATUS_OF_RUN } else { &EXIT_STATUS }, &mut out)?;
    if let Some(examples) = command.get_after_help() {
        let mut roff = Roff::new();
        roff.control("SH", ["EXAMPLES"]).control("nf", []);
        let examples = examples.to_string();
        for line in examples.lines().skip(1) {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut out)?;
        out.push(b'\n');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let mut root = visible(&Cli::command());
        root.build();
        let pages = pages(&root).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["mrcuda.1", "mrcuda-run.1", "mrcuda-migrate.1", "mrcuda-models-fit.1", "mrcuda-journal-show.1"] {
            assert!(names.contains(&name), "{name} is missing in {names:?}");
        }
        assert!(!names.contains(&"mrcuda-worker.1"), "{names:?}");
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            assert!(text.contains("\n.SH SYNOPSIS\nmrcuda"), "{name}: {text}");
            assert!(text.contains("\n.SH \"EXIT STATUS\"\n"), "{name}: {text}");
            assert_eq!(text.contains("\n.SH ENVIRONMENT\n"), name == "mrcuda.1", "{name}: {text}");
            assert!(text.contains(".SH EXAMPLES\n.nf\n") && text.contains("\n.SH OPTIONS\n"), "{name}: {text}");
        }
    }

    /// The sections of a command and all its subcommands, each with the text of its help.
    fn sections(command: &Command, page: &mut String) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace('-', " ");
        // The width of a terminal does not matter.
        let help = command.clone().term_width(80).render_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        page.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
        if name == "mrcuda bench" {
            page.push_str("\nThe options are those of [another program](cli-bench.md).\n");
        }
        command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(|sub| sections(sub, page));
    }

    #[test]
    fn the_page_of_all_commands_is_up_to_date() {
        let mut root = visible(&Cli::command());
        root.build();
        let mut page = "# Commands\n\nThe help texts of all commands (`mrcuda COMMAND --help`); `mrcuda man` makes manual pages of them. Written \
                        by `UPDATE=1 cargo test -p mrcuda up_to_date`.\n"
            .to_owned();
        sections(&root, &mut page);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "docs/cli.md is old: UPDATE=1 writes it");
    }

    #[test]
    fn the_environment_is_that_of_the_readme() {
        let readme = include_str!("../../README.md");
        for (name, _) in ENVIRONMENT {
            assert!(readme.contains(&format!("\n| `{name}` |")), "{name}");
        }
    }

    #[test]
    fn completions_name_what_is_shown() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(&Cli::command()), "mrcuda", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("max-downtime") && script.contains("migrate"), "{shell}");
            assert!(!script.contains("probe") && !script.contains("load-only"), "{shell}");
        }
    }
}
