//! Less used calls, rightly and wrongly: every answer is what it is natively.

use crate::{LIMIT, words_of_mrcuda};
use tests::scene::wait_for;
use tests::{Job, Outcome, Scene, Server};

/// Lines that may differ from native, and why. docs/limitations.md has the list for users.
const MAY_DIFFER: [(&str, &str); 3] = [
    ("cuDeviceGetTexture1DLinearMaxWidth", "the CPU driver lacks it"),
    ("cuDeviceGetExecAffinitySupport", "the CPU driver lacks it"),
    ("cuProfiler", "the CPU driver lacks it"),
];

/// Compares line by line; all differences are shown at once.
#[track_caller]
fn assert_same(got: &Outcome, native: &Outcome) {
    assert!(got.ok(), "code {:?}, signal {:?}, stderr: {}", got.code, got.signal, got.stderr);
    let excused = |line: &str| MAY_DIFFER.iter().any(|(start, _)| line.starts_with(start));
    let pairs = native.stdout.lines().zip(got.stdout.lines()).enumerate();
    let different: Vec<String> = pairs
        .filter(|(_, (want, have))| want != have && !excused(want))
        .map(|(number, (want, have))| format!("line {}: natively `{want}`, here `{have}`", number + 1))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert_eq!(got.stdout.lines().count(), native.stdout.lines().count());
    assert!(words_of_mrcuda(got).is_empty(), "{}", got.stderr);
}

fn native(scene: &Scene) -> Outcome {
    let outcome = Job::native(scene, "native", &scene.install.file("surface"), &[]).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
    outcome
}

#[test]
fn every_answer_is_the_native_one_when_remote() {
    let scene = Scene::new("remote");
    let native = native(&scene);
    // The same machine as the native one: identities are compared as well.
    let server = Server::start(&scene, "local");
    let remote = Job::start(&scene, "job", &["--server", &server.place(0)], &scene.install.file("surface"), &[], &[]);
    assert_same(&remote.wait(LIMIT), &native);
}

#[test]
fn every_answer_is_the_native_one_in_process() {
    let scene = Scene::new("inside");
    let native = native(&scene);
    let inside = Job::start(&scene, "job", &[], &scene.install.file("surface"), &[], &[]);
    assert_same(&inside.wait(LIMIT), &native);
}

#[test]
fn every_answer_is_the_native_one_after_a_move() {
    let scene = Scene::new("after");
    let native = native(&scene);
    let server = Server::start(&scene, "local");
    let go = scene.path.join("go");
    let args = ["--pause", &go.display().to_string()].map(str::to_owned);
    let args = args.each_ref().map(String::as_str);
    let mut job = Job::start(&scene, "job", &["--server", &server.place(0)], &scene.install.file("surface"), &args, &[]);
    let built = wait_for(LIMIT, || (job.stderr().lines().any(|l| l == "built") || !job.runs()).then_some(()));
    assert!(built.is_some() && job.runs(), "{}", job.stderr());
    let report = job.migrate("local").unwrap();
    assert!(report.ok(), "{}", report.reason());
    std::fs::write(&go, "").unwrap();
    assert_same(&job.wait(LIMIT), &native);
}
