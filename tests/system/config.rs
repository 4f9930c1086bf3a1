//! Configuration files.

use crate::{LIMIT, wait_for_step};
use serde_json::Value;
use std::path::Path;
use tests::{Job, Scene, Server};

/// Writes the user's file.
fn write(scene: &Scene, text: &str) {
    let directory = scene.path.join("mrcuda");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.toml"), text).unwrap();
}

/// A job that is started with these options and variables, and where it runs.
fn start<'a>(scene: &'a Scene, options: &[&str], env: &[(&str, &str)]) -> (Job<'a>, String) {
    let mut job = Job::orbit(scene, "job", options, &["--steps", "100000", "--pace", "3000", "--progress"], env);
    let status = job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    wait_for_step(&mut job, 10);
    let place = status["devices"][0]["place"].as_str().unwrap().to_owned();
    (job, place)
}

#[test]
fn a_job_runs_where_file_variable_and_option_say() {
    let scene = Scene::new("config");
    let server = Server::start(&scene, "one");
    write(&scene, &format!("[run]\nserver = '{}'\n\n[move]\ndeadline = '0s'\n", server.place(0)));
    let (job, place) = start(&scene, &[], &[]);
    assert_eq!(place, server.place(0));
    // The limit of moves is in the file, too.
    let report = job.migrate("local").unwrap();
    assert!(!report.ok() && report.code() == "deadline-exceeded", "{}", report.0);
    let report = job.migrate_with("local", &["--deadline", "60s"]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    drop(job);
    let environment = [("MRCUDA_SERVERS", "helper:0")];
    assert_eq!(start(&scene, &[], &environment).1, "helper:0");
    assert_eq!(start(&scene, &["--server", "local:0"], &environment).1, "local:0");
    assert_eq!(start(&scene, &[], &[("MRCUDA_CONFIG", "")]).1, "local:0");
}

#[test]
fn a_program_gets_what_files_set() {
    let scene = Scene::new("configenv");
    write(&scene, "[run]\nserver = 'a:1'\n[log]\nfilter = 'debug'\n[job]\ncopy-threads = 3\n[move]\nconnections = 5\n");
    let script = "echo $MRCUDA_SERVERS $MRCUDA_LOG $MRCUDA_COPY_THREADS $MRCUDA_MOVE_CONNECTIONS";
    let run = |env: &[(&str, &str)]| {
        let outcome = Job::start(&scene, "env", &[], Path::new("sh"), &["-c", script], env).wait(LIMIT);
        assert!(outcome.ok(), "{outcome:?}");
        outcome.stdout.trim().to_owned()
    };
    assert_eq!(run(&[]), "a:1 debug 3 5");
    assert_eq!(run(&[("MRCUDA_COPY_THREADS", "1"), ("MRCUDA_LOG", "")]), "a:1 1 5");
    let output = scene.mrcuda().args(["run", "--driver", "soft", "--export"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("export MRCUDA_SERVERS='a:1'\n") && text.contains("export MRCUDA_COPY_THREADS='3'\n"), "{text}");
}

#[test]
fn a_wrong_file_is_named_with_its_line() {
    let scene = Scene::new("configwrong");
    let ask = |args: &[&str]| {
        let output = scene.mrcuda().args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let path = scene.path.join("mrcuda/config.toml").display().to_string();
    let run = ["run", "--driver", "soft", "--", "true"];
    write(&scene, "[run]\nsignal = 'USR2'\n");
    assert_eq!(ask(&run), (Some(0), String::new(), String::new()));
    let (code, out, _) = ask(&["config", "show"]);
    let line = out.lines().find(|line| line.starts_with("run.signal ")).unwrap_or_else(|| panic!("{out}"));
    assert!(code == Some(0) && line.ends_with("  USR2") && line.contains(&format!(" {path}:2 ")), "{line}");
    assert!(ask(&["config", "check", &path]).1.contains("1 setting, nothing is wrong"));
    write(&scene, "[run]\nsignl = 'USR2'\n\n[serve]\nwarm = 'x'\n");
    for args in [&run[..], &["serve"], &["migrate", "1", "--to", "local"], &["gpus"], &["config", "show"]] {
        let (code, _, err) = ask(args);
        let words = format!("mrcuda: {path}:2: [run] has no setting `signl`; did you mean `signal`?\n");
        assert_eq!((code, err), (Some(2), words), "{args:?}");
    }
    assert_eq!((ask(&["ps"]).0, ask(&["run", "--help"]).0), (Some(0), Some(0)));
    let (code, out, _) = ask(&["config", "check", &path]);
    assert!(code == Some(1) && out.lines().count() == 2 && out.contains(&format!("{path}:5: [serve] warm is `x`: ")), "{out}");
    let (code, out, _) = ask(&["doctor", "--driver", "soft"]);
    assert!(code == Some(1) && out.contains("settings") && out.contains(&format!("{path}:2: ")), "{out}");
    let json = scene.mrcuda().args(["config", "show", "--json"]).env("MRCUDA_CONFIG", "").output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["files"] == Value::Array(Vec::new()) && json["settings"].as_array().is_some_and(|all| all.len() > 30), "{json}");
}
