//! The examples at the end of each command's help. The tests parse them.

/// Of `mrcuda`.
pub(crate) const ALL: &str = "\
Examples:
  mrcuda serve --listen 0.0.0.0:7878
      Share the GPUs of this machine
  mrcuda run --server gpubox:7878 -- ./train
      Run a program on GPU 0 of gpubox
  mrcuda migrate 4711 --to local
      Move the running job with process id 4711 to a GPU of this machine
  mrcuda help migrate
      Show the options of a command";

/// Of `mrcuda run`.
pub(crate) const RUN: &str = "\
Examples:
  mrcuda run -- ./train
      Run a program on a GPU of this machine; it can be moved
  mrcuda run --server gpubox:7878/1 -- python train.py
      Run it on GPU 1 of gpubox
  mrcuda run --server a:7878/0,b:7878/1,local -- ./train
      Show it three GPUs, two of them on other machines
  mrcuda run --server gpubox:7878 --on-signal b:7878 --signal USR2 -- ./train
      Let kill -USR2 move it to machine b
  mrcuda run --wait=2h --server gpubox:7878 -- ./train
      If gpubox has no room, wait for a turn, at most two hours
  mrcuda run --server gpubox:7878 --when-full local,b:7878 -- ./train
      Let it move to this machine, or to machine b, when gpubox's GPU is full
  mrcuda run --name night-7 --server gpubox:7878 -- python train.py
      Call it night-7 in mrcuda ps and mrcuda moves
  mrcuda run --driver soft -- ./train
      Run it without a GPU, on the CPU
  eval \"$(mrcuda run --server gpubox:7878 --export)\"
      In a script: run what follows with its GPU work on gpubox";

/// Of `mrcuda serve`.
pub(crate) const SERVE: &str = "\
Examples:
  mrcuda serve --listen 0.0.0.0:7878
      Share all GPUs with everybody who has the token
  mrcuda serve --unix /run/mrcuda/gpus
      Share them with other programs of this user on this machine
  mrcuda serve --listen 0.0.0.0:7878 --gpus 2 --max-workers 16
      Share two GPUs, with at most 16 clients at a time
  mrcuda serve --max-gpu-jobs 1 --accounting /var/log/mrcuda.jsonl
      One job for each GPU; write who has used it, for how long
  mrcuda serve --drain gpubox2:7878
      At SIGTERM, have the jobs move to gpubox2 before it ends
  mrcuda serve --metrics 9878 --log-format json
      Serve metrics to Prometheus on this machine; write the log as JSON
  mrcuda serve --driver soft
      Serve without a GPU, to try mrcuda on one machine";

/// Of `mrcuda token`.
pub(crate) const TOKEN: &str = "\
Examples:
  mrcuda token add ann
      Make a token for ann, who can then start jobs at this server
  mrcuda token list
      List the users who have one
  mrcuda token revoke ann
      Shut ann out; jobs of ann that run go on until they end";

/// Of `mrcuda token add`.
pub(crate) const TOKEN_ADD: &str = "\
Examples:
  mrcuda token add ann
      Make a token for ann; the running server accepts it at once
  mrcuda token add ann > ann.token
      In a script: the token alone is written to stdout";

/// Of `mrcuda token list`.
pub(crate) const TOKEN_LIST: &str = "\
Examples:
  mrcuda token list
      List the users, since when they have a token, and its fingerprint
  mrcuda token list --file /srv/mrcuda/tokens --json
      List those of a server with another file as JSON";

/// Of `mrcuda token revoke`.
pub(crate) const TOKEN_REVOKE: &str = "\
Examples:
  mrcuda token revoke ann
      Shut ann out; the running server refuses the token at once";

/// Of `mrcuda gpus`.
pub(crate) const GPUS: &str = "\
Examples:
  mrcuda gpus gpubox:7878
      List the GPUs of gpubox, their free memory, and the jobs there
  mrcuda gpus gpubox:7878 unix:/run/mrcuda/gpus --json
      List those of two servers as JSON";

/// Of `mrcuda events`.
pub(crate) const EVENTS: &str = "\
Examples:
  mrcuda events gpubox:7878
      Print each job that comes to gpubox, moves or leaves, as it happens
  mrcuda events gpubox:7878 --json | ./scheduler
      Give them to a program, as lines of JSON";

/// Of `mrcuda drain`.
pub(crate) const DRAIN: &str = "\
Examples:
  mrcuda drain gpubox:7878 --to otherbox:7878
      Have gpubox take no new jobs, and ask those that it serves to move to otherbox
  mrcuda drain gpubox:7878 --show
      Show which jobs are left, and why
  mrcuda drain gpubox:7878 --cancel
      Have it take jobs again";

/// Of `mrcuda top`.
pub(crate) const TOP: &str = "\
Examples:
  mrcuda top
      Show your jobs, and the GPUs of this machine's server; q quits
  mrcuda top gpubox:7878 big:7878 --interval 5s
      Show the GPUs of two servers, every five seconds
  mrcuda top --all --once
      Print the jobs of all users once, for scripts";

/// Of `mrcuda agent`.
pub(crate) const AGENT: &str = "\
Examples:
  mrcuda agent
      Move jobs by the policies in ~/.config/mrcuda/agent.toml
  mrcuda agent --all --config /etc/mrcuda/agent.toml --json
      Those of all users, by another file, and print what happens as JSON
  mrcuda agent --dry-run
      Print only what would be moved, and why
  mrcuda agent --once
      Do what is to be done now, and end";

/// Of `mrcuda ps`.
pub(crate) const PS: &str = "\
Examples:
  mrcuda ps
      List the jobs of this user
  mrcuda ps --watch 5
      List them again every five seconds, until Ctrl-C
  sudo mrcuda ps --all
      List the jobs of all users
  mrcuda ps --json
      Print them for programs (docs/scheduler.md)";

/// Of `mrcuda migrate`.
pub(crate) const MIGRATE: &str = "\
Examples:
  mrcuda migrate 4711 --to local
      Move a job to a GPU of this machine
  mrcuda migrate 4711 --to b:7878/0 --max-downtime 200ms
      Move it to machine b, unless its calls would wait for more than 200 ms
  mrcuda migrate 4711 --gpu 1 --to gpubox:7878/3
      Move only its GPU 1
  mrcuda migrate 4711 --to b:7878 --wait 10m
      Keep trying for ten minutes if its kernels are long
  mrcuda migrate 4711 --to b:7878 --dry-run
      Only report whether it could move
  mrcuda migrate 4711 --server gpubox:7878 --to b:7878
      From any machine: have gpubox ask its job 4711 to move";

/// Of `mrcuda suspend`.
pub(crate) const SUSPEND: &str = "\
Examples:
  mrcuda suspend 4711
      Free the job's GPUs; its memory is kept in the memory of this machine
  mrcuda suspend 4711 --to file:/scratch/parked
      Keep it in a file in this directory
  mrcuda suspend 4711 --to file:/scratch/parked --every 60s
      Keep a copy current there while the job runs, so that the command before takes little time
  mrcuda resume 4711
      Let the job go on";

/// Of `mrcuda resume`.
pub(crate) const RESUME: &str = "\
Examples:
  mrcuda resume 4711
      Let a parked job go on at the place where it was
  mrcuda resume 4711 --to gpubox:7878/1
      Let it go on at another place";

/// Of `mrcuda plan`.
pub(crate) const PLAN: &str = "\
Examples:
  mrcuda plan 4711 --to local
      Report whether a job could move to a GPU of this machine
  mrcuda plan 4711 --to b:7878,b:7878/1 --json
      Report it for two GPUs, for programs (docs/scheduler.md)";

/// Of `mrcuda cancel`.
pub(crate) const CANCEL: &str = "\
Examples:
  mrcuda cancel 4711
      Abandon the move that is under way, or the next one of the queue
  mrcuda cancel 4711 m2
      Abandon the move m2";

/// Of `mrcuda moves`.
pub(crate) const MOVES: &str = "\
Examples:
  mrcuda moves
      List the moves of all jobs of this user
  mrcuda moves --program train --since 12h
      List those of one program in the last twelve hours
  mrcuda moves 4711
      List the moves of a job, also the one under way
  mrcuda moves 4711 m1
      Show one move phase by phase";

/// Of `mrcuda doctor`.
pub(crate) const DOCTOR: &str = "\
Examples:
  mrcuda doctor
      Check this machine
  mrcuda doctor -- ./train
      Check also whether this program would load mrcuda's libcuda.so.1
  mrcuda doctor --driver soft
      Check it for the use without a GPU
  mrcuda doctor --server gpubox:7878
      Check also the way to a server, and measure it";

/// Of `mrcuda calls`.
pub(crate) const CALLS: &str = "\
Examples:
  mrcuda calls
      List all driver functions
  mrcuda calls --json
      Print them for programs";

/// Of `mrcuda bench`, whose own program has the rest of the help.
pub(crate) const BENCH: &str = "\
Examples:
  mrcuda bench --quick
      Measure this machine roughly, in a minute or two
  mrcuda bench --server gpubox:7878 --out results
      Measure calls at a server, and write the results to this directory
  mrcuda bench paper --list
      List the experiments of papers that can be repeated here
  mrcuda bench --help
      List the options";

/// Of `mrcuda models`.
pub(crate) const MODELS: &str = "\
Examples:
  mrcuda models fit mrcuda-bench/bench.json
      Fit the models with which mrcuda plan predicts times
  mrcuda models validate models.json other/bench.json
      Test them with another benchmark";

/// Of `mrcuda models fit`.
pub(crate) const FIT: &str = "\
Examples:
  mrcuda models fit mrcuda-bench/bench.json
      Fit the models with which mrcuda plan predicts times
  mrcuda models fit a/bench.json b/bench.json --out models.json
      Fit them to two benchmarks, and write them to this file";

/// Of `mrcuda models validate`.
pub(crate) const VALIDATE: &str = "\
Examples:
  mrcuda models validate models.json other/bench.json
      Test models with a benchmark that they were not fitted to
  mrcuda models validate models.json other/bench.json --plot errors.svg
      Draw predicted against measured times as well";

/// Of `mrcuda journal`.
pub(crate) const JOURNAL: &str = "\
Examples:
  mrcuda journal show /tmp/journals/4711.d0.journal
      Print the records of a journal";

/// Of `mrcuda journal show`.
pub(crate) const SHOW: &str = "\
Examples:
  MRCUDA_KEEP_JOURNAL=/tmp/journals mrcuda run -- ./train
      Keep the journals of a job
  mrcuda journal show /tmp/journals/4711.d0.journal
      Print the records of one
  mrcuda journal show /tmp/journals/4711.d0.journal --json
      Print a JSON object for each record";

/// Of `mrcuda config`.
pub(crate) const CONFIG: &str = "\
Examples:
  mrcuda config show
      Print each setting, and which file or variable it comes from
  mrcuda config check /etc/mrcuda/config.toml
      Check the file of this machine";

/// Of `mrcuda config show`.
pub(crate) const CONFIG_SHOW: &str = "\
Examples:
  mrcuda config show
      Print each setting, and which file or variable it comes from
  mrcuda config show --json
      Print them for programs";

/// Of `mrcuda config check`.
pub(crate) const CONFIG_CHECK: &str = "\
Examples:
  mrcuda config check ~/.config/mrcuda/config.toml
      Check this user's file
  mrcuda config check new.toml
      Check a file before it is copied to /etc/mrcuda/config.toml";

/// Of `mrcuda completions`.
pub(crate) const COMPLETIONS: &str = "\
Examples:
  source <(mrcuda completions bash)
      Complete in this shell; as a line of ~/.bashrc, in every one
  mrcuda completions zsh > ~/.zfunc/_mrcuda
      For zsh, with ~/.zfunc in fpath
  mrcuda completions fish > ~/.config/fish/completions/mrcuda.fish
      For fish";

/// Of `mrcuda man`.
pub(crate) const MAN: &str = "\
Examples:
  mrcuda man | man -l -
      Show the page of mrcuda
  mrcuda man ~/.local/share/man/man1
      Write all pages to where man finds them: man mrcuda-migrate";

#[cfg(test)]
mod tests {
    use crate::Cli;
    use clap::{Command, CommandFactory, Parser};

    /// All commands that are shown, with their names.
    fn shown(command: &Command, path: &str, all: &mut Vec<(String, Command)>) {
        all.push((path.to_owned(), command.clone()));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            shown(sub, &format!("{path} {}", sub.get_name()), all);
        }
    }

    fn commands() -> Vec<(String, Command)> {
        let mut root = Cli::command();
        root.build();
        let mut all = Vec::new();
        shown(&root, "mrcuda", &mut all);
        all
    }

    #[test]
    fn every_help_text_has_examples_and_fits_80_columns() {
        for (path, mut command) in commands() {
            for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
                let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
                assert!(long.is_empty(), "{path} --help: {long:#?}");
                assert!(help.contains("\nExamples:\n  "), "{path} --help has no examples");
            }
        }
    }

    #[test]
    fn examples_are_commands() {
        for (path, command) in commands() {
            let examples = command.get_after_help().unwrap().to_string();
            let lines = examples.lines().filter(|line| line.starts_with("  mrcuda "));
            assert!(lines.clone().count() > 0, "{path}");
            for line in lines {
                let words = line.split_whitespace().take_while(|word| !["|", ">"].contains(word));
                if let Err(why) = Cli::try_parse_from(words) {
                    assert!(why.exit_code() == 0, "{line}: {why}");
                }
            }
        }
    }

    #[test]
    fn the_version_names_a_commit() {
        let version = Cli::command().render_version();
        let commit = version.trim().strip_prefix(concat!("mrcuda ", env!("CARGO_PKG_VERSION"), " (")).unwrap();
        let commit = commit.strip_suffix(')').unwrap();
        assert!(commit == "unknown" || commit.len() >= 12 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{version}");
    }
}
