//! Limits of clients, turns, and accounting.

use super::*;

/// Connects a job that may wait.
fn join(s: &Scene, gpu: u32, queue: Duration) -> Result<Arc<Link>, LinkError> {
    let limits = TimeLimits { queue, ..TimeLimits::default() };
    Link::connect_with(&s.at(gpu), Some(&s.credentials), &JobHello { name: "train".into(), ..hello() }, None, limits)
}

const LONG: Duration = Duration::from_secs(120);

fn refusal(s: &Scene, gpu: u32) -> String {
    join(s, gpu, Duration::ZERO).map(drop).unwrap_err().to_string()
}

#[test]
fn exclusive_gpus_are_taken_in_turn() {
    let s = Scene::with(vec![0, 1], |options| options.clients.gpu_jobs = Some(1));
    let first = s.link(0);
    let other = s.link(1);
    assert!(refusal(&s, 0).contains("GPU 0 has a job, and gets no more (mrcuda serve --max-gpu-jobs)"));
    // What is parked uses no GPU.
    let memory = Endpoint { gpu: Endpoint::MEMORY, ..s.at(0) };
    let parked = [0, 1].map(|_| Link::connect(&memory, Some(&s.credentials), &hello(), None).unwrap());
    let late = join(&s, 0, Duration::from_millis(10)).map(drop).unwrap_err().to_string();
    assert!(late.contains("it has no room: GPU 0 has a job"), "{late}");
    let lines = |n: usize| soon(|| s.daemon.state.lines.waiting(0) == n);
    assert!(lines(0), "who gives up leaves");
    thread::scope(|scope| {
        let waits = || scope.spawn(|| join(&s, 0, LONG).unwrap());
        let second = waits();
        assert!(lines(1));
        let third = waits();
        assert!(lines(2));
        first.close();
        let second = second.join().unwrap();
        assert!(!third.is_finished() && lines(1), "one after the other");
        assert!(refusal(&s, 0).contains("--max-gpu-jobs"), "nobody overtakes");
        second.close();
        third.join().unwrap().close();
    });
    assert!(lines(0));
    other.close();
    parked.iter().for_each(|link| link.close());
}

#[test]
fn a_job_that_waits_and_gives_up_leaves_its_line_and_so_does_everybody_when_the_server_ends() {
    let s = Scene::with(vec![0], |options| options.max_workers = Some(1));
    let first = s.link(0);
    let lines = |n: usize| soon(|| s.daemon.state.lines.waiting(0) == n);
    let conn = Conn::open(&s.at(0), Instant::now() + LONG).unwrap();
    let opening = Opening::Job { gpu: 0, rdma: false, waits: true, locality: greet::Locality::None, hello: hello() };
    let limits = greet::Limits { silence: LONG, end: Instant::now() + LONG };
    greet::greet(&conn, &opening, &s.key(), greet::Protection::AnyServer, limits).unwrap();
    let why = greet::read_answer(&conn, Instant::now() + LONG).unwrap_err();
    assert!(matches!(&why, GreetError::Waiting(why) if why.contains("all 1 workers of this server have a client")), "{why}");
    assert!(lines(1));
    drop(conn);
    assert!(lines(0));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| join(&s, 0, LONG).map(drop));
        assert!(lines(1));
        s.daemon.state.draining.store(true, Ordering::SeqCst);
        let why = waiting.join().unwrap().unwrap_err().to_string();
        assert!(why.contains("the server is ending"), "{why}");
    });
    first.close();
}

#[test]
fn a_client_that_starts_too_many_jobs_is_slowed_down() {
    let s = Scene::with(vec![0], |options| options.clients.rate = Some(2));
    s.link(0).close();
    s.link(0).close();
    // At most one more comes free within 30 s.
    let refusals: Vec<String> =
        (0..3).filter_map(|_| join(&s, 0, Duration::ZERO).map(drop).err()).map(|why| why.to_string()).collect();
    assert!(!refusals.is_empty() && refusals.iter().all(|why| why.contains("--max-client-rate")), "{refusals:?}");
    // This machine's own are not counted.
    (0..3).for_each(|_| Link::connect(&s.unix(0), None, &hello(), None).unwrap().close());
}

#[test]
fn each_worker_that_has_served_a_job_has_a_line_of_accounting() {
    let file = std::env::temp_dir().join(format!("mrcuda-daemon-accounting-{}", std::process::id()));
    let s = Scene::with(vec![0], |options| options.accounting = Some(file.clone()));
    let (left, killed) = (join(&s, 0, Duration::ZERO).unwrap(), s.link(0));
    let pids = [pid(&left), pid(&killed)];
    put(&left, 3, b"abc");
    assert_eq!(get(&left, 3, 3), b"abc");
    left.close();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pids[1]), Signal::SIGKILL).unwrap();
    assert!(soon(|| std::fs::read_to_string(&file).unwrap().lines().count() == 2));
    let remaining = s.link(0);
    s.daemon.stop();
    drop(remaining);
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "{text}");
    let of = |worker: i32| lines.iter().find(|line| line["worker"] == worker).unwrap();
    assert_eq!((&of(pids[0])["end"], &of(pids[0])["name"]), (&"left".into(), &"train".into()));
    assert_eq!(of(pids[1])["end"], "failed");
    assert_eq!(lines[2]["end"], "server-ended");
    for line in &lines {
        // Also of the one that was killed.
        assert_eq!(line["peak_bytes"], fake::ALLOCATED, "{line}");
        assert!(line["bytes_out"].as_u64().is_some(), "{line}");
    }
    assert!(of(pids[0])["bytes_in"].as_u64().unwrap() > 3 && of(pids[0])["bytes_out"].as_u64().unwrap() > 3);
    std::fs::remove_file(file).unwrap();
}
