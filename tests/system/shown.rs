//! What is shown and kept of moves: their history, traces, and progress on a terminal.

use crate::cancel::Holder;
use crate::parking::asking_job;
use crate::{LIMIT, LONG, assert_identical, native_orbit, remote_orbit, wait_for_step};
use faults::Point;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tests::scene::wait_for;
use tests::{Job, Scene, Server};

/// Does not end by itself.
const ENDLESS: [&str; 5] = ["--steps", "100000", "--pace", "3000", "--progress"];

/// What `mrcuda moves` prints with these arguments: exit code, stdout, stderr.
fn moves(scene: &Scene, args: &[&str]) -> (Option<i32>, String, String) {
    let output = scene.mrcuda().arg("moves").args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The same as JSON.
fn list(scene: &Scene, args: &[&str]) -> Vec<Value> {
    let (code, out, err) = moves(scene, &[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{args:?}: {out}{err}");
    serde_json::from_str::<Value>(&out).unwrap().as_array().unwrap().clone()
}

#[test]
fn the_history_outlives_its_jobs() {
    let scene = Scene::new("history");
    assert_eq!(moves(&scene, &[]), (Some(0), "no moves\n".to_owned(), String::new()));
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let jobs: Vec<Job> = ["a", "b"].map(|name| remote_orbit(&scene, name, &server.place(0), &LONG, &[])).into();
    // Both at the same time.
    std::thread::scope(|scope| {
        for job in &jobs {
            scope.spawn(|| {
                assert!(job.migrate_with("local", &["--id", "there"]).unwrap().ok());
                assert!(job.migrate_with(&server.place(0), &["--id", "back"]).unwrap().ok());
                assert!(!job.migrate_with("helper:9", &["--id", "nowhere"]).unwrap().ok());
            });
        }
    });
    let pids: Vec<String> = jobs.iter().map(|job| job.pid().to_string()).collect();
    // A job that is killed has its history as well.
    let mut killed = remote_orbit(&scene, "killed", &server.place(0), &LONG, &[]);
    assert!(killed.migrate_with("local", &["--id", "last"]).unwrap().ok());
    let last = killed.pid().to_string();
    killed.signal(libc::SIGKILL);
    assert!(killed.ends_within(LIMIT));
    for job in jobs {
        assert_identical(&job.wait(LIMIT), &native);
    }

    for pid in &pids {
        let all = list(&scene, &[pid]);
        let states: Vec<_> = all.iter().map(|it| (it["id"].as_str().unwrap(), it["state"].as_str().unwrap())).collect();
        assert_eq!(states, [("there", "done"), ("back", "done"), ("nowhere", "failed")]);
        assert!(all.iter().all(|it| it["pid"] == pid.parse::<u64>().unwrap()), "{all:?}");
        assert!(all[0]["program"].as_str().unwrap().ends_with("/orbit"), "{}", all[0]);
        assert!(all[0]["predicted"]["total_ms"].is_number() && all[2]["predicted"].is_null(), "{all:?}");
        let (code, one, _) = moves(&scene, &[pid, "there"]);
        assert!(code == Some(0) && one.contains("-> local:0: moved") && one.contains("verify"), "{one}");
        assert!(one.contains("predicted: "), "{one}");
        let (code, _, err) = moves(&scene, &[pid, "m77"]);
        assert!(code == Some(1) && err.contains(&format!("no such process any more (mrcuda moves {pid} ")), "{err}");
    }
    assert_eq!(list(&scene, &[]).len(), 7);
    assert_eq!(list(&scene, &[&last])[0]["id"], "last");
    let count = |args: &[&str]| list(&scene, args).len();
    assert_eq!((count(&["--program", "orbit"]), count(&["--program", "no-such"])), (7, 0));
    assert_eq!((count(&["--since", "2h"]), count(&["--since", "0s"]), count(&[&pids[0], "--since", "2h"])), (7, 0, 3));
    let (_, table, _) = moves(&scene, &[]);
    let width = pids.iter().chain([&last]).map(|pid| pid.len()).max().unwrap_or_default();
    assert!(table.starts_with(&format!("{:>width$}  NAME", "PID")), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("orbit")).count(), 7, "{table}");

    // What a machine leaves that stops in the middle of a line, and what is no line of a history.
    let file = scene.path.join("state/mrcuda/moves.jsonl");
    let text = std::fs::read(&file).unwrap();
    std::fs::write(&file, [&text[..], b"\xff\x1b[2J{}\n{\"pid\":1,\"prog"].concat()).unwrap();
    let (code, out, err) = moves(&scene, &[]);
    assert!(code == Some(0) && out.lines().count() == 8 && err.contains("2 lines of the history"), "{out}{err}");
    let job = remote_orbit(&scene, "next", &server.place(0), &LONG, &[]);
    assert!(job.migrate("local").unwrap().ok());
    assert_eq!(count(&[]), 8, "the next job writes a whole line");
}

#[test]
fn a_history_that_others_can_read_is_not_written() {
    let scene = Scene::new("open");
    let server = Server::start(&scene, "one");
    std::fs::create_dir_all(scene.path.join("state/mrcuda")).unwrap();
    let job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    assert!(job.migrate("local").unwrap().ok(), "the move does not depend on it");
    assert!(std::fs::read_dir(scene.path.join("state/mrcuda")).unwrap().next().is_none());
    let (code, _, err) = moves(&scene, &[]);
    assert!(code == Some(1) && err.contains("0700"), "{err}");
    assert_eq!(list(&scene, &[&job.pid().to_string()]).len(), 1, "the job itself is asked");
}

/// Events of a trace with this name.
fn named<'a>(trace: &'a Value, name: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == name).collect()
}

/// When an event began and ended, in microseconds.
fn interval(event: &Value) -> (f64, f64) {
    let (at, took) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
    assert!(at >= 0.0 && took >= 0.0, "{event}");
    (at, at + took)
}

#[test]
fn a_trace_has_the_calls_of_each_thread_around_the_commit() {
    let scene = Scene::new("tracecalls");
    let server = Server::start(&scene, "one");
    let (job, end) = asking_job(&scene, &server, &[]);
    let file = scene.path.join("trace.json");
    let file = file.to_str().unwrap();
    // On a busy machine the program may not run at once when the move is over.
    let mut places = ["local", "helper"].into_iter().cycle();
    wait_for(LIMIT, || {
        let report = job.migrate_with(places.next()?, &["--trace", file]).unwrap();
        assert!(report.ok(), "{}", report.reason());
        let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let commit = named(&trace, "commit")[0]["ts"].as_f64().unwrap();
        let all = trace["traceEvents"].as_array().unwrap();
        let calls: Vec<_> = all.iter().filter(|event| event["pid"] == 2 && event["ph"] == "X").collect();
        // Each thread has its track, on which whatever begins inside something ends inside it.
        let threads: BTreeSet<u64> = calls.iter().map(|call| call["tid"].as_u64().unwrap()).collect();
        for thread in threads {
            let mut of_thread: Vec<_> = calls.iter().filter(|call| call["tid"] == thread).map(|call| interval(call)).collect();
            of_thread.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
            let mut open: Vec<f64> = Vec::new();
            for (from, to) in of_thread {
                open.retain(|end| *end > from);
                assert!(open.iter().all(|end| to <= end + 1.0), "{from} to {to} on {thread} in {trace}");
                open.push(to);
            }
        }
        let around = |name: &str, is_main: bool| {
            let calls = named(&trace, name);
            let is_right = |call: &&Value| (call["tid"] == u64::from(job.pid())) == is_main;
            assert!(calls.iter().all(is_right), "{name} in {trace}");
            calls.iter().any(|call| interval(call).1 < commit) && calls.iter().any(|call| interval(call).0 > commit)
        };
        (around("cuDeviceGetAttribute", true) && around("cuMemsetD32_v2", false)).then_some(())
    })
    .expect("a trace with calls before and after the commit");
    std::fs::write(&end, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == "RESULT ok\n", "{outcome:?}");
}

#[test]
fn a_trace_shows_phases_rounds_and_calls_that_were_held_up() {
    let scene = Scene::new("trace");
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Delta);
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    let mut job = remote_orbit(&scene, "moved", &one.place(0), &ENDLESS, &[("MRCUDA_FAULT", &fault)]);
    let file = scene.path.join("trace.json");
    let file = file.to_str().unwrap();
    let read = || serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap();
    let report = std::thread::scope(|scope| {
        let moved = scope.spawn(|| job.migrate_with(&two.place(0), &["--id", "traced", "--trace", file]).unwrap());
        let (_, held) = holder.wait();
        // The gate is closed, and the program goes on to its next call.
        std::thread::sleep(Duration::from_secs(1));
        drop(held);
        moved.join().unwrap()
    });
    assert!(report.ok() && report.0["trace"].is_null(), "{}", report.0);
    let trace = read();
    for phase in ["plan", "prepare", "replay", "connect", "precopy", "quiesce", "delta", "verify", "release"] {
        let events = named(&trace, phase);
        assert!(!events.is_empty(), "no {phase} in {trace}");
        // As long as the report says, to a microsecond.
        let ms: f64 = events.iter().map(|event| event["dur"].as_f64().unwrap() / 1e3).sum();
        assert!((ms - report.number(&["phases", phase])).abs() < 1.0, "{phase}: {ms} ms in {trace}, {}", report.0);
    }
    let rounds = named(&trace, "round");
    let sent = |event: &Value| {
        event["args"]["bytes sent"].as_u64().unwrap() + event["args"]["bytes copied from GPU to GPU"].as_u64().unwrap()
    };
    assert_eq!(rounds.iter().map(|event| sent(event)).sum::<u64>(), report.bytes());
    assert_eq!(rounds.iter().filter(|event| event["args"]["verified"] == true).count(), 1, "{trace}");
    assert_eq!(named(&trace, "attempt to quiesce").len() as f64, report.number(&["closings"]));
    assert!(!named(&trace, "calls wait").is_empty() && named(&trace, "commit").len() == 1);
    // The program's thread waited while the move was held.
    let all = trace["traceEvents"].as_array().unwrap();
    let waits = named(&trace, "held up by the move");
    let longest = waits.iter().filter_map(|event| event["dur"].as_f64()).fold(0.0, f64::max);
    assert!(longest > 100_000.0 && longest < 1e3 * report.number(&["downtime_ms"]) + 100_000.0, "{waits:?}, {}", report.0);
    assert!(waits.iter().any(|event| event["args"]["call"].as_str().unwrap().starts_with("cu")), "{waits:?}");
    let spans: Vec<_> = all.iter().filter(|event| event["pid"] == 2 && event["ph"] == "X").collect();
    assert!(spans.iter().all(|event| event["tid"] == u64::from(job.pid())), "orbit has one thread: {spans:?}");
    // What the move did while calls waited is in it; the machine may have been busy with something else in between.
    let (blocked, blocked_until) = interval(named(&trace, "calls wait")[0]);
    let is_part = |event: &&Value| {
        event["pid"] == 1 && !["calls wait", "move traced"].contains(&event["name"].as_str().unwrap()) && event["ph"] == "X"
    };
    let mut parts: Vec<_> = all.iter().filter(is_part).map(interval).collect();
    parts.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut covered, mut until) = (0.0, blocked);
    for (from, to) in parts {
        covered += (to.min(blocked_until) - from.max(until)).max(0.0);
        until = until.max(to);
    }
    assert!(covered > 0.8 * (blocked_until - blocked), "{covered} us of {blocked} to {blocked_until} us in {trace}");

    // It can be had again, as long as the job runs.
    std::fs::remove_file(file).unwrap();
    let pid = job.pid().to_string();
    let (code, _, err) = moves(&scene, &[&pid, "traced", "--trace", file]);
    assert!(code == Some(0) && read() == trace, "{err}");
    assert!(list(&scene, &[&pid])[0]["trace"].is_null());
    // A move without a trace has none, and one that fails has what there was of it.
    assert!(job.migrate_with(&one.place(0), &["--id", "untraced"]).unwrap().ok());
    let (code, _, err) = moves(&scene, &[&pid, "untraced", "--trace", file]);
    assert!(code == Some(1) && err.contains("without one"), "{err}");
    let failed = job.migrate_with("helper:9", &["--trace", file]).unwrap();
    assert!(!failed.ok());
    let trace = read();
    assert!(named(&trace, "prepare").len() == 1 && named(&trace, "commit").is_empty(), "{trace}");
    // A file that cannot be written is noticed before the move.
    let before = job.all_moves().unwrap().len();
    assert!(job.migrate_with(&two.place(0), &["--trace", "/nowhere/trace.json"]).is_err());
    assert_eq!(job.all_moves().unwrap().len(), before);
    assert!(job.runs());
}

/// A command on a terminal of its own.
pub(crate) struct Terminal {
    master: File,
    child: Child,
    shown: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    pub(crate) fn start(scene: &Scene, args: &[&str]) -> Terminal {
        let (mut master, mut slave) = (0, 0);
        let mut size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptors are writable, the size is read; name and modes are optional.
        let made =
            unsafe { libc::openpty(&raw mut master, &raw mut slave, std::ptr::null_mut(), std::ptr::null_mut(), &raw mut size) };
        assert_eq!(made, 0);
        // SAFETY: both are open, and owned by nothing else.
        let (master, slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut command = scene.mrcuda();
        command.args(args).stdin(end()).stdout(end()).stderr(end());
        // SAFETY: only system calls; the terminal becomes that of the new session.
        unsafe {
            command.pre_exec(|| match (libc::setsid(), libc::ioctl(0, libc::TIOCSCTTY, 0)) {
                (-1, _) | (_, -1) => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let child = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut reader, to) = (master.try_clone().unwrap(), shown.clone());
        assert!(reader.as_raw_fd() > 2);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // It fails when the other end is closed.
            while let Ok(n @ 1..) = reader.read(&mut piece) {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..n]));
            }
        });
        Terminal { master, child, shown, reader: Some(reader) }
    }

    pub(crate) fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        let there = wait_for(LIMIT, || self.shown().contains(text).then_some(()));
        assert!(there.is_some(), "`{text}` is not shown: {:?}", self.shown());
    }

    pub(crate) fn enter(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Sends the command a signal.
    pub(crate) fn signal(&self, number: i32) {
        tests::server::signal(self.child.id(), number);
    }

    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = wait_for(LIMIT, || self.child.try_wait().unwrap()).unwrap_or_else(|| panic!("{:?}", self.shown()));
        // What it has written last may still be on its way. The program was the only one with the other end.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let shown = self.shown.lock().unwrap().clone();
        (status, shown)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A move to another server on a terminal, as [`held`].
fn held_on_a_terminal(name: &str, then: impl FnOnce(&mut Terminal, Box<dyn FnOnce()>)) -> (ExitStatus, String, Vec<String>) {
    held(name, &["migrate", "PID", "--to", "PLACE", "--id", "m"], then)
}

/// A command that moves a job (PID; PLACE is on another server) on a terminal, held in its pre-copy; `then` does something with it, and
/// says whether it goes on to its end.
fn held(name: &str, command: &[&str], then: impl FnOnce(&mut Terminal, Box<dyn FnOnce()>)) -> (ExitStatus, String, Vec<String>) {
    let scene = Scene::new(name);
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Precopy);
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    let mut job = remote_orbit(&scene, "moved", &one.place(0), &ENDLESS, &[("MRCUDA_FAULT", &fault)]);
    let (pid, place) = (job.pid().to_string(), two.place(0));
    let word = |word: &&str| word.replace("PID", &pid).replace("PLACE", &place);
    let command: Vec<String> = command.iter().map(word).collect();
    let mut terminal = Terminal::start(&scene, &command.iter().map(String::as_str).collect::<Vec<_>>());
    let (_, held) = holder.wait();
    terminal.wait_for("precopy");
    then(&mut terminal, Box::new(move || drop(held)));
    let (status, shown) = terminal.end();
    let over = wait_for(LIMIT, || Some(job.moves().unwrap()).filter(|moves| !moves.is_empty())).expect("the move ends");
    wait_for_step(&mut job, 20);
    (status, shown, over.iter().map(|it| it.state().to_owned()).collect())
}

#[test]
fn a_terminal_shows_the_progress_of_a_move() {
    let (status, shown, states) = held_on_a_terminal("progress", |_, go_on| go_on());
    assert!(status.success() && shown.contains("\r\u{1b}[Kprecopy, ") && shown.contains(": moved "), "{shown:?}");
    assert!(shown.contains("predicted: "), "{shown:?}");
    assert_eq!(states, ["done"]);
}

#[test]
fn a_terminal_shows_the_progress_of_a_suspension() {
    let (status, shown, states) = held("suspension", &["suspend", "PID"], |_, go_on| go_on());
    assert!(status.success() && shown.contains("\r\u{1b}[Kprecopy, ") && shown.contains("-> memory: moved "), "{shown:?}");
    assert_eq!(states, ["done"]);
}

#[test]
fn interrupted_it_goes_on_in_the_background() {
    let (status, shown, states) = held_on_a_terminal("background", |terminal, go_on| {
        terminal.enter("\u{3}");
        terminal.wait_for("leave it running in the background, or cancel? [b/c]");
        terminal.enter("what?\n");
        terminal.enter("b\n");
        terminal.wait_for("goes on in the background");
        go_on();
    });
    assert!(status.success() && shown.matches("[b/c]").count() == 2, "{shown:?}");
    assert_eq!(states, ["done"]);
}

#[test]
fn interrupted_it_is_cancelled() {
    let (status, shown, states) = held_on_a_terminal("cancelled", |terminal, go_on| {
        terminal.enter("\u{3}");
        terminal.wait_for("[b/c]");
        terminal.enter("c\n");
        terminal.wait_for("cancelling");
        // Its own thread a job must wait for.
        go_on();
    });
    assert!(status.code() == Some(1) && shown.contains("the job stays where it was"), "{shown:?}");
    assert_eq!(states, ["cancelled"]);
}

#[test]
fn interrupted_while_it_is_cancelled_it_is_left() {
    let (status, shown, states) = held_on_a_terminal("left", |terminal, go_on| {
        terminal.enter("\u{3}");
        terminal.wait_for("[b/c]");
        terminal.enter("c\n");
        terminal.wait_for("cancelling");
        // The job does not answer before the thread that is held goes on.
        terminal.enter("\u{3}");
        terminal.wait_for("goes on in the background");
        go_on();
    });
    assert!(status.success(), "{shown:?}");
    assert_eq!(states, ["cancelled"]);
}

/// A process's own socket, at which a job seems to listen that answers to `list` and to nothing else. What else it is asked comes over the
/// channel.
fn mute_job(scene: &Scene) -> (String, Receiver<String>) {
    let directory = scene.runtime().join("mrcuda");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    let own = std::process::id().to_string();
    let listener = UnixListener::bind(directory.join(&own)).unwrap();
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                    if line.contains("\"list\"") {
                        // Who has asked may have gone.
                        let _ = stream.write_all(b"{\"v\":2,\"ok\":true,\"job\":{\"pid\":1}}\n");
                    } else {
                        let _ = sender.send(line);
                    }
                }
            });
        }
    });
    (own, asked)
}

#[test]
fn a_request_that_is_not_answered_can_be_interrupted() {
    let scene = Scene::new("mute");
    let (own, asked) = mute_job(&scene);
    let mut terminal = Terminal::start(&scene, &["migrate", &own, "--to", "local"]);
    assert!(asked.recv_timeout(LIMIT).unwrap().contains("migrate"));
    terminal.enter("\u{3}");
    let (status, shown) = terminal.end();
    assert!(status.code() == Some(130) && shown.contains("has not answered the request yet"), "{shown:?}");
}

#[test]
fn a_repeated_list_has_a_screen_of_its_own() {
    let scene = Scene::new("screen");
    let (own, _) = mute_job(&scene);
    let mut terminal = Terminal::start(&scene, &["ps", "--watch", "0.1"]);
    terminal.wait_for(&own);
    terminal.enter("\u{3}");
    let (status, shown) = terminal.end();
    assert!(status.success() && shown.starts_with("\u{1b}[?1049h") && shown.ends_with("\u{1b}[?1049l"), "{shown:?}");
}

#[test]
fn interrupted_twice_it_goes_on_and_an_end_needs_no_answer() {
    let (status, _, states) = held_on_a_terminal("twice", |terminal, go_on| {
        terminal.enter("\u{3}");
        terminal.wait_for("[b/c]");
        terminal.enter("\u{3}");
        terminal.wait_for("goes on in the background");
        go_on();
    });
    assert!(status.success());
    assert_eq!(states, ["done"]);
    let (status, shown, states) = held_on_a_terminal("unanswered", |terminal, go_on| {
        terminal.enter("\u{3}");
        terminal.wait_for("[b/c]");
        go_on();
    });
    assert!(status.success() && shown.contains(": moved "), "{shown:?}");
    assert_eq!(states, ["done"]);
}

#[test]
fn who_waits_for_a_server_is_shown_it() {
    let scene = Scene::new("mute-server");
    // It makes the token.
    drop(Server::start(&scene, "one"));
    // It takes connections and says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = mute.local_addr().unwrap().to_string();
    let orbit = scene.install.file("orbit").display().to_string();
    let waits = format!("waiting for {at}/0: it is not open yet");
    for (command, shown) in [
        (&["gpus", &at][..], "the servers are asked: 1 s"),
        (&["run", "--driver", "soft", "--server", "auto", "--pool", &at, "--", &orbit], "the servers of --pool are asked: 1 s"),
        (&["run", "--driver", "soft", "--server", &at, "--", &orbit], &waits),
    ] {
        let terminal = Terminal::start(&scene, command);
        terminal.wait_for(shown);
    }
}
