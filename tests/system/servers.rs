//! Servers as those who run them see them: who uses them.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit};
use serde_json::Value;
use tests::scene::wait_for;
use tests::{Job, Scene, Server};

/// Slow enough on any machine for what happens to a server meanwhile.
const PACED: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];

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
