//! Starts a process that is invisible to the program.
//!
//! A child of the program's process would appear in its `wait` and raise SIGCHLD, so the new process must not be its
//! child: an intermediate process starts it and ends. The intermediate process raises no signal either, and the
//! program's `wait` does not find it. Neither process copies the program's memory: both borrow it, like `vfork`, until
//! the new program runs.

use crate::address_space;
use cuda_api::facts::Facts;
use cuda_api::wire::Wire;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Time limit for a query of the GPUs: with several of them a genuine driver needs several seconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an answer.
const LONGEST: u64 = 1 << 20;
/// Size of each stack, on which only a few system calls are made.
const STACK: usize = 64 << 10;

/// All data that is needed between the start of the first process and the exec of the second: nothing is allocated in
/// between.
struct Plan {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    stdin: RawFd,
    /// Whether its memory lies apart from that of programs.
    apart: bool,
    /// Top of the second process's stack.
    stack: *mut c_void,
    error: AtomicI32,
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The first process: starts the second and ends.
extern "C" fn first(plan: *mut c_void) -> c_int {
    // SAFETY: the plan lives in the starter's frame, and the starter waits for us.
    let p = unsafe { &*plan.cast::<Plan>() };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is ours; `second` only makes system calls.
    if unsafe { libc::clone(second, p.stack, flags, plan) } < 0 {
        p.error.store(errno(), Ordering::SeqCst);
    }
    0
}

/// The second process: becomes the program.
extern "C" fn second(plan: *mut c_void) -> c_int {
    // SAFETY: as in `first`.
    let p = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: system calls on descriptors of this process and on strings that the starter keeps. The session is its own: what a
    // terminal sends to the program is not for it. Signals stay blocked until the new program lets them in: the handlers here
    // are the program's.
    unsafe {
        libc::setsid();
        // Without the move, a descriptor that is already standard input would keep its close-on-exec flag.
        if p.apart {
            address_space::before_exec();
        }
        let placed = if p.stdin == 0 { libc::fcntl(0, libc::F_SETFD, 0) } else { libc::dup2(p.stdin, 0) };
        if placed >= 0 {
            libc::execve(p.program, p.arguments, p.environment);
        }
        p.error.store(errno(), Ordering::SeqCst);
        libc::_exit(127)
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|t| t.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Starts `arguments[0]` with this environment and standard input. It inherits every descriptor that is not
/// close-on-exec, has all signals blocked, and keeps ignored signals ignored; it must change at its start what it does
/// not want of that. `apart`: its memory lies [apart](address_space) from that of programs, as far as the system allows.
///
/// # Errors
/// The system's error, if a process cannot be started or the program cannot be run.
pub fn start(arguments: &[CString], environment: &[CString], stdin: BorrowedFd<'_>, apart: bool) -> io::Result<()> {
    let program = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
    let (argv, envp) = (pointers(arguments), pointers(environment));
    let mut stacks = vec![0u128; 2 * STACK / size_of::<u128>()];
    let base = stacks.as_mut_ptr().cast::<c_void>();
    // SAFETY: both are inside the allocation or at its end.
    let (middle, top) = unsafe { (base.byte_add(STACK), base.byte_add(2 * STACK)) };
    let plan = Plan {
        program: program.as_ptr(),
        arguments: argv.as_ptr(),
        environment: envp.as_ptr(),
        stdin: stdin.as_raw_fd(),
        apart,
        stack: middle,
        error: AtomicI32::new(0),
    };
    // No signal handler of the program may run in a process that borrows its memory.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: this thread is blocked until the first process has ended; that one uses the plan and the stacks only.
    // Without an exit signal nobody else hears of its end.
    let pid = unsafe { libc::clone(first, top, libc::CLONE_VM | libc::CLONE_VFORK, (&raw const plan).cast_mut().cast()) };
    let started = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    if pid > 0 {
        // SAFETY: plain system call; it only fails for a signal, and all are blocked.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    }
    before.thread_set_mask()?;
    started?;
    match plan.error.load(Ordering::SeqCst) {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// Releases what a [started](start) process has inherited from the job's process but must not keep: descriptors and
/// signal settings. Standard input stays; of output and error, those that `also` names are replaced. To be called at
/// the beginning of the process's main function.
pub fn shed(also: &[RawFd]) {
    // SAFETY: nothing of this process has opened a descriptor yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } != 0 {
        // For kernels without that call, one by one. Reading the list uses a descriptor itself, which is the last one.
        let list = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
        let open: Vec<i32> = list.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(|fd| *fd > 2).collect();
        for fd in open {
            // SAFETY: as above; the list itself is closed already.
            unsafe { libc::close(fd) };
        }
    }
    // Without it the output goes where it went before.
    if let Ok(nowhere) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        for fd in also {
            // SAFETY: nobody has the number as a descriptor of their own.
            unsafe { libc::dup2(nowhere.as_raw_fd(), *fd) };
        }
    }
    // A closed peer causes an error, not a signal: SIGPIPE is ignored already.
    for signal in (1..=libc::SIGRTMAX()).filter(|s| *s != libc::SIGPIPE) {
        // SAFETY: the default action runs no code of ours. Some numbers cannot be set; they are as they should be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // If the mask cannot be set, only the end of the connection ends the process.
    let _ = SigSet::empty().thread_set_mask();
}

/// Runs `program` (`mrcuda`) in a separate process to query the GPUs of all places of this process's environment: CUDA
/// is not started in this process, and `CUDA_VISIBLE_DEVICES` hides no GPU.
///
/// # Errors
/// The system's error, or an invalid answer.
pub fn facts(program: &Path) -> io::Result<Facts> {
    let arguments = [CString::new(program.as_os_str().as_bytes())?, c"facts".to_owned()];
    let visible = std::env::vars_os().filter(|(name, _)| name != "CUDA_VISIBLE_DEVICES");
    let environment: Vec<CString> =
        visible.filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()).collect();
    let (ours, theirs) = UnixStream::pair()?;
    start(&arguments, &environment, theirs.as_fd(), false)?;
    drop(theirs);
    ours.set_read_timeout(Some(QUERY_TIMEOUT))?;
    let mut answer = Vec::new();
    ours.take(LONGEST).read_to_end(&mut answer)?;
    Facts::get(&mut &answer[..]).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> io::Result<String> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let arguments = ["/bin/sh", "-c", script].map(|a| CString::new(a).unwrap());
        start(&arguments, &[c"WORD=heard".to_owned()], theirs.as_fd(), true)?;
        drop(theirs);
        let mut said = String::new();
        ours.read_to_string(&mut said)?;
        Ok(said)
    }

    #[test]
    fn it_runs_apart_and_is_no_child() {
        let said = run("echo $WORD $PPID $$ $(ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat) >&0").unwrap();
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(words[0], "heard", "{said}");
        assert_ne!(words[1], std::process::id().to_string(), "its parent is somebody else");
        assert_eq!(words[2], words[3], "a session of its own");
    }

    #[test]
    fn it_lies_apart_from_programs_as_far_as_the_system_allows() {
        let said = run("ulimit -Hs >&0; cat /proc/self/personality /proc/self/maps >&0").unwrap();
        let mut lines = said.lines();
        let hard = lines.next().unwrap();
        assert_eq!(lines.next(), Some("00000000"), "no setting of a debugger stays: {said}");
        // Those that the kernel puts beside the stack, or did.
        let kernels = |line: &str| line.contains("[stack]") || line.contains("[vvar") || line.contains("[vdso]");
        let high = lines.filter(|line| line.starts_with('7') && line.find('-') == Some(12) && !kernels(line)).count();
        // In units of 1 KiB.
        let allowed = hard == "unlimited" || hard.parse::<u64>().unwrap() >= 1 << 34;
        assert_eq!(high == 0, allowed, "all the rest lies lower where that is allowed: {said}");
    }

    #[test]
    fn what_cannot_be_run_is_an_error() {
        let (a, _b) = UnixStream::pair().unwrap();
        let e = start(&[c"/nonexistent/program".to_owned()], &[], a.as_fd(), false).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }
}
