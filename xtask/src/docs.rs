//! `cargo xtask docs`: a book of the documentation, made by mdBook, and the documentation of the crates, made by rustdoc.
//!
//! `docs/SUMMARY.md` is the table of contents. The pages link to each other by their paths in the repository, also out of
//! `docs/`, so the book is made from a copy with the same paths.

use crate::error::Error;
use crate::pages::{links, markdown, read};
use crate::step::step;
use ::tests::install;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The table of contents, from the root of the repository.
const CONTENTS: &str = "docs/SUMMARY.md";

/// Directories with files beside the pages, to which pages link.
const FILES: [&str; 3] = ["docs/pictures", "docs/schema", "docs/tutorials"];

/// The documentation of all crates, with what is private to them: most of them are programs.
pub(crate) const RUSTDOC: [&str; 7] =
    ["doc", "--profile", install::PROFILE, "--workspace", "--no-deps", "--document-private-items", "--quiet"];

/// Makes both, in cargo's target directory.
pub(crate) fn docs() -> Result<(), Error> {
    let (root, target) = (install::root(), install::target_directory()?);
    let wrong = wrong_contents(&root)?;
    if !wrong.is_empty() {
        return Err(Error::Found(wrong.join("\n")));
    }
    step("book");
    let installed = || Error::Found("mdbook is not installed: cargo install --locked mdbook".to_owned());
    let book = book(&root, &target)?.ok_or_else(installed)?;
    step("crates");
    let status = install::cargo().args(RUSTDOC).env("CARGO_TARGET_DIR", &target).status();
    if !status.map_err(Error::start("cargo doc"))?.success() {
        return Err(Error::Found("rustdoc failed".to_owned()));
    }
    println!("{}\n{}", book.join("index.html").display(), target.join("doc").display());
    Ok(())
}

/// Makes the book in cargo's target directory, without warnings. Returns its directory; `None` if mdBook is not installed.
pub(crate) fn book(root: &Path, target: &Path) -> Result<Option<PathBuf>, Error> {
    let book = target.join("book");
    copy(root, &book)?;
    let output = match Command::new("mdbook").arg("build").arg(&book).output() {
        Ok(output) => output,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::start("mdbook")(e)),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let wrong: Vec<&str> = said.lines().filter(|line| ["WARN", "ERROR"].iter().any(|level| line.contains(level))).collect();
    if !wrong.is_empty() {
        return Err(Error::Found(wrong.join("\n")));
    }
    Error::unless_success("mdbook", output.status)?;
    Ok(Some(book.join("html")))
}

/// Copies the pages to `book/src`, with their paths, and the table of contents with the paths as seen from there.
fn copy(root: &Path, book: &Path) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::File { path: book.to_owned(), error };
    match std::fs::remove_dir_all(book) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let mut files = markdown(root)?;
    for directory in FILES.map(|directory| root.join(directory)) {
        let entries = std::fs::read_dir(&directory).map_err(Error::file(&directory))?;
        files.extend(
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.extension().is_some_and(|e| e != "md")),
        );
    }
    for file in files {
        let to = book.join("src").join(file.strip_prefix(root).unwrap_or(&file));
        std::fs::create_dir_all(to.parent().unwrap_or(book)).and_then(|()| std::fs::copy(&file, &to)).map_err(failed)?;
    }
    let contents = read(&root.join(CONTENTS))?;
    let moved = contents.replace("](", "](docs/").replace("](docs/../", "](");
    std::fs::remove_file(book.join("src").join(CONTENTS)).map_err(failed)?;
    std::fs::write(book.join("src/SUMMARY.md"), moved).map_err(failed)?;
    std::fs::copy(root.join("docs/book.toml"), book.join("book.toml")).map(drop).map_err(failed)
}

/// What is wrong with the table of contents: pages of `docs/` that it lacks, entries without a page, and pages that it has twice.
pub(crate) fn wrong_contents(root: &Path) -> Result<Vec<String>, Error> {
    let contents = root.join(CONTENTS);
    let text = read(&contents)?;
    let (mut listed, mut wrong) = (BTreeSet::new(), Vec::new());
    for target in text.lines().flat_map(links) {
        let page = plain(&root.join("docs").join(target));
        if !page.is_file() {
            wrong.push(format!("{CONTENTS}: {target} does not exist"));
        } else if !listed.insert(page) {
            wrong.push(format!("{CONTENTS}: {target} is there twice"));
        }
    }
    for page in markdown(root)? {
        let is_ours = page.starts_with(root.join("docs")) && page != contents;
        if is_ours && !listed.contains(&page) {
            wrong.push(format!("{CONTENTS}: {} is missing", page.strip_prefix(root).unwrap_or(&page).display()));
        }
    }
    Ok(wrong)
}

/// The path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_table_of_contents() {
        assert_eq!(wrong_contents(&install::root()).unwrap(), Vec::<String>::new());
    }

    /// The sources of all crates, with texts of several lines as one line.
    fn sources() -> String {
        let root = install::root();
        let (mut text, mut directories) = (String::new(), Vec::new());
        directories.extend(
            std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path().join("src")).filter(|path| path.is_dir()),
        );
        while let Some(directory) = directories.pop() {
            for path in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    text.push_str(&read(&path).unwrap());
                }
            }
        }
        let mut parts = text.split("\\\n");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.trim_start()).replace("\\\"", "\"")
    }

    /// What a row of docs/troubleshooting.md quotes, without the names and numbers for which `…` stands.
    fn quoted(row: &str) -> Vec<&str> {
        let cell = row.strip_prefix("| ").and_then(|row| row.split(" | ").next()).unwrap_or_default();
        let spans = cell.split('`').skip(1).step_by(2);
        spans.flat_map(|span| span.split('…')).map(str::trim).filter(|part| part.len() >= 6).collect()
    }

    #[test]
    fn what_the_page_of_symptoms_quotes_is_printed() {
        assert_eq!(quoted("| `a thing of … is here: …`, or `nothing` | `not this` |"), ["a thing of", "is here:", "nothing"]);
        let (page, sources) = (read(&install::root().join("docs/troubleshooting.md")).unwrap(), sources());
        // The first table has commands.
        let rows = page.lines().skip_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
        let parts: Vec<&str> = rows.flat_map(quoted).collect();
        assert!(parts.len() > 100, "{}", parts.len());
        let gone: Vec<&str> = parts.into_iter().filter(|part| !sources.contains(part)).collect();
        assert_eq!(gone, Vec::<&str>::new(), "no message has these words");
    }

    /// The names in a row that can only be those of tests: words joined by underscores, at least three of them.
    fn tests_named(row: &str) -> impl Iterator<Item = &str> {
        let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        row.split('`').skip(1).step_by(2).filter(move |span| span.chars().all(is_word) && span.matches('_').count() > 1)
    }

    #[test]
    fn every_test_that_pages_name_is_there() {
        let row = "| a | `--option` | `a_file.rs`: `it_is_refused`, `process_vm_readv(2)`, `no_new_privs` |";
        assert_eq!(tests_named(row).collect::<Vec<_>>(), ["it_is_refused", "no_new_privs"]);
        let root = install::root();
        let (mut sources, mut directories) = (String::new(), vec![root.join("tests/system")]);
        for krate in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
            directories.extend(["src", "tests"].map(|name| krate.join(name)).into_iter().filter(|path| path.is_dir()));
        }
        while let Some(directory) = directories.pop() {
            for path in std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    sources.push_str(&read(&path).unwrap());
                }
            }
        }
        let pages = ["docs/security.md", "tests/README.md"].map(|page| read(&root.join(page)).unwrap());
        let page = pages.concat();
        // The last cell, or a sentence that says what tests something.
        let cells = page.lines().filter_map(|line| line.strip_suffix(" |").and_then(|row| row.rsplit(" | ").next()));
        let sentences = page.split("\n\n").filter_map(|paragraph| Some(paragraph.split_once("The tests: ")?.1));
        let named: BTreeSet<&str> = cells.chain(sentences).flat_map(tests_named).collect();
        assert!(named.len() > 100, "{}", named.len());
        let gone: Vec<&&str> = named.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
        assert_eq!(gone, Vec::<&&str>::new(), "there is no such test");
    }

    #[test]
    fn every_variable_is_documented() {
        let readme = read(&install::root().join("README.md")).unwrap();
        let sources = sources();
        let name = |rest: &str| rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').map(|end| rest[..end].to_owned());
        let named: BTreeSet<String> =
            sources.split("\"MRCUDA_").skip(1).filter_map(name).filter(|name| !name.is_empty()).collect();
        // For tests and builds; tests/README.md has those for developers.
        let internal =
            |name: &String| ["FAULT", "TEST", "COVERAGE", "COMMIT", "BIN_DIR", "PROGRAMS"].iter().any(|it| name.starts_with(it));
        let missing: Vec<&String> =
            named.iter().filter(|name| !internal(name) && !readme.contains(&format!("`MRCUDA_{name}`"))).collect();
        assert!(named.len() > 10 && missing.is_empty(), "README.md does not have {missing:?}");
    }

    #[test]
    fn missing_dead_and_repeated_entries_are_found() {
        let root = std::env::temp_dir().join(format!("mrcuda-contents-{}", std::process::id()));
        for directory in ["docs/decisions", "tests"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        for page in ["README.md", "docs/a.md", "docs/decisions/b.md"] {
            std::fs::write(root.join(page), "# Page\n").unwrap();
        }
        let contents = |text: &str| {
            std::fs::write(root.join(CONTENTS), text).unwrap();
            wrong_contents(&root).unwrap()
        };
        assert_eq!(contents("[M](../README.md)\n- [A](a.md)\n  - [B](decisions/b.md)\n"), Vec::<String>::new());
        let wrong = contents("- [A](a.md)\n- [A](a.md)\n- [C](c.md)\n");
        let expected = ["a.md is there twice", "c.md does not exist", "docs/decisions/b.md is missing"];
        assert_eq!(wrong, expected.map(|what| format!("{CONTENTS}: {what}")));
        std::fs::remove_dir_all(root).unwrap();
    }
}
