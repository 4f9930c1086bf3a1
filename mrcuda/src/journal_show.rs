use crate::failure::Failure;
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs { file: std::path::PathBuf }
pub(crate) fn show(args: &ShowArgs) -> Result<(), Failure> { let _ = &args.file; Ok(()) }
