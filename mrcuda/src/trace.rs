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
    /// It was not there before, and has nothing yet.
    is_new: bool,
}

impl File {
    /// Opens the file; what it has stays until a trace is written.
    pub(crate) fn open(path: &Path) -> Result<File, Failure> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).truncate(false);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => (options.create(true).open(path), false),
            made => (made, true),
        };
        let file = file.map_err(|e| Failure::new(format!("cannot write the trace to {}: {e}", path.display())))?;
        Ok(File { file, path: path.to_owned(), is_new })
    }

    /// Writes the trace, if the job has sent one.
    pub(crate) fn write(mut self, trace: Option<&Trace>) -> Result<(), Failure> {
        let Some(trace) = trace else {
            let none = "no trace: the move was requested without one, is not over, or the job does not keep it any more";
            return Err(Failure::new(none));
        };
        let text = serde_json::to_vec(trace).map_err(Failure::new)?;
        self.is_new = false;
        let written = self.empty().and_then(|()| self.file.write_all(&text)).and_then(|()| self.file.write_all(b"\n"));
        let path = self.path.display();
        written.map_err(|e| Failure::new(format!("cannot write the trace to {path}: {e}")))?;
        note(&format!("the trace is in {path} (ui.perfetto.dev shows it)"));
        Ok(())
    }

    /// Pipes and terminals have nothing that could be removed.
    fn empty(&self) -> std::io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.is_new {
            // An empty file is a nuisance, not a failure of the request.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_trace_is_written_to_files_and_pipes_and_leaves_no_empty_file() {
        let path = std::env::temp_dir().join(format!("mrcuda-trace-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        drop(File::open(&path).unwrap());
        assert!(!path.exists(), "the move was refused");
        assert!(File::open(&path).unwrap().write(None).is_err() && !path.exists());
        std::fs::write(&path, "x".repeat(10_000)).unwrap();
        drop(File::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap().len(), 10_000, "what was there stays");
        File::open(&path).unwrap().write(Some(&Trace::default())).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("}\n") && !text.contains('x'), "{text}");
        std::fs::remove_file(&path).unwrap();

        let (mut reader, writer) = std::io::pipe().unwrap();
        let pipe = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        File::open(Path::new(&pipe)).unwrap().write(Some(&Trace::default())).unwrap();
        drop(writer);
        let mut through = String::new();
        reader.read_to_string(&mut through).unwrap();
        assert_eq!(through, text);
    }
}
