//! Writes the trace of a move to a file, for Perfetto.

use crate::failure::Failure;
use crate::table::note;
use control::Trace;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file, opened before the move is requested: a move should not happen in vain for a trace that cannot be written.
#[derive(Debug)]
pub(crate) struct File {
    file: std::fs::File,
    path: PathBuf,
}

impl File {
    /// Opens the file; what it has stays until a trace is written.
    pub(crate) fn open(path: &Path) -> Result<File, Failure> {
        let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| Failure::new(format!("cannot write the trace to {}: {e}", path.display())))?;
        Ok(File { file, path: path.to_owned() })
    }

    /// Writes the trace, if the job has sent one.
    pub(crate) fn write(mut self, trace: Option<&Trace>) -> Result<(), Failure> {
        let Some(trace) = trace else {
            let none = "no trace: the move was requested without one, is not over, or the job does not keep it any more";
            return Err(Failure::new(none));
        };
        let text = serde_json::to_vec(trace).map_err(Failure::new)?;
        let written = self.file.set_len(0).and_then(|()| self.file.write_all(&text)).and_then(|()| self.file.write_all(b"\n"));
        let path = self.path.display();
        written.map_err(|e| Failure::new(format!("cannot write the trace to {path}: {e}")))?;
        note(&format!("the trace is in {path} (ui.perfetto.dev shows it)"));
        Ok(())
    }
}
