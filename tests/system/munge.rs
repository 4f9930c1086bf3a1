//! Clusters with munge: jobs without a token.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step, words_of_mrcuda};
use munged::Munged;
use serde_json::Value;
use tests::{Job, Scene, Server};

/// Slow enough on any machine for a move.
const PACED: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];

#[test]
fn jobs_of_a_cluster_need_no_token_and_move_between_its_servers() {
    let Some(of_servers) = Munged::start("jobs without a token, and their moves") else { return };
    let of_jobs = of_servers.elsewhere();
    let scene = Scene::new("munge");
    let native = native_orbit(&scene, &PACED);
    // SAFETY: the call has no preconditions.
    let uid = unsafe { libc::geteuid() };
    let sockets = [of_servers.socket(), of_jobs.socket()].map(|path| path.display().to_string());
    // One server by its options, one by the configuration file, which also is the jobs'.
    let one = Server::start_with(&scene, "one", &["--munge", "root,any", "--munge-socket", &sockets[0]], &[]);
    let settings = format!(
        "[serve]\nmunge = [\"any\"]\nmunge-socket = \"{}\"\n[job]\nmunge = \"{uid}\"\nmunge-socket = \"{}\"\n",
        sockets[0], sockets[1]
    );
    let file = scene.path.join("mrcuda/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, settings).unwrap();
    let two = Server::start(&scene, "two");
    for server in [&one, &two] {
        assert!(server.announcement.contains(", munge, certificate "), "{}", server.announcement);
    }
    let none = scene.path.join("none").display().to_string();
    let no_token = [("MRCUDA_TOKEN_FILE", none.as_str())];
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &no_token);
    let asked = scene.mrcuda().args(["gpus", &one.address.to_string(), "--json"]).envs(no_token).output().unwrap();
    let list: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|e| panic!("{e}: {asked:?}"));
    let served = &list[0]["gpus"][0]["jobs"][0];
    assert_eq!((&served["user_by"], &served["uid"], &served["host"]), (&"munge".into(), &uid.into(), &"127.0.0.1".into()));
    let doctor = scene.mrcuda().args(["doctor", "--driver", "soft", "--server", &one.place(0)]).envs(no_token).output().unwrap();
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(doctor.status.success(), "{text}");
    for line in [format!("munged answers; servers run as {uid}"), "munge, or the token, and the certificate are accepted".into()]
    {
        assert!(text.contains(&line), "`{line}` is missing in {text}");
    }
    wait_for_step(&mut job, 200);
    let moved = job.migrate(&two.place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    assert_identical(&job.wait(LIMIT), &native);

    // A job that shows no credential hears what is missing.
    let without = [no_token[0], ("MRCUDA_MUNGE", "")];
    let refused = Job::orbit(&scene, "refused", &["--server", &one.place(0)], &PACED, &without).wait(LIMIT);
    let words = words_of_mrcuda(&refused);
    assert!(words.len() == 1 && words[0].contains("requires a token, and there is none"), "{}", refused.stderr);
    assert!(words[0].ends_with("(on a cluster: MRCUDA_MUNGE)"), "{}", words[0]);
    drop(of_jobs);
    let refused = Job::orbit(&scene, "alone", &["--server", &one.place(0)], &PACED, &no_token).wait(LIMIT);
    let words = words_of_mrcuda(&refused);
    let wanted = "cannot be used: munge: munged does not answer on this machine: Failed to access";
    assert!(words.len() == 1 && words[0].contains(wanted), "{}", refused.stderr);
}
