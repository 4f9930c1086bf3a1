use super::registry::{EVENTS, KEPT, LONGEST_REASON, TRACES, cut};
use super::*;
use std::sync::atomic::AtomicUsize;

fn wanted(to: &str) -> Migrate {
    Migrate::to(to)
}

fn task(id: &str, wanted: Migrate) -> Arc<Task> {
    Arc::new(Task { id: id.into(), wanted, devices: vec![0], to: vec![PlaceSpec::Local(None)], ..Task::of_a_plan(false) })
}

#[test]
fn long_reasons_are_cut() {
    assert_eq!(cut("short".to_owned()), "short");
    // A character that lies across the limit.
    let text = format!("{}é and more", "x".repeat(LONGEST_REASON - 1));
    assert_eq!(cut(text), format!("{}…", "x".repeat(LONGEST_REASON - 1)));
}

fn entry(id: &str, state: MoveState) -> Entry<Task> {
    Entry { task: task(id, wanted("local")), it: Move { id: id.into(), state, ..Move::default() }, begun: None, trace: None }
}

fn registry(all: &[(&str, MoveState)]) -> Registry<Task> {
    let entries = all.iter().map(|(id, state)| entry(id, *state)).collect();
    Registry { entries, ..Registry::new() }
}

/// Adds a move to those of the job.
fn registered(id: &str, state: MoveState, wanted: Migrate) -> Arc<Task> {
    let task = task(id, wanted);
    let it = Move { id: id.into(), state, ..Move::default() };
    lock(&REGISTRY).entries.push_back(Entry { task: task.clone(), it, begun: None, trace: None });
    task
}

fn state(id: &str) -> MoveState {
    report(Some(id)).unwrap()[0].state
}

#[test]
fn one_place_is_for_all_gpus() {
    assert_eq!(targets("local", 3).unwrap(), vec![PlaceSpec::Local(None); 3]);
    assert_eq!(targets("a:1/0", 1).unwrap().len(), 1);
}

#[test]
fn a_list_has_a_place_for_each_gpu() {
    let all = targets("local,helper:2", 2).unwrap();
    assert_eq!(all, [PlaceSpec::Local(None), PlaceSpec::Helper(Some(2))]);
}

#[test]
fn a_list_of_another_length_is_refused() {
    for (list, n, places) in [("local,helper", 3, 2), ("local,helper", 1, 2), ("local,helper,local", 2, 3)] {
        let error = targets(list, n).unwrap_err();
        assert!(matches!(error, MoveError::PlaceCount { places: p, gpus } if p == places && gpus == n), "{error}");
    }
}

#[test]
fn an_invalid_place_in_a_list_is_refused() {
    assert!(matches!(targets("local,nowhere", 2), Err(MoveError::BadPlace(_))));
    assert!(matches!(targets("", 1), Err(MoveError::BadPlace(_))));
    assert!(matches!(targets("local,", 2), Err(MoveError::BadPlace(_))));
}

#[test]
fn limits_fail_a_move_and_requests_cancel_it() {
    let states = [Stop::Cancelled, Stop::Ending, Stop::Deadline, Stop::Downtime].map(Stop::state);
    assert_eq!(states, [MoveState::Cancelled, MoveState::Cancelled, MoveState::Failed, MoveState::Failed]);
}

#[test]
fn a_move_goes_on_until_it_is_stopped() {
    let t = task("a", wanted("local"));
    assert!(t.check().is_ok() && t.stopped().is_none());
    for why in [Stop::Cancelled, Stop::Deadline, Stop::Downtime, Stop::Ending] {
        t.stop.store(why as u8, Ordering::Release);
        assert_eq!(t.stopped(), Some(why));
        assert!(t.check().is_err());
    }
}

#[test]
fn only_a_copy_that_is_stopped_gives_way() {
    for (copies, stop, expected) in [(true, 0, false), (false, 1, false), (true, 1, true), (true, 4, true)] {
        let t = Task { copies, stop: AtomicU8::new(stop), ..Task::of_a_plan(false) };
        assert_eq!(t.gives_way(), expected, "{copies} {stop}");
    }
}

#[test]
fn copies_and_moves_for_memory_do_not_let_a_parked_job_go_on() {
    for (copies, room, expected) in [(false, 0, false), (true, 0, true), (false, 1, true)] {
        let t = Task { copies, room, ..Task::of_a_plan(false) };
        assert_eq!(t.is_for_a_running_job(), expected, "{copies} {room}");
    }
}

#[test]
fn an_abandoned_move_says_why_and_when() {
    let t = task("a", Migrate { deadline_ms: Some(5), max_downtime_ms: Some(7), ..wanted("local") });
    let text = |why, phase: Option<&str>| t.abandoned(why, phase.map(str::to_owned)).to_string();
    assert_eq!(text(Stop::Cancelled, None), "cancelled before it began");
    assert_eq!(text(Stop::Cancelled, Some("delta")), "cancelled in the phase delta");
    assert_eq!(text(Stop::Ending, None), "cancelled before it began: the program ends");
    assert!(text(Stop::Deadline, Some("replay")).contains("in the phase replay: not committed within 5 ms"));
    t.hold(Duration::ZERO, Duration::ZERO);
    assert!(text(Stop::Downtime, Some("delta")).contains("calls waited for 7 ms"));
}

#[test]
fn the_way_of_proof_is_passed_on() {
    let verify = |verify| task("a", Migrate { verify, ..wanted("local") }).verify();
    assert_eq!(verify(::control::Verify::Auto), memsync::Verify::Auto);
    assert_eq!(verify(::control::Verify::Hash), memsync::Verify::Hash);
    assert_eq!(verify(::control::Verify::Bytes), memsync::Verify::Bytes);
}

#[test]
fn the_latest_move_of_an_id_is_found() {
    let mut r = registry(&[("a", MoveState::Done), ("b", MoveState::Queued), ("a", MoveState::Running)]);
    assert_eq!(r.find("a").map(|e| e.it.state), Some(MoveState::Running));
    assert!(r.find("c").is_none() && r.find("").is_none());
}

#[test]
fn one_move_runs_and_others_are_queued() {
    for running in [MoveState::Running, MoveState::Stopping, MoveState::Committed] {
        let r = registry(&[("a", MoveState::Done), ("b", running), ("c", MoveState::Queued), ("d", MoveState::Queued)]);
        assert_eq!(r.running().map(|e| e.task.id.as_str()), Some("b"));
        assert_eq!(r.queued().map(|e| e.task.id.as_str()).collect::<Vec<_>>(), ["c", "d"]);
    }
    let r = registry(&[("a", MoveState::Done), ("b", MoveState::Failed), ("c", MoveState::Cancelled), ("d", MoveState::Queued)]);
    assert!(r.running().is_none());
}

#[test]
fn copies_do_not_count_as_moves_and_the_last_one_is_kept() {
    let mut r = registry(&[("m1", MoveState::Done), ("m2", MoveState::Queued)]);
    for (id, state) in [("copy1", MoveState::Done), ("copy2", MoveState::Running), ("copy3", MoveState::Queued)] {
        let copy = Task { id: id.into(), copies: true, ..Task::of_a_plan(false) };
        r.entries.push_back(Entry { task: Arc::new(copy), ..entry(id, state) });
    }
    let ids = |r: &Registry<Task>| r.entries.iter().map(|e| e.task.id.clone()).collect::<Vec<_>>();
    assert!(r.moving().is_none() && r.running().is_some_and(|e| e.task.id == "copy2"));
    assert!(r.queued().map(|e| &*e.task.id).eq(["m2"]) && r.copying().map(|e| &*e.task.id).eq(["copy2", "copy3"]));
    r.end("copy2", MoveState::Cancelled, None);
    assert_eq!(ids(&r), ["m1", "m2", "copy2", "copy3"]);
    r.end("copy3", MoveState::Done, None);
    assert_eq!(ids(&r), ["m1", "m2", "copy3"]);
}

#[test]
fn changes_with_an_event_are_numbered() {
    let mut r = registry(&[("a", MoveState::Running)]);
    r.change("a", None, |it| it.at_unix_ms = 7);
    assert_eq!((r.seq, r.events.len()), (0, 0));
    r.change("a", Some(EventKind::Phase), |it| it.phase = Some("delta".into()));
    r.change("a", Some(EventKind::Phase), |it| it.phase = Some("verify".into()));
    let seen: Vec<(u64, Option<&str>, u64)> = r.events.iter().map(|e| (e.seq, e.it.phase.as_deref(), e.it.at_unix_ms)).collect();
    assert_eq!(seen, [(1, Some("delta"), 7), (2, Some("verify"), 7)]);
}

#[test]
fn a_change_of_an_unknown_move_is_no_event() {
    let mut r = registry(&[("a", MoveState::Running)]);
    r.change("b", Some(EventKind::Phase), |_| panic!("it is unknown"));
    assert_eq!((r.seq, r.events.len()), (0, 0));
}

#[test]
fn old_events_are_dropped() {
    let mut r = registry(&[("a", MoveState::Running)]);
    (0..EVENTS + 10).for_each(|_| r.change("a", Some(EventKind::Progress), |_| ()));
    assert_eq!((r.events.len(), r.events.front().map(|e| e.seq), r.seq), (EVENTS, Some(11), EVENTS as u64 + 10));
}

#[test]
fn the_end_of_a_move_has_its_reason() {
    let mut r = registry(&[("a", MoveState::Running), ("b", MoveState::Running)]);
    r.end("a", MoveState::Failed, Some(&MoveError::AlreadyThere.into()));
    let a = &r.entries[0].it;
    assert_eq!(
        (a.state, a.ok, a.reason.as_deref()),
        (MoveState::Failed, false, Some("cannot move: the job is already at this place"))
    );
    assert_eq!(a.code, Some(::control::ReasonCode::AlreadyThere));
    r.change("b", None, |it| it.phase = Some("release".into()));
    r.end("b", MoveState::Done, None);
    let b = &r.entries[1].it;
    assert_eq!((b.ok, b.phase.as_deref(), b.reason.as_deref()), (true, None, None));
}

#[test]
fn finished_moves_are_bounded_and_the_others_are_kept() {
    let mut r = registry(&[("queued", MoveState::Queued)]);
    for n in 0..KEPT + 5 {
        r.entries.push_back(entry(&format!("m{n}"), MoveState::Running));
        r.end(&format!("m{n}"), MoveState::Done, None);
    }
    assert_eq!(r.entries.len(), KEPT + 1);
    assert!(r.find("queued").is_some() && r.find("m4").is_none() && r.find("m5").is_some());
}

#[test]
fn a_running_move_reports_how_long_it_has_run() {
    let mut e = entry("a", MoveState::Running);
    assert_eq!(e.report().total_ms, 0.0);
    e.begun = Instant::now().checked_sub(Duration::from_secs(5));
    assert!(e.report().total_ms >= 5000.0);
    (e.it.state, e.it.total_ms) = (MoveState::Done, 3.0);
    assert_eq!(e.report().total_ms, 3.0, "it has ended");
}

/// For tests with queued moves: the thread that carries out moves would begin those of another test.
static QUEUED: Mutex<()> = Mutex::new(());

#[test]
fn a_move_without_its_threads_is_not_accepted() {
    let _queued = lock(&QUEUED);
    let job: &'static Job = Box::leak(Box::new(Job::new(Vec::new())));
    let ask = |id: &str| request(job, Migrate { id: Some(id.into()), queue: true, ..wanted("local") }, "request", |_, _| Ok(()));
    // The first thread enforces the limits, the second one carries out moves.
    for number in [0, 1] {
        faults::refuse_thread(Some(number));
        let refused = ask("t1").unwrap_err();
        faults::refuse_thread(None);
        assert!(matches!(refused, MoveError::SystemError { what: "start a thread", .. }), "{refused}");
        assert!(report(Some("t1")).is_err() && !lock(&REGISTRY).mover);
    }
    assert_eq!(wait_for(&ask("t1").unwrap()).unwrap().state, MoveState::Done);
}

#[test]
fn the_limits_of_a_cancelled_queued_move_end() {
    let _queued = lock(&QUEUED);
    let t = registered("q2", MoveState::Queued, Migrate { max_downtime_ms: Some(60_000), ..wanted("local") });
    let (limits, (over, is_over)) = (t.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        limits.watch();
        over.send(())
    });
    t.give_up(Stop::Cancelled).unwrap();
    assert!(is_over.recv_timeout(Duration::from_secs(20)).is_ok(), "the thread is left");
}

#[test]
fn a_queued_move_is_cancelled_at_once() {
    let _queued = lock(&QUEUED);
    let t = registered("q1", MoveState::Queued, wanted("local"));
    t.give_up(Stop::Cancelled).unwrap();
    let it = &report(Some("q1")).unwrap()[0];
    assert_eq!((it.state, it.reason.as_deref()), (MoveState::Cancelled, Some("cancelled before it began")));
}

#[test]
fn a_running_move_is_stopped_and_what_it_waits_for_interrupted() {
    let (t, called) = (registered("r1", MoveState::Running, wanted("local")), Arc::new(AtomicUsize::new(0)));
    let count = called.clone();
    t.on_stop(0, move || {
        count.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    t.give_up(Stop::Deadline).unwrap();
    t.give_up(Stop::Cancelled).unwrap();
    assert_eq!((state("r1"), t.stopped(), called.load(Ordering::Relaxed)), (MoveState::Stopping, Some(Stop::Deadline), 1));
    assert!(t.on_stop(0, || ()).is_err(), "too late to be interrupted");
    assert!(t.commit().is_err() && t.phase("delta").is_err());
}

#[test]
fn the_wait_of_one_gpu_is_interrupted() {
    let (t, called) = (registered("r2", MoveState::Running, wanted("local")), Arc::new(Mutex::new(Vec::new())));
    for gpu in [0, 1, 0] {
        let called = called.clone();
        t.on_stop(gpu, move || lock(&called).push(gpu)).unwrap();
    }
    t.interrupt(0);
    assert_eq!(*lock(&called), [0, 0]);
    assert!(t.check().is_ok(), "the move itself is not abandoned");
}

#[test]
fn a_committed_move_cannot_be_cancelled() {
    let t = registered("c1", MoveState::Running, wanted("b:1/0"));
    t.commit().unwrap();
    let error = t.give_up(Stop::Cancelled).unwrap_err();
    assert_eq!(error.to_string(), "too late: move c1 has been committed, the job is at b:1/0");
    assert!(t.stopped().is_none() && state("c1") == MoveState::Committed);
}

#[test]
fn a_finished_move_cannot_be_cancelled() {
    for (id, end, text) in [
        ("f1", MoveState::Done, "too late: move f1 has succeeded already"),
        ("f2", MoveState::Cancelled, "too late: move f2 was cancelled already"),
        ("f3", MoveState::Failed, "too late: move f3 has failed already"),
    ] {
        registered(id, end, wanted("local"));
        assert_eq!(cancel(Some(id)).unwrap_err().to_string(), text);
        assert_eq!(wait_for(id).unwrap().state, end);
    }
}

#[test]
fn an_unknown_move_is_named() {
    for error in [cancel(Some("nix")).unwrap_err(), wait_for("nix").unwrap_err(), report(Some("nix")).unwrap_err()] {
        assert_eq!(error.to_string(), "this job knows no move nix (mrcuda moves lists them)");
    }
    let t = task("nowhere", wanted("local"));
    assert!(matches!(t.give_up(Stop::Cancelled), Err(MoveError::NoSuchMove { .. })));
}

#[test]
fn a_phase_is_reported_once_for_all_gpus() {
    let t = registered("p1", MoveState::Running, wanted("local"));
    let phases = || lock(&REGISTRY).events.iter().filter(|e| e.it.id == "p1").count();
    t.phase("replay").unwrap();
    t.phase("replay").unwrap();
    assert_eq!(phases(), 1);
    t.phase("delta").unwrap();
    assert_eq!((phases(), report(Some("p1")).unwrap()[0].phase.as_deref()), (2, Some("delta")));
}

#[test]
fn the_longest_downtime_counts() {
    let t = registered("d1", MoveState::Running, wanted("local"));
    t.release();
    assert_eq!(report(Some("d1")).unwrap()[0].downtime_ms, 0.0, "calls were not held up");
    lock(&t.clock).held = Instant::now().checked_sub(Duration::from_secs(2));
    t.release();
    t.hold(Duration::ZERO, Duration::ZERO);
    t.release();
    assert!(report(Some("d1")).unwrap()[0].downtime_ms >= 2000.0);
}

#[test]
fn a_move_past_its_deadline_is_stopped() {
    let t = registered("w1", MoveState::Running, Migrate { deadline_ms: Some(0), ..wanted("local") });
    t.watch();
    assert_eq!((t.stopped(), state("w1")), (Some(Stop::Deadline), MoveState::Stopping));
}

#[test]
fn calls_that_are_held_up_for_too_long_stop_a_move() {
    for (id, asked, limit_ms) in [("w2", Some(10), 10), ("w4", None, 20)] {
        let limits = Migrate { deadline_ms: Some(60_000), max_downtime_ms: asked, ..wanted("local") };
        let t = registered(id, MoveState::Running, limits);
        t.hold(Duration::ZERO, Duration::from_millis(20));
        t.watch();
        assert_eq!(t.stopped(), Some(Stop::Downtime));
        t.release();
        let error = t.check().unwrap_err();
        assert!(matches!(error, MoveError::DowntimeExceeded { limit_ms: ms, .. } if ms == limit_ms), "{error}");
    }
}

#[test]
fn limits_end_with_the_move() {
    let t = registered("w3", MoveState::Running, Migrate { deadline_ms: Some(0), ..wanted("local") });
    lock(&t.clock).over = true;
    t.watch();
    assert_eq!(t.stopped(), None);
}

#[test]
fn work_apart_returns_its_result() {
    let t = task("a", wanted("local"));
    assert_eq!(t.apart(|| Ok(7)).unwrap(), 7);
    assert!(matches!(t.apart(|| Err::<(), _>(MoveError::NoGpu)), Err(MoveError::NoGpu)));
}

#[test]
fn work_apart_is_left_when_the_move_is_abandoned() {
    let t = task("a", wanted("local"));
    t.stop.store(Stop::Cancelled as u8, Ordering::Release);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let left = t.apart(move || Ok(wait.recv().is_ok()));
    assert!(matches!(left, Err(MoveError::Cancelled { at: Moment::BeforeStart })));
    drop(go);
}

#[test]
fn work_apart_is_left_after_its_limit() {
    let t = task("a", wanted("local"));
    let (go, wait) = std::sync::mpsc::channel::<()>();
    assert!(t.apart_within(Some(Duration::ZERO), move || Ok(wait.recv().is_ok())).is_none());
    drop(go);
}

#[test]
fn work_apart_that_panics_is_an_error() {
    let t = task("a", wanted("local"));
    let result = t.apart(|| -> Result<(), MoveError> { std::panic::resume_unwind(Box::new(())) });
    assert!(matches!(result, Err(MoveError::InternalError(_))));
}

#[test]
fn a_few_traces_are_kept() {
    let ids: Vec<String> = (0..TRACES + 2).map(|n| format!("t{n}")).collect();
    let mut all = registry(&ids.iter().map(|id| (id.as_str(), MoveState::Done)).collect::<Vec<_>>());
    ids.iter().for_each(|id| all.keep_trace(id, Some(Arc::default())));
    all.keep_trace("t0", None);
    let kept: Vec<&str> = all.entries.iter().filter(|e| e.trace.is_some()).map(|e| e.task.id.as_str()).collect();
    assert_eq!(kept, ids[2..].iter().map(String::as_str).collect::<Vec<_>>());
}
