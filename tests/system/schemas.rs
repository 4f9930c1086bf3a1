//! What the commands and jobs print for programs is as its schema in `docs/schema` says.

use crate::{LIMIT, remote_orbit, wait_for_step};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use tests::{Job, Scene, Server, install};

/// A job that does not end by itself while it is asked.
const LONGER: [&str; 5] = ["--steps", "100000", "--pace", "3000", "--progress"];

/// Has each object refuse fields that its schema does not name: clients must ignore them, but what we print is all described.
/// `part`: the schema is a part of one of the same object.
fn close(schema: &mut Value, part: bool) {
    let has_fields = schema.get("properties").is_some();
    match schema {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                let composed = ["anyOf", "oneOf", "allOf", "if", "then"].contains(&name.as_str());
                close(member, composed && (part || has_fields));
            }
            if has_fields && !part && !members.contains_key("additionalProperties") {
                members.insert("unevaluatedProperties".to_owned(), false.into());
            }
        }
        // The alternatives of one object.
        Value::Array(members) => members.iter_mut().for_each(|member| close(member, part)),
        _ => {}
    }
}

/// The schemas, by the names of their files.
pub(crate) struct Schemas(BTreeMap<String, jsonschema::Validator>);

impl Schemas {
    pub(crate) fn read() -> Schemas {
        let files = std::fs::read_dir(install::root().join("docs/schema")).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: std::path::PathBuf| {
            let mut schema: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            close(&mut schema, false);
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, jsonschema::validator_for(&schema).unwrap())
        };
        Schemas(files.map(read).collect())
    }

    /// Why the text is not as the schema says.
    fn errors(&self, name: &str, value: &Value) -> Vec<String> {
        self.0[name].iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
    }

    /// What a text says, which is as its schema says.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, text: &str) -> Value {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
        assert_eq!(self.errors(name, &value), Vec::<String>::new(), "{name}: {value}");
        value
    }
}

#[test]
fn what_commands_print() {
    let (schemas, scene) = (Schemas::read(), Scene::new("schemas"));
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 50);
    let (pid, at) = (job.pid().to_string(), server.address.to_string());
    let print = |args: &[&str]| {
        let output = scene.mrcuda().args(args).arg("--json").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let first = |list: Value| list[0].clone();
    let one = |value: Value| value;
    let take = |name: &str, args: &[&str], take: fn(Value) -> Value| take(schemas.check(name, &print(args)));
    std::fs::create_dir_all(scene.path.join("mrcuda")).unwrap();
    std::fs::write(scene.path.join("mrcuda/config.toml"), "[log]\ncalls = true\n").unwrap();
    assert!(take("calls", &["calls"], first)["name"].is_string());
    let config = schemas.check("config", &print(&["config", "show"]));
    assert!(config["settings"].as_array().unwrap().iter().any(|it| it["from"] == "file" && it["line"] == 2), "{config}");
    assert_eq!(first(schemas.check("ps", &print(&["ps"])))["pid"].as_u64(), Some(job.pid().into()));
    let gpus = schemas.check("gpus", &print(&["gpus", &at, "127.0.0.1:1"]));
    assert_eq!((&gpus[0]["ok"], &gpus[1]["ok"]), (&json!(true), &json!(false)), "{gpus}");
    assert!(scene.mrcuda().args(["token", "add", "ann"]).output().unwrap().status.success());
    assert_eq!(take("tokens", &["token", "list"], first)["name"], "ann");
    assert_eq!(take("plan", &["plan", &pid, "--to", "local"], one)["ok"], true);
    assert_eq!(take("plan", &["plan", &pid, "--to", "127.0.0.1:1"], one)["ok"], false);
    assert_eq!(take("plan", &["migrate", &pid, "--to", "local", "--dry-run"], one)["ok"], true);
    assert_eq!(take("migrate", &["migrate", &pid, "--to", "local"], one)["state"], "done");
    assert_eq!(take("suspend", &["suspend", &pid, "--every", "60s"], one)["state"], "done");
    assert_eq!(take("ps", &["ps"], first)["copy"]["every_ms"], 60_000);
    assert_eq!(take("suspend", &["suspend", &pid, "--every", "0s"], one)["pid"].as_u64(), Some(job.pid().into()));
    assert_eq!(take("migrate", &["migrate", &pid, "--to", &at, "--deadline", "0s"], one)["state"], "failed");
    assert_eq!(take("suspend", &["suspend", &pid], one)["state"], "done");
    assert_eq!(take("ps", &["ps"], first)["devices"][0]["state"], "parked");
    assert_eq!(take("suspend", &["resume", &pid, "--to", &at], one)["state"], "done");
    assert_eq!(take("suspend", &["resume", &pid], one)["code"], "not-parked");
    assert_eq!(take("suspend", &["cancel", &pid, "m77"], one)["error"], "no_such_move");
    assert_eq!(take("migrate", &["migrate", "4194999", "--to", "local"], one)["error"], "no_job");
    let settings = scene.path.join("agent.toml");
    let text = format!(
        "rest = '0s'\nservers = ['{at}', '127.0.0.1:1']\nlocal_gpus = 1\n[[job]]\nname = '*'\nhome = 'local'\n[[policy]]\nkind = 'home'\n"
    );
    std::fs::write(&settings, text).unwrap();
    let lines = print(&["agent", "--dry-run", "--once", "--config", settings.to_str().unwrap()]);
    let events: Vec<String> =
        lines.lines().map(|line| schemas.check("agent", line)["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(events, ["local_gpus", "server", "decision"], "{lines}");
    let moves = schemas.check("moves", &print(&["moves", &pid]));
    // Four moves, and the last round of the copy.
    assert_eq!(moves.as_array().map(Vec::len), Some(5), "{moves}");
    let without_copies: Vec<&Value> = moves.as_array().unwrap().iter().filter(|it| it["by"] != "every").collect();
    assert_eq!(schemas.check("moves", &print(&["moves"])), json!(without_copies));
    let history = std::fs::read_to_string(scene.path.join("state/mrcuda/moves.jsonl")).unwrap();
    history.lines().for_each(|line| _ = schemas.check("history", line));
    assert_eq!(history.lines().count(), 4, "{history}");
}

#[test]
fn what_jobs_answer() {
    let (schemas, scene) = (Schemas::read(), Scene::new("answers"));
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 50);
    let connect = |job: &Job| {
        let stream = UnixStream::connect(scene.runtime().join("mrcuda").join(job.pid().to_string())).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        BufReader::new(stream)
    };
    let read = |connection: &mut BufReader<UnixStream>| {
        let mut line = String::new();
        connection.read_line(&mut line).unwrap();
        schemas.check("control-response", &line)
    };
    let ask = |connection: &mut BufReader<UnixStream>, request: &Value| {
        writeln!(connection.get_mut(), "{request}").unwrap();
        read(connection)
    };
    let (mut requests, mut events) = (connect(&job), connect(&job));
    let subscribe = json!({"v": 2, "op": "subscribe"});
    assert!(ask(&mut events, &subscribe)["subscribed"].is_u64());
    let good = [
        (json!({"v": 2, "op": "list"}), "job"),
        (json!({"v": 2, "op": "plan", "to": "local"}), "plan"),
        (json!({"v": 2, "op": "migrate", "to": "local", "id": "a", "trace": true, "deadline_ms": 600_000}), "move"),
        (json!({"v": 2, "op": "report"}), "moves"),
        (json!({"v": 2, "op": "report", "id": "a", "wait": true}), "moves"),
        (json!({"v": 2, "op": "suspend", "gpu": null}), "reason"),
        (json!({"v": 2, "op": "suspend", "id": "b", "verify": "hash"}), "move"),
        (json!({"v": 2, "op": "resume", "to": server.place(0), "queue": true}), "move"),
        (json!({"v": 2, "op": "cancel"}), "reason"),
    ];
    for (request, field) in &good {
        let answer = ask(&mut requests, request);
        assert!(!answer[field].is_null(), "{request}: {answer}");
        // What a job does not understand is not a request by the schema either, and the other way round.
        let understood = answer["error"] != "bad_request";
        assert_eq!(schemas.errors("control-request", request).is_empty(), understood, "{request}: {answer}");
    }
    let bad = [
        json!([]),
        json!({"op": "list"}),
        json!({"v": 1, "op": "list"}),
        json!({"v": "2", "op": "list"}),
        json!({"v": 2}),
        json!({"v": 2, "op": "List"}),
        json!({"v": 2, "op": "list", "x": 1}),
        json!({"v": 2, "op": "migrate"}),
        json!({"v": 2, "op": "migrate", "to": 7}),
        json!({"v": 2, "op": "migrate", "to": "local", "gpu": -1}),
        json!({"v": 2, "op": "migrate", "to": "local", "deadline": 5}),
        json!({"v": 2, "op": "migrate", "to": "local", "wait": "no"}),
        json!({"v": 2, "op": "migrate", "to": "local", "id": ""}),
        json!({"v": 2, "op": "migrate", "to": "local", "id": "a b"}),
        json!({"v": 2, "op": "migrate", "to": "local", "id": "x".repeat(65)}),
        json!({"v": 2, "op": "suspend", "gpu": 0}),
        json!({"v": 2, "op": "resume", "to": "local", "id": "é"}),
        json!({"v": 2, "op": "cancel", "id": 1}),
        json!({"v": 2, "op": "report", "wait": true}),
        json!({"v": 2, "op": "report", "wait": true, "id": null}),
    ];
    for bad in bad {
        assert_eq!(ask(&mut requests, &bad)["ok"], false, "{bad}");
        assert!(!schemas.errors("control-request", &bad).is_empty(), "{bad}");
    }
    let mut kinds = Vec::new();
    while kinds.iter().filter(|kind| *kind == "ended").count() < 3 {
        kinds.push(read(&mut events)["event"].as_str().unwrap().to_owned());
    }
    assert!(kinds.iter().any(|kind| kind == "progress"), "{kinds:?}");
    // The schemas are not satisfied by anything.
    let response = ask(&mut requests, &json!({"v": 2, "op": "list"}));
    for (field, value) in [("ok", json!(false)), ("v", json!(3)), ("unknown", json!(1))] {
        let mut wrong = response.clone();
        wrong[field] = value;
        assert!(!schemas.errors("control-response", &wrong).is_empty(), "{field}");
    }
    for wrong in
        [json!({}), json!({"v": 2, "ok": true}), json!({"v": 2, "ok": true, "job": {"pid": "7"}}), json!({"v": 2, "ok": false})]
    {
        assert!(!schemas.errors("control-response", &wrong).is_empty(), "{wrong}");
    }
}
