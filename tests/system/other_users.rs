//! Several users of one machine: whom a server's Unix socket serves, and what root can do with the jobs of others.
//!
//! Only root can start processes of other users; otherwise these tests say that they have tested nothing.

use crate::{LIMIT, LONG, assert_identical, native_orbit, wait_for_step};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tests::scene::wait_for;
use tests::{Job, Scene, Server};

/// A number of no user of this machine.
const STRANGER: u32 = 4_000_002;

/// A user with directories of their own.
struct OtherUser {
    uid: u32,
    directory: PathBuf,
}

impl OtherUser {
    /// `None`, with a line on stderr, if processes of other users cannot be started, or cannot execute the programs under test.
    fn new(scene: &Scene, uid: u32) -> Option<OtherUser> {
        // Its files are found by their paths, and nothing else of it.
        for path in [&scene.path, scene.runtime()] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).unwrap();
        }
        let directory = scene.path.join(format!("user-{uid}"));
        std::fs::create_dir(&directory).unwrap();
        let user = OtherUser { uid, directory };
        if std::os::unix::fs::chown(&user.directory, Some(uid), Some(uid)).is_err() {
            eprintln!("only root can start processes of other users: nothing was tested");
            return None;
        }
        let runs = user.as_user(Command::new(scene.install.file("mrcuda"))).arg("--version").output();
        if let Err(e) = runs {
            eprintln!("{} cannot be executed by other users ({e}): nothing was tested", scene.install.file("mrcuda").display());
            return None;
        }
        Some(user)
    }

    fn as_user(&self, mut command: Command) -> Command {
        let own = &self.directory;
        command.env("HOME", own).env("XDG_RUNTIME_DIR", own).env("XDG_CONFIG_HOME", own).env("XDG_CACHE_HOME", own);
        command.env("XDG_STATE_HOME", own).env_remove("MRCUDA_TOKEN_FILE").current_dir("/").uid(self.uid).gid(self.uid);
        command
    }

    /// What `mrcuda` says to this user.
    fn ask(&self, scene: &Scene, args: &[&str]) -> Output {
        let mut command = self.as_user(scene.mrcuda());
        command.args(args).output().unwrap()
    }

    /// Starts `orbit` as a job of this user, and waits until it is at work.
    fn orbit<'a>(&self, scene: &'a Scene, name: &str, place: &str) -> Job<'a> {
        let mut command = self.as_user(scene.mrcuda());
        command.arg("run").args(scene.hardware.option()).args(["--server", place, "--name", name, "--"]);
        let end = scene.path.join(format!("{name}.end"));
        command.arg(scene.install.file("orbit")).args(LONG).env("ORBIT_END", &end);
        let mut job = Job::spawn(scene, name, command).may_end(end);
        wait_for_step(&mut job, 10);
        job
    }
}

/// A user of this name, whom every Linux system has, with a group of the same number.
fn number_of(name: &std::ffi::CStr) -> Option<u32> {
    // SAFETY: the name ends with a zero; what is returned is read at once, by the only thread of this process that asks for users.
    let user = unsafe { libc::getpwnam(name.as_ptr()).as_ref() };
    if user.is_none() {
        eprintln!("this machine has no user {}: nothing was tested", name.to_string_lossy());
    }
    user.map(|user| user.pw_uid)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn is_listed(output: &Output, pid: u32) -> bool {
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)));
    all.iter().any(|job| job["pid"] == pid)
}

/// Where the only GPU of a job is, by the word of root's list.
fn place_of(scene: &Scene, pid: u32) -> String {
    let output = scene.mrcuda().args(["ps", "--all", "--json"]).output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let job = all.iter().find(|job| job["pid"] == pid).unwrap_or_else(|| panic!("{pid} is not in {all:?}"));
    job["devices"][0]["place"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn root_lists_and_moves_the_jobs_of_other_users_and_these_only_their_own() {
    let scene = Scene::new("root");
    let Some(uid) = number_of(c"daemon") else { return };
    let (Some(user), Some(stranger)) = (OtherUser::new(&scene, uid), OtherUser::new(&scene, STRANGER)) else { return };
    let native = native_orbit(&scene, &LONG);
    let server = Server::start_with(&scene, "one", &["--unix-users", "any"], &[]);
    let mut job = user.orbit(&scene, "job", &server.unix_place(0));
    let pid = job.pid().to_string();
    // Root's XDG_RUNTIME_DIR is another one.
    let shown = scene.mrcuda().args(["ps", "--all"]).output().unwrap();
    let line = text(&shown).lines().find(|line| line.trim_start().starts_with(&format!("{pid} "))).unwrap_or_default().to_owned();
    assert!(line.contains(" daemon ") && line.contains(" job ") && line.contains("running"), "{}", text(&shown));
    assert!(!is_listed(&scene.mrcuda().args(["ps", "--json"]).output().unwrap(), job.pid()), "only with --all");
    // Its own user sees it, another one does not, nor can that one move it.
    assert!(is_listed(&user.ask(&scene, &["ps", "--json"]), job.pid()));
    assert!(!is_listed(&stranger.ask(&scene, &["ps", "--all", "--json"]), job.pid()));
    for command in [&["migrate", &pid, "--to", "helper"][..], &["plan", &pid, "--to", "helper"], &["moves", &pid]] {
        let refused = stranger.ask(&scene, command);
        assert!(!refused.status.success() && !text(&refused).is_empty(), "{command:?}: {}", text(&refused));
    }
    assert!(place_of(&scene, job.pid()).starts_with("unix:"), "it has not moved");
    for to in ["helper", "local", &server.unix_place(0)] {
        let moved = job.migrate(to).unwrap();
        assert!(moved.ok(), "{to}: {}", moved.reason());
    }
    assert_eq!(job.moves().unwrap().len(), 3);
    assert!(user.ask(&scene, &["migrate", &pid, "--to", "helper"]).status.success(), "its own user may as well");
    let helper = tests::server::helpers(job.pid()).pop().expect("it is in a helper");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{helper}")).unwrap()), uid);
    wait_for_step(&mut job, 20);
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn a_unix_socket_serves_the_users_whom_a_setting_names() {
    let scene = Scene::new("unix-users");
    let Some(uid) = number_of(c"daemon") else { return };
    let (Some(user), Some(stranger)) = (OtherUser::new(&scene, uid), OtherUser::new(&scene, STRANGER)) else { return };
    let native = native_orbit(&scene, &LONG);
    let accounting = scene.path.join("accounting");
    let two = Server::start_with(&scene, "two", &["--unix-users", "@daemon"], &[]);
    let targets = two.unix_place(0);
    let options = [
        "--unix-users",
        "daemon",
        "--accounting",
        accounting.to_str().unwrap(),
        "--allow-target",
        targets.trim_end_matches("/0"),
    ];
    let one = Server::start_with(&scene, "one", &options, &[]);
    let socket = one.unix_place(0);
    assert!(one.announcement.ends_with("(also for daemon)"), "{}", one.announcement);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&scene.socket("one")), 0o666);
    // Whoever is not named is refused, by both.
    for server in [&one, &two] {
        let refused = stranger.ask(&scene, &["gpus", server.unix_place(0).trim_end_matches("/0")]);
        let why = format!("uid {STRANGER} may not use this server (mrcuda serve --unix-users)");
        assert!(!refused.status.success() && text(&refused).contains(&why), "{}", text(&refused));
        assert!(wait_for(LIMIT, || server.errors().contains(&why).then_some(())).is_some(), "{}", server.errors());
    }
    let job = user.orbit(&scene, "job", &socket);
    let output = user.ask(&scene, &["gpus", socket.trim_end_matches("/0"), "--json"]);
    let state: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)));
    let served = &state[0]["gpus"][0]["jobs"][0];
    assert_eq!((&served["pid"], &served["user"], &served["uid"]), (&job.pid().into(), &"daemon".into(), &uid.into()), "{state}");
    // Its worker is the server's, in a sandbox, and not the user's.
    let worker = one.worker_of(job.pid());
    assert!(one.errors().contains(&format!("serves job {} of daemon at a Unix socket", job.pid())), "{}", one.errors());
    assert_ne!(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{worker}")).unwrap()), uid);
    // Its user moves it, also to a socket that serves the user's group.
    for to in [two.unix_place(0), "local".to_owned(), socket.clone()] {
        let moved = user.ask(&scene, &["migrate", &job.pid().to_string(), "--to", &to]);
        assert!(moved.status.success(), "{to}: {}", text(&moved));
    }
    assert_identical(&job.wait(LIMIT), &native);
    let lines = || std::fs::read_to_string(&accounting).unwrap_or_default();
    let written =
        wait_for(LIMIT, || Some(lines()).filter(|lines| lines.lines().count() == 2)).unwrap_or_else(|| panic!("{}", lines()));
    for line in written.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["user"], &line["user_by"], &line["uid"]), (&"daemon".into(), &"system".into(), &uid.into()), "{line}");
    }
}

/// What `/proc` says of a process in a line of its status.
fn status_of(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} is not in {status}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A variable of a process.
fn variable_of(pid: u32, name: &str) -> Option<String> {
    let all = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    all.split(|b| *b == 0).find_map(|line| Some(String::from_utf8_lossy(line).strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

#[test]
fn each_worker_runs_as_the_user_of_its_job_and_others_do_not_reach_it() {
    let scene = Scene::new("client-users");
    let uids = [number_of(c"daemon"), number_of(c"bin")];
    let [Some(daemon), Some(bin)] = uids else { return };
    let (Some(one), Some(other)) = (OtherUser::new(&scene, daemon), OtherUser::new(&scene, bin)) else { return };
    let native = native_orbit(&scene, &LONG);
    // Without a sandbox, so that what is refused is so because of the user.
    let options = ["--unix-users", "any", "--worker-user", "client", "--sandbox", "off", "--allow-target", "any"];
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &options, &[]));
    assert!(servers[0].errors().contains("; each as the user of its job"), "{}", servers[0].errors());
    let socket = servers[0].unix_place(0);
    let jobs = [one.orbit(&scene, "a", &socket), other.orbit(&scene, "b", &socket)];
    let workers = jobs.each_ref().map(|job| servers[0].worker_of(job.pid()));
    for (worker, uid, home) in [(workers[0], daemon, "/usr/sbin"), (workers[1], bin, "/bin")] {
        let four = vec![uid.to_string(); 4].join(" ");
        assert_eq!([status_of(worker, "Uid:"), status_of(worker, "Gid:")], [four.clone(), four], "worker {worker}");
        assert_eq!((status_of(worker, "Groups:"), status_of(worker, "CapPrm:")), (uid.to_string(), "0".repeat(16)));
        assert_eq!(variable_of(worker, "HOME").as_deref(), Some(home), "worker {worker}");
    }
    // To signal it, to read what it was started with, and to attach to it.
    let attempts = |user: &OtherUser, worker: u32| {
        let scripts = ["kill -0 PID", "cat /proc/PID/environ > /dev/null", "exec 3< /proc/PID/mem"];
        scripts.map(|script| {
            let mut command = user.as_user(Command::new("sh"));
            command.args(["-c", &script.replace("PID", &worker.to_string())]).output().unwrap().status.success()
        })
    };
    assert_eq!([attempts(&one, workers[0]), attempts(&other, workers[1])], [[true; 3]; 2], "the attempts are real ones");
    assert_eq!([attempts(&one, workers[1]), attempts(&other, workers[0])], [[false; 3]; 2]);
    // A move is to a worker of the same user.
    let [job, beside] = jobs;
    let moved = job.migrate(&servers[1].unix_place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    assert_eq!(status_of(servers[1].worker_of(job.pid()), "Uid:"), vec![daemon.to_string(); 4].join(" "));
    for job in [job, beside] {
        job.let_end();
        assert_identical(&job.wait(LIMIT), &native);
    }
    // Whose user is root, or not known, is refused in words.
    for (place, why) in [(socket, "root's jobs have no other user"), (servers[0].place(0), "by the server's own token")] {
        let outcome = Job::orbit(&scene, "root", &["--server", &place], &["--steps", "10"], &[]).wait(LIMIT);
        let refused = outcome.stderr.contains(why) && outcome.stderr.contains("(mrcuda serve --worker-user client)");
        assert!(!outcome.ok() && refused, "{outcome:?}");
    }
}

#[test]
fn jobs_without_a_user_of_their_own_run_as_the_one_for_these_and_caches_are_apart() {
    let scene = Scene::new("other-worker-user");
    let [Some(daemon), Some(bin)] = [number_of(c"daemon"), number_of(c"bin")] else { return };
    let Some(user) = OtherUser::new(&scene, daemon) else { return };
    let cache = scene.path.join("cache");
    let at = cache.display().to_string();
    let server =
        Server::start_with(&scene, "one", &["--unix-users", "any", "--worker-user", "client,bin", "--jit-cache", &at], &[]);
    let (mut roots, users) = (
        Job::orbit(&scene, "roots", &["--server", &server.place(0)], &LONG, &[]),
        user.orbit(&scene, "users", &server.unix_place(0)),
    );
    wait_for_step(&mut roots, 10);
    for (job, uid) in [(&roots, bin), (&users, daemon)] {
        let worker = server.worker_of(job.pid());
        assert_eq!(status_of(worker, "Uid:"), vec![uid.to_string(); 4].join(" "));
        let own = cache.join(uid.to_string());
        assert_eq!(variable_of(worker, "CUDA_CACHE_PATH"), Some(own.display().to_string()));
        assert_eq!(variable_of(worker, "CUDA_CACHE_DISABLE"), None);
        let about = std::fs::metadata(&own).unwrap();
        assert_eq!((std::os::unix::fs::MetadataExt::uid(&about), about.permissions().mode() & 0o777), (uid, 0o700));
    }
    for job in [roots, users] {
        job.let_end();
        assert!(job.wait(LIMIT).ok());
    }
}

#[test]
fn roots_job_whose_worker_is_another_users_goes_to_no_unix_socket() {
    let scene = Scene::new("roots-worker");
    // Also says whether other users' processes can be started here.
    if number_of(c"bin").and_then(|bin| OtherUser::new(&scene, bin)).is_none() {
        return;
    }
    let native = native_orbit(&scene, &LONG);
    let to = Server::start(&scene, "to");
    let options = ["--worker-user", "client,bin"];
    let [mut own, mut others] = [("own", &options[..0]), ("others", &options[..])].map(|(name, options)| {
        let server = Server::start_with(&scene, name, options, &[]);
        let job = Job::orbit(&scene, name, &["--server", &server.unix_place(0)], &LONG, &[]);
        (server, job)
    });
    own.1.wait_ready(LIMIT).unwrap();
    others.1.wait_ready(LIMIT).unwrap();
    // The server connects a worker of its own user as the job could connect itself; the other one could have the server do so by itself.
    let moved = own.1.migrate(&to.unix_place(0)).unwrap();
    assert!(moved.ok(), "{}", moved.reason());
    let refused = others.1.migrate(&to.unix_place(0)).unwrap();
    assert_eq!(refused.code(), "not-connected", "{}", refused.reason());
    assert!(refused.reason().contains("this server does not connect to unix:"), "{}", refused.reason());
    for (_server, job) in [own, others] {
        job.let_end();
        assert_identical(&job.wait(LIMIT), &native);
    }
}
