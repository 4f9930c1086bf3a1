//! Tables: for the terminal, and for the report.

use serde_json::{Value, json};

/// A table with headings; its first column is text, the others are figures.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(title: impl Into<String>, head: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { title: title.into(), head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The text of the table, columns aligned.
    pub(super) fn text(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> = (0..self.head.len())
            .map(|i| lines().filter_map(|l| l.get(i)).map(|c| c.chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = format!("\n{}\n", self.title);
        for line in lines() {
            for (i, (cell, width)) in line.iter().zip(&widths).enumerate() {
                text += &if i == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({"title": self.title, "head": self.head, "rows": self.rows})
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("title", ["name", "us"]);
        table.row(["a", "1.00"]);
        table.row(["longer", "12.00"]);
        assert_eq!(table.text(), "\ntitle\nname       us\na        1.00\nlonger  12.00\n");
    }
}
