//! Between places of one GPU memory is handed over: the target adopts it, and nothing of it is copied.

use crate::cancel::Holder;
use crate::parking::figures;
use crate::{LIMIT, LONG, assert_identical, every_way, native_orbit, process, remote_orbit, wait_for_step};
use faults::Point;
use std::process::Command;
use tests::kill::gpu_bytes;
use tests::scene::{MACHINE, wait_for};
use tests::server::{helpers, signal};
use tests::{Job, Report, Scene, Server};

/// Arguments that let orbit work for as long as these moves take.
const STEPS: [&str; 5] = ["--steps", "3000", "--pace", "2000", "--progress"];
/// Orbit has more memory than this, and fewer bytes of variables.
const MEMORY: u64 = 4 << 20;

/// What a worker without a client may hold of a GPU.
const WARM_BYTES: u64 = 1 << 20;

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

#[test]
fn a_hundred_hand_overs_in_a_chain() {
    let scene = Scene::new("chain");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start_beside(&scene, "one"), Server::start_beside(&scene, "two")];
    let [one, two] = [servers[0].unix_place(0), servers[1].unix_place(0)];
    // It works during most of the moves.
    let steps = [&LONG[..], &["--pace", "8000"]].concat();
    let mut job = remote_orbit(&scene, "moved", &one, &steps, &[]);
    let (pid, own) = (job.pid(), held(job.pid(), &servers));
    for (number, to) in [&*two, "local", "helper", &*one].into_iter().cycle().take(100).enumerate() {
        let (adopted, copied) = ways(&job.migrate(to).unwrap());
        assert!(adopted >= MEMORY && copied < MEMORY, "move {number} to {to}: {adopted} bytes adopted, {copied} copied");
    }
    let clean = wait_for(LIMIT, || (held(pid, &servers) <= own || !job.runs()).then(|| job.runs()));
    assert_eq!(clean, Some(true), "{} bytes instead of {own} after the moves", held(pid, &servers));
    assert_identical(&job.wait(LIMIT), &native);
    // All of the GPU is free again.
    let free = || helpers(pid).is_empty() && held(pid, &servers) <= 2 * WARM_BYTES;
    assert!(wait_for(LIMIT, || free().then_some(())).is_some(), "{} bytes are left of the job", held(pid, &servers));
}

#[test]
fn a_source_that_is_killed_after_the_commit_takes_nothing_with_it() {
    let scene = Scene::new("orphaned");
    let native = native_orbit(&scene, &STEPS);
    let servers = [Server::start_beside(&scene, "one"), Server::start_beside(&scene, "two")];
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Committed);
    let mut job = remote_orbit(&scene, "moved", &servers[0].unix_place(0), &STEPS, &[("MRCUDA_FAULT", &fault)]);
    let worker = servers[0].worker_of(job.pid());
    let kept = std::thread::scope(|scope| {
        let moving = scope.spawn(|| ways(&job.migrate("helper").unwrap()));
        // The gate is still closed, and the source has released nothing.
        let (who, held) = holder.wait();
        assert_eq!(who, job.pid());
        assert!(gpu_bytes(worker) >= MEMORY);
        signal(worker, libc::SIGKILL);
        wait_for(LIMIT, || (gpu_bytes(worker) == 0).then_some(())).expect("the worker ends");
        drop(held);
        moving.join().unwrap()
    });
    assert!(kept.0 >= MEMORY && kept.1 < MEMORY, "{kept:?}");
    // What was handed over is handed over again.
    for (number, to) in [(1, servers[1].unix_place(0)), (2, "local".into()), (3, servers[0].unix_place(0))] {
        wait_for_step(&mut job, 100 * number);
        let (adopted, copied) = ways(&job.migrate(&to).unwrap());
        assert!(adopted >= MEMORY && copied < MEMORY, "to {to}: {adopted} bytes adopted, {copied} copied");
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_job_goes_on_and_comes_back_while_its_former_worker_ends() {
    let scene = Scene::new("leaving");
    let native = native_orbit(&scene, &STEPS);
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Leaving);
    let env = [("SOFTGPU_SEED_ID", MACHINE), ("MRCUDA_FAULT", fault.as_str())];
    let one = Server::start_with(&scene, "one", &["--max-gpu-jobs", "1"], &env);
    let two = Server::start_beside(&scene, "two");
    let mut job = remote_orbit(&scene, "moved", &one.unix_place(0), &STEPS, &[]);
    wait_for_step(&mut job, 50);
    let worker = one.worker_of(job.pid());
    // The move is over although the former worker, which is held, has released nothing.
    let (adopted, copied) = ways(&job.migrate(&two.unix_place(0)).unwrap());
    assert!(adopted >= MEMORY && copied < MEMORY, "{adopted} bytes adopted, {copied} copied");
    let (who, held) = holder.wait();
    assert_eq!(who, worker);
    assert!(gpu_bytes(worker) >= MEMORY);
    let state = || -> serde_json::Value {
        let listed = scene.mrcuda().args(["gpus", "--json", &one.address.to_string()]).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&listed.stdout).unwrap()[0]["gpus"][0].clone()
    };
    assert_eq!(state()["jobs"], serde_json::json!([]), "the job is not there any more");
    // The GPU has room for one job: this one waits until the worker has ended, and is not refused.
    std::thread::scope(|scope| {
        let back = scope.spawn(|| ways(&job.migrate(&one.unix_place(0)).unwrap()));
        wait_for(LIMIT, || (state()["waiting"] == 1).then_some(())).expect("it waits");
        drop(held);
        assert!(back.join().unwrap().0 >= MEMORY);
    });
    assert!(!one.workers().contains(&worker));
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_program_with_few_descriptors_adopts_all_of_its_memory() {
    let scene = Scene::new("few");
    let program = process::build(&scene, "parked");
    let end = scene.path.join("end");
    let run = scene.mrcuda();
    let mut command = Command::new("sh");
    scene.dress(&mut command);
    // As many chunks as would need half of the descriptors that it may have, and a GPU that has no room for half of them twice.
    command.args(["-c", r#"ulimit -Sn 100 && exec "$@""#, "sh"]).arg(run.get_program());
    command.args(["run", "--driver", "soft", "--server", "helper", "--"]).arg(program).arg(&end).arg("96");
    command.env("SOFTGPU_MEMORY", (104 << 20).to_string());
    let mut job = Job::spawn(&scene, "job", command);
    job.wait_ready(LIMIT).unwrap();
    wait_for(LIMIT, || figures(&job).filter(|(_, worked)| *worked > 5)).expect("it works");
    for to in ["local", "helper", "local"] {
        let (adopted, copied) = ways(&job.migrate(to).unwrap());
        assert!(adopted >= 96 << 20 && copied < MEMORY, "to {to}: {adopted} bytes adopted, {copied} copied");
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", job.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("100"), "{files}");
    std::fs::write(&end, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == "RESULT ok\n", "{outcome:?}");
}
