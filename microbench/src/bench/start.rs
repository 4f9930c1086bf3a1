//! From the start of a program to the end of its first kernel.

use super::figures::{Ask, Figures};
use super::stage::{Server, Stage, home};
use super::times::Times;
use serde_json::{Map, Value, json};
use std::time::Instant;

/// Starts programs in turns.
pub(super) fn run(stage: &Stage, servers: &[Server; 2], ask: Ask, figures: &mut Figures) -> Result<(), String> {
    let rounds = if ask.quick { 2 } else { 5 };
    let paths = [
        ("native", None),
        ("in-process", Some("local")),
        ("helper", Some("helper")),
        ("shm", Some(servers[0].unix.as_str())),
        ("tls", Some(home(servers))),
    ];
    let mut times: Vec<Times> = vec![Times::default(); paths.len()];
    for _ in 0..rounds {
        for ((path, place), times) in paths.iter().zip(&mut times) {
            let since = Instant::now();
            let first = || {
                let mut process = match place {
                    None => stage.native(&["client", "--first"])?,
                    Some(place) => stage.job(place, &["client", "--first"])?,
                };
                process.answer()?;
                let took = since.elapsed();
                process.finish().map(|()| took)
            };
            match first() {
                Ok(took) => times.extend([took.as_nanos() as u64]),
                Err(why) => figures.miss(&format!("start on {path}"), &why),
            }
        }
    }
    println!("\n{:<32}{:>12} {:>9}", "start to first kernel done, ms", "p50", "max");
    let mut kept = Map::new();
    for ((path, _), times) in paths.iter().zip(&times) {
        if times.is_empty() {
            println!("{path:<32}{:>22}", "absent");
            continue;
        }
        let p: Value = times.percentiles(1);
        let ms = |key: &str| p[key].as_f64().unwrap_or(0.0) / 1e6;
        println!("{path:<32}{:>12.1} {:>9.1}", ms("p50"), ms("max"));
        kept.insert((*path).to_owned(), p);
    }
    figures.parts.insert("start".into(), json!({"unit": "ns", "paths": kept}));
    Ok(())
}
