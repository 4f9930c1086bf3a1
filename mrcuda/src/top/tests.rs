//! What the screen shows of jobs and servers that the tests make up.

use super::query::Answer;
use super::*;
use crate::jobs::{Listed, State, silent};
use control::{Carried, Device, DeviceState, Job, Move, MoveState};
use cuda_api::board::Reading;
use cuda_api::clock::unix_ms;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use rcuda_forwarder::{GpuFacts, GpuState, ServedJob, ServerLimits, ServerState, UserBy};

/// A job with a GPU whose link has carried so much.
fn job(pid: u32, name: &str, place: &str, calls: u64, bytes: u64) -> Job {
    let link = Some(Carried { calls, bytes_sent: bytes, bytes_received: bytes });
    let device = Device { place: place.into(), transport: "tls".into(), link, used_bytes: 5 << 30, ..Device::default() };
    Job { pid, name: name.into(), program: "/usr/bin/python3.12".into(), devices: vec![device], ..Job::default() }
}

fn answer(at: Instant, job: Job) -> Option<Answer> {
    Some(Answer { at, listed: Listed::of_test(job, None), moves: None })
}

fn endpoint(server: &str) -> Endpoint {
    server.parse().expect("a server")
}

fn server(at: &str) -> Server {
    let served = ServedJob {
        worker: 901,
        host: Some("10.0.0.7".into()),
        pid: 4711,
        uid: None,
        user: Some("ann\u{1b}[2J".into()),
        user_by: Some(UserBy::Token),
        since_unix_ms: 0,
        used_bytes: Some(37 << 30),
        evicted_bytes: Some(0),
    };
    let facts = GpuFacts { name: "NVIDIA H200".into(), uuid: [1; 16], total_bytes: 140 << 30, driver_version: 13_000 };
    let readings = Reading::ALL.map(|reading| (reading as u32, if reading == Reading::Power { 312_500 } else { 44 })).to_vec();
    let gpu = GpuState {
        facts: Some(facts),
        free_bytes: Some(101 << 30),
        promised_bytes: None,
        idle_workers: 1,
        waiting: 0,
        jobs: vec![served],
        readings,
    };
    let state = ServerState {
        pid: 812,
        since_unix_ms: 0,
        ending: false,
        limits: ServerLimits::default(),
        gpus: vec![gpu],
        parked: Vec::new(),
        earlier: None,
        no_readings: Some("NVML\u{1b}[2J sleeps".into()),
    };
    Server::new(&endpoint(at), Ok(state))
}

/// Two jobs, one of which moves, and two servers, one of which is lost.
fn scene() -> Seen {
    let mut seen = Seen::new(vec!["gpubox:7878".into(), "unix:/nowhere/mrcuda".into(), "late:1".into()], false);
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    seen.found(&[4711, 4712], Vec::new());
    seen.answered(4711, answer(start, job(4711, "train.py", "gpubox:7878/0", 1000, 0)));
    let now = job(4711, "train.py", "gpubox:7878/0", 13_500, 3 << 20);
    let done =
        Move { id: "m1".into(), state: MoveState::Done, downtime_ms: 12.4, at_unix_ms: unix_ms() - 60_000, ..Move::default() };
    seen.answered(4711, Some(Answer { at: start + second, listed: Listed::of_test(now, None), moves: Some(vec![done]) }));
    let mut moving = job(4712, "big", "gpubox:7878/0", 5, 5);
    moving.moving = Some("m7".into());
    moving.devices[0].state = DeviceState::Moving;
    let phase = Some("precopy".into());
    let (bytes, chunk_bytes) = (1 << 30, 4 << 30);
    let it =
        Move { id: "m7".into(), state: MoveState::Running, to: "local".into(), phase, bytes, chunk_bytes, ..Move::default() };
    seen.answered(4712, Some(Answer { at: start, listed: Listed::of_test(moving, Some(it)), moves: None }));
    seen.server(0, server("gpubox:7878"));
    let lost = endpoint("unix:/nowhere/mrcuda");
    seen.server(1, Server::new(&lost, gpus::ask(&lost)));
    seen
}

/// The rows of a terminal of this size.
fn drawn(seen: &Seen, screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view::draw(frame, seen, screen)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..rows).map(row).collect()
}

#[test]
fn a_screen_of_80_columns_has_jobs_moves_and_gpus() {
    let rows = drawn(&scene(), &mut Screen::default(), 80, 24);
    let text = rows.join("\n");
    assert!(rows[0].starts_with("mrcuda top: 2 jobs, 1 moving, by PID"), "{text}");
    let headings = ["PID", "NAME", "PLACE", "STATE", "MEMORY", "CALLS/S", "BYTES/S", "DOWNTIME", "MOVED"];
    assert_eq!(rows[1].split_whitespace().collect::<Vec<_>>(), headings, "{text}");
    let cells: Vec<&str> = rows[2].split_whitespace().collect();
    assert_eq!(
        cells,
        ["4711", "train.py", "gpubo…878/0", "working", "5.0", "GiB", "12.5k", "6.0", "MiB", "12", "ms", "60", "s"],
        "{text}"
    );
    assert!(rows[3].contains("4712") && rows[3].contains("moving"), "{text}");
    assert!(text.contains("\n4712 big: m7 -> local: 25 %, precopy, 0.00 ms: 1.0 GiB of 4.0 GiB"), "{text}");
    for line in [
        "SERVER       GPU  USERS                 FREE      USED  JOBS  UTIL  POWER   TEMP",
        "gpubox:7878    0  ann\\u00…0.0.0.7  101.0 GiB  37.0 GiB     1   44%  312 W  44 °C",
    ] {
        assert!(rows.iter().any(|row| row == line), "{text}");
    }
    assert!(text.contains("\ngpubox:7878: what its GPUs measure is not known: NVML\\u001b[2J sleeps\n"), "{text}");
    assert!(text.contains("\nunix:/nowhere/mrcuda: no answer: ") && text.contains("\nlate:1: has not answered yet"), "{text}");
    assert!(rows[23].starts_with("q quit"), "{text}");
}

#[test]
fn a_narrow_screen_has_fewer_columns_and_no_more_lines() {
    let seen = scene();
    let count = |rows: &[String]| rows.iter().filter(|row| !row.is_empty()).count();
    let wide = drawn(&seen, &mut Screen::default(), 120, 24);
    assert!(wide[1].ends_with("DOWNTIME  MOVED") && wide[2].contains("gpubox:7878/0") && wide[2].ends_with("60 s"), "{wide:#?}");
    for columns in [60, 40, 20, 5] {
        let rows = drawn(&seen, &mut Screen::default(), columns, 24);
        assert_eq!(count(&rows), count(&wide), "{columns}: {rows:#?}");
    }
    let rows = drawn(&seen, &mut Screen::default(), 60, 24);
    assert!(rows[1].contains("CALLS/S") && !rows[1].contains("DOWNTIME"), "{rows:#?}");
    // One without room for anything does no harm.
    drawn(&seen, &mut Screen::default(), 1, 1);
    drawn(&seen, &mut Screen { page: Page::Help, ..Screen::default() }, 10, 2);
}

#[test]
fn nothing_that_others_say_controls_the_terminal() {
    let bad = "a\u{1b}[2J\nb\u{202e}\u{9b}31m";
    let mut hostile = job(7, bad, bad, 1, 1);
    hostile.program = bad.into();
    hostile.on_signal = bad.into();
    hostile.signal = Some(bad.into());
    (hostile.when_full, hostile.home, hostile.policy) = (bad.into(), bad.into(), bad.into());
    hostile.moving = Some(bad.into());
    hostile.devices[0].name = bad.into();
    hostile.devices[0].live = [(bad.to_owned(), 1)].into();
    let it = Move { id: bad.into(), to: bad.into(), phase: Some(bad.into()), waits_for: Some(bad.into()), ..Move::default() };
    let it = Move { state: MoveState::Running, ..it };
    let ended = Move { state: MoveState::Failed, reason: Some(bad.into()), from: bad.into(), ..it.clone() };
    let mut seen = scene();
    seen.found(&[7, 8], vec![bad.into()]);
    let listed = Listed::of_test(hostile, Some(it));
    seen.answered(7, Some(Answer { at: Instant::now(), listed, moves: Some(vec![ended]) }));
    let quiet = silent(8, State::NotAnswering, bad.into());
    seen.answered(8, Some(Answer { at: Instant::now(), listed: quiet, moves: None }));
    let all_pages = [Page::List, Page::Details].map(|page| {
        let mut screen = Screen { page, selected: Some(7), ..Screen::default() };
        drawn(&seen, &mut screen, 200, 40).join("\n")
    });
    for text in [view::text(&seen, None), view::text(&seen, Some(60))].iter().chain(&all_pages) {
        let text = text.replace('\n', "");
        assert!(text.chars().all(control::name::is_printable), "{text:?}");
        assert!(text.contains("a?[2J?b") || text.contains("a\\u001b[2J\\u000ab"), "it is shown: {text}");
    }
    assert!(all_pages[1].contains("failed: a\\u001b[2J"), "{}", all_pages[1]);
}

#[test]
fn rates_are_those_between_two_answers_of_one_link() {
    let (start, mut seen) = (Instant::now(), Seen::new(Vec::new(), false));
    let mut after = |seconds: u64, job: Option<Job>| {
        seen.found(&[7], Vec::new());
        let listed = job.map_or_else(|| silent(7, State::NotAnswering, "it sleeps".into()), |job| Listed::of_test(job, None));
        seen.answered(7, Some(Answer { at: start + Duration::from_secs(seconds), listed, moves: None }));
        (seen.jobs[&7].rates.map(|rates| (rates.calls, rates.bytes)), seen.jobs[&7].state())
    };
    assert_eq!(after(0, Some(job(7, "x", "a:1/0", 100, 100))), (None, "running"));
    assert_eq!(after(2, Some(job(7, "x", "a:1/0", 300, 600))), (Some((100.0, 500.0)), "working"));
    assert_eq!(after(3, Some(job(7, "x", "a:1/0", 300, 600))), (Some((0.0, 0.0)), "waiting"));
    assert_eq!(after(4, Some(job(7, "x", "b:1/0", 900, 900))).0, None, "it has moved");
    assert_eq!(after(5, Some(job(7, "x", "b:1/0", 10, 900))).0, None, "counters do not become smaller");
    assert_eq!(after(5, Some(job(7, "x", "b:1/0", 20, 900))).0, None, "no time has passed");
    assert_eq!(after(6, Some(job(7, "x", "b:1/0", u64::MAX, u64::MAX))).1, "working");
    assert_eq!(after(7, None), (None, "not answering"));
    let mut several = job(7, "x", "a:1/0", 100, 100);
    several.devices.push(Device { device: 1, link: None, ..several.devices[0].clone() });
    assert_eq!(after(8, Some(several.clone())).0, None);
    several.devices[0].link = Some(Carried { calls: 107, bytes_sent: 100, bytes_received: 100 });
    assert_eq!(after(9, Some(several)).0, Some((7.0, 0.0)), "the other one is in the job's process");
}

#[test]
fn keys_select_and_sort_jobs_and_open_pages() {
    let (mut seen, mut screen) = (scene(), Screen::default());
    let press = |code: KeyCode, screen: &mut Screen, seen: &Seen| is_last(KeyEvent::new(code, KeyModifiers::NONE), screen, seen);
    let (down, up, enter) = (KeyCode::Char('j'), KeyCode::Up, KeyCode::Enter);
    assert!(!press(enter, &mut screen, &seen) && screen.page == Page::List, "no job is selected");
    for (key, selected) in [(down, 4711), (down, 4712), (down, 4712), (up, 4711), (up, 4711)] {
        assert!(!press(key, &mut screen, &seen));
        assert_eq!(screen.selected, Some(selected));
    }
    press(KeyCode::Char('s'), &mut screen, &seen);
    let rows = drawn(&seen, &mut screen, 80, 24);
    assert!(rows[0].ends_with("by NAME") && rows[2].contains("4712"), "{rows:#?}");
    press(enter, &mut screen, &seen);
    let text = drawn(&seen, &mut screen, 100, 24).join("\n");
    assert!(text.contains("job 4711 train.py, of user you: working") && text.contains("13500 calls, 3.0 MiB sent"), "{text}");
    assert!(text.contains("m1") && text.contains("12 ms"), "{text}");
    // It ends meanwhile.
    seen.found(&[4712], Vec::new());
    let rows = drawn(&seen, &mut screen, 80, 24);
    assert!(rows[0].contains("1 jobs") && screen.page == Page::List && rows[2].contains("4712"), "{rows:#?}");
    press(KeyCode::Char('?'), &mut screen, &seen);
    assert!(drawn(&seen, &mut screen, 80, 24).join("\n").contains("this help"));
    assert!(!press(KeyCode::Esc, &mut screen, &seen) && screen.page == Page::List);
    assert!(press(KeyCode::Char('q'), &mut screen, &seen));
    assert!(is_last(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &mut screen, &seen));
    assert!(!press(KeyCode::Char('c'), &mut screen, &seen));
}

#[test]
fn the_selected_one_of_many_jobs_is_on_the_screen() {
    let mut seen = scene();
    let pids: Vec<u32> = (100..200).collect();
    seen.found(&pids, Vec::new());
    pids.iter().for_each(|pid| seen.answered(*pid, answer(Instant::now(), job(*pid, "x", "a:1/0", 0, 0))));
    let mut screen = Screen::default();
    for (steps, by) in [(60, 1), (100, 1), (30, -1), (100, -1)] {
        (0..steps).for_each(|_| screen.select(&seen, by));
        let rows = drawn(&seen, &mut screen, 80, 20);
        let selected = screen.selected.unwrap().to_string();
        assert!(rows.iter().any(|row| row.trim_start().starts_with(&selected)), "{selected}: {rows:#?}");
        assert!(rows.iter().any(|row| row.starts_with("gpubox:7878")), "{rows:#?}");
    }
}

#[test]
fn jobs_stay_while_they_cannot_be_looked_up_and_each_move_has_a_rate_of_its_own() {
    let (start, mut seen) = (Instant::now(), Seen::new(Vec::new(), false));
    seen.found(&[7], Vec::new());
    let mut after = |seconds: u64, id: &str, bytes: u64| {
        let job = Job { moving: Some(id.into()), ..job(7, "x", "a:1/0", 1, 1) };
        let it = Move { id: id.into(), bytes, ..Move::default() };
        let at = start + Duration::from_secs(seconds);
        seen.answered(7, Some(Answer { at, listed: Listed::of_test(job, Some(it)), moves: Some(Vec::new()) }));
        seen.jobs[&7].copied
    };
    assert_eq!((after(0, "m1", 100), after(1, "m1", 300), after(2, "m2", 500)), (None, Some(200.0), None));
    assert_eq!(after(3, "m2", 510), Some(10.0));
    let (sender, news) = sync_channel(WAITING);
    sender.send(query::News::Found(Err("no directory".into()))).unwrap();
    assert!(take(&news, &mut seen) && seen.jobs.len() == 1 && seen.problems == ["no directory"]);
}

#[test]
fn intervals_have_units_and_bounds() {
    assert_eq!((interval("1s"), interval("100ms")), (Ok(Duration::from_secs(1)), Ok(Duration::from_millis(100))));
    assert!(["", "1", "99ms", "2h", "-1s", "infs"].into_iter().all(|text| interval(text).is_err()));
}
