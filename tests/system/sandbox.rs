//! Code that runs in a worker reaches nothing outside of it, and jobs work as without a sandbox.
//!
//! `programs/sandbox/driver.c` is a driver that tries what an attacker would, so its attempts are those of a real worker at the moment when it
//! has entered its sandbox. Without a sandbox the same attempts succeed, as far as this test's user may do such things.

use crate::{LIMIT, assert_identical, native_orbit, remote_orbit, wait_for_step};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tests::{Scene, Server};

/// What must be refused, with the kernel's mechanism that refuses it at least.
const REFUSED: &[(&str, Mechanism)] = &[
    ("token", Mechanism::Landlock),
    ("tokens", Mechanism::Landlock),
    ("certificate", Mechanism::Landlock),
    ("home", Mechanism::Landlock),
    ("list", Mechanism::Landlock),
    ("create", Mechanism::Landlock),
    ("chmod", Mechanism::Seccomp),
    ("chown", Mechanism::Seccomp),
    ("times", Mechanism::Seccomp),
    ("attribute", Mechanism::Seccomp),
    ("truncate", Mechanism::Seccomp),
    ("cut", Mechanism::Seccomp),
    ("file-handle", Mechanism::Seccomp),
    ("terminal", Mechanism::Landlock),
    ("shadow", Mechanism::Landlock),
    ("sysctl", Mechanism::Landlock),
    ("ptrace", Mechanism::Seccomp),
    ("process_vm_readv", Mechanism::Seccomp),
    ("signal", Mechanism::Seccomp),
    ("signal-server", Mechanism::Seccomp),
    ("thread-signal", Mechanism::Seccomp),
    ("queued-signal", Mechanism::Seccomp),
    ("process-descriptor", Mechanism::Seccomp),
    ("pages", Mechanism::Seccomp),
    ("descriptor-owner", Mechanism::Seccomp),
    ("descriptor-owner-ex", Mechanism::Seccomp),
    ("descriptor-signal", Mechanism::Seccomp),
    ("socket-owner", Mechanism::Seccomp),
    ("socket-group", Mechanism::Seccomp),
    ("prlimit", Mechanism::Seccomp),
    ("mem", Mechanism::Landlock),
    ("environ", Mechanism::Landlock),
    ("descriptors", Mechanism::Landlock),
    ("mem-server", Mechanism::Landlock),
    ("environ-server", Mechanism::Landlock),
    ("fork", Mechanism::Seccomp),
    ("execve", Mechanism::Seccomp),
    ("tcp", Mechanism::Seccomp),
    ("udp", Mechanism::Seccomp),
    ("tcp-listen", Mechanism::Seccomp),
    ("unix-datagrams", Mechanism::Seccomp),
    ("packets", Mechanism::Seccomp),
    ("unshare", Mechanism::Seccomp),
    ("mount", Mechanism::Seccomp),
    ("keyctl", Mechanism::Seccomp),
    ("bpf", Mechanism::Seccomp),
    ("perf", Mechanism::Seccomp),
    ("io_uring", Mechanism::Seccomp),
    ("shm", Mechanism::Seccomp),
    ("semaphores", Mechanism::Seccomp),
    ("messages", Mechanism::Seccomp),
    ("queue", Mechanism::Seccomp),
    ("namespace", Mechanism::Seccomp),
];

/// What any user's process may do without a sandbox.
const POSSIBLE: &[&str] = &[
    "token",
    "tokens",
    "certificate",
    "home",
    "list",
    "create",
    "chmod",
    "chown",
    "times",
    "truncate",
    "cut",
    "openat2",
    "terminal",
    "thread-signal",
    "process-descriptor",
    "descriptor-owner",
    "descriptor-owner-ex",
    "descriptor-signal",
    "socket-owner",
    "socket-group",
    "signal",
    "signal-server",
    "prlimit",
    "environ",
    "descriptors",
    "environ-server",
    "fork",
    "unix",
    "unix-abstract",
    "tcp",
    "udp",
    "tcp-listen",
    "unix-datagrams",
    "shm",
    "semaphores",
    "messages",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Landlock,
    Seccomp,
}

/// Whether this kernel has Landlock.
fn has_landlock() -> bool {
    // SAFETY: with this flag the call takes no attributes, and only returns a number.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, 1u32) > 0 }
}

fn is_root() -> bool {
    // SAFETY: takes nothing.
    unsafe { libc::geteuid() == 0 }
}

/// A process of the same user, and what belongs to the user, of which a worker is to see nothing.
struct Surroundings {
    driver: PathBuf,
    victim: Child,
    variables: Vec<(&'static str, String)>,
    _listeners: (UnixListener, UnixListener, TcpListener),
}

impl Surroundings {
    fn of(scene: &Scene) -> Surroundings {
        // A directory of its own: what lies beside a driver is readable.
        let directory = scene.path.join("driver");
        std::fs::create_dir_all(&directory).unwrap();
        let (source, driver) = (Path::new("programs/sandbox/driver.c"), directory.join("libcuda.so.1"));
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-pthread"]).arg(source).arg("-o").arg(&driver).status();
        assert!(built.is_ok_and(|status| status.success()), "cc cannot compile {}", source.display());
        let home = scene.path.join("home");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("secret"), "secret").unwrap();
        std::fs::write(scene.path.join("tokens"), "").unwrap();
        std::fs::set_permissions(scene.path.join("tokens"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let socket = scene.socket("victim");
        let without_file = format!("mrcuda-sandbox-test-{}-{}", std::process::id(), scene.path.file_name().unwrap().display());
        let listeners = (
            UnixListener::bind(&socket).unwrap(),
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&without_file).unwrap()).unwrap(),
            TcpListener::bind("127.0.0.1:0").unwrap(),
        );
        let victim = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let text = |path: &Path| path.display().to_string();
        let variables = vec![
            ("SOFTGPU_TRY_VICTIM", victim.id().to_string()),
            ("SOFTGPU_TRY_PORT", listeners.2.local_addr().unwrap().port().to_string()),
            ("SOFTGPU_TRY_TOKEN", text(&scene.token())),
            ("SOFTGPU_TRY_TOKENS", text(&scene.path.join("tokens"))),
            ("SOFTGPU_TRY_CERTIFICATE", text(&scene.path.join("server.pem"))),
            ("SOFTGPU_TRY_HOME", text(&home.join("secret"))),
            ("SOFTGPU_TRY_DIRECTORY", text(&home)),
            ("SOFTGPU_TRY_UNIX", text(&socket)),
            ("SOFTGPU_TRY_ABSTRACT", without_file),
        ];
        Surroundings { driver, victim, variables, _listeners: listeners }
    }

    /// Starts a server, which ends because no worker can use its GPU. Returns what it logged.
    fn log(&self, scene: &Scene, options: &[&str]) -> String {
        self.log_of(scene.mrcuda(), options)
    }

    /// The same on a kernel without Landlock, as far as the server can see.
    fn log_without_landlock(&self, scene: &Scene, options: &[&str]) -> String {
        let fails = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
        let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
        let filter =
            SeccompFilter::new(rules, SeccompAction::Allow, fails, TargetArch::try_from(std::env::consts::ARCH).unwrap())
                .unwrap();
        let filter: BpfProgram = filter.try_into().unwrap();
        let mut command = scene.mrcuda();
        // SAFETY: between fork and exec two system calls are made.
        unsafe { command.pre_exec(move || seccompiler::apply_filter(&filter).map_err(io::Error::other)) };
        self.log_of(command, options)
    }

    fn log_of(&self, mut command: Command, options: &[&str]) -> String {
        command.args(["serve", "--listen", "127.0.0.1:0", "--driver"]).arg(&self.driver).args(options);
        let output =
            command.envs(self.variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

/// The outcome of each attempt of a worker: the number of an error, or 0.
#[track_caller]
fn attempts(log: &str) -> BTreeMap<String, String> {
    let line = log.lines().find_map(|line| line.split_once(": attempts ")).unwrap_or_else(|| panic!("no attempts in {log}")).1;
    line.split(' ').filter_map(|word| word.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn is_refusal(error: &str) -> bool {
    [libc::EPERM, libc::EACCES].iter().any(|refusal| *error == refusal.to_string())
}

#[track_caller]
fn assert_confined(log: &str, landlock: bool) {
    let outcome = attempts(log);
    for (name, by) in REFUSED.iter().filter(|(_, by)| landlock || *by == Mechanism::Seccomp) {
        assert!(outcome.get(*name).is_some_and(|error| is_refusal(error)), "{name} ({by:?}): {outcome:?}");
    }
    // As if there were no such call, and no such socket.
    for (name, error) in [
        ("clone3", libc::ENOSYS),
        ("x32", libc::ENOSYS),
        ("openat2", libc::ENOSYS),
        ("unix", libc::ENOENT),
        ("unix-abstract", libc::ENOENT),
    ] {
        assert_eq!(outcome[name], error.to_string(), "{name}: {outcome:?}");
    }
    for (name, error) in outcome.iter().filter(|(name, _)| name.starts_with("may-")) {
        assert_eq!(error, "0", "{name}: {outcome:?}");
    }
}

#[test]
fn a_worker_reaches_nothing_outside() {
    let scene = Scene::new("sandbox");
    let around = Surroundings::of(&scene);
    let log = around.log(&scene, &[]);
    assert_confined(&log, has_landlock());
    assert_eq!(attempts(&log)["cache-disabled"], "1", "one job would write what another one executes");
    if has_landlock() {
        assert!(log.contains("workers: Landlock ") && log.contains(", seccomp; no user of their own"), "{log}");
    } else {
        eprintln!("this kernel has no Landlock: only the filter of system calls was tested");
    }
    // The attempts are real ones: without a sandbox they succeed.
    let log = around.log(&scene, &["--sandbox", "off"]);
    let outcome = attempts(&log);
    for name in POSSIBLE {
        assert_eq!(outcome[*name], "0", "{name}: {outcome:?}");
    }
    assert!(log.contains("workers: no sandbox (mrcuda serve --sandbox off); no user of their own"), "{log}");
}

#[test]
fn a_sandbox_that_is_required_is_there_or_no_server() {
    let scene = Scene::new("required");
    let around = Surroundings::of(&scene);
    if has_landlock() {
        assert_confined(&around.log(&scene, &["--sandbox", "required"]), true);
    }
    let log = around.log_without_landlock(&scene, &["--sandbox", "required"]);
    assert!(log.contains("the kernel does not offer Landlock, and --sandbox required needs it"), "{log}");
    assert!(!log.contains("attempts"), "{log}");
}

#[test]
fn without_landlock_the_rest_is_in_force() {
    let scene = Scene::new("no-landlock");
    let around = Surroundings::of(&scene);
    let log = around.log_without_landlock(&scene, &[]);
    assert_confined(&log, false);
    assert!(log.contains("workers: no Landlock (the kernel does not offer it), seccomp; no user of their own"), "{log}");
    // What is then weaker is said in docs/security.md.
    assert_eq!(attempts(&log)["token"], "0");
}

#[test]
fn a_call_by_the_interface_for_32_bits_ends_the_worker() {
    let scene = Scene::new("32-bits");
    let mut around = Surroundings::of(&scene);
    around.variables.push(("SOFTGPU_TRY_32_BITS", "1".to_owned()));
    if !around.log(&scene, &["--sandbox", "off"]).contains("attempts") {
        eprintln!("this kernel has no such interface: nothing was tested");
        return;
    }
    let log = around.log(&scene, &[]);
    assert!(!log.contains("attempts") && log.contains(&format!("signal: {}", libc::SIGSYS)), "{log}");
}

#[test]
fn compiled_code_is_kept_only_where_the_operator_says() {
    let scene = Scene::new("jit-cache");
    let around = Surroundings::of(&scene);
    let cache = scene.path.join("cache");
    let at = cache.display().to_string();
    let log = around.log(&scene, &["--jit-cache", &at]);
    assert_confined(&log, has_landlock());
    let outcome = attempts(&log);
    assert_eq!((outcome["cache"].as_str(), outcome["cache-disabled"].as_str()), ("0", "/nowhere"), "{outcome:?}");
    assert!(cache.join("left-by-a-worker").exists());
    assert!(log.contains(&format!("; all of them write to {at}")), "{log}");
    let log = around.log(&scene, &["--jit-cache", "relative"]);
    assert!(log.contains("relative cannot be used (--jit-cache): it is not an absolute path"), "{log}");
}

#[test]
fn workers_run_as_another_user() {
    let scene = Scene::new("worker-user");
    let around = Surroundings::of(&scene);
    if !is_root() {
        let log = around.log(&scene, &["--worker-user", "nobody"]);
        assert!(log.contains("workers cannot run as nobody (--worker-user): only a server that runs as root"), "{log}");
        return;
    }
    for (user, why) in [("root", "that is the server's own user"), ("no-such-user", "there is no such user on this machine")] {
        let log = around.log(&scene, &["--worker-user", user]);
        assert!(log.contains(&format!("workers cannot run as {user} (--worker-user): {why}")), "{log}");
    }
    // Without a sandbox, what another user's process may not do.
    std::fs::set_permissions(&scene.path, std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let log = around.log(&scene, &["--worker-user", "nobody", "--sandbox", "off"]);
    let outcome = attempts(&log);
    for name in ["token", "tokens", "certificate", "create", "signal", "signal-server", "environ", "environ-server", "mem"] {
        assert!(is_refusal(&outcome[name]), "{name}: {outcome:?}");
    }
    assert!(log.contains("; as user nobody") && !log.contains("serving as root"), "{log}");
    // Jobs, moves between workers, and parked memory.
    let native = native_orbit(&scene, &crate::LONG);
    let servers = ["one", "two"].map(|name| Server::start_with(&scene, name, &["--worker-user", "nobody"], &[]));
    let mut job = remote_orbit(&scene, "job", &servers[0].place(0), &crate::LONG, &[]);
    wait_for_step(&mut job, 20);
    let status = std::fs::read_to_string(format!("/proc/{}/status", servers[0].worker_of(job.pid()))).unwrap();
    // SAFETY: the name ends with a zero; what is returned is read at once.
    let nobody = unsafe { (*libc::getpwnam(c"nobody".as_ptr())).pw_uid }.to_string();
    assert!(status.lines().any(|l| l.starts_with("Uid:") && l.split_whitespace().skip(1).all(|uid| uid == nobody)), "{status}");
    assert!(status.lines().any(|l| l.starts_with("CapPrm:") && l.ends_with("0000000000000000")), "{status}");
    let memory = format!("{}/memory", servers[1].place(0).trim_end_matches("/0"));
    for to in [servers[1].place(0), servers[0].unix_place(0), servers[1].nearest(0), "helper".to_owned(), servers[0].place(0)] {
        let report = job.migrate(&to).unwrap();
        assert!(report.ok(), "{to}: {report:?}");
    }
    for (request, options) in [("suspend", &["--to", &memory][..]), ("resume", &[])] {
        let report = job.ask(request, options).unwrap();
        assert!(report.ok(), "{request}: {report:?}");
    }
    job.let_end();
    assert_identical(&job.wait(LIMIT), &native);
}

#[test]
fn workers_of_root_have_no_capabilities() {
    if !is_root() {
        return;
    }
    let scene = Scene::new("capabilities");
    let native = native_orbit(&scene, &["--steps", "200", "--progress"]);
    for (options, wanted) in [(&[][..], "0000000000004000"), (&["--sandbox", "off"], "")] {
        let server = Server::start_with(&scene, "one", options, &[]);
        let pid = server.workers().pop().expect("a worker");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let of = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned()).unwrap();
        assert!(if wanted.is_empty() { of("CapEff:") != "0000000000004000" } else { of("CapEff:") == wanted }, "{status}");
        assert_identical(
            &remote_orbit(&scene, "job", &server.place(0), &["--steps", "200", "--progress"], &[]).wait(LIMIT),
            &native,
        );
    }
}
