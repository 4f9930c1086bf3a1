//! `mrcuda migrate`, `mrcuda suspend`, `mrcuda resume`, `mrcuda plan` and `mrcuda cancel`.

use crate::ask::{Awake, connect_awake, pid, print_json, refused};
use crate::failure::Failure;
use crate::follow::{self, Followed};
use crate::places;
use crate::predict::{Predicted, describe_with_prediction, predict, predict_move};
use crate::progress::waiting;
use crate::server_moves::{limit_ms, move_by_server};
use crate::table::{bytes, one_line, say};
use crate::time::time;
use crate::timeline::{describe, reason};
use crate::trace;
use crate::value_error::ValueError;
use clap::ArgAction;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use control::{AskError, Client, Migrate, Move, Park, Plan, Verify};
use cuda_api::address_map::DEVICES;
use rcuda_forwarder::{Endpoint, MoveRequest};
use std::path::PathBuf;

/// Which GPUs move, and where.
#[derive(Debug, clap::Args)]
struct Aim {
    /// Process id of the job, or of the script or shell that started it
    #[arg(value_parser = pid)]
    pid: u32,
    /// Target: HOST:PORT[/GPU], tls://HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU], unix:PATH[/GPU], local[:GPU] or helper[:GPU], or a list with one place for each GPU that moves; memory, HOST:PORT/memory or file:DIR: see mrcuda suspend
    #[arg(long, value_name = "PLACE", value_parser = places::places)]
    to: String,
    /// GPU to move, by its number as the program sees it, or all
    #[arg(long, value_name = "N|all", default_value = "all", value_parser = gpu)]
    gpu: Gpu,
    /// Allow another build of the driver, another model of GPU, or fewer multiprocessors, where everything that the job relies on holds there
    #[arg(long, action = ArgAction::Set, value_name = "true|false", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    allow_different: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `mrcuda migrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    aim: Aim,
    /// Report only whether the job could move and what the move would take, like mrcuda plan
    #[arg(long)]
    dry_run: bool,
    /// Write a trace of the move and of the program's calls around it to this file, which ui.perfetto.dev shows
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run", conflicts_with = "no_wait")]
    trace: Option<PathBuf>,
    /// Have the server that the job uses, HOST:PORT, plain://HOST:PORT or unix:PATH, ask the job to move, from any machine; PID is the job's as
    /// mrcuda gpus lists it. All of its GPUs at this server move. Without --deadline it has two minutes
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["gpu", "allow_different", "dry_run", "trace", "id", "max_downtime", "wait", "verify", "queue", "no_wait"])]
    server: Option<Endpoint>,
    /// With --server: move only what this worker, as mrcuda gpus lists it, has of the job; needed if several jobs have the same PID
    #[arg(long, value_name = "N", requires = "server")]
    worker: Option<u32>,
    #[command(flatten)]
    how: How,
}

/// Arguments of `mrcuda suspend`.
#[derive(Debug, clap::Args)]
pub(crate) struct SuspendArgs {
    /// Where the job's memory is kept: memory (of this machine), HOST:PORT/memory (of a server's machine) or file:DIR (a file in this directory) [default: memory]
    #[arg(long, value_name = "PLACE", value_parser = places::places)]
    to: Option<String>,
    /// Do not park the job, but keep a copy there current while it runs: each time that so long has passed, for example 60s, what has changed is written. A later suspend to this place then carries only the rest. With 0s no copy is kept any more
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["id", "deadline", "max_downtime", "wait", "verify", "queue"])]
    every: Option<u64>,
    #[command(flatten)]
    whole: Whole,
}

/// Arguments of `mrcuda resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Where the job goes on [default: where it came from]
    #[arg(long, value_name = "PLACE", value_parser = places::gpus)]
    to: Option<String>,
    #[command(flatten)]
    whole: Whole,
}

/// A job that is parked, or goes on, with all its GPUs.
#[derive(Debug, clap::Args)]
struct Whole {
    /// Process id of the job, or of the script or shell that started it
    #[arg(value_parser = pid)]
    pid: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: How,
}

/// Limits of a move, and how it is carried out.
#[derive(Debug, clap::Args)]
struct How {
    /// Id for this move; an id that the job has used before is refused
    #[arg(long)]
    id: Option<String>,
    /// Abandon the move if it is not committed within this time after the request, for example 30s or 500ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    deadline: Option<u64>,
    /// Abandon the move if calls of the program would wait longer than this, for example 200ms
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_downtime: Option<u64>,
    /// Keep trying for this long, for example 10m, if the GPU does not become idle; the program runs meanwhile
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<u64>,
    /// How to verify the copy: `hash`, or `bytes`, which sends all memory a second time if the places cannot map each
    /// other's memory [default: bytes between places of one GPU, hash otherwise]
    #[arg(long, value_name = "hash|bytes", value_parser = verify())]
    verify: Option<Verify>,
    /// Queue the move if another one is under way, instead of refusing it
    #[arg(long, action = ArgAction::Set, value_name = "true|false", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    queue: bool,
    /// Return at once; `mrcuda moves` shows the outcome
    #[arg(long)]
    no_wait: bool,
}

/// Arguments of `mrcuda plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    aim: Aim,
}

/// Arguments of `mrcuda cancel`.
#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    /// Process id of the job, or of the script or shell that started it
    #[arg(value_parser = pid)]
    pid: u32,
    /// Id of the move [default: the one that is under way]
    id: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The GPUs of a job that move; none: all of them.
#[derive(Debug, Clone, Copy)]
struct Gpu(Option<u32>);

fn gpu(text: &str) -> Result<Gpu, ValueError> {
    match (text, text.parse::<u32>()) {
        ("all", _) => Ok(Gpu(None)),
        (_, Ok(n)) if n < DEVICES => Ok(Gpu(Some(n))),
        _ => Err(ValueError::Gpu),
    }
}

/// Completions offer these values.
fn verify() -> impl TypedValueParser<Value = Verify> {
    PossibleValuesParser::new(["hash", "bytes"]).map(|text| if text == "bytes" { Verify::Bytes } else { Verify::Hash })
}

/// Moves a job and prints the report of the move; exit code 1 if the move was refused or failed.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<(), Failure> {
    let aim = &args.aim;
    if args.dry_run {
        return dry(aim);
    }
    let how = &args.how;
    if let Some(at) = &args.server {
        let (pid, worker, to) = (aim.pid, args.worker, aim.to.clone());
        return move_by_server(at, MoveRequest { pid, worker, to, limit_ms: limit_ms(how.deadline)? }, aim.json);
    }
    let wanted = Migrate {
        gpu: aim.gpu.0,
        trace: args.trace.is_some(),
        allow_different: aim.allow_different,
        ..how.park(None).or_to(&aim.to)
    };
    let trace = args.trace.as_deref().map(trace::File::open).transpose()?;
    let awake = connect_awake(aim.pid, aim.json)?;
    let more = if trace.is_some() { " --trace FILE" } else { "" };
    let ask = move |job: &mut Client, wait| job.migrate(Migrate { wait, ..wanted });
    let Some(mut it) = request(awake, aim.json, how, more, ask)? else { return Ok(()) };
    let traced = it.trace.take();
    if aim.json {
        print_json(&Made { it: &it, predicted: predict_move(&it) })?;
    } else {
        say(&describe_with_prediction(&it));
    }
    if let Some(file) = trace {
        file.write(traced.as_deref())?;
    }
    end_of(&it)
}

/// Requests a move by `ask`, whose argument is whether to wait for its end. On a terminal the progress is shown. `None`: the user has left the
/// move running; what is printed then ends with the options `more` of `mrcuda moves`.
fn request(
    awake: Awake,
    json: bool,
    how: &How,
    more: &str,
    ask: impl FnOnce(&mut Client, bool) -> Result<Move, AskError> + Send + 'static,
) -> Result<Option<Move>, Failure> {
    let Awake { pid, client: mut job, .. } = awake;
    if json || how.no_wait || !follow::is_possible() {
        return ask(&mut job, !how.no_wait).map(Some).map_err(|why| refused(pid, why, json));
    }
    match follow::follow(pid, job, move |job| ask(job, false))? {
        Followed::Ended(it) => Ok(Some(*it)),
        Followed::Left(id) => {
            let id = one_line(&id);
            say(&format!("move {id} goes on in the background (mrcuda moves {pid} {id}{more})\n"));
            Ok(None)
        }
    }
}

fn end_of(it: &Move) -> Result<(), Failure> {
    if it.ok || !it.state.is_over() { Ok(()) } else { Err(Failure::silent(1)) }
}

/// Parks a job, as [`migrate`] moves it.
pub(crate) fn suspend(args: &SuspendArgs) -> Result<(), Failure> {
    match args.every {
        None => args.whole.carry_out(&args.to, Client::suspend),
        Some(0) => args.whole.end_copy(),
        Some(every) => args.whole.carry_out(&args.to, move |job, park| job.keep_copy(park.to.as_deref(), every, park.wait)),
    }
}

/// Lets a parked job go on, as [`migrate`] moves it.
pub(crate) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    args.whole.carry_out(&args.to, Client::resume)
}

impl How {
    fn park(&self, to: Option<String>) -> Park {
        Park {
            to,
            id: self.id.clone(),
            deadline_ms: self.deadline,
            max_downtime_ms: self.max_downtime,
            patience_ms: self.wait,
            verify: self.verify.unwrap_or_default(),
            wait: !self.no_wait,
            queue: self.queue,
        }
    }
}

impl Whole {
    /// Has no copy kept any more.
    fn end_copy(&self) -> Result<(), Failure> {
        let Awake { pid, mut client, .. } = connect_awake(self.pid, self.json)?;
        let job = client.end_copy().map_err(|why| refused(pid, why, self.json))?;
        if self.json { print_json(&job) } else { Ok(()) }
    }

    /// Makes the request, and shows the report.
    fn carry_out(
        &self,
        to: &Option<String>,
        ask: impl FnOnce(&mut Client, Park) -> Result<Move, AskError> + Send + 'static,
    ) -> Result<(), Failure> {
        let json = self.json;
        let awake = connect_awake(self.pid, json)?;
        let park = self.how.park(to.clone());
        let Some(it) = request(awake, json, &self.how, "", move |job, wait| ask(job, Park { wait, ..park }))? else {
            return Ok(());
        };
        if json {
            print_json(&it)?;
        } else {
            say(&describe(&it));
        }
        end_of(&it)
    }
}

/// A move with the predictions of this machine's models for what it had to carry.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Made<'a> {
    #[serde(flatten)]
    it: &'a Move,
    predicted: Option<Predicted>,
}

/// Reports whether a job could move; exit code 1 if there are blockers.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), Failure> {
    dry(&args.aim)
}

/// A plan with the predictions of this machine's models.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Foreseen<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    predicted: Option<&'a Predicted>,
}

fn dry(aim: &Aim) -> Result<(), Failure> {
    let Awake { pid, mut client, job } = connect_awake(aim.pid, aim.json)?;
    let shown = waiting("the job tries what the move would need");
    let planned = client.plan(&aim.to, aim.gpu.0, aim.allow_different);
    drop(shown);
    let plan = planned.map_err(|why| refused(pid, why, aim.json))?;
    let predicted = plan.ok.then(|| predict(&plan));
    if aim.json {
        print_json(&Foreseen { plan: &plan, predicted: predicted.as_ref() })?;
    } else {
        say(&(describe_plan(&job.name, &plan) + &predicted.map(|p| p.words()).unwrap_or_default()));
    }
    if plan.ok { Ok(()) } else { Err(Failure::silent(1)) }
}

fn describe_plan(name: &str, plan: &Plan) -> String {
    let way = one_line(&format!("{name}, {} -> {}", plan.from, plan.to));
    let what = format!(
        "{} in {} regions, {} records, {} live objects",
        bytes(plan.live_bytes),
        plan.regions,
        plan.records,
        plan.live_objects
    );
    if plan.ok {
        let notes: String = plan.notes.iter().map(|note| format!("   note: {}\n", one_line(note))).collect();
        return format!("{way}: would move {what}\n{notes}");
    }
    let mut text = format!("{way}: would not move ({what}):\n");
    for blocker in &plan.blockers {
        text.push_str(&format!("   {}\n", reason(blocker)));
    }
    text
}

/// Cancels a move; the job stays where it was. Exit code 1 if it is too late.
pub(crate) fn cancel(args: &CancelArgs) -> Result<(), Failure> {
    let Awake { pid, client: mut job, .. } = connect_awake(args.pid, args.json)?;
    let shown = waiting("the move is being abandoned");
    let it = job.cancel(args.id.as_deref());
    drop(shown);
    let it = it.map_err(|why| refused(pid, why, args.json))?;
    if args.json {
        print_json(&it)?;
    } else {
        say(&describe(&it));
    }
    if it.ok { Err(Failure::silent(1)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_by_number_or_all() {
        assert_eq!(gpu("all").unwrap().0, None);
        assert_eq!(gpu("3").unwrap().0, Some(3));
        assert!(gpu("32").is_err() && gpu("").is_err() && gpu("-1").is_err());
    }

    #[test]
    fn a_plan_names_everything_in_the_way() {
        let plan =
            Plan { from: "a:1/0".into(), to: "b:2/0".into(), blockers: vec!["one".into(), "two".into()], ..Plan::default() };
        let text = describe_plan("train", &plan);
        assert!(text.starts_with("train, a:1/0 -> b:2/0: would not move") && text.contains("   one\n   two\n"), "{text}");
        assert!(
            describe_plan("train", &Plan { ok: true, records: 7, ..plan }).contains("would move 0 B in 0 regions, 7 records")
        );
    }
}
