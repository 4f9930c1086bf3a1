//! From the start of a program to the end of its first kernel.

use super::figures::Figures;
use super::paths::Bench;
use super::table::Table;
use super::times::Times;
use crate::error::Error;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Starts programs in turns.
pub(super) fn run(bench: &Bench<'_>, figures: &mut Figures) -> Result<(), Error> {
    let Bench { stage, servers, others, ask, .. } = *bench;
    let rounds = if ask.quick { 2 } else { 5 };
    let paths = others.starting(servers);
    let mut times: Vec<Times> = vec![Times::default(); paths.len()];
    for _ in 0..rounds {
        for (path, times) in paths.iter().zip(&mut times) {
            let since = Instant::now();
            let first = || {
                let mut process = path.start(stage, &["client", "--first"], &[])?;
                process.answer()?;
                let took = since.elapsed();
                process.finish().map(|()| took)
            };
            match first() {
                Ok(took) => times.extend([took.as_nanos() as u64]),
                Err(why) => figures.miss(&format!("start on {}", path.name), why),
            }
        }
    }
    let mut table = Table::new("Start to first kernel done, milliseconds", ["path", "p50", "max"]);
    let mut kept = Map::new();
    for (path, times) in paths.iter().zip(&times) {
        if times.is_empty() {
            table.row([path.name.as_str(), "absent", ""]);
            continue;
        }
        let p: Value = times.percentiles(1);
        let ms = |key: &str| format!("{:.1}", p[key].as_f64().unwrap_or(0.0) / 1e6);
        table.row([path.name.clone(), ms("p50"), ms("max")]);
        kept.insert(path.name.clone(), p);
    }
    figures.table(table);
    figures.parts.insert("start".into(), json!({"unit": "ns", "paths": kept}));
    Ok(())
}
