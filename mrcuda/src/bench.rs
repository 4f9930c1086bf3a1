//! `mrcuda bench`: replaces itself with the measuring program, which lies in the same directory.

use crate::failure::Failure;
use crate::{config, drivers, layout};
use rcuda_forwarder::Token;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The measuring program.
const MICROBENCH: &str = "microbench";
/// Its command that repeats the experiments of papers, as a first argument.
const PAPER: &str = "paper";

/// Starts it with the given options. A machine without a CUDA driver is measured with softgpu, and the output says so. The measuring
/// program gets the driver that is meant by the option, the environment or the machine.
pub(crate) fn bench(args: &[OsString]) -> Result<(), Failure> {
    let program = layout::beside(MICROBENCH)
        .map_err(|e| Failure::new(format!("{e}: only `mrcuda bench` needs it; copy it from where mrcuda was built")))?;
    let (paper, args) = match args.split_first() {
        Some((first, rest)) if first == PAPER => (true, rest),
        _ => (false, args),
    };
    let (asked, args) = without_driver(args)?;
    let driver = match asked.or_else(drivers::from_environment).or_else(|| drivers::find().map(Into::into)) {
        Some(text) => drivers::named(&text).map_err(Failure::new)?,
        None => layout::beside(layout::SOFTGPU).map_err(Failure::new)?,
    };
    let own = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find our own program: {e}")))?;
    let mut command = Command::new(&program);
    command.arg(if paper { PAPER } else { "bench" }).args(args).arg("--mrcuda").arg(own).arg("--driver").arg(driver);
    if !paper {
        // For servers that run already; experiments of papers start their own.
        command.arg("--token").arg(Token::default_path());
    }
    // Servers and jobs that are measured are as its options say.
    let error = command.env(config::INSTEAD, "").exec();
    Err(Failure::new(format!("cannot run {}: {error}", program.display())))
}

/// The value of the option `--driver`, and the other options.
fn without_driver(args: &[OsString]) -> Result<(Option<OsString>, Vec<OsString>), Failure> {
    let (mut driver, mut others, mut left) = (None, Vec::new(), args.iter());
    while let Some(arg) = left.next() {
        if arg == "--driver" {
            driver = Some(left.next().ok_or_else(|| Failure::with_code(2, "--driver needs a value: a path, or soft"))?.clone());
        } else if let Some(value) = arg.to_str().and_then(|a| a.strip_prefix("--driver=")) {
            driver = Some(value.into());
        } else {
            others.push(arg.clone());
        }
    }
    Ok((driver, others))
}
