//! Host memory that kernels use by its address: everywhere on the job's machine, on others, and through moves between them.

use crate::{LIMIT, assert_identical, words_of_mrcuda};
use std::path::PathBuf;
use std::time::Duration;
use tests::scene::wait_for;
use tests::server::{helpers, signal};
use tests::{Job, Linkage, Outcome, Programs, Random, Scene, Server};

/// Arguments that keep `mapped` busy for some seconds, and how long it may work before a move.
const ARGS: [&str; 4] = ["--steps", "160", "--pace", "20000"];
const PAUSE: Duration = Duration::from_millis(300);

fn program(name: &str) -> PathBuf {
    Programs::get().path(Linkage::Static, name)
}

fn native(scene: &Scene, name: &str) -> Outcome {
    let outcome = Job::native(scene, "native", &program(name), &ARGS).wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "natively: {outcome:?}");
    outcome
}

/// Runs a program from the first place through the others, each in its turn, and wants what it prints natively.
fn through(scene: &Scene, name: &str, native: &Outcome, places: &[&str]) {
    through_with(scene, name, native, places, &ARGS, &[]);
}

/// Arguments with a longer pause behind each step. What is printed does not depend on it.
fn slower(args: &[&str], times: u32) -> Vec<String> {
    let mut args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
    if let Some(at) = args.iter().position(|a| a == "--pace") {
        args[at + 1] = (args[at + 1].parse::<u32>().expect("microseconds") * times).to_string();
    }
    args
}

fn through_with(scene: &Scene, name: &str, native: &Outcome, places: &[&str], args: &[&str], env: &[(&str, &str)]) {
    // On a busy machine a run can end before its last move: such a run must be right all the same, and another one is made.
    for attempt in 1..=5 {
        let slower = slower(args, 1 << (attempt - 1));
        let slower: Vec<&str> = slower.iter().map(String::as_str).collect();
        let mut job = Job::start(scene, "job", &["--server", places[0]], &program(name), &slower, env);
        job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
        let mut late = None;
        for to in &places[1..] {
            std::thread::sleep(PAUSE);
            match job.migrate(to) {
                Ok(report) => assert!(report.ok(), "to {to}: {}", report.reason()),
                Err(why) => {
                    late = Some(format!("to {to}: {why}"));
                    break;
                }
            }
        }
        let outcome = job.wait(LIMIT);
        assert_identical(&outcome, native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
        match late {
            None => break,
            Some(why) => assert!(attempt < 5, "it always ended before its last move: {why}"),
        }
    }
}

/// Kernels use pinned memory at this place of the machine; none: the server's.
fn kernels_use_pinned_memory(place: Option<&str>) {
    let scene = Scene::new(&format!("mapped-{}", place.unwrap_or("unix")));
    let native = native(&scene, "mapped");
    let server = Server::start(&scene, "one");
    through(&scene, "mapped", &native, &[place.unwrap_or(&server.unix_place(0))]);
}

#[test]
fn kernels_use_pinned_memory_at_a_place_on_this_machine() {
    kernels_use_pinned_memory(None);
}

#[test]
fn kernels_use_pinned_memory_in_a_helper() {
    kernels_use_pinned_memory(Some("helper"));
}

#[test]
fn kernels_use_pinned_memory_in_the_job_s_process() {
    kernels_use_pinned_memory(Some("local"));
}

#[test]
fn pinned_memory_is_used_through_moves_between_places_on_this_machine() {
    let scene = Scene::new("mapped-moves");
    let native = native(&scene, "mapped");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (one, two) = (servers[0].unix_place(0), servers[1].unix_place(0));
    through(&scene, "mapped", &native, &[&one, "helper", "local", &two, "local", "helper", &one, &two]);
}

/// Managed memory and variables are used at every place of the machine, and through moves between them.
fn managed_memory_is_used(name: &str) {
    let scene = Scene::new(&format!("{name}-unix"));
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (one, two) = (servers[0].unix_place(0), servers[1].unix_place(0));
    let native = native(&scene, name);
    through(&scene, name, &native, &[&one]);
    through(&scene, name, &native, &["local", "helper", "local", &two, &one]);
}

#[test]
fn managed_memory_is_used_at_every_place_of_the_machine_and_through_moves() {
    managed_memory_is_used("managed");
}

#[test]
fn shared_variables_are_used_at_every_place_of_the_machine_and_through_moves() {
    managed_memory_is_used("shared_variables");
}

/// Over the network it is kept alike.
fn kept_alike(name: &str) {
    let scene = Scene::new(&format!("{name}-tcp"));
    let server = Server::start(&scene, "one");
    through(&scene, name, &native(&scene, name), &[&server.place(0)]);
}

/// And through moves to and from there.
fn kept_alike_through_moves(name: &str) {
    let scene = Scene::new(&format!("{name}-tcp-moves"));
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (unix, one, two) = (servers[0].unix_place(0), servers[0].place(0), servers[1].place(0));
    let native = native(&scene, name);
    through(&scene, name, &native, &[&unix, &one, "local", &two, &one, "helper"]);
    through(&scene, name, &native, &["local", &one, &unix, &two, "local"]);
}

macro_rules! over_tcp {
    ($($test:ident: $how:ident, $program:literal;)*) => {
        $(#[test] fn $test() { $how($program); })*
    };
}

over_tcp! {
    mapped_over_the_network: kept_alike, "mapped";
    managed_over_the_network: kept_alike, "managed";
    shared_variables_over_the_network: kept_alike, "shared_variables";
    alike_over_the_network: kept_alike, "alike";
    writers_over_the_network: kept_alike, "writers";
    pinned_over_the_network: kept_alike, "pinned";
    polls_over_the_network: kept_alike, "polls";
    mapped_through_moves_over_the_network: kept_alike_through_moves, "mapped";
    managed_through_moves_over_the_network: kept_alike_through_moves, "managed";
    shared_variables_through_moves_over_the_network: kept_alike_through_moves, "shared_variables";
    alike_through_moves_over_the_network: kept_alike_through_moves, "alike";
    writers_through_moves_over_the_network: kept_alike_through_moves, "writers";
}

/// Pinned memory whose address one GPU finds in memory that its place mirrors.
#[test]
fn what_one_gpu_is_told_of_the_gpus_of_other_machines_have() {
    let scene = Scene::new("letters");
    let native = native(&scene, "letters");
    let devices = [("SOFTGPU_DEVICES", "4")];
    let servers = [Server::start_with(&scene, "one", &[], &devices), Server::start_with(&scene, "two", &[], &devices)];
    let tcp = [servers[0].place(0), servers[1].place(0)].join(",");
    through(&scene, "letters", &native, &[&tcp]);
    // Each GPU alone, at random moments.
    let places = |gpu: u32| [servers[0].place(gpu), servers[1].place(gpu), servers[1].unix_place(gpu + 2), "helper".to_owned()];
    let mut random = Random::new(7);
    let mut job = Job::start(&scene, "job", &["--server", &tcp], &program("letters"), &ARGS, &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let (mut at, mut succeeded) = ([0, 1], 0);
    while job.runs() {
        std::thread::sleep(Duration::from_millis(random.below(150)));
        let gpu = random.below(2) as usize;
        let to = (at[gpu] + 1 + random.below(3) as usize) % 4;
        let Ok(report) = job.migrate_with(&places(gpu as u32)[to], &["--gpu", &gpu.to_string()]) else { break };
        if report.ok() {
            (at[gpu], succeeded) = (to, succeeded + 1);
        }
    }
    assert_identical(&job.wait(LIMIT), &native);
    assert!(succeeded > 3, "only {succeeded} moves succeeded");
}

#[test]
fn pinned_memory_is_copied_by_the_driver_of_a_place_on_this_machine() {
    let scene = Scene::new("unix-copies");
    let server = Server::start(&scene, "one");
    let (unix, tcp) = (server.unix_place(0), server.place(0));
    for name in ["pinned", "polls", "callbacks"] {
        let native = native(&scene, name);
        through(&scene, name, &native, &[&unix, "helper", &tcp, "local", &unix]);
    }
}

/// Calls that are asynchronous natively return while their stream is held back, host memory is taken as natively: at every place, with one
/// GPU and with two.
#[test]
fn calls_return_while_their_stream_is_held_back() {
    let scene = Scene::new("blocked");
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    let args = ["--steps", "3"];
    let native = Job::native(&scene, "native", &program("blocked"), &args).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let two = |place: &dyn Fn(u32) -> String| [place(0), place(1)].join(",");
    let unix = |gpu| server.unix_place(gpu);
    let tcp = |gpu| server.place(gpu);
    for places in [unix(0), tcp(0), "helper".to_owned(), "local".to_owned(), two(&unix), two(&tcp), "local,helper".to_owned()] {
        let env = [("SOFTGPU_DEVICES", "2")];
        let job = Job::start(&scene, "job", &["--server", &places], &program("blocked"), &args, &env);
        // A call that waits does so for ever.
        let outcome = job.wait(LIMIT);
        assert!(!outcome.hung, "at {places} a call waits for what comes after it: {}", outcome.stderr);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
}

/// Copies that take long, of pageable memory.
#[test]
fn large_copies_of_pageable_memory_are_moved_in_the_middle() {
    let scene = Scene::new("pageable");
    let args = ["--steps", "24", "--pace", "30000"];
    let native = Job::native(&scene, "native", &program("pageable"), &args).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let server = Server::start(&scene, "one");
    let (unix, tcp) = (server.unix_place(0), server.place(0));
    // What it prints depends on its steps only.
    let slow = ["--steps", "24", "--pace", "600000"];
    // On a machine of two processors the driver would be left to make them.
    let threads = [("MRCUDA_COPY_THREADS", "3")];
    through_with(&scene, "pageable", &native, &["local", &unix, "local", "helper", "local", &tcp, "local"], &slow, &threads);
}

/// Names of a process's threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok()).map(|name| name.trim().to_owned()).collect()
}

/// As many threads copy as the setting says, none where it says so, and the program's output does not depend on it.
#[test]
fn large_copies_in_process_are_made_by_several_threads() {
    let scene = Scene::new("pageable-threads");
    let args = ["--steps", "12", "--pace", "100000"];
    let native = Job::native(&scene, "native", &program("pageable"), &args).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    for wanted in [0, 1, 5] {
        let setting = wanted.to_string();
        let env = [("MRCUDA_COPY_THREADS", setting.as_str())];
        let mut job = Job::start(&scene, "job", &["--server", "local"], &program("pageable"), &args, &env);
        job.wait_ready(LIMIT).unwrap();
        let (mut most, pid) = (0, job.pid());
        while job.runs() {
            most = most.max(threads(pid).iter().filter(|name| *name == "copy").count());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_identical(&job.wait(LIMIT), &native);
        assert_eq!(most, wanted);
    }
    let refused =
        Job::start(&scene, "job", &["--server", "local"], &program("pageable"), &args, &[("MRCUDA_COPY_THREADS", "many")]);
    let outcome = refused.wait(LIMIT);
    assert!(!outcome.ok() && outcome.stderr.contains("MRCUDA_COPY_THREADS"), "{outcome:?}");
}

/// Over shared memory they go through memory that the place shares: its mapping is seen, and the program's output does not depend on it, nor
/// on how many threads copy.
#[test]
fn large_copies_over_shared_memory_go_through_common_memory() {
    let scene = Scene::new("pageable-slots");
    let args = ["--steps", "12", "--pace", "100000"];
    let native = Job::native(&scene, "native", &program("pageable"), &args).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let server = Server::start(&scene, "one");
    for (place, threads) in [(server.unix_place(0), "0"), ("helper".to_owned(), "3"), (server.place(0), "3")] {
        let env = [("MRCUDA_COPY_THREADS", threads)];
        let mut job = Job::start(&scene, "job", &["--server", &place], &program("pageable"), &args, &env);
        job.wait_ready(LIMIT).unwrap();
        let (mut seen, pid) = (false, job.pid());
        while job.runs() {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            seen |= maps.lines().any(|line| line.contains("mrcuda pinned memory") && bytes_of(line) == Some(16 << 20));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_identical(&job.wait(LIMIT), &native);
        assert_eq!(seen, place != server.place(0), "{place}");
    }
}

/// The bytes of a line of `/proc/PID/maps`.
fn bytes_of(line: &str) -> Option<u64> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
}

#[test]
fn a_lost_helper_leaves_nothing_behind() {
    let scene = Scene::new("mapped-lost");
    // Of those programs that use no registered memory by its address: then the helper would have copies.
    let mut job = Job::start(&scene, "job", &["--server", "helper"], &program("managed"), &ARGS, &[]);
    job.wait_ready(LIMIT).unwrap();
    std::thread::sleep(PAUSE);
    let pid = job.pid();
    let helper = helpers(pid)[0];
    let maps = std::fs::read_to_string(format!("/proc/{helper}/maps")).unwrap();
    assert!(maps.lines().any(|l| l.starts_with("4000") && l.contains("mrcuda pinned memory")), "{maps}");
    signal(helper, libc::SIGKILL);
    // It may be looking at a flag that nobody sets any more, which no library can notice.
    let ended = wait_for(Duration::from_secs(5), || (!job.runs()).then_some(())).is_some();
    if !ended {
        job.signal(libc::SIGKILL);
    }
    let outcome = job.wait(LIMIT);
    assert!(!ended || outcome.code == Some(2), "{outcome:?}");
    assert!(helpers(pid).is_empty());
}

#[test]
fn memory_that_ends_with_a_context_takes_no_bytes_of_another_gpus_copy() {
    let scene = Scene::new("freed");
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    for (name, first, second) in
        [("remote", server.place(0), server.place(1)), ("unix", server.unix_place(0), server.unix_place(1))]
    {
        let places = format!("{first},{second}");
        let outcome = Job::start(&scene, name, &["--server", &places], &program("freed"), &[], &[]).wait(LIMIT);
        assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{name}: {outcome:?}");
    }
}
