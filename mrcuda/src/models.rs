//! `mrcuda models fit` and `validate`: fit models to benchmarks, and test their accuracy.

use crate::examples;
use crate::failure::Failure;
use crate::predict;
use crate::table::{Table, say};
use models::check::{GOALS, Relative, WRONG, check};
use models::plot::{Plot, Series, draw};
use models::{Bench, Model, Models};
use std::path::PathBuf;

/// Subcommands of `mrcuda models`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ModelsCommand {
    /// Fit models to benchmarks
    #[command(after_help = examples::FIT)]
    Fit(FitArgs),
    /// Compare models with benchmarks that they were not fitted to; exit code 1 if a model does not hold
    #[command(after_help = examples::VALIDATE)]
    Validate(ValidateArgs),
}

/// Arguments of `mrcuda models fit`.
#[derive(Debug, clap::Args)]
pub(crate) struct FitArgs {
    /// Files that `mrcuda bench` wrote, all on one machine
    #[arg(required = true, value_name = "BENCH.json")]
    benches: Vec<PathBuf>,
    /// File for the models [default: $XDG_CONFIG_HOME/mrcuda/models.json, which `mrcuda plan` reads]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Arguments of `mrcuda models validate`.
#[derive(Debug, clap::Args)]
pub(crate) struct ValidateArgs {
    /// File with the models
    #[arg(value_name = "MODELS.json")]
    models: PathBuf,
    /// Files that `mrcuda bench` wrote, not used for the fit
    #[arg(required = true, value_name = "BENCH.json")]
    benches: Vec<PathBuf>,
    /// Plot predicted against measured times, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Executes the command.
pub(crate) fn models(command: &ModelsCommand) -> Result<(), Failure> {
    match command {
        ModelsCommand::Fit(args) => fit(args),
        ModelsCommand::Validate(args) => validate(args),
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Bench>, Failure> {
    files.iter().map(|f| Bench::read(f)).collect::<Result<_, _>>().map_err(Failure::new)
}

fn fit(args: &FitArgs) -> Result<(), Failure> {
    let benches = read(&args.benches)?;
    let models = models::fit::fit(&benches).map_err(Failure::new)?;
    let out = match &args.out {
        Some(path) => path.clone(),
        None => predict::default_file().ok_or_else(|| Failure::new("HOME is not set; name a file with --out"))?,
    };
    models.write(&out).map_err(Failure::new)?;
    let mut table = Table::new(&["MODEL", "PATH", "SAMPLES", "SECONDS ="]);
    for m in &models.models {
        table.row(vec![m.what.clone(), m.path.clone(), m.samples.to_string(), formula(m)]);
    }
    say(&models.machine.to_string());
    say(&table.render());
    say(&format!("{}: {} models", out.display(), models.models.len()));
    Ok(())
}

/// Formats a model for people.
fn formula(model: &Model) -> String {
    let term = |(name, cost): (&String, &f64)| match name.as_str() {
        _ if *cost == 0.0 => None,
        "once" => Some(format!("{cost:.3e}")),
        name => Some(format!("{cost:.3e} x {name}")),
    };
    let terms: Vec<String> = model.terms.iter().filter_map(term).collect();
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn validate(args: &ValidateArgs) -> Result<(), Failure> {
    let models = Models::read(&args.models).map_err(Failure::new)?;
    let benches = read(&args.benches)?;
    if let Some(other) = benches.iter().find(|b| !b.machine.is_like(&models.machine)) {
        return Err(Failure::new(format!(
            "the models are of another machine: {}; the benchmark: {}",
            models.machine, other.machine
        )));
    }
    let all = check(&models, benches.iter().flat_map(|b| &b.samples));
    let mut table = Table::new(&["MODEL", "PATH", "SAMPLES", "MEAN", "MEDIAN", "P90", "P95", "MAX", ""]);
    for e in &all {
        let Relative { mean, median, p90, p95, max } = e.relative();
        let figures = [mean, median, p90, p95, max].map(percent);
        let verdict = match (e.points.is_empty(), e.holds()) {
            (true, _) => "no such model",
            (_, true) => "holds",
            (_, false) => "WRONG",
        };
        let names = [e.what.clone(), e.path.clone(), e.points.len().to_string()];
        table.row(names.into_iter().chain(figures).chain([verdict.to_owned()]).collect());
    }
    say(&format!("{}\nrelative errors of predictions", models.machine));
    say(&table.render());
    let together = Relative::of(all.iter().flat_map(|e| &e.points));
    say(&format!(
        "all samples together: median {} (goal: {}), p90 {} (goal: {}): {}",
        percent(together.median),
        percent(GOALS.0),
        percent(together.p90),
        percent(GOALS.1),
        if together.is_accurate() { "met" } else { "NOT met" }
    ));
    if let Some(path) = &args.plot {
        let series: Vec<Series> = all.iter().map(|e| Series::new(format!("{} {}", e.what, e.path), e.points.clone())).collect();
        let plot =
            Plot { title: "Predicted and measured", x: "measured, s", y: "predicted, s", diagonal: true, ..Plot::default() };
        draw(path, &plot, &series).map_err(Failure::new)?;
    }
    let wrong = all.iter().filter(|e| !e.holds()).count();
    if wrong == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{wrong} of {} models are missing, or wrong by more than {:.0} % in the mean",
        all.len(),
        WRONG * 100.0
    )))
}
