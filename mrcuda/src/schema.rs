//! JSON Schema of what mrcuda and jobs print for programs: `docs/schema`, made from the types that print it.

use crate::ask::Refused;
use crate::gpus::Server;
use crate::jobs::Listed;
use crate::migrate::{Foreseen, Made};
use crate::moves::Shown;
use control::history::Past;
use control::{Answer, Event, Move, Refusal, Request};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;
use std::path::Path;

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
    Response(Versioned<Answered<Answer>>),
    /// The response to a request that was refused.
    Refused(Versioned<Answered<Refusal>>),
    /// An event, on a connection that has subscribed.
    Event(Versioned<Event>),
}

/// A line of the protocol.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Versioned<T> {
    /// Version of the protocol.
    v: u64,
    #[schemars(flatten)]
    it: T,
}

/// A response.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for its schema")]
struct Answered<T> {
    /// Whether the request was carried out.
    ok: bool,
    #[schemars(flatten)]
    it: T,
}

/// The schemas of what is printed, by the names of their files.
fn schemas() -> [(&'static str, Schema); 9] {
    let printed = SchemaSettings::draft2020_12().for_serialize();
    let read = SchemaSettings::draft2020_12().for_deserialize();
    [
        ("control-request", request(of::<Versioned<Request>>(read, "A request to a job's control socket"))),
        ("control-response", of::<Line>(printed.clone(), "A line that a job sends on its control socket")),
        ("gpus", of::<Vec<Server>>(printed.clone(), "mrcuda gpus --json")),
        ("history", of::<Past>(printed.clone(), "A line of the history of moves, moves.jsonl")),
        ("migrate", of::<Asked<Made<'static>>>(printed.clone(), "mrcuda migrate --json")),
        ("moves", of::<Asked<Vec<Shown<'static>>>>(printed.clone(), "mrcuda moves --json, mrcuda moves PID --json")),
        ("plan", of::<Asked<Foreseen<'static>>>(printed.clone(), "mrcuda plan --json, mrcuda migrate --dry-run --json")),
        ("ps", of::<Vec<Listed>>(printed.clone(), "mrcuda ps --json")),
        ("suspend", of::<Asked<Move>>(printed, "mrcuda suspend --json, mrcuda resume --json, mrcuda cancel --json")),
    ]
}

/// The schema of a type, with this title.
fn of<T: JsonSchema>(settings: SchemaSettings, title: &str) -> Schema {
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(without_links).transform(&mut schema);
    schema.insert("title".to_owned(), title.into());
    schema
}

/// Has each kind of request refuse fields that it does not have, as jobs do.
fn request(mut schema: Schema) -> Schema {
    let version = schema.get("properties").map(|properties| properties["v"].clone()).expect("every request has a version");
    let kinds = schema.get_mut("oneOf").and_then(Value::as_array_mut).expect("there are several kinds");
    for kind in kinds {
        kind["properties"]["v"] = version.clone();
        kind["additionalProperties"] = false.into();
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
