//! Calls at the end of threads and of the process are held at the gate, journalled and carried out as all others are; calls that a bug
//! of ours ends leave an error that stays, and a job that does not move.

use crate::{LIMIT, LONG, assert_identical, native_orbit, process, remote_orbit, words_of_mrcuda};
use tests::scene::wait_for;
use tests::{Job, Linkage, Programs, Scene, Server};

/// Moves of a job from place to place.
const MOVES: usize = 6;

/// Runs `endings` in one of its ways natively and under moves between places of every kind.
fn moves_while(way: &str) {
    let scene = Scene::new(way);
    let program = Programs::get().path(Linkage::Static, "endings");
    let file = |name: &str| scene.path.join(name).display().to_string();
    std::fs::write(file("open"), "").unwrap();
    let native = Job::native(&scene, "native", &program, &[way, &file("open")]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let places = [servers[0].place(0), servers[1].unix_place(0), "local".to_owned(), servers[1].place(0)];
    let mut job = Job::start(&scene, "job", &["--server", &places[0]], &program, &[way, &file("go")], &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    for to in places.iter().cycle().skip(1).take(MOVES) {
        let report = job.migrate(to).unwrap_or_else(|why| panic!("to {to}: {why}\n{}", job.stderr()));
        assert!(report.ok(), "to {to}: {}", report.reason());
    }
    assert!(job.runs(), "{}", job.stderr());
    std::fs::write(file("go"), "").unwrap();
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
}

#[test]
fn threads_end_with_thread_local_objects_that_work() {
    moves_while("local");
}

#[test]
fn threads_end_with_keys_that_work() {
    moves_while("key");
}

#[test]
fn the_process_ends_with_a_static_object_that_works() {
    moves_while("static");
}

#[test]
fn the_process_ends_with_an_exit_handler_that_works() {
    moves_while("exit");
}

#[test]
fn threads_are_cancelled_between_their_calls() {
    moves_while("cancel");
}

#[test]
fn an_internal_error_stays_and_the_job_does_not_move() {
    let scene = Scene::new("error");
    let program = Programs::get().path(Linkage::Static, "endings");
    let go = scene.path.join("go");
    let server = Server::start(&scene, "one");
    for (name, from, to) in [("remote", server.place(0), "local".to_owned()), ("inside", "local".to_owned(), server.place(0))] {
        // The first call that waits is that of a set-up which does not look at it, if the program is in-process.
        let fault = [("MRCUDA_FAULT", "wait!")];
        let args = ["error", go.to_str().unwrap()];
        let mut job = Job::start(&scene, name, &["--server", &from], &program, &args, &fault);
        let results = |stderr: &str| stderr.lines().filter(|l| *l == "cudaErrorUnknown").count();
        let stderr = wait_for(LIMIT, || (results(&job.stderr()) == 2 || !job.runs()).then(|| job.stderr()));
        let stderr = stderr.expect("the program says what its calls say");
        let named = stderr.lines().find(|l| l.starts_with("mrcuda: internal error in cu") && l.contains("CUDA_ERROR_UNKNOWN"));
        let named = named.unwrap_or_else(|| panic!("{name}: {stderr}"));
        let what = named.trim_start_matches("mrcuda: ").split(": ").next().unwrap();
        assert!(what.contains(".rs:"), "file and line: {what}");
        assert_eq!(results(&stderr), 2, "{name}: {stderr}");
        for reason in
            [job.migrate(&to).map(|r| r.reason().to_owned()).unwrap_or_else(|why| why.to_string()), plan(&scene, &job, &to)]
        {
            assert!(reason.contains(what), "{name}: {reason}");
        }
        assert!(job.runs());
        std::fs::write(&go, "").unwrap();
        assert!(job.wait(LIMIT).ok());
        std::fs::remove_file(&go).unwrap();
    }
}

#[test]
fn an_internal_error_of_a_move_leaves_the_job_where_it_is() {
    let scene = Scene::new("mover");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let job = remote_orbit(&scene, "job", &server.place(0), &LONG, &[("MRCUDA_FAULT", "precopy!")]);
    for _ in 0..2 {
        let report = job.migrate("local").unwrap();
        assert_eq!(report.code(), "internal-error", "{}", report.0);
        assert!(report.reason().contains("cannot move: internal error in thread mrcuda-mover at "), "{}", report.reason());
    }
    assert_identical(&job.wait(LIMIT), &native);
}

/// What a plan says of a move.
fn plan(scene: &Scene, job: &Job<'_>, to: &str) -> String {
    let output = scene.mrcuda().args(["plan", &job.pid().to_string(), "--to", to]).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Runs `late` natively and at places of every kind.
fn late(way: &str) {
    let scene = Scene::new(way);
    let program = Programs::get().path(Linkage::Static, "late");
    let native = Job::native(&scene, "native", &program, &[way]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    let server = Server::start(&scene, "one");
    for (name, place) in
        [("remote", server.place(0)), ("unix", server.unix_place(0)), ("inside", "local".into()), ("helper", "helper".into())]
    {
        let job = Job::start(&scene, name, &["--server", &place], &program, &[way], &[]).wait(LIMIT);
        assert!(job.ok() && job.stdout == native.stdout, "{name}: {job:?}");
    }
}

#[test]
fn more_copies_wait_for_a_later_call_than_buffers_hold() {
    late("in");
}

#[test]
fn more_answers_wait_for_a_later_call_than_buffers_hold() {
    late("out");
}

#[test]
fn a_program_closes_the_library_and_opens_it_again() {
    let scene = Scene::new("unload");
    let program = process::build(&scene, "unload");
    let server = Server::start(&scene, "one");
    for (name, place) in [("remote", server.place(0)), ("unix", server.unix_place(0)), ("inside", "local".into())] {
        let job = Job::start(&scene, name, &["--server", &place], &program, &[], &[]).wait(LIMIT);
        assert!(job.ok() && job.stdout == "7\n7\n", "{name}: {job:?}");
    }
}
