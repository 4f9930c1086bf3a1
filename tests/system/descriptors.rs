//! Between places of one machine the GPU copies memory itself, which the target has by descriptor; from other machines it travels. Between places
//! of one GPU nothing is copied (adoption.rs), unless a job is told to copy, as these are.

use crate::{LIMIT, assert_identical, every_way, native_orbit, remote_orbit, wait_for_step};
use tests::kill::gpu_bytes;
use tests::scene::wait_for;
use tests::server::helpers;
use tests::{Job, Report, Scene, Server};

/// Arguments that let orbit work for as long as these moves take.
const STEPS: [&str; 5] = ["--steps", "3000", "--pace", "2000", "--progress"];
const LONGER: [&str; 5] = ["--steps", "9000", "--pace", "2000", "--progress"];

const COPIES: (&str, &str) = ("MRCUDA_FAULT_NO_ADOPTION", "1");

/// Bytes that GPU copied to GPU, and why others went over connections.
fn ways(report: &Report) -> (u64, String) {
    assert!(report.ok(), "{}", report.reason());
    let leg = &report.0["legs"][0];
    assert_eq!(leg["bytes_by_descriptor"], report.0["bytes_by_descriptor"]);
    (leg["bytes_by_descriptor"].as_u64().unwrap_or(0), leg["by_socket"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn every_way_between_places_of_one_machine() {
    let scene = Scene::new("descriptors");
    let native = native_orbit(&scene, &STEPS);
    let servers = [Server::start_beside(&scene, "one"), Server::start_beside(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].unix_place(0), &STEPS, &[COPIES]);
    let [one, two] = &servers;
    let way = every_way(one, two);
    for (number, to) in way.iter().enumerate() {
        wait_for_step(&mut job, 100 + 100 * number as u32);
        let report = job.migrate(to).unwrap();
        let (bytes, why) = ways(&report);
        assert!(bytes >= 4 << 20 && bytes <= report.bytes() && why.is_empty(), "to {to}: {}", report.0);
    }
    assert_identical(&job.wait(LIMIT), &native);
}

/// Their hashes are compared by the target's GPU, and the proof is one by hashes.
#[test]
fn two_gpus_of_a_machine_find_what_differs_by_themselves() {
    let scene = Scene::new("two-gpus");
    let native = native_orbit(&scene, &STEPS);
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    let mut job = remote_orbit(&scene, "moved", &server.unix_place(0), &STEPS, &[]);
    for (number, gpu) in [1, 0, 1, 0].into_iter().enumerate() {
        wait_for_step(&mut job, 100 + 200 * number as u32);
        let report = job.migrate(&server.unix_place(gpu)).unwrap();
        let (bytes, why) = ways(&report);
        assert!(bytes >= 4 << 20 && why.is_empty() && report.0["bytes_adopted"] == 0, "to GPU {gpu}: {}", report.0);
    }
    assert_identical(&job.wait(LIMIT), &native);
    // A page that is not what it should be is found.
    let spoiled = [("SOFTGPU_DEVICES", "2"), ("MRCUDA_FAULT_CORRUPT_BYTE", "1")];
    let server = Server::start_with(&scene, "two", &[], &spoiled);
    let mut job = remote_orbit(&scene, "spoiled", &server.unix_place(0), &STEPS, &[]);
    wait_for_step(&mut job, 100);
    let report = job.migrate(&server.unix_place(1)).unwrap();
    assert_eq!(report.code(), "not-identical", "{}", report.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn other_machines_send_what_others_map() {
    let scene = Scene::new("machines");
    let native = native_orbit(&scene, &STEPS);
    let servers = [Server::start_beside(&scene, "beside"), Server::start(&scene, "away")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &STEPS, &[COPIES]);
    // The descriptors can be had in all of these tests, and mean nothing to the driver of another machine.
    for (number, (to, is_same_machine)) in
        [(servers[1].place(0), false), ("local".to_owned(), false), (servers[0].place(0), true)].iter().enumerate()
    {
        wait_for_step(&mut job, 100 + 200 * number as u32);
        let report = job.migrate(to).unwrap();
        let (bytes, why) = ways(&report);
        assert_eq!(
            (bytes > 0, why.contains("importing memory of the source")),
            (*is_same_machine, !*is_same_machine),
            "to {to}: {}",
            report.0
        );
        assert!(report.bytes() >= 4 << 20);
    }
    assert_identical(&job.wait(LIMIT), &native);
    // A job can be told to do as if it were so.
    let env = [("MRCUDA_FAULT_TCP_IS_FAR", "1"), COPIES];
    let mut job = remote_orbit(&scene, "told", &servers[0].place(0), &STEPS, &env);
    let (bytes, why) = ways(&job.migrate("local").unwrap());
    assert!(bytes == 0 && why.contains("not asked for"), "{why}");
    wait_for_step(&mut job, 400);
    assert!(ways(&job.migrate("helper").unwrap()).0 > 0);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_page_that_is_not_fetched_is_found_and_the_job_stays() {
    let scene = Scene::new("unfetched");
    let native = native_orbit(&scene, &STEPS);
    let mut job = Job::orbit(&scene, "moved", &[], &STEPS, &[("MRCUDA_FAULT_CORRUPT_BYTE", "1"), COPIES]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 200);
    let report = job.migrate("helper").unwrap();
    assert!(!report.ok(), "a wrong page went unseen: {}", report.0);
    assert_eq!(report.code(), "not-identical", "{}", report.reason());
    assert!(report.0["bytes_by_descriptor"].as_u64() > Some(0), "{}", report.0);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn nothing_of_the_source_stays_with_the_target() {
    let scene = Scene::new("returned");
    let native = native_orbit(&scene, &LONGER);
    // Long enough for four moves on a busy machine.
    let mut job = Job::orbit(&scene, "moved", &[], &LONGER, &[COPIES]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 50);
    let own = gpu_bytes(job.pid());
    assert!(own >= 4 << 20);
    for number in 0..4u32 {
        wait_for_step(&mut job, 100 + 200 * number);
        let to = if number % 2 == 0 { "helper" } else { "local" };
        assert!(ways(&job.migrate(to).unwrap()).0 > 0);
        // The report comes when all is released; what a process holds can be told by its files.
        let pid = job.pid();
        let holds = || gpu_bytes(pid) + helpers(pid).into_iter().map(gpu_bytes).sum::<u64>();
        let clean = wait_for(LIMIT, || (holds() <= own || !job.runs()).then(|| job.runs()));
        assert_eq!(clean, Some(true), "{} bytes instead of {own} after the move to {to}", holds());
    }
    assert_identical(&job.wait(LIMIT), &native);
}
