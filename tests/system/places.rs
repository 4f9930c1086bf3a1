//! Helper processes, and jobs with several GPUs.

use crate::{LIMIT, LONG, TWO_GPUS, assert_identical, native_orbit, remote_orbit, wait_for_step, with_time, words_of_mrcuda};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tests::scene::wait_for;
use tests::server::{children, helpers, signal};
use tests::{Job, Linkage, Programs, Scene, Server};

/// How soon an end must be noticed.
const SOON: Duration = Duration::from_secs(15);
/// A machine with several GPUs.
const FOUR: (&str, &str) = ("SOFTGPU_DEVICES", "4");

fn place(job: &Job, gpu: usize) -> Option<String> {
    Some(job.status()?["devices"][gpu]["place"].as_str()?.to_owned())
}

#[test]
fn a_chain_through_every_kind_of_place() {
    let scene = Scene::new("chain");
    let args = ["--steps", "16000", "--progress"];
    let native = native_orbit(&scene, &args);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &args, &[FOUR]);
    let way = [
        ("helper", "helper:0", "shm"),
        ("local", "local:0", "in-process"),
        // This process cannot show another GPU.
        ("local:1", "helper:1", "shm"),
        ("helper:2", "helper:2", "shm"),
        ("local", "local:0", "in-process"),
        ("helper:0", "helper:0", "shm"),
        (&server.unix_place(0), &server.unix_place(0), "shm"),
        ("helper", "helper:0", "shm"),
        (&server.place(0), &server.place(0), "tls"),
    ];
    for (number, (to, there, via)) in way.into_iter().enumerate() {
        wait_for_step(&mut job, 100 + 300 * number as u32);
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        assert_eq!((report.0["legs"][0]["to"].as_str(), report.transport()), (Some(there), via), "{}", report.0);
        assert_eq!(place(&job, 0).as_deref(), Some(there));
        let count = usize::from(there.starts_with("helper"));
        let left = wait_for(SOON, || (helpers(job.pid()).len() == count).then_some(()));
        assert!(left.is_some(), "after the move to {to} there are helpers {:?}", helpers(job.pid()));
    }
    let pid = job.pid();
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    // It ends when it notices that its job is gone.
    wait_for(LIMIT, || helpers(pid).is_empty().then_some(())).expect("the helper ends");
}

/// Copies of pinned memory in graphs, which the GPU makes by itself where the place shares that memory, from place to place.
#[test]
fn graphs_copy_pinned_memory_in_every_kind_of_place() {
    let scene = Scene::new("graphpinned");
    let program = Programs::get().path(Linkage::Static, "graphpinned");
    let args = ["--steps", "160", "--pace", "40000"];
    let native = Job::native(&scene, "native", &program, &["--steps", "160"]).wait(LIMIT);
    assert!(native.ok(), "{native:?}");
    let server = Server::start(&scene, "one");
    for first in ["helper", &server.unix_place(0)] {
        let mut job = Job::start(&scene, "moved", &["--server", first], &program, &args, &[]);
        job.wait_ready(LIMIT).unwrap();
        for to in [&server.place(0), "helper", "local", &server.unix_place(0), "local", "helper"]
            .into_iter()
            .skip(usize::from(first == "helper"))
        {
            std::thread::sleep(Duration::from_millis(250));
            let report = job.migrate(to).unwrap();
            assert!(report.ok(), "to {to}: {}", report.reason());
        }
        assert_identical(&job.wait(LIMIT), &native);
    }
}

/// An address without a prefix is reached in the best way; with one, or from another machine, in the way that was named.
#[test]
fn places_of_servers_on_this_machine_share_memory_unless_told_otherwise() {
    let scene = Scene::new("nearest");
    let native = native_orbit(&scene, &LONG);
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &["--allow-plain"], &[]));
    let [one, two] = &servers;
    let mut job = remote_orbit(&scene, "moved", &one.nearest(0), &LONG, &[]);
    let transport = |job: &Job| job.status().and_then(|s| Some(s["devices"][0]["transport"].as_str()?.to_owned()));
    assert_eq!((place(&job, 0), transport(&job)), (Some(one.nearest(0)), Some("shm".to_owned())));
    let way = [
        (two.nearest(0), "shm", "unix"),
        (one.place(0), "tls", "tls"),
        (one.nearest(0), "shm", "tls"),
        (two.plain(0), "tcp", "tcp"),
        (two.nearest(0), "shm", "tls"),
        ("local:0".to_owned(), "in-process", "unix"),
        (one.nearest(0), "shm", "unix"),
        // A server that is reached by a file may be in a container.
        (one.unix_place(0), "shm", "tls"),
    ];
    for (number, (to, via, data)) in way.into_iter().enumerate() {
        wait_for_step(&mut job, 50 + 100 * number as u32);
        let report = job.migrate(&to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        assert_eq!((report.transport(), report.0["legs"][0]["data"].as_str()), (via, Some(data)), "{}", report.0);
        assert_eq!((place(&job, 0), transport(&job).as_deref()), (Some(to), Some(via)));
    }
    assert_identical(&job.wait(LIMIT), &native);
    let far = remote_orbit(&scene, "far", &one.nearest(0), &LONG, &[("MRCUDA_FAULT_TCP_IS_FAR", "1")]);
    assert_eq!(transport(&far).as_deref(), Some("tls"));
    assert_identical(&far.wait(LIMIT), &native);
}

#[test]
fn a_process_in_which_addresses_differ_gets_a_helper() {
    let scene = Scene::new("differs");
    let args = ["--steps", "6000", "--progress"];
    let native = native_orbit(&scene, &args);
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &args, &[("SOFTGPU_DISPLACE", "orbit")]);
    for (number, (to, there)) in
        [("local", "helper:0"), (server.place(0).as_str(), server.place(0).as_str()), ("local", "helper:0")]
            .into_iter()
            .enumerate()
    {
        wait_for_step(&mut job, 100 + 300 * number as u32);
        let report = job.migrate(to).unwrap();
        assert!(report.ok(), "to {to}: {}", report.reason());
        let leg = &report.0["legs"][0];
        assert_eq!(leg["to"].as_str(), Some(there), "{}", report.0);
        let instead = leg["instead"].as_str().unwrap_or_default();
        assert_eq!(instead.contains("local:0"), to == "local", "{}", report.0);
        assert_eq!(place(&job, 0).as_deref(), Some(there));
    }
    let pid = job.pid();
    let outcome = job.wait(LIMIT);
    assert_identical(&outcome, &native);
    assert!(words_of_mrcuda(&outcome).is_empty(), "{}", outcome.stderr);
    // It ends when it notices that its job is gone.
    wait_for(LIMIT, || helpers(pid).is_empty().then_some(())).expect("the helper ends");
}

#[test]
fn a_move_to_where_it_is_already_is_refused() {
    let scene = Scene::new("same");
    let native = native_orbit(&scene, &LONG);
    let mut job = Job::orbit(&scene, "moved", &[], &LONG, &[]);
    job.wait_ready(LIMIT).unwrap();
    let report = job.migrate("local").unwrap();
    assert!(!report.ok() && report.code() == "already-there", "{}", report.0);
    // There is no such GPU, and the job stays.
    let report = job.migrate("helper:7").unwrap();
    assert!(report.code() == "place-unusable" && report.reason().contains("GPU 7"), "{}", report.0);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_helper_is_apart_from_the_program() {
    let scene = Scene::new("apart");
    let env = [("LD_PRELOAD", ""), FOUR];
    let mut job = Job::orbit(&scene, "job", &["--server", "helper:3"], &LONG, &env);
    job.wait_ready(LIMIT).unwrap();
    let found = helpers(job.pid());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(children(job.pid()).is_empty(), "a helper must not be the program's child");
    let proc = PathBuf::from(format!("/proc/{}", found[0]));
    let text = |name: &str| String::from_utf8_lossy(&std::fs::read(proc.join(name)).unwrap()).into_owned();
    let field = |name: &str| {
        let status = text("status");
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t").map(str::to_owned));
        line.unwrap_or_default()
    };
    let bits = |name: &str| u64::from_str_radix(&field(name), 16).unwrap();
    // Signals 32 and 33 are the C library's own.
    let others = 1 << (libc::SIGPIPE - 1) | 3 << 31;
    assert_eq!(bits("SigIgn") & !others, 0, "no signal is ignored for the program's sake");
    // It takes none while it starts a thread.
    assert!(wait_for(LIMIT, || (bits("SigBlk") == 0).then_some(())).is_some(), "its first thread takes signals");
    let environ = text("environ");
    let linker: Vec<&str> = environ.split('\0').filter(|v| v.starts_with("LD_")).collect();
    assert!(!linker.iter().any(|v| v.contains("mrcuda-lib") || v.starts_with("LD_PRELOAD")), "{linker:?}");
    assert!(!text("maps").contains("libmrcuda_shim"), "it must open the real driver");
    // Nothing of the job's is open there: its output, the channel, the life line, and what the driver opens itself.
    let open: Vec<PathBuf> =
        std::fs::read_dir(proc.join("fd")).unwrap().filter_map(|e| std::fs::read_link(e.ok()?.path()).ok()).collect();
    let jobs_own = |p: &&PathBuf| p.starts_with(&scene.path) && !p.ends_with("job.out") && !p.ends_with("job.err");
    assert_eq!(open.iter().find(jobs_own), None, "{open:?}");
    // An interrupt from the terminal is for the program.
    assert_eq!(text("stat").rsplit_once(") ").unwrap().1.split(' ').nth(3), Some(found[0].to_string().as_str()), "its session");
    job.signal(libc::SIGKILL);
    assert_eq!(job.wait(SOON).signal, Some(libc::SIGKILL));
    let gone = wait_for(SOON, || (!proc.exists()).then_some(()));
    assert!(gone.is_some(), "the helper outlives its job");
}

#[test]
fn a_killed_helper_is_a_lost_device() {
    let scene = Scene::new("felled");
    let server = Server::start(&scene, "one");
    let mut job = remote_orbit(&scene, "moved", &server.place(0), &LONG, &[]);
    let report = job.migrate("helper").unwrap();
    assert!(report.ok(), "{}", report.reason());
    let found = helpers(job.pid());
    wait_for_step(&mut job, 100);
    found.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
    let outcome = job.wait(SOON);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("CUDA_ERROR_DEVICE_UNAVAILABLE (46)"), "{}", outcome.stderr);
    assert_eq!(words_of_mrcuda(&outcome).len(), 1, "{}", outcome.stderr);
}

/// Starts the two-GPU program, so slow that it can be moved for a while.
fn two_gpus<'a>(scene: &'a Scene, places: &str, pace_us: u32) -> Job<'a> {
    let program = Programs::get().path(Linkage::Static, "twogpu");
    let pace = pace_us.to_string();
    let mut job = Job::start(scene, "two", &["--server", places], &program, &["--steps", STEPS, "--pace", &pace], &[FOUR]);
    job.wait_ready(LIMIT).unwrap_or_else(|why| panic!("{why}"));
    job
}

const STEPS: &str = "300";

fn native_two(scene: &Scene) -> tests::Outcome {
    let program = Programs::get().path(Linkage::Static, "twogpu");
    let native = Job::native(scene, "native", &program, &["--steps", STEPS]).wait(LIMIT);
    assert!(native.ok() && native.stdout.ends_with("RESULT ok\n"), "natively: {native:?}");
    native
}

#[test]
fn two_gpus_of_two_servers_move_alone_and_together() {
    let scene = Scene::new("two");
    let native = native_two(&scene);
    let servers = [Server::start(&scene, "one"), Server::start_with(&scene, "two", &[], &[FOUR])];
    let places = |job: &Job| Ok::<_, &str>([place(job, 0).ok_or("it has ended")?, place(job, 1).ok_or("it has ended")?]);
    with_time(TWO_GPUS, |pace| {
        let job = two_gpus(&scene, &format!("{},{}", servers[0].place(0), servers[1].unix_place(1)), pace);
        // One alone: the other stays.
        let report = job.migrate_with(&servers[1].place(2), &["--gpu", "0"])?;
        assert!(report.ok(), "{}", report.reason());
        assert_eq!(places(&job)?, [servers[1].place(2), servers[1].unix_place(1)]);
        // Both in one pause: the first goes into the process, the second to a helper.
        let report = job.migrate("local")?;
        assert!(report.ok(), "{}", report.reason());
        assert_eq!(places(&job)?, ["local:0", "helper:1"]);
        assert_eq!(report.0["legs"].as_array().map(Vec::len), Some(2), "{}", report.0);
        assert_eq!(report.transport(), "in-process,shm");
        // To a list of places, one of which has no such GPU: nothing changes.
        let report = job.migrate(&format!("{},{}", servers[0].place(0), servers[0].place(9)))?;
        assert!(report.code() == "target-refused" && report.reason().contains("there is no GPU 9"), "{}", report.0);
        assert_eq!(places(&job)?, ["local:0", "helper:1"]);
        let report = job.migrate(&format!("{},{}", servers[1].unix_place(0), servers[0].place(0)))?;
        assert!(report.ok(), "{}", report.reason());
        assert_eq!(places(&job)?, [servers[1].unix_place(0), servers[0].place(0)]);
        assert_identical(&job.wait(LIMIT), &native);
        Ok(())
    });
}

#[test]
fn a_job_starts_on_a_list_of_local_and_remote_gpus() {
    let scene = Scene::new("list");
    let native = native_two(&scene);
    let server = Server::start(&scene, "one");
    for (list, want) in [
        ("local,local".to_owned(), ["local:0".to_owned(), "helper:1".to_owned()]),
        (format!("helper:1,{}", server.place(0)), ["helper:1".to_owned(), server.place(0)]),
    ] {
        with_time(TWO_GPUS, |pace| {
            let job = two_gpus(&scene, &list, pace);
            let there = [place(&job, 0).ok_or("it has ended")?, place(&job, 1).ok_or("it has ended")?];
            assert_eq!(there, want);
            let report = job.migrate_with("helper", &["--gpu", "1"])?;
            assert!(report.ok(), "{}", report.reason());
            assert_identical(&job.wait(LIMIT), &native);
            Ok(())
        });
    }
}

#[test]
fn jobs_that_start_at_the_same_time_all_find_a_gpu() {
    let scene = Scene::new("auto-crowd");
    let server = Server::start(&scene, "one");
    let job = Job::orbit(&scene, "job", &["--server", &server.place(0)], &LONG, &[]);
    // A question waits for its worker, so that a server has as many at the same time as it answers.
    let worker = server.worker_of(job.pid());
    signal(worker, libc::SIGSTOP);
    let ask = || {
        let mut command = scene.mrcuda();
        command.args(["run", "--driver", "soft", "--server", "auto", "--pool", &server.address.to_string(), "--export"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Three times as many as one client may ask at a time.
    let asking: Vec<_> = (0..24).map(|_| ask()).collect();
    let outputs: Vec<_> = asking.into_iter().map(|asking| asking.wait_with_output().unwrap()).collect();
    signal(worker, libc::SIGCONT);
    assert!(server.errors().contains("too many clients ask this server"), "nobody had to ask again: {}", server.errors());
    let failed = outputs.iter().find(|output| !output.status.success());
    assert!(failed.is_none(), "{failed:?}");
}

#[test]
fn auto_takes_the_gpus_with_the_fewest_jobs() {
    let scene = Scene::new("auto");
    let (one, two) = (Server::start(&scene, "one"), Server::start(&scene, "two"));
    let _busy = remote_orbit(&scene, "busy", &one.place(0), &["--steps", "100000", "--pace", "3000", "--progress"], &[]);
    let pool = format!("{},{},127.0.0.1:1", one.address, two.address);
    let chosen = |server: &str| {
        let output = scene.mrcuda().args(["run", "--server", server, "--pool", &pool, "--export=null"]).output().unwrap();
        let words = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let variable = words[0].split('\0').find_map(|v| v.strip_prefix("MRCUDA_SERVERS=")).map(str::to_owned);
        (output.status.code(), variable, words[1].clone())
    };
    assert_eq!(chosen("auto").1, Some(two.nearest(0)));
    let (code, places, said) = chosen("auto:2");
    assert_eq!((code, places), (Some(0), Some(format!("{},{}", two.nearest(0), one.nearest(0)))), "{said}");
    assert!(said.contains(&format!("auto: {}", two.nearest(0))), "{said}");
    let (code, places, said) = chosen("auto:3");
    assert_eq!((code, places), (Some(1), None));
    assert!(
        said.contains("3 GPUs are wanted, and the servers of --pool have 2 that take jobs") && said.contains("127.0.0.1:1"),
        "{said}"
    );
    assert_eq!((chosen("auto:0").0, chosen("auto:x").0), (Some(2), Some(2)));
    // A job runs there.
    let job = Job::orbit(&scene, "chosen", &["--server", "auto", "--pool", &pool], &["--steps", "50"], &[]);
    let ended = job.wait(LIMIT);
    assert!(ended.ok(), "{}", ended.stderr);
}
