//! `mrcuda bench`: replaces itself with the measuring program, which lies in the same directory.

use crate::failure::Failure;
use crate::{drivers, layout};
use rcuda_forwarder::Token;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The measuring program.
const MICROBENCH: &str = "microbench";

/// Starts it with the given options. A machine without a CUDA driver is measured with softgpu, and the output says so.
pub(crate) fn bench(args: &[OsString]) -> Result<(), Failure> {
    let program = layout::beside(MICROBENCH)
        .map_err(|e| Failure::new(format!("{e}: only `mrcuda bench` needs it; copy it from where mrcuda was built")))?;
    let driver = match drivers::from_environment().or_else(|| drivers::find().map(Into::into)) {
        Some(text) => drivers::named(&text).map_err(Failure::new)?,
        None => layout::beside(layout::SOFTGPU).map_err(Failure::new)?,
    };
    let own = std::env::current_exe().map_err(|e| Failure::new(format!("cannot find our own program: {e}")))?;
    let error = Command::new(&program)
        .arg("bench")
        .args(args)
        .arg("--mrcuda")
        .arg(own)
        .arg("--driver")
        .arg(driver)
        .arg("--token")
        .arg(Token::default_path())
        .exec();
    Err(Failure::new(format!("cannot run {}: {error}", program.display())))
}
