//! Tracks which pages this process has written to since the last query.
//!
//! The system provides this without a fault that the program could notice: userfaultfd in its asynchronous form (Linux 6.7, no
//! privileges). Pages are write-protected in the page tables; the kernel itself resolves and records the first write to a page, by the
//! program or by a system call for it. One call (`PAGEMAP_SCAN`) returns the written pages and protects them again, atomically for each.
//!
//! Some writes are not recorded; where they are possible, everything must be compared:
//! * Those of a driver of this process and of processes that share the memory: [`UnseenWriter`]. Other memory that can be shared is not
//!   tracked.
//! * Those of devices that read files into it (direct I/O). The kernel records the page when such a read begins; the bytes arrive later,
//!   perhaps after the page was protected again. So a written page is treated as one that may change for some time, which is longer while
//!   the system counts device reads for this process.
//! * Those of devices that have permanent access to memory (network cards, fixed buffers of io_uring): the system reports the amount of
//!   such memory.

use cuda_api::address_map::{HOST, HOST_END, PAGE};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use cuda_api::lock::lock;

/// Minimum size of memory whose writes are tracked: less is compared as fast as its tracking is queried.
const MIN_TRACKED_BYTES: u64 = 32 << 10;
/// From this number of ranges on only large ones are tracked: each is a mapping of its own for the system, whose number is limited.
const MANY_RANGES: usize = 1024;
const LARGE_BYTES: u64 = 256 << 10;
/// How often the system is asked for the counts of device reads, which takes longer than a scan of small memory; far less than [`SOON`].
const COUNTS_INTERVAL: Duration = Duration::from_millis(5);
/// A written page may change for at least this time,
const SOON: Duration = Duration::from_millis(100);
/// and for this time after a device has read for this process.
const LATE: Duration = Duration::from_secs(3);

/// Untracked writers: their present number, and in the upper half the number of all so far.
static TO_ALL: AtomicU64 = AtomicU64::new(0);
static TO_ARENA: AtomicU64 = AtomicU64::new(0);
const ONCE: u64 = 1 << 32;

/// While this guard lives, host memory may be written to without the tracking noticing.
#[derive(Debug)]
pub struct UnseenWriter(&'static AtomicU64);

impl UnseenWriter {
    /// A driver in this process: it may write to all registered memory.
    pub fn here() -> UnseenWriter {
        UnseenWriter::of(&TO_ALL)
    }

    /// A process that shares the pinned memory of the job.
    pub fn sharing() -> UnseenWriter {
        UnseenWriter::of(&TO_ARENA)
    }

    fn of(count: &'static AtomicU64) -> UnseenWriter {
        count.fetch_add(ONCE + 1, Ordering::SeqCst);
        UnseenWriter(count)
    }
}

impl Drop for UnseenWriter {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A set of pages of a range.
#[derive(Debug, Clone)]
struct Pages(Vec<u64>);

impl Pages {
    fn none(count: usize) -> Pages {
        Pages(vec![0; count.div_ceil(64)])
    }

    fn add(&mut self, pages: std::ops::Range<usize>) {
        pages.for_each(|p| self.0[p / 64] |= 1 << (p % 64));
    }

    fn join(&mut self, other: &Pages) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }
}

/// The kernel's tracking for this process.
struct Notes {
    faults: OwnedFd,
    pages: File,
    /// Counters of device reads for this process, and of memory that devices may access.
    counts: Option<[File; 2]>,
}

#[repr(C)]
struct Api([u64; 3]);
#[repr(C)]
struct Register([u64; 4]);
/// A range of pages that were written to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    kind: u64,
}
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    reached: u64,
    regions: u64,
    most: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    reported: u64,
}

const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const UNREGISTER: libc::c_ulong = 0x8010_aa01;
const SCAN: libc::c_ulong = 0xc060_6610;
/// Faults of kernel code are not handled: this mode needs no privileges, and no fault is ever delivered to us.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_FEATURE_WP_ASYNC`, `WP_UNPOPULATED`, `WP_HUGETLBFS_SHMEM`, `PAGEFAULT_FLAG_WP`
const FEATURES: u64 = 1 << 15 | 1 << 13 | 1 << 12 | 1;
const WRITE_PROTECT: u64 = 2;
/// `PM_SCAN_WP_MATCHING`: protect the reported pages; skip memory whose writes are not tracked.
const PROTECT: u64 = 1;
/// `PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC`: protect the reported pages; fail where writes are not tracked.
const PROTECT_AND_CHECK: u64 = 3;
/// `PAGE_IS_WRITTEN`: also reported for pages that are not in memory, of which nothing is known.
const WRITTEN: u64 = 2;
const REGIONS: usize = 512;

fn notes() -> Option<&'static Notes> {
    static NOTES: OnceLock<Option<Notes>> = OnceLock::new();
    NOTES.get_or_init(open).as_ref()
}

fn open() -> Option<Notes> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a new descriptor that nothing else owns.
    let faults = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut api = Api([0xaa, FEATURES, 0]);
    // SAFETY: the struct that this request takes. The call fails if a feature is not supported.
    if unsafe { libc::ioctl(faults.as_raw_fd(), API, &raw mut api) } != 0 {
        return None;
    }
    let file = |name: &str| File::open(format!("/proc/self/{name}")).ok();
    Some(Notes { faults, pages: file("pagemap")?, counts: file("io").zip(file("status")).map(|(io, status)| [io, status]) })
}

impl Notes {
    /// Calls `found` with the regions between two addresses that were written to since the last query, in the order of their addresses.
    /// Returns false if the system refuses, with [`PROTECT_AND_CHECK`] also if writes to some of the memory are not tracked.
    fn take(&self, flags: u64, start: u64, end: u64, mut found: impl FnMut(&Region)) -> bool {
        let mut regions = [Region::default(); REGIONS];
        let mut from = start;
        while from < end {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags,
                start: from,
                end,
                regions: regions.as_mut_ptr() as u64,
                most: REGIONS as u64,
                all_of: WRITTEN,
                reported: WRITTEN,
                ..Scan::default()
            };
            // SAFETY: the struct that this request takes, and room for as many regions as it says.
            let count = unsafe { libc::ioctl(self.pages.as_raw_fd(), SCAN, &raw mut scan) };
            let Some(found_regions) = usize::try_from(count).ok().and_then(|n| regions.get(..n)) else { return false };
            found_regions.iter().for_each(&mut found);
            if scan.reached <= from {
                return false;
            }
            from = scan.reached;
        }
        true
    }

    /// Bytes that devices have read for this process; `None` if the system does not count them.
    fn device_reads(&self) -> Option<u64> {
        count(&self.counts.as_ref()?[0], "read_bytes:")
    }

    /// Returns whether devices may write to memory of this process at any time.
    fn devices_have_memory(&self) -> bool {
        self.counts.as_ref().and_then(|c| count(&c[1], "VmPin:")) != Some(0)
    }
}

/// What devices do with the memory of this process, as the system counted it a short time ago. One query serves all ranges.
#[derive(Debug, Clone, Copy)]
struct DeviceAccess {
    now: Instant,
    /// How often the count of device reads was found to have changed.
    reads: u64,
    /// Whether devices have access to memory. Memory that they get access to counts as written at that moment.
    permanent: bool,
}

/// The state behind [`DeviceAccess`].
struct DeviceCounts {
    /// The system's count at the last query, and how often it had changed.
    bytes: Option<u64>,
    reads: u64,
    /// When the system is asked for it next.
    ask_reads: Instant,
    permanent: bool,
    ask_permanent: Instant,
}

impl DeviceAccess {
    /// Asks the system if it was not asked for a while. What begins after that is noticed by the next query, long before the pages found
    /// meanwhile stop being reported.
    fn query() -> DeviceAccess {
        static COUNTS: Mutex<Option<DeviceCounts>> = Mutex::new(None);
        let now = Instant::now();
        let Some(notes) = notes() else { return DeviceAccess { now, reads: 0, permanent: true } };
        let mut known = lock(&COUNTS);
        let counts =
            known.get_or_insert(DeviceCounts { bytes: None, reads: 0, ask_reads: now, permanent: false, ask_permanent: now });
        if now >= counts.ask_reads {
            let bytes = notes.device_reads();
            if bytes.is_none() || bytes != counts.bytes {
                counts.bytes = bytes;
                counts.reads += 1;
            }
            counts.ask_reads = now + COUNTS_INTERVAL;
        }
        if now >= counts.ask_permanent {
            counts.permanent = notes.devices_have_memory();
            counts.ask_permanent = now + SOON / 4;
        }
        DeviceAccess { now, reads: counts.reads, permanent: counts.permanent }
    }
}

/// Held while what the system has tracked for pinned memory is read and until it is noted, so that no reader misses what another one has
/// read; and while a range ends, which must not be used then. Taken before a range's state.
static READING: Mutex<()> = Mutex::new(());

fn in_arena(at: u64) -> bool {
    (HOST..HOST_END).contains(&at)
}

/// What all ranges have in common for one scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    devices: DeviceAccess,
    /// Whether all ranges of pinned memory were read.
    arena: bool,
}

impl Reading {
    /// Asks the system what all ranges have in common.
    pub(super) fn begin() -> Reading {
        let devices = DeviceAccess::query();
        Reading { devices, arena: notes().is_some_and(read_arena) }
    }
}

/// Reads what the system has tracked for all ranges of pinned memory with one request, which takes about as long as that for one of them.
/// Returns false if there are no two, or the system refuses.
fn read_arena(notes: &Notes) -> bool {
    let _reading = lock(&READING);
    let ranges: Vec<Arc<Range>> = lock(&RANGES).range(HOST..HOST_END).filter_map(|(_, range)| range.upgrade()).collect();
    let (Some(first), Some(end)) = (ranges.first(), ranges.iter().map(|range| range.at + range.len).max()) else { return false };
    if ranges.len() < 2 {
        return false;
    }
    let mut passed = 0;
    let whole = notes.take(PROTECT, first.at, end, |region| {
        passed += ranges[passed..].iter().take_while(|range| range.at + range.len <= region.start).count();
        for range in ranges[passed..].iter().take_while(|range| range.at < region.end) {
            lock(&range.state).note(range.pages_in(region));
        }
    });
    if !whole {
        // What the failed request has protected is not known.
        ranges.iter().for_each(|range| lock(&range.state).note(0..range.pages()));
    }
    whole
}

/// The number behind a name in a file of the kernel.
fn count(file: &File, name: &str) -> Option<u64> {
    let mut text = [0; 4096];
    let len = file.read_at(&mut text, 0).ok()?;
    let line = std::str::from_utf8(&text[..len]).ok()?.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns whether a range is mapped privately to this process.
fn is_private(at: u64, len: u64) -> bool {
    let (mut reached, end) = (at, at + len);
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    for line in maps.lines() {
        let mut words = line.split(' ');
        let range = words.next().and_then(|r| r.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let Some((from, to)) = range.and_then(|(from, to)| number(from).zip(number(to))) else { return false };
        // A mapping that changes while the file is read may be listed twice.
        if from < end && to > reached {
            if from > reached || !words.next().is_some_and(|kind| kind.ends_with('p')) {
                return false;
            }
            reached = to;
        }
    }
    reached >= end
}

/// A tracked range of memory, shared by all its users.
#[derive(Debug)]
struct Range {
    at: u64,
    len: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// For each user, by number, the pages not yet reported to it.
    unreported: BTreeMap<u64, Pages>,
    /// Pages that may still change: those found recently, and those found before.
    lately: Pages,
    before: Pages,
    turn: Instant,
    /// When the system last said whether the range is tracked at all.
    checked: Instant,
    /// [`DeviceAccess::reads`] when this range was last read, and until when pages may change because it had risen.
    reads: u64,
    late_until: Instant,
}

impl Drop for Range {
    fn drop(&mut self) {
        let Some(notes) = notes() else { return };
        let range = [self.at, self.len];
        // SAFETY: the struct that this request takes. If the memory is already unmapped there is nothing to do.
        unsafe { libc::ioctl(notes.faults.as_raw_fd(), UNREGISTER, range.as_ptr()) };
    }
}

/// All tracked ranges, by address.
static RANGES: Mutex<BTreeMap<u64, Weak<Range>>> = Mutex::new(BTreeMap::new());

impl State {
    /// Notes pages that were written to.
    fn note(&mut self, pages: std::ops::Range<usize>) {
        self.unreported.values_mut().for_each(|unreported| unreported.add(pages.clone()));
        self.lately.add(pages);
    }
}

impl Range {
    fn pages(&self) -> usize {
        (self.len / PAGE) as usize
    }

    /// Its pages in a region.
    fn pages_in(&self, region: &Region) -> std::ops::Range<usize> {
        let page = |at: u64| (at.clamp(self.at, self.at + self.len) - self.at) as usize / PAGE as usize;
        page(region.start)..page(region.end)
    }

    /// The tracked range at an address, for one more user. Links to several places share it.
    fn join(at: u64, len: u64) -> Option<Arc<Range>> {
        let notes = notes().filter(|_| len >= MIN_TRACKED_BYTES)?;
        let mut ranges = lock(&RANGES);
        ranges.retain(|_, r| r.strong_count() > 0);
        if let Some(known) = ranges.get(&at).and_then(Weak::upgrade) {
            return (known.len == len).then_some(known);
        }
        if len < LARGE_BYTES && ranges.len() >= MANY_RANGES || !in_arena(at) && !is_private(at, len) {
            return None;
        }
        let mut register = Register([at, len, WRITE_PROTECT, 0]);
        // SAFETY: the struct that this request takes. It changes no contents, and is refused for memory of other kinds.
        if unsafe { libc::ioctl(notes.faults.as_raw_fd(), REGISTER, &raw mut register) } != 0 {
            return None;
        }
        let none = Pages::none((len / PAGE) as usize);
        let DeviceAccess { now, reads, .. } = DeviceAccess::query();
        let unreported = BTreeMap::new();
        let state =
            State { unreported, lately: none.clone(), before: none, turn: now + SOON, checked: now, reads, late_until: now };
        let range = Arc::new(Range { at, len, state: Mutex::new(state) });
        ranges.insert(at, Arc::downgrade(&range));
        Some(range)
    }

    /// Reads what the system has tracked, unless `reading` has; returns false if it is not tracked.
    fn read(&self, state: &mut State, reading: &Reading) -> bool {
        let Some(notes) = notes() else { return false };
        let Reading { devices, arena } = reading;
        let was_checked = devices.now.saturating_duration_since(state.checked) < COUNTS_INTERVAL;
        let whole = if *arena && was_checked && in_arena(self.at) {
            true
        } else {
            state.checked = devices.now;
            notes.take(PROTECT_AND_CHECK, self.at, self.at + self.len, |region| state.note(self.pages_in(region)))
        };
        if devices.reads > state.reads {
            state.reads = devices.reads;
            state.late_until = state.late_until.max(devices.now + LATE);
            // What was found just before this range is read again belongs to these reads, too.
            let State { lately, before, .. } = state;
            lately.join(before);
        }
        if devices.now >= state.turn && devices.now >= state.late_until {
            // What was found now counts for one such time, what was found before at most for another.
            std::mem::swap(&mut state.lately, &mut state.before);
            state.lately.clear();
            // The scan may have begun a while ago.
            state.turn = Instant::now() + SOON;
        }
        whole && !devices.permanent
    }
}

/// One user of a tracked range.
#[derive(Debug)]
pub(super) struct Written {
    /// There until it is dropped.
    range: Option<Arc<Range>>,
    number: u64,
    /// Count of the unseen writers when everything was last compared while tracking was active.
    trusted: Option<(u64, u64)>,
}

impl Written {
    /// Starts tracking whole pages; `None` if that is not possible.
    pub(super) fn begin(at: u64, len: u64) -> Option<Written> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A range that was at the address before has ended then.
        let _reading = lock(&READING);
        let range = Range::join(at, len)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&range.state).unreported.insert(number, Pages::none(range.pages()));
        Some(Written { range: Some(range), number, trusted: None })
    }

    /// Stores the numbers of the pages that may have changed since the last call in `to`. Returns false if all may have changed.
    pub(super) fn take(&mut self, reading: &Reading, to: &mut Vec<usize>) -> bool {
        let Some(range) = &self.range else { return false };
        let unseen = (TO_ALL.load(Ordering::SeqCst), if in_arena(range.at) { TO_ARENA.load(Ordering::SeqCst) } else { 0 });
        if (unseen.0 | unseen.1) % ONCE != 0 {
            self.trusted = None;
            return false;
        }
        let _reading = lock(&READING);
        let mut state = lock(&range.state);
        if !range.read(&mut state, reading) {
            self.trusted = None;
            return false;
        }
        let State { unreported, lately, before, .. } = &mut *state;
        let Some(mine) = unreported.get_mut(&self.number) else { return false };
        if self.trusted != Some(unseen) {
            mine.clear();
            self.trusted = Some(unseen);
            return false;
        }
        for (number, word) in mine.0.iter().zip(&lately.0).zip(&before.0).map(|((a, b), c)| a | b | c).enumerate() {
            let mut left = word;
            while left != 0 {
                to.push(64 * number + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        }
        mine.clear();
        true
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _reading = lock(&READING);
        let Some(range) = self.range.take() else { return };
        lock(&range.state).unreported.remove(&self.number);
        // The last user: the memory may have another range from now on.
        drop(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    const LEN: usize = 1 << 20;

    /// Memory of some kind that is never unmapped.
    fn memory(kind: i32, at: Option<u64>) -> &'static mut [u8] {
        let kind = kind | libc::MAP_ANONYMOUS | if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let at = at.unwrap_or(0) as *mut libc::c_void;
        // SAFETY: a fresh mapping where nothing is.
        let at = unsafe { libc::mmap(at, LEN, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: just mapped, and never unmapped.
        unsafe { std::slice::from_raw_parts_mut(at.cast(), LEN) }
    }

    /// `None`: tracking is not available here.
    fn begin(of: &[u8]) -> Option<Written> {
        let w = Written::begin(of.as_ptr() as u64, LEN as u64);
        assert_eq!(w.is_some(), notes().is_some());
        w
    }

    #[test]
    fn memory_that_others_may_have_is_not_noted() {
        let m = memory(libc::MAP_SHARED, None);
        assert!(Written::begin(m.as_ptr() as u64, LEN as u64).is_none());
        assert!(!is_private(m.as_ptr() as u64, LEN as u64));
        let m = memory(libc::MAP_PRIVATE, None);
        assert!(is_private(m.as_ptr() as u64, LEN as u64) && !is_private(m.as_ptr() as u64, 1 << 46));
    }

    fn taken(w: &mut Written) -> Option<Vec<usize>> {
        let mut pages = Vec::new();
        w.take(&Reading::begin(), &mut pages).then_some(pages)
    }

    /// Waits until no page counts as recently written.
    fn rest(w: &mut Written) {
        let since = Instant::now();
        while taken(w) != Some(Vec::new()) {
            // On a machine that reads files all the time it takes longer.
            assert!(since.elapsed() < 6 * LATE);
            std::thread::sleep(SOON / 4);
        }
    }

    // A single test, because unseen writers are counted for the whole process.
    #[test]
    fn what_is_written_to_is_reported() {
        for arena in [true, false] {
            let m = if arena { memory(libc::MAP_SHARED, Some(HOST + (1 << 42))) } else { memory(libc::MAP_PRIVATE, None) };
            m[0] = 1;
            let (Some(mut a), Some(mut b)) = (begin(m), begin(m)) else { return };
            assert_eq!((taken(&mut a), taken(&mut b)), (None, None), "all is unknown at first");
            rest(&mut a);
            rest(&mut b);
            // A store, one of another thread, a system call, and reads, which change nothing.
            m[5 * 4096 + 7] = 1;
            std::thread::scope(|s| drop(s.spawn(|| m[9 * 4096] = 1)));
            File::open("/dev/zero").unwrap().read_exact(&mut m[20 * 4096 - 1..20 * 4096 + 1]).unwrap();
            File::create("/dev/null").unwrap().write_all(m).unwrap();
            assert_eq!(taken(&mut a), Some(vec![5, 9, 19, 20]));
            m[30 * 4096] = 1;
            assert_eq!(taken(&mut a), Some(vec![5, 9, 19, 20, 30]), "they may change for some time");
            assert_eq!(taken(&mut b), Some(vec![5, 9, 19, 20, 30]), "each gets all");
            rest(&mut a);
            assert_eq!(taken(&mut b), Some(vec![]));
            for begins in [UnseenWriter::here, UnseenWriter::sharing] {
                let writer = begins();
                let everything = arena || std::ptr::eq(writer.0, &TO_ALL);
                assert_eq!(taken(&mut a).is_none(), everything);
                drop(writer);
                assert_eq!(taken(&mut a).is_none(), everything, "once more after it");
                assert_eq!(taken(&mut a), Some(vec![]));
            }
            drop(UnseenWriter::here());
            assert_eq!(taken(&mut a), None, "it may have written between two looks");
        }
    }
}
