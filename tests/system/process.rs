//! What processes do with CUDA besides computing: end, exec, close and open libraries, reset devices.

use crate::LIMIT;
use std::process::Command;
use tests::{Job, Scene, Server, install};

/// The program's answers in this mode are the native ones, remote and in-process.
#[track_caller]
fn same_as_native(mode: &str) {
    let scene = Scene::new(mode);
    let program = scene.path.join("process");
    let source = install::root().join("tests/process/process.c");
    let status = Command::new("cc").arg("-o").arg(&program).arg(source).args(["-std=gnu11", "-w", "-ldl"]).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}");
    let native = Job::native(&scene, "native", &program, &[mode]).wait(LIMIT);
    assert!(native.ok() && native.stdout.lines().count() > 5, "{native:?}");
    let server = Server::start(&scene, "one");
    for (name, place) in
        [("remote", server.place(0)), ("near", server.near(0)), ("inside", "local".into()), ("helper", "helper".into())]
    {
        let job = Job::start(&scene, name, &["--server", &place], &program, &[mode], &[]).wait(LIMIT);
        assert!(job.ok() && job.stderr.is_empty(), "{name}: {job:?}");
        assert_eq!(job.stdout, native.stdout, "{name}");
    }
}

#[test]
fn process_ends_and_its_exit_handlers_call_cuda() {
    same_as_native("exit");
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
