//! Jobs that are parked, in memory and in files, and go on.

use crate::{LIMIT, LONG, assert_identical, native_orbit, process, remote_orbit, wait_for_step, words_of_mrcuda};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::kill::gpu_bytes;
use tests::scene::wait_for;
use tests::server::{helpers, signal};
use tests::{Job, Random, Scene, Server};

/// A field of its only device, or of the first one.
fn text(job: &Job, field: &str) -> String {
    job.status().and_then(|s| Some(s["devices"][0][field].as_str()?.to_owned())).unwrap_or_default()
}

/// The last step that orbit has queued.
fn step(job: &Job) -> u32 {
    job.stderr().lines().filter_map(|l| l.strip_prefix("step ")?.split(' ').next()?.parse().ok()).next_back().unwrap_or(0)
}

/// Parks a job.
fn suspend(job: &Job, options: &[&str]) {
    let report = job.ask("suspend", options).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_eq!(text(job, "state"), "parked");
}

/// Lets it go on.
fn resume(job: &Job, options: &[&str]) {
    let report = job.ask("resume", options).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_eq!(text(job, "state"), "running");
}

/// The file of the only job that is parked in a directory.
fn file_in(directory: &Path) -> PathBuf {
    let files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn a_job_is_parked_in_memory_and_goes_on_where_it_was() {
    let scene = Scene::new("park");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "parked", &server.place(0), &LONG, &[]);
    let worker = server.worker_of(job.pid());
    for round in 1..=2 {
        wait_for_step(&mut job, 200 * round);
        suspend(&job, &[]);
        assert_eq!(text(&job, "place"), "memory");
        // The GPU is free, and nothing goes on.
        assert!(wait_for(LIMIT, || (gpu_bytes(worker) == 0).then_some(())).is_some(), "the worker keeps memory");
        let before = step(&job);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(step(&job), before);
        resume(&job, &[]);
        assert_eq!(text(&job, "place"), server.place(0));
        wait_for_step(&mut job, before + 20);
    }
    assert!(helpers(job.pid()).is_empty() || wait_for(LIMIT, || helpers(job.pid()).is_empty().then_some(())).is_some());
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "it is silent: {}", outcome.stderr);
}

#[test]
fn a_job_is_parked_in_a_private_file_and_goes_on_elsewhere_after_its_server_has_ended() {
    let scene = Scene::new("parkfile");
    let native = native_orbit(&scene, &LONG);
    let mut server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "parked", &server.place(0), &LONG, &[]);
    let directory = scene.path.join("park");
    let to = format!("file:{}", directory.display());
    suspend(&job, &["--to", &to]);
    assert_eq!(text(&job, "place"), to);
    let file = file_in(&directory);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
    server.stop();
    assert_eq!(job.ask("resume", &[]).unwrap().code(), "target-unreachable");
    assert_eq!(text(&job, "state"), "parked", "it stays parked");
    let other = Server::start(&scene, "two");
    resume(&job, &["--to", &other.place(0)]);
    assert!(is_empty(&directory), "the file has done its service");
    wait_for_step(&mut job, 300);
    // From a file to memory, and into the process.
    suspend(&job, &["--to", &to]);
    suspend(&job, &["--to", "memory"]);
    assert!(is_empty(&directory));
    assert_eq!(job.ask("suspend", &["--to", "memory"]).unwrap().code(), "already-there");
    resume(&job, &["--to", "local"]);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_parked_job_goes_on_at_its_server_after_that_was_restarted() {
    let scene = Scene::new("parkrestart");
    let native = native_orbit(&scene, &LONG);
    let mut server = Server::start(&scene, "one");
    let place = server.place(0);
    let mut job = remote_orbit(&scene, "parked", &place, &LONG, &[]);
    let file = format!("file:{}", scene.path.join("park").display());
    for (round, to) in [(1, &*file), (2, "memory")] {
        wait_for_step(&mut job, 100 * round);
        suspend(&job, &["--to", to]);
        let pid = server.pid();
        server.restart(&scene, "one");
        assert_ne!(server.pid(), pid);
        let before = step(&job);
        resume(&job, &[]);
        assert_eq!(text(&job, "place"), place);
        wait_for_step(&mut job, before + 20);
    }
    assert_identical(&job.wait(LIMIT), &native);
}

/// How often the program has asked, and how many rounds its other thread has made.
pub(crate) fn figures(job: &Job) -> Option<(u32, u32)> {
    let stderr = job.stderr();
    let mut words = stderr.lines().rfind(|l| l.starts_with("asked "))?.split(' ');
    Some((words.nth(1)?.parse::<u32>().ok()?, words.nth(1)?.parse::<u32>().ok()?))
}

/// Starts the program that works and asks, until the file is there whose path is returned, and waits until it works.
pub(crate) fn asking_job<'a>(scene: &'a Scene, server: &Server, args: &[&str]) -> (Job<'a>, PathBuf) {
    let program = process::build(scene, "parked");
    let end = scene.path.join("end");
    let until = end.display().to_string();
    let args = [&[until.as_str()], args].concat();
    let mut job = Job::start(scene, "job", &["--server", &server.place(0)], &program, &args, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for(LIMIT, || figures(&job).filter(|(_, worked)| *worked > 5)).expect("it works");
    (job, end)
}

#[test]
fn queries_are_answered_while_a_job_is_parked() {
    let scene = Scene::new("parkask");
    let server = Server::start(&scene, "one");
    let (job, end) = asking_job(&scene, &server, &[]);
    suspend(&job, &[]);
    let (asked, worked) = figures(&job).unwrap();
    let later = wait_for(LIMIT, || figures(&job).filter(|(now, _)| *now > asked + 20)).expect("queries are answered");
    // A round that had its answers already may still be noted.
    assert!(later.1 <= worked + 1, "it works while it is parked: {worked}, {later:?}");
    resume(&job, &["--to", "local"]);
    wait_for(LIMIT, || figures(&job).filter(|(_, now)| *now > worked + 5)).expect("it goes on");
    std::fs::write(&end, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == "RESULT ok\n", "{outcome:?}");
}

#[test]
fn damaged_files_are_refused_and_the_job_stays_parked() {
    let scene = Scene::new("parkbits");
    let native = native_orbit(&scene, &LONG);
    let mut job = Job::orbit(&scene, "parked", &[], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 50);
    let directory = scene.path.join("park");
    suspend(&job, &["--to", &format!("file:{}", directory.display())]);
    let path = file_in(&directory);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    let mut random = Random::new(5);
    let mut refused = 0;
    for round in 0..12 {
        // First the helper knows the list, then it is lost, and the file is opened anew.
        let lost = round >= 6;
        let at = if lost && round % 2 == 0 { length - 1 - random.below(500) } else { 4096 + random.below(length - 8192) };
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
        if lost {
            kill_helper(&job);
        }
        let report = job.ask("resume", &[]).unwrap();
        // What the last round has replaced is not looked at.
        if !report.ok() {
            assert_eq!(report.code(), "parked-file", "{}", report.reason());
            assert!(
                report.reason().contains(path.to_str().unwrap()) && report.reason().contains("damaged"),
                "{}",
                report.reason()
            );
            assert_eq!(text(&job, "state"), "parked");
            refused += 1;
        }
        file.write_all_at(&byte, at).unwrap();
        if report.ok() {
            return assert_identical(&job.wait(LIMIT), &native);
        }
    }
    assert!(refused >= 6, "{refused}");
    resume(&job, &[]);
    assert!(is_empty(&directory));
    assert_identical(&job.wait(LIMIT), &native);
}

/// Kills the process that holds the memory of a parked job, and waits until the job has noticed.
fn kill_helper(job: &Job) {
    for helper in helpers(job.pid()) {
        signal(helper, libc::SIGKILL);
        wait_for(LIMIT, || (!helpers(job.pid()).contains(&helper)).then_some(())).expect("the helper ends");
    }
}

#[test]
fn a_lost_helper_loses_memory_but_not_a_file() {
    let scene = Scene::new("parklost");
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "file", &server.place(0), &LONG, &[]);
    let directory = scene.path.join("park");
    suspend(&job, &["--to", &format!("file:{}", directory.display())]);
    kill_helper(&job);
    resume(&job, &[]);
    assert!(is_empty(&directory));
    wait_for_step(&mut job, 300);
    suspend(&job, &[]);
    kill_helper(&job);
    // Nobody has to ask for it.
    let outcome = job.wait(LIMIT);
    assert!(!outcome.hung && outcome.code != Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("is lost"), "{}", outcome.stderr);
}

#[test]
fn a_plan_asks_the_store_as_a_move_does() {
    let scene = Scene::new("parkplan");
    let mut job = Job::orbit(&scene, "planned", &[], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 50);
    let directory = scene.path.join("park");
    suspend(&job, &["--to", &format!("file:{}", directory.display())]);
    let path = file_in(&directory);
    let plan = || job.migrate_with("local", &["--dry-run"]).unwrap();
    assert!(plan().ok(), "{}", plan().reason());
    // The file is opened again, and stays.
    kill_helper(&job);
    assert!(plan().ok(), "{}", plan().reason());
    assert!(path.exists());
    // A plan names what a move would find.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(plan().code(), "parked-file", "{}", plan().reason());
    assert_eq!(job.ask("resume", &[]).unwrap().code(), "parked-file");
    std::fs::write(&path, &whole).unwrap();
    assert!(plan().ok(), "{}", plan().reason());
    resume(&job, &[]);
    assert!(is_empty(&directory));
}

#[test]
fn nothing_is_left_of_a_job_that_is_killed_while_it_is_parked() {
    let scene = Scene::new("parkkill");
    let server = Server::start(&scene, "one");
    let directory = scene.path.join("park");
    for to in ["memory".to_owned(), format!("file:{}", directory.display())] {
        let job = remote_orbit(&scene, "killed", &server.place(0), &LONG, &[]);
        suspend(&job, &["--to", &to]);
        let pid = job.pid();
        let helper = helpers(pid);
        assert_eq!(helper.len(), 1);
        job.signal(libc::SIGKILL);
        assert_eq!(job.wait(LIMIT).signal, Some(libc::SIGKILL));
        let gone = || (!Path::new(&format!("/proc/{}", helper[0])).exists()).then_some(());
        wait_for(LIMIT, gone).expect("the helper ends");
    }
    assert!(is_empty(&directory));
}

#[test]
fn a_resume_may_wait_for_the_suspend_before_it() {
    let scene = Scene::new("parkqueue");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "parked", &server.place(0), &LONG, &[]);
    wait_for_step(&mut job, 100);
    job.ask("suspend", &["--no-wait"]).unwrap();
    let report = job.ask("resume", &["--queue"]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_eq!((text(&job, "state"), text(&job, "place")), ("running".to_owned(), server.place(0)));
    // The first resume leaves nothing to do for the second one.
    job.ask("suspend", &["--no-wait"]).unwrap();
    job.ask("resume", &["--queue", "--no-wait"]).unwrap();
    let report = job.ask("resume", &["--queue"]).unwrap();
    assert_eq!((report.ok(), report.code()), (false, "not-parked"), "{}", report.reason());
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_helper_with_a_file_ends_with_its_job_only() {
    let scene = Scene::new("parkterm");
    let server = Server::start(&scene, "one");
    let job = remote_orbit(&scene, "parked", &server.place(0), &LONG, &[]);
    let directory = scene.path.join("park");
    suspend(&job, &["--to", &format!("file:{}", directory.display())]);
    let helper = helpers(job.pid());
    assert_eq!(helper.len(), 1);
    // One that ended here could not remove the file.
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal(helper[0], number);
    }
    job.signal(libc::SIGKILL);
    assert_eq!(job.wait(LIMIT).signal, Some(libc::SIGKILL));
    let gone = || (!Path::new(&format!("/proc/{}", helper[0])).exists()).then_some(());
    wait_for(LIMIT, gone).expect("the helper ends");
    assert!(is_empty(&directory));
}

#[test]
fn the_signal_and_a_move_let_a_parked_job_go_on() {
    let scene = Scene::new("parksignal");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let (first, second) = (servers[0].place(0), servers[1].place(0));
    let mut job = Job::orbit(&scene, "parked", &["--server", &first, "--on-signal", &second], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 100);
    suspend(&job, &[]);
    job.signal(libc::SIGUSR1);
    wait_for(LIMIT, || (text(&job, "place") == second).then_some(())).expect("the signal moves it");
    wait_for_step(&mut job, 200);
    // A move to such a place parks, too.
    for (to, state) in [("memory", "parked"), ("helper", "running")] {
        // The move of the signal may be about to end.
        let report = job.migrate_with(to, &["--queue"]).unwrap();
        assert!(report.ok(), "{}", report.reason());
        assert_eq!(text(&job, "state"), state);
    }
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let scene = Scene::new("parkodd");
    let native = native_orbit(&scene, &LONG);
    let mut job = Job::orbit(&scene, "job", &["--server", "local,helper"], &LONG, &[("SOFTGPU_DEVICES", "2")]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 50);
    let code = |command: &str, options: &[&str]| job.ask(command, options).unwrap().code().to_owned();
    assert_eq!(code("resume", &[]), "not-parked");
    assert_eq!(code("suspend", &["--to", "local"]), "bad-place");
    assert_eq!(code("migrate", &["--to", "memory", "--gpu", "0"]), "parked-together");
    assert_eq!(code("migrate", &["--to", "memory,helper"]), "parked-together");
    assert_eq!(code("suspend", &["--to", "file:/proc/nowhere"]), "place-unusable");
    suspend(&job, &["--to", "memory"]);
    assert_eq!(code("migrate", &["--to", "helper", "--gpu", "1"]), "parked-together");
    assert_eq!(text(&job, "state"), "parked");
    let plan = job.ask("plan", &["--to", "local"]).unwrap();
    assert!(plan.ok(), "{}", plan.reason());
    let directory = scene.path.join("plan");
    job.ask("plan", &["--to", &format!("file:{}", directory.display())]).unwrap();
    assert!(!directory.exists(), "a plan leaves nothing");
    resume(&job, &[]);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_corrupted_byte_is_found_when_a_job_is_parked_and_when_it_goes_on() {
    let scene = Scene::new("parkcorrupt");
    let native = native_orbit(&scene, &LONG);
    let fault = ("MRCUDA_FAULT_CORRUPT_BYTE", "1");
    let server = Server::start_with(&scene, "one", &[], &[fault]);
    let directory = scene.path.join("park");
    let file = format!("file:{}", directory.display());
    let mut job = remote_orbit(&scene, "parks", &server.place(0), &LONG, &[]);
    for to in ["memory", &file] {
        let report = job.ask("suspend", &["--to", to]).unwrap();
        assert_eq!((report.ok(), report.code()), (false, "not-identical"), "{}", report.reason());
        assert_eq!(text(&job, "state"), "running", "it goes on where it was");
    }
    assert!(is_empty(&directory), "what was begun is removed");
    wait_for_step(&mut job, 300);
    assert_identical(&job.wait(LIMIT), &native);
    // The helper has the job's environment.
    let good = Server::start(&scene, "two");
    let job = remote_orbit(&scene, "goes-on", &good.place(0), &LONG, &[fault]);
    suspend(&job, &[]);
    let report = job.ask("resume", &[]).unwrap();
    assert_eq!((report.ok(), report.code()), (false, "not-identical"), "{}", report.reason());
    assert_eq!(text(&job, "state"), "parked");
}

#[test]
fn a_request_that_is_cancelled_or_late_changes_nothing() {
    let scene = Scene::new("parklate");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "job", &server.place(0), &LONG, &[]);
    assert_eq!(job.ask("suspend", &["--deadline", "1ms"]).unwrap().code(), "deadline-exceeded");
    assert_eq!(text(&job, "state"), "running");
    wait_for_step(&mut job, 100);
    suspend(&job, &[]);
    assert_eq!(job.ask("resume", &["--deadline", "1ms"]).unwrap().code(), "deadline-exceeded");
    assert_eq!(text(&job, "state"), "parked");
    resume(&job, &[]);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_job_is_parked_in_the_memory_of_a_server() {
    let scene = Scene::new("parkserver");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let small = Server::start_with(&scene, "small", &["--max-parked", "1M"], &[]);
    let in_memory = |place: String| format!("{}/memory", place.strip_suffix("/0").unwrap());
    let memory = |server: &Server| in_memory(server.place(0));
    let mut job = Job::orbit(&scene, "parked", &[], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    wait_for_step(&mut job, 50);
    assert_eq!(job.ask("suspend", &["--to", &memory(&small)]).unwrap().code(), "no-memory");
    for (to, transport) in
        [(memory(&server), "tls"), (in_memory(server.unix_place(0)), "shm"), (in_memory(server.nearest(0)), "shm")]
    {
        suspend(&job, &["--to", &to]);
        assert_eq!((text(&job, "place"), text(&job, "transport")), (to, transport.to_owned()));
        assert_eq!(gpu_bytes(server.worker_of(job.pid())), 0, "it uses no GPU");
        let before = step(&job);
        resume(&job, &[]);
        assert_eq!(text(&job, "place"), "local:0");
        wait_for_step(&mut job, before + 20);
    }
    assert_identical(&job.wait(LIMIT), &native);
    let mut lost = Job::orbit(&scene, "lost", &[], &LONG, &[]);
    lost.wait_ready(LIMIT).unwrap();
    suspend(&lost, &["--to", &memory(&server)]);
    drop(server);
    let outcome = lost.wait(LIMIT);
    assert!(!outcome.hung && outcome.code != Some(0), "{outcome:?}");
}

/// Requests that a copy be kept current, which does not park the job. Returns the report of the first round.
fn keep(job: &Job, to: &str, every: &str) -> tests::Report {
    let report = job.ask("suspend", &["--to", to, "--every", every]).unwrap();
    assert!(report.ok(), "{}", report.reason());
    assert_eq!((report.0["by"].as_str(), text(job, "state")), (Some("every"), "running".to_owned()));
    report
}

/// When the copy was current the last time.
fn current(job: &Job) -> u64 {
    job.status().and_then(|s| s["copy"]["current_unix_ms"].as_u64()).unwrap_or(0)
}

#[test]
fn a_copy_that_is_kept_current_leaves_little_to_write_when_the_job_is_parked() {
    let scene = Scene::new("parkevery");
    let server = Server::start(&scene, "one");
    let (job, end) = asking_job(&scene, &server, &["64"]);
    let directory = scene.path.join("park");
    let to = format!("file:{}", directory.display());
    let whole = keep(&job, &to, "200ms").bytes();
    assert!(whole >= 64 << 20, "{whole}");
    let (file, first) = (file_in(&directory), current(&job));
    wait_for(LIMIT, || (current(&job) > first).then_some(())).expect("round follows round");
    assert!(job.moves().unwrap().iter().filter(|it| it.0["by"] == "every").count() <= 2, "the last round is listed");
    suspend(&job, &["--to", &to]);
    let parked = job.moves().unwrap().pop().unwrap();
    assert_eq!(parked.0["by"], "request");
    assert!(parked.bytes() < whole / 8, "{} of {whole} bytes", parked.bytes());
    assert_eq!(file_in(&directory), file, "it is the same file");
    // After it the file is a copy again.
    resume(&job, &[]);
    let last = current(&job);
    wait_for(LIMIT, || (current(&job) > last).then_some(())).expect("rounds follow again");
    assert_eq!(file_in(&directory), file);
    // A killed helper costs what came after the last complete state.
    kill_helper(&job);
    suspend(&job, &["--to", &to]);
    let parked = job.moves().unwrap().pop().unwrap();
    assert!(parked.bytes() < whole / 8, "{} of {whole} bytes", parked.bytes());
    resume(&job, &["--to", "local"]);
    job.ask("suspend", &["--every", "0s"]).unwrap();
    assert!(job.status().unwrap()["copy"].is_null());
    wait_for(LIMIT, || is_empty(&directory).then_some(())).expect("nothing is left of the copy");
    std::fs::write(&end, "").unwrap();
    let outcome = job.wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == "RESULT ok\n", "{outcome:?}");
}

#[test]
fn a_copy_gives_way_to_moves_and_ends_with_its_job() {
    let scene = Scene::new("parkway");
    let native = native_orbit(&scene, &LONG);
    let servers = [Server::start(&scene, "one"), Server::start(&scene, "two")];
    let mut job = remote_orbit(&scene, "kept", &servers[0].place(0), &LONG, &[]);
    let directory = scene.path.join("park");
    keep(&job, &format!("file:{}", directory.display()), "1ms");
    for to in [1, 0, 1] {
        let report = job.migrate(&servers[to].place(0)).unwrap();
        assert!(report.ok(), "{}", report.reason());
    }
    let ids: Vec<String> =
        job.moves().unwrap().iter().filter(|it| it.0["by"] == "request").map(|it| it.id().to_owned()).collect();
    assert_eq!(ids, ["m1", "m2", "m3"]);
    let last = current(&job);
    wait_for(LIMIT, || (current(&job) > last).then_some(())).expect("rounds follow at the new place");
    assert_eq!(job.ask("suspend", &["--to", "local", "--every", "1s"]).unwrap().code(), "bad-place");
    let step = step(&job);
    wait_for_step(&mut job, step + 20);
    assert_identical(&job.wait(LIMIT), &native);
    // Its helper removes it when it sees that the job has ended.
    wait_for(LIMIT, || is_empty(&directory).then_some(())).expect("nothing is left of the copy");
}

/// The state of a process, as the system has it: `T` if it is stopped.
fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default().to_owned()
}

#[test]
fn a_job_that_is_stopped_gives_its_gpu_back_and_resumes_when_it_continues() {
    let scene = Scene::new("stopped");
    let native = native_orbit(&scene, &LONG);
    let server = Server::start(&scene, "one");
    let options = ["--server", &server.place(0), "--on-stop", "memory"];
    let mut job = Job::orbit(&scene, "stopped", &options, &LONG, &[]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    let (pid, worker) = (job.pid(), server.worker_of(job.pid()));
    for round in 1..=2 {
        wait_for_step(&mut job, 100 * round);
        signal(pid, libc::SIGTSTP);
        assert!(wait_for(LIMIT, || (state(pid) == "T").then_some(())).is_some(), "it is {}", state(pid));
        assert!(wait_for(LIMIT, || (gpu_bytes(worker) == 0).then_some(())).is_some(), "the worker keeps memory");
        let before = step(&job);
        signal(pid, libc::SIGCONT);
        wait_for_step(&mut job, before + 20);
        assert_eq!(text(&job, "place"), server.place(0));
    }
    // It continues before it is parked, or while it is: then it does not stop any more.
    for pause in [0, 10] {
        signal(pid, libc::SIGTSTP);
        std::thread::sleep(Duration::from_millis(pause));
        signal(pid, libc::SIGCONT);
        let before = step(&job);
        assert!(wait_for(LIMIT, || (step(&job) > before + 5 || !job.runs()).then_some(())).is_some(), "it is {}", state(pid));
    }
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "it is silent: {}", outcome.stderr);
}
