//! `mrcuda run`: prepares the environment and executes the program in the same process. The process id stays the same,
//! so the process that started it (a shell, Slurm) can send the signal that moves the job.

use crate::failure::Failure;
use crate::table::write;
use crate::time::time;
use crate::value_error::ValueError;
use crate::{auto, drivers, layout, places};
use ::agent::{Choice, ChoiceError};
use control::name::is_name;
use nix::sys::signal::{SigHandler, Signal};
use rcuda_forwarder::Endpoint;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments of `mrcuda run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Place of each GPU that the program sees: HOST:PORT[/GPU] (encrypted; shared memory on this machine), tls://HOST:PORT[/GPU]
    /// (encrypted), plain://HOST:PORT[/GPU] (not encrypted), rdma://HOST:PORT[/GPU] (calls over RDMA, not encrypted), unix:PATH[/GPU], local[:GPU] or helper[:GPU], separated by commas; or auto[:N]: N GPUs (1 without :N) of the servers of --pool [default: local]
    #[arg(long, visible_alias = "servers", value_name = "PLACES", value_parser = places::gpus_or_auto)]
    server: Option<String>,
    /// Servers whose GPUs --server auto[:N] chooses from, those with the fewest jobs and the most free memory: HOST:PORT, plain://HOST:PORT or unix:PATH, separated by commas
    #[arg(long, value_name = "SERVERS", value_delimiter = ',')]
    pool: Vec<Endpoint>,
    /// Place to which the signal moves the job, or a list with one place for each of its GPUs
    #[arg(long, alias = "on-usr1", value_name = "PLACE", default_value = "local", value_parser = places::places)]
    on_signal: String,
    /// Signal that moves the job
    #[arg(long, value_name = "NAME", default_value = "USR1", value_parser = places::signal)]
    signal: Signal,
    /// Place where the job is parked when it is asked to stop (SIGTSTP: Slurm's suspension, Ctrl-Z), before it stops, so that its GPU is
    /// free: memory, file:DIR or HOST:PORT/memory; it resumes when it continues [default: $MRCUDA_ON_STOP, or none: it keeps its GPU]
    #[arg(long, value_name = "PLACE", value_parser = places::stores)]
    on_stop: Option<String>,
    /// Places to which a GPU of the job moves if it has no memory for an allocation, the first one that has; also by $MRCUDA_WHEN_FULL
    /// [default: none: the allocation fails]
    #[arg(long, value_name = "PLACES", value_parser = places::gpus)]
    when_full: Option<String>,
    /// Place where the job belongs: an agent moves it there when no job uses that GPU (mrcuda agent); also by $MRCUDA_HOME_PLACE [default:
    /// what the agent's settings say]
    #[arg(long, value_name = "PLACE", value_parser = places::gpu)]
    home: Option<String>,
    /// Policies of an agent that may move the job for its own sake: home, consolidate, balance, separated by commas, or none; also by
    /// $MRCUDA_POLICY. Those that drain a server and that make room for jobs of higher priority move it in any case [default: what the agent's settings say]
    #[arg(long, value_name = "NAME,…|none", value_parser = policy)]
    policy: Option<String>,
    /// How the program uses managed memory; also by $MRCUDA_MANAGED. With `exclusive` its host does not touch it while kernels run, which CUDA requires
    /// of programs on GPUs without concurrent managed access: GPUs of another machine then use large blocks of it at full speed. The
    /// program is told that its GPUs have no concurrent managed access. [default: concurrent]
    #[arg(long, value_name = "concurrent|exclusive", value_enum, hide_possible_values = true)]
    managed: Option<Managed>,
    /// Name of the job in lists and reports [default: $MRCUDA_NAME, or the name of the script or program]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
    /// If a server has no room for the job when it starts, wait for a turn; at most for this time, if one is given
    #[arg(long, value_name = "TIME", value_parser = time, num_args = 0..=1, require_equals = true, default_missing_value = LONGEST_WAIT)]
    wait: Option<u64>,
    /// CUDA driver of this machine: a path, or `soft` for softgpu, which needs no GPU
    #[arg(long, value_name = "PATH|soft")]
    driver: Option<OsString>,
    /// Run nothing, but print the variables that the program would get: for eval in a shell, or as NAME=VALUE (NAME alone: to be removed), each ended by a zero byte
    #[arg(long, value_name = "shell|null", num_args = 0..=1, require_equals = true, default_missing_value = "shell", value_enum, conflicts_with = "program")]
    export: Option<Export>,
    /// Program and its arguments
    #[arg(required_unless_present = "export", trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// How the variables are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Export {
    /// As commands of a shell.
    Shell,
    /// For programs.
    Null,
}

/// How a program uses managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Managed {
    /// Its host may use it at any time.
    Concurrent,
    /// Its host does not touch it while kernels run.
    Exclusive,
}

impl Managed {
    fn name(self) -> &'static str {
        match self {
            Managed::Concurrent => "concurrent",
            Managed::Exclusive => "exclusive",
        }
    }
}

/// What `--wait` without a time means.
const LONGEST_WAIT: &str = "87600h";

fn name(text: &str) -> Result<String, ValueError> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::JobName),
    }
}

/// Checks a choice of policies, which the job passes on as it is.
fn policy(text: &str) -> Result<String, ChoiceError> {
    text.parse().map(|_: Choice| text.to_owned())
}

/// The name that the environment gives to jobs.
fn name_from_environment() -> Result<(), Failure> {
    let given = std::env::var_os("MRCUDA_NAME").filter(|given| !given.is_empty());
    let checked = given.map(|given| name(&given.to_string_lossy()).map_err(|why| (given, why))).transpose();
    let wrong =
        |(given, why): (OsString, ValueError)| Failure::with_code(2, format!("MRCUDA_NAME is `{}`: {why}", given.display()));
    checked.map(drop).map_err(wrong)
}

/// A variable and its value; `None`: what an enclosing job has set is removed.
type Variable = (&'static str, Option<OsString>);

/// Executes the program, which returns only on failure; or prints what it would get. It also gets the variables that configuration files
/// set.
pub(crate) fn run(args: &RunArgs, of_files: Vec<(&'static str, OsString)>) -> Result<(), Failure> {
    let of_files = of_files.into_iter().map(|(name, value)| (name, Some(value)));
    if let Some(export) = args.export {
        write(&exported(export, &variables(args, of_files)?));
        return Ok(());
    }
    let (Some(program), rest) = (args.program.first(), args.program.get(1..).unwrap_or_default()) else {
        return Err(Failure::with_code(2, "no program was given"));
    };
    if let Some(option) = program.to_str().filter(|p| p.starts_with('-')) {
        return Err(Failure::with_code(2, format!("unknown option `{option}` of `mrcuda run` (--help lists them)")));
    }
    let mut command = Command::new(program);
    command.args(rest);
    for (name, value) in variables(args, of_files)? {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }

    // "Ignore" survives exec: a signal before the program's first CUDA call has no effect, and the recorder handles the
    // signal only if the program has not installed a handler.
    // SAFETY: no handler is installed, so no code can run in signal context.
    unsafe { nix::sys::signal::signal(args.signal, SigHandler::SigIgn) }
        .map_err(|e| Failure::new(format!("cannot ignore {}: {e}", args.signal)))?;
    let error = command.exec();
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Err(Failure::with_code(code, format!("cannot run {}: {error}", program.display())))
}

/// The variables by which a program runs as a job.
fn variables(args: &RunArgs, of_files: impl Iterator<Item = Variable>) -> Result<Vec<Variable>, Failure> {
    if args.name.is_none() {
        name_from_environment()?;
    }
    let libraries =
        layout::library_directory().map_err(|e| Failure::new(format!("cannot lay out the library directory: {e}")))?;
    let server = match args.server.as_deref().and_then(places::auto) {
        Some(count) => Some(auto::find(&args.pool, count.map_err(Failure::new)?)?),
        None => args.server.clone(),
    };
    let driver = match &args.driver {
        Some(text) => Some(drivers::named(text).map_err(Failure::new)?),
        None => drivers::find(),
    };
    if driver.is_none() && server.as_deref().is_none_or(places::any_on_this_machine) {
        return Err(Failure::new(
            "this machine has no CUDA driver, so the job cannot start on a GPU of it, and --server names no other \
             (mrcuda doctor says more; --driver soft needs no GPU)",
        ));
    }
    let before = std::env::var_os("LD_LIBRARY_PATH");
    // If a launcher inside the job changes this variable later, it selects among the places named here.
    let shown = || std::env::var_os("CUDA_VISIBLE_DEVICES").unwrap_or_else(|| "all".into());
    let mut variables: Vec<Variable> = vec![
        ("LD_LIBRARY_PATH", Some(layout::prepend(&libraries, before.as_deref()))),
        // Triton looks for libcuda.so in this directory instead of asking the linker.
        ("TRITON_LIBCUDA_PATH", Some(libraries.into())),
        ("MRCUDA_SERVERS", server.as_ref().map(OsString::from)),
        ("MRCUDA_VISIBLE", server.as_ref().map(|_| shown())),
        ("MRCUDA_WAIT", args.wait.map(|ms| ms.to_string().into())),
        ("MRCUDA_DRIVER", driver.map(OsString::from)),
        ("MRCUDA_ON_SIGNAL", Some(OsString::from(&args.on_signal))),
        ("MRCUDA_SIGNAL", Some(args.signal.as_str().trim_start_matches("SIG").into())),
    ];
    // Without these options, what the environment says, of an enclosing job or of the user, holds for this one.
    variables.extend(args.name.as_ref().map(|name| ("MRCUDA_NAME", Some(name.into()))));
    variables.extend(args.on_stop.as_ref().map(|place| ("MRCUDA_ON_STOP", Some(place.into()))));
    variables.extend(args.when_full.as_ref().map(|places| ("MRCUDA_WHEN_FULL", Some(places.into()))));
    variables.extend(args.home.as_ref().map(|place| ("MRCUDA_HOME_PLACE", Some(place.into()))));
    variables.extend(args.policy.as_ref().map(|policies| ("MRCUDA_POLICY", Some(policies.into()))));
    variables.extend(args.managed.map(|managed| ("MRCUDA_MANAGED", Some(managed.name().into()))));
    variables.extend(of_files);
    Ok(variables)
}

/// The variables as text.
fn exported(export: Export, variables: &[Variable]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in variables {
        let value = value.as_ref().map(|value| value.as_bytes());
        match (export, value) {
            (Export::Null, Some(value)) => text.extend([name.as_bytes(), b"=", value, b"\0"].concat()),
            (Export::Null, None) => text.extend([name.as_bytes(), b"\0"].concat()),
            // Within apostrophes a shell takes everything as it is, but an apostrophe.
            (Export::Shell, Some(value)) => {
                let quoted = value.split(|byte| *byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
                text.extend([b"export ", name.as_bytes(), b"='", &quoted, b"'\n"].concat());
            }
            (Export::Shell, None) => text.extend([b"unset ", name.as_bytes(), b"\n"].concat()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn variables_survive_a_shell_and_a_program() {
        let variables: [Variable; 2] = [("A", Some("it's $HOME\n\"x\" ''".into())), ("B", None)];
        assert_eq!(exported(Export::Null, &variables), b"A=it's $HOME\n\"x\" ''\0B\0");
        let script = [&exported(Export::Shell, &variables)[..], b"printf '%s|%s' \"$A\" \"${B-unset}\""].concat();
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).env("B", "set").output().unwrap();
        assert_eq!(output.stdout, b"it's $HOME\n\"x\" ''|unset");
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(name("train-7.b_2").as_deref(), Ok("train-7.b_2"));
        assert!(["", "a b", "a/b", &"x".repeat(65)].into_iter().all(|text| name(text).is_err()));
    }
}
