//! What is answered, kept or shared without a question to the place is what natively happens.

use crate::process::build;
use crate::{LIMIT, words_of_mrcuda};
use std::path::Path;
use tests::{Job, Scene, Server};

const TWO: (&str, &str) = ("SOFTGPU_DEVICES", "2");

/// What `shortcuts` prints natively in one of its modes.
#[track_caller]
fn native(scene: &Scene, program: &Path, mode: &str) -> String {
    let mut command = scene.native(program);
    command.arg(mode).env(TWO.0, TWO.1);
    let native = Job::spawn(scene, "native", command).wait(LIMIT);
    assert!(native.ok() && native.stdout.lines().count() > 3, "{native:?}");
    native.stdout
}

/// Runs `shortcuts` at places of every kind; it prints what it prints natively.
#[track_caller]
fn same_as_native(mode: &str) -> String {
    let scene = Scene::new(mode);
    let program = build(&scene, "shortcuts");
    let native = native(&scene, &program, mode);
    let server = Server::start_with(&scene, "one", &[], &[TWO]);
    let two = |first: String, second: String| format!("{first},{second}");
    for (name, places) in [
        ("remote", two(server.place(0), server.place(1))),
        ("unix", two(server.unix_place(0), server.unix_place(1))),
        ("inside", two("local".into(), server.place(1))),
        ("helper", two("helper:1".into(), "local:0".into())),
    ] {
        let job = Job::start(&scene, name, &["--server", &places], &program, &[mode], &[TWO]).wait(LIMIT);
        assert!(job.ok() && words_of_mrcuda(&job).is_empty(), "{name}: {job:?}");
        assert_eq!(job.stdout, native, "{name}");
    }
    native
}

#[test]
fn threads_that_look_up_one_kernel_of_two_gpus_get_a_handle_that_works() {
    let native = same_as_native("kernels");
    let right = native.lines().filter(|l| *l == "0 handles are others, 0 calls failed, 0 words are wrong").count();
    assert_eq!(right, 6, "{native}");
}

#[test]
fn a_thread_begins_with_a_fresh_default_stream() {
    let native = same_as_native("threads");
    assert_eq!(native.matches("capture 0, attribute 1\n").count(), 5, "{native}");
}

#[test]
fn the_compiler_says_what_is_wrong_with_code() {
    let native = same_as_native("log");
    assert!(native.contains("nonsense"), "{native}");
}

#[test]
fn the_programs_environment_says_how_modules_are_loaded() {
    for (mode, number) in [("EAGER", 1), ("LAZY", 2)] {
        let native = same_as_native(mode);
        assert!(native.ends_with(&format!("{mode}: {number}\n")), "{native}");
    }
}

#[test]
fn no_memory_has_the_number_of_other_memory() {
    let native = same_as_native("numbers");
    assert!(native.ends_with("0 of 5 numbers are those of other memory; before and after the reload 0, 0\n"), "{native}");
}
