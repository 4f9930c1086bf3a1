//! The sandbox of the process that greets clients. It is narrower than that of workers: no file, no new socket, no other process, and of the system
//! calls only those on a list.

use super::SandboxError;
use super::calls::{self, Rules};
use super::files;
use cuda_api::wire_struct;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use std::io;

/// What all its threads may take together: far more than as many clients as greet at a time need, and too little to trouble a machine.
const MEMORY: u64 = 4 << 30;
/// Descriptors: two for each client that greets.
const DESCRIPTORS: u64 = 4096;

/// Calls that are allowed: on memory and threads of its own, on descriptors that it has, and on clocks.
const ALLOWED: &[libc::c_long] = &[
    // Descriptors that it has. The daemon has opened all of them.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_fstat,
    // Memory.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads, and no new process: see below. Another filter has this one fail as if the kernel did not know it.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    // Signals to itself: there are no others.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Clocks and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
];

/// As [`ALLOWED`], those that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OF_X86: &[libc::c_long] = &[libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OF_X86: &[libc::c_long] = &[];

wire_struct! {
    /// What the process that greets clients is confined to.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct GreeterConfinement {
        /// Landlock is to be used.
        pub(crate) landlock: bool,
        /// System calls are to be filtered.
        pub(crate) seccomp: bool,
    }
}

impl GreeterConfinement {
    /// Confines this process, which has one thread, for ever.
    pub(crate) fn enter(&self) -> Result<(), SandboxError> {
        // Of the same user others may be there, too: none of them can read its memory or trace it.
        // SAFETY: plain numbers.
        if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0 {
            return Err(SandboxError::Limits(io::Error::last_os_error()));
        }
        for (what, most) in [
            (libc::RLIMIT_DATA, MEMORY),
            (libc::RLIMIT_NOFILE, DESCRIPTORS),
            (libc::RLIMIT_FSIZE, 0),
            (libc::RLIMIT_MSGQUEUE, 0),
            (libc::RLIMIT_MEMLOCK, 0),
        ] {
            limit(what, most).map_err(SandboxError::Limits)?;
        }
        if self.landlock {
            files::restrict_to_nothing()?;
        }
        if self.seccomp {
            // The C library then starts threads by another call, whose flags a filter can see.
            calls::refuse(Rules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
            calls::allow_only(allowed_calls()?, libc::EPERM)?;
        }
        Ok(())
    }
}

/// The calls that are allowed: those without rules in any case, others if a rule applies.
fn allowed_calls() -> Result<Rules, SandboxError> {
    let is = |argument, operation, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value);
    let mut rules: Rules = ALLOWED.iter().chain(ALLOWED_OF_X86).map(|call| (*call, Vec::new())).collect();
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::MaskedEq(thread), thread)?])?]);
    // Names of threads.
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)?])?]);
    // Only of this process, and only what they are: the C library asks for the size of the first thread's stack.
    let limits = vec![is(0, SeccompCmpOp::Eq, 0)?, SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?];
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(limits)?]);
    Ok(rules)
}

/// Sets a limit of this process, unless it is lower already.
fn limit(what: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is writable, and then read.
    unsafe {
        if libc::getrlimit(what, &raw mut now) != 0 {
            return Err(io::Error::last_os_error());
        }
        now.rlim_max = now.rlim_max.min(most);
        now.rlim_cur = now.rlim_max;
        if libc::setrlimit(what, &raw const now) != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::process::Command;

    /// What whoever has taken the process over may try, with what the kernel says: 0, or the error's number.
    fn attempts() -> Vec<(&'static str, i32)> {
        let errno = |r: i64| if r >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(-1) };
        let path = |text: &str| CString::new(text).unwrap();
        let (own, token, mine) = (path("/proc/self/mem"), path("/etc/passwd"), path("/tmp/mrcuda-greeter-attempt"));
        let socket = |family: i32, kind: i32| {
            // SAFETY: plain numbers.
            errno(i64::from(unsafe { libc::socket(family, kind, 0) }))
        };
        let mut pair = [0; 2];
        // SAFETY: the texts end with a zero and are alive, `pair` has room, and all other arguments are numbers that the kernel checks.
        unsafe {
            vec![
                ("read", errno(i64::from(libc::open(token.as_ptr(), libc::O_RDONLY)))),
                ("own memory", errno(i64::from(libc::open(own.as_ptr(), libc::O_RDWR)))),
                ("create", errno(i64::from(libc::open(mine.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600)))),
                ("stat", errno(i64::from(libc::access(token.as_ptr(), libc::F_OK)))),
                ("unlink", errno(i64::from(libc::unlink(mine.as_ptr())))),
                ("tcp", socket(libc::AF_INET, libc::SOCK_STREAM)),
                ("udp", socket(libc::AF_INET6, libc::SOCK_DGRAM)),
                ("unix", socket(libc::AF_UNIX, libc::SOCK_STREAM)),
                ("netlink", socket(libc::AF_NETLINK, libc::SOCK_RAW)),
                ("pair", errno(i64::from(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr())))),
                ("fork", errno(fork())),
                ("exec", errno(libc::syscall(libc::SYS_execve, token.as_ptr(), 0, 0))),
                ("signal", errno(i64::from(libc::kill(libc::getpid(), 0)))),
                ("trace", errno(libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, libc::getpid(), 0, 0))),
                ("memory of another", errno(libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), 0, 0, 0, 0, 0))),
                ("descriptor of another", errno(libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0))),
                ("limits", errno(i64::from(libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 })))),
                ("dumpable", errno(i64::from(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0)))),
                ("bpf", errno(libc::syscall(libc::SYS_bpf, 0, 0, 0))),
                ("io_uring", errno(libc::syscall(libc::SYS_io_uring_setup, 1, 0))),
                ("namespace", errno(i64::from(libc::unshare(libc::CLONE_NEWUSER)))),
                ("shared memory", errno(libc::syscall(libc::SYS_shmget, 0x7fff_1234, 4096, 0))),
                ("user", errno(libc::syscall(libc::SYS_setuid, 0))),
            ]
        }
    }

    /// A new process, which ends at once.
    fn fork() -> i64 {
        // SAFETY: a copy of this process with this thread alone, which only ends.
        unsafe {
            let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if pid == 0 {
                libc::_exit(0);
            }
            pid
        }
    }

    /// Not a test by itself: the one below starts it.
    #[test]
    fn attempts_process() {
        let Ok(mode) = std::env::var("MRCUDA_TEST_GREETER_SANDBOX") else { return };
        let confinement = GreeterConfinement { landlock: mode == "landlock", seccomp: mode == "seccomp" };
        confinement.enter().unwrap();
        let what: Vec<String> = attempts().into_iter().map(|(name, errno)| format!("{name}={errno}")).collect();
        // What the process needs is still there: threads, their names, memory, clocks and random numbers.
        let thread = std::thread::Builder::new()
            .name("name".into())
            .spawn(|| vec![7u8; 32 << 20].iter().map(|b| u64::from(*b)).sum::<u64>());
        assert_eq!(thread.unwrap().join().unwrap(), 7 * (32 << 20));
        std::thread::sleep(std::time::Duration::from_millis(1));
        let mut random = [0; 32];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random).unwrap();
        assert_ne!(random, [0; 32]);
        println!("tried: {}", what.join(";"));
    }

    fn tried(mode: &str) -> Vec<(String, i32)> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sandbox::greeter::tests::attempts_process", "--nocapture", "--test-threads=1"]);
        let output = command.env("MRCUDA_TEST_GREETER_SANDBOX", mode).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let list = said.lines().find_map(|line| line.split_once("tried: ").map(|(_, list)| list.to_owned()));
        let list = list.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)));
        list.split(';')
            .map(|one| one.split_once('=').map(|(name, errno)| (name.into(), errno.parse().unwrap())).unwrap())
            .collect()
    }

    #[test]
    fn whoever_takes_the_process_over_reaches_nothing_with_system_calls() {
        let without = tried("none");
        let possible = |name: &str| without.iter().any(|(one, errno)| one == name && *errno == 0);
        for name in ["read", "create", "stat", "unlink", "tcp", "unix", "pair", "fork", "signal", "limits", "dumpable"] {
            assert!(possible(name), "without the sandbox it is possible: {name}: {without:?}");
        }
        if super::super::calls::are_filtered() {
            for (name, errno) in tried("seccomp") {
                assert_eq!(errno, libc::EPERM, "{name}");
            }
        }
        if files::version().is_some() {
            let tried = tried("landlock");
            let of = |name: &str| tried.iter().find(|(one, _)| one == name).map(|(_, errno)| *errno);
            for name in ["read", "own memory", "create"] {
                assert_eq!(of(name), Some(libc::EACCES), "{name}");
            }
        }
    }
}
