//! The Markdown pages of the repository.

use crate::error::Error;
use std::path::{Path, PathBuf};

/// README and the other pages beside it, those of `docs/` with its directories, and those of `tests/`.
pub(crate) fn markdown(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let (mut files, mut directories) =
        (Vec::new(), vec![(root.to_path_buf(), false), (root.join("docs"), true), (root.join("tests"), true)]);
    while let Some((directory, deep)) = directories.pop() {
        for entry in std::fs::read_dir(&directory).map_err(Error::file(&directory))?.filter_map(Result::ok) {
            let path = entry.path();
            if path.is_dir() && deep {
                directories.push((path, true));
            } else if path.extension().is_some_and(|e| e == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file; an error names the file.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(Error::file(path))
}

/// Targets of the links in a line of Markdown.
pub(crate) fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}
