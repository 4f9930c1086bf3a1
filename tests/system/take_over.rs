//! A server that takes over from another one (`mrcuda serve --take-over`).

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use serde_json::Value;
use std::process::ExitStatus;
use tests::scene::wait_for;
use tests::{Scene, Server};

/// The jobs are still at work when they have moved several times.
const LONG: [&str; 5] = ["--steps", "8000", "--pace", "3000", "--progress"];

fn told(scene: &Scene, server: &str) -> Value {
    let output = scene.mrcuda().args(["gpus", server, "--json"]).output().unwrap();
    serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))[0].clone()
}

#[test]
fn jobs_of_a_server_that_is_replaced_go_on_and_move_and_the_former_one_ends_by_itself() {
    let scene = Scene::new("take-over");
    let native = native_orbit(&scene, &LONG);
    let mut former = Server::start(&scene, "one");
    let other = Server::start(&scene, "two");
    // One at each socket, one that stays, and one that moves from one daemon to the other.
    let places = [former.place(0), former.unix_place(0), former.nearest(0), former.place(0)];
    let mut jobs = places.map(|at| remote_orbit(&scene, "job", &at, &LONG, &[]));
    jobs.iter_mut().for_each(|job| wait_for_step(job, 200));
    let new = former.successor(&scene, "new", "one");
    assert!(new.announcement.contains(&format!(", after process {}", former.pid())), "{}", new.announcement);
    let state = told(&scene, &new.address.to_string());
    assert_eq!((&state["pid"], &state["earlier"]["pid"]), (&new.pid().into(), &former.pid().into()));
    assert_eq!((&state["earlier"]["jobs"][0], state["gpus"][0]["jobs"].as_array().map(Vec::len)), (&4.into(), Some(0)));
    // The data of these moves comes from the former daemon's workers, over connections that arrive at the new one.
    for (job, to) in jobs.iter().zip([other.place(0), "helper".to_owned()]) {
        let moved = job.migrate(&to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    let moved = jobs[3].migrate(&new.place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    // And back to the address where they were.
    let back = jobs[0].migrate(&new.place(0)).unwrap();
    assert!(back.ok(), "{}", back.reason());
    let state = wait_for(LIMIT, || Some(told(&scene, &new.address.to_string())).filter(|state| state["earlier"]["jobs"][0] == 1));
    assert_eq!(state.map(|state| state["gpus"][0]["jobs"].as_array().map(Vec::len)), Some(Some(2)));
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
    assert_eq!(former.wait_ended(LIMIT).as_ref().map(ExitStatus::success), Some(true), "{}", former.errors());
    assert!(wait_for(LIMIT, || told(&scene, &new.address.to_string())["earlier"].is_null().then_some(())).is_some());
    assert!(former.errors().contains("all jobs have left"), "{}", former.errors());
    // Not one of the jobs was told of it.
    assert!(!new.errors().contains("unknown ticket") && !former.errors().contains("unknown ticket"), "{}", new.errors());
}
