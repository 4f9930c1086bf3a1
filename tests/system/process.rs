//! What processes do with CUDA besides computing: end, exec, close and open libraries, reset devices.

use crate::LIMIT;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tests::{Job, Random, Scene, Server, install};

/// Builds a program of tests/programs/process in the scene's directory.
#[track_caller]
pub(crate) fn build(scene: &Scene, name: &str) -> PathBuf {
    let program = scene.path.join(name);
    let source = install::root().join(format!("tests/programs/process/{name}.c"));
    let status = Command::new("cc").arg("-o").arg(&program).arg(source).args(["-std=gnu11", "-w", "-pthread", "-ldl"]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
    program
}

/// Builds the program in the scene's directory, and says what it answers natively in this mode.
#[track_caller]
fn native(scene: &Scene, mode: &str) -> (PathBuf, String) {
    let program = build(scene, "process");
    let native = Job::native(scene, "native", &program, &[mode]).wait(LIMIT);
    assert!(native.ok() && native.stdout.lines().count() > 5, "{native:?}");
    (program, native.stdout)
}

/// The program's answers in this mode are the native ones, remote and in-process.
#[track_caller]
fn same_as_native(mode: &str) {
    let scene = Scene::new(mode);
    let (program, native) = native(&scene, mode);
    let server = Server::start(&scene, "one");
    for (name, place) in
        [("remote", server.place(0)), ("unix", server.unix_place(0)), ("inside", "local".into()), ("helper", "helper".into())]
    {
        let job = Job::start(&scene, name, &["--server", &place], &program, &[mode], &[]).wait(LIMIT);
        assert!(job.ok() && job.stderr.is_empty(), "{name}: {job:?}");
        assert_eq!(job.stdout, native, "{name}");
    }
}

#[test]
fn process_ends_and_its_exit_handlers_call_cuda() {
    same_as_native("exit");
}

#[test]
fn process_ends_after_a_move_and_its_exit_handlers_call_cuda() {
    let scene = Scene::new("exit-moved");
    let (program, native) = native(&scene, "exit");
    let server = Server::start(&scene, "one");
    let places = [server.place(0), "local".into(), "helper".into()];
    for (number, from) in places.iter().enumerate() {
        let to = &places[(number + 1) % places.len()];
        let go = scene.path.join(format!("go-{number}"));
        let args = ["exit", go.to_str().expect("a path")];
        let mut job = Job::start(&scene, &format!("job-{number}"), &["--server", from], &program, &args, &[]);
        job.wait_ready(LIMIT).expect("ready");
        let report = job.migrate(to).expect("an answer");
        assert!(report.ok(), "{from} -> {to}: {}", report.reason());
        std::fs::write(&go, "").expect("go");
        let job = job.wait(LIMIT);
        assert!(job.ok() && job.stdout == native, "{from} -> {to}: {job:?}");
    }
}

/// The driver that is being opened in the process is not taken down before the move has been given up.
#[test]
fn process_ends_while_it_is_moved_into() {
    let scene = Scene::new("exit-moving");
    ends_while_moved(&scene, "local");
}

/// The move is given up by messages to both servers, in exit handlers: the thread-local objects of the thread are gone.
#[test]
fn process_ends_while_it_is_moved_between_servers() {
    let scene = Scene::new("exit-between");
    let target = Server::start(&scene, "two");
    ends_while_moved(&scene, &target.place(0));
}

/// Ends processes at random moments of a move to `target`.
fn ends_while_moved(scene: &Scene, target: &str) {
    let (program, native) = native(scene, "exit");
    let server = Server::start(scene, "one");
    let mut random = Random::new(11);
    for number in 0..12 {
        let (go, log) = (scene.path.join(format!("go-{number}")), scene.path.join(format!("job-{number}.log")));
        let (args, log_text) = (["exit", go.to_str().expect("a path")], log.display().to_string());
        let env = [("MRCUDA_LOG", log_text.as_str())];
        let mut job = Job::start(scene, &format!("job-{number}"), &["--server", &server.place(0)], &program, &args, &env);
        job.wait_ready(LIMIT).expect("ready");
        let pause = Duration::from_micros(random.below(150_000));
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(pause);
                std::fs::write(&go, "").expect("go");
            });
            // It may come in time, be given up, or find nobody any more.
            let _ = job.migrate(target);
        });
        let job = job.wait(LIMIT);
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(job.ok() && job.stdout == native, "after {pause:?}: {job:?}\n{log}");
        assert!(!log.contains("DEINITIALIZED"), "after {pause:?}: {log}");
    }
}

#[test]
fn process_closes_and_opens_the_library() {
    same_as_native("close");
}

#[test]
fn process_execs_children_with_jobs_of_their_own() {
    same_as_native("exec");
}

#[test]
fn process_resets_the_device() {
    same_as_native("reset");
}

#[test]
fn process_finds_code_that_another_one_has_compiled() {
    let scene = Scene::new("compiled");
    let (program, server) = (build(&scene, "compiled"), Server::start(&scene, "one"));
    let places =
        [("remote", server.place(0)), ("unix", server.unix_place(0)), ("inside", "local".into()), ("helper", "helper".into())];
    let run = |(name, place): (&str, &str), text: &str, env: &[(&str, &str)]| {
        let job = Job::start(&scene, name, &["--server", place], &program, &[text], env).wait(LIMIT);
        assert!(job.ok() && job.stderr.is_empty(), "{name}: {job:?}");
        job.stdout
    };
    for (name, place) in &places {
        // The first text is made by the first of them, and known to the others.
        assert_eq!(run((name, place), "text", &[]), if *name == "remote" { "made\n" } else { "found\n" }, "{name}");
        assert_eq!(run((name, place), name, &[]), "made\n", "{name}");
        assert_eq!(run((name, place), name, &[("CUDA_CACHE_DISABLE", "1")]), "no cache\n", "{name}");
    }
}
