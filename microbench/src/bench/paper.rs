//! `mrcuda bench paper`: repeats figures and tables of the papers behind mrcuda on this machine, and shows their figures beside ours.

mod apps;
mod catalogue;
mod lab;
mod live;
mod migration;
mod mrcuda;
mod p2p;
mod play;
mod power;
mod rcuda;
mod schedule;

use super::figures::Ask;
use super::html::{self, Section};
use super::machine;
use super::paths::{Bench, Others};
use super::stage::Stage;
use super::table::Table;
use crate::error::Error;
use crate::peer::Controls;
use catalogue::{EXPERIMENTS, Experiment, OMITTED, Paper};
use lab::{Findings, Lab};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `mrcuda bench paper`.
#[derive(Debug, clap::Args)]
pub(crate) struct PaperArgs {
    /// Experiments, or papers: mrcuda, rcuda, p2p, migration [default: all]
    #[arg(value_name = "NAME", value_parser = named)]
    names: Vec<String>,
    /// List the experiments and end
    #[arg(long)]
    list: bool,
    /// Few repetitions and little memory; the figures are rough
    #[arg(long)]
    quick: bool,
    /// Directory of the programs of tests/programs/apps [default: programs/apps beside the directory of mrcuda]
    #[arg(long, value_name = "DIR")]
    apps: Option<PathBuf>,
    /// Directory for paper.json, the plots, and report.html, which contains everything
    #[arg(long, value_name = "DIR", default_value = "mrcuda-paper")]
    out: PathBuf,
    /// The `mrcuda` under measurement
    #[arg(long, hide = true)]
    mrcuda: PathBuf,
    /// CUDA driver: a path, or soft [default: this machine's, or softgpu if it has none]
    #[arg(long)]
    driver: PathBuf,
}

/// Kind and version of the file.
const KIND: &str = "mrcuda-paper";
const VERSION: u64 = 1;
/// GPUs of softgpu, unless its own variable says how many: as many as the experiment with most of them uses.
const SOFT_GPUS: u32 = 3;
const SOFT_GPUS_VARIABLE: &str = "SOFTGPU_DEVICES";

/// A name on the command line.
fn named(text: &str) -> Result<String, String> {
    if chosen(text).next().is_some() {
        return Ok(text.to_owned());
    }
    Err("no experiment or paper has this name; --list lists them".to_owned())
}

/// The experiments that a name means.
fn chosen(name: &str) -> impl Iterator<Item = &'static Experiment> {
    EXPERIMENTS.iter().filter(move |e| e.name == name || e.paper.prefix() == name)
}

/// What an experiment has come to.
struct Repeated {
    experiment: &'static Experiment,
    findings: Findings,
    seconds: u64,
}

/// Runs experiments, prints tables, writes the file, the plots and the page.
pub(crate) fn paper(args: &PaperArgs) -> Result<(), Error> {
    if args.list {
        for experiment in EXPERIMENTS {
            println!("{:<26}{}", experiment.name, experiment.title);
        }
        return Ok(());
    }
    let began = Instant::now();
    let wanted = |e: &&Experiment| args.names.is_empty() || args.names.iter().any(|name| chosen(name).any(|c| c.name == e.name));
    std::fs::create_dir_all(&args.out).map_err(Error::file(&args.out))?;
    let mut stage = Stage::new(&args.mrcuda, &args.driver, None)?;
    if std::env::var_os(SOFT_GPUS_VARIABLE).is_none() {
        stage = stage.with_soft_gpus(SOFT_GPUS);
    }
    let machine = machine::describe(&stage)?;
    let gpus = machine::gpus(&stage)?;
    println!("{machine}, {gpus} GPUs");
    let servers = [stage.server("one")?, stage.server("two")?];
    let mut peer = stage.plain(&["peer", "--directory", &stage.directory.display().to_string()])?;
    let controls = Controls::new(&stage.directory, &peer.line()?)?;
    let ask = Ask { quick: args.quick, validation: false, seconds: 0 };
    let others = Others::default();
    let bench = Bench { stage: &stage, servers: &servers, others: &others, controls: &controls, ask, out: &args.out };
    // bin/ and programs/ of a bundle, release/ and programs/ of a target directory.
    let beside = || Some(args.mrcuda.parent()?.parent()?.join("programs/apps"));
    let apps = args.apps.clone().or_else(beside).unwrap_or_default();
    let lab = Lab { bench, soft: machine.soft, gpus, apps };
    let mut results = Vec::new();
    for experiment in EXPERIMENTS.iter().filter(wanted) {
        println!("\n{}: {}", experiment.name, experiment.title);
        let (since, mut findings) = (Instant::now(), Findings::default());
        if let Err(why) = (experiment.run)(&lab, &mut findings) {
            findings.miss(experiment.name, why);
        }
        for (what, why) in &findings.figures.absent {
            println!("absent: {what}: {why}");
        }
        print!("{}", beside_ours(experiment, &findings).text());
        results.push(Repeated { experiment, findings, seconds: since.elapsed().as_secs() });
    }
    let about = vec![
        format!("{machine}, {gpus} GPUs"),
        format!("{}, mrcuda {}{}", machine::date(), env!("CARGO_PKG_VERSION"), if args.quick { "; --quick: the figures are rough" } else { "" }),
        "All places are on one machine: servers are reached over TLS by loopback and treated as other machines, so that all bytes cross TCP. The papers' \
         figures are of their hardware and programs: compare shapes and shares rather than seconds."
            .to_owned(),
    ];
    let file = json!({
        "kind": KIND,
        "v": VERSION,
        "machine": machine,
        "gpus": gpus,
        "mrcuda": env!("CARGO_PKG_VERSION"),
        "date": machine::date(),
        "seconds": began.elapsed().as_secs(),
        "quick": args.quick,
        "experiments": results.iter().map(Repeated::json).collect::<Vec<_>>(),
    });
    let path = args.out.join("paper.json");
    std::fs::write(&path, format!("{file:#}\n")).map_err(Error::file(&path))?;
    let report = write_page(&args.out, &about, results)?;
    println!("\n{}\n{}: {} s", report.display(), path.display(), began.elapsed().as_secs());
    Ok(())
}

/// The paper's figures beside ours.
fn beside_ours(experiment: &Experiment, findings: &Findings) -> Table {
    let mut table = Table::new("The paper's figures beside ours", ["figure", "in the paper", "here"]);
    for published in experiment.published {
        let ours = findings.ours.get(published.what).cloned().unwrap_or_else(|| "not measured".to_owned());
        table.row([published.what.to_owned(), published.value.to_owned(), ours]);
    }
    table
}

/// What the page says about what a machine needs.
fn needs(experiment: &Experiment) -> String {
    if experiment.needs.is_empty() { String::new() } else { format!(" It needs {}.", experiment.needs) }
}

impl Repeated {
    fn json(&self) -> Value {
        let Repeated { experiment, findings, seconds } = self;
        let published =
            experiment.published.iter().map(|p| json!({"what": p.what, "paper": p.value, "here": findings.ours.get(p.what)}));
        json!({
            "name": experiment.name,
            "paper": experiment.paper.citation(),
            "title": experiment.title,
            "figure": experiment.figure,
            "here": experiment.here,
            "unit": experiment.unit,
            "seconds": seconds,
            "published": published.collect::<Vec<_>>(),
            "absent": findings.figures.absent,
            "plots": findings.plotted,
            "tables": findings.figures.tables.iter().map(Table::json).collect::<Vec<_>>(),
        })
    }

    fn section(self) -> Section {
        let Repeated { experiment, findings, .. } = self;
        let words = vec![beside_ours(experiment, &findings)];
        let mut paragraphs = vec![
            format!("In the paper: {}.", experiment.figure),
            format!("Here: {}.{}", experiment.here, needs(experiment)),
            format!("{} ({}).", experiment.paper.citation(), experiment.paper.hardware()),
        ];
        paragraphs.extend(findings.figures.absent.iter().map(|(what, why)| format!("Absent: {what}: {why}.")));
        Section {
            heading: Some((format!("{}: {}", experiment.name, experiment.title), experiment.name.to_owned())),
            paragraphs,
            words,
            tables: findings.figures.tables,
            plots: findings.figures.plots,
        }
    }
}

/// Writes the page: each experiment, and what is not repeated.
fn write_page(out: &Path, about: &[String], results: Vec<Repeated>) -> Result<PathBuf, Error> {
    let mut omitted = Table::new("Figures and tables that are not repeated", ["paper", "figure or table", "reason"]);
    for paper in Paper::ALL {
        for o in OMITTED.iter().filter(|o| o.paper == paper) {
            omitted.row([paper.prefix(), o.figure, o.reason]);
        }
    }
    let last = Section { words: vec![omitted], ..Section::default() };
    let sections: Vec<Section> = results.into_iter().map(Repeated::section).chain([last]).collect();
    html::write(out, "The papers' experiments with mrcuda", about, &sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_says_what_it_is() {
        for (i, e) in EXPERIMENTS.iter().enumerate() {
            assert!(e.name.strip_prefix(e.paper.prefix()).is_some_and(|rest| rest.starts_with('-')), "{}", e.name);
            assert!(EXPERIMENTS[..i].iter().all(|other| other.name != e.name), "{} is there twice", e.name);
            assert!([e.title, e.figure, e.here, e.unit].iter().all(|text| !text.is_empty()), "{}", e.name);
            assert!(
                !e.published.is_empty() && e.published.iter().all(|p| !p.what.is_empty() && !p.value.is_empty()),
                "{}",
                e.name
            );
        }
        for paper in Paper::ALL {
            assert!(EXPERIMENTS.iter().any(|e| e.paper == paper) && OMITTED.iter().any(|o| o.paper == paper));
            assert!(!paper.citation().is_empty() && !paper.hardware().is_empty());
        }
    }

    #[test]
    fn names_are_of_experiments_and_papers() {
        assert_eq!(chosen("mrcuda").count(), 5);
        assert_eq!(chosen("migration-park").count(), 1);
        assert!(named("p2p").is_ok() && named("p2p-").is_err() && named("").is_err());
    }

    /// A cell of a table in Markdown.
    fn cell(text: &str) -> String {
        text.replace('|', "\\|")
    }

    fn page() -> String {
        let mut page = "# The papers' experiments\n\n\
            mrcuda grew from four papers. `mrcuda bench paper` repeats their figures and tables on one machine, as far as they need no hardware of\n\
            theirs, and writes a page with their figures beside ours. Written by `UPDATE=1 cargo test -p microbench up_to_date`.\n\n    \
            mrcuda bench paper --list                    # all experiments\n    \
            mrcuda bench paper mrcuda-runtime            # one of them\n    \
            mrcuda bench paper migration --out results   # all of one paper\n    \
            mrcuda bench paper --quick                   # all, roughly\n\n\
            It writes `report.html`, which contains everything, `paper.json`, and a plot for each experiment, `NAME.svg`. An experiment takes two to\n\
            three minutes at most on a machine with a GPU, and less than a minute with `--quick`; without a GPU it runs on softgpu, with little memory.\n\
            What a machine lacks is said on the page instead of a figure.\n\n\
            All places are on one machine. Servers are reached over TLS by loopback and are treated as other machines, so that all bytes cross TCP. Links\n\
            of a given rate are proxies. The papers' figures are of their hardware and programs: compare shapes and shares rather than seconds. The names\n\
            of experiments are ours, since our notes of the papers do not number their figures.\n"
            .to_owned();
        for paper in Paper::ALL {
            page += &format!("\n## {}\n\n{} (measured on {}).\n\n", paper.prefix(), paper.citation(), paper.hardware());
            page += "| experiment | figure or table of the paper | here | needs |\n|---|---|---|---|\n";
            for e in EXPERIMENTS.iter().filter(|e| e.paper == paper) {
                page +=
                    &format!("| `{}`: {} | {} | {} | {} |\n", e.name, cell(e.title), cell(e.figure), cell(e.here), cell(e.needs));
            }
            page += "\n| figure that both have | in the paper | experiment |\n|---|---|---|\n";
            for e in EXPERIMENTS.iter().filter(|e| e.paper == paper) {
                e.published.iter().for_each(|p| page += &format!("| {} | {} | `{}` |\n", cell(p.what), cell(p.value), e.name));
            }
            page += "\n| not repeated | reason |\n|---|---|\n";
            OMITTED
                .iter()
                .filter(|o| o.paper == paper)
                .for_each(|o| page += &format!("| {} | {} |\n", cell(o.figure), cell(o.reason)));
        }
        page
    }

    #[test]
    fn the_page_of_the_papers_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/papers.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == page(), "docs/papers.md is old: UPDATE=1 writes it");
    }
}
