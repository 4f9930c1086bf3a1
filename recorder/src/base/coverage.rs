//! Which functions the program has called and what they have recorded, for `MRCUDA_COVERAGE`.

use crate::base::{config, log};
use std::io::Write;

/// Appends the list of called functions and their records to the file that `MRCUDA_COVERAGE` names.
pub(crate) fn write_report() {
    let Some(path) = config::get().ok().and_then(|c| c.coverage.as_ref()) else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut f| f.write_all(log::called().as_bytes()));
}
