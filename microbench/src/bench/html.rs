//! The report: one HTML file with all tables and plots in it, which needs nothing else.

use super::table::Table;
use crate::error::Error;
use std::path::{Path, PathBuf};

const STYLE: &str = "body{font:15px/1.45 sans-serif;margin:2em auto;max-width:1150px;padding:0 1em;color:#111;background:#fff}\
h1{font-size:1.5em}h2{font-size:1.15em;margin:2em 0 .4em}table{border-collapse:collapse;font-size:13px}\
th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child{text-align:left}th{border-bottom:2px solid #888}.wide{overflow-x:auto}\
svg{max-width:100%;height:auto;border:1px solid #ddd;margin:1em 0}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(table: &Table) -> String {
    let line = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|row| line(row, "td")).collect();
    format!(
        "<h2>{}</h2>\n<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>{rows}</tbody></table></div>\n",
        escape(&table.title),
        line(&table.head, "th")
    )
}

/// Writes the report; returns where it is.
pub(super) fn write(directory: &Path, about: &[String], tables: &[Table], plots: &[PathBuf]) -> Result<PathBuf, Error> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>mrcuda bench</title><style>{STYLE}</style></head>\n\
         <body><h1>mrcuda bench</h1>\n"
    );
    about.iter().for_each(|line| page += &format!("<p>{}</p>\n", escape(line)));
    tables.iter().for_each(|t| page += &table(t));
    for plot in plots {
        let svg = std::fs::read_to_string(plot).map_err(Error::file(plot))?;
        // Behind an XML declaration, if there is one.
        page += &svg[svg.find("<svg").unwrap_or(0)..];
        page.push('\n');
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
        let page = std::fs::read_to_string(write(&directory, &["a machine".into()], &[one], &[plot]).unwrap()).unwrap();
        assert!(
            page.contains("<h2>a &lt; b</h2>") && page.contains("<td>call &amp; wait</td>") && page.contains("<p>a machine</p>")
        );
        assert!(page.contains("<svg><circle/></svg>") && !page.contains("<?xml"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
