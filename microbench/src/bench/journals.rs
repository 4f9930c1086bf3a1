//! The cost of recording: appending to a journal, as the recorder does at every state-building call.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::times::Times;
use journal::{Record, Role, Writer};
use models::Sample;
use serde_json::json;
use std::time::Instant;

/// Bytes of a typical record's arguments: those of an event.
const TYPICAL: usize = 20;
/// Id of the records, which are never replayed.
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
    for (name, pattern) in PATTERNS {
        let (loads, mut times) = (if ask.quick { 3_000 } else { 30_000 }, Times::default());
        for _ in 0..if ask.quick { 3 } else { 7 } {
            times.extend([loaded(loads, pattern)?]);
        }
        let each = times.median() / loads as f64;
        println!("{name:<32}{loads:>12}{LOADED:>12}{each:>12.1}");
        rows.push(json!({"pattern": name, "loads": loads, "bytes": LOADED, "ns": each, "n": times.count()}));
    }
    figures.parts.insert("record".into(), json!(rows));
    Ok(())
}

/// Bytes of the record of a load: it names its image.
const LOADED: usize = 64;
/// Ways to load code: how many modules are loaded at a time.
const PATTERNS: [(&str, u64); 4] = [("load and unload", 0), ("windows of 1", 1), ("windows of 7", 7), ("windows of 64", 64)];

/// Nanoseconds for this many loads, each with a function, an attribute of it, and an unload of the oldest module when more than so many
/// are loaded.
fn loaded(loads: u64, window: u64) -> Result<u64, String> {
    let failed = |e: journal::JournalError| e.to_string();
    let mut writer = Writer::in_memory().map_err(failed)?;
    let body = [7; LOADED];
    let since = Instant::now();
    for seq in 0..loads {
        let (module, function) = (2 * seq + 10, 2 * seq + 11);
        let mut put = |role, setting, creates: &[u64], ends, uses: &[u64]| {
            writer.append(&Record { seq, id: ID, role, setting, device: 0, creates, ends, uses, body: &body, reply: &[] })
        };
        put(Role::Load, None, &[module], None, &[]).map_err(failed)?;
        put(Role::Child, None, &[function], None, &[module]).map_err(failed)?;
        put(Role::Plain, Some([function, 8]), &[], None, &[function]).map_err(failed)?;
        if seq >= window {
            put(Role::Plain, None, &[], Some(module - 2 * window), &[]).map_err(failed)?;
        }
    }
    Ok(since.elapsed().as_nanos() as u64)
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
