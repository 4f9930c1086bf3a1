//! Whole programs in the patterns of real ones (tests/programs/apps), compared with native runs like in `cargo xtask apps`.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::stage::{Server, Stage};
use crate::error::Error;
use compare::{Mode, Places, Setup, Summary};
use std::path::Path;
use std::time::Duration;

/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Rest between the end of a move and the next one.
const EVERY: Duration = Duration::from_millis(20);
/// Goal for the time of a program in a place, as a multiple of native.
const GOALS: [(Mode, f64); 3] = [(Mode::Local, 1.1), (Mode::Unix, 1.2), (Mode::Tcp, 1.5)];

/// Compares all programs of the directory; small ones on a CPU driver.
pub(super) fn run(
    stage: &Stage,
    servers: &[Server; 2],
    directory: &Path,
    soft: bool,
    ask: Ask,
    figures: &mut Figures,
) -> Result<(), Error> {
    let size = if ask.quick || soft { "small" } else { "large" };
    let programs = match compare::executables(directory, &["--size", size], LIMIT) {
        Ok(programs) if !programs.is_empty() => programs,
        Ok(_) => {
            figures.miss("apps", format!("{} has no programs", directory.display()));
            return Ok(());
        }
        Err(why) => {
            figures.miss("apps", why);
            return Ok(());
        }
    };
    let setup = Setup {
        mrcuda: stage.mrcuda.clone(),
        driver: soft.then(|| stage.driver.clone()),
        gpus: 1,
        directory: stage.directory.clone(),
        token: stage.token(),
        every: EVERY,
    };
    let places = Places::of_servers(servers.each_ref().map(|s| s.tls.as_str()), servers.each_ref().map(|s| s.unix.as_str()));
    let mut summary = Summary::new(&Mode::ALL);
    for program in &programs {
        let result = compare::compare(&setup, &places, program, &Mode::ALL);
        if let Ok(comparison) = &result {
            eprintln!("{comparison}");
        }
        summary.add(&program.name, result);
    }
    println!("\nwhole programs (size {size})\n{summary}");
    for (mode, limit) in GOALS {
        if let Some((_, worst, name)) = summary.ratios(mode) {
            figures.goals.push(Goal::at_most(
                format!("apps, {}: the slowest, {name}, over native", mode.name()),
                worst,
                limit,
                "x",
            ));
        }
    }
    figures.parts.insert("apps".into(), summary.json());
    Ok(())
}
