//! `cargo xtask lint`: format, clippy (also of the code for RDMA, where that can be built), rustdoc, the links and the table of contents of the documentation, the circles and layers of modules,
//! spelling, and the licences of what we use. `.ci/run` runs it before the tests.

use crate::docs::RUSTDOC;
use crate::error::Error;
use crate::pages::{links, markdown, read};
use crate::step::step;
use crate::{docs, modules, rdma};
use ::tests::install;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// What programs check that are not part of Rust: name, program, arguments. They are run where they are installed.
const TOOLS: [(&str, &str, &[&str]); 2] = [
    ("spelling", "typos", &["--format", "brief"]),
    (
        "licences and sources",
        "cargo-deny",
        &["deny", "--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"],
    ),
];

/// The feature `rdma` is used in one crate.
const CLIPPY_RDMA: [&str; 13] = [
    "clippy",
    "--profile",
    install::PROFILE,
    "--package",
    "rcuda-forwarder",
    "--features",
    "rdma",
    "--lib",
    "--tests",
    "--quiet",
    "--",
    "-D",
    "warnings",
];

/// Runs every check, also after one has failed, and names those that failed.
pub(crate) fn lint() -> Result<(), Error> {
    let root = install::root();
    let mut failed = Vec::new();
    step("format");
    if !cargo(&["fmt", "--all", "--check"], &[])? {
        failed.push("format (cargo fmt --all)");
    }
    // The profile of the tests, as everywhere: what macros and build scripts need is compiled once. All targets, but not programs without
    // tests once more as tests, as `--all-targets` would.
    step("clippy");
    if !cargo(
        &[
            "clippy",
            "--profile",
            install::PROFILE,
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--examples",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )? {
        failed.push("clippy");
    }
    step("clippy of connections over RDMA");
    match rdma::missing_to_build().as_slice() {
        [] if !cargo(&CLIPPY_RDMA, &[])? => failed.push("clippy with RDMA"),
        [] => {}
        missing => println!("skipped: to build with RDMA needs: apt-get install {}", missing.join(" ")),
    }
    step("rustdoc");
    if !cargo(&RUSTDOC, &[("RUSTDOCFLAGS", OsStr::new("-D warnings"))])? {
        failed.push("rustdoc");
    }
    step("links of the documentation");
    let dead = dead_links(&root)?;
    if !dead.is_empty() {
        dead.iter().for_each(|link| println!("{link}"));
        failed.push("links");
    }
    step("table of contents");
    let wrong = docs::wrong_contents(&root)?;
    if !wrong.is_empty() {
        wrong.iter().for_each(|entry| println!("{entry}"));
        failed.push("docs/SUMMARY.md");
    }
    step("circles and layers of modules");
    if let Err(wrong) = modules::check() {
        println!("{wrong}");
        failed.push("modules");
    }
    for (what, program, args) in TOOLS {
        step(what);
        match Command::new(program).current_dir(&root).args(args).status() {
            Ok(status) if status.success() => {}
            Ok(_) => failed.push(what),
            Err(e) if e.kind() == ErrorKind::NotFound => println!("skipped: {program} is not installed"),
            Err(e) => return Err(Error::start(program)(e)),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Found(format!("lint: failed: {}", failed.join(", ")))) }
}

/// Whether a cargo command succeeds. Its output is not captured.
fn cargo(args: &[&str], env: &[(&str, &OsStr)]) -> Result<bool, Error> {
    let status = install::cargo().args(args).envs(env.iter().copied()).status();
    status.map(|status| status.success()).map_err(Error::start(&format!("cargo {}", args[0])))
}

/// Links between our Markdown files whose file or heading does not exist: `FILE:LINE: TARGET`.
fn dead_links(root: &Path) -> Result<Vec<String>, Error> {
    let mut dead = Vec::new();
    for file in markdown(root)? {
        let text = read(&file)?;
        for (number, line) in text.lines().enumerate() {
            for target in links(line) {
                if !exists(&file, target) {
                    let name = file.strip_prefix(root).unwrap_or(&file).display();
                    dead.push(format!("{name}:{}: {target} does not exist", number + 1));
                }
            }
        }
    }
    Ok(dead)
}

/// Whether a link of a file leads somewhere. Links to other sites are not followed.
fn exists(from: &Path, target: &str) -> bool {
    if target.contains("://") {
        return true;
    }
    let (path, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let file = if path.is_empty() { from.to_path_buf() } else { from.parent().unwrap_or(from).join(path) };
    match heading {
        None => file.exists(),
        Some(heading) => read(&file).is_ok_and(|text| text.lines().any(|line| anchor(line).is_some_and(|a| a == heading))),
    }
}

/// The anchor that a heading gets: lower case, spaces as hyphens, other signs left out.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let sign = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c),
        _ => None,
    };
    Some(title.trim().to_lowercase().chars().filter_map(sign).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_links_of_the_documentation_lead_somewhere() {
        assert_eq!(dead_links(&install::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn dead_links_are_found() {
        let directory = std::env::temp_dir().join(format!("mrcuda-links-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let page = directory.join("page.md");
        std::fs::write(&page, "# A page\n\n## What `it` says, twice\n").unwrap();
        let line = "[a](page.md), [b](page.md#what-it-says-twice), [c](#a-page), [d](https://x.example), [e](other.md), [f](#no)";
        let dead: Vec<&str> = links(line).filter(|target| !exists(&page, target)).collect();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(dead, ["other.md", "#no"]);
    }
}
