//! Moves between places whose drivers and GPUs differ: refused, unless differences are allowed and everything holds that the job relies on.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit};
use tests::{Job, Linkage, Outcome, Programs, Report, Scene, Server};

const ALLOW: &str = "--allow-different";
/// Slow enough on any machine for a dozen moves.
const STEPS: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];

/// Plans the move, makes it, and checks that both say the same. Returns the plan and the report.
#[track_caller]
fn both(job: &Job<'_>, to: &str, options: &[&str]) -> (Report, Report) {
    let plan = job.migrate_with(to, &[options, &["--dry-run"]].concat()).unwrap();
    let made = job.migrate_with(to, options).unwrap();
    assert_eq!((plan.ok(), plan.code()), (made.ok(), made.code()), "planned: {}, made: {}", plan.0, made.0);
    (plan, made)
}

/// The move is refused with this code and this word, also where differences are allowed.
#[track_caller]
fn refused(job: &Job<'_>, to: &str, code: &str, word: &str) {
    let (plan, made) = both(job, to, &[ALLOW]);
    assert!(made.code() == code && made.reason().contains(word), "{}", made.0);
    // The one thing that differs, and no other.
    assert_eq!(plan.0["blockers"].as_array().map(Vec::len), Some(1), "{}", plan.0);
}

#[test]
fn other_drivers_and_gpus_where_all_that_was_told_holds() {
    let scene = Scene::new("differing");
    let native = native_orbit(&scene, &STEPS);
    let build = |version| ("SOFTGPU_DRIVER_BUILD", version);
    let server = |name: &str, env: &[(&str, &str)]| Server::start_with(&scene, name, &[], env);
    let home = server("home", &[build("580.159.03")]);
    let others = [
        ("driver-build", server("build", &[build("580.82.07")])),
        ("driver-version", server("newer", &[build("590.10.01"), ("SOFTGPU_DRIVER_VERSION", "13010")])),
        ("gpu-attribute", server("fewer", &[build("580.159.03"), ("SOFTGPU_ATTRIBUTES", "16=66,38=1024,14=256")])),
        ("compute-capability", server("next", &[build("580.159.03"), ("SOFTGPU_CC", "10.0")])),
        ("compute-capability", server("minor", &[build("580.159.03"), ("SOFTGPU_CC", "9.1")])),
    ];
    let job = remote_orbit(&scene, "moved", &home.place(0), &STEPS, &[]);
    for (code, other) in &others {
        let (_, made) = both(&job, &other.place(0), &[]);
        assert_eq!(made.code(), *code, "{}", made.0);
        let (plan, made) = both(&job, &other.place(0), &[ALLOW]);
        assert!(made.ok(), "{}", made.reason());
        let notes = plan.0["notes"].to_string();
        assert_eq!(notes.contains("floating-point"), *code == "compute-capability", "{notes}");
        assert!(notes.contains("the program was told"), "{notes}");
        // What the job started with is the measure, wherever it is.
        let (plan, made) = both(&job, &home.place(0), &[]);
        assert!(made.ok() && plan.0["notes"].is_null(), "{}", made.reason());
    }
    // From one that differs to another, and home at the end.
    for to in [&others[3].1, &others[0].1, &others[2].1, &home] {
        let (_, made) = both(&job, &to.place(0), &[ALLOW]);
        assert!(made.ok(), "{}", made.reason());
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn what_does_not_hold_is_refused_by_name() {
    let scene = Scene::new("unfit");
    let native = native_orbit(&scene, &STEPS);
    let server = |name: &str, env: &[(&str, &str)]| Server::start_with(&scene, name, &[], env);
    let home = server("home", &[]);
    let job = remote_orbit(&scene, "moved", &home.place(0), &STEPS, &[]);
    let older = server("older", &[("SOFTGPU_CC", "8.0")]);
    refused(&job, &older.place(0), "compute-capability", "8.0");
    let driver = server("driver", &[("SOFTGPU_DRIVER_VERSION", "12080")]);
    refused(&job, &driver.place(0), "driver-version", "12.8");
    let major = server("major", &[("SOFTGPU_DRIVER_VERSION", "14000")]);
    refused(&job, &major.place(0), "driver-version", "14.0");
    let shared = server("shared", &[("SOFTGPU_ATTRIBUTES", "97=101376")]);
    refused(&job, &shared.place(0), "gpu-attribute", "shared memory that a block can ask for: 101376");
    let alone = server("alone", &[("SOFTGPU_ATTRIBUTES", "95=0")]);
    refused(&job, &alone.place(0), "gpu-attribute", "cooperative launches");
    let untold = server("untold", &[("SOFTGPU_ATTRIBUTES", "78=0")]);
    refused(&job, &untold.place(0), "gpu-attribute", "device attribute 78");
    // Everything fits, but variables lie elsewhere.
    let elsewhere = server("elsewhere", &[("SOFTGPU_CC", "10.0"), ("SOFTGPU_DISPLACE", "mrcuda")]);
    refused(&job, &elsewhere.place(0), "layout-differs", "lies at");
    assert_identical(&job.wait(LIMIT), &native);
}

/// Starts a program on a server, after a native run with the same arguments.
fn start<'a>(scene: &'a Scene, name: &str, args: &[&str], at: &Server) -> (Job<'a>, Outcome) {
    let program = Programs::get().path(Linkage::Static, name);
    let native = Job::native(scene, "native", &program, args).wait(LIMIT);
    assert!(native.ok(), "{native:?}");
    let mut job = Job::start(scene, "moved", &["--server", &at.place(0)], &program, args, &[]);
    job.wait_ready(LIMIT).unwrap();
    (job, native)
}

#[test]
fn code_for_one_architecture_goes_to_no_other() {
    let scene = Scene::new("onearch");
    let native = native_orbit(&scene, &STEPS);
    let home = Server::start(&scene, "home");
    let job = remote_orbit(&scene, "moved", &home.place(0), &[&STEPS[..], &["--arch", "sm_90a"]].concat(), &[]);
    let next = Server::start_with(&scene, "next", &[], &[("SOFTGPU_CC", "10.0")]);
    refused(&job, &next.place(0), "no-code", "10.0");
    // Code for sm_90 would do, as that of the other tests does; and so does the same GPU.
    let same = Server::start(&scene, "same");
    let (_, made) = both(&job, &same.place(0), &[ALLOW]);
    assert!(made.ok(), "{}", made.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn cooperative_grids_must_be_resident() {
    let scene = Scene::new("resident");
    let home = Server::start(&scene, "home");
    let (job, native) = start(&scene, "groups", &["--steps", "200", "--pace", "50000"], &home);
    let many = Server::start_with(&scene, "many", &[], &[("SOFTGPU_ATTRIBUTES", "16=40")]);
    let few = Server::start_with(&scene, "few", &[], &[("SOFTGPU_ATTRIBUTES", "16=0")]);
    // Once it has launched.
    let launched = tests::scene::wait_for(LIMIT, || {
        let plan = job.migrate_with(&few.place(0), &[ALLOW, "--dry-run"]).unwrap();
        (plan.code() == "not-resident").then_some(())
    });
    assert!(launched.is_some());
    refused(&job, &few.place(0), "not-resident", "16 blocks");
    let (_, made) = both(&job, &many.place(0), &[ALLOW]);
    assert!(made.ok(), "{}", made.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn addresses_of_functions_and_the_device_heap_stay_with_their_driver() {
    let scene = Scene::new("functions");
    let home = Server::start_with(&scene, "home", &[], &[("SOFTGPU_DRIVER_BUILD", "580.159.03")]);
    let (job, native) = start(&scene, "killer", &["--steps", "100", "--pace", "50000"], &home);
    let build = Server::start_with(&scene, "build", &[], &[("SOFTGPU_DRIVER_BUILD", "580.82.07")]);
    let next = Server::start_with(&scene, "next", &[], &[("SOFTGPU_DRIVER_BUILD", "580.159.03"), ("SOFTGPU_CC", "10.0")]);
    let fewer = [("SOFTGPU_DRIVER_BUILD", "580.159.03"), ("SOFTGPU_ATTRIBUTES", "16=66")];
    let fewer = Server::start_with(&scene, "fewer", &[], &fewer);
    // Once its code is loaded, with the heap.
    let loaded = tests::scene::wait_for(LIMIT, || {
        let plan = job.migrate_with(&fewer.place(0), &[ALLOW, "--dry-run"]).unwrap();
        (plan.code() == "not-shown").then_some(())
    });
    assert!(loaded.is_some());
    refused(&job, &build.place(0), "not-shown", "functions");
    refused(&job, &next.place(0), "not-shown", "another compute capability");
    refused(&job, &fewer.place(0), "not-shown", "device heap");
    assert_identical(&job.wait(LIMIT), &native);
}
