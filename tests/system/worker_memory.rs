//! The kernel limits the host memory of each worker (`mrcuda serve --max-host-memory`).
//!
//! That needs root, and a machine whose memory is limited by cgroups of version 2; elsewhere most of these tests say that they have tested nothing.
//! `cargo xtask machine tests` runs them in a virtual machine.

use crate::{LIMIT, assert_identical, native_orbit, process, remote_orbit, wait_for_step};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tests::scene::wait_for;
use tests::server::is_greeter;
use tests::{Job, Scene, Server};

/// Arguments that keep orbit at work for some seconds, and those that print the same at once: an emulated processor is slow.
const BUSY: [&str; 5] = ["--steps", "1000", "--progress", "--pace", "10000"];
const AT_ONCE: [&str; 3] = ["--steps", "1000", "--progress"];
/// Room for a worker with orbit, and none for what `full` is asked to fill.
const OPTIONS: [&str; 2] = ["--max-host-memory", "300M"];
const FILLS: [&str; 4] = ["alloc", "1", "12", "64"];

/// A cgroup that a server has for itself, as systemd delegates one.
struct Delegated {
    path: PathBuf,
    /// Starts mrcuda in it.
    program: PathBuf,
}

impl Delegated {
    /// `None`, with a line on stderr, if the machine cannot have one.
    fn new(scene: &Scene) -> Option<Delegated> {
        let root = Path::new("/sys/fs/cgroup");
        let offers = read(&root.join("cgroup.controllers")).split_whitespace().any(|controller| controller == "memory");
        if !offers || std::fs::write(root.join("cgroup.subtree_control"), "+memory +pids").is_err() {
            eprintln!("memory cannot be limited by cgroups of version 2 here: nothing was tested");
            return None;
        }
        let name = scene.path.file_name().unwrap().display();
        let path = root.join(format!("mrcuda-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let program = scene.path.join("in-cgroup");
        // As `DelegateSubgroup=` of systemd does: once memory is limited below it, no process can be in the cgroup itself.
        let text = "#!/bin/sh\ncd CGROUP && { [ ! -d mrcuda-server ] || cd mrcuda-server; } && echo 0 > cgroup.procs && exec MRCUDA \"$@\"\n";
        let text = text.replace("CGROUP", &path.display().to_string());
        std::fs::write(&program, text.replace("MRCUDA", &scene.install.file("mrcuda").display().to_string())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(Delegated { path, program })
    }

    fn serve(&self, scene: &Scene, name: &str) -> Server {
        Server::start_as(scene, name, &self.program, &OPTIONS, &[])
    }

    /// What a server says that does not serve.
    fn refusal(&self, scene: &Scene, options: &[&str]) -> String {
        refusal(scene, Command::new(&self.program), options)
    }

    /// The cgroups in it.
    fn children(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(&self.path).unwrap().filter_map(Result::ok).map(|entry| entry.path());
        all.filter(|path| path.is_dir()).collect()
    }

    /// Those of workers.
    fn workers(&self) -> Vec<PathBuf> {
        self.children()
            .into_iter()
            .filter(|path| path.file_name().unwrap().display().to_string().starts_with("mrcuda-worker-"))
            .collect()
    }

    /// The processes of servers, without those that greet clients for them.
    fn servers(&self) -> Vec<u32> {
        let all = read(&self.path.join("mrcuda-server/cgroup.procs"));
        all.lines().map(|line| line.parse().unwrap()).filter(|pid| !is_greeter(*pid)).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // What is left of a test that has failed.
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
        let removed = || self.children().into_iter().chain([self.path.clone()]).try_for_each(std::fs::remove_dir).ok();
        if wait_for(LIMIT, removed).is_none() {
            eprintln!("{} cannot be removed", self.path.display());
        }
    }
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

fn refusal(scene: &Scene, mut command: Command, options: &[&str]) -> String {
    scene.dress(&mut command);
    command.args(["serve", "--listen", "127.0.0.1:0", "--token-file"]).arg(scene.token()).args(scene.hardware.option());
    let output = command.args(options).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_limit_that_cannot_be_in_force_is_refused_in_words() {
    let scene = Scene::new("undelegated");
    let Some(cgroup) = Delegated::new(&scene) else {
        // This test's own processes are beside the server in any case.
        let said = refusal(&scene, scene.mrcuda(), &OPTIONS);
        assert!(said.contains("the host memory of workers cannot be limited (--max-host-memory): "), "{said}");
        assert!(said.contains("Delegate=memory pids"), "{said}");
        return;
    };
    let mut other = Other::in_cgroup(&cgroup.path).unwrap();
    let said = cgroup.refusal(&scene, &OPTIONS);
    assert!(said.contains("Device or resource busy") && said.contains("(it has other processes than the server)"), "{said}");
    assert!(said.contains("Delegate=memory pids") && cgroup.children().is_empty(), "{said}");
    other.end();
    drop(cgroup.serve(&scene, "alone"));
}

/// A process that is no server.
struct Other(Child);

impl Other {
    fn in_cgroup(path: &Path) -> io::Result<Other> {
        let other = Other(Command::new("sleep").arg("1000").spawn()?);
        std::fs::write(path.join("cgroup.procs"), other.0.id().to_string()).map(|()| other)
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn each_worker_has_a_limited_cgroup_that_ends_with_it() {
    let scene = Scene::new("limited");
    let Some(cgroup) = Delegated::new(&scene) else { return };
    let native = native_orbit(&scene, &AT_ONCE);
    let mut server = cgroup.serve(&scene, "one");
    assert_eq!((cgroup.servers(), read(&cgroup.path.join("cgroup.procs")).as_str()), (vec![server.pid()], ""));
    let log = read(&server.log);
    assert!(
        log.contains("workers: each has at most 300 MiB of host memory, and 4096 threads, in cgroups below /sys/fs"),
        "{log}"
    );
    let mut jobs = ["a", "b"].map(|name| remote_orbit(&scene, name, &server.place(0), &BUSY, &[]));
    jobs.iter_mut().for_each(|job| wait_for_step(job, 20));
    let of_jobs = jobs.each_ref().map(|job| {
        let worker = server.worker_of(job.pid());
        let found = cgroup.workers().into_iter().find(|path| read(&path.join("cgroup.procs")) == format!("{worker}\n"));
        found.unwrap_or_else(|| panic!("worker {worker} is alone in none of {:?}", cgroup.workers()))
    });
    assert_ne!(of_jobs[0], of_jobs[1]);
    for path in &of_jobs {
        let value = |file: &str| read(&path.join(file)).trim().to_owned();
        assert_eq!(["memory.max", "memory.oom.group", "pids.max"].map(value), ["314572800", "1", "4096"]);
        // A kernel may do without swap.
        assert!(["0", ""].contains(&&*value("memory.swap.max")), "{}", value("memory.swap.max"));
    }
    for job in jobs {
        job.let_end();
        assert_identical(&job.wait(LIMIT), &native);
    }
    let removed = wait_for(LIMIT, || of_jobs.iter().all(|path| !path.exists()).then_some(()));
    assert!(removed.is_some(), "{:?}", cgroup.workers());
    assert!(server.stop().is_some_and(|status| status.success()));
    assert_eq!(cgroup.children(), [cgroup.path.join("mrcuda-server")]);
}

#[test]
fn a_worker_that_needs_more_is_ended_alone_and_its_job_and_the_log_say_why() {
    let scene = Scene::new("needs-more");
    let Some(cgroup) = Delegated::new(&scene) else { return };
    let native = native_orbit(&scene, &AT_ONCE);
    let (server, program) = (cgroup.serve(&scene, "one"), process::build(&scene, "full"));
    let mut other = remote_orbit(&scene, "other", &server.place(0), &BUSY, &[]);
    wait_for_step(&mut other, 20);
    let why = "it needed more host memory than the 300 MiB of a worker (mrcuda serve --max-host-memory)";
    for (name, place) in [("tcp", server.place(0)), ("unix", server.unix_place(0)), ("near", server.nearest(0))] {
        let outcome = Job::start(&scene, name, &["--server", &place], &program, &FILLS, &[]).wait(LIMIT);
        assert!(!outcome.ok() && outcome.stderr.contains(&format!("its server says: signal: 9 (SIGKILL): {why}")), "{outcome:?}");
    }
    let log = read(&server.log);
    assert_eq!(log.lines().filter(|line| line.contains(why) && line.contains("(it served job ")).count(), 3, "{log}");
    other.let_end();
    assert_identical(&other.wait(LIMIT), &native);
    // The same program has room without the limit.
    let free = Server::start_with(&scene, "free", &[], &[]);
    let outcome = Job::start(&scene, "free", &["--server", &free.place(0)], &program, &FILLS, &[]).wait(LIMIT);
    assert!(outcome.ok(), "{outcome:?}");
}

#[test]
fn a_limit_in_which_no_worker_starts_is_named() {
    let scene = Scene::new("too-little");
    let Some(cgroup) = Delegated::new(&scene) else { return };
    let said = cgroup.refusal(&scene, &["--max-host-memory", "1M"]);
    assert!(said.contains("no worker can open a GPU: GPU 0: its worker was ended while it opened: it needed more"), "{said}");
    assert!(said.contains("than the 1 MiB of a worker (mrcuda serve --max-host-memory)"), "{said}");
    assert!(cgroup.workers().is_empty(), "{:?}", cgroup.workers());
}

#[test]
fn a_server_removes_what_a_dead_one_has_left_and_nothing_of_one_whose_jobs_go_on() {
    let scene = Scene::new("left-over");
    let Some(cgroup) = Delegated::new(&scene) else { return };
    let native = native_orbit(&scene, &AT_ONCE);
    let mut dead = cgroup.serve(&scene, "dead");
    dead.kill();
    let left = cgroup.workers();
    assert!(!left.is_empty(), "a killed server removes nothing");
    let mut server = cgroup.serve(&scene, "one");
    assert!(left.iter().all(|path| !path.exists()), "{:?}", cgroup.workers());
    let mut job = remote_orbit(&scene, "job", &server.place(0), &BUSY, &[]);
    wait_for_step(&mut job, 20);
    let worker = format!("{}\n", server.worker_of(job.pid()));
    let successor = server.successor_as(&scene, "two", "one", &cgroup.program, &OPTIONS);
    let has_worker = || cgroup.workers().iter().any(|path| read(&path.join("cgroup.procs")) == worker);
    assert!(has_worker() && cgroup.servers().len() == 2, "{:?} {:?}", cgroup.workers(), cgroup.servers());
    // A worker of the successor comes and goes, and so it looks for what is left over.
    let second = remote_orbit(&scene, "second", &successor.place(0), &["--steps", "200", "--progress"], &[]);
    assert!(second.wait(LIMIT).ok());
    assert!(has_worker() && job.runs());
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
    let ended = server.wait_ended(LIMIT);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", read(&server.log));
    let former = format!("mrcuda-worker-{}-", server.pid());
    let names = || cgroup.workers().into_iter().map(|path| path.file_name().unwrap().display().to_string());
    assert!(names().all(|name| !name.starts_with(&former)) && cgroup.servers().len() == 1, "{:?}", names().collect::<Vec<_>>());
}
