//! Who uses whom: circles, and layers.

use std::collections::BTreeMap;

/// Files and the uses between them.
#[derive(Debug)]
pub(super) struct Graph {
    /// Names of the files.
    pub(super) files: Vec<String>,
    /// What each file uses, with the line of the first use and what it names.
    uses: Vec<BTreeMap<usize, (usize, String)>>,
}

impl Graph {
    /// No uses.
    pub(super) fn new(files: Vec<String>) -> Graph {
        Graph { uses: vec![BTreeMap::new(); files.len()], files }
    }

    /// A use in a line of a file. One of itself is none.
    pub(super) fn add(&mut self, from: usize, to: usize, line: usize, name: &str) {
        if from != to {
            self.uses[from].entry(to).or_insert_with(|| (line, name.to_owned()));
        }
    }

    /// The files that a file uses, each with the line of the first use and what it names.
    pub(super) fn uses(&self, file: usize) -> impl Iterator<Item = (usize, usize, &str)> {
        self.uses[file].iter().map(|(to, (line, name))| (*to, *line, name.as_str()))
    }

    /// The files in groups: those that use each other in a circle together, every other one alone. A group comes after all
    /// groups that it uses.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        let mut search =
            Search { graph: self, number: vec![0; self.files.len()], stack: Vec::new(), visited: 0, groups: Vec::new() };
        for file in 0..self.files.len() {
            if search.number[file] == 0 {
                search.visit(file);
            }
        }
        search.groups
    }

    /// The circles, the largest first.
    pub(super) fn circles(&self) -> Vec<Vec<usize>> {
        let mut circles: Vec<_> = self.groups().into_iter().filter(|g| g.len() > 1).collect();
        circles.sort_by_key(|c| (std::cmp::Reverse(c.len()), c[0]));
        circles
    }

    /// Files that are in a circle.
    pub(super) fn in_circles(&self) -> usize {
        self.circles().iter().map(Vec::len).sum()
    }

    /// The groups in layers. A group uses groups of lower layers only, at least one of the next lower one.
    pub(super) fn layers(&self) -> Vec<Vec<Vec<usize>>> {
        let mut layers: Vec<Vec<Vec<usize>>> = Vec::new();
        let mut layer_of = vec![0; self.files.len()];
        for group in self.groups() {
            let used = group.iter().flat_map(|f| self.uses[*f].keys()).filter(|to| !group.contains(to));
            let layer = used.map(|to| layer_of[*to] + 1).max().unwrap_or(0);
            group.iter().for_each(|f| layer_of[*f] = layer);
            if layers.len() <= layer {
                layers.resize(layer + 1, Vec::new());
            }
            layers[layer].push(group);
        }
        layers.iter_mut().for_each(|layer| layer.sort());
        layers
    }
}

/// Files that were visited and are in a group already count as this.
const GROUPED: usize = usize::MAX;

/// Tarjan's search for strongly connected components.
struct Search<'a> {
    graph: &'a Graph,
    /// In which order files were visited, from 1; 0: not yet.
    number: Vec<usize>,
    visited: usize,
    stack: Vec<usize>,
    groups: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Visits a file and all that it uses. The lowest number of a file without a group that can be reached.
    fn visit(&mut self, file: usize) -> usize {
        self.visited += 1;
        let own = self.visited;
        self.number[file] = own;
        let start = self.stack.len();
        self.stack.push(file);
        let mut lowest = own;
        for to in self.graph.uses[file].keys() {
            lowest = lowest.min(if self.number[*to] == 0 { self.visit(*to) } else { self.number[*to] });
        }
        if lowest < own {
            return lowest;
        }
        let mut group = self.stack.split_off(start);
        group.iter().for_each(|f| self.number[*f] = GROUPED);
        group.sort();
        self.groups.push(group);
        GROUPED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: usize, uses: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::new((0..files).map(|n| n.to_string()).collect());
        uses.iter().for_each(|(from, to)| graph.add(*from, *to, 1, ""));
        graph
    }

    #[test]
    fn circles_are_found() {
        // 0 → 1 → 2 → 0, 3 ⇄ 4, which use the first circle; 5 uses both and is used by nobody; 6 is alone.
        let g = graph(7, &[(0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (4, 1), (5, 3), (5, 0)]);
        assert_eq!(g.circles(), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(g.in_circles(), 5);
        assert_eq!(g.layers(), [vec![vec![0, 1, 2], vec![6]], vec![vec![3, 4]], vec![vec![5]]]);
    }

    #[test]
    fn two_ways_to_the_same_file_are_no_circle() {
        let g = graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3), (0, 0)]);
        assert_eq!(g.circles(), Vec::<Vec<usize>>::new());
        assert_eq!(g.layers(), [vec![vec![3]], vec![vec![1], vec![2]], vec![vec![0]]]);
    }
}
