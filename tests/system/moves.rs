//! Moves in every direction.

use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step, words_of_mrcuda};
use std::process::Stdio;
use tests::scene::wait_for;
use tests::{Job, Scene, Server, install};

#[test]
fn remote_to_local_to_remote_to_remote() {
    let scene = Scene::new("tour");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &[]);
    let way = ["local".to_owned(), servers[1].place(0), servers[0].place(0)];
    let proofs: [&[&str]; 3] = [&[], &["--verify", "bytes"], &["--verify", "hash"]];
    for (number, (to, proof)) in way.iter().zip(proofs).enumerate() {
        wait_for_step(&mut job, 200 + 300 * number as u32);
        let report = job.migrate_with(to, proof).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        assert!(report.live_objects() >= 10, "{}", report.0);
        assert!(report.bytes() >= 4 << 20, "{}", report.0);
        assert_eq!(report.digest().len(), 64, "{}", report.0);
    }
    let moves = job.moves().unwrap();
    assert_eq!(moves.len(), 3);
    let directions: Vec<_> = moves.iter().map(|m| m.direction()).collect();
    assert_eq!(directions, ["remote -> local", "local -> remote", "remote -> remote"]);
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "moves that work are silent: {}", outcome.stderr);
}

#[test]
fn shared_memory_carries_a_job_whose_server_is_on_its_machine() {
    let scene = Scene::new("unix");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].unix_place(0), &LONG, &[]);
    let transport = |job: &Job| job.status().and_then(|s| Some(s["devices"][0]["transport"].as_str()?.to_owned()));
    assert_eq!(transport(&job).as_deref(), Some("shm"));
    let way = [
        (servers[1].unix_place(0), "shm"),
        (servers[0].place(0), "tls"),
        (servers[1].unix_place(0), "shm"),
        ("local".to_owned(), "in-process"),
        (servers[0].unix_place(0), "shm"),
    ];
    for (number, (to, via)) in way.iter().enumerate() {
        wait_for_step(&mut job, 200 + 200 * number as u32);
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        assert_eq!((report.transport(), transport(&job).as_deref()), (*via, Some(*via)));
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_move_has_as_many_connections_as_the_setting_says() {
    let scene = Scene::new("stripes");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    for setting in ["3", "20"] {
        let log = scene.path.join(format!("job-{setting}.log"));
        let env = [("MRCUDA_MOVE_CONNECTIONS", setting), ("MRCUDA_LOG", &log.display().to_string())];
        let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &env);
        wait_for_step(&mut job, 200);
        let report = job.migrate(&servers[1].place(0)).unwrap();
        assert!(report.ok(), "{}", report.reason());
        assert_identical(&job.wait(LIMIT), &native);
        let (log, wanted) = (std::fs::read_to_string(&log).unwrap(), format!(" {setting} connections by tls between tls://"));
        assert!(log.contains(&wanted), "{log}");
    }
    let env = [("MRCUDA_MOVE_CONNECTIONS", "0")];
    let refused = Job::orbit(&scene, "refused", &["--server", &servers[0].place(0)], &LONG, &env).wait(LIMIT);
    assert!(!refused.ok() && refused.stderr.contains("MRCUDA_MOVE_CONNECTIONS: 0 is not a number from 1 to 64"), "{refused:?}");
}

#[test]
fn a_job_that_starts_in_its_own_process_moves_away_and_back() {
    let scene = Scene::new("local");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = Job::orbit(&scene, "moved", &[], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    for (number, to) in [server.place(0), "local".to_owned()].iter().enumerate() {
        wait_for_step(&mut job, 200 + 400 * number as u32);
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn the_signal_moves_the_job_to_where_run_was_told() {
    let scene = Scene::new("signal");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (first, second) = (servers[0].place(0), servers[1].place(0));
    let options = ["--server", &first, "--on-signal", &second, "--signal", "USR2"];
    let mut job = Job::orbit(&scene, "moved", &options, &LONG, &[]);
    // `mrcuda run` has become the program. Before its first CUDA call the signal is ignored: it must not end the program.
    let exe = format!("/proc/{}/exe", job.pid());
    wait_for(LIMIT, || std::fs::read_link(&exe).ok().filter(|p| p.ends_with("orbit"))).expect("run does not become the program");
    job.signal(libc::SIGUSR2);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 300);
    let before = job.moves().unwrap().len();
    job.signal(libc::SIGUSR2);
    let report = wait_for(LIMIT, || job.moves().ok()?.into_iter().nth(before)).expect("the signal does nothing");
    assert!(report.ok(), "{}", report.reason());
    assert_eq!(report.to(), second);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_dry_run_changes_nothing() {
    let scene = Scene::new("dry");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &[]);
    let report = job.migrate_with(&servers[1].place(0), &["--dry-run"]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    let place = |job: &Job| job.status().and_then(|s| Some(s["devices"][0]["place"].as_str()?.to_owned()));
    assert_eq!(place(&job), Some(servers[0].place(0)));
    assert!(job.moves().unwrap().is_empty());
    assert!(job.runs());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_corrupted_byte_is_found_and_the_job_stays() {
    let scene = Scene::new("corrupt");
    let native = native_orbit(&scene, &LONG);
    // Each spoils a byte that it sends as a source or fetches as a target. The first two are of the same GPU.
    let fault = ("MRCUDA_FAULT_CORRUPT_BYTE", "1");
    let machine = ("SOFTGPU_SEED_ID", "one machine");
    let servers = [
        Server::start_with(&scene, "one", &[], &[fault, machine]),
        Server::start_with(&scene, "same", &[], &[fault, machine]),
        Server::start_with(&scene, "other", &[], &[fault]),
    ];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &[]);
    wait_for_step(&mut job, 200);
    let proofs: [&[&str]; 3] = [&[], &["--verify", "bytes"], &["--verify", "hash"]];
    for (server, proof) in servers[1..].iter().flat_map(|server| proofs.map(|proof| (server, proof))) {
        let report = job.migrate_with(&server.place(0), proof).unwrap();
        assert!(!report.ok(), "a wrong byte went unseen: {}", report.0);
        assert_eq!(report.code(), "not-identical", "{}", report.reason());
        assert!(job.runs());
    }
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert_eq!(words_of_mrcuda(&outcome).len(), 6, "one line tells of each failed move: {}", outcome.stderr);
}

#[test]
fn long_copies_go_on_where_the_job_has_moved() {
    // mill mostly copies, in several pieces each: a move meets it between two of them.
    let scene = Scene::new("pieces");
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let end = scene.path.join("end");
    let mill = scene.install.file("mill");
    let until = end.display().to_string();
    let mut job = Job::start(&scene, "moved", &["--server", &servers[0].place(0)], &mill, &["--until", &until], &[]);
    job.wait_ready(LIMIT).unwrap();
    let way = [servers[1].place(0), servers[0].place(0), "local".to_owned()];
    for to in way.iter().cycle().take(12) {
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}\n{}", report.reason(), job.stderr());
    }
    std::fs::write(&end, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout.ends_with("RESULT ok\n"), "{outcome:?}");
    assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
}

#[test]
fn two_requests_at_once_do_no_harm() {
    let scene = Scene::new("twice");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "moved", &servers[0].place(0), &LONG, &[]);
    wait_for_step(&mut job, 200);
    let second = servers[1].place(0);
    let (a, b) = std::thread::scope(|s| {
        let job = &job;
        let a = s.spawn(move || job.migrate("local"));
        let b = s.spawn(move || job.migrate(&second));
        (a.join().unwrap().unwrap(), b.join().unwrap().unwrap())
    });
    // One at a time: the other one waits or is refused, but at least one of them happens.
    assert!(a.ok() || b.ok(), "{} / {}", a.reason(), b.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

/// Runs the demo as people do; answers its last line and whether it succeeded.
fn demo(env: &[(&str, &str)]) -> (String, bool) {
    let install = tests::Install::get();
    let output = install::cargo()
        .args(["run", "--quiet", "--profile", install::PROFILE, "--package", "xtask", "--target-dir"])
        .arg(&install.target)
        .args(["--", "demo", "--seconds", "6"])
        .env("MRCUDA_BIN_DIR", &install.bin)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text.lines().last().unwrap_or_default().to_owned(), output.status.success())
}

#[test]
fn the_demo_works_and_one_wrong_byte_makes_it_fail() {
    assert_eq!(demo(&[]), ("demo: OK, 3 moves, output identical".to_owned(), true));
    let (last, succeeded) = demo(&[("MRCUDA_FAULT_CORRUPT_BYTE", "1")]);
    assert!(last.starts_with("demo: FAILED: ") && last.contains("not identical"), "{last}");
    assert!(!succeeded);
}
