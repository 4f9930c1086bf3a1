//! The modules of a crate, and what the paths in them stand for.

use super::graph::Graph;
use super::source::{self, Module, Path};
use crate::error::Error;
use std::collections::BTreeMap;

/// The modules of a crate by their paths, which are empty for the root.
#[derive(Debug)]
pub(super) struct Tree {
    modules: BTreeMap<Path, Entry>,
    /// Names of the files, without `.rs`.
    files: Vec<String>,
    /// Where the macros are that the root has.
    macros: BTreeMap<String, Path>,
}

#[derive(Debug)]
struct Entry {
    /// Which file it is in.
    file: usize,
    module: Module,
}

/// No chain of re-exports is longer; one that is leads round in a circle.
const MAX_CHAIN: usize = 16;

impl Tree {
    /// Reads a crate from its root file. `text` gives the text of a file, if it is there; paths are relative to the root's
    /// directory.
    ///
    /// # Errors
    /// A file cannot be read, is missing, or is not Rust.
    pub(super) fn read(root: &str, text: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Tree, Error> {
        let mut tree = Tree { modules: BTreeMap::new(), files: Vec::new(), macros: BTreeMap::new() };
        let mut left = vec![(Path::new(), vec![root.to_owned()])];
        while let Some((path, candidates)) = left.pop() {
            let mut found = None;
            for name in candidates {
                if let Some(text) = text(&name)? {
                    found = Some((name, text));
                    break;
                }
            }
            let (name, text) = found.ok_or_else(|| format!("no file for the module {}", path.join("::")))?;
            let module = source::read(&text).map_err(|e| format!("{name}: {e}"))?;
            let file = tree.files.len();
            tree.files.push(name.trim_end_matches(".rs").to_owned());
            tree.insert(path, file, module, &mut left);
        }
        Ok(tree)
    }

    /// Adds a module with those in braces inside it; the modules in files of their own are `left` to do.
    fn insert(&mut self, path: Path, file: usize, mut module: Module, left: &mut Vec<(Path, Vec<String>)>) {
        for (name, inner) in std::mem::take(&mut module.inline) {
            self.insert(child(&path, &name), file, inner, left);
        }
        for name in &module.files {
            let path = child(&path, name);
            left.push((path.clone(), vec![format!("{}.rs", path.join("/")), format!("{}/mod.rs", path.join("/"))]));
        }
        for name in &module.exported_macros {
            self.macros.insert(name.clone(), path.clone());
        }
        self.modules.insert(path, Entry { file, module });
    }

    /// Who uses whom.
    pub(super) fn graph(&self) -> Graph {
        // The files in the order of their names, the root first.
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order[1..].sort_by_key(|f| &self.files[*f]);
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, file)| place[*file] = at);
        let mut graph = Graph::new(order.iter().map(|f| self.files[*f].clone()).collect());
        for (from, entry) in &self.modules {
            for (path, line) in &entry.module.named {
                if let Some(to) = self.resolve(from, path, 0) {
                    graph.add(place[entry.file], place[self.modules[&to].file], *line, &path.join("::"));
                }
            }
        }
        graph
    }

    /// The module that a path names, or that has what it names; none if that is in no file of this crate.
    fn resolve(&self, from: &Path, path: &[String], chain: usize) -> Option<Path> {
        let (first, mut rest) = path.split_first()?;
        if chain > MAX_CHAIN {
            return None;
        }
        let mut at = match first.as_str() {
            "crate" => Path::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            name if self.modules.contains_key(&child(from, name)) => child(from, name),
            name => {
                let alias = self.modules[from].module.aliases.get(name).filter(|alias| alias[..] != path[..1])?;
                return self.resolve(from, &join(alias, rest), chain + 1);
            }
        };
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at = parent(&at)?;
            } else if self.modules.contains_key(&child(&at, name)) {
                at = child(&at, name);
            } else {
                return self.item(at, name, after, chain);
            }
            rest = after;
        }
        Some(at)
    }

    /// The module that has an item which another names as its own.
    fn item(&self, at: Path, name: &String, after: &[String], chain: usize) -> Option<Path> {
        let module = &self.modules[&at].module;
        if module.items.contains(name) {
            return Some(at);
        }
        if let Some(owner) = self.macros.get(name).filter(|_| at.is_empty()) {
            return Some(owner.clone());
        }
        if let Some(alias) = module.aliases.get(name) {
            return self.resolve(&at, &join(alias, after), chain + 1);
        }
        let globs = module.globs.iter().filter_map(|glob| self.resolve(&at, glob, chain + 1));
        for target in globs {
            let target =
                self.item(target.clone(), name, after, chain + 1).filter(|_| chain < MAX_CHAIN && self.has(&target, name));
            if target.is_some() {
                return target;
            }
        }
        // Something that a macro makes.
        Some(at)
    }

    /// Whether a module declares a name.
    fn has(&self, at: &Path, name: &String) -> bool {
        let module = &self.modules[at].module;
        module.items.contains(name) || module.aliases.contains_key(name)
    }
}

fn child(path: &Path, name: &str) -> Path {
    join(path, &[name.to_owned()])
}

fn parent(path: &Path) -> Option<Path> {
    path.split_last().map(|(_, parent)| parent.to_vec())
}

fn join(a: &[String], b: &[String]) -> Path {
    [a, b].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses between the files of a crate: `from > to`.
    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let graph =
            Tree::read(files[0].0, |name| Ok(files.iter().find(|f| f.0 == name).map(|f| f.1.to_owned()))).unwrap().graph();
        let name = |n: usize| graph.files[n].as_str();
        (0..graph.files.len()).flat_map(|f| graph.uses(f).map(move |(to, ..)| format!("{} > {}", name(f), name(to)))).collect()
    }

    #[test]
    fn paths_lead_to_the_deepest_module() {
        let found = uses(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod c; use crate::b::D; fn f() { c::g() }"),
            ("a/c.rs", "use super::super::b; fn g() {}"),
            ("b/mod.rs", "pub struct D; fn h() { crate::a::c::g(); crate::z(); std::mem::drop(1) }"),
        ]);
        assert_eq!(found, ["a > a/c", "a > b/mod", "a/c > b/mod", "b/mod > lib", "b/mod > a/c"]);
    }

    #[test]
    fn a_declaration_of_a_module_is_no_use() {
        assert_eq!(uses(&[("lib.rs", "mod a;"), ("a.rs", "mod b; fn f() {}"), ("a/b.rs", "use super::f;")]), ["a/b > a"]);
    }

    #[test]
    fn reexports_lead_to_the_owner() {
        let found = uses(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use a::*; pub use cudarc::sys;"),
            ("a.rs", "mod d; pub use d::{A, B as G}; pub fn i() {}"),
            ("a/d.rs", "pub struct A; pub struct B;"),
            ("b.rs", "use crate::A; use crate::sys::X;"),
            ("c.rs", "use crate::{a, i}; fn f() { a::G::new() }"),
        ]);
        assert_eq!(found, ["b > a/d", "c > a", "c > a/d"]);
    }

    #[test]
    fn names_of_crates_are_no_modules() {
        assert_eq!(
            uses(&[("lib.rs", "mod a; use ::a::{B, c}; fn f() { ::a::d(); c::e(); B::g() }"), ("a.rs", "")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn exported_macros_lead_to_their_file() {
        let found = uses(&[
            ("main.rs", "mod a; mod b;"),
            ("a.rs", "#[macro_export] macro_rules! m { () => { $crate::a::f() } }\npub fn f() {}"),
            ("b.rs", "use crate::m;"),
        ]);
        assert_eq!(found, ["b > a"]);
    }

    #[test]
    fn modules_in_braces_belong_to_their_file() {
        let found = uses(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod inner { use super::f; use super::super::b::g; mod deep; } fn f() {}"),
            ("a/inner/deep.rs", "use super::super::f;"),
            ("b.rs", "use crate::a::inner::x;"),
        ]);
        assert_eq!(found, ["a > b", "a/inner/deep > a", "b > a"]);
    }

    #[test]
    fn names_that_lead_round_end() {
        let found =
            uses(&[("lib.rs", "mod a; mod b; use a::X;"), ("a.rs", "pub use crate::b::X;"), ("b.rs", "pub use crate::a::X;")]);
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(uses(&[("lib.rs", "mod a; use a::X;"), ("a.rs", "pub use super::*;")]), ["lib > a"]);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let read = |name: &str| Ok((name == "lib.rs").then(|| "mod gone;".to_owned()));
        assert_eq!(Tree::read("lib.rs", read).unwrap_err().to_string(), "no file for the module gone");
    }
}
