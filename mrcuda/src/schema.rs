//! JSON Schema of what mrcuda and jobs print for programs: `docs/schema`, made from the types that print it.

use crate::agent::tell;
use crate::ask::Refused;
use crate::calls;
use crate::config::show::Shown;
use crate::drain::Drained;
use crate::events;
use crate::gpus::Server;
use crate::jobs::Listed;
use crate::migrate::{Foreseen, Made};
use crate::moves;
use crate::server_moves;
use crate::token;
use control::history::Past;
use control::{Answer, Event, Job, Move, Refusal, Request};
use elsewhere::{Accounted, Bench, Record, Status};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};
use std::path::Path;

mod elsewhere;

/// What a command prints that asks a job for something.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it stands for its schema")]
enum Asked<T> {
    /// The answer.
    Answered(T),
    /// The request was not carried out.
    Refused(Refused<String>),
}

/// A line of a job's control socket.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it stands for its schema")]
enum Line {
    /// The response to a request that was carried out.
    Response(Versioned<Accepted<Answer>>),
    /// The response to a request that was refused.
    Refused(Versioned<Rejected<Refusal>>),
    /// An event, on a connection that has subscribed.
    Event(Versioned<Event>),
}

/// A line of the protocol.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Versioned<T> {
    /// Version of the protocol.
    #[schemars(extend("const" = control::VERSION))]
    v: u64,
    #[schemars(flatten)]
    it: T,
}

/// The response to a request that was carried out.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Accepted<T> {
    /// Whether the request was carried out.
    #[schemars(extend("const" = true))]
    ok: bool,
    #[schemars(flatten)]
    it: T,
}

/// The response to a request that was refused.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Rejected<T> {
    /// Whether the request was carried out.
    #[schemars(extend("const" = false))]
    ok: bool,
    #[schemars(flatten)]
    it: T,
}

/// The answer to a request that parks a job, lets it go on, or keeps a copy of it.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it stands for its schema")]
enum MoveOrJob {
    /// The move, or the first round of a copy.
    Move(Move),
    /// The job, of which no copy is kept any more.
    Job(Job),
}

/// A line of a server's log. A field that does not apply is absent.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct LogLine {
    /// RFC 3339, in UTC, with milliseconds.
    time: String,
    level: LogLevel,
    /// What the line is about, as in `MRCUDA_LOG`; `serve` for what is always written.
    target: String,
    /// Where in the work it was written; only in lines that `MRCUDA_LOG` adds.
    span: Option<String>,
    /// The text; for the output of another process, that line.
    message: String,
    /// `worker`, `greeter`: the message is the output of such a process, which may say anything.
    source: Option<String>,
    /// The worker's process.
    worker: Option<u32>,
    /// The process that greets clients and has written the line.
    greeter: Option<u32>,
    /// The number of the GPU in places.
    gpu: Option<u32>,
    /// The other end of the connection.
    peer: Option<String>,
    /// The number of the job's user, if the kernel says.
    uid: Option<u32>,
    /// The name of the user whose token or credential of munge was shown, otherwise that of `uid`.
    user: Option<String>,
    /// Which of these it is: `token`, `munge` or `system`.
    user_by: Option<String>,
    /// The job's process; over a network by its own word.
    job: Option<u32>,
    /// The job's name, by its own word.
    name: Option<String>,
}

/// How important a line is.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "it stands for its schema")]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The schemas of what is printed, by the names of their files.
fn schemas() -> [(&'static str, Schema); 21] {
    let printed = SchemaSettings::draft2020_12().for_serialize();
    let read = SchemaSettings::draft2020_12().for_deserialize();
    [
        ("accounting", of::<Accounted>(printed.clone(), "A line that mrcuda serve --accounting writes")),
        ("agent", of::<tell::Line<'static>>(printed.clone(), "A line that mrcuda agent --json writes")),
        ("bench", of::<Bench>(printed.clone(), "bench.json, which mrcuda bench writes")),
        ("calls", of::<Vec<calls::Printed<'static>>>(printed.clone(), "mrcuda calls --json")),
        ("config", of::<Shown>(printed.clone(), "mrcuda config show --json")),
        ("control-request", request(of::<Versioned<Request>>(read.clone(), "A request to a job's control socket"))),
        ("control-response", of::<Line>(printed.clone(), "A line that a job sends on its control socket")),
        ("drain", of::<Drained>(printed.clone(), "mrcuda drain --json")),
        ("events", of::<events::Line>(printed.clone(), "A line that mrcuda events --json writes")),
        ("gpus", of::<Vec<Server>>(printed.clone(), "mrcuda gpus --json")),
        ("history", of::<Past>(read.clone(), "A line of the history of moves, moves.jsonl")),
        ("journal", of::<Record>(read.clone(), "A line that mrcuda journal show --json prints")),
        ("log", of::<LogLine>(read, "A line that mrcuda serve --log-format json writes")),
        ("migrate", of::<Asked<Made<'static>>>(printed.clone(), "mrcuda migrate --json")),
        ("migrate-by-server", of::<server_moves::Requested>(printed.clone(), "mrcuda migrate --server --json")),
        ("moves", of::<Asked<Vec<moves::Shown<'static>>>>(printed.clone(), "mrcuda moves --json, mrcuda moves PID --json")),
        ("plan", of::<Asked<Foreseen<'static>>>(printed.clone(), "mrcuda plan --json, mrcuda migrate --dry-run --json")),
        ("ps", of::<Vec<Listed>>(printed.clone(), "mrcuda ps --json")),
        ("status", of::<Status>(printed.clone(), "/status.json, which a server's page shows")),
        ("suspend", of::<Asked<MoveOrJob>>(printed.clone(), "mrcuda suspend --json, mrcuda resume --json, mrcuda cancel --json")),
        ("tokens", of::<Vec<token::Listed>>(printed, "mrcuda token list --json")),
    ]
}

/// The schema of a type, with this title.
fn of<T: JsonSchema>(settings: SchemaSettings, title: &str) -> Schema {
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(without_links).transform(&mut schema);
    schema.insert("title".to_owned(), title.into());
    schema
}

/// Has each kind of request refuse fields that it does not have, and a wait for no move in particular, as jobs do.
fn request(mut schema: Schema) -> Schema {
    let version = schema.get("properties").map(|properties| properties["v"].clone()).expect("every request has a version");
    let kinds = schema.get_mut("oneOf").and_then(Value::as_array_mut).expect("there are several kinds");
    for kind in kinds {
        kind["properties"]["v"] = version.clone();
        kind["additionalProperties"] = false.into();
        if kind["properties"]["op"]["const"] == "report" {
            kind["if"] = json!({"properties": {"wait": {"const": true}}, "required": ["wait"]});
            kind["then"] = json!({"properties": {"id": {"type": "string"}}, "required": ["id"]});
        }
    }
    schema
}

/// Makes text of the links in a description, which rustdoc alone can follow.
fn without_links(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("[`crate::", "`").replace("[`", "`").replace("`]", "`");
    }
}

#[test]
fn the_schemas_are_up_to_date() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let mut names: Vec<String> = Vec::new();
    for (name, schema) in schemas() {
        let path = directory.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(&path).unwrap_or_default() == text, "{} is old: UPDATE=1 writes it", path.display());
        names.push(format!("{name}.json"));
    }
    let there = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(there.into_iter().all(|name| names.contains(&name)), "{} has other files", directory.display());
}
