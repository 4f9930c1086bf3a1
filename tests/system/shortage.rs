//! Something runs out: the job goes on, and what cannot be done is refused.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step, words_of_mrcuda};
use std::collections::BTreeSet;
use std::process::Command;
use tests::scene::wait_for;
use tests::{Job, Linkage, Outcome, Programs, Scene, Server};

/// Starts mill on a server with a limit on the size of files, in KiB; the file ends it.
fn limited_mill<'a>(scene: &'a Scene, place: &str, kib: &str, pad: &str, env: &[(&str, &str)]) -> Job<'a> {
    let run = scene.mrcuda();
    let mut command = Command::new("bash");
    command.args(["-c", r#"ulimit -f "$0" && exec "$@""#]).arg(kib).arg(run.get_program());
    command.args(["run", "--driver", "soft", "--server", place, "--"]).arg(scene.install.file("mill"));
    command.arg("--until").arg(scene.path.join("end"));
    command.args(["--pad", pad]).envs(env.iter().copied());
    scene.dress(&mut command);
    Job::spawn(scene, "job", command)
}

/// Waits until mill has made so many rounds.
fn wait_for_round(job: &mut Job, round: usize) {
    let line = format!("round {round}");
    let there = wait_for(LIMIT, || (job.stderr().lines().any(|l| l == line) || !job.runs()).then(|| job.runs()));
    assert_eq!(there, Some(true), "mill did not get to round {round}: {}", job.stderr());
}

/// The move is refused with this code, and the job ends well.
fn stays(scene: &Scene, job: Job, to: &str, code: &str) {
    let report = job.migrate(to).unwrap();
    assert_eq!(report.code(), code, "{}", report.0);
    std::fs::write(scene.path.join("end"), "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{outcome:?}");
}

#[test]
fn no_room_for_a_journal_from_the_start() {
    let scene = Scene::new("nodisk");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let nowhere = scene.path.join("nowhere").display().to_string();
    let env = [("MRCUDA_KEEP_JOURNAL", nowhere.as_str())];
    let mut job = limited_mill(&scene, &servers[0].place(0), "unlimited", "0", &env);
    wait_for_round(&mut job, 2);
    assert!(job.stderr().contains("has no journal"), "{}", job.stderr());
    stays(&scene, job, &servers[1].place(0), "no-journal");
}

#[test]
fn no_more_room_for_the_journal() {
    let scene = Scene::new("fulldisk");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    // Only what is kept is in a file.
    let directory = scene.path.display().to_string();
    let mut job = limited_mill(&scene, &servers[0].place(0), "3072", "1024", &[("MRCUDA_KEEP_JOURNAL", directory.as_str())]);
    wait_for_round(&mut job, 12);
    assert!(job.stderr().contains("cannot grow"), "{}", job.stderr());
    stays(&scene, job, &servers[1].place(0), "journal-incomplete");
}

#[test]
fn no_room_for_anything_is_an_error_and_no_signal() {
    let scene = Scene::new("nothing");
    let server = Server::start(&scene, "one");
    let outcome = limited_mill(&scene, &server.place(0), "64", "0", &[]).wait(LIMIT);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("File too large"), "{}", outcome.stderr);
}

/// What a job keeps of freed memory makes room for memory that the place's driver allocates itself.
#[test]
fn freed_memory_makes_room_for_every_kind() {
    let scene = Scene::new("room");
    let small = [("SOFTGPU_MEMORY", "536870912")];
    let (server, program) = (Server::start_with(&scene, "one", &[], &small), Programs::get().path(Linkage::Static, "room"));
    for place in ["local", "helper", &server.place(0)] {
        let outcome = Job::start(&scene, "job", &["--server", place], &program, &[], &small).wait(LIMIT);
        let wanted = "memory for tiles: 0\narray: 0\nmipmapped array: 0\nRESULT ok\n";
        assert!(outcome.ok() && outcome.stdout == wanted, "at {place}: {outcome:?}");
    }
}

/// Limits a running process to this descriptor number; gives the limit that it had.
fn limit_descriptors(pid: u32, most: u64) -> u64 {
    let new = libc::rlimit { rlim_cur: most, rlim_max: most.max(1 << 20) };
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let pid = i32::try_from(pid).unwrap();
    // SAFETY: both structs live during the call; the hard limit is asked for first.
    let rc = unsafe {
        libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut old);
        let new = libc::rlimit { rlim_max: old.rlim_max, ..new };
        libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const new, std::ptr::null_mut())
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    old.rlim_cur
}

/// The limit under which a process can open so many descriptors more.
fn descriptors(pid: u32, spare: usize) -> u64 {
    let list = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let used: BTreeSet<u64> = list.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..).filter(|n| !used.contains(n)).nth(spare).unwrap()
}

#[test]
fn a_job_without_descriptors_stays_until_it_has_some() {
    let scene = Scene::new("nofiles");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &[]);
    wait_for_step(&mut job, 50);
    // Two for the request itself.
    let before = limit_descriptors(job.pid(), descriptors(job.pid(), 2));
    let report = job.migrate(&servers[1].place(0)).unwrap();
    assert!(!report.ok() && report.reason().contains("Too many open files"), "{}", report.0);
    limit_descriptors(job.pid(), before);
    let report = job.migrate(&servers[1].place(0)).unwrap();
    assert!(report.ok(), "{}", report.0);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_server_without_descriptors_keeps_its_jobs() {
    let scene = Scene::new("noaccept");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "first", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 50);
    let before = limit_descriptors(server.pid(), descriptors(server.pid(), 0));
    let orbit = scene.install.file("orbit");
    let late = Job::start(&scene, "late", &["--server", &server.place(0)], &orbit, &["--steps", "50"], &[]).wait(LIMIT);
    assert_eq!(late.code, Some(2), "{late:?}");
    assert!(late.stderr.contains(&server.address.to_string()), "it names the server: {}", late.stderr);
    limit_descriptors(server.pid(), before);
    let later = Job::start(&scene, "later", &["--server", &server.place(0)], &orbit, &["--steps", "50"], &[]).wait(LIMIT);
    assert!(later.ok(), "{later:?}");
    assert_identical(&job.wait(LIMIT), &native);
}

/// Runs `unheard` at a place without page-locked memory for its copies.
fn unheard(way: &str) -> Outcome {
    let scene = Scene::new(&format!("unheard-{way}"));
    let program = Programs::get().path(Linkage::Static, "unheard");
    let native = Job::native(&scene, "native", &program, &[way]).wait(LIMIT);
    assert!(native.ok() && native.stdout == "done\nRESULT ok\n", "natively: {native:?}");
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_PINNED", PINNED), ("SOFTGPU_DEVICES", "2")]);
    let places = format!("{},{}", server.place(0), server.place(1));
    Job::start(&scene, "job", &["--server", &places], &program, &[way], &[]).wait(LIMIT)
}

/// Page-locked memory of a place: enough for its own, not for a buffer of a copy.
const PINNED: &str = "1048576";

fn assert_reported(outcome: &Outcome, call: &str) {
    assert!(outcome.ok() && outcome.stdout == "told\nRESULT ok\n", "a copy is lost and nobody hears of it: {outcome:?}");
    let words = words_of_mrcuda(outcome);
    assert!(words.len() == 1 && words[0].contains(call) && words[0].contains("after its call had returned"), "{words:?}");
}

#[test]
fn a_late_copy_without_memory_is_an_error_of_a_later_call() {
    assert_reported(&unheard("in"), "CopyInLate");
}

#[test]
fn a_late_copy_to_an_array_without_memory_is_an_error_of_a_later_call() {
    assert_reported(&unheard("array"), "CopyBoxLate");
}

#[test]
fn an_answer_without_memory_is_an_error_of_a_later_call() {
    assert_reported(&unheard("out"), "CopyOut");
}

#[test]
fn a_context_is_reset_although_an_error_waits_to_be_told() {
    assert_reported(&unheard("reset"), "CopyInLate");
}

#[test]
fn who_waits_for_a_copy_that_fails_meanwhile_is_told() {
    assert_reported(&unheard("waits"), "CopyInLate");
}

#[test]
fn a_green_context_ends_although_an_error_waits_to_be_told() {
    assert_reported(&unheard("green"), "CopyInLate");
}

#[test]
fn a_library_is_unloaded_everywhere_or_nowhere_if_an_error_waits_to_be_told() {
    assert_reported(&unheard("library"), "CopyInLate");
}
