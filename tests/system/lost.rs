//! Processes that end at the wrong moment.

use crate::cancel::Holder;
use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step, words_of_mrcuda};
use faults::Point;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Job, Scene, Server};

/// How soon a loss must be noticed.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn a_lost_server_is_an_error_of_the_next_call() {
    let scene = Scene::new("power");
    let mut server = Server::start(&scene, "one");
    let jobs = [("tcp", server.place(0)), ("unix", server.unix_place(0))].map(|(name, place)| {
        let mut job = remote_orbit(&scene, name, &place, &LONG, &[]);
        wait_for_step(&mut job, 100);
        job
    });
    server.kill();
    for job in jobs {
        let outcome = job.wait(SOON);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains("CUDA_ERROR_DEVICE_UNAVAILABLE (46)"), "{}", outcome.stderr);
        let words = words_of_mrcuda(&outcome);
        assert_eq!(words.len(), 1, "{}", outcome.stderr);
        assert!(words[0].contains("GPU 0") && words[0].contains("lost"), "{}", words[0]);
    }
}

#[test]
fn a_worker_that_dies_harms_no_other_client() {
    let scene = Scene::new("worker");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    let mut unlucky = remote_orbit(&scene, "unlucky", &server.place(0), &LONG, &[]);
    wait_for_step(&mut unlucky, 50);
    let victim = server.worker_of(unlucky.pid());
    let other = remote_orbit(&scene, "other", &server.place(1), &LONG, &[]);
    signal(victim, libc::SIGKILL);
    let outcome = unlucky.wait(SOON);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("(46)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("; its server says: signal: 9 (SIGKILL))"), "{}", outcome.stderr);
    assert_identical(&other.wait(LIMIT), &native);
    // The daemon goes on as well.
    let last = Job::orbit(&scene, "last", &["--server", &server.place(0)], &LONG, &[]);
    assert_identical(&last.wait(LIMIT), &native);
}

#[test]
fn a_killed_job_leaves_nothing_on_the_server() {
    let scene = Scene::new("killed");
    let server = Server::start(&scene, "one");
    for place in [server.place(0), server.unix_place(0)] {
        let mut job = remote_orbit(&scene, "moved", &place, &LONG, &[]);
        wait_for_step(&mut job, 50);
        let worker = server.worker_of(job.pid());
        job.signal(libc::SIGKILL);
        assert_eq!(job.wait(SOON).signal, Some(libc::SIGKILL));
        let gone = wait_for(SOON, || (!server.workers().contains(&worker)).then_some(()));
        assert!(gone.is_some(), "worker {worker} keeps the memory of a dead job");
    }
    // Nor does its socket stay in the list.
    assert!(scene.jobs().unwrap().is_empty());
}

#[test]
fn a_target_that_dies_during_the_move_costs_nothing() {
    let scene = Scene::new("target");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut target = Server::start(&scene, "two");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 100);
    let place = target.place(0);
    let report = std::thread::scope(|s| {
        let moving = s.spawn(|| job.migrate(&place));
        std::thread::sleep(Duration::from_millis(60));
        target.kill();
        moving.join().unwrap().unwrap()
    });
    // If the move was faster than the blow, the job is lost with the target: that is not what is tested here.
    if !report.ok() {
        assert_identical(&job.wait(LIMIT), &native);
    }
}

#[test]
fn a_forked_child_has_no_gpu_and_the_parent_goes_on() {
    let scene = Scene::new("fork");
    let server = Server::start(&scene, "one");
    let program = scene.install.file("forks");
    let (tcp, unix) = (server.place(0), server.unix_place(0));
    let places = [("remote", &["--server", &tcp][..]), ("unix", &["--server", &unix]), ("local", &[])];
    for (name, options) in places {
        let outcome = Job::start(&scene, name, options, &program, &[], &[]).wait(LIMIT);
        assert!(outcome.ok(), "{name}: {outcome:?}");
        let mut lines: Vec<_> = outcome.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["child refused", "parent goes on"], "{name}");
    }
}

/// Whether a process ignores a signal.
fn ignores(pid: u32, number: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|l| u64::from_str_radix(l.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

/// Processes that are killed at the end.
struct Leftovers(Vec<u32>);

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
    }
}

#[test]
fn a_child_that_is_forked_while_the_job_connects_gets_an_answer() {
    let scene = Scene::new("fork-early");
    let server = Server::start(&scene, "one");
    let holder = Holder::new(&scene);
    let (fault, go) = (holder.at(Point::Connect), scene.path.join("go"));
    let script = tests::install::root().join("tests/programs/process/forked_early.py");
    let args = ["python3", script.to_str().unwrap(), go.to_str().unwrap()];
    let options = ["--server", &server.place(0)];
    let job = Job::start(&scene, "job", &options, std::path::Path::new("/usr/bin/env"), &args, &[("MRCUDA_FAULT", &fault)]);
    let (_, held) = holder.wait();
    std::fs::write(&go, "").unwrap();
    // A line is there when it has ended.
    let said =
        |text: &str| text.split_inclusive('\n').find_map(|l| l.strip_prefix("child ")?.strip_suffix('\n').map(str::to_owned));
    let child = wait_for(LIMIT, || said(&job.stdout()));
    assert_eq!(child.as_deref(), Some("3"), "the child's cuInit: {}", job.stderr());
    drop(held);
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.contains("opened 0"), "{outcome:?}");
}

#[test]
fn children_that_outlive_a_job_neither_move_it_nor_keep_its_socket() {
    let scene = Scene::new("children");
    let server = Server::start(&scene, "one");
    let go = scene.path.join("go");
    let script = tests::install::root().join("tests/programs/process/children.py");
    let args = [script.to_str().unwrap(), go.to_str().unwrap()];
    let options = ["--server", &server.place(0), "--on-signal", &server.unix_place(0)];
    let mut job =
        Job::start(&scene, "job", &options, std::path::Path::new("/usr/bin/env"), &[&["python3"], &args[..]].concat(), &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let path = scene.runtime().join("mrcuda").join(job.pid().to_string());
    let mut listener = UnixStream::connect(path).unwrap();
    listener.write_all(b"{\"v\":2,\"op\":\"subscribe\"}\n").unwrap();
    let mut lines = BufReader::new(listener.try_clone().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("subscribed"), "{line}");
    std::fs::write(&go, "").unwrap();
    let pids = wait_for(LIMIT, || {
        let words = job.stdout().lines().find_map(|l| l.strip_prefix("children ").map(str::to_owned))?;
        Some(words.split(' ').map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
    });
    let children = Leftovers(pids.expect("the children"));
    let [forked, begun] = children.0[..] else { panic!("{:?}", children.0) };
    // The one that has begun another program may be on the way there.
    wait_for(LIMIT, || std::fs::read_to_string(format!("/proc/{begun}/comm")).is_ok_and(|c| c == "sleep\n").then_some(()))
        .unwrap();
    for child in [forked, begun] {
        signal(child, libc::SIGUSR1);
        assert!(ignores(child, libc::SIGUSR1), "child {child}");
        assert!(std::path::Path::new(&format!("/proc/{child}")).exists());
    }
    // A move by a signal to the job itself comes after any that theirs might have caused.
    job.signal(libc::SIGUSR1);
    wait_for(LIMIT, || (!job.moves().ok()?.is_empty()).then_some(())).expect("a move");
    assert_eq!(job.moves().unwrap().len(), 1, "a signal to a child has moved the job");
    job.signal(libc::SIGKILL);
    assert_eq!(job.wait(LIMIT).signal, Some(libc::SIGKILL));
    listener.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = String::new();
    let ended = lines.read_to_string(&mut rest);
    assert!(ended.is_ok(), "whoever listens is not told that the job has ended: {ended:?}");
}
