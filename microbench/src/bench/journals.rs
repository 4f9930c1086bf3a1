//! What recording costs: appending to a journal, as the shim does it at every call that builds state.

use super::goals::Goal;
use super::times::Times;
use super::{Ask, Figures};
use journal::{Record, Role, Writer};
use models::Sample;
use serde_json::json;
use std::time::Instant;

/// Bytes of a typical record's arguments: those of an event.
const TYPICAL: usize = 20;
/// Id of the records: nobody replays them.
const ID: u16 = 1;

/// Appends records of several lengths, many times.
pub(super) fn run(ask: Ask, figures: &mut Figures) -> Result<(), String> {
    let counts: &[u64] = match (ask.validation, ask.quick) {
        (false, false) => &[1_000, 10_000, 100_000],
        (false, true) => &[1_000, 10_000],
        (true, _) => &[3_000, 30_000],
    };
    let lengths: &[usize] = if ask.validation { &[TYPICAL, 512] } else { &[TYPICAL, 256, 1024] };
    println!("\n{:<32}{:>12}{:>12}{:>12}", "appending to the journal", "records", "bytes", "ns each");
    let mut rows = Vec::new();
    for count in counts {
        for length in lengths {
            let mut times = Times::default();
            for _ in 0..if ask.quick { 3 } else { 7 } {
                times.extend([append(*count, *length)?]);
            }
            let each = times.median() / *count as f64;
            println!("{:<32}{count:>12}{length:>12}{each:>12.1}", "");
            rows.push(json!({"records": count, "bytes": length, "ns": each, "n": times.count()}));
            figures.samples.push(Sample {
                what: "record".into(),
                path: "journal".into(),
                terms: [("calls".to_owned(), *count as f64), ("bytes".to_owned(), (*count * *length as u64) as f64)].into(),
                seconds: times.median() / 1e9,
                runs: times.count(),
            });
            if *length == TYPICAL && count == counts.last().unwrap_or(count) && !ask.validation {
                figures.goals.push(Goal::at_most("recording: one append to the journal", each / 1e3, 0.1, "us"));
            }
        }
    }
    figures.parts.insert("record".into(), json!(rows));
    Ok(())
}

/// Nanoseconds for this many records: objects are made, and half of them ended, as programs do.
fn append(count: u64, length: usize) -> Result<u64, String> {
    let failed = |e: journal::JournalError| e.to_string();
    let mut writer = Writer::in_memory().map_err(failed)?;
    let body = vec![7; length];
    let since = Instant::now();
    for seq in 1..=count {
        // Every third record ends what the one before has made.
        let (creates, ends) = if seq % 3 == 0 { (None, Some(seq - 1)) } else { (Some(seq), None) };
        let record = Record {
            seq,
            id: ID,
            role: Role::Plain,
            setting: None,
            device: 0,
            creates: creates.as_slice(),
            ends,
            uses: &[],
            body: &body,
            reply: &[],
        };
        writer.append(&record).map_err(failed)?;
    }
    let took = since.elapsed().as_nanos() as u64;
    Ok(took)
}
