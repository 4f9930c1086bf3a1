//! A plan says yes only to what a move does.
//!
//! For many targets and states of jobs the same question is asked twice: as a plan, and as a move.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step};
use tests::scene::wait_for;
use tests::{Job, Linkage, Programs, Scene, Server};

/// How the job answered a plan and a move to the same place.
#[derive(Debug, Clone, PartialEq)]
struct Answers {
    /// Empty: the plan saw nothing in the way.
    planned: Vec<String>,
    /// Empty: the job moved.
    made: String,
}

/// Plans a move, and tries it.
fn both(job: &Job<'_>, to: &str, options: &[&str]) -> Answers {
    let plan = job.migrate_with(to, &[options, &["--dry-run"]].concat()).unwrap();
    let codes = plan.0["codes"].as_array().map(|codes| codes.iter().filter_map(|c| c.as_str().map(str::to_owned)).collect());
    let planned: Vec<String> = codes.unwrap_or_else(|| vec![plan.code().to_owned()]);
    let made = job.migrate_with(to, options).unwrap();
    let answers = Answers { planned, made: made.code().to_owned() };
    // What is in the way when the move is made is in the plan, and nothing is in a plan whose move succeeds.
    let agree = if answers.made.is_empty() { answers.planned.is_empty() } else { answers.planned.contains(&answers.made) };
    assert!(agree, "to {to}: {answers:?}: planned: {}, made: {}", plan.0, made.0);
    answers
}

/// The answers must agree, and the move end with this code.
#[track_caller]
fn ends(job: &Job<'_>, to: &str, code: &str) {
    let answers = both(job, to, &[]);
    assert_eq!(answers.made, code, "to {to}: {answers:?}");
}

/// A job with which there is time for many moves.
const ENDLESS: [&str; 5] = ["--steps", "100000", "--pace", "3000", "--progress"];

#[test]
fn targets_of_every_kind() {
    let scene = Scene::new("plans");
    let server = |name: &str, env: &[(&str, &str)]| Server::start_with(&scene, name, &[], env);
    let (home, other) = (server("home", &[]), server("other", &[]));
    let differing = [
        ("driver-version", server("cuda", &[("SOFTGPU_DRIVER_VERSION", "12080")])),
        ("compute-capability", server("capability", &[("SOFTGPU_CC", "8.0")])),
        ("gpu-attribute", server("fewer", &[("SOFTGPU_ATTRIBUTES", "16=66")])),
        ("no-memory", server("small", &[("SOFTGPU_MEMORY", "67108864")])),
        ("layout-differs", server("elsewhere", &[("SOFTGPU_DISPLACE", "mrcuda")])),
    ];
    let gone = server("gone", &[]).place(0);
    let mut job = remote_orbit(&scene, "moved", &home.place(0), &ENDLESS, &[]);
    for (code, target) in &differing {
        ends(&job, &target.place(0), code);
    }
    ends(&job, &gone, "target-unreachable");
    ends(&job, "unix:/nowhere/mrcuda.socket", "target-unreachable");
    ends(&job, &other.place(7), "target-refused");
    ends(&job, &other.plain(0), "target-refused");
    ends(&job, "helper:7", "place-unusable");
    for to in [&other.place(0), &other.unix_place(0), "helper", &home.place(0), &home.place(0), "local"] {
        ends(&job, to, "");
    }
    ends(&job, "local", "already-there");
    ends(&job, &gone, "target-unreachable");
    // The process keeps the GPU that it has used.
    ends(&job, "local:7", "place-unusable");
    for to in ["helper", "local", &other.place(0)] {
        ends(&job, to, "");
    }
    // A process that has asked for a GPU which is not there can use none, and a helper does.
    let fresh = remote_orbit(&scene, "fresh", &home.place(0), &ENDLESS, &[]);
    ends(&fresh, "local:7", "place-unusable");
    for to in ["local", &other.place(0)] {
        ends(&fresh, to, "");
    }
    // Other tokens, and none.
    let token = std::fs::read(scene.token()).unwrap();
    std::fs::write(scene.token(), "ab".repeat(32)).unwrap();
    ends(&job, &home.place(0), "target-refused");
    std::fs::remove_file(scene.token()).unwrap();
    ends(&job, &home.place(0), "no-token");
    std::fs::write(scene.token(), token).unwrap();
    ends(&job, "helper", "");
    assert!(job.runs(), "{}", job.stderr());
}

#[test]
fn without_a_driver_there_is_no_place_on_this_machine() {
    let scene = Scene::new("driverless");
    let native = native_orbit(&scene, &LONG);
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    // A file that is no driver; a machine without any answers in the same way.
    let no_driver = scene.path.join("libcuda.so.1");
    std::fs::write(&no_driver, "no library").unwrap();
    let mut command = scene.mrcuda();
    command.args(["run", "--server", &one.place(0), "--driver"]).arg(&no_driver);
    command.arg("--").arg(scene.install.file("orbit")).args(LONG).env("ORBIT_END", scene.path.join("end"));
    let mut job = Job::spawn(&scene, "moved", command);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 10);
    for to in ["local", "helper", "local:0"] {
        ends(&job, to, "place-unusable");
    }
    ends(&job, &two.place(0), "");
    ends(&job, "local", "place-unusable");
    std::fs::write(scene.path.join("end"), "").unwrap();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn places_that_cannot_reach_each_other() {
    let scene = Scene::new("apart");
    let native = native_orbit(&scene, &LONG);
    let free = Server::start(&scene, "free");
    let bound = Server::start_with(&scene, "bound", &["--allow-target", "10.0.0.0/8"], &[]);
    let job = remote_orbit(&scene, "moved", &bound.place(0), &LONG, &[]);
    ends(&job, &free.place(0), "not-connected");
    ends(&job, "helper", "");
    ends(&job, &free.place(0), "");
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn several_gpus() {
    let scene = Scene::new("together");
    let env = [("SOFTGPU_DEVICES", "4")];
    let native = native_orbit(&scene, &LONG);
    let four = Server::start_with(&scene, "four", &[], &env);
    let places = format!("{},{}", four.place(0), four.place(1));
    let mut job = Job::orbit(&scene, "two", &["--server", &places], &LONG, &env);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 10);
    // A GPU that is there already stays, the other one moves.
    ends(&job, &format!("local:0,{}", four.place(2)), "");
    ends(&job, &format!("local:0,{}", four.place(3)), "");
    ends(&job, &format!("local:0,{}", four.place(7)), "target-refused");
    let answers = both(&job, "helper:0", &["--gpu", "1"]);
    assert_eq!(answers.made, "", "{answers:?}");
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn states_of_jobs() {
    let scene = Scene::new("states");
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    // Memory that another process has, from some time on.
    let program = Programs::get().path(Linkage::Static, "ipc");
    let args = ["--steps", "40", "--pace", "50000"];
    let mut job = Job::start(&scene, "shares", &["--server", &one.place(0)], &program, &args, &[]);
    job.wait_ready(LIMIT).unwrap();
    let shared = wait_for(LIMIT, || {
        let plan = job.migrate_with(&two.place(0), &["--dry-run"]).unwrap();
        (plan.code() == "shared-with-processes").then_some(())
    });
    assert!(shared.is_some());
    ends(&job, &two.place(0), "shared-with-processes");
    assert!(job.wait(LIMIT).ok());

    // No journal, and one that is not complete.
    let nowhere = scene.path.join("nowhere").display().to_string();
    let mut job = remote_orbit(&scene, "unrecorded", &one.place(0), &ENDLESS, &[("MRCUDA_KEEP_JOURNAL", &nowhere)]);
    ends(&job, &two.place(0), "no-journal");
    assert!(job.runs());
}

#[test]
fn gpus_that_use_each_others_memory() {
    let scene = Scene::new("peers");
    let four = [("SOFTGPU_DEVICES", "4")];
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &[], &four));
    let program = Programs::get().path(Linkage::Static, "peers");
    let (at, args) = (format!("{},{}", servers[0].unix_place(1), servers[0].place(3)), ["--steps", "400", "--pace", "50000"]);
    let mut job = Job::start(&scene, "peers", &["--server", &at], &program, &args, &four);
    job.wait_ready(LIMIT).unwrap();
    let used = wait_for(LIMIT, || {
        let plan = job.migrate_with(&servers[1].place(0), &["--gpu", "0", "--dry-run"]).unwrap();
        (plan.code() == "peer-access").then_some(())
    });
    assert!(used.is_some());
    assert_eq!(both(&job, &servers[1].place(0), &["--gpu", "0"]).made, "peer-access");
    // Where they cannot reach each other, and where they can.
    ends(&job, &format!("{},{}", servers[1].place(0), servers[0].place(0)), "target-peer-access");
    ends(&job, &format!("{},{}", servers[1].place(2), servers[1].unix_place(0)), "");
    assert!(job.wait(LIMIT).ok());
}
