//! `mrcuda drain`: has a server take no new jobs, and those that it serves move away.

use crate::ask::print_json;
use crate::failure::Failure;
use crate::gpus::{AskServerError, credentials};
use crate::places;
use crate::table::{Table, duration, one_line, say};
use crate::time::time;
use rcuda_forwarder::{DrainRequest, DrainState, DrainWish, Endpoint, drain as ask_to_drain};
use serde::Serialize;

/// Arguments of `mrcuda drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Server: HOST:PORT, plain://HOST:PORT or unix:PATH
    #[arg(value_name = "SERVER")]
    server: Endpoint,
    /// Place to which the server's jobs are asked to move, or a list with one place for each of its GPUs, as the jobs read them [default:
    /// they stay, and no new ones are taken]
    #[arg(long, value_name = "PLACE", value_parser = places::places)]
    to: Option<String>,
    /// For how long jobs that stay are asked again
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10m")]
    timeout: u64,
    /// Only report how far a drain is
    #[arg(long, conflicts_with_all = ["to", "timeout", "cancel"])]
    show: bool,
    /// Have the server take jobs again, and ask none to move any more
    #[arg(long, conflicts_with_all = ["to", "timeout"])]
    cancel: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How far a drain is, as JSON (docs/servers.md).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Drained {
    ok: bool,
    server: String,
    reason: Option<String>,
    closed: bool,
    ending: bool,
    to: Option<String>,
    left_ms: u64,
    workers: u32,
    jobs: Vec<NotLeft>,
}

/// A worker whose job has not left, as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NotLeft {
    worker: u32,
    gpu: Option<u32>,
    pid: u32,
    reason: Option<String>,
}

impl Drained {
    fn new(at: &Endpoint, answer: Result<DrainState, AskServerError>) -> Drained {
        let (ok, reason) = (answer.is_ok(), answer.as_ref().err().map(ToString::to_string));
        let nothing = || DrainState { closed: false, ending: false, to: None, left_ms: 0, workers: 0, jobs: Vec::new() };
        let DrainState { closed, ending, to, left_ms, workers, jobs } = answer.unwrap_or_else(|_| nothing());
        let not_left =
            |job: rcuda_forwarder::NotLeft| NotLeft { worker: job.worker, gpu: job.gpu, pid: job.pid, reason: job.reason };
        let jobs = jobs.into_iter().map(not_left).collect();
        Drained { ok, server: at.server(), reason, closed, ending, to, left_ms, workers, jobs }
    }

    /// A line, and a table of the jobs that have not left.
    fn render(&self) -> String {
        let server = &self.server;
        let mut text = match (self.ending, self.closed, &self.to) {
            (true, ..) => format!("{server} is ending and takes no new jobs"),
            (_, false, _) => format!("{server} takes jobs"),
            (_, true, None) => format!("{server} takes no new jobs"),
            (_, true, Some(to)) => format!(
                "{server} takes no new jobs, and asks those that it serves to move to {}, for another {}",
                one_line(to),
                duration(self.left_ms as f64)
            ),
        };
        text.push_str(&format!("; workers with jobs: {}\n", self.workers));
        if self.closed && !self.jobs.is_empty() {
            let mut jobs = Table::new(&["GPU", "JOB", "WORKER", "LAST REASON FOR STAYING"]);
            for NotLeft { worker, gpu, pid, reason } in &self.jobs {
                let gpu = gpu.map_or_else(|| "parked".to_owned(), |gpu| gpu.to_string());
                let reason = reason.as_deref().map_or_else(|| "-".to_owned(), one_line);
                jobs.row(vec![gpu, pid.to_string(), worker.to_string(), reason]);
            }
            text.push_str(&jobs.render());
        }
        text
    }
}

/// Begins or ends a drain, or asks how far it is; exit code 1 if the server refuses.
pub(crate) fn drain(args: &DrainArgs) -> Result<(), Failure> {
    let wish = match (args.show, args.cancel) {
        (true, _) => DrainWish::Show,
        (_, true) => DrainWish::Cancel,
        _ => DrainWish::Begin,
    };
    let request = DrainRequest { wish, to: args.to.clone(), limit_ms: args.timeout };
    let at = &args.server;
    let asked = credentials(at).map_err(AskServerError::from).and_then(|by| Ok(ask_to_drain(at, by.as_ref(), &request)?));
    let drained = Drained::new(at, asked);
    if args.json {
        print_json(&drained)?;
        return if drained.ok { Ok(()) } else { Err(Failure::silent(1)) };
    }
    match &drained.reason {
        Some(why) => Err(Failure::new(why)),
        None => {
            say(&drained.render());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(closed: bool, to: Option<&str>) -> Drained {
        let job = rcuda_forwarder::NotLeft { worker: 9, gpu: None, pid: 7, reason: Some("no\nGPU\x1b".into()) };
        let to = to.map(str::to_owned);
        let state = DrainState { closed, ending: false, to, left_ms: 90_000, workers: 1, jobs: vec![job] };
        Drained::new(&"a:7878".parse().unwrap(), Ok(state))
    }

    #[test]
    fn how_far_it_is_can_be_read() {
        let text = drained(true, Some("b:1/0")).render();
        assert!(
            text.starts_with("a:7878 takes no new jobs, and asks those that it serves to move to b:1/0, for another "),
            "{text}"
        );
        assert!(text.contains("parked    7       9  no\\u000aGPU\\u001b"), "{text}");
        assert!(drained(true, None).render().starts_with("a:7878 takes no new jobs; workers with jobs: 1\n"));
        assert_eq!(drained(false, None).render(), "a:7878 takes jobs; workers with jobs: 1\n");
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let page = include_str!("../../docs/servers.md");
        let value = serde_json::to_value(drained(true, None)).unwrap();
        for value in [&value, &value["jobs"][0]] {
            for name in value.as_object().unwrap().keys() {
                assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
            }
        }
    }
}
