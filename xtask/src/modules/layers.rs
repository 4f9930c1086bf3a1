//! The layers of the recorder, as CONTRIBUTING.md lists them: which file is in which, and which uses go up.

use super::graph::Graph;

/// The crate whose layers are listed.
pub(super) const CRATE: &str = "recorder";

/// The page with the table.
pub(super) const PAGE: &str = "CONTRIBUTING.md";

/// First line of the table.
const HEAD: &str = "| layer | contents |";

/// The layers of the table, the highest first: the modules of the root that the first cell of each row names.
pub(super) fn table(page: &str) -> Vec<Vec<&str>> {
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    let first = rows.map(|row| row.trim_start_matches('|').split('|').next().unwrap_or_default());
    first.map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect()
}

/// The module of the root that a file belongs to.
pub(super) fn module(graph: &Graph, file: usize) -> &str {
    graph.files[file].split('/').next().unwrap_or_default()
}

/// What is wrong with the files of a crate: those in no layer, names in the table that are no module, and uses of a higher layer. The root
/// declares the others, and is in no layer.
pub(super) fn wrong(graph: &Graph, layers: &[Vec<&str>]) -> Vec<String> {
    let module = |file: usize| module(graph, file);
    let number = |name: &str| layers.iter().position(|layer| layer.contains(&name));
    let names = layers.iter().flatten().filter(|name| (0..graph.files.len()).all(|file| module(file) != **name));
    let mut wrong: Vec<String> =
        names.map(|name| format!("{PAGE}: `{name}` is in the table of layers, and is no module")).collect();
    for from in (0..graph.files.len()).filter(|from| graph.files[*from] != "lib") {
        let name = &graph.files[from];
        let Some(layer) = number(module(from)) else {
            wrong.push(format!("{CRATE}: {name} is in no layer of the table in {PAGE}"));
            continue;
        };
        let up = graph.uses(from).filter(|(to, ..)| number(module(*to)).is_some_and(|used| used < layer));
        wrong.extend(up.map(|(to, line, what)| {
            format!("{CRATE}: {name}.rs:{line} uses {}.rs ({what}), which is in a higher layer", graph.files[to])
        }));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| layer | contents |\n|---|---|\n| `calls`, `moves` | what `functions` mean |\n| `base` | the rest |\n\n| `no` |\n";

    fn graph(files: &[&str], uses: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::new(files.iter().map(|f| (*f).to_owned()).collect());
        uses.iter().for_each(|(from, to)| graph.add(*from, *to, 7, "crate::x"));
        graph
    }

    #[test]
    fn layers_are_the_first_cells_of_the_table() {
        assert_eq!(table(TABLE), [vec!["calls", "moves"], vec!["base"]]);
        assert!(table("no table").is_empty());
    }

    #[test]
    fn uses_go_down_or_stay_in_the_layer() {
        let files = ["lib", "base", "base/log", "calls/stream", "moves"];
        assert_eq!(wrong(&graph(&files, &[(0, 3), (3, 1), (3, 4), (4, 3), (1, 2), (2, 1)]), &table(TABLE)), Vec::<String>::new());
        let up = wrong(&graph(&files, &[(2, 3)]), &table(TABLE));
        assert_eq!(up, ["recorder: base/log.rs:7 uses calls/stream.rs (crate::x), which is in a higher layer"]);
    }

    #[test]
    fn every_module_is_in_the_table_and_the_other_way_round() {
        let found = wrong(&graph(&["lib", "base", "calls", "random"], &[]), &table(TABLE));
        let moves = "CONTRIBUTING.md: `moves` is in the table of layers, and is no module";
        assert_eq!(found, [moves, "recorder: random is in no layer of the table in CONTRIBUTING.md"]);
    }
}
