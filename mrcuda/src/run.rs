//! `mrcuda run`: prepares the environment and executes the program in the same process. The process id stays the same,
//! so the process that started it (a shell, Slurm) can send the signal that moves the job.

use crate::failure::Failure;
use crate::time::time;
use crate::value_error::ValueError;
use crate::{drivers, layout, places};
use control::name::is_name;
use nix::sys::signal::{SigHandler, Signal};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Arguments of `mrcuda run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Place of each GPU that the program sees: HOST:PORT[/GPU] (encrypted; shared memory on this machine), tls://HOST:PORT[/GPU]
    /// (encrypted), plain://HOST:PORT[/GPU] (not encrypted), rdma://HOST:PORT[/GPU] (calls over RDMA, not encrypted), unix:PATH[/GPU], local[:GPU] or helper[:GPU], separated by commas [default: local]
    #[arg(long, visible_alias = "servers", value_name = "PLACES", value_parser = places::gpus)]
    server: Option<String>,
    /// Place to which the signal moves the job, or a list with one place for each of its GPUs
    #[arg(long, alias = "on-usr1", value_name = "PLACE", default_value = "local", value_parser = places::places)]
    on_signal: String,
    /// Signal that moves the job
    #[arg(long, value_name = "NAME", default_value = "USR1", value_parser = places::signal)]
    signal: Signal,
    /// Places to which a GPU of the job moves if it has no memory for an allocation, the first one that has [default:
    /// $MRCUDA_WHEN_FULL, or none: the allocation fails]
    #[arg(long, value_name = "PLACES", value_parser = places::gpus)]
    when_full: Option<String>,
    /// Name of the job in lists and reports [default: $MRCUDA_NAME, or the name of the script or program]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
    /// If a server has no room for the job when it starts, wait for a turn; at most for this time, if one is given
    #[arg(long, value_name = "TIME", value_parser = time, num_args = 0..=1, require_equals = true, default_missing_value = LONGEST_WAIT)]
    wait: Option<u64>,
    /// CUDA driver of this machine: a path, or `soft` for softgpu, which needs no GPU
    #[arg(long, value_name = "PATH|soft")]
    driver: Option<OsString>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// What `--wait` without a time means.
const LONGEST_WAIT: &str = "87600h";

fn name(text: &str) -> Result<String, ValueError> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::JobName),
    }
}

/// The name that the environment gives to jobs.
fn name_from_environment() -> Result<(), Failure> {
    let given = std::env::var_os("MRCUDA_NAME").filter(|given| !given.is_empty());
    let checked = given.map(|given| name(&given.to_string_lossy()).map_err(|why| (given, why))).transpose();
    let wrong =
        |(given, why): (OsString, ValueError)| Failure::with_code(2, format!("MRCUDA_NAME is `{}`: {why}", given.display()));
    checked.map(drop).map_err(wrong)
}

/// Executes the program; returns only on failure.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let (Some(program), rest) = (args.program.first(), args.program.get(1..).unwrap_or_default()) else {
        return Err(Failure::with_code(2, "no program was given"));
    };
    if let Some(option) = program.to_str().filter(|p| p.starts_with('-')) {
        return Err(Failure::with_code(2, format!("unknown option `{option}` of `mrcuda run` (--help lists them)")));
    }
    if args.name.is_none() {
        name_from_environment()?;
    }
    let libraries =
        layout::library_directory().map_err(|e| Failure::new(format!("cannot lay out the library directory: {e}")))?;
    // The option takes precedence over the variable, the variable over the machine's driver.
    let named = args.driver.clone().or_else(drivers::from_environment);
    let driver = match named {
        Some(text) => Some(drivers::named(&text).map_err(Failure::new)?),
        None => drivers::find(),
    };
    if driver.is_none() && args.server.as_deref().is_none_or(places::any_on_this_machine) {
        return Err(Failure::new(
            "this machine has no CUDA driver, so the job cannot start on a GPU of it, and --server names no other \
             (mrcuda doctor says more; --driver soft needs no GPU)",
        ));
    }

    let mut command = Command::new(program);
    command.args(rest);
    let before = std::env::var_os("LD_LIBRARY_PATH");
    command.env("LD_LIBRARY_PATH", layout::prepend(&libraries, before.as_deref()));
    // Triton looks for libcuda.so in this directory instead of asking the linker.
    command.env("TRITON_LIBCUDA_PATH", &libraries);
    set(&mut command, "MRCUDA_SERVERS", args.server.as_deref().map(OsStr::new));
    // If a launcher inside the job changes this variable later, it selects among the places named here.
    let shown = std::env::var_os("CUDA_VISIBLE_DEVICES").unwrap_or_else(|| "all".into());
    set(&mut command, "MRCUDA_VISIBLE", args.server.as_ref().map(|_| shown.as_os_str()));
    set(&mut command, "MRCUDA_WAIT", args.wait.map(|ms| ms.to_string()).as_deref().map(OsStr::new));
    set(&mut command, "MRCUDA_DRIVER", driver.as_ref().map(|d| d.as_os_str()));
    command.env("MRCUDA_ON_SIGNAL", &args.on_signal);
    // Without these options, what the environment says, of an enclosing job or of the user, holds for this one.
    if let Some(name) = &args.name {
        command.env("MRCUDA_NAME", name);
    }
    if let Some(places) = &args.when_full {
        command.env("MRCUDA_WHEN_FULL", places);
    }
    command.env("MRCUDA_SIGNAL", args.signal.as_str().trim_start_matches("SIG"));

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

/// Sets a variable, or removes the one that an enclosing job has set.
fn set(command: &mut Command, name: &str, value: Option<&OsStr>) {
    match value {
        Some(value) => command.env(name, value),
        None => command.env_remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(name("train-7.b_2").as_deref(), Ok("train-7.b_2"));
        assert!(["", "a b", "a/b", &"x".repeat(65)].into_iter().all(|text| name(text).is_err()));
    }
}
