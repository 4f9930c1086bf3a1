//! The job's door: a socket on which `mrcuda ps`, `mrcuda migrate` and schedulers knock, and the signal.
//!
//! `$XDG_RUNTIME_DIR/mrcuda/PID` (or `/tmp/mrcuda-UID/PID`), folder 0700, JSON lines, one answer for each request; the peer must
//! be the same user. The protocol's table is in docs/formats.md.

use crate::job::{self, Job};
use crate::log::{self, lock};
use crate::{config, mover};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Version of the protocol.
const VERSION: u64 = 1;
/// The longest request that is read.
const LONGEST_REQUEST: u64 = 64 << 10;

static SOCKET: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The folder of this user's jobs.
pub(crate) fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("mrcuda"),
        _ => PathBuf::from(format!("/tmp/mrcuda-{}", nix::unistd::Uid::effective())),
    }
}

/// Makes the folder; one that another user could have prepared is refused.
pub(crate) fn make_folder() -> io::Result<PathBuf> {
    let path = folder();
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&path)?;
    if !meta.is_dir() || meta.uid() != nix::unistd::Uid::effective().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} is not a folder of this user with mode 0700", path.display())));
    }
    Ok(path)
}

/// Starts a thread of ours: it takes no signal that the program expects.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let mut old = SigSet::empty();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut old));
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old), None);
    if let Err(e) = started {
        log::tell(&format!("cannot start a thread ({e}); this job cannot be asked to move"));
    }
}

/// Opens the door. Whatever fails is told; the job goes on without it.
pub(crate) fn start() {
    if let Err(e) = listen() {
        log::tell(&format!("no control socket: {e}"));
    }
    if let Err(e) = watch_signal() {
        log::tell(&format!("cannot watch for the signal: {e}"));
    }
}

/// Takes the door away at the process's end, and journals that are not to be kept.
pub(crate) fn stop() {
    if let Some(path) = lock(&SOCKET).take() {
        let _ = std::fs::remove_file(path);
    }
    let Ok(job) = job::get() else { return };
    for d in &job.devices {
        let ledger = lock(&d.ledger);
        if !ledger.kept() {
            let _ = std::fs::remove_file(ledger.path());
        }
    }
}

fn listen() -> io::Result<()> {
    let path = make_folder()?.join(std::process::id().to_string());
    // A file of this name belonged to a process that is gone: process ids are used once at a time.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    *lock(&SOCKET) = Some(path);
    spawn("mrcuda-control", move || {
        for stream in listener.incoming() {
            match stream {
                Ok(s) => spawn("mrcuda-request", move || drop(serve(s))),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    });
    Ok(())
}

fn serve(stream: UnixStream) -> io::Result<()> {
    let peer = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
    let me = nix::unistd::Uid::effective().as_raw();
    if peer.uid() != me && peer.uid() != 0 {
        return Ok(());
    }
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = Vec::new();
        (&mut reader).take(LONGEST_REQUEST).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let answer = match job::get() {
            Ok(job) => answer(job, &line),
            Err(rc) => failed(&format!("the job has no GPU (error {rc})")),
        };
        writer.write_all(format!("{answer}\n").as_bytes())?;
    }
}

fn failed(why: &str) -> Value {
    json!({ "v": VERSION, "ok": false, "reason": why })
}

fn answer(job: &'static Job, line: &[u8]) -> Value {
    let request: Value = match serde_json::from_slice(line) {
        Ok(v) => v,
        Err(e) => return failed(&format!("the request is not JSON: {e}")),
    };
    if request["v"].as_u64() != Some(VERSION) {
        return failed(&format!("this job speaks version {VERSION} of the protocol"));
    }
    match request["op"].as_str() {
        Some("status") => status(job),
        Some("moves") => json!({ "v": VERSION, "ok": true, "moves": mover::history() }),
        Some("migrate") => {
            let Some(to) = request["to"].as_str() else { return failed("migrate needs \"to\"") };
            let gpu = match &request["gpu"] {
                Value::Null => None,
                n => match n.as_u64().and_then(|n| u32::try_from(n).ok()) {
                    Some(n) => Some(n),
                    None => return failed("\"gpu\" is a number or null"),
                },
            };
            mover::migrate(job, gpu, to, request["dry_run"].as_bool().unwrap_or(false))
        }
        _ => failed("\"op\" is status, migrate or moves"),
    }
}

fn status(job: &'static Job) -> Value {
    let program = std::fs::read_link("/proc/self/exe").map(|p| p.display().to_string()).unwrap_or_default();
    let devices: Vec<Value> = job
        .devices
        .iter()
        .map(|d| {
            let pass = crate::gate::enter();
            let place = d.place(&pass).spec().to_string();
            json!({
                "device": d.index,
                "place": place,
                "name": d.info.name,
                "used_bytes": d.memory().used(),
                "live": job.live(d.index),
                "records": job.records(d.index),
                "moves": mover::history().iter().filter(|m| m["gpu"] == json!(d.index) && m["ok"] == json!(true)).count(),
                "error": d.sticky(),
            })
        })
        .collect();
    json!({ "v": VERSION, "ok": true, "pid": std::process::id(), "program": program, "devices": devices })
}

/// Moves the job on the signal, if the program has not taken the signal for itself: `mrcuda run` leaves it ignored, and only
/// then a handler is installed, which does nothing but write to an eventfd.
fn watch_signal() -> io::Result<()> {
    let config = config::get().map_err(io::Error::other)?;
    // SAFETY: all-zero is a valid sigaction.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the disposition.
    if unsafe { libc::sigaction(config.signal, std::ptr::null(), &raw mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if now.sa_sigaction != libc::SIG_IGN {
        return Ok(());
    }
    let event: &'static EventFd = Box::leak(Box::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?));
    let fd = event.as_raw_fd();
    let write = move || {
        // SAFETY: the eventfd is never closed; write is async-signal-safe.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = nix::unistd::write(fd, &1u64.to_ne_bytes());
    };
    // SAFETY: the handler only writes eight bytes to a descriptor.
    unsafe { signal_hook::low_level::register(config.signal, write) }?;
    spawn("mrcuda-signal", move || {
        while event.read().is_ok() {
            let Ok(job) = job::get() else { continue };
            mover::migrate(job, None, &config.on_signal, false);
        }
    });
    Ok(())
}
