//! The sandbox of the process that greets clients. It is narrower than that of workers: no file, no new socket, no other process, and of the system
//! calls only those on a list.

use super::SandboxError;
use super::calls::{self, Rules};
use super::files;
use crate::rlimit::limit;
use cuda_api::wire_struct;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What all its threads may take together: far more than as many clients as greet at a time need, and too little to trouble a machine.
const MEMORY: u64 = 4 << 30;
/// Heaps of the C library, each of which takes addresses in advance: it would have more than there are addresses.
const HEAPS: i32 = 2;
/// Descriptors: two for each client that greets.
const DESCRIPTORS: u64 = 4096;
/// Processes and threads of a user who is there for this: four times as many as all clients that greet at a time need.
const THREADS: u64 = 4096;
/// How packets are sent.
const SENDING: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Calls that are allowed: on memory and threads of its own, on descriptors that it has, and on clocks.
const ALLOWED: &[libc::c_long] = &[
    // Descriptors that it has. The daemon has opened all of them.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_fstat,
    // Memory, but see below.
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
        /// It is not a process of the server's user.
        pub(crate) own_user: bool,
    }
}

impl GreeterConfinement {
    /// Confines this process, which has one thread, for ever. Its channel to the daemon, the only descriptor by which it can receive others,
    /// becomes the last one that it can have: a connection that it receives gets a lower number as long as there is one, so it cannot take the
    /// channel's place.
    pub(crate) fn enter(&self, channel: &mut OwnedFd) -> Result<(), SandboxError> {
        // SAFETY: plain numbers.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
        let threads = self.own_user.then_some((libc::RLIMIT_NPROC, THREADS));
        for (what, most) in [
            (libc::RLIMIT_AS, MEMORY),
            (libc::RLIMIT_NOFILE, DESCRIPTORS),
            (libc::RLIMIT_FSIZE, 0),
            (libc::RLIMIT_MSGQUEUE, 0),
            (libc::RLIMIT_MEMLOCK, 0),
        ]
        .into_iter()
        .chain(threads)
        {
            limit(what, most).map_err(SandboxError::Limits)?;
        }
        *channel = last_descriptor(channel).map_err(SandboxError::Limits)?;
        if self.landlock {
            files::restrict_to_nothing()?;
        }
        if self.seccomp {
            // The C library then starts threads by another call, whose flags a filter can see.
            calls::refuse(Rules::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
            calls::allow_only(allowed_calls(channel.as_raw_fd())?, libc::EPERM)?;
        }
        Ok(())
    }
}

/// The same file by the last number that a descriptor can have.
fn last_descriptor(of: &OwnedFd) -> io::Result<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable; the descriptor that the second call returns has no other owner.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        let last = libc::c_int::try_from(limit.rlim_cur.saturating_sub(1)).unwrap_or(libc::c_int::MAX);
        match libc::fcntl(of.as_raw_fd(), libc::F_DUPFD_CLOEXEC, last) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The calls that are allowed: those without rules in any case, others if a rule applies.
fn allowed_calls(channel: RawFd) -> Result<Rules, SandboxError> {
    let is = |argument, operation, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value);
    let is_whole = |argument, value| SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value);
    let mut rules: Rules = ALLOWED.iter().chain(ALLOWED_OF_X86).map(|call| (*call, Vec::new())).collect();
    let thread = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::MaskedEq(thread), thread)?])?]);
    // No descriptor leaves it, and it receives those of the daemon only: a descriptor of a client's could be a socket of another kind.
    rules.insert(libc::SYS_recvmsg, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, channel as u64)?])?]);
    // To the other end of a connection, and to no address.
    let other_flags = u64::from(!SENDING as u32);
    let to_its_end = vec![is(3, SeccompCmpOp::MaskedEq(other_flags), 0)?, is_whole(4, 0)?];
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(to_its_end)?]);
    // Memory of its own, which its limit counts; the C library takes no other.
    let kind = (libc::MAP_TYPE | libc::MAP_GROWSDOWN) as u64;
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![is(3, SeccompCmpOp::MaskedEq(kind), libc::MAP_PRIVATE as u64)?])?]);
    // A panic that cannot be handled: the signal is to be the right one.
    let own = u64::from(std::process::id());
    rules.insert(
        libc::SYS_tgkill,
        vec![SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, own)?, is(2, SeccompCmpOp::Eq, libc::SIGABRT as u64)?])?],
    );
    // Names of threads.
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, libc::PR_SET_NAME as u64)?])?]);
    // Only of this process, and only what they are: the C library asks for the size of the first thread's stack.
    let limits = vec![is(0, SeccompCmpOp::Eq, 0)?, is_whole(2, 0)?];
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(limits)?]);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::receive_with_descriptors;
    use nix::sys::socket::MsgFlags;
    use std::ffi::CString;
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::{Command, Output};

    /// Descriptors that the process may have, from before it was confined.
    struct Sockets {
        /// Two ends of a connection; a descriptor has been sent to the second one.
        stream: (OwnedFd, OwnedFd),
        datagram: OwnedFd,
        /// Where datagrams are received.
        address: libc::sockaddr_un,
        address_length: libc::socklen_t,
        _receiver: UnixDatagram,
    }

    impl Sockets {
        fn new() -> Sockets {
            let (a, b) = UnixStream::pair().unwrap();
            let stream = (OwnedFd::from(a), OwnedFd::from(b));
            assert_eq!(pass_on(&stream.0), 0);
            let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("mrcuda-attempt-{}", std::process::id()));
            let receiver = UnixDatagram::bind_addr(&name.unwrap()).unwrap();
            let mut address = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
            let mut address_length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            // SAFETY: `address` has room for that many bytes.
            let got = unsafe { libc::getsockname(receiver.as_raw_fd(), (&raw mut address).cast(), &raw mut address_length) };
            assert_eq!(got, 0);
            let datagram = UnixDatagram::unbound().unwrap().into();
            Sockets { stream, datagram, address, address_length, _receiver: receiver }
        }
    }

    /// Sends a descriptor to the other end of a socket: 0, or the error's number.
    fn pass_on(to: &OwnedFd) -> i32 {
        let sent = crate::packet::send(to, &[0], &[to.as_fd()], MsgFlags::empty());
        sent.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |()| 0)
    }

    /// What whoever has taken the process over may try, with what the kernel says: 0, or the error's number.
    fn attempts(sockets: &Sockets) -> Vec<(&'static str, i32)> {
        let errno = |r: i64| if r >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(-1) };
        let path = |text: &str| CString::new(text).unwrap();
        let (own, token, mine) = (path("/proc/self/mem"), path("/etc/passwd"), path("/tmp/mrcuda-greeter-attempt"));
        let socket = |family: i32, kind: i32| {
            // SAFETY: plain numbers.
            errno(i64::from(unsafe { libc::socket(family, kind, 0) }))
        };
        let mut pair = [0; 2];
        let (a, b, datagram) = (sockets.stream.0.as_raw_fd(), &sockets.stream.1, sockets.datagram.as_raw_fd());
        let (address, n) = ((&raw const sockets.address).cast::<libc::sockaddr>(), sockets.address_length);
        let mut byte = [0];
        let received = receive_with_descriptors(b.as_fd(), &mut byte, MsgFlags::MSG_DONTWAIT);
        let received =
            received.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |(_, _, fds)| if fds.len() == 1 { 0 } else { -1 });
        let map = |flags, size: usize| {
            // SAFETY: memory that nobody has yet; it stays until the process ends.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags | libc::MAP_ANONYMOUS, -1, 0) };
            errno(if at == libc::MAP_FAILED { -1 } else { 0 })
        };
        let (own_pid, tgkill) = (std::process::id(), libc::SYS_tgkill);
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
                ("pass a descriptor on", pass_on(&sockets.stream.0)),
                ("receive a descriptor", received),
                ("send to an address", errno(libc::sendto(datagram, c"x".as_ptr().cast(), 1, 0, address, n) as i64)),
                ("send out of band", errno(libc::sendto(a, c"x".as_ptr().cast(), 1, libc::MSG_OOB, std::ptr::null(), 0) as i64)),
                ("writev", errno(libc::writev(a, std::ptr::null(), 0) as i64)),
                ("memory that others could have", map(libc::MAP_SHARED, 4096)),
                ("memory that grows down", map(libc::MAP_PRIVATE | libc::MAP_GROWSDOWN, 4096)),
                ("another's signal", errno(libc::syscall(tgkill, own_pid, own_pid, libc::SIGCONT))),
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

    /// Takes more addresses than its limit, by the way that is allowed: 0, or the error's number.
    fn much_memory() -> i32 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let size = MEMORY as usize + (1 << 30);
        // SAFETY: memory that nobody has yet, and has no more.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return io::Error::last_os_error().raw_os_error().unwrap_or(-1);
            }
            libc::munmap(at, size);
        }
        0
    }

    /// Creates threads until there are no more; returns how many.
    fn threads() -> u64 {
        let sleep = || std::thread::sleep(std::time::Duration::from_secs(600));
        let start = |_: &u64| std::thread::Builder::new().stack_size(16 << 10).spawn(sleep).is_ok();
        (0..2 * THREADS).take_while(start).count() as u64
    }

    /// Not a test by itself: the one below starts it.
    #[test]
    fn attempts_process() {
        let Ok(mode) = std::env::var("MRCUDA_TEST_GREETER_SANDBOX") else { return };
        let own_user = mode == "threads";
        if own_user {
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::setresuid(4_000_001, 4_000_001, 4_000_001) }, 0);
        }
        let seccomp = mode == "seccomp" || mode == "abort";
        let confinement = GreeterConfinement { landlock: mode == "landlock", seccomp, own_user };
        let sockets = Sockets::new();
        let (mut channel, other_end) = crate::packet::pair().unwrap();
        crate::packet::send(&other_end, b"client", &[other_end.as_fd()], MsgFlags::empty()).unwrap();
        assert_eq!(much_memory(), 0, "without a limit there is so much");
        confinement.enter(&mut channel).unwrap();
        assert_eq!(much_memory(), libc::ENOMEM);
        if mode == "abort" {
            std::process::abort();
        }
        if own_user {
            println!("threads: {}", threads());
            std::process::exit(0);
        }
        // The channel has the last number, and what it receives a lower one.
        let (_, received) = crate::packet::receive(&channel, 1).unwrap().unwrap();
        assert!(received[0].as_raw_fd() < 100 && channel.as_raw_fd() > 1000, "{received:?} {channel:?}");
        crate::packet::send(&channel, b"answer", &[], MsgFlags::empty()).unwrap();
        assert_eq!(crate::packet::receive_plain(&other_end).unwrap().unwrap(), b"answer");
        let what: Vec<String> = attempts(&sockets).into_iter().map(|(name, errno)| format!("{name}={errno}")).collect();
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

    /// Runs the process above.
    fn attempt(mode: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sandbox::greeter::tests::attempts_process", "--nocapture", "--test-threads=1"]);
        command.env("MRCUDA_TEST_GREETER_SANDBOX", mode).output().unwrap()
    }

    /// What it prints behind these words.
    fn said(mode: &str, words: &str) -> String {
        let output = attempt(mode);
        let all = String::from_utf8_lossy(&output.stdout);
        let text = all.lines().find_map(|line| Some(line.split_once(words)?.1.to_owned()));
        text.unwrap_or_else(|| panic!("{all}{}", String::from_utf8_lossy(&output.stderr)))
    }

    fn tried(mode: &str) -> Vec<(String, i32)> {
        let list = said(mode, "tried: ");
        list.split(';')
            .map(|one| one.split_once('=').map(|(name, errno)| (name.into(), errno.parse().unwrap())).unwrap())
            .collect()
    }

    #[test]
    fn whoever_takes_the_process_over_reaches_nothing_with_system_calls() {
        let without = tried("none");
        let possible = |name: &str| without.iter().any(|(one, errno)| one == name && *errno == 0);
        let all = [
            "read",
            "create",
            "stat",
            "unlink",
            "tcp",
            "unix",
            "pair",
            "fork",
            "signal",
            "limits",
            "dumpable",
            "pass a descriptor on",
            "receive a descriptor",
            "send to an address",
            "writev",
            "memory that others could have",
            "memory that grows down",
            "another's signal",
        ];
        for name in all {
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

    #[test]
    fn a_user_of_its_own_has_so_many_threads_and_no_more() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("only root can start processes of another user: this was not tested");
        }
        let n: u64 = said("threads", "threads: ").parse().unwrap();
        assert!((1..THREADS).contains(&n), "{n}");
    }

    #[test]
    fn its_end_by_an_error_is_seen_as_what_it_is() {
        use std::os::unix::process::ExitStatusExt;
        if super::super::calls::are_filtered() {
            let output = attempt("abort");
            assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
        }
    }
}
