//! The memory of jobs that are stopped is evicted from the GPU, and comes back before they go on.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step, words_of_mrcuda};
use serde_json::Value;
use tests::kill::gpu_bytes;
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Job, Random, Scene, Server};

/// Long enough for some stops on a busy machine: a test lets it end early.
const STEPS: [&str; 5] = ["--steps", "40000", "--pace", "500", "--progress"];

/// A short time,
const EVICTS: [&str; 2] = ["--evict-stopped", "2s"];
/// which only the server of a test takes.
const SHORT: (&str, &str) = ("MRCUDA_FAULT_SHORT_SILENCE", "1");

/// The last step that orbit has queued.
fn step(job: &Job) -> u32 {
    job.stderr().lines().filter_map(|l| l.strip_prefix("step ")?.split(' ').next()?.parse().ok()).next_back().unwrap_or(0)
}

/// What the server says of a job.
fn served(scene: &Scene, server: &Server, job: &Job) -> Option<Value> {
    let output = scene.mrcuda().args(["gpus", "--json", &server.address.to_string()]).output().ok()?;
    let servers: Value = serde_json::from_slice(&output.stdout).ok()?;
    let jobs = servers[0]["gpus"][0]["jobs"].as_array()?;
    jobs.iter().find(|it| it["pid"] == job.pid()).cloned()
}

/// Bytes of a job that the server says it uses on the GPU, and those that it has evicted.
fn memory(scene: &Scene, server: &Server, job: &Job) -> Option<(u64, u64)> {
    let job = served(scene, server, job)?;
    Some((job["used_bytes"].as_u64()?, job["evicted_bytes"].as_u64()?))
}

/// Stops a job, and waits until its memory is evicted. Returns how much it is.
fn stop(scene: &Scene, server: &Server, job: &Job) -> u64 {
    signal(job.pid(), libc::SIGSTOP);
    let evicted = || memory(scene, server, job).map(|(_, evicted)| evicted).filter(|bytes| *bytes > 0);
    wait_for(LIMIT, evicted).unwrap_or_else(|| panic!("its memory stays: {}", server.errors()))
}

/// Waits until the server's log has these words.
fn wait_for_words(server: &Server, words: &str) {
    assert!(wait_for(LIMIT, || server.errors().contains(words).then_some(())).is_some(), "no `{words}`: {}", server.errors());
}

/// How often the server's log has these words.
fn count(server: &Server, words: &str) -> usize {
    server.errors().matches(words).count()
}

/// Stops and continues a job again and again, at a place of the server, and compares what it prints.
fn is_stopped_and_goes_on(name: &str, place: impl Fn(&Server) -> String) {
    let scene = Scene::new(name);
    let native = native_orbit(&scene, &STEPS);
    let server = Server::start_with(&scene, "one", &EVICTS, &[SHORT]);
    let mut job = remote_orbit(&scene, "job", &place(&server), &STEPS, &[]);
    let worker = server.worker_of(job.pid());
    let mut random = Random::new(11);
    for round in 1..=3 {
        // At any moment of a step.
        std::thread::sleep(std::time::Duration::from_micros(random.below(20_000)));
        let (used, none) = memory(&scene, &server, &job).expect("the server knows it");
        let at_driver = gpu_bytes(worker);
        let evicted = stop(&scene, &server, &job);
        let (rest, _) = memory(&scene, &server, &job).unwrap();
        // All but the variables of its code, and the driver's files say so, too.
        assert!(none == 0 && evicted + rest == used && rest < 2 << 20, "{used} {none}: {evicted} {rest}");
        assert_eq!(gpu_bytes(worker), at_driver - evicted);
        let before = step(&job);
        job.signal(libc::SIGCONT);
        wait_for_step(&mut job, before + 20);
        assert_eq!(memory(&scene, &server, &job), Some((used, 0)));
        assert!(count(&server, "are back on the GPU") >= round, "{}", server.errors());
    }
    job.let_end();
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "it is silent: {}", outcome.stderr);
}

#[test]
fn a_job_that_is_stopped_leaves_the_gpu_over_tls() {
    is_stopped_and_goes_on("stopped-tls", |server| server.place(0));
}

#[test]
fn a_job_that_is_stopped_leaves_the_gpu_in_shared_memory() {
    is_stopped_and_goes_on("stopped-shm", |server| server.unix_place(0));
}

#[test]
fn a_job_that_makes_no_calls_is_not_taken_for_a_stopped_one() {
    let scene = Scene::new("stopped-idle");
    let server = Server::start_with(&scene, "one", &["--evict-stopped", "5s"], &[SHORT]);
    // After its last step it waits for a file.
    let idle = |place| remote_orbit(&scene, "idle", place, &["--steps", "100", "--progress"], &[]);
    let (tls, shm) = (server.place(0), server.unix_place(0));
    for place in [&tls, &shm] {
        let job = idle(place);
        std::thread::sleep(std::time::Duration::from_secs(12));
        assert_eq!(memory(&scene, &server, &job).map(|(_, evicted)| evicted), Some(0), "{}", server.errors());
        assert_eq!(count(&server, "no sign of life"), 0, "{}", server.errors());
        job.let_end();
        assert!(job.wait(LIMIT).ok());
    }
}

/// A server at which one job has no room beside another, neither on the GPU nor evicted.
fn narrow(scene: &Scene) -> Server {
    let (server, job) = (Server::start(scene, "wide"), ["--server"]);
    let mut first = Job::orbit(scene, "first", &[job[0], &server.place(0)], &STEPS, &[]);
    first.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut first, 10);
    let (used, _) = memory(scene, &server, &first).unwrap();
    first.let_end();
    assert!(first.wait(LIMIT).ok());
    drop(server);
    let (limit, host) = ((used + used / 2).to_string(), used.to_string());
    Server::start_with(scene, "one", &[&EVICTS[..], &["--max-client-memory", &limit, "--evict-memory", &host]].concat(), &[SHORT])
}

#[test]
fn another_job_has_the_memory_of_a_stopped_one_which_waits_for_it() {
    let scene = Scene::new("stopped-two");
    let native = native_orbit(&scene, &STEPS);
    let server = narrow(&scene);
    let mut job = remote_orbit(&scene, "job", &server.place(0), &STEPS, &[]);
    let evicted = stop(&scene, &server, &job);
    let other = remote_orbit(&scene, "other", &server.place(0), &STEPS, &[]);
    let before = step(&job);
    job.signal(libc::SIGCONT);
    wait_for_words(&server, "waits until the GPU has room");
    assert!(
        wait_for(LIMIT, || job.stderr().contains("calls wait until the GPU has room").then_some(())).is_some(),
        "{}",
        job.stderr()
    );
    // It cannot move, for a reason that is named, and does not hang.
    let refused = job.migrate("local").unwrap();
    assert!(!refused.ok() && refused.reason().contains("the job was stopped"), "{}", refused.reason());
    assert!(step(&job) <= before + 20 && memory(&scene, &server, &job).unwrap().1 == evicted);
    other.let_end();
    assert_identical(&other.wait(LIMIT), &native);
    wait_for_step(&mut job, before + 50);
    wait_for_words(&server, "are back on the GPU");
    assert!(job.stderr().contains("is back: calls go on"), "{}", job.stderr());
    let moved = job.migrate("local").unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_stopped_job_that_is_killed_gives_all_back() {
    let scene = Scene::new("stopped-killed");
    let native = native_orbit(&scene, &STEPS);
    let server = narrow(&scene);
    // In shared memory and over a network the end of the process shows differently.
    for place in [server.unix_place(0), server.place(0)] {
        let job = remote_orbit(&scene, "killed", &place, &STEPS, &[]);
        let worker = server.worker_of(job.pid());
        stop(&scene, &server, &job);
        job.signal(libc::SIGKILL);
        assert!(!job.wait(LIMIT).ok());
        let gone = || (!std::path::Path::new(&format!("/proc/{worker}")).exists()).then_some(());
        assert!(wait_for(LIMIT, gone).is_some(), "its worker lives on");
    }
    let other = remote_orbit(&scene, "other", &server.place(0), &STEPS, &[]);
    other.let_end();
    assert_identical(&other.wait(LIMIT), &native);
}

#[test]
fn what_host_memory_has_no_room_for_stays_on_the_gpu() {
    let scene = Scene::new("stopped-full");
    let native = native_orbit(&scene, &STEPS);
    let server = Server::start_with(&scene, "one", &[&EVICTS[..], &["--evict-memory", "1M"]].concat(), &[SHORT]);
    let mut job = remote_orbit(&scene, "job", &server.place(0), &STEPS, &[]);
    let before = memory(&scene, &server, &job);
    job.signal(libc::SIGSTOP);
    wait_for_words(&server, "--evict-memory");
    // It is tried again, and said once.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((memory(&scene, &server, &job), count(&server, "stays on the GPU")), (before, 1), "{}", server.errors());
    let at = step(&job);
    job.signal(libc::SIGCONT);
    wait_for_step(&mut job, at + 20);
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}
