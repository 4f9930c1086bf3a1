//! Large copies at a place outside of the job's process: their bytes travel over connections of their own (docs/memory.md, "Large copies over connections of
//! their own").

use crate::mix::move_until_its_end;
use crate::{LIMIT, assert_identical, words_of_mrcuda};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::programs::LITMUS;
use tests::scene::wait_for;
use tests::{Job, Linkage, Outcome, Programs, Random, Scene, Server};

/// Copies of 4 KiB already count as large, and pass through small areas.
const SMALL: (&str, &str) = ("MRCUDA_FAULT_SMALL_COPIES", "1");

fn server(scene: &Scene, name: &str) -> Server {
    Server::start_with(scene, name, &[], &[SMALL])
}

fn native(scene: &Scene, name: &str, args: &[&str]) -> Outcome {
    let outcome = Job::native(scene, "native", &Programs::get().path(Linkage::Static, name), args).wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{name} natively: {outcome:?}");
    outcome
}

/// Threads of a process that carry such copies. One that they have started has their name at first, so it is looked at twice.
fn threads(pid: u32) -> usize {
    let is_bulk = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "mrcuda-bulk");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(|t| t.path());
    let those: Vec<PathBuf> = tasks.filter(is_bulk).collect();
    std::thread::sleep(Duration::from_millis(20));
    those.iter().filter(|task| is_bulk(task)).count()
}

/// The setting decides how many connections there are, and the program's output does not depend on it.
#[test]
fn they_have_as_many_connections_as_the_setting_says() {
    let scene = Scene::new("large-setting");
    let args = ["--steps", "6", "--pace", "100000"];
    let native = native(&scene, "pageable", &args);
    let (server, program) = (Server::start(&scene, "one"), Programs::get().path(Linkage::Static, "pageable"));
    for (setting, wanted) in [("0", 0), ("1", 2), ("3", 6)] {
        let env = [("MRCUDA_BULK_CONNECTIONS", setting)];
        let place = server.place(0);
        let endless = ["--steps", "1000000", "--pace", "1000"];
        let mut job = Job::start(&scene, "endless", &["--server", &place], &program, &endless, &env);
        job.wait_ready(LIMIT).unwrap();
        let found = wait_for(LIMIT, || (threads(job.pid()) >= wanted).then_some(()));
        assert_eq!((found, threads(job.pid())), (Some(()), wanted), "{}", job.stderr());
        job.signal(libc::SIGKILL);
        job.wait(LIMIT);
        let outcome = Job::start(&scene, "job", &["--server", &place], &program, &args, &env).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
    let refused = [("MRCUDA_BULK_CONNECTIONS", "65")];
    let outcome = Job::start(&scene, "job", &["--server", &server.place(0)], &program, &args, &refused).wait(LIMIT);
    assert!(!outcome.ok() && outcome.stderr.contains("MRCUDA_BULK_CONNECTIONS"), "{outcome:?}");
}

/// How bytes of large copies have travelled.
#[derive(Clone, Copy)]
enum By {
    Connections,
    SharedMemory,
}

/// Bytes of large copies to the device and to the host that have travelled in a way, by the log of a job that has ended.
fn carried(log: &Path, by: By) -> [u64; 2] {
    let text = std::fs::read_to_string(log).unwrap();
    let words = match by {
        By::Connections => " bytes over connections of their own",
        By::SharedMemory => " bytes through shared memory",
    };
    ["BulkIn", "BulkOut"].map(|name| {
        let figures = text.lines().find_map(|l| l.split_once(&format!("exit: sent {name}: ")));
        figures.map_or(0, |(_, all)| {
            all.split(", ").find_map(|part| part.strip_suffix(words)).expect("what the log counts").parse().unwrap()
        })
    })
}

/// The app `registered`: arguments with a pace, and what it prints natively.
fn registered(scene: &Scene, program: &Path) -> (impl Fn(&'static str) -> [&'static str; 4], Outcome) {
    let args = |pace| ["--size", "small", "--pace", pace];
    let native = Job::native(scene, "native", program, &args("0")).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("\nOK\n"), "natively: {native:?}");
    (args, native)
}

/// Rounds and bytes of the app `registered` in its small size.
const REGISTERED: (u64, u64) = (24, 256 << 10);

/// Copies of registered memory use the connections at servers and helpers alike, if the setting allows any. On the job's machine no byte
/// passes through a socket.
#[test]
fn copies_of_registered_memory_have_connections_at_helpers_too() {
    let scene = Scene::new("large-carried");
    let program = Programs::get().app("registered");
    let (args, native) = registered(&scene, &program);
    let server = server(&scene, "one");
    for (name, place) in [("tcp", server.place(0)), ("unix", server.unix_place(0)), ("helper", "helper".to_owned())] {
        for connections in ["0", "2"] {
            let log = scene.path.join(format!("{name}-{connections}.log"));
            let env = [SMALL, ("MRCUDA_BULK_CONNECTIONS", connections), ("MRCUDA_LOG", &log.display().to_string())];
            let outcome = Job::start(&scene, name, &["--server", &place], &program, &args("0"), &env).wait(LIMIT);
            assert!(outcome.ok() && outcome.stdout == native.stdout, "{name} {connections}: {outcome:?}");
            assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
            let all = REGISTERED.0 * REGISTERED.1;
            let [sent, shared] = [By::Connections, By::SharedMemory].map(|by| carried(&log, by));
            let (used, unused) = if name == "tcp" { (sent, shared) } else { (shared, sent) };
            assert_eq!(unused, [0; 2], "{name}");
            match connections {
                "0" => assert_eq!(used, [0; 2], "{name}"),
                _ => assert!(used.iter().all(|bytes| *bytes >= all), "{name}: {used:?} of {all}"),
            }
        }
    }
}

/// The same while the job moves to and from helpers: each has connections of its own.
#[test]
fn copies_of_registered_memory_move_with_their_job() {
    let scene = Scene::new("large-helpers");
    let program = Programs::get().app("registered");
    let (args, native) = registered(&scene, &program);
    let server = server(&scene, "one");
    let places = ["helper".to_owned(), "helper:1".to_owned(), "local".to_owned(), server.unix_place(0)];
    let log = scene.path.join("moved.log");
    let env = [SMALL, ("SOFTGPU_DEVICES", "2"), ("MRCUDA_LOG", &log.display().to_string())];
    let mut job = Job::start(&scene, "moved", &["--server", &places[0]], &program, &args("100000"), &env);
    let succeeded = move_until_its_end(&mut job, &places, 0, &mut Random::new(30), 100);
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == native.stdout, "{outcome:?}");
    assert!(succeeded > 0, "no move succeeded");
    // Before it first moved, it was at a helper.
    let shared = carried(&log, By::SharedMemory);
    assert!(shared.iter().all(|bytes| *bytes > 0), "{shared:?}");
}

/// A large copy in one stream does not hold up short ones in others, wherever outside the job's process they are made. Of the large copies,
/// or of the pieces that they are made in, softgpu makes as many as the test lets it.
#[test]
fn short_copies_do_not_wait_for_a_large_one() {
    let scene = Scene::new("large-beside");
    let program = Programs::get().path(Linkage::Static, "beside");
    for (kind, way) in ["unix", "helper", "tcp"].into_iter().flat_map(|kind| ["in", "out"].map(|way| (kind, way))) {
        let name = format!("{kind}-{way}");
        let gate = scene.path.join(format!("{name}.gate"));
        std::fs::write(&gate, "").unwrap();
        let env = [("SOFTGPU_COPY_GATE", gate.to_str().unwrap())];
        let server = Server::start_with(&scene, &name, &[], &env);
        let place = match kind {
            "unix" => server.unix_place(0),
            "tcp" => server.place(0),
            other => other.to_owned(),
        };
        let mut job = Job::start(&scene, &name, &["--server", &place], &program, &[way], &env);
        let mut until = |word: &str| {
            let said = wait_for(LIMIT, || (job.stderr().lines().any(|l| l == word) || !job.runs()).then_some(()));
            (said.is_some() && job.runs(), job.stderr())
        };
        let waiting = until("waiting");
        assert!(waiting.0, "{name}: {}", waiting.1);
        // The first piece.
        std::fs::write(&gate, [0]).unwrap();
        let over = until("over");
        // Whatever has happened, the program is to end.
        std::fs::write(&gate, [0; 1000]).unwrap();
        let outcome = job.wait(LIMIT);
        assert!(over.0, "{name}: the short copies have not ended: {outcome:?}");
        assert!(outcome.ok() && outcome.stdout == "before the large copy\nRESULT ok\n", "{name}: {outcome:?}");
    }
}

/// Threads and streams with copies of random sizes, while their job moves between all kinds of places.
#[test]
fn copies_of_random_sizes_move_between_shared_memory_and_networks() {
    let scene = Scene::new("large-regions");
    let args = |pace| ["--steps", "40", "--pace", pace];
    let native = native(&scene, "regions", &args("0"));
    let server = server(&scene, "one");
    let places = [server.unix_place(0), server.place(0), "helper".to_owned(), server.unix_place(0), "local".to_owned()];
    let program = Programs::get().path(Linkage::Static, "regions");
    for place in &places[..3] {
        let outcome = Job::start(&scene, "stays", &["--server", place], &program, &args("0"), &[SMALL]).wait(LIMIT);
        assert_identical(&outcome, &native);
    }
    let log = scene.path.join("moved.log");
    let env = [SMALL, ("MRCUDA_LOG", &log.display().to_string())];
    let mut job = Job::start(&scene, "moved", &["--server", &places[0]], &program, &args("50000"), &env);
    let succeeded = move_until_its_end(&mut job, &places, 0, &mut Random::new(15), 100);
    assert_identical(&job.wait(LIMIT), &native);
    assert!(succeeded > 0, "no move succeeded");
    let shared = carried(&log, By::SharedMemory);
    assert!(shared.iter().all(|bytes| *bytes > 0), "{shared:?}");
}

/// A part of the memory of a copy is taken away while the copy stands in its stream. No thread of ours may fault: the copy fails, and the
/// program and its place go on.
#[test]
fn memory_that_goes_while_it_is_copied_fails_the_copy_alone() {
    let scene = Scene::new("large-gone");
    let server = Server::start_with(&scene, "one", &["--allow-plain"], &[SMALL]);
    let program = Programs::get().path(Linkage::Static, "regions");
    for way in ["in", "out", "in-protected", "out-protected"] {
        for place in ["helper".to_owned(), server.unix_place(0), server.place(0), server.plain(0)] {
            let outcome = Job::start(&scene, "job", &["--server", &place], &program, &[way], &[SMALL]).wait(LIMIT);
            assert!(outcome.ok() && outcome.stdout == "the copy ends with 1\nRESULT ok\n", "{way} {place}: {outcome:?}");
        }
    }
}

/// A server that keeps no host memory for a job has no staging areas: the copies travel with the calls.
#[test]
fn without_staging_memory_they_travel_with_the_calls() {
    let scene = Scene::new("large-none");
    let args = ["--steps", "3", "--pace", "100000"];
    let native = native(&scene, "pageable", &args);
    let server = Server::start_with(&scene, "one", &["--max-pinned", "1M"], &[]);
    let program = Programs::get().path(Linkage::Static, "pageable");
    let log = scene.path.join("log");
    let env = [("MRCUDA_LOG", log.to_str().unwrap())];
    let job = Job::start(&scene, "job", &["--server", &server.place(0)], &program, &args, &env);
    assert_identical(&job.wait(LIMIT), &native);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("exit: sent CopyIn: ") && log.contains("exit: sent CopyOut: "), "{log}");
    assert!(!log.contains("exit: sent BulkIn: ") && !log.contains("exit: sent BulkOut: "), "{log}");
}

/// Programs that copy in many ways, in small pieces.
#[test]
fn small_pieces_are_right_everywhere() {
    let scene = Scene::new("large-small");
    let server = server(&scene, "one");
    for (name, args) in [
        ("pinned", &[][..]),
        ("turns", &[]),
        ("batches", &[]),
        ("blocked", &[]),
        ("late", &["in"]),
        ("late", &["out"]),
        ("graphhost", &[]),
        ("writers", &[]),
    ] {
        let native = native(&scene, name, args);
        let program = Programs::get().path(Linkage::Static, name);
        for place in [server.place(0), server.unix_place(0)] {
            let env = [SMALL, ("SOFTGPU_DEVICES", "2")];
            let outcome = Job::start(&scene, name, &["--server", &format!("{place},{place}")], &program, args, &env).wait(LIMIT);
            assert!(!outcome.hung, "{name} {args:?} at {place} hangs: {}", outcome.stderr);
            assert_identical(&outcome, &native);
        }
    }
}

/// Streams whose copies need more staging memory than the server has: those beyond it travel with the calls.
#[test]
fn streams_beyond_the_staging_memory_lose_no_copy() {
    let scene = Scene::new("large-areas");
    let native = native(&scene, "late", &["streams"]);
    let program = Programs::get().path(Linkage::Static, "late");
    // Of one area, of two, of all.
    for limit in ["40M", "70M", "1G"] {
        let server = Server::start_with(&scene, limit, &["--max-pinned", limit], &[]);
        let outcome = Job::start(&scene, "job", &["--server", &server.place(0)], &program, &["streams"], &[]).wait(LIMIT);
        assert_identical(&outcome, &native);
        assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    }
}

/// A bad pointer faults on the thread that made the call, with or without encryption and connections for large copies. (Natively it
/// does so too, or on a thread of the driver.)
#[test]
fn memory_that_cannot_be_accessed_faults_on_the_calling_thread() {
    let scene = Scene::new("large-bad");
    let server = Server::start_with(&scene, "one", &["--allow-plain"], &[]);
    let program = Programs::get().path(Linkage::Static, "pageable");
    let wanted = "a fault of the calling thread\nRESULT ok\n";
    for way in ["in", "out", "async-in", "async-out"] {
        let native = Job::native(&scene, "native", &program, &[way]).wait(LIMIT);
        assert!(native.stdout.starts_with("a fault of "), "{way}: {native:?}");
        for place in [server.place(0), server.plain(0), server.unix_place(0)] {
            for connections in ["0", "2"] {
                let env = [("MRCUDA_BULK_CONNECTIONS", connections)];
                let outcome = Job::start(&scene, "job", &["--server", &place], &program, &[way], &env).wait(LIMIT);
                assert!(outcome.ok() && outcome.stdout == wanted, "{way} {place} {connections}: {outcome:?}");
            }
        }
    }
}

/// Work behind a copy to the host finds its bytes, though the place did not mirror the memory when the copy was submitted.
#[test]
fn kernels_read_what_was_copied_to_memory_that_they_use_by_its_address() {
    let scene = Scene::new("large-named");
    let native = native(&scene, "late", &["named"]);
    let (server, program) = (Server::start(&scene, "one"), Programs::get().path(Linkage::Static, "late"));
    for connections in ["0", "2"] {
        let env = [("MRCUDA_BULK_CONNECTIONS", connections)];
        let outcome = Job::start(&scene, "job", &["--server", &server.place(0)], &program, &["named"], &env).wait(LIMIT);
        assert_identical(&outcome, &native);
    }
}

/// A copy names memory that the place does not have yet, and a kernel behind it reads that memory.
#[test]
fn memory_that_bytes_name_is_there_before_they_are() {
    let scene = Scene::new("large-registered");
    let native = native(&scene, "late", &["registered"]);
    let (server, program) = (server(&scene, "one"), Programs::get().path(Linkage::Static, "late"));
    for place in [server.place(0), server.unix_place(0)] {
        let outcome = Job::start(&scene, "job", &["--server", &place], &program, &["registered"], &[SMALL]).wait(LIMIT);
        assert!(!outcome.hung, "it hangs at {place}: {}", outcome.stderr);
        assert_identical(&outcome, &native);
    }
}

/// A stream waits for bytes that name memory which the place must get first, and the driver waits for that stream, in a call that lies
/// before this memory.
#[test]
fn memory_that_bytes_name_is_given_while_the_driver_waits_for_them() {
    let scene = Scene::new("large-unloaded");
    let (server, program) = (server(&scene, "one"), Programs::get().path(Linkage::Static, "late"));
    for way in ["unloaded", "unloaded-late"] {
        let native = native(&scene, "late", &[way]);
        // Without connections the bytes of late copies are answers of the job to the stream.
        for connections in ["0", "2"] {
            let env = [SMALL, ("MRCUDA_BULK_CONNECTIONS", connections)];
            let outcome = Job::start(&scene, "job", &["--server", &server.place(0)], &program, &[way], &env).wait(LIMIT);
            assert!(!outcome.hung, "{way} hangs with {connections} connections: {}", outcome.stderr);
            assert_identical(&outcome, &native);
        }
    }
}

/// The order that programs are promised (docs/consistency.md).
#[test]
fn host_and_gpu_see_each_other_s_writes_in_order() {
    let scene = Scene::new("large-order");
    let (server, program) = (server(&scene, "one"), Programs::get().path(Linkage::Static, LITMUS));
    let args = ["--rounds", "2", "--words", "8192", "--counts", "--except", "sb/"];
    for place in [server.place(0), server.unix_place(0)] {
        let outcome = Job::start(&scene, "job", &["--server", &place], &program, &args, &[SMALL]).wait(LIMIT * 3);
        let wrong: Vec<&str> = outcome.stdout.lines().filter(|l| !l.contains(" ok ")).collect();
        assert!(outcome.ok() && wrong == ["RESULT ok"], "{place} {wrong:#?}\n{}", outcome.stderr);
        assert!(outcome.stdout.lines().count() > 1000 && words_of_mrcuda(&outcome).is_empty(), "{place} {}", outcome.stderr);
    }
}

/// A random program that moves, with places over TCP among its places.
#[test]
fn a_random_program_moves_with_its_copies() {
    let scene = Scene::new("large-mix");
    let args = |pace| ["--seed", "77", "--threads", "4", "--steps", "200", "--pace", pace];
    let native = native(&scene, "mix", &args("0"));
    let servers = [server(&scene, "one"), server(&scene, "two")];
    let places = [servers[0].place(0), servers[1].place(0), servers[1].unix_place(0), "local".to_owned()];
    let program = Programs::get().path(Linkage::Static, "mix");
    let mut job = Job::start(&scene, "moved", &["--server", &places[0]], &program, &args("8000"), &[SMALL]);
    let succeeded = move_until_its_end(&mut job, &places, 0, &mut Random::new(77), 200);
    assert_identical(&job.wait(LIMIT), &native);
    assert!(succeeded > 0, "no move succeeded");
}
