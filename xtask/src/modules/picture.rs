//! Pictures of the layers, `docs/pictures/*.svg`: boxes, and arrows that lead down only.

use super::layers;
use super::page::Crate;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Layers of boxes, the highest first, and which box uses which box of a lower layer.
#[derive(Debug, Default)]
pub(super) struct Picture {
    layers: Vec<Vec<String>>,
    uses: BTreeMap<String, Vec<String>>,
}

/// Height of a box, width of a letter in it, and the distances between boxes and between layers, in pixels.
const HEIGHT: usize = 26;
const LETTER: usize = 8;
const GAP: usize = 16;
const LAYER: usize = 76;

impl Picture {
    /// The crates. `dependencies`: those of each crate, without dev-dependencies.
    pub(super) fn of_crates(dependencies: &BTreeMap<String, Vec<String>>) -> Picture {
        // A crate is one layer above the highest of those that it uses. Cargo allows no circles.
        let mut layer_of: BTreeMap<&str, usize> = BTreeMap::new();
        while layer_of.len() < dependencies.len() {
            let known: Vec<_> = dependencies
                .iter()
                .filter(|(name, _)| !layer_of.contains_key(name.as_str()))
                .filter_map(|(name, uses)| {
                    let below: Option<Vec<usize>> = uses.iter().map(|used| layer_of.get(used.as_str()).copied()).collect();
                    Some((name.as_str(), below?.into_iter().max().map_or(0, |layer| layer + 1)))
                })
                .collect();
            assert!(!known.is_empty(), "cargo allows no circles of crates");
            layer_of.extend(known);
        }
        let highest = layer_of.values().max().copied().unwrap_or(0);
        let layer = |n: usize| layer_of.iter().filter(|(_, l)| **l == n).map(|(name, _)| (*name).to_owned()).collect();
        Picture { layers: (0..=highest).rev().map(layer).collect(), uses: dependencies.clone() }.without_implied()
    }

    /// The modules of a crate's root in the layers of a table, with the uses of lower layers.
    pub(super) fn of_modules(of: &Crate, table: &[Vec<&str>]) -> Picture {
        let layer = |name: &str| table.iter().position(|layer| layer.contains(&name));
        let mut uses: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for from in 0..of.graph.files.len() {
            for (to, ..) in of.graph.uses(from) {
                let (from, to) = (layers::module(&of.graph, from), layers::module(&of.graph, to));
                let known = uses.entry(from.to_owned()).or_default();
                if layer(from).zip(layer(to)).is_some_and(|(from, to)| from < to) && !known.iter().any(|name| name == to) {
                    known.push(to.to_owned());
                }
            }
        }
        let layers = table.iter().map(|layer| layer.iter().map(|name| (*name).to_owned()).collect()).collect();
        Picture { layers, uses }.without_implied()
    }

    /// Without the uses that follow from others: a box that uses another one by way of a third needs no arrow of its own.
    fn without_implied(mut self) -> Picture {
        let reaches = |from: &str, to: &str| {
            let (mut stack, mut seen) = (vec![from], Vec::new());
            while let Some(name) = stack.pop() {
                if !seen.contains(&name) {
                    seen.push(name);
                    stack.extend(self.uses.get(name).into_iter().flatten().map(String::as_str));
                }
            }
            seen.contains(&to)
        };
        let implied = |to: &String, uses: &[String]| uses.iter().any(|other| other != to && reaches(other, to));
        let kept = |uses: &Vec<String>| uses.iter().filter(|to| !implied(to, uses)).cloned().collect();
        let uses = self.uses.iter().map(|(from, uses)| (from.clone(), kept(uses))).collect();
        self.uses = uses;
        self
    }

    /// The picture as SVG. Boxes of a layer stand in the order of those that use them, so that few arrows cross.
    pub(super) fn svg(&self) -> String {
        let box_width = |name: &str| name.chars().count() * LETTER + GAP;
        let layer_width = |layer: &[String]| layer.iter().map(|name| box_width(name) + GAP).sum::<usize>() + GAP;
        let width = self.layers.iter().map(|layer| layer_width(layer)).max().unwrap_or(0);
        let (mut centre, mut boxes) = (BTreeMap::<&str, (usize, usize)>::new(), String::new());
        for (number, layer) in self.layers.iter().enumerate() {
            let mut ordered: Vec<&str> = layer.iter().map(String::as_str).collect();
            ordered.sort_by_cached_key(|name| {
                let users = self.uses.iter().filter(|(_, uses)| uses.iter().any(|used| used == name));
                let at: Vec<usize> = users.filter_map(|(user, _)| Some(centre.get(user.as_str())?.0)).collect();
                at.iter().sum::<usize>().checked_div(at.len()).unwrap_or(width)
            });
            let space = (width - layer_width(layer)) / (layer.len() + 1);
            let (mut x, y) = (GAP + space, GAP + number * LAYER);
            for name in ordered {
                let wide = box_width(name);
                centre.insert(name, (x + wide / 2, y));
                _ = write!(
                    boxes,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{HEIGHT}\" rx=\"4\"/>\n<text x=\"{}\" y=\"{}\">{name}</text>\n",
                    x + wide / 2,
                    y + 17
                );
                x += wide + GAP + space;
            }
        }
        let mut arrows = String::new();
        for (from, to) in self.uses.iter().flat_map(|(from, uses)| uses.iter().map(move |to| (from, to))) {
            if let (Some((x, y)), Some((to_x, to_y))) = (centre.get(from.as_str()), centre.get(to.as_str())) {
                _ = writeln!(arrows, "<path d=\"M{x} {} L{to_x} {}\"/>", y + HEIGHT, to_y - 1);
            }
        }
        let height = 2 * GAP + HEIGHT + self.layers.len().saturating_sub(1) * LAYER;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"13\">\n\
             <style>rect {{ fill: #eef3fa; stroke: #345; }} text {{ text-anchor: middle; fill: #123; }} path {{ stroke: #89a; marker-end: url(#a); }}</style>\n\
             <marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" style=\"fill: #89a; stroke: none; marker-end: none\"/></marker>\n\
             <rect width=\"{width}\" height=\"{height}\" style=\"fill: white; stroke: none\"/>\n{arrows}{boxes}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_lead_down_and_say_nothing_twice() {
        let uses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = [("a", uses(&["b", "c"])), ("b", uses(&["c"])), ("c", uses(&[])), ("d", uses(&["c"]))];
        let picture = Picture::of_crates(&all.map(|(name, uses)| (name.to_owned(), uses)).into());
        assert_eq!(picture.layers, [uses(&["a"]), uses(&["b", "d"]), uses(&["c"])]);
        assert_eq!(picture.uses["a"], ["b"]);
        let svg = picture.svg();
        assert_eq!((svg.matches("<text").count(), svg.matches("<path d=\"M").count()), (4, 4), "{svg}");
    }
}
