//! Lists of jobs: names, states, repeated lists; and jobs that are named by the script that has started them.

use crate::{LIMIT, wait_for_step};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Job, Scene, Server};

/// Does not end by itself.
const ENDLESS: [&str; 5] = ["--steps", "100000", "--pace", "3000", "--progress"];

/// Exit code, stdout and stderr of a command.
fn ask(scene: &Scene, args: &[&str]) -> (Option<i32>, String, String) {
    let output = scene.mrcuda().args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn jobs_have_names_and_true_states() {
    let scene = Scene::new("names");
    let server = Server::start(&scene, "one");
    let place = server.place(0);
    let mut job = Job::orbit(&scene, "named", &["--server", &place, "--name", "night-7"], &ENDLESS, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 20);
    let pid = job.pid().to_string();
    // Jobs of other tests are listed as well.
    let row = |args: &[&str]| {
        let (code, out, err) = ask(&scene, args);
        assert_eq!(code, Some(0), "{out}{err}");
        out.lines().find(|line| line.trim_start().starts_with(&format!("{pid} "))).unwrap_or_default().to_owned()
    };
    let shown = row(&["ps"]);
    assert!(shown.contains("  night-7  ") && shown.contains("running") && !shown.contains("orbit"), "{shown}");
    let (_, out, _) = ask(&scene, &["plan", &pid, "--to", "local"]);
    assert!(out.starts_with("night-7, "), "{out}");
    assert!(job.migrate("local").unwrap().ok());
    let (_, out, _) = ask(&scene, &["moves", "--program", "night"]);
    assert!(out.contains(&format!("{pid}  night-7  m1")), "{out}");
    let (_, out, _) = ask(&scene, &["moves", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()[0]["name"], "night-7");

    job.signal(libc::SIGSTOP);
    let stopped = wait_for(LIMIT, || Some(row(&["ps"])).filter(|shown| shown.contains("stopped")));
    assert!(stopped.is_some_and(|shown| shown.contains("night-7")));
    let listed = scene.jobs().unwrap().remove(0);
    assert!(
        listed["state"] == "stopped" && listed["name"] == "night-7" && listed["devices"] == serde_json::json!([]),
        "{listed}"
    );
    assert!(listed["reason"].as_str().unwrap().contains("kill -CONT"), "{listed}");
    let (code, _, err) = ask(&scene, &["plan", &pid, "--to", "local"]);
    assert!(code == Some(1) && err.contains("the process is stopped") && err.lines().count() == 1, "{err}");
    job.signal(libc::SIGCONT);
    // Root sees its own jobs as well as others', and everybody a user.
    assert!(row(&["ps", "--all"]).contains("  night-7  "));

    for name in ["", "a b", "a/b", &"x".repeat(65)] {
        let (code, _, err) = ask(&scene, &["run", "--driver", "soft", "--name", name, "--", "true"]);
        assert!(code == Some(2) && err.contains("1 to 64 letters"), "{name}: {err}");
    }
    let output = scene.mrcuda().args(["run", "--driver", "soft", "--", "true"]).env("MRCUDA_NAME", "a b").output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && err.contains("MRCUDA_NAME is `a b`"), "{err}");
}

#[test]
fn lists_are_repeated_until_the_reader_goes_or_ctrl_c() {
    let scene = Scene::new("watch");
    let watch = |options: &[&str]| {
        let mut command = scene.mrcuda();
        command.args(["ps", "--watch", "0.1"]).args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut child = watch(&[]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Those of other tests may be listed.
    let mut lists = 0;
    while lists < 3 {
        let line = lines.next().unwrap().unwrap();
        lists += i32::from(line == "no jobs" || line.contains("  PLACE  "));
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let mut child = watch(&["--json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(serde_json::from_str::<Vec<Value>>(&lines.next().unwrap().unwrap()).is_ok());
    signal(child.id(), libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    for interval in ["0", "x", "1e9"] {
        let (code, _, err) = ask(&scene, &["ps", "--watch", interval]);
        assert!(code == Some(2) && err.contains("a number of seconds"), "{err}");
    }
}

/// Starts a shell with jobs; it ends when they have ended.
fn shell(scene: &Scene, script: &str) -> std::process::Child {
    let mut command = Command::new("sh");
    scene.dress(&mut command);
    let orbit = format!("{} {}", scene.install.file("orbit").display(), ENDLESS[..4].join(" "));
    let run = format!("{} run --driver soft -- {orbit}", scene.install.file("mrcuda").display());
    command.args(["-c", &script.replace("RUN", &run)]).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("ORBIT_END", scene.path.join("end")).spawn().unwrap()
}

fn jobs(scene: &Scene) -> Vec<Value> {
    scene.jobs().unwrap_or_default()
}

/// A process's own socket, at which something else listens than a job.
fn impostor(scene: &Scene) -> (String, UnixListener) {
    let directory = scene.runtime().join("mrcuda");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let own = std::process::id().to_string();
    let listener = UnixListener::bind(directory.join(&own)).unwrap();
    (own, listener)
}

#[test]
fn a_job_that_never_ends_its_answer_is_listed() {
    let scene = Scene::new("drip");
    let (own, listener) = impostor(&scene);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                while stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(200));
                }
            });
        }
    });
    let (code, out, err) = ask(&scene, &["ps"]);
    let row = out.lines().find(|line| line.trim_start().starts_with(&own)).unwrap_or_default();
    assert!(code == Some(0) && row.contains("  not answering"), "{out}{err}");
    assert!(err.contains(&format!("job {own}: the job does not answer")), "{err}");
    let (code, out, _) = ask(&scene, &["ps", "--json"]);
    let all: Vec<Value> = serde_json::from_str(&out).unwrap();
    let listed = all.iter().find(|job| job["pid"] == std::process::id()).expect("it is listed");
    assert!(code == Some(0) && listed["state"] == "not_answering" && listed["reason"].is_string(), "{listed}");
    for command in [&["moves", &own][..], &["migrate", &own, "--to", "local"]] {
        let (code, _, err) = ask(&scene, command);
        assert!(code == Some(1) && err.contains("does not answer"), "{command:?}: {err}");
    }
}

#[test]
fn a_refusal_is_one_line() {
    let scene = Scene::new("forged");
    let (own, listener) = impostor(&scene);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let refusal = r#"{"v":2,"ok":false,"error":"busy","reason":"a\nmrcuda: all is well\u202e"}"#;
            stream.write_all(format!("{refusal}\n").as_bytes()).unwrap();
        }
    });
    let (code, out, err) = ask(&scene, &["migrate", &own, "--to", "local"]);
    assert!(code == Some(1) && out.is_empty() && err.lines().count() == 1, "{out}{err}");
    assert!(err.contains(r"a\u000amrcuda: all is well\u202e"), "{err}");
}

#[test]
fn a_job_is_found_whatever_runtime_directory_the_command_has() {
    let scene = Scene::new("elsewhere");
    let mut job = Job::orbit(&scene, "moved", &[], &ENDLESS, &[]);
    job.wait_ready(LIMIT).unwrap();
    let pid = job.pid().to_string();
    let elsewhere = |args: &[&str]| {
        let output = scene.mrcuda().args(args).env_remove("XDG_RUNTIME_DIR").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, out) = elsewhere(&["ps", "--all"]);
    assert!(code == Some(0) && out.contains(&pid), "{out}");
    let (code, out) = elsewhere(&["ps"]);
    assert!(code == Some(0) && !out.contains(&pid), "{out}");
    let (code, out) = elsewhere(&["migrate", &pid, "--to", "helper"]);
    assert!(code == Some(0) && out.contains("-> helper:0: moved"), "{out}");
}

#[test]
fn a_directory_that_is_refused_hides_no_other_jobs() {
    let scene = Scene::new("open");
    std::fs::DirBuilder::new().mode(0o755).create(scene.runtime().join("mrcuda")).unwrap();
    let (code, _, err) = ask(&scene, &["ps", "--all"]);
    assert!(code == Some(0) && err.contains("must be 0700"), "{err}");
    let (code, _, err) = ask(&scene, &["ps"]);
    assert!(code == Some(1) && err.contains("must be 0700"), "{err}");
}

#[test]
fn the_first_process_stands_for_no_job() {
    let scene = Scene::new("init");
    let mut job = Job::orbit(&scene, "moved", &[], &ENDLESS, &[]);
    job.wait_ready(LIMIT).unwrap();
    let (code, out, err) = ask(&scene, &["suspend", "1"]);
    assert!(code == Some(1) && out.is_empty() && err.lines().count() == 1, "{out}{err}");
    assert_eq!(job.status().unwrap()["devices"][0]["state"], "running");
}

#[test]
fn the_process_of_a_script_stands_for_its_only_job() {
    let scene = Scene::new("script");
    let mut script = shell(&scene, "RUN; true");
    assert!(wait_for(LIMIT, || (jobs(&scene).len() == 1).then_some(())).is_some());
    let (pid, job) = (script.id().to_string(), jobs(&scene)[0]["pid"].to_string());
    assert_ne!(pid, job);
    for command in
        [&["plan", &pid, "--to", "helper"][..], &["migrate", &pid, "--to", "helper"], &["suspend", &pid], &["resume", &pid]]
    {
        let (code, out, err) = ask(&scene, command);
        assert!(code == Some(0) && err.contains(&format!("has started one: {job} (orbit)")), "{command:?}: {out}{err}");
    }
    let (code, out, _) = ask(&scene, &["moves", &pid, "--json"]);
    assert_eq!((code, serde_json::from_str::<Vec<Value>>(&out).unwrap().len()), (Some(0), 3));
    std::fs::write(scene.path.join("end"), "").unwrap();
    assert!(script.wait().unwrap().success());
}

#[test]
fn several_jobs_of_a_script_are_listed() {
    let scene = Scene::new("scripts");
    let mut script = shell(&scene, "RUN & RUN & wait; true");
    assert!(wait_for(LIMIT, || (jobs(&scene).len() == 2).then_some(())).is_some());
    let pid = script.id().to_string();
    let (code, out, err) = ask(&scene, &["migrate", &pid, "--to", "helper"]);
    assert!(code == Some(1) && out.is_empty() && err.lines().count() == 1, "{out}{err}");
    for job in jobs(&scene) {
        assert!(err.contains(&format!("{} (orbit)", job["pid"])), "{err}");
    }
    let (code, out, _) = ask(&scene, &["migrate", &pid, "--to", "helper", "--json"]);
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &said["error"], &said["code"]), (Some(1), &"several_jobs".into(), &"several-jobs".into()));
    std::fs::write(scene.path.join("end"), "").unwrap();
    let ended = wait_for(LIMIT + Duration::from_secs(10), || script.try_wait().unwrap());
    assert!(ended.is_some_and(|status| status.success()));
}
