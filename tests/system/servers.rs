//! Servers as those who run them see them: who uses them, and how they end.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use serde_json::Value;
use tests::scene::wait_for;
use tests::{Job, Scene, Server};

/// Slow enough on any machine for what happens to a server meanwhile.
const PACED: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];
/// The job is still at work when its server's time limit is over.
const LONGER: [&str; 5] = ["--steps", "40000", "--pace", "3000", "--progress"];

/// What `mrcuda gpus --json` prints about these servers, and whether all have answered.
fn gpus(scene: &Scene, servers: &[&str]) -> (bool, Vec<Value>) {
    let output = scene.mrcuda().arg("gpus").args(servers).arg("--json").output().unwrap();
    let list = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output.status.success(), list)
}

fn place(job: &Job) -> Option<String> {
    job.status().and_then(|s| Some(s["devices"][0]["place"].as_str()?.to_owned()))
}

#[test]
fn a_server_says_who_uses_its_gpus() {
    let scene = Scene::new("gpus");
    let native = native_orbit(&scene, &PACED);
    let server = Server::start_with(&scene, "one", &[], &[("SOFTGPU_DEVICES", "2")]);
    let mut jobs = [server.place(0), server.unix_place(1)].map(|at| remote_orbit(&scene, "job", &at, &PACED, &[]));
    let (at, here) = (server.address.to_string(), server.unix_place(0));
    let gone = "127.0.0.1:1";
    // Its memory is known once the job has allocated some.
    let used = |state: &Value| (0..2).all(|gpu| state["gpus"][gpu]["jobs"][0]["used_bytes"].as_u64().is_some_and(|n| n > 0));
    let state = wait_for(LIMIT, || {
        let (answered, list) = gpus(&scene, &[&at, gone, &here]);
        assert!(!answered && list.len() == 3, "{list:?}");
        assert_eq!(list[1]["ok"], false);
        assert!(list[1]["reason"].as_str().is_some_and(|why| why.contains(gone) && why.contains("mrcuda serve")), "{}", list[1]);
        assert_eq!(list[2]["gpus"][0]["uuid"], list[0]["gpus"][0]["uuid"]);
        Some(list[0].clone()).filter(used)
    });
    let state = state.expect("the jobs' memory is not reported");
    assert_eq!((&state["ok"], &state["ending"], state["pid"].as_u64()), (&true.into(), &false.into(), Some(server.pid().into())));
    for (gpu, job) in jobs.iter().enumerate() {
        let (gpu, seen) = (&state["gpus"][gpu], job.status().expect("a job"));
        // The same as the job says of its GPU.
        for key in ["name", "uuid", "total_bytes"] {
            assert_eq!(gpu[key], seen["devices"][0][key], "{key}");
        }
        assert!(gpu["free_bytes"].as_u64() <= gpu["total_bytes"].as_u64() && gpu["free_bytes"].is_u64(), "{gpu}");
        let served = &gpu["jobs"][0];
        assert_eq!((served["pid"].as_u64(), gpu["jobs"].as_array().map(Vec::len)), (Some(job.pid().into()), Some(1)), "{gpu}");
        assert_eq!(served["worker"].as_u64(), Some(server.worker_of(job.pid()).into()));
    }
    let [first, second] = [0, 1].map(|gpu| &state["gpus"][gpu]["jobs"][0]);
    assert_eq!((&first["host"], &first["uid"]), (&"127.0.0.1".into(), &Value::Null));
    // SAFETY: a system call without arguments.
    let me = unsafe { libc::geteuid() };
    assert_eq!((&second["host"], second["uid"].as_u64()), (&Value::Null, Some(me.into())));
    // For people, on a terminal of 80 columns.
    let output = scene.mrcuda().args(["gpus", &at]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(&jobs[0].pid().to_string()) && text.contains("127.0.0.1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Without the token nobody is told.
    let mut stranger = scene.mrcuda();
    let output = stranger.args(["gpus", &at]).env("MRCUDA_TOKEN_FILE", scene.path.join("none")).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && output.stdout.is_empty() && words.contains("requires a token"), "{words}");
    assert!(jobs.iter_mut().all(Job::runs));
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
}

#[test]
fn a_server_that_ends_has_its_jobs_moved_first() {
    let scene = Scene::new("drain");
    let native = native_orbit(&scene, &PACED);
    let two = Server::start(&scene, "two");
    let mut one = Server::start_with(&scene, "one", &["--drain", &two.place(0), "--drain-timeout", "2m"], &[]);
    let places = [one.place(0), one.unix_place(0)];
    let mut jobs = places.map(|at| remote_orbit(&scene, "job", &at, &PACED, &[]));
    jobs.iter_mut().for_each(|job| wait_for_step(job, 100));
    let status = one.end_within(LIMIT).expect("it ends");
    assert!(status.success(), "{status}: {}", one.errors());
    assert!(one.errors().contains("2 workers have jobs and are asked to move to"), "{}", one.errors());
    assert!(one.errors().contains("all jobs have left"), "{}", one.errors());
    for job in &jobs {
        assert_eq!(place(job), Some(two.place(0)));
        let moves = job.moves().unwrap();
        assert_eq!(moves.len(), 1);
        assert!(moves[0].ok() && moves[0].0["by"] == "server" && moves[0].to() == two.place(0), "{}", moves[0].0);
        let pid = job.pid().to_string();
        let shown = scene.mrcuda().args(["moves", &pid]).output().unwrap();
        assert!(String::from_utf8_lossy(&shown.stdout).contains("because its server ended"), "{shown:?}");
    }
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }
}

#[test]
fn a_server_that_ends_keeps_parked_jobs_parked() {
    let scene = Scene::new("drain-parked");
    let native = native_orbit(&scene, &PACED);
    let two = Server::start(&scene, "two");
    let mut one = Server::start_with(&scene, "one", &["--drain", &two.place(0), "--drain-timeout", "2m"], &[]);
    let (here, there) = (format!("{}/memory", one.address), format!("{}/memory", two.address));
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &[]);
    wait_for_step(&mut job, 100);
    let parked = job.ask("suspend", &["--to", &here]).unwrap();
    assert!(parked.ok(), "{}", parked.reason());
    let (_, list) = gpus(&scene, &[&one.address.to_string()]);
    assert_eq!(list[0]["parked"][0]["pid"].as_u64(), Some(job.pid().into()), "{list:?}");
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert_eq!(place(&job), Some(there));
    assert_eq!(job.status().expect("a job")["devices"][0]["state"], "parked");
    let resumed = job.ask("resume", &["--to", &two.place(0)]).unwrap();
    assert!(resumed.ok(), "{}", resumed.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_server_that_ends_can_send_its_jobs_home() {
    let scene = Scene::new("drain-home");
    let native = native_orbit(&scene, &PACED);
    let mut one = Server::start_with(&scene, "one", &["--drain", "local", "--drain-timeout", "2m"], &[]);
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &[]);
    wait_for_step(&mut job, 100);
    // As a terminal or a service manager does: to the server and its workers.
    for worker in one.workers() {
        // SAFETY: a plain system call; the worker is a child of our server.
        assert_eq!(unsafe { libc::kill(worker as i32, libc::SIGTERM) }, 0);
    }
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert_eq!(place(&job).as_deref(), Some("local:0"));
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_job_that_cannot_move_away_is_named_with_the_reason() {
    let scene = Scene::new("drain-fails");
    // Nobody listens there.
    let mut one = Server::start_with(&scene, "one", &["--drain", "127.0.0.1:1/0", "--drain-timeout", "10s"], &[]);
    let mut job = remote_orbit(&scene, "job", &one.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 10);
    let pid = job.pid();
    let status = one.end_within(LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(1), "{}", one.errors());
    let log = one.errors();
    assert!(log.contains("its job does not move away") && log.contains("127.0.0.1:1"), "{log}");
    assert!(log.contains(&format!("1 worker has a job, whose GPU ends with this server: job {pid} (its own word)")), "{log}");
    let outcome = job.wait(LIMIT);
    assert!(!outcome.ok() && outcome.stderr.contains("127.0.0.1:1"), "{outcome:?}");
}

#[test]
fn a_server_that_may_not_wait_says_whom_it_leaves() {
    let scene = Scene::new("no-drain");
    let mut one = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &one.place(0), &LONGER, &[]);
    wait_for_step(&mut job, 10);
    assert!(one.end_within(LIMIT).is_some_and(|status| status.success()), "{}", one.errors());
    assert!(one.errors().contains(&format!("whose GPU ends with this server: job {}", job.pid())), "{}", one.errors());
    assert!(!job.wait(LIMIT).ok());
}

#[test]
fn where_jobs_cannot_move_a_server_does_not_start() {
    let scene = Scene::new("drain-args");
    let serve = |places: &str| {
        let mut command = scene.mrcuda();
        command.args(["serve", "--driver", "soft", "--gpus", "1", "--listen", "127.0.0.1:0", "--drain", places, "--token-file"]);
        let output = command.arg(scene.token()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (places, code, wanted) in
        [("nowhere", 2, "expected HOST:PORT"), ("a:1/0,b:1/0", 1, "2 places"), ("file:/scratch", 1, "memory parks jobs as well")]
    {
        let (status, words) = serve(places);
        assert!(status == Some(code) && words.contains(wanted), "{places}: {status:?} {words}");
    }
}
