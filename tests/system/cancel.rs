//! A move that is given up in each of its phases: the job stays where it was, and can move later.
//!
//! Fault points hold a move at an instant (`MRCUDA_FAULT`); meanwhile it is cancelled through the socket, as a scheduler does.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use control::{AskError, Client, ErrorCode, Migrate, Move, MoveState, ReasonCode};
use faults::{Point, Who};
use std::io::{BufRead, BufReader};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;
use tests::scene::wait_for;
use tests::server::signal;
use tests::{Job, Linkage, Programs, Scene, Server};

/// Slow enough on any machine to be still at work when the case is over.
const STEPS: [&str; 5] = ["--steps", "1500", "--pace", "2000", "--progress"];

/// The same for what takes some limits of time.
const LONG: [&str; 5] = ["--steps", "3000", "--pace", "4000", "--progress"];

/// Whoever passes the armed point waits here.
pub(crate) struct Holder {
    listener: UnixListener,
    path: PathBuf,
}

impl Holder {
    pub(crate) fn new(scene: &Scene) -> Holder {
        let path = scene.runtime().join("hold");
        let listener = UnixListener::bind(&path).unwrap();
        Holder { listener, path }
    }

    /// The value of `MRCUDA_FAULT`.
    pub(crate) fn at(&self, point: Point) -> String {
        format!("{}@{}", point.name(), self.path.display())
    }

    /// Waits until someone is held, who goes on when the stream is dropped.
    fn next(&self) -> UnixStream {
        self.listener.set_nonblocking(true).unwrap();
        let stream = wait_for(LIMIT, || self.listener.accept().ok()).expect("nobody gets to the point").0;
        stream.set_nonblocking(false).unwrap();
        stream
    }

    /// Waits until someone is held, and says which process. Whoever comes after that passes.
    pub(crate) fn wait(self) -> (u32, Held) {
        let stream = self.next();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        std::fs::remove_file(&self.path).unwrap();
        (line.trim().rsplit_once(' ').unwrap().1.parse().unwrap(), Held { _stream: stream, _listener: self.listener })
    }
}

/// Those who are held: the one who was heard, and others who came in the same instant. They go on when it is dropped.
pub(crate) struct Held {
    _stream: UnixStream,
    _listener: UnixListener,
}

fn client(scene: &Scene, job: &Job<'_>) -> Client {
    Client::connect_at(&scene.runtime().join("mrcuda").join(job.pid().to_string())).unwrap()
}

fn place(scene: &Scene, job: &Job<'_>) -> String {
    client(scene, job).list(Some(LIMIT)).unwrap().devices[0].place.clone()
}

/// Moves a job, holds the move at a point, and cancels it there.
fn cancelled_at(point: Point, direction: usize) {
    let scene = Scene::new(&format!("cancel-{}", point.name()));
    let native = native_orbit(&scene, &STEPS);
    let holder = Holder::new(&scene);
    let fault = holder.at(point);
    let env = [("MRCUDA_FAULT", fault.as_str())];
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &[], &env));
    let (from, to) = match direction % 3 {
        0 => (servers[0].place(0), servers[1].place(0)),
        1 => (servers[0].place(0), "local:0".to_owned()),
        _ => ("local:0".to_owned(), servers[1].place(0)),
    };
    let mut job = if from == "local:0" {
        let mut job = Job::orbit(&scene, "moved", &[], &STEPS, &env);
        job.wait_ready(LIMIT).unwrap();
        job
    } else {
        remote_orbit(&scene, "moved", &from, &STEPS, &env)
    };
    wait_for_step(&mut job, 20);
    let what = format!("{} on the way from {from} to {to}", point.name());

    let mut mover = client(&scene, &job);
    let wanted = Migrate { id: Some("held".into()), ..Migrate::to(&to) };
    let moving = std::thread::spawn(move || mover.migrate(wanted));
    let (who, held) = holder.wait();
    let mut canceller = client(&scene, &job);
    let now = || client(&scene, &job).report(Some("held"), Some(LIMIT)).unwrap().remove(0);
    if now().state == MoveState::Committed {
        assert!(point >= Point::Commit, "{what}: it is committed already");
        match canceller.cancel(None) {
            Err(AskError::Refused(why)) => assert_eq!(why.error, ErrorCode::TooLate, "{what}: {}", why.reason),
            other => panic!("{what}: {other:?}"),
        }
        drop(held);
        let done: Move = moving.join().unwrap().unwrap();
        assert_eq!(done.state, MoveState::Done, "{what}: {:?}", done.reason);
        assert_eq!(place(&scene, &job), to, "{what}");
    } else {
        assert!(point < Point::Commit, "{what}: it is not committed");
        let cancel = std::thread::spawn(move || canceller.cancel(None));
        let stopping = || matches!(now().state, MoveState::Stopping | MoveState::Cancelled).then_some(());
        wait_for(LIMIT, stopping).unwrap_or_else(|| panic!("{what}: cancelling does nothing"));
        // A worker that is held is none that the job must wait for. Its own thread it must wait for.
        let held = (who != job.pid()).then_some(held);
        let gone: Move = cancel.join().unwrap().unwrap_or_else(|why| panic!("{what}: {why}"));
        assert_eq!((gone.state, gone.ok), (MoveState::Cancelled, false), "{what}: {:?}", gone.reason);
        assert_eq!(moving.join().unwrap().unwrap(), gone, "{what}");
        drop(held);
        assert_eq!(place(&scene, &job), from, "{what}");
        // Nothing is left that is in the way of the next one.
        let next = client(&scene, &job).migrate(Migrate::to(&to)).unwrap();
        assert_eq!(next.state, MoveState::Done, "{what}: the next move: {:?}", next.reason);
    }
    assert!(job.runs(), "{what}: it was over too soon");
    assert_identical(&job.wait(LIMIT), &native);
}

/// Points of a move that someone of this kind passes.
fn points(who: Who) -> impl Iterator<Item = Point> {
    Point::ALL.iter().copied().filter(move |p| *p >= Point::Plan && p.who() == who)
}

#[test]
fn in_each_phase() {
    let tried = points(Who::Job).enumerate().map(|(number, point)| cancelled_at(point, number)).count();
    assert!(tried >= 10, "{tried}");
}

#[test]
fn in_the_middle_of_a_copy() {
    // In every direction: the held one is the source's worker, the target's, or the job's own process.
    let copying = points(Who::Place).filter(|point| !matches!(point, Point::Adopt | Point::Adopted | Point::Leaving));
    let tried = copying.flat_map(|point| (0..3).map(move |d| cancelled_at(point, d))).count();
    assert_eq!(tried, 12);
}

#[test]
fn while_a_server_does_not_answer() {
    let scene = Scene::new("cancel-silent");
    let native = native_orbit(&scene, &STEPS);
    let server = Server::start(&scene, "one");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &STEPS, &[]);
    let mut mover = client(&scene, &job);
    let to = format!("{}/0", silent.local_addr().unwrap());
    let moving = std::thread::spawn(move || mover.migrate(Migrate::to(&to)));
    let _held = silent.accept().unwrap();
    let gone = client(&scene, &job).cancel(None).unwrap();
    assert_eq!((gone.state, gone.reason.as_deref()), (MoveState::Cancelled, Some("cancelled in the phase prepare")));
    assert_eq!(gone.code, Some(ReasonCode::Cancelled));
    assert_eq!(moving.join().unwrap().unwrap(), gone);
    assert!(job.runs());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn when_a_round_of_pre_copy_does_not_get_on() {
    let scene = Scene::new("cancel-slow");
    let native = native_orbit(&scene, &LONG);
    // The source stands still in the middle of its first round for longer than any limit.
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::PrecopySend);
    let server = Server::start_with(&scene, "one", &[], &[("MRCUDA_FAULT", &fault)]);
    let from = server.place(0);
    let mut job = remote_orbit(&scene, "moved", &from, &LONG, &[("MRCUDA_FAULT_ROUND_LIMIT_MS", "2000")]);
    wait_for_step(&mut job, 20);
    let given_up = client(&scene, &job).migrate(Migrate::to("local:0")).unwrap();
    assert_eq!((given_up.state, given_up.ok), (MoveState::Failed, false), "{:?}", given_up.reason);
    assert_eq!(given_up.code, Some(ReasonCode::CopyTooSlow), "{:?}", given_up.reason);
    assert!(job.runs() && place(&scene, &job) == from);
    // Its thread is not joined by others.
    let refused = client(&scene, &job).migrate(Migrate::to("local:0")).unwrap();
    assert_eq!(refused.code, Some(ReasonCode::CopyTooSlow), "{:?}", refused.reason);
    assert!(refused.reason.is_some_and(|why| why.contains("an earlier move")));
    drop(holder.wait());
    // It has come to its end when a move is accepted again.
    let moved = client(&scene, &job).migrate(Migrate::to("local:0")).unwrap();
    assert_eq!(moved.state, MoveState::Done, "{:?}", moved.reason);
    assert!(job.runs(), "it was over too soon");
    assert_identical(&job.wait(LIMIT), &native);
}

/// The target stands still at a point, as one that is stuck in its driver does: its heartbeats go on. The job continues where it was, and
/// can move later.
fn stuck_target(point: Point, code: ReasonCode) {
    let scene = Scene::new(&format!("stuck-target-{}", point.name()));
    let native = native_orbit(&scene, &LONG);
    let holder = Holder::new(&scene);
    let fault = holder.at(point);
    let source = Server::start(&scene, "one");
    let target = Server::start_with(&scene, "two", &[], &[("MRCUDA_FAULT", &fault)]);
    let (from, to) = (source.place(0), target.place(0));
    let mut job = remote_orbit(&scene, "moved", &from, &LONG, &[("MRCUDA_FAULT_ROUND_LIMIT_MS", "2000")]);
    wait_for_step(&mut job, 20);
    let (mut mover, wanted) = (client(&scene, &job), Migrate::to(&to));
    let moving = std::thread::spawn(move || mover.migrate(wanted));
    let (who, held) = holder.wait();
    assert_ne!(who, job.pid());
    wait_for(LIMIT, || moving.is_finished().then_some(())).expect("the move waits for a target that stands still");
    let given_up = moving.join().unwrap().unwrap();
    assert_eq!((given_up.state, given_up.code), (MoveState::Failed, Some(code)), "{:?}", given_up.reason);
    assert!(job.runs() && place(&scene, &job) == from);
    let next = client(&scene, &job).migrate(Migrate::to(&to)).unwrap();
    assert_eq!(next.state, MoveState::Done, "the next move: {:?}", next.reason);
    drop(held);
    assert!(job.runs(), "it was over too soon");
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn when_the_target_stands_still_in_pre_copy() {
    stuck_target(Point::PrecopyReceive, ReasonCode::CopyTooSlow);
}

#[test]
fn when_the_target_stands_still_while_calls_wait() {
    stuck_target(Point::DeltaReceive, ReasonCode::DowntimeExceeded);
}

/// A thread of the mover cannot be started: the move fails, and the next one succeeds.
fn without_a_thread(name: &str, gpus: usize) {
    let scene = Scene::new(&format!("no-{name}"));
    let program = Programs::get().path(Linkage::Static, "twogpu");
    let native = Job::native(&scene, "native", &program, &["--steps", "300"]).wait(LIMIT);
    let four = ("SOFTGPU_DEVICES", "4");
    let server = Server::start_with(&scene, "one", &[], &[four]);
    let from = [server.place(0), server.place(1)];
    let (options, args) = (["--server", &from.join(",")], ["--steps", "300", "--pace", "40000"]);
    let mut job = Job::start(&scene, "two", &options, &program, &args, &[four, ("MRCUDA_FAULT_REFUSE_THREAD", name)]);
    job.wait_ready(LIMIT).unwrap();
    let wanted =
        || Migrate { gpu: (gpus == 1).then_some(1), ..Migrate::to(&[server.place(2), server.place(3)][..gpus].join(",")) };
    let failed = client(&scene, &job).migrate(wanted()).unwrap();
    assert_eq!((failed.state, failed.code), (MoveState::Failed, Some(ReasonCode::SystemError)), "{:?}", failed.reason);
    assert!(failed.reason.is_some_and(|why| why.contains("cannot start a thread")));
    let next = client(&scene, &job).migrate(wanted()).unwrap();
    assert_eq!(next.state, MoveState::Done, "the next move: {:?}", next.reason);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_move_of_several_gpus_without_a_thread() {
    without_a_thread("mrcuda-gpu-move", 2);
}

#[test]
fn a_round_without_a_thread() {
    without_a_thread("mrcuda-round", 1);
}

/// Number of threads of a process that have this name.
fn threads(pid: u32, name: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name_of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(|task| name_of(task.ok()?)).filter(|comm| comm.trim_end() == name).count()
}

#[test]
fn when_one_of_two_targets_is_killed_before_the_commit() {
    let scene = Scene::new("cancel-lost");
    let program = Programs::get().path(Linkage::Static, "twogpu");
    let native = Job::native(&scene, "native", &program, &["--steps", "300"]).wait(LIMIT);
    let four = ("SOFTGPU_DEVICES", "4");
    let source = Server::start_with(&scene, "one", &[], &[four]);
    let mut targets = ["two", "three"].map(|name| Server::start(&scene, name));
    let from = [source.place(0), source.place(1)];
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Verify);
    let (options, args) = (["--server", &from.join(",")], ["--steps", "300", "--pace", "40000"]);
    let mut job = Job::start(&scene, "two", &options, &program, &args, &[four, ("MRCUDA_FAULT", &fault)]);
    job.wait_ready(LIMIT).unwrap();
    let (mut mover, to) = (client(&scene, &job), targets.each_ref().map(|t| t.place(0)).join(","));
    let wanted = Migrate { id: Some("two".into()), ..Migrate::to(&to) };
    let moving = std::thread::spawn(move || mover.migrate(wanted));
    let (first, second) = (holder.next(), holder.next());
    drop(first);
    let verified = || {
        let it = client(&scene, &job).report(Some("two"), Some(LIMIT)).unwrap().remove(0);
        it.legs.iter().position(|gpu| gpu.phases.contains_key("verify"))
    };
    let verified = wait_for(LIMIT, verified).expect("no GPU is verified");
    assert_eq!(threads(job.pid(), "mrcuda-receive"), 4);
    targets[verified].kill();
    wait_for(LIMIT, || (threads(job.pid(), "mrcuda-receive") == 3).then_some(())).expect("the loss is not noticed");
    drop(second);
    let failed = moving.join().unwrap().unwrap();
    assert_eq!((failed.state, failed.code), (MoveState::Failed, Some(ReasonCode::PlaceLost)), "{:?}", failed.reason);
    let at = client(&scene, &job).list(Some(LIMIT)).unwrap().devices.into_iter().map(|d| d.place);
    assert_eq!(at.collect::<Vec<_>>(), from);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn calls_are_not_held_up_for_longer_than_promised() {
    let scene = Scene::new("cancel-promise");
    let native = native_orbit(&scene, &LONG);
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Delta);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let [from, to] = [servers[0].place(0), servers[1].place(0)];
    let mut job = remote_orbit(&scene, "moved", &from, &LONG, &[("MRCUDA_FAULT", &fault)]);
    let (report, worker) = std::thread::scope(|scope| {
        let moving = scope.spawn(|| job.migrate_with(&to, &["--max-downtime", "700ms"]).unwrap());
        let (_, held) = holder.wait();
        // Without a limit the job would wait until the target counts as lost.
        let worker = servers[1].worker_of(job.pid());
        signal(worker, libc::SIGSTOP);
        drop(held);
        (moving.join().unwrap(), worker)
    });
    assert_eq!((report.ok(), report.code()), (false, "downtime-exceeded"), "{}", report.0);
    let downtime = report.downtime_ms();
    assert!((700.0..7000.0).contains(&downtime), "calls were held up for {downtime} ms");
    assert_eq!(place(&scene, &job), from);
    let steps = |line: &str| line.strip_prefix("step ")?.split(' ').next()?.parse::<u32>().ok();
    let step = job.stderr().lines().filter_map(steps).next_back().unwrap_or(0);
    wait_for_step(&mut job, step + 20);
    // Nothing is left in the way of a move that keeps the promise.
    signal(worker, libc::SIGCONT);
    let report = job.migrate_with(&to, &["--max-downtime", "1min"]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn when_the_program_ends() {
    let steps = ["--steps", "3000", "--pace", "1000", "--progress"];
    let scene = Scene::new("cancel-end");
    let native = native_orbit(&scene, &steps);
    let holder = Holder::new(&scene);
    let fault = holder.at(Point::Replay);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &steps, &[("MRCUDA_FAULT", &fault)]);
    wait_for_step(&mut job, 20);
    let mut mover = client(&scene, &job);
    let moving = std::thread::spawn(move || mover.migrate(Migrate::to("local:0")));
    let (who, held) = holder.wait();
    assert_eq!(who, job.pid(), "nobody else builds the new place");
    job.let_end();
    wait_for(LIMIT, || job.stdout().contains("RESULT").then_some(())).expect("the program does not end");
    // A process does not go while a thread of it opens a driver: its destructors would run under that thread's feet.
    assert!(!job.ends_within(Duration::from_millis(300)), "it did not wait for the mover");
    drop(held);
    assert_identical(&job.wait(LIMIT), &native);
    // The process may be gone before the answer.
    if let Ok(gone) = moving.join().unwrap() {
        assert_eq!(gone.state, MoveState::Cancelled, "{:?}", gone.reason);
    }
}
