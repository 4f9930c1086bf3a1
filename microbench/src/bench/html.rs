//! The report: one HTML file with all tables and plots in it, which needs nothing else.

use super::table::Table;
use crate::error::Error;
use std::path::{Path, PathBuf};

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:1150px;padding:0 1em;color:#111;background:#fff}\
h1{font-size:1.5em}h2{font-size:1.15em;margin:2em 0 .4em}table{border-collapse:collapse;font-size:13px}\
th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child{text-align:left}th{border-bottom:2px solid #888}.wide{overflow-x:auto}\
svg{max-width:100%;height:auto;border:1px solid #ddd;margin:1em 0}h3{font-size:1em;margin:1.5em 0 .4em}\
.words td,.words th{text-align:left;white-space:normal;vertical-align:top}";

/// A section of the report.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Its heading, and its name in links.
    pub(super) heading: Option<(String, String)>,
    pub(super) paragraphs: Vec<String>,
    /// Tables of words, whose lines may be long.
    pub(super) words: Vec<Table>,
    pub(super) tables: Vec<Table>,
    pub(super) plots: Vec<PathBuf>,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(table: &Table, class: &str, level: u32) -> String {
    let line = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|row| line(row, "td")).collect();
    format!(
        "<h{level}>{}</h{level}>\n<div class=\"wide {class}\"><table>\n<thead>{}</thead>\n<tbody>{rows}</tbody></table></div>\n",
        escape(&table.title),
        line(&table.head, "th")
    )
}

impl Section {
    fn html(&self) -> Result<String, Error> {
        // Tables are below the section's own heading.
        let level = if self.heading.is_some() { 3 } else { 2 };
        let mut text = String::new();
        if let Some((heading, name)) = &self.heading {
            text += &format!("<h2 id=\"{}\">{}</h2>\n", escape(name), escape(heading));
        }
        self.paragraphs.iter().for_each(|line| text += &format!("<p>{}</p>\n", escape(line)));
        self.words.iter().for_each(|t| text += &table(t, "words", level));
        self.tables.iter().for_each(|t| text += &table(t, "", level));
        for plot in &self.plots {
            let svg = std::fs::read_to_string(plot).map_err(Error::file(plot))?;
            // Behind an XML declaration, if there is one.
            text += &svg[svg.find("<svg").unwrap_or(0)..];
            text.push('\n');
        }
        Ok(text)
    }
}

/// Links to the sections, if there are several with headings.
fn contents(sections: &[Section]) -> String {
    let headings: Vec<&(String, String)> = sections.iter().filter_map(|s| s.heading.as_ref()).collect();
    if headings.len() < 2 {
        return String::new();
    }
    let link = |(heading, name): &(String, String)| format!("<li><a href=\"#{}\">{}</a></li>\n", escape(name), escape(heading));
    format!("<ul>\n{}</ul>\n", headings.into_iter().map(link).collect::<String>())
}

/// Writes the report; returns where it is.
pub(super) fn write(directory: &Path, title: &str, about: &[String], sections: &[Section]) -> Result<PathBuf, Error> {
    let title = escape(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n"
    );
    about.iter().for_each(|line| page += &format!("<p>{}</p>\n", escape(line)));
    page += &contents(sections);
    for section in sections {
        page += &section.html()?;
    }
    page += "</body></html>\n";
    let path = directory.join("report.html");
    std::fs::write(&path, page).map_err(Error::file(&path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_everything_in_it() {
        let directory = std::env::temp_dir().join(format!("mrcuda-report-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let plot = directory.join("plot.svg");
        std::fs::write(&plot, "<?xml version=\"1.0\"?><svg><circle/></svg>").unwrap();
        let mut one = Table::new("a < b", ["what", "us"]);
        one.row(["call & wait", "1.0"]);
        let mut words = Table::new("said", ["what"]);
        words.row(["long & wide"]);
        let section = Section {
            heading: Some(("Moves > all".into(), "moves".into())),
            paragraphs: vec!["x < y".into()],
            words: vec![words],
            tables: vec![one],
            plots: vec![plot],
        };
        let other = Section { heading: Some(("Other".into(), "other".into())), ..Section::default() };
        let page = write(&directory, "a bench", &["a machine".into()], &[section, other, Section::default()]).unwrap();
        let page = std::fs::read_to_string(page).unwrap();
        assert!(
            page.contains("<h3>a &lt; b</h3>") && page.contains("<td>call &amp; wait</td>") && page.contains("<p>a machine</p>")
        );
        assert!(page.contains("<h2 id=\"moves\">Moves &gt; all</h2>") && page.contains("<p>x &lt; y</p>"));
        assert!(page.contains("<li><a href=\"#moves\">Moves &gt; all</a></li>\n<li><a href=\"#other\">"));
        assert!(page.contains("wide words") && page.contains("<td>long &amp; wide</td>"));
        assert!(page.contains("<svg><circle/></svg>") && !page.contains("<?xml"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
