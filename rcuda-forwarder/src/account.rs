//! What the workers of one client use, in memory that they share with the daemon.
//!
//! Each worker has a slot, in which only it writes. The daemon reads it after the end of the worker, however that came about, and a worker
//! reads those of the others to keep the client's limit. A worker that was taken over can write what it likes: it deceives the client's
//! own limit and account only.

use executor::memory_file;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// Number of slots: as many workers can one client have at a time.
const SLOTS: usize = 1024;
const BYTES: usize = SLOTS * size_of::<Slot>();

/// What one worker uses and has used.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Slot {
    /// Bytes of GPU memory now, and at most so far.
    used: AtomicU64,
    peak: AtomicU64,
    /// The sum of used memory over time, in KiB × ms, until `at`.
    kib_ms: AtomicU64,
    /// When `used` changed last, in ms of the machine's monotonic clock.
    at: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// 1 if the job's state came here by a move, and has left by one.
    moved_in: AtomicU64,
    moved_out: AtomicU64,
}

/// What a worker has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Most bytes of GPU memory at a time.
    pub(crate) peak: u64,
    /// Memory over time, in KiB × ms.
    pub(crate) kib_ms: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) moved_in: bool,
    pub(crate) moved_out: bool,
}

/// The machine's monotonic clock, which is the same for all processes.
fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one `timespec`, to memory that is one.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64).saturating_mul(1000).saturating_add(now.tv_nsec as u64 / 1_000_000)
}

impl Slot {
    /// Memory over time until now.
    fn kib_ms(&self, now: u64) -> u64 {
        let since = now.saturating_sub(self.at.load(Ordering::Relaxed));
        let more = (self.used.load(Ordering::Relaxed) >> 10).saturating_mul(since);
        self.kib_ms.load(Ordering::Relaxed).saturating_add(more)
    }

    fn clear(&self) {
        let words =
            [&self.used, &self.peak, &self.kib_ms, &self.at, &self.bytes_in, &self.bytes_out, &self.moved_in, &self.moved_out];
        words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
    }
}

/// The slots, mapped.
#[derive(Debug)]
struct Page(*const Slot);

// SAFETY: a mapping of atomics that lives as long as the value.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn map(fd: BorrowedFd<'_>) -> io::Result<Page> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, prot, flags, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Page(at.cast())) }
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: the mapping has so many, which are atomics and valid whatever their bytes; the file cannot become smaller.
        unsafe { std::slice::from_raw_parts(self.0, SLOTS) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length.
        unsafe { libc::munmap(self.0.cast_mut().cast(), BYTES) };
    }
}

/// A client's workers, at the daemon.
#[derive(Debug)]
pub(crate) struct ClientAccount {
    page: Page,
    fd: OwnedFd,
    taken: Mutex<Vec<bool>>,
}

impl ClientAccount {
    pub(crate) fn create() -> io::Result<Arc<ClientAccount>> {
        let fd = memory_file::create(BYTES, c"mrcuda-account", memory_file::SIZE)?;
        Ok(Arc::new(ClientAccount { page: Page::map(fd.as_fd())?, fd, taken: Mutex::new(vec![false; SLOTS]) }))
    }

    /// Takes a slot for a worker; `None` if there are too many.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Entry> {
        let mut taken = lock(&self.taken);
        let slot = taken.iter().position(|t| !t)?;
        taken[slot] = true;
        Some(Entry { account: self.clone(), slot })
    }
}

/// A worker's slot, at the daemon.
#[derive(Debug)]
pub(crate) struct Entry {
    account: Arc<ClientAccount>,
    slot: usize,
}

impl Entry {
    /// The memory with the slots, for the worker.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.account.fd.as_fd()
    }

    /// The number of the slot.
    pub(crate) fn slot(&self) -> u32 {
        self.slot as u32
    }

    /// What the worker has used until now.
    pub(crate) fn used(&self) -> Used {
        let slot = &self.account.page.slots()[self.slot];
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Used {
            peak: word(&slot.peak),
            kib_ms: slot.kib_ms(now_ms()),
            bytes_in: word(&slot.bytes_in),
            bytes_out: word(&slot.bytes_out),
            moved_in: word(&slot.moved_in) != 0,
            moved_out: word(&slot.moved_out) != 0,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.account.page.slots()[self.slot].clear();
        lock(&self.account.taken)[self.slot] = false;
    }
}

/// A worker's slot, at the worker.
#[derive(Debug)]
pub(crate) struct Usage {
    page: Page,
    slot: usize,
    /// Bytes of GPU memory that the client may use in all.
    limit: u64,
    /// Held while the use of memory changes.
    changing: Mutex<()>,
}

impl Usage {
    /// Takes over the memory that the daemon has made.
    pub(crate) fn received(fd: BorrowedFd<'_>, slot: u32, limit: u64) -> io::Result<Usage> {
        if memory_file::fixed_size(fd) != Some(BYTES as u64) || slot as usize >= SLOTS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client's account is not what it should be"));
        }
        Ok(Usage { page: Page::map(fd)?, slot: slot as usize, limit, changing: Mutex::default() })
    }

    fn slot(&self) -> &Slot {
        &self.page.slots()[self.slot]
    }

    /// Bytes of all workers of the client.
    fn all(&self) -> u64 {
        self.page.slots().iter().fold(0, |sum, slot| sum.saturating_add(slot.used.load(Ordering::SeqCst)))
    }

    pub(crate) fn count_in(&self, bytes: u64) {
        self.slot().bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_out(&self, bytes: u64) {
        self.slot().bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_moved_in(&self) {
        self.slot().moved_in.store(1, Ordering::Relaxed);
    }

    pub(crate) fn note_moved_out(&self) {
        self.slot().moved_out.store(1, Ordering::Relaxed);
    }

    /// Nothing counts any more of what this worker uses; what it gives back later changes nothing.
    pub(crate) fn leave_memory(&self) {
        let _changing = lock(&self.changing);
        self.set_used(0);
    }

    fn used(&self) -> u64 {
        self.slot().used.load(Ordering::Relaxed)
    }

    /// Notes the use of memory from now on.
    fn set_used(&self, used: u64) {
        let (slot, now) = (self.slot(), now_ms());
        slot.kib_ms.store(slot.kib_ms(now), Ordering::Relaxed);
        slot.at.store(now, Ordering::Relaxed);
        slot.used.store(used, Ordering::SeqCst);
    }
}

impl executor::Account for Usage {
    fn hold(&self, bytes: u64) -> bool {
        let _changing = lock(&self.changing);
        let before = self.used();
        let Some(used) = before.checked_add(bytes) else { return false };
        self.set_used(used);
        // Added before the others are read: of two workers that do this at the same time, at least one sees both.
        if self.all() > self.limit {
            self.set_used(before);
            return false;
        }
        self.slot().peak.fetch_max(used, Ordering::Relaxed);
        true
    }

    fn give_back(&self, bytes: u64) {
        let _changing = lock(&self.changing);
        self.set_used(self.used().saturating_sub(bytes));
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor::Account;
    use std::time::Duration;

    fn worker(entry: &Entry, limit: u64) -> Usage {
        Usage::received(entry.file(), entry.slot(), limit).unwrap()
    }

    #[test]
    fn the_workers_of_a_client_share_its_limit() {
        let account = ClientAccount::create().unwrap();
        let (first, second) = (account.enter().unwrap(), account.enter().unwrap());
        let (a, b) = (worker(&first, 100), worker(&second, 100));
        assert!(a.hold(60) && b.hold(40) && !b.hold(1) && !a.hold(u64::MAX));
        assert_eq!((a.room(), first.used().peak, second.used().peak), (0, 60, 40));
        a.give_back(60);
        assert!(b.hold(60));
        // What a worker has left is free at once, and once.
        a.leave_memory();
        assert_eq!((a.room(), first.used().peak), (0, 60));
        b.give_back(60);
        a.leave_memory();
        a.give_back(60);
        assert_eq!(b.room(), 60);
        assert!(b.hold(60));
        // What a worker that has died had is free.
        drop(second);
        assert_eq!(a.room(), 100);
        assert_eq!(account.enter().unwrap().used(), Used::default());
    }

    #[test]
    fn two_workers_never_get_more_than_the_limit() {
        let account = ClientAccount::create().unwrap();
        let entries = [account.enter().unwrap(), account.enter().unwrap()];
        let granted: u64 = std::thread::scope(|threads| {
            let all = entries.each_ref().map(|entry| {
                let worker = worker(entry, 1000);
                threads.spawn(move || (0..1000).filter(|_| worker.hold(1)).count() as u64)
            });
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(granted <= 1000, "{granted}");
    }

    #[test]
    fn memory_is_summed_over_time() {
        let account = ClientAccount::create().unwrap();
        let entry = account.enter().unwrap();
        let usage = worker(&entry, u64::MAX);
        assert!(usage.hold(1 << 20));
        std::thread::sleep(Duration::from_millis(50));
        usage.give_back(1 << 20);
        let before = entry.used();
        assert!(before.kib_ms >= 1024 * 49, "{before:?}");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(entry.used(), before, "nothing is used any more");
        usage.count_in(3);
        usage.count_out(4);
        usage.note_moved_in();
        let after = entry.used();
        assert_eq!((after.bytes_in, after.bytes_out, after.moved_in, after.moved_out), (3, 4, true, false));
    }

    #[test]
    fn other_memory_is_refused() {
        let entry = ClientAccount::create().unwrap().enter().unwrap();
        let small = memory_file::create(4096, c"small", memory_file::SIZE).unwrap();
        let unsealed = memory_file::create(BYTES, c"unsealed", 0).unwrap();
        assert!(Usage::received(small.as_fd(), 0, 1).is_err() && Usage::received(unsealed.as_fd(), 0, 1).is_err());
        assert!(Usage::received(entry.file(), SLOTS as u32, 1).is_err());
    }
}
