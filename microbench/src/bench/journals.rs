//! The cost of recording: appending to a journal, as the recorder does at every state-building call, and reading what is live of it, as
//! a plan and a move do.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::times::Times;
use crate::error::Error;
use journal::{Record, Role, Writer};
use models::Sample;
use serde_json::json;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// Bytes of a typical record's arguments: those of an event.
const TYPICAL: usize = 20;
/// Id of the records, which are never replayed.
const ID: u16 = 1;

/// Appends records of several lengths, many times.
pub(super) fn run(ask: Ask, figures: &mut Figures) -> Result<(), Error> {
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
                times.extend([append(*count, *length, wall_ns)?]);
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
                figures.goals.push(Goal::at_most("recording: one append to the journal", each, 60.0, "ns"));
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
    let (writer, mut times, mut copies) = (live(LIVE)?, Times::default(), Times::default());
    for _ in 0..if ask.quick { 3 } else { 15 } {
        let since = Instant::now();
        plan(&writer)?;
        times.extend([since.elapsed().as_nanos() as u64]);
        let since = Instant::now();
        black_box(writer.copy_live()?);
        copies.extend([since.elapsed().as_nanos() as u64]);
    }
    let (ms, copy_ms) = (times.median() / 1e6, copies.median() / 1e6);
    println!("{:<32}{LIVE:>12}{:>12}{ms:>9.2} ms", "plan of live records", writer.bytes());
    println!("{:<32}{LIVE:>12}{:>12}{copy_ms:>9.2} ms", "copy of live records", writer.bytes());
    rows.push(json!({"live": LIVE, "bytes": writer.bytes(), "plan_ms": ms, "copy_ms": copy_ms, "n": times.count()}));
    if !ask.validation {
        figures.goals.push(Goal::at_most("plan of 100,000 live records", ms, 5.0, "ms"));
    }
    figures.parts.insert("record".into(), json!(rows));
    Ok(())
}

/// Live records of a large program.
const LIVE: u64 = 100_000;

/// A journal with live records of the kinds that programs have: memory, streams, functions of modules, and settings.
fn live(count: u64) -> Result<Writer, Error> {
    let mut writer = Writer::in_memory()?;
    let body = [7; TYPICAL];
    for seq in 1..=count {
        let (creates, uses, body, reply): (&[u64], &[u64], &[u8], &[u8]) = match seq % 4 {
            0 => (&[seq], &[], &body[..16], &[]),
            1 => (&[seq], &[], &body, &[]),
            2 => (&[seq], &[seq - 1], &body, &[]),
            _ => (&[], &[seq - 1, seq - 2], &body, &body[..8]),
        };
        let (id, role, setting) = ((seq % 4) as u16, Role::Plain, None);
        let record = Record { seq, id, role, setting, device: 0, creates, ends: None, uses, body, reply };
        writer.append(&record)?;
    }
    Ok(writer)
}

/// What a plan counts: the live records, and of one kind their bytes.
fn plan(writer: &Writer) -> Result<(u64, u64), Error> {
    let mut count = (0, 0);
    for record in writer.live() {
        let record = record?;
        count.0 += 1;
        if record.id == 0 {
            count.1 += record.body.len() as u64;
        }
    }
    Ok(black_box(count))
}

/// The processor time of this thread in nanoseconds: what other programs do beside it counts little.
fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one `timespec`, to memory that is one.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The least processor time of many runs, for machines that others use as well.
pub(crate) fn least() -> Result<(), Error> {
    const RUNS: u64 = 40;
    let best = |run: &mut dyn FnMut() -> Result<u64, Error>| -> Result<f64, Error> {
        let times = (0..RUNS).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
        Ok(times.into_iter().min().unwrap_or_default() as f64)
    };
    let of = |count: u64| -> Result<f64, Error> { Ok(best(&mut || append(count, TYPICAL, cpu_ns))? / count as f64) };
    let writer = live(LIVE)?;
    let timed = |run: &dyn Fn() -> Result<(), Error>| {
        let since = cpu_ns();
        run().map(|()| cpu_ns() - since)
    };
    let plan_ms = best(&mut || timed(&|| plan(&writer).map(drop)))? / 1e6;
    let copy_ms = best(&mut || timed(&|| writer.copy_live().map(|copy| drop(black_box(copy))).map_err(Error::from)))? / 1e6;
    println!(
        "{}",
        json!({
            "measures": "journal", "runs": RUNS,
            "append_ns": {"1000": of(1_000)?, "10000": of(10_000)?, "100000": of(100_000)?},
            "live": LIVE, "bytes": writer.bytes(), "plan_ms": plan_ms, "copy_ms": copy_ms,
        })
    );
    Ok(())
}

/// Bytes of the record of a load: it names its image.
const LOADED: usize = 64;
/// Ways to load code: how many modules are loaded at a time.
const PATTERNS: [(&str, u64); 4] = [("load and unload", 0), ("windows of 1", 1), ("windows of 7", 7), ("windows of 64", 64)];

/// Nanoseconds for this many loads, each with a function, an attribute of it, and an unload of the oldest module when more than so many
/// are loaded.
fn loaded(loads: u64, window: u64) -> Result<u64, Error> {
    let mut writer = Writer::in_memory()?;
    let body = [7; LOADED];
    let since = Instant::now();
    for seq in 0..loads {
        let (module, function) = (2 * seq + 10, 2 * seq + 11);
        let mut put = |role, setting, creates: &[u64], ends, uses: &[u64]| {
            writer.append(&Record { seq, id: ID, role, setting, device: 0, creates, ends, uses, body: &body, reply: &[] })
        };
        put(Role::Load, None, &[module], None, &[])?;
        put(Role::Child, None, &[function], None, &[module])?;
        put(Role::Plain, Some([function, 8]), &[], None, &[function])?;
        if seq >= window {
            put(Role::Plain, None, &[], Some(module - 2 * window), &[])?;
        }
    }
    Ok(since.elapsed().as_nanos() as u64)
}

/// The time since the first call, in nanoseconds.
fn wall_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Nanoseconds of appending this many records of a typical length.
pub(super) fn append_wall(count: u64) -> Result<u64, Error> {
    append(count, TYPICAL, wall_ns)
}

/// Nanoseconds of a clock for this many records: objects are made, and half of them ended, as programs do.
fn append(count: u64, length: usize, clock: fn() -> u64) -> Result<u64, Error> {
    let mut writer = Writer::in_memory()?;
    let body = vec![7; length];
    let since = clock();
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
        writer.append(&record)?;
    }
    Ok(clock() - since)
}
