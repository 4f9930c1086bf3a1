//! What device code prints is the job's own output, wherever the code runs.

use crate::{LIMIT, assert_identical};
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

/// What is on stderr but for lines of mrcuda.
fn errors(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|l| !l.starts_with("mrcuda")).collect()
}

/// A job that fails an assertion, after moves to these places.
fn failing(scene: &Scene, name: &str, options: &[&str], moves: &[&str], native: &Outcome) {
    let program = Programs::get().path(Linkage::Static, "assertion");
    let args: &[&str] = if moves.is_empty() { &[] } else { &["--pace", "200000"] };
    let mut job = Job::start(scene, name, options, &program, args, &[]);
    if !moves.is_empty() {
        job.wait_ready(LIMIT).unwrap();
    }
    for to in moves {
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
    }
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, native);
    assert_eq!(errors(&outcome), errors(native), "{name}");
}

#[test]
fn a_failed_assertion_says_so_in_the_job_and_stays() {
    let scene = Scene::new("assertion");
    let program = Programs::get().path(Linkage::Static, "assertion");
    let native = Job::native(&scene, "native", &program, &[]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("cudaErrorAssert\nRESULT ok\n"), "{native:?}");
    let text = errors(&native);
    assert_eq!(text.len(), 2, "one line for each thread: {text:?}");
    assert!(text[1].ends_with("block: [0,0,0], thread: [1,0,0] Assertion `value <= round` failed."), "{text:?}");

    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (first, second) = (servers[0].place(0), servers[1].place(0));
    failing(&scene, "local", &[], &[], &native);
    failing(&scene, "remote", &["--server", &first], &[], &native);
    failing(&scene, "moved home", &["--server", &first], &["local"], &native);
    failing(&scene, "moved away", &[], &[&second], &native);
    failing(&scene, "moved on", &["--server", &first], &[&second], &native);
    for server in &servers {
        assert!(!server.errors().contains("Assertion"), "it is the job's, not the server's: {}", server.errors());
    }
}
