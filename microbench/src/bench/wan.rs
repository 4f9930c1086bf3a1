//! Long links: the start of a program and its steps over links of several round-trip times, beside what their waits and bytes
//! account for.
//!
//! The links are proxies on this machine ([`crate::link`]). How many answers a program waits for, and how many bytes it sends, is
//! in its log; neither depends on the link.

use super::figures::{Ask, Figures};
use super::goals::Goal;
use super::paths::Path;
use super::stage::Stage;
use super::table::Table;
use crate::error::Error;
use crate::link::{Proxy, Shape};
use crate::peer::Controls;
use models::plot::{Plot, Series};
use serde_json::{Value, json};
use std::net::ToSocketAddrs;
use std::path;
use std::time::{Duration, Instant};

/// The links that are measured.
#[derive(Debug, Clone)]
pub(super) struct Links {
    /// Their round-trip times.
    pub(super) delays: Vec<Duration>,
    /// Their rate, in bits a second.
    pub(super) rate: Option<u64>,
}

/// Round trips before a program's first call: the connection, the server's nonce, the TLS handshake, and the proof.
const GREETING: f64 = 4.0;

/// What a run has sent and waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sent {
    waits: f64,
    bytes: f64,
}

fn least(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Sums the lines `exit: sent NAME: N calls, N bytes, N answers waited for, N bytes over connections of their own, N bytes through
/// shared memory` of a log.
fn sent(log: &str) -> Sent {
    let mut sum = Sent::default();
    for figures in log.lines().filter_map(|l| l.split_once("exit: sent ")?.1.split_once(": ")) {
        let numbers: Vec<f64> = figures.1.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        // The last but one: bytes that travelled on other connections of the same link.
        if let [_, bytes, waits, others, _] = numbers[..] {
            sum = Sent { waits: sum.waits + waits, bytes: sum.bytes + bytes + others };
        }
    }
    sum
}

/// A run over a link: its start, the least time of a step, since other programs may interfere, and what it has sent.
struct Run {
    start: f64,
    step: f64,
    sent: Sent,
}

fn run_once(stage: &Stage, place: &str, steps: u32) -> Result<Run, Error> {
    let log = stage.directory.join("wan.log");
    // The log is appended to.
    let _ = std::fs::remove_file(&log);
    let text = log.display().to_string();
    let since = Instant::now();
    let mut process =
        Path::at("link", place).start(stage, &["client", "--steps", &steps.to_string()], &[("MRCUDA_LOG", &text)])?;
    let answer = process.answer()?;
    let all = since.elapsed().as_secs_f64();
    process.finish()?;
    let ns = answer["ns"].as_array().ok_or_else(|| format!("it says {answer}"))?;
    let seconds: Vec<f64> = ns.iter().filter_map(Value::as_f64).map(|ns| ns / 1e9).collect();
    let log = std::fs::read_to_string(&log).map_err(Error::file(&log))?;
    Ok(Run { start: all - seconds.iter().sum::<f64>(), step: least(&seconds), sent: sent(&log) })
}

/// Figures of one link.
struct Row {
    delay: f64,
    start: f64,
    start_expected: f64,
    step: f64,
    step_expected: f64,
    raw: f64,
}

/// Measures the links, the one without a delay first.
pub(super) fn run(
    stage: &Stage,
    place: Option<&str>,
    controls: &Controls,
    links: &Links,
    ask: Ask,
    out: &path::Path,
    figures: &mut Figures,
) -> Result<(), Error> {
    let Some(place) = place else {
        figures.miss("wan", "no place is reached over TCP");
        return Ok(());
    };
    let (scheme, server) = place.split_once("://").unwrap_or(("tls", place));
    let (address, gpu) = server.split_once('/').unwrap_or((server, "0"));
    let words = |e: std::io::Error| format!("{address}: {e}");
    let to = address.to_socket_addrs().map_err(words)?.next().ok_or_else(|| format!("{address}: the name has no address"))?;
    let counts = if ask.quick { [4, 10] } else { [20, 60] };
    let bandwidth = links.rate.map_or(f64::INFINITY, |bits| bits as f64 / 8.0);
    let (mut rows, mut base, mut step, mut first) = (Vec::new(), None, Sent::default(), Sent::default());
    for delay in std::iter::once(Duration::ZERO).chain(links.delays.iter().copied()) {
        let shape = Shape { delay, rate: links.rate };
        let proxy = Proxy::start(to, shape).map_err(words)?;
        let peer = Proxy::start(controls.address(), shape).map_err(words)?;
        let place = format!("{scheme}://{}/{gpu}", proxy.address);
        eprint!("\rwan: a round trip of {delay:?} ");
        let [few, many] = [run_once(stage, &place, counts[0])?, run_once(stage, &place, counts[1])?];
        let steps = f64::from(counts[1] - counts[0]);
        if base.is_none() {
            step = Sent { waits: (many.sent.waits - few.sent.waits) / steps, bytes: (many.sent.bytes - few.sent.bytes) / steps };
            let before = f64::from(counts[0]);
            first = Sent { waits: few.sent.waits - before * step.waits, bytes: few.sent.bytes - before * step.bytes };
        }
        // What the program itself takes, without the link.
        let [start0, step0] = *base.get_or_insert([
            few.start.min(many.start) - first.bytes / bandwidth,
            few.step.min(many.step) - step.bytes / bandwidth,
        ]);
        let trip = delay.as_secs_f64();
        let raw = controls.by(peer.address).exchanges(counts[0], step.waits.round() as u64, step.bytes as u64);
        rows.push(Row {
            delay: trip,
            start: few.start.min(many.start),
            start_expected: start0 + (GREETING + first.waits) * trip + first.bytes / bandwidth,
            step: few.step.min(many.step),
            step_expected: step0 + step.waits * trip + step.bytes / bandwidth,
            raw: least(&raw.map_err(Error::Control)?),
        });
    }
    eprintln!();
    show(&rows, step, first, links, out, figures)
}

fn show(rows: &[Row], step: Sent, first: Sent, links: &Links, out: &path::Path, figures: &mut Figures) -> Result<(), Error> {
    let rate = links.rate.map_or_else(|| "no limit of the rate".to_owned(), |bits| format!("{:.1} Mbit/s", bits as f64 / 1e6));
    let mut table = Table::new(
        format!(
            "Long links ({rate}), milliseconds, the least of several. Start: {:.0} waits + {GREETING:.0} round trips of the greeting, {:.0} bytes. \
             Step: {:.1} waits, {:.0} bytes",
            first.waits, first.bytes, step.waits, step.bytes
        ),
        ["round trip", "start", "expected", "step", "expected", "measured/expected", "raw sockets"],
    );
    for r in rows {
        let ms = |s: f64| format!("{:.1}", s * 1e3);
        let part = format!("{:.2}", r.step / r.step_expected);
        table.row([ms(r.delay), ms(r.start), ms(r.start_expected), ms(r.step), ms(r.step_expected), part, ms(r.raw)]);
        if r.delay > 0.0 {
            let what = format!("step over a round trip of {:.0} ms, measured over expected", r.delay * 1e3);
            figures.goals.push(Goal::at_most(what, r.step / r.step_expected, 1.1, "x"));
        }
    }
    figures.table(table);
    figures.goals.push(Goal::at_most("waits of a step, as PyTorch makes it", step.waits, 2.0, ""));
    let points = |f: &dyn Fn(&Row) -> f64| rows.iter().map(|r| (r.delay, f(r))).collect::<Vec<_>>();
    for (name, title, series) in [
        (
            "wan-steps",
            "Steps over long links",
            vec![
                Series::times("tcp", points(&|r| r.step), "round trips"),
                Series::times("raw tcp, as many round trips and bytes", points(&|r| r.raw), "round trips"),
            ],
        ),
        ("wan-start", "Start of a program over long links", vec![Series::times("tcp", points(&|r| r.start), "round trips")]),
    ] {
        let plot = Plot { title, x: "round-trip time of the link, s", y: "s", ..Plot::default() };
        if rows.iter().any(|r| r.delay > 0.0) {
            figures.plot(out, name, &plot, &series)?;
        }
    }
    let kept = rows.iter().map(|r| {
        json!({"delay_s": r.delay, "start_s": r.start, "start_expected_s": r.start_expected, "step_s": r.step,
            "step_expected_s": r.step_expected, "raw_s": r.raw})
    });
    figures.parts.insert(
        "wan".into(),
        json!({"rate_bits_per_second": links.rate, "step": {"waits": step.waits, "bytes": step.bytes},
            "start": {"waits": first.waits, "bytes": first.bytes, "greeting": GREETING}, "links": kept.collect::<Vec<_>>()}),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_say_what_was_sent() {
        let log = "x exit: sent Launch: 10 calls, 630 bytes, 0 answers waited for, 0 bytes over connections of their own, \
                   0 bytes through shared memory\nother\n\
                   y exit: sent CopyOut: 8 calls, 320 bytes, 8 answers waited for, 50 bytes over connections of their own, \
                   9 bytes through shared memory\n";
        assert_eq!(sent(log), Sent { waits: 8.0, bytes: 1000.0 });
        assert_eq!(sent(""), Sent::default());
    }
}
