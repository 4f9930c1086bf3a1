//! The benchmark from end to end, models made of it, and what they are used for.

use crate::{LIMIT, LONG, remote_orbit, wait_for_step};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tests::scene::wait_for;
use tests::{Scene, Server};

/// Runs a command that must end in time.
#[track_caller]
fn output(command: &mut Command) -> Output {
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it cannot be started");
    let ended = wait_for(2 * LIMIT, || child.try_wait().ok().flatten());
    if ended.is_none() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_some(), "it did not end: {}", words(&output));
    output
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn bench(scene: &Scene, out: &Path, options: &[&str]) -> (String, Value) {
    let mut command = scene.mrcuda();
    command
        .args(["bench", "--quick"])
        .args(options)
        .arg("--out")
        .arg(out)
        .env("MRCUDA_DRIVER", scene.install.file("libsoftgpu.so"));
    let output = output(&mut command);
    assert!(output.status.success(), "{}", words(&output));
    let text = std::fs::read_to_string(out.join("bench.json")).unwrap();
    (words(&output), serde_json::from_str(&text).unwrap())
}

/// Percentiles that can be: positive, in order.
#[track_caller]
fn assert_times(times: &Value) {
    let of = |key: &str| times[key].as_f64().unwrap_or(-1.0);
    assert!(of("n") >= 1.0 && of("p50") > 0.0, "{times}");
    assert!(of("p50") <= of("p90") && of("p90") <= of("p99") && of("p99") <= of("max"), "{times}");
}

#[test]
fn a_benchmark_gives_models_and_models_give_predictions() {
    let scene = Scene::new("bench");
    let out = scene.path.join("first");
    let (said, file) = bench(&scene, &out, &[]);
    assert!(said.contains("softgpu (the CPU driver: these figures say nothing of hardware)"), "{said}");
    assert_eq!((file["kind"].as_str(), file["v"].as_u64()), (Some("mrcuda-bench"), Some(1)));
    assert_eq!((file["machine"]["soft"].as_bool(), file["quick"].as_bool()), (Some(true), Some(true)));
    assert!(
        file["machine"]["cores"].as_u64() >= Some(1) && file["date"].as_str().is_some_and(|d| d.len() == 10),
        "{}",
        file["machine"]
    );
    let cases = file["calls"]["cases"].as_object().unwrap();
    assert!(cases.len() >= 25, "{cases:?}");
    for (case, paths) in cases {
        for path in ["native", "in-process", "tcp", "tls"] {
            let missing = file["absent"].get(format!("{case} on {path}")).is_some();
            // What is not there is said to be absent and has no figures, not even zeros.
            assert_ne!(missing, paths.get(path).is_some(), "{case} on {path}");
        }
        paths.as_object().unwrap().values().for_each(assert_times);
    }
    for way in ["tcp", "unix", "shared memory"] {
        assert_times(&file["round_trips"]["ways"][way]);
    }
    for path in ["native", "in-process", "tls"] {
        assert_times(&file["start"]["paths"][path]);
    }
    // Rows of appends have their time each; the row of a plan has the times of the copy and of the plan.
    let took = |row: &Value| ["ns", "plan_ms"].iter().any(|key| row[key].as_f64() > Some(0.0));
    assert!(file["record"].as_array().is_some_and(|rows| rows.iter().all(took)), "{}", file["record"]);
    let moves = file["moves"].as_array().unwrap();
    assert!(moves.iter().any(|m| m["way"] == "tls->in-process") && moves.iter().all(|m| m["report"]["ok"] == true), "{moves:?}");
    assert!(file["goals"].as_array().is_some_and(|goals| goals.iter().all(|g| g["met"].is_boolean())), "{}", file["goals"]);
    for plot in ["memsync.svg", "downtime.svg", "replay.svg", "copies-in.svg"] {
        assert!(std::fs::read_to_string(out.join(plot)).unwrap().contains("<circle"), "{plot}");
    }

    // Models, where a plan looks for them.
    let fit = output(scene.mrcuda().args(["models", "fit"]).arg(out.join("bench.json")));
    assert!(fit.status.success() && words(&fit).contains("memsync"), "{}", words(&fit));
    let models = scene.path.join("mrcuda").join("models.json");
    let text = std::fs::read_to_string(&models).unwrap();
    // Each overhead has one.
    for what in ["record", "replay", "memsync", "downtime", "forwarding", "native"] {
        assert!(text.contains(&format!("\"{what}\"")), "{what}: {text}");
    }

    // Other runs tell whether they hold; a thousand times too dear, they do not, however busy the machine was.
    let other = scene.path.join("other");
    bench(&scene, &other, &["--validation", "--only", "record"]);
    let validate = |models: &Path| {
        let plot = scene.path.join("validation.svg");
        let output = output(
            scene.mrcuda().args(["models", "validate"]).arg(models).arg(other.join("bench.json")).arg("--plot").arg(&plot),
        );
        assert!(
            words(&output).contains("journal") && std::fs::read_to_string(&plot).unwrap().contains("<circle"),
            "{}",
            words(&output)
        );
        output
    };
    validate(&models);
    let mut wrong: Value = serde_json::from_str(&text).unwrap();
    for cost in wrong["models"].as_array_mut().unwrap().iter_mut().flat_map(|m| m["terms"].as_object_mut().unwrap().values_mut())
    {
        *cost = Value::from(cost.as_f64().unwrap() * 1000.0);
    }
    let path = scene.path.join("wrong.json");
    std::fs::write(&path, wrong.to_string()).unwrap();
    let found = validate(&path);
    assert!(found.status.code() == Some(1) && words(&found).contains("WRONG"), "{}", words(&found));

    // What a plan makes of them.
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "planned", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 50);
    let plan = || {
        let output = output(scene.mrcuda().args(["migrate", &job.pid().to_string(), "--to", "local", "--dry-run", "--json"]));
        assert!(output.status.success(), "{}", words(&output));
        let mut plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let predicted = plan["predicted"].take();
        let of = |key: &str| predicted[key].as_f64().unwrap_or(-1.0);
        assert!(of("downtime_ms") > 0.0 && of("total_ms") > of("downtime_ms"), "{predicted}");
        predicted["warnings"].to_string()
    };
    assert!(!plan().contains("built-in"), "the models are of this machine");
    std::fs::write(&models, "{\"kind\":\"mrcuda-models\"}").unwrap();
    let warnings = plan();
    assert!(warnings.contains("models.json") && warnings.contains("built-in"), "{warnings}");
    std::fs::remove_file(&models).unwrap();
    assert!(plan().contains("built-in"));
}

#[test]
fn long_links_many_clients_and_other_drivers_are_measured() {
    let scene = Scene::new("bench-links");
    let (out, soft) = (scene.path.join("out"), scene.install.file("libsoftgpu.so"));
    let against = soft.to_str().unwrap();
    let (said, file) =
        bench(&scene, &out, &["--only", "start,bulk,peer,scale,wan", "--delay", "5ms", "--rate", "10G", "--against", against]);
    assert_times(&file["start"]["paths"]["against"]);
    let rows = |part: &str| file[part].as_array().unwrap_or_else(|| panic!("{part}: {said}")).clone();
    for (part, figure) in [("bulk", "seconds"), ("scale", "waits_a_second")] {
        for path in ["tcp", "shm", "raw tcp", "against"] {
            let mine: Vec<Value> = rows(part).into_iter().filter(|r| r["path"] == path).collect();
            assert!(!mine.is_empty() && mine.iter().all(|r| r[figure].as_f64() > Some(0.0)), "{part} on {path}: {said}");
        }
    }
    for path in ["tcp", "tls", "raw tcp"] {
        let mine: Vec<Value> = rows("peer").into_iter().filter(|r| r["path"] == path).collect();
        assert!(!mine.is_empty() && mine.iter().all(|r| r["seconds"].as_f64() > Some(0.0)), "peer on {path}: {said}");
        assert!(mine.iter().all(|r| r["staged_seconds"].is_null() == (path == "raw tcp")), "peer on {path}: {said}");
    }
    let wan = &file["wan"];
    // The loss is waited for. What a link adds cannot be less than that.
    assert_eq!(wan["step"]["waits"].as_f64(), Some(1.0), "{wan}");
    assert!(wan["step"]["bytes"].as_f64() > Some(65536.0), "{wan}");
    let links = wan["links"].as_array().unwrap();
    let of = |link: usize, key: &str| links[link][key].as_f64().unwrap();
    assert_eq!((links.len(), of(0, "delay_s"), of(1, "delay_s")), (2, 0.0, 0.005));
    assert!(of(1, "step_s") >= 0.005 && of(1, "raw_s") >= 0.005 && of(1, "start_s") >= 0.02, "{wan}");
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    for part in
        ["<h2>Long links (10000.0 Mbit/s)", "<h2>Large copies", "<h2>Threads of a client", "fit: ", "Steps over long links"]
    {
        assert!(report.contains(part), "{part}");
    }
    assert_eq!(report.matches("<svg").count(), 7);

    // Servers that run already, with their own token.
    let server = Server::start(&scene, "one");
    let place = server.place(0);
    let (said, file) = bench(&scene, &scene.path.join("other"), &["--only", "start", "--server", &place]);
    assert_times(&file["start"]["paths"][&place]);
    assert!(file["start"]["paths"].get("tcp").is_none(), "{said}");
}

#[test]
fn mistakes_have_clear_errors() {
    let scene = Scene::new("bencherr");
    let file = scene.path.join("file.json");
    std::fs::write(&file, "{}").unwrap();
    let path = file.to_str().unwrap();
    for (args, want) in [
        (&["models", "fit", path][..], "missing field"),
        (&["models", "fit", "no-such-file"], "no-such-file"),
        (&["models", "validate", path, path], "missing field"),
    ] {
        let output = output(scene.mrcuda().args(args));
        assert!(output.status.code() == Some(1) && words(&output).contains(want), "{want}: {}", words(&output));
    }
    let unknown = output(scene.mrcuda().args(["bench", "--only", "everything"]));
    assert!(unknown.status.code() == Some(2) && words(&unknown).contains("calls, start, record, moves"), "{}", words(&unknown));
    for (option, value, want) in [("--delay", "10", "us, ms or s"), ("--rate", "fast", "bits a second")] {
        let output = output(scene.mrcuda().args(["bench", option, value]));
        assert!(output.status.code() == Some(2) && words(&output).contains(want), "{want}: {}", words(&output));
    }
}

#[test]
fn experiments_of_papers_are_repeated() {
    let scene = Scene::new("bench-papers");
    let (out, soft) = (scene.path.join("out"), scene.install.file("libsoftgpu.so"));
    let names = ["mrcuda-runtime", "migration-priority", "rcuda-product", "p2p-first"];
    let empty = scene.path.join("no-programs");
    std::fs::create_dir(&empty).unwrap();
    let mut command = scene.mrcuda();
    command.args(["bench", "paper", "--quick"]).args(names).arg("--apps").arg(&empty).arg("--out").arg(&out);
    let output_of = |command: &mut Command| {
        let output = output(command.env("MRCUDA_DRIVER", &soft));
        assert!(output.status.success(), "{}", words(&output));
        words(&output)
    };
    let said = output_of(&mut command);
    let file: Value = serde_json::from_str(&std::fs::read_to_string(out.join("paper.json")).unwrap()).unwrap();
    assert_eq!((file["kind"].as_str(), file["v"].as_u64()), (Some("mrcuda-paper"), Some(1)));
    assert_eq!((file["quick"].as_bool(), file["gpus"].as_u64()), (Some(true), Some(3)));
    let experiments = file["experiments"].as_array().unwrap();
    assert_eq!(experiments.len(), names.len(), "{said}");
    let report = std::fs::read_to_string(out.join("report.html")).unwrap();
    for experiment in experiments {
        let name = experiment["name"].as_str().unwrap();
        assert!(report.contains(&format!("<h2 id=\"{name}\">")), "{name}: {said}");
        // All of the paper's figures are there, and ours beside them unless it is said why not.
        let published = experiment["published"].as_array().unwrap();
        let absent = experiment["absent"].as_object().unwrap();
        assert!(
            published.iter().all(|p| p["paper"].is_string() && (p["here"].is_string() || !absent.is_empty())),
            "{experiment}"
        );
        if name == "rcuda-product" {
            // Its program is not there: that is said, and nothing is drawn.
            assert!(absent.contains_key("gemm") && !out.join(format!("{name}.svg")).exists(), "{experiment}");
            continue;
        }
        let series = experiment["plots"][0]["series"].as_array().unwrap();
        let points = series.iter().flat_map(|s| s["points"].as_array().unwrap());
        let numbers = points.map(|p| [0, 1].map(|n| p[n].as_f64().unwrap()));
        assert!(numbers.clone().count() > 0 && numbers.flatten().all(|n| n.is_finite()), "{experiment}");
        let plot = std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap();
        assert!(plot.contains("<circle") && series.iter().any(|s| plot.contains(s["name"].as_str().unwrap())), "{name}");
    }
    // A whole run is natively and remote, whether or not a busy machine lets it be moved in time.
    let run = &experiments[0]["plots"][0]["series"];
    let of = |name: &str| run.as_array().unwrap().iter().find(|s| s["name"] == name).unwrap()["points"][1][1].as_f64();
    assert!(of("native") > Some(0.0) && of("tls") > Some(0.0), "{run}");
    // Each job gets to its end, moved or not.
    let jobs = experiments.iter().find(|e| e["name"] == "migration-priority").unwrap()["plots"][0]["series"].as_array().unwrap();
    let ends = |job: &Value| job["points"].as_array().unwrap().iter().any(|point| point[1].as_f64() == Some(100.0));
    assert!(jobs.len() == 4 && jobs.iter().all(ends), "{jobs:?}");
    assert!(report.contains("Figures and tables that are not repeated"));

    // With one GPU: what needs two says so, and the job that makes room is parked.
    let alone = scene.path.join("alone");
    let mut command = scene.mrcuda();
    command.args(["bench", "paper", "--quick", "migration-priority", "migration-balance", "--out"]).arg(&alone);
    let said = output_of(command.env("SOFTGPU_DEVICES", "1"));
    let file: Value = serde_json::from_str(&std::fs::read_to_string(alone.join("paper.json")).unwrap()).unwrap();
    let of = |name: &str| file["experiments"].as_array().unwrap().iter().find(|e| e["name"] == name).unwrap().clone();
    assert_eq!(of("migration-balance")["absent"]["balance"], "it needs 2 GPUs, and this machine has 1");
    assert!(of("migration-priority")["tables"].to_string().contains("the long job parked in memory"), "{said}");

    let listed = output_of(scene.mrcuda().args(["bench", "paper", "--list"]));
    let pages = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/papers.md")).unwrap();
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.iter().all(|name| listed.contains(name)));
    assert!(listed.iter().all(|name| pages.contains(&format!("| `{name}`: "))), "{listed:?}");
    let unknown = output(scene.mrcuda().args(["bench", "paper", "mrcuda-1"]).env("MRCUDA_DRIVER", &soft));
    assert!(unknown.status.code() == Some(2) && words(&unknown).contains("--list"), "{}", words(&unknown));
}

#[test]
fn whole_programs_are_compared_with_native_runs() {
    let scene = Scene::new("bench-apps");
    let directory = scene.path.join("two");
    std::fs::create_dir(&directory).unwrap();
    for name in ["base64", "streams"] {
        std::os::unix::fs::symlink(tests::Programs::get().app(name), directory.join(name)).unwrap();
    }
    let options = ["--only", "apps", "--apps", directory.to_str().unwrap()];
    let (said, file) = bench(&scene, &scene.path.join("out"), &options);
    assert!(said.contains("local    2 of 2 as native"), "{said}");
    for mode in ["tcp", "unix", "local", "helper", "moved"] {
        let figures = &file["apps"]["modes"][mode];
        assert_eq!((figures["runs"].as_u64(), figures["as_native"].as_u64()), (Some(2), Some(2)), "{mode}: {said}");
        assert!(figures["median_ratio"].as_f64() > Some(0.0), "{mode}: {figures}");
    }
    assert!(file["calls"].is_null(), "other parts were measured, too");
    let goals = file["goals"].as_array().unwrap();
    assert!(goals.iter().any(|g| g["what"].as_str().is_some_and(|what| what.starts_with("apps, tcp: "))), "{goals:?}");
}
