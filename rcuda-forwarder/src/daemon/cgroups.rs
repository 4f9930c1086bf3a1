//! The limit of a worker's host memory, which the kernel enforces: each worker runs in a cgroup (version 2) of its own.
//!
//! They lie below the cgroup that was delegated to the server. A cgroup that has controllers for those below it may have no processes itself, so
//! the server moves into one of them, too.

use crate::sync::lock;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The cgroup of servers, below the delegated one.
const SERVERS: &str = "mrcuda-server";
/// How the name of a worker's begins; the process of its server and a number follow.
const WORKER: &str = "mrcuda-worker-";
/// Maximum number of threads and processes in a worker's cgroup: many times what a driver starts on a large machine.
const TASKS: u32 = 4096;
/// A process that has ended may still be in its cgroup for a moment.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSES: u32 = 250;

const CONTROLLERS: &str = "cgroup.controllers";
const SUBTREE: &str = "cgroup.subtree_control";
const PROCESSES: &str = "cgroup.procs";

/// Where the cgroups of workers are made.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// The delegated cgroup.
    base: PathBuf,
    /// Bytes of host memory of each worker.
    limit: u64,
    /// The number of tasks can be limited as well.
    limits_tasks: bool,
    /// The server's process.
    server: u32,
    next: AtomicU32,
    /// Those of workers that have ended, as far as they could not be removed yet.
    left: Mutex<Vec<PathBuf>>,
}

impl Cgroups {
    /// Prepares the cgroup of this process for those of workers with this limit. The error says what is missing, and what to do.
    pub(crate) fn of_this_process(limit: u64) -> Result<Cgroups, String> {
        let own = own_cgroup(
            &std::fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?,
            &std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("/proc/self/mountinfo: {e}"))?,
            |at| is_member(at, std::process::id()),
        );
        let own = own.ok_or("no cgroup of version 2 is mounted that this process is in")?;
        Cgroups::below(&own, limit, std::process::id())
    }

    /// The same for a server whose process is in the cgroup `own`.
    fn below(own: &Path, limit: u64, server: u32) -> Result<Cgroups, String> {
        // The server that takes over starts where the former one is.
        let (base, is_inside) = match own.parent() {
            Some(parent) if own.file_name().is_some_and(|name| name == SERVERS) => (parent, true),
            _ => (own, false),
        };
        let named = |what: &str, e: io::Error| format!("{}: {what}: {e}", base.display());
        let offered = std::fs::read_to_string(base.join(CONTROLLERS)).map_err(|e| named("its controllers are not known", e))?;
        let offers = |controller| offered.split_whitespace().any(|word| word == controller);
        if !offers("memory") {
            return Err(format!("{} has no controller for memory", base.display()));
        }
        let inside = base.join(SERVERS);
        if !is_inside {
            let entered = make(&inside).and_then(|()| write(&inside.join(PROCESSES), "0"));
            entered.map_err(|e| named("the server cannot move into a cgroup below it", e))?;
        }
        if let Err(e) = write(&base.join(SUBTREE), "+memory") {
            if !is_inside {
                // As before; what fails here is of no importance beside the error.
                let _ = write(&own.join(PROCESSES), "0");
                let _ = std::fs::remove_dir(&inside);
            }
            let others = if e.raw_os_error() == Some(libc::EBUSY) { " (it has other processes than the server)" } else { "" };
            return Err(named("memory of cgroups below it cannot be limited", e) + others);
        }
        let limits_tasks = offers("pids") && write(&base.join(SUBTREE), "+pids").is_ok();
        let cgroups =
            Cgroups { base: base.to_owned(), limit, limits_tasks, server, next: AtomicU32::new(0), left: Mutex::default() };
        cgroups.sweep(|of| of == server);
        Ok(cgroups)
    }

    /// Removes those of servers that have ended, and those of servers `also`. One with processes stays.
    fn sweep(&self, also: impl Fn(u32) -> bool) {
        // Without this list nothing counts as left over.
        let Ok(servers) = std::fs::read_to_string(self.base.join(SERVERS).join(PROCESSES)) else { return };
        let entries = std::fs::read_dir(&self.base).into_iter().flatten().filter_map(Result::ok);
        for entry in entries {
            let name = entry.file_name();
            let of = name.to_str().and_then(|name| name.strip_prefix(WORKER)?.split_once('-')?.0.parse::<u32>().ok());
            if of.is_some_and(|of| also(of) || !lists(&servers, of)) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }

    /// Makes the cgroup of a worker that is about to be started.
    pub(crate) fn make(self: &Arc<Self>) -> io::Result<WorkerCgroup> {
        let directory = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let directory = self.base.join(format!("{WORKER}{}-{number}", self.server));
            match std::fs::create_dir(&directory) {
                // A process of a server that had the same number, and has ended, is still in it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => break made.map(|()| directory)?,
            }
        };
        let made = WorkerCgroup { directory, of: self.clone() };
        self.limit(&made.directory)?;
        Ok(made)
    }

    fn limit(&self, directory: &Path) -> io::Result<()> {
        write(&directory.join("memory.max"), &self.limit.to_string())?;
        // Otherwise a worker would use as much as it wants, slowly. A kernel without swap has no such file.
        match write(&directory.join("memory.swap.max"), "0") {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        // All processes in it: without a sandbox a worker can start others.
        write(&directory.join("memory.oom.group"), "1")?;
        if self.limits_tasks {
            write(&directory.join("pids.max"), &TASKS.to_string())?;
        }
        Ok(())
    }

    /// What is in force, for the log.
    pub(crate) fn words(&self) -> String {
        let tasks = if self.limits_tasks { format!(", and {TASKS} threads") } else { String::new() };
        format!("workers: each has at most {} of host memory{tasks}, in cgroups below {}", size(self.limit), self.base.display())
    }
}

/// The cgroup of a worker. Removed on drop, with what is still in it.
#[derive(Debug)]
pub(crate) struct WorkerCgroup {
    directory: PathBuf,
    of: Arc<Cgroups>,
}

impl WorkerCgroup {
    /// A process that writes `0` to this file is in it from then on.
    pub(crate) fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.directory.join(PROCESSES))
    }

    /// Why its worker has ended, if the kernel has ended it for its memory.
    pub(crate) fn why_killed(&self) -> Option<String> {
        let events = std::fs::read_to_string(self.directory.join("memory.events")).ok()?;
        (count(&events, "oom_kill") > 0).then(|| {
            if count(&events, "oom") > 0 {
                format!(
                    "it needed more host memory than the {} of a worker (mrcuda serve --max-host-memory)",
                    size(self.of.limit)
                )
            } else {
                "the kernel ended it because the machine or the service had no memory left".to_owned()
            }
        })
    }
}

impl Drop for WorkerCgroup {
    fn drop(&mut self) {
        // Processes that the worker has started. Before Linux 5.14 there is no such file; then the directory stays until these have ended.
        let _ = write(&self.directory.join("cgroup.kill"), "1");
        for _ in 0..PAUSES {
            match std::fs::remove_dir(&self.directory) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(PAUSE),
                _ => break,
            }
        }
        // Those that could not be removed when their workers ended, because a process was still in them.
        let mut left = lock(&self.of.left);
        left.push(std::mem::take(&mut self.directory));
        left.retain(|directory| std::fs::remove_dir(directory).is_err() && directory.exists());
        drop(left);
        // Those of a server that has ended without a word.
        self.of.sweep(|_| false);
    }
}

/// The directory of the process' cgroup, given its `/proc/self/cgroup` and `/proc/self/mountinfo`, and whether it is in that of a directory.
fn own_cgroup(own: &str, mounts: &str, is_in: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let own = Path::new(own.lines().find_map(|line| line.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let directory = at.join(own.strip_prefix(&root).ok()?);
        is_in(&directory).then_some(directory)
    })
}

/// A path of `mountinfo`, in which blanks and backslashes are octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, letter)| text.replace(escape, letter)).into()
}

fn is_member(cgroup: &Path, process: u32) -> bool {
    std::fs::read_to_string(cgroup.join(PROCESSES)).is_ok_and(|all| lists(&all, process))
}

fn lists(processes: &str, process: u32) -> bool {
    processes.lines().any(|line| line.parse() == Ok(process))
}

/// How often an event has happened in a cgroup, by its `memory.events`. `oom_kill`: processes that the kernel has killed for memory, whoever
/// had none left; `oom`: allocations that would have exceeded the limit of the cgroup itself.
fn count(events: &str, event: &str) -> u64 {
    events.lines().find_map(|line| line.strip_prefix(event)?.strip_prefix(' ')?.trim().parse().ok()).unwrap_or(0)
}

fn make(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Writes to a file of the kernel, which takes each value in one piece.
fn write(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

/// Bytes as an option takes them.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with the files that a kernel shows of a cgroup, which here keep what was written.
    struct Base(PathBuf);

    impl Base {
        fn new(name: &str, controllers: &str) -> Base {
            let base = Base(std::env::temp_dir().join(format!("mrcuda-cgroups-{name}-{}", std::process::id())));
            let _ = std::fs::remove_dir_all(&base.0);
            std::fs::create_dir_all(base.0.join(SERVERS)).unwrap();
            base.has(CONTROLLERS, controllers);
            base.has(SUBTREE, "");
            base.has(PROCESSES, "");
            base.has(&format!("{SERVERS}/{PROCESSES}"), "");
            base
        }

        fn has(&self, file: &str, text: &str) {
            std::fs::write(self.0.join(file), text).unwrap();
        }

        fn read(&self, file: &str) -> String {
            std::fs::read_to_string(self.0.join(file)).unwrap()
        }

        fn has_directory(&self, name: &str) -> bool {
            self.0.join(name).is_dir()
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_cgroup_of_a_process_is_found_where_it_is_mounted() {
        let v1 = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let v2 = "42 32 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let part = "43 32 0:38 /a/b /mnt/with\\040blank rw - cgroup2 none rw\n";
        let find = |own, mounts: &[&str], is_in: &dyn Fn(&Path) -> bool| own_cgroup(own, &mounts.concat(), is_in);
        let any = |_: &Path| true;
        let own = "4:memory:/elsewhere\n0::/a/b/c\n";
        assert_eq!(find(own, &[v1, v2], &any), Some("/sys/fs/cgroup/a/b/c".into()));
        assert_eq!(find(own, &[part, v2], &any), Some("/mnt/with blank/c".into()));
        assert_eq!(find("0::/\n", &[v2], &any), Some("/sys/fs/cgroup/".into()));
        // A part of the tree that this process is not in.
        assert_eq!(find("0::/x\n", &[part, v2], &any), Some("/sys/fs/cgroup/x".into()));
        // Another namespace's tree, in which the path means something else.
        assert_eq!(find(own, &[v2, part], &|at| at.starts_with("/mnt")), Some("/mnt/with blank/c".into()));
        assert_eq!(find(own, &[v2, part], &|_| false), None);
        assert_eq!(find(own, &[v1], &any), None);
        assert_eq!(find("4:memory:/elsewhere\n", &[v1, v2], &any), None);
    }

    #[test]
    fn a_server_moves_below_its_cgroup_and_limits_what_else_is_there() {
        let base = Base::new("below", "cpu memory pids\n");
        let cgroups = Cgroups::below(&base.0, 3 << 30, 7).unwrap();
        assert_eq!(base.read(&format!("{SERVERS}/{PROCESSES}")), "0", "it moves itself");
        assert_eq!(base.read(PROCESSES), "");
        assert!(cgroups.limits_tasks && base.read(SUBTREE).contains("+pids"));
        let words = cgroups.words();
        assert!(words.contains("at most 3 GiB of host memory, and 4096 threads, in cgroups below /"), "{words}");
        // A server that takes over is there already.
        base.has(&format!("{SERVERS}/{PROCESSES}"), "7\n8\n");
        let successor = Cgroups::below(&base.0.join(SERVERS), 1 << 30, 8).unwrap();
        assert_eq!((successor.base.as_path(), base.read(&format!("{SERVERS}/{PROCESSES}"))), (&*base.0, "7\n8\n".to_owned()));
        // Without the second controller there is the limit of memory alone.
        base.has(CONTROLLERS, "memory");
        let cgroups = Cgroups::below(&base.0, 1_000_000, 7).unwrap();
        assert!(
            !cgroups.limits_tasks && cgroups.words().contains("at most 1000000 bytes of host memory, in"),
            "{}",
            cgroups.words()
        );
    }

    #[test]
    fn what_cannot_be_limited_is_said() {
        let base = Base::new("cannot", "cpu pids memoryx");
        let why = Cgroups::below(&base.0, 1 << 30, 7).unwrap_err();
        assert_eq!(why, format!("{} has no controller for memory", base.0.display()));
        assert_eq!(base.read(&format!("{SERVERS}/{PROCESSES}")), "", "it has not moved");
        base.has(CONTROLLERS, "memory");
        std::fs::remove_file(base.0.join(SUBTREE)).unwrap();
        let why = Cgroups::below(&base.0, 1 << 30, 7).unwrap_err();
        assert!(why.contains("memory of cgroups below it cannot be limited: "), "{why}");
        assert_eq!(base.read(PROCESSES), "0", "it has moved back");
        std::fs::remove_dir_all(base.0.join(SERVERS)).unwrap();
        std::fs::write(base.0.join(SERVERS), "").unwrap();
        let why = Cgroups::below(&base.0, 1 << 30, 7).unwrap_err();
        assert!(why.contains("the server cannot move into a cgroup below it: "), "{why}");
        let why = Cgroups::below(&base.0.join("nowhere"), 1 << 30, 7).unwrap_err();
        assert!(why.contains("its controllers are not known: "), "{why}");
    }

    #[test]
    fn all_limits_are_written_and_a_missing_one_is_an_error_unless_it_is_of_swap() {
        let base = Base::new("limits", "memory pids");
        let cgroups = Cgroups::below(&base.0, 5 << 20, 7).unwrap();
        let worker = base.0.join("some");
        std::fs::create_dir(&worker).unwrap();
        let files = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max"];
        files.iter().for_each(|file| base.has(&format!("some/{file}"), ""));
        cgroups.limit(&worker).unwrap();
        assert_eq!(files.map(|file| base.read(&format!("some/{file}"))), ["5242880", "0", "1", "4096"]);
        for file in files {
            std::fs::remove_file(worker.join(file)).unwrap();
            assert_eq!(cgroups.limit(&worker).is_ok(), file == "memory.swap.max", "{file}");
            base.has(&format!("some/{file}"), "");
        }
        // Here the kernel makes no files, so a worker's cgroup cannot be limited, and is not left behind.
        assert!(Arc::new(cgroups).make().is_err());
        assert!(!base.has_directory(&format!("{WORKER}7-0")));
    }

    #[test]
    fn cgroups_of_servers_that_have_ended_are_removed_and_no_others() {
        let base = Base::new("sweep", "memory");
        for name in ["7-0", "8-3", "9-1", "9-2", "9", "x-1"] {
            std::fs::create_dir(base.0.join(format!("{WORKER}{name}"))).unwrap();
        }
        // A worker of a server that has ended is still there, as far as a plain directory can show that.
        base.has(&format!("{WORKER}9-2/{PROCESSES}"), "12\n");
        std::fs::create_dir(base.0.join("other-9-1")).unwrap();
        base.has(&format!("{SERVERS}/{PROCESSES}"), "7\n8\n");
        let cgroups = Arc::new(Cgroups::below(&base.0.join(SERVERS), 1 << 30, 7).unwrap());
        let left = || ["7-0", "8-3", "9-1", "9-2", "9", "x-1"].map(|name| base.has_directory(&format!("{WORKER}{name}")));
        // 7 is this server's number now: the directory is from another process with that number.
        assert_eq!(left(), [false, true, false, true, true, true]);
        assert!(base.has_directory("other-9-1"));
        // Later its own are not left over, and 9's are, when its last process has ended.
        std::fs::create_dir(base.0.join(format!("{WORKER}7-0"))).unwrap();
        std::fs::remove_file(base.0.join(format!("{WORKER}9-2/{PROCESSES}"))).unwrap();
        std::fs::create_dir(base.0.join(format!("{WORKER}7-1"))).unwrap();
        drop(WorkerCgroup { directory: base.0.join(format!("{WORKER}7-1")), of: cgroups });
        assert_eq!(left(), [true, true, false, false, true, true]);
        assert!(!base.has_directory(&format!("{WORKER}7-1")));
    }

    #[test]
    fn a_name_that_is_taken_is_passed_over_and_one_that_stays_is_removed_later() {
        let base = Base::new("taken", "memory");
        let cgroups = Arc::new(Cgroups::below(&base.0, 1 << 30, 7).unwrap());
        // Of another process with that number; it cannot be removed, as one with processes cannot.
        for number in [0, 1] {
            std::fs::create_dir_all(base.0.join(format!("{WORKER}7-{number}/busy"))).unwrap();
        }
        // The kernel makes no files here, so that is as far as it comes.
        assert_eq!(cgroups.make().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(cgroups.next.load(Ordering::Relaxed), 3);
        assert!(lock(&cgroups.left).is_empty() && !base.has_directory(&format!("{WORKER}7-2")));
        let ended =
            |number: u32| drop(WorkerCgroup { directory: base.0.join(format!("{WORKER}7-{number}")), of: cgroups.clone() });
        ended(0);
        assert!(base.has_directory(&format!("{WORKER}7-0")));
        std::fs::remove_dir(base.0.join(format!("{WORKER}7-0/busy"))).unwrap();
        // Another one's end.
        std::fs::create_dir(base.0.join(format!("{WORKER}7-5"))).unwrap();
        ended(5);
        assert_eq!([0, 1, 5].map(|number| base.has_directory(&format!("{WORKER}7-{number}"))), [false, true, false]);
        assert!(lock(&cgroups.left).is_empty());
    }

    #[test]
    fn a_kill_for_memory_is_told_from_other_ends() {
        let events = |own: u64, kills: u64| format!("low 0\nhigh 0\nmax 17\noom {own}\noom_kill {kills}\noom_group_kill 1\n");
        let both = |events: &str| ["oom", "oom_kill"].map(|event| count(events, event));
        assert_eq!(
            [both(&events(0, 2)), both(&events(3, 0)), both(""), both("oom_kill x\noom")],
            [[0, 2], [3, 0], [0; 2], [0; 2]]
        );
        let base = Base::new("killed", "memory");
        let of = Arc::new(Cgroups::below(&base.0, 5 << 20, 7).unwrap());
        std::fs::create_dir(base.0.join("some")).unwrap();
        let worker = WorkerCgroup { directory: base.0.join("some"), of };
        assert_eq!(worker.why_killed(), None);
        base.has("some/memory.events", &events(3, 0));
        assert_eq!(worker.why_killed(), None);
        base.has("some/memory.events", &events(0, 1));
        assert_eq!(worker.why_killed().unwrap(), "the kernel ended it because the machine or the service had no memory left");
        base.has("some/memory.events", &events(1, 1));
        let why = worker.why_killed().unwrap();
        assert_eq!(why, "it needed more host memory than the 5 MiB of a worker (mrcuda serve --max-host-memory)");
    }
}
