//! `cargo xtask modules`: which files of a crate use which, in layers, and which use each other in a circle or against the layers that
//! CONTRIBUTING.md lists.
//!
//! | file | contents |
//! |---|---|
//! | `source` | what one file declares and names, without comments, strings and tests |
//! | `tree` | the files of a crate, and what a path in one of them stands for |
//! | `graph` | circles and layers |
//! | `layers` | the layers of the recorder |
//! | `page` | `docs/modules.md` |
//! | `picture` | `docs/pictures/*.svg` |

mod graph;
mod layers;
mod page;
mod picture;
mod source;
mod tree;

use crate::error::Error;
use crate::pages;
use ::tests::install;
use clap::Args;
use page::Crate;
use picture::Picture;
use std::collections::BTreeMap;
use std::path::Path;

/// So many files of a crate are in circles; none of a crate that is not listed. A ratchet: the numbers only go down.
const LIMITS: &[(&str, usize)] = &[];

/// The page and its pictures, from the root of the repository.
const PAGE: &str = "docs/modules.md";
const CRATES: &str = "docs/pictures/crates.svg";
const RECORDER: &str = "docs/pictures/recorder.svg";

#[derive(Debug, Args)]
pub(crate) struct ModulesArgs {
    /// Write nothing: fail if docs/modules.md or a picture is not current, if other numbers of files are in circles than
    /// xtask/src/modules.rs says, or if a file of the recorder uses a higher layer of CONTRIBUTING.md
    #[arg(long)]
    check: bool,
    /// List the uses that make the circles of a crate, with the lines of their first occurrence
    #[arg(long, value_name = "CRATE", conflicts_with = "check")]
    circles: Option<String>,
}

pub(crate) fn modules(args: &ModulesArgs) -> Result<(), Error> {
    let root = install::root();
    let crates = read(&root)?;
    if let Some(name) = &args.circles {
        let found = crates.iter().find(|c| c.name == *name).ok_or_else(|| format!("no crate is named {name}"))?;
        page::uses_in_circles(&found.graph).iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    if args.check {
        return check_crates(&root, &crates);
    }
    for (name, text) in written(&root, &crates)? {
        let path = root.join(name);
        std::fs::write(&path, text).map_err(Error::file(&path))?;
    }
    check_crates(&root, &crates)
}

/// Fails if docs/modules.md or a picture is not current, if other numbers of files are in circles than [`LIMITS`] says, or if a file of the recorder is
/// in no layer or uses a higher one.
pub(crate) fn check() -> Result<(), Error> {
    let root = install::root();
    check_crates(&root, &read(&root)?)
}

fn check_crates(root: &Path, crates: &[Crate]) -> Result<(), Error> {
    let mut wrong = wrong_limits(crates, LIMITS);
    let page = pages::read(&root.join(layers::PAGE))?;
    let recorder = crates.iter().filter(|c| c.name == layers::CRATE);
    wrong.extend(recorder.flat_map(|c| layers::wrong(&c.graph, &layers::table(&page))));
    for (name, text) in written(root, crates)? {
        if std::fs::read_to_string(root.join(name)).unwrap_or_default() != text {
            wrong.push(format!("{name} is not current: run cargo xtask modules"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Found(wrong.join("\n"))) }
}

/// The page and the pictures, each with its name.
fn written(root: &Path, crates: &[Crate]) -> Result<[(&'static str, String); 3], Error> {
    let mut dependencies = BTreeMap::new();
    for Crate { name, .. } in crates {
        let manifest = pages::read(&root.join(name).join("Cargo.toml"))?;
        let mut used: Vec<String> = dependencies_of(&manifest).map(str::to_owned).collect();
        used.retain(|used| crates.iter().any(|c| c.name == *used));
        dependencies.insert(name.clone(), used);
    }
    let contributing = pages::read(&root.join(layers::PAGE))?;
    let recorder = crates.iter().find(|c| c.name == layers::CRATE).ok_or("there is no recorder")?;
    let recorder = Picture::of_modules(recorder, &layers::table(&contributing)).svg();
    Ok([(PAGE, page::page(crates)), (CRATES, Picture::of_crates(&dependencies).svg()), (RECORDER, recorder)])
}

/// The names in the section of a manifest for dependencies of the crate itself.
fn dependencies_of(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1).take_while(|line| !line.starts_with('['));
    section.filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty() && !name.starts_with('#'))
}

/// The crates of the workspace, in the order of its manifest.
fn read(root: &Path) -> Result<Vec<Crate>, Error> {
    let path = root.join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
    let mut crates = Vec::new();
    for name in members(&manifest) {
        let directory = root.join(name).join("src");
        let main = ["lib.rs", "main.rs"].into_iter().find(|f| directory.join(f).is_file());
        let main = main.ok_or_else(|| format!("{} has neither lib.rs nor main.rs", directory.display()))?;
        let read = |file: &str| match std::fs::read_to_string(directory.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::file(&directory.join(file))(e)),
        };
        let graph = tree::Tree::read(main, read).map_err(|e| format!("{name}: {e}"))?.graph();
        crates.push(Crate { name: name.to_owned(), graph });
    }
    Ok(crates)
}

/// The directories that a workspace's manifest lists as members.
fn members(manifest: &str) -> impl Iterator<Item = &str> {
    let list = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(list, _)| list);
    list.split(',').map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty())
}

/// What is wrong with the limits.
fn wrong_limits(crates: &[Crate], limits: &[(&str, usize)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for c in crates {
        let (now, limit) = (c.graph.in_circles(), limits.iter().find(|(name, _)| *name == c.name).map_or(0, |(_, n)| *n));
        if now > limit {
            let name = &c.name;
            wrong
                .push(format!("{name}: {now} files are in circles, the limit is {limit} (cargo xtask modules --circles {name})"));
        } else if now < limit {
            wrong
                .push(format!("{}: only {now} files are in circles: lower the limit of {limit} in xtask/src/modules.rs", c.name));
        }
    }
    let unknown = limits.iter().filter(|(name, _)| crates.iter().all(|c| c.name != *name));
    wrong.extend(unknown.map(|(name, _)| format!("{name} has a limit in xtask/src/modules.rs, and is no crate")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::graph::Graph;
    use super::*;

    fn a_crate(name: &str, uses: &[(usize, usize)]) -> Crate {
        let mut graph = Graph::new((0..3).map(|n| format!("f{n}")).collect());
        uses.iter().for_each(|(from, to)| graph.add(*from, *to, 1, ""));
        Crate { name: name.to_owned(), graph }
    }

    #[test]
    fn limits_only_go_down() {
        let crates = [a_crate("straight", &[(0, 1)]), a_crate("round", &[(0, 1), (1, 0)])];
        assert_eq!(wrong_limits(&crates, &[("round", 2)]), Vec::<String>::new());
        for (limits, what) in [
            (&[("round", 1)][..], "round: 2 files are in circles, the limit is 1"),
            (&[], "round: 2 files are in circles, the limit is 0"),
            (&[("round", 3)], "lower the limit of 3"),
            (&[("round", 2), ("straight", 1)], "straight: only 0 files"),
            (&[("round", 2), ("gone", 1)], "gone has a limit"),
        ] {
            let wrong = wrong_limits(&crates, limits);
            assert!(wrong.len() == 1 && wrong[0].contains(what), "{what}: {wrong:?}");
        }
    }

    #[test]
    fn dependencies_are_those_of_the_crate_itself() {
        let manifest =
            "[dependencies]\na.workspace = true\n# why\nb-c = { workspace = true }\n\n[dev-dependencies]\nd.workspace = true\n";
        assert_eq!(dependencies_of(manifest).collect::<Vec<_>>(), ["a", "b-c"]);
    }

    #[test]
    fn members_are_the_list_in_the_manifest() {
        let manifest = "[workspace]\nmembers = [\"a\", \"b-c\",\n  \"d\"]\ndefault-members = [\"a\"]\n";
        assert_eq!(members(manifest).collect::<Vec<_>>(), ["a", "b-c", "d"]);
    }
}
