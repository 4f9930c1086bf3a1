//! Programs that wait for themselves: a move is refused, in words that name the stream and what it waits for, and the job goes on.

use crate::{LIMIT, assert_identical};
use tests::scene::wait_for;
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

/// Two servers, and the place that a test means by a name.
struct Places([Server; 2]);

impl Places {
    fn new(scene: &Scene) -> Places {
        Places(["one", "two"].map(|name| Server::start(scene, name)))
    }

    fn place(&self, name: &str) -> String {
        match name {
            "one" => self.0[0].place(0),
            "two" => self.0[1].place(0),
            "unix" => self.0[0].unix_place(0),
            other => other.to_owned(),
        }
    }
}

/// Starts `stuck` in one of its ways at a place and waits until it is stuck. Also returns how it runs natively, and the file that lets it
/// go on.
fn stuck<'a>(scene: &'a Scene, places: &Places, way: &str, from: Option<&str>) -> (Job<'a>, Outcome, String) {
    let program = Programs::get().path(Linkage::Static, "stuck");
    let file = |name: &str| scene.path.join(name).display().to_string();
    let (open, go) = (file("open"), file("go"));
    std::fs::write(&open, "").unwrap();
    let native = Job::native(scene, "native", &program, &[way, &open]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let at = from.map(|name| places.place(name));
    let options: Vec<&str> = at.iter().flat_map(|place| ["--server", place]).collect();
    let mut job = Job::start(scene, "job", &options, &program, &[way, &go], &[]);
    let stuck = wait_for(LIMIT, || (job.stderr().lines().any(|l| l == "stuck") || !job.runs()).then_some(()));
    assert!(stuck.is_some() && job.runs(), "{}", job.stderr());
    (job, native, go)
}

/// Runs `stuck` in one of its ways at `from`; a move to `to` while it is stuck, and more of them afterwards.
fn refused_then_moved(way: &str, waits_for: &str, from: Option<&str>, away: &[&str]) {
    let scene = Scene::new(way);
    let places = Places::new(&scene);
    let (mut job, native, go) = stuck(&scene, &places, way, from);
    let place = |name: &str| places.place(name);
    let report = job.migrate(&place(away[0])).unwrap();
    assert!(!report.ok(), "{}", report.0);
    assert_eq!(report.code(), "not-idle", "{}", report.0);
    assert!(report.reason().contains("stream 0x") && report.reason().contains(waits_for), "{}", report.reason());
    assert!(job.runs(), "{}", job.stderr());
    std::fs::write(&go, "").unwrap();
    for to in away {
        // A host function may need the lock of a thread at the gate just then: such a move is refused, and another one works.
        let moved = wait_for(LIMIT, || match job.migrate(&place(to)) {
            Ok(report) if report.ok() => Some(Ok(())),
            Ok(report) if report.code() == "not-idle" => None,
            Ok(report) => Some(Err(report.reason().to_owned())),
            Err(why) => Some(Err(why.to_string())),
        });
        assert_eq!(moved, Some(Ok(())), "to {to}");
    }
    assert_identical(&job.wait(LIMIT), &native);
}

const FUNCTION: &str = "waits for a host function of the program that has not returned";
const KERNEL: &str = "runs kernels or copies that have not ended, or waits for another stream; launched last in stream 0x";
const VALUE: &str = "waits for a value at 0x2";

#[test]
fn a_host_function_needs_a_lock_held_at_the_gate() {
    refused_then_moved("lock", FUNCTION, Some("one"), &["two", "local"]);
}

#[test]
fn a_host_function_needs_a_lock_held_at_the_gate_in_process() {
    refused_then_moved("lock", FUNCTION, None, &["one", "two"]);
}

#[test]
fn a_kernel_waits_for_one_not_yet_launched() {
    refused_then_moved("spin", KERNEL, Some("one"), &["two", "local"]);
}

#[test]
fn a_kernel_waits_for_one_not_yet_launched_in_process() {
    refused_then_moved("spin", KERNEL, None, &["one", "local"]);
}

#[test]
fn a_stream_waits_for_a_value_that_the_host_writes_later() {
    refused_then_moved("value", VALUE, Some("one"), &["local", "two"]);
}

#[test]
fn a_stream_waits_for_a_value_that_the_host_writes_later_in_process() {
    refused_then_moved("value", VALUE, None, &["one", "local"]);
}

#[test]
fn a_stream_waits_for_a_value_that_the_host_writes_later_over_shared_memory() {
    refused_then_moved("value", VALUE, Some("unix"), &["helper", "two", "unix"]);
}

/// A patient move of a program that waits for itself until a file appears: it succeeds then, and not before.
fn moved_when_it_goes_on(way: &str, waits_for: &str, from: Option<&str>, to: &str) {
    let scene = Scene::new(&format!("patient-{way}"));
    let places = Places::new(&scene);
    let (mut job, native, go) = stuck(&scene, &places, way, from);
    let place = |name: &str| places.place(name);

    // On a busy machine a thread may still be inside a call when the time is over.
    let refused = wait_for(LIMIT, || {
        let refused = job.migrate_with(&place(to), &["--wait", "500ms"]).unwrap();
        assert_eq!((refused.ok(), refused.code()), (false, "not-idle"), "{}", refused.0);
        refused.reason().contains(waits_for).then_some(())
    });
    assert!(refused.is_some(), "it does not say what it waits for");
    let began = job.migrate_with(&place(to), &["--wait", "10m", "--no-wait", "--id", "patient"]).unwrap();
    assert_eq!(began.id(), "patient");
    let state = |job: &Job<'_>| job.all_moves().unwrap().into_iter().find(|m| m.id() == "patient").expect("the move");
    // An attempt has found the program busy, and said what it waits for.
    let seen = wait_for(LIMIT, || state(&job).0["waits_for"].as_str().filter(|why| why.contains(waits_for)).map(drop));
    assert!(seen.is_some(), "{}", state(&job).0);
    assert!(job.runs());
    assert_eq!(state(&job).state(), "running");
    std::fs::write(&go, "").unwrap();
    let ended = wait_for(LIMIT, || Some(state(&job)).filter(|m| !["running", "committed"].contains(&m.state())));
    let ended = ended.expect("it ends");
    assert!(ended.ok(), "{}", ended.0);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_patient_move_waits_for_a_kernel() {
    moved_when_it_goes_on("spin", KERNEL, Some("one"), "two");
}

#[test]
fn a_patient_move_waits_for_a_value_in_process() {
    moved_when_it_goes_on("value", VALUE, None, "one");
}
