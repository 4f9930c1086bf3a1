//! Events: a mark in a stream, with a time.

use super::live::Live;
use super::mark::Mark;
use super::sched::{self, Work};
use super::stream::Target;
use super::table::Table;
use super::{context, lock, os};
use crate::result::Res;
use cuda_api::sys::{CUevent, CUresult};
use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Events by handle.
pub(crate) static EVENTS: LazyLock<Table<Event>> = LazyLock::new(|| Table::new(2));

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

/// An event of one context.
pub(crate) struct Event {
    /// Its handle.
    pub handle: usize,
    flags: u32,
    live: Arc<Live>,
    recorded: Mutex<Option<Arc<Mark>>>,
    /// State of an event shared by several processes.
    shared: Option<Arc<Shared>>,
}

/// The event of a handle.
pub(crate) fn resolve(handle: CUevent) -> Res<Arc<Event>> {
    EVENTS.get(handle as usize).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// Creates an event of the current context.
pub(crate) fn create(flags: u32) -> Res<Arc<Event>> {
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 || flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let live = context::current()?;
    let shared = if flags & INTERPROCESS != 0 { Some(Arc::new(Shared::make()?)) } else { None };
    Ok(EVENTS.insert_with(|handle| Event { handle, flags, live, recorded: Mutex::new(None), shared }))
}

/// Opens an event of another process in the current context.
pub(crate) fn open(handle: &Handle) -> Res<Arc<Event>> {
    let live = context::current()?;
    let shared = Some(Arc::new(Shared::open(handle)?));
    let flags = INTERPROCESS | DISABLE_TIMING;
    Ok(EVENTS.insert_with(|handle| Event { handle, flags, live, recorded: Mutex::new(None), shared }))
}

/// Interprocess handle of an event: mark, process and number in the name of the file, its device and inode.
pub(crate) type Handle = [u64; 8];
const MARK: u64 = u64::from_le_bytes(*b"softgpuE");
const PAGE: u64 = 4096;

/// Records of a shared event, in a file in shared memory that other processes find by its name: how many were submitted, and up to which all
/// are complete.
struct Shared {
    fd: OwnedFd,
    at: u64,
    name: Name,
    /// Whether this process has made the file, and removes it.
    is_own: bool,
}

/// Process and number in the name of a shared event's file.
type Name = [u64; 2];

fn path([pid, number]: Name) -> PathBuf {
    format!("/dev/shm/softgpu-event-{pid}-{number:016x}").into()
}

impl Shared {
    fn make() -> Res<Shared> {
        let failed = CUresult::CUDA_ERROR_OPERATING_SYSTEM;
        let name = [u64::from(std::process::id()), RandomState::new().hash_one(0)];
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path(name)).map_err(|_| failed)?;
        let sized = file.set_len(PAGE).map_err(|_| failed);
        sized.and_then(|()| Shared::map(file.into(), name, true)).inspect_err(|_| remove(name))
    }

    fn map(fd: OwnedFd, name: Name, is_own: bool) -> Res<Shared> {
        let at = os::reserve(0, PAGE, PAGE)?;
        let made = os::map_file(at, PAGE, &fd).and_then(|()| os::protect(at, PAGE, os::Protection::ReadWrite));
        made.inspect_err(|_| os::unmap(at, PAGE))?;
        Ok(Shared { fd, at, name, is_own })
    }

    fn handle(&self) -> Res<Handle> {
        let (_, (device, inode)) = os::file_identity(&self.fd)?;
        let [pid, number] = self.name;
        Ok([MARK, pid, number, device, inode, 0, 0, 0])
    }

    fn open([mark, pid, number, device, inode, ..]: &Handle) -> Res<Shared> {
        let bad = CUresult::CUDA_ERROR_MAP_FAILED;
        if *mark != MARK {
            return Err(bad);
        }
        let name = [*pid, *number];
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path(name)).map_err(|_| bad)?;
        let fd = OwnedFd::from(file);
        if os::file_identity(&fd)? == (PAGE, (*device, *inode)) { Shared::map(fd, name, false) } else { Err(bad) }
    }

    fn word(&self, n: u64) -> &AtomicU64 {
        // SAFETY: the mapping holds two aligned words and lives as long as `self`; every process uses them as atomics only.
        unsafe { AtomicU64::from_ptr((self.at + 8 * n) as *mut u64) }
    }

    fn submitted(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn done(&self) -> &AtomicU64 {
        self.word(1)
    }

    fn is_done(&self, record: u64) -> bool {
        self.done().load(Ordering::Acquire) >= record
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        os::unmap(self.at, PAGE);
        if self.is_own {
            remove(self.name);
        }
    }
}

fn remove(name: Name) {
    // Who has opened it keeps it.
    let _ = std::fs::remove_file(path(name));
}

impl Event {
    /// Whether it is an event of this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        Arc::ptr_eq(&self.live, live)
    }

    /// Records the current end of a stream of the same context.
    pub fn record(&self, target: &Target) -> Res {
        self.record_after(target, Vec::new())
    }

    /// As [`Event::record`], also after `marks`.
    pub fn record_after(&self, target: &Target, marks: Vec<Arc<Mark>>) -> Res {
        if !self.belongs_to(&target.live) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        // Locked over the submission, so that of two recordings the later one in the queue is remembered.
        let mut recorded = lock(&self.recorded);
        let work = match self.shared.clone() {
            None => Work::Nothing,
            Some(shared) => {
                let record = shared.submitted().fetch_add(1, Ordering::AcqRel) + 1;
                Work::Always(Box::new(move |_| {
                    shared.done().fetch_max(record, Ordering::AcqRel);
                    Ok(())
                }))
            }
        };
        *recorded = Some(target.submit(work, marks));
        Ok(())
    }

    /// Its interprocess handle.
    pub fn handle_for_others(&self) -> Res<Handle> {
        self.shared.as_ref().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.handle()
    }

    /// For a shared event: a condition that is true once its current record has completed.
    pub fn present(&self) -> Option<impl Fn() -> bool + Send + use<>> {
        let shared = self.shared.clone()?;
        let record = shared.submitted().load(Ordering::Acquire);
        Some(move || shared.is_done(record))
    }

    /// Number of its context.
    pub fn context(&self) -> u64 {
        self.live.number
    }

    /// Records the event from a graph.
    pub fn recorded_at(&self, mark: Arc<Mark>) {
        *lock(&self.recorded) = Some(mark);
    }

    /// The last record, if any.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        lock(&self.recorded).clone()
    }

    /// `NOT_READY` while the last record has not completed.
    pub fn query(&self) -> Res {
        self.live.check()?;
        if let Some(done) = self.present() {
            return if done() { self.live.check() } else { Err(CUresult::CUDA_ERROR_NOT_READY) };
        }
        match self.mark() {
            Some(mark) if !mark.done() => Err(CUresult::CUDA_ERROR_NOT_READY),
            _ => self.live.check(),
        }
    }

    /// Waits for the last record.
    pub fn synchronise(&self) -> Res {
        self.live.check()?;
        if let Some(done) = self.present() {
            while !done() {
                std::thread::sleep(Duration::from_micros(50));
            }
        } else if let Some(mark) = self.mark() {
            sched::wait(&[mark]);
        }
        self.live.settle()
    }

    /// Milliseconds from one event to another.
    pub fn elapsed(start: &Event, end: &Event) -> Res<f32> {
        if (start.flags | end.flags) & DISABLE_TIMING != 0 || !start.belongs_to(&end.live) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        start.live.check()?;
        let (Some(from), Some(to)) = (start.mark(), end.mark()) else {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        if !from.done() || !to.done() {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        Ok((to.nanoseconds() as f64 - from.nanoseconds() as f64) as f32 / 1e6)
    }
}
