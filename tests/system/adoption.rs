//! Between places of one GPU memory is handed over: the target adopts it, and nothing of it is copied.

use crate::{LIMIT, assert_identical, every_way, native_orbit, remote_orbit, wait_for_step};
use tests::kill::gpu_bytes;
use tests::scene::wait_for;
use tests::server::helpers;
use tests::{Job, Report, Scene, Server};

/// Arguments that let orbit work for as long as these moves take.
const STEPS: [&str; 5] = ["--steps", "3000", "--pace", "2000", "--progress"];
/// Orbit has more memory than this, and fewer bytes of variables.
const MEMORY: u64 = 4 << 20;

/// Bytes that were handed over, and bytes that were copied.
fn ways(report: &Report) -> (u64, u64) {
    assert!(report.ok(), "{}", report.reason());
    let leg = &report.0["legs"][0];
    assert_eq!(leg["bytes_adopted"], report.0["bytes_adopted"]);
    (leg["bytes_adopted"].as_u64().unwrap_or(0), report.bytes())
}

/// What the processes of a job hold of the GPU.
fn held(job: u32, servers: &[Server]) -> u64 {
    let workers = servers.iter().flat_map(|s| s.workers());
    gpu_bytes(job) + helpers(job).into_iter().chain(workers).map(gpu_bytes).sum::<u64>()
}

#[test]
fn every_way_between_places_of_one_gpu() {
    let scene = Scene::new("adoption");
    let native = native_orbit(&scene, &STEPS);
    let servers = [Server::start_beside(&scene, "one"), Server::start_beside(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].unix_place(0), &STEPS, &[]);
    let [one, two] = &servers;
    let way = every_way(one, two);
    let own = held(job.pid(), &servers);
    let plan = scene.mrcuda().args(["plan", &job.pid().to_string(), "--to", &two.unix_place(0), "--json"]).output().unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert!(plan["ok"] == true && plan["adoptable_bytes"].as_u64() >= Some(MEMORY), "{plan}");
    for (number, to) in way.iter().enumerate() {
        wait_for_step(&mut job, 100 + 100 * number as u32);
        let (adopted, copied) = ways(&job.migrate(to).unwrap());
        assert!(adopted >= MEMORY && copied < MEMORY, "to {to}: {adopted} bytes adopted, {copied} copied");
        // The source has given it up; a descriptor does not count.
        let pid = job.pid();
        let clean = wait_for(LIMIT, || (held(pid, &servers) <= own || !job.runs()).then(|| job.runs()));
        assert_eq!(clean, Some(true), "{} bytes instead of {own} after the move to {to}", held(pid, &servers));
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_gpu_without_room_for_a_second_copy() {
    let scene = Scene::new("full");
    let native = native_orbit(&scene, &STEPS);
    // Less than a target leaves free and the job's memory.
    let memory = (64 << 20) + MEMORY;
    let small = [("SOFTGPU_MEMORY", memory.to_string())];
    let small: Vec<(&str, &str)> = small.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let full = |name: &str, copies: &[(&str, &str)]| {
        let mut job = Job::orbit(&scene, name, &["--server", "helper"], &STEPS, &[&small[..], copies].concat());
        job.wait_ready(LIMIT).unwrap();
        wait_for_step(&mut job, 50);
        let report = job.migrate("local").unwrap();
        assert_identical(&job.wait(LIMIT), &native);
        report
    };
    let refused = full("copies", &[("MRCUDA_FAULT_NO_ADOPTION", "1")]);
    assert_eq!(refused.code(), "no-memory", "{}", refused.0);
    let (adopted, copied) = ways(&full("adopts", &[]));
    assert!(adopted >= MEMORY && copied < MEMORY);
}

#[test]
fn a_job_that_has_reset_its_gpu() {
    let scene = Scene::new("reset");
    let native = native_orbit(&scene, &STEPS);
    let mut job = Job::orbit(&scene, "moved", &[], &[&STEPS[..], &["--reset"]].concat(), &[]);
    job.wait_ready(LIMIT).unwrap();
    for (number, to) in [(1, "helper"), (2, "local")] {
        wait_for_step(&mut job, 100 * number);
        let (adopted, copied) = ways(&job.migrate(to).unwrap());
        assert!(adopted >= MEMORY && copied < MEMORY, "to {to}: {adopted} bytes adopted, {copied} copied");
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_move_that_fails_leaves_the_memory_with_the_source() {
    let scene = Scene::new("kept");
    let native = native_orbit(&scene, &STEPS);
    // A byte of a variable arrives changed.
    let mut job = Job::orbit(&scene, "moved", &[], &STEPS, &[("MRCUDA_FAULT_CORRUPT_BYTE", "1")]);
    job.wait_ready(LIMIT).unwrap();
    for number in 1..4 {
        wait_for_step(&mut job, 100 * number);
        let report = job.migrate("helper").unwrap();
        assert_eq!((report.ok(), report.code()), (false, "not-identical"), "{}", report.0);
        assert!(report.0["bytes_adopted"].as_u64() >= Some(MEMORY), "{}", report.0);
    }
    assert_identical(&job.wait(LIMIT), &native);
}
