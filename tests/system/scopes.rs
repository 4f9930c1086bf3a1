//! A program whose kernels use atomic operations with the scope of the whole system on memory where those are not kept is told so, once.

use crate::{LIMIT, words_of_mrcuda};
use std::time::Duration;
use tests::{Job, Linkage, Programs, Scene, Server};

/// What is said of a run at some places, one after the other.
fn said(scene: &Scene, places: &[&str], what: &str) -> Vec<String> {
    let program = Programs::get().path(Linkage::Static, "scopes");
    let moved = places.len() > 1;
    let args: &[&str] = if moved { &["--steps", "60", "--pace", "100000"] } else { &[] };
    let mut job = Job::start(scene, "job", &["--server", places[0]], &program, args, &[("SCOPES", what)]);
    for to in &places[1..] {
        job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        std::thread::sleep(Duration::from_millis(300));
        let report = job.migrate(to).unwrap_or_else(|why| panic!("to {to}: {why}"));
        assert!(report.ok(), "to {to}: {}", report.reason());
    }
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{what} at {places:?}: {outcome:?}");
    words_of_mrcuda(&outcome).into_iter().map(str::to_owned).collect()
}

#[test]
fn atomics_that_are_not_kept_are_told_once() {
    let scene = Scene::new("scopes");
    let server = Server::start(&scene, "one");
    let (tcp, unix) = (server.place(0), server.unix_place(0));
    let is_reported = |places: &[&str], what: &str| {
        let said = said(&scene, places, what);
        let one = said.len() == 1 && said[0].contains("of_system") && said[0].contains("are not atomic here");
        assert!(one || said.is_empty(), "{what} at {places:?}: {said:?}");
        one
    };
    for place in [tcp.as_str(), unix.as_str(), "helper", "local"] {
        assert!(is_reported(&[place], "managed system"), "{place}");
        assert!(!is_reported(&[place], "managed device"), "{place}");
        assert!(!is_reported(&[place], "device system"), "{place}");
        assert_eq!(is_reported(&[place], "mapped system"), place == tcp, "{place}");
    }
    assert!(is_reported(&[&tcp], "late system"), "memory that is made behind the first launch");
    assert!(is_reported(&[&unix, &tcp], "mapped system"), "a move to where there are copies");
    assert!(!is_reported(&[&unix, &tcp], "mapped device"));
}
