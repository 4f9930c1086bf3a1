//! Jobs are moved by way of their server, and servers are followed, as from another machine: by commands that do not see the jobs' sockets.

use crate::schemas::Schemas;
use crate::servers::{add_user, place};
use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use tests::{Job, Scene, Server};

/// Slow enough on any machine for what happens to a job meanwhile.
const PACED: [&str; 5] = ["--steps", "4000", "--pace", "3000", "--progress"];

/// `mrcuda` of a user on another machine.
fn elsewhere(scene: &Scene, token: &str) -> Command {
    let mut command = scene.mrcuda();
    command.env("XDG_RUNTIME_DIR", scene.path.join("no-jobs-here")).env("MRCUDA_TOKEN_FILE", token);
    command
}

/// What `mrcuda migrate --server` prints about a job, by a user's token.
fn migrate(scene: &Scene, token: &str, job: &Job, at: &Server, to: &str) -> Value {
    let (pid, at) = (job.pid().to_string(), at.address.to_string());
    let mut command = elsewhere(scene, token);
    let output = command.args(["migrate", &pid, "--server", &at, "--to", to, "--json"]).output().unwrap();
    let value = Schemas::read().check("migrate-by-server", &String::from_utf8(output.stdout).unwrap());
    assert_eq!(value["ok"], output.status.success(), "{value}");
    value
}

/// `mrcuda events`, which is ended with this.
struct Followed(Child, BufReader<ChildStdout>);

impl Followed {
    fn new(scene: &Scene, token: &str, at: &Server) -> Followed {
        let mut command = elsewhere(scene, token);
        command.args(["events", &at.address.to_string(), "--json"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Followed(child, lines)
    }

    /// The next event of this kind.
    fn next(&mut self, kind: &str) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.1.read_line(&mut line).unwrap(), 0, "it ended before {kind}");
            let event = Schemas::read().check("events", &line);
            if event["event"] == kind {
                return event;
            }
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_job_is_moved_from_another_machine_by_its_user_and_by_no_other() {
    let scene = Scene::new("by-server");
    let native = native_orbit(&scene, &PACED);
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    let [ann, bob] = ["ann", "bob"].map(|name| add_user(&scene, name));
    let own = scene.token().display().to_string();
    let mut events = Followed::new(&scene, &ann, &one);
    events.next("following");
    let mut job = remote_orbit(&scene, "job", &one.place(0), &PACED, &[("MRCUDA_TOKEN_FILE", ann.as_str())]);
    wait_for_step(&mut job, 20);
    let came = events.next("job-came");
    assert_eq!((came["pid"].as_u64(), &came["user"]), (Some(job.pid().into()), &"ann".into()), "{came}");

    let refused = migrate(&scene, &bob, &job, &one, &two.place(0));
    assert_eq!(refused["outcome"], "not-permitted", "{refused}");
    assert_eq!(migrate(&scene, &ann, &job, &two, &one.place(0))["outcome"], "no-such-job");
    // Nothing listens there: the job's own reason comes back.
    let refused = migrate(&scene, &ann, &job, &one, "127.0.0.1:1/0");
    assert!(refused["outcome"] == "refused" && refused["reason"].as_str().unwrap().contains("127.0.0.1:1"), "{refused}");
    assert_eq!(events.next("job-stays")["reason"], refused["reason"]);
    assert_eq!((place(&job), job.runs()), (Some(one.place(0)), true));

    let moved = migrate(&scene, &ann, &job, &one, &two.place(0));
    assert_eq!((&moved["outcome"], &moved["gpus"][0]["to"]), (&"moved".into(), &two.place(0).into()), "{moved}");
    assert_eq!(place(&job), Some(two.place(0)));
    assert_eq!(events.next("job-moved")["to"], two.place(0));
    // The server's own token is the administrator's.
    let moved = migrate(&scene, &own, &job, &two, &one.place(0));
    assert_eq!((&moved["outcome"], place(&job)), (&"moved".into(), Some(one.place(0))), "{moved}");
    let made = job.moves().unwrap();
    assert!(made.iter().all(|it| it.0["by"] == "server-request"), "{:?}", made.iter().map(|it| &it.0).collect::<Vec<_>>());
    assert!(one.errors().contains("ann at 127.0.0.1:") && one.errors().contains(" to move to "), "{}", one.errors());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_job_moves_by_a_server_only_where_its_user_allows_it() {
    let scene = Scene::new("server-moves");
    let native = native_orbit(&scene, &PACED);
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    let own = scene.token().display().to_string();
    let [mut none, mut some] = ["none", &two.place(0)]
        .map(|allowed| remote_orbit(&scene, "job", &one.place(0), &PACED, &[("MRCUDA_SERVER_MOVES", allowed)]));
    [&mut none, &mut some].into_iter().for_each(|job| wait_for_step(job, 20));
    for (job, to) in [(&none, two.place(0)), (&none, "helper".to_owned()), (&some, "helper".to_owned())] {
        let refused = migrate(&scene, &own, job, &one, &to);
        assert_eq!(refused["outcome"], "refused", "{refused}");
        assert!(refused["reason"].as_str().unwrap().contains("MRCUDA_SERVER_MOVES"), "{refused}");
    }
    // What no server may ask, whatever the user says.
    assert_eq!(migrate(&scene, &own, &some, &one, "file:/tmp")["outcome"], "invalid");
    let refused = migrate(&scene, &own, &some, &one, &two.plain(0));
    assert!(refused["reason"].as_str().unwrap().contains("a server may not ask a job"), "{refused}");
    assert_eq!(migrate(&scene, &own, &some, &one, &two.place(0))["outcome"], "moved");
    assert_eq!((place(&none), place(&some)), (Some(one.place(0)), Some(two.place(0))));
    for job in [none, some] {
        assert_identical(&job.wait(LIMIT), &native);
    }
}
