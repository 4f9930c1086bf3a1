//! The kill matrix: every named point × every process involved × every action.
//!
//! In each cell real processes run `mill`; when one of them passes the point it asks the injector and waits, the action
//! is applied to the victim, and the answer lets all continue. Then the job must end with the native output, or with a
//! CUDA error if the victim was where it ran; and nothing may be left of it: no process, no GPU memory, no socket, no
//! file.

mod cell;
mod injector;
mod left;
mod run;

pub use cell::{Action, Cell, Door, Spot, Victim, Way};
use cuda_api::lock::{into_inner, lock};
pub use injector::StrikeError;
pub use left::{LeftError, gpu_bytes};
pub use run::{CellError, End};
use run::{native, run};

use crate::random::Random;
use crate::transport::Transport;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How each cell ended.
pub type Ends = BTreeMap<Cell, Result<End, CellError>>;

/// Brings cells into an order that the seed gives: those that take long do not come all at once.
pub fn shuffle(cells: &mut [Cell], seed: u64) {
    let mut draw = Random::new(seed);
    for i in (1..cells.len()).rev() {
        cells.swap(i, draw.below(i as u64 + 1) as usize);
    }
}

/// Tries cells, some at a time: most of them mostly wait. `transport`: how servers are reached where a cell says TCP. `tell` is called with the outcome of each.
///
/// # Errors
/// The program of the cells fails natively.
pub fn sweep(
    cells: &[Cell],
    seed: u64,
    at_once: usize,
    transport: Transport,
    directory: &Path,
    tell: impl Fn(&Cell, &Result<End, CellError>, Duration) + Sync,
) -> Result<Ends, CellError> {
    let native = native(directory)?;
    let waiting = Mutex::new(cells.iter());
    let ends: Mutex<Ends> = Mutex::default();
    let next = || lock(&waiting).next();
    std::thread::scope(|s| {
        for _ in 0..at_once.max(1) {
            s.spawn(|| {
                while let Some(cell) = next() {
                    let since = Instant::now();
                    let end = run(*cell, seed, transport, &native, directory);
                    tell(cell, &end, since.elapsed());
                    lock(&ends).insert(*cell, end);
                }
            });
        }
    });
    Ok(into_inner(ends))
}

/// How the cells of a matrix ended, as tables: one for each way, a row for each point, a column for each victim and action.
pub fn tables(ends: &Ends) -> String {
    let mut text = String::new();
    for way in Way::ALL {
        let cells: Vec<(&Cell, &Result<End, CellError>)> = ends.iter().filter(|(c, _)| c.way == way).collect();
        if cells.is_empty() {
            continue;
        }
        let columns: Vec<(Victim, Vec<Action>)> = Victim::ALL
            .into_iter()
            .map(|v| {
                let has = |a: &Action| cells.iter().any(|(c, _)| c.victim == v && c.action == *a);
                (v, Action::ALL.into_iter().filter(has).collect::<Vec<_>>())
            })
            .filter(|(_, actions)| !actions.is_empty())
            .collect();
        let mut head = format!("| {} |", way.name());
        let mut rule = "|---|".to_owned();
        for (victim, actions) in &columns {
            let names: Vec<&str> = actions.iter().map(|a| a.name()).collect();
            let _ = write!(head, " {}: {} |", victim.name(), names.join(" "));
            rule.push_str("---|");
        }
        let _ = writeln!(text, "{head}\n{rule}");
        for point in faults::Point::ALL {
            if !cells.iter().any(|(c, _)| c.point == *point) {
                continue;
            }
            let mut row = format!("| {} |", point.name());
            for (victim, actions) in &columns {
                let sign = |a: &Action| {
                    let cell = Cell { way, point: *point, victim: *victim, action: *a };
                    match ends.get(&cell) {
                        None => "·",
                        Some(Ok(End::Native)) => "=",
                        Some(Ok(End::Error)) => "E",
                        Some(Ok(End::Killed)) => "K",
                        Some(Err(_)) => "✗",
                    }
                };
                let signs: Vec<&str> = actions.iter().map(sign).collect();
                let _ = write!(row, " {} |", signs.join(" "));
            }
            let _ = writeln!(text, "{row}");
        }
        text.push('\n');
    }
    let count = |want: fn(&Result<End, CellError>) -> bool| ends.values().filter(|e| want(e)).count();
    let _ = writeln!(
        text,
        "{} cells: {} ended with native's output (=), {} with a CUDA error (E), {} jobs were killed (K), {} failed (✗); · has no meaning",
        ends.len(),
        count(|e| matches!(e, Ok(End::Native))),
        count(|e| matches!(e, Ok(End::Error))),
        count(|e| matches!(e, Ok(End::Killed))),
        count(Result::is_err)
    );
    text
}
