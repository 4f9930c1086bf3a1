//! `mrcuda calls`: every driver function and how mrcuda supports it. All information comes from the rows.

use crate::failure::Failure;
use crate::table::{Table, say, say_as_it_is};
use cuda_api::calls::{Row, rows};
use cuda_api::versions::{self, Symbol};
use cuda_api::{Class, How};
use serde::Serialize;
use std::collections::HashSet;

/// Calls that the test suite has exercised; tests/system/coverage.rs verifies the list.
const COVERAGE: &str = include_str!("../../tests/coverage.txt");

/// Arguments of `mrcuda calls`.
#[derive(Debug, clap::Args)]
pub(crate) struct CallsArgs {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// One line of the list.
#[derive(Debug)]
struct Line {
    name: &'static str,
    /// First CUDA version with this meaning of the symbol, as 1000 × major + 10 × minor.
    version: i32,
    class: &'static str,
    recorded: bool,
    tested: bool,
    /// How the row is executed; for an irregular one also why it is irregular.
    how: String,
    /// What the function does; for an unsupported one, why it is unsupported.
    reason: String,
}

/// A function as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Printed<'a> {
    name: &'a str,
    /// The first CUDA version with this meaning of the symbol.
    version: String,
    /// What the function does to the state of a job; `refused` or `absent` if it is not supported.
    class: &'a str,
    /// Whether it is in the journal.
    recorded: bool,
    /// `tested`: tests of the whole system have called it; otherwise `untested`.
    state: &'a str,
    /// How it is carried out.
    how: &'a str,
    /// What it does, or why it is not supported.
    reason: &'a str,
}

/// Prints the list.
pub(crate) fn calls(args: &CallsArgs) -> Result<(), Failure> {
    let lines = lines(&tested());
    if args.json {
        let printed: Vec<Printed<'_>> = lines.iter().map(Line::printed).collect();
        say_as_it_is(&serde_json::to_string(&printed).map_err(Failure::new)?);
        return Ok(());
    }
    let mut table = Table::new(&["NAME", "SINCE", "CLASS", "RECORDED", "STATE", "HOW", "REASON"]);
    for line in &lines {
        let recorded = if line.recorded { "yes" } else { "no" };
        table.row(vec![
            line.name.to_owned(),
            line.version_text(),
            line.class.to_owned(),
            recorded.to_owned(),
            line.state().to_owned(),
            line.how.clone(),
            line.reason.clone(),
        ]);
    }
    say(&table.render());
    let count = |class: &str| lines.iter().filter(|l| l.class == class).count();
    let tested = lines.iter().filter(|l| l.tested).count();
    say(&format!("{} functions: {tested} tested, {} refused, {} absent", lines.len(), count("refused"), count("absent")));
    Ok(())
}

impl Line {
    fn state(&self) -> &'static str {
        if self.tested { "tested" } else { "untested" }
    }

    fn version_text(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn printed(&self) -> Printed<'_> {
        let (name, class, recorded, state) = (self.name, self.class, self.recorded, self.state());
        Printed { name, version: self.version_text(), class, recorded, state, how: &self.how, reason: &self.reason }
    }
}

/// Names in the coverage list; `#` starts a comment.
fn tested() -> HashSet<&'static str> {
    COVERAGE.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect()
}

/// All lines: one for each symbol with a row, then the base functions without one.
fn lines(tested: &HashSet<&'static str>) -> Vec<Line> {
    let all: Vec<&Row> = rows().collect();
    let mut lines: Vec<Line> = all
        .iter()
        .map(|row| Line {
            name: row.name,
            version: versions::symbols().iter().find(|s| s.symbol == row.name).map_or(0, |s| s.since),
            class: row.class.name(),
            recorded: row.class.recorded(),
            tested: tested.contains(row.name),
            how: row.reason.map_or_else(|| row.how.name().to_owned(), |why| format!("irregular: {why}")),
            reason: reason(row),
        })
        .collect();
    let carried: HashSet<&str> =
        all.iter().filter_map(|row| versions::symbols().iter().find(|s| s.symbol == row.name)).map(|s| s.base).collect();
    lines.extend(versions::bases().into_iter().filter(|base| !carried.contains(base)).map(|base| Line {
        name: base,
        version: first(base).map_or(0, |s| s.since),
        class: "absent",
        recorded: false,
        tested: false,
        how: "absent".to_owned(),
        reason: "not declared: a program that asks for it gets the answer that the driver has no such function".to_owned(),
    }));
    lines
}

/// The oldest symbol of a base function.
fn first(base: &str) -> Option<&'static Symbol> {
    versions::symbols().iter().filter(|s| s.base == base).min_by_key(|s| s.since)
}

fn reason(row: &Row) -> String {
    let doc = row.doc.trim();
    match (row.how, row.class) {
        (How::Refused, _) | (_, Class::Refused) => format!("refused: {doc}"),
        _ => doc.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_base_function_and_every_row_is_listed_once() {
        let lines = lines(&tested());
        let names: HashSet<_> = lines.iter().map(|l| l.name).collect();
        assert_eq!(names.len(), lines.len());
        for row in rows() {
            assert!(names.contains(row.name), "{}", row.name);
        }
        for base in versions::bases() {
            let symbols: Vec<_> = versions::symbols().iter().filter(|s| s.base == base).collect();
            assert!(symbols.iter().any(|s| names.contains(s.symbol)) || names.contains(base), "{base}");
        }
        assert!(lines.iter().all(|l| l.version >= 2000), "a function without a version");
    }

    #[test]
    fn every_base_function_has_a_row() {
        let absent: Vec<&str> = lines(&tested()).iter().filter(|l| l.class == "absent").map(|l| l.name).collect();
        assert!(absent.is_empty(), "{absent:?}");
    }

    #[test]
    fn only_what_tests_called_is_tested() {
        let none = lines(&HashSet::new());
        assert!(none.iter().all(|l| l.state() == "untested"));
        let one = lines(&HashSet::from(["cuInit"]));
        assert_eq!(one.iter().filter(|l| l.tested).map(|l| l.name).collect::<Vec<_>>(), ["cuInit"]);
    }

    #[test]
    fn at_least_half_of_what_is_carried_out_is_declared_by_its_row() {
        let how = |how: &[How]| rows().filter(|row| how.contains(&row.how)).count();
        let (declared, irregular) = (how(&[How::Send, How::Wait, How::Answer]), how(&[How::Irregular]));
        assert!(declared > 2 * irregular, "{declared} rows are declarative, {irregular} irregular");
        assert!(rows().all(|row| row.reason.is_some() == (row.how == How::Irregular)));
    }

    /// The expected contents of the page that lists all functions.
    fn page() -> String {
        let lines = lines(&tested());
        let count = |what: fn(&Line) -> bool| lines.iter().filter(|l| what(l)).count();
        let how = |how: &[How]| rows().filter(|row| how.contains(&row.how)).count();
        let mut page = format!(
            "# Driver functions\n\nWhat mrcuda makes of each function of CUDA 13.0: the output of `mrcuda calls`. \
             Written by `UPDATE=1 cargo test -p mrcuda page`.\n\n\
             {} functions: {} carried out, {} of them called by the tests of the whole system; {} refused with \
             `CUDA_ERROR_NOT_SUPPORTED`, {} absent.\n\n\
             Of those carried out, {} are declared by their rows: their argument kinds say what the program passes and \
             receives (`send`, `wait`: the place carries the row out; `answer`: the job's process does). {} are irregular, \
             each for the reason in its row, and {} (`bare`) work before `cuInit` and use no place.\n\n\
             | function | since | class | recorded | how | state | what it does, or why it is refused |\n\
             |---|---|---|---|---|---|---|\n",
            lines.len(),
            count(|l| !matches!(l.class, "refused" | "absent")),
            count(|l| l.tested),
            count(|l| l.class == "refused"),
            count(|l| l.class == "absent"),
            how(&[How::Send, How::Wait, How::Answer]),
            how(&[How::Irregular]),
            how(&[How::Bare]),
        );
        for l in &lines {
            let recorded = if l.recorded { "yes" } else { "no" };
            page.push_str(&format!(
                "| `{}` | {} | {} | {recorded} | {} | {} | {} |\n",
                l.name,
                l.version_text(),
                l.class,
                l.how,
                l.state(),
                l.reason.replace('|', "\\|")
            ));
        }
        page
    }

    #[test]
    fn the_page_of_all_functions_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/calls.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == page(), "docs/calls.md is old: UPDATE=1 writes it");
    }

    #[test]
    fn the_coverage_list_names_rows_only() {
        let names: HashSet<_> = rows().map(|r| r.name).collect();
        for name in tested() {
            assert!(names.contains(name), "tests/coverage.txt names {name}, which has no row");
        }
    }
}
