//! `docs/modules.md`.

use super::graph::Graph;
use std::fmt::Write;

/// A crate and who uses whom in it.
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) graph: Graph,
}

/// Lines are not longer.
const WIDTH: usize = 112;

const INTRODUCTION: &str = "\
# Modules

`cargo xtask modules` writes this page from the sources; `cargo xtask lint` fails if it is not current.

## Crates

A crate uses the crates below it to which an arrow leads, and may use what these use. Dev-dependencies are left out.

![The crates in layers](pictures/crates.svg)

## Modules of the recorder

The layers are those of [CONTRIBUTING.md](../CONTRIBUTING.md#layout). A module uses those of lower layers to which an arrow leads, and
may use what these use. Uses within a layer are not drawn.

![The modules of the recorder in layers](pictures/recorder.svg)

## Files

For each crate this list shows the source files in layers. A file uses only files of lower layers, except inside a circle: files that
use each other, directly or by way of others. A circle stands in its layer as `(circle 1)`, and its files are listed below.

A file *uses* another if it names something in it by a path (`use crate::…`, `super::…`, `child::…`). A name that a module only
passes on (`pub use`) counts for those who use it. Tests, comments and `mod` declarations do not count. Uses without a path are
not seen: calls of methods, and names that come by `use super::*` from a third file. A file is named by its path in `src`.

The number of files in circles may only go down; `xtask/src/modules.rs` has the limits. `cargo xtask modules --circles CRATE`
lists the uses that make the circles of a crate.

";

/// The page.
pub(super) fn page(crates: &[Crate]) -> String {
    let mut page = INTRODUCTION.to_owned();
    page += "| crate | files | layers | circles | files in circles |\n|---|---|---|---|---|\n";
    for Crate { name, graph } in crates {
        let (files, layers, circles) = (graph.files.len(), graph.layers().len(), graph.circles().len());
        _ = writeln!(page, "| `{name}` | {files} | {layers} | {circles} | {} |", graph.in_circles());
    }
    for Crate { name, graph } in crates.iter().filter(|c| c.graph.files.len() > 1) {
        _ = write!(page, "\n## {name}\n\n{}", layers(graph));
        for (number, circle) in graph.circles().iter().enumerate() {
            let names = circle.iter().map(|f| format!("`{}`", graph.files[*f]));
            let start = format!("Circle {}, {} files: ", number + 1, circle.len());
            _ = write!(page, "\n{}", wrapped(start, "", names));
        }
    }
    page
}

/// The layers of a crate, the highest first, as indented text.
fn layers(graph: &Graph) -> String {
    let circles = graph.circles();
    let mut text = String::new();
    for (number, layer) in graph.layers().iter().enumerate().rev() {
        let names = layer.iter().map(|group| match circles.iter().position(|c| c == group) {
            Some(circle) => format!("(circle {})", circle + 1),
            None => graph.files[group[0]].clone(),
        });
        text += &wrapped(format!("    {number:2}  "), "        ", names);
    }
    text
}

/// Names with commas between them in lines of limited length.
fn wrapped(start: String, next: &str, names: impl Iterator<Item = String>) -> String {
    let (mut text, mut line) = (String::new(), start);
    let mut names = names.peekable();
    while let Some(mut name) = names.next() {
        if names.peek().is_some() {
            name.push(',');
        }
        if line.chars().count() + name.chars().count() > WIDTH {
            text += line.trim_end();
            text.push('\n');
            line = next.to_owned();
        }
        line += &name;
        line.push(' ');
    }
    text += line.trim_end();
    text.push('\n');
    text
}

/// Each use between files of one circle: `FILE:LINE uses FILE: PATH`.
pub(super) fn uses_in_circles(graph: &Graph) -> Vec<String> {
    let mut lines = Vec::new();
    for circle in graph.circles() {
        for from in &circle {
            for (to, line, path) in graph.uses(*from).filter(|(to, ..)| circle.contains(to)) {
                lines.push(format!("{}.rs:{line} uses {}.rs: {path}", graph.files[*from], graph.files[to]));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let mut graph = Graph::new(["lib", "a", "b", "c"].map(str::to_owned).to_vec());
        for (from, to) in [(0, 1), (1, 2), (2, 1), (2, 3)] {
            graph.add(from, to, 7, "x::y");
        }
        graph
    }

    #[test]
    fn layers_are_shown_from_the_top() {
        assert_eq!(layers(&graph()), "     2  lib\n     1  (circle 1)\n     0  c\n");
        let page = page(&[Crate { name: "k".to_owned(), graph: graph() }]);
        assert!(page.contains("| `k` | 4 | 3 | 1 | 2 |\n") && page.ends_with("\nCircle 1, 2 files: `a`, `b`\n"), "{page}");
    }

    #[test]
    fn uses_in_circles_are_listed() {
        assert_eq!(uses_in_circles(&graph()), ["a.rs:7 uses b.rs: x::y", "b.rs:7 uses a.rs: x::y"]);
    }

    #[test]
    fn lines_are_wrapped() {
        let text = wrapped("start ".to_owned(), "  ", (0..40).map(|n| format!("name{n:02}")));
        assert!(text.lines().count() == 3 && text.lines().all(|l| l.len() <= WIDTH) && text.ends_with("name39\n"), "{text}");
    }
}
