//! Rounds between two fake memories in this process.

use crate::diff::differing_hashes;
use crate::error::SyncError;
use crate::frames::{BATCH, Seeds, Show};
use crate::memory::{Memory, Which};
use crate::region::{Kind, PAGE, Page, Pages, Region, leave_out};
use crate::{Compression, Faults, Round, Stream, Verify, source, target};
use executor::{NO_HASH, PageHash, PageKey, Shown};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod compression;
mod parts;
mod store;

type Regions = Arc<Mutex<BTreeMap<u64, (Kind, Vec<u8>)>>>;
/// Hashes of what is in view.
type HashesShown = Arc<Mutex<Vec<PageHash>>>;

/// Regions with their bytes, and pages whose writes fail.
#[derive(Default)]
struct Fake {
    regions: Regions,
    shown: HashesShown,
    /// Regions of a place on the same machine, the number of its chunks that can be mapped, and their hashes.
    mapped: Option<(Regions, usize, HashesShown)>,
    /// Chunks whose memory is that of another place; their bytes here are never looked at.
    adopted: Vec<Shown>,
    broken: Option<u64>,
    /// Changes a byte at this address after memory was read, like a running job.
    restless: Option<u64>,
    /// It reports a different GPU from that of other fakes.
    other_gpu: bool,
    /// Maximum number of its pages, if it has one.
    most: Option<u64>,
    /// It starts hashing only after this many bytes have been read from a connection.
    hashes_after: Option<(Arc<AtomicUsize>, usize)>,
    /// The same for copies from memory in view.
    fetches_after: Option<(Arc<AtomicUsize>, usize)>,
}

/// Waits until this many bytes have been read.
fn wait_for_reads(of: &Option<(Arc<AtomicUsize>, usize)>, failure: &'static str) -> Result<(), SyncError> {
    let Some((read, wanted)) = of else { return Ok(()) };
    let begun = Instant::now();
    while read.load(Ordering::Relaxed) < *wanted {
        if begun.elapsed() > Duration::from_secs(20) {
            return Err(SyncError::Protocol(failure));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl Fake {
    fn new(list: &[(u64, usize, Kind, u8)]) -> Fake {
        let regions = list.iter().map(|(at, n, kind, seed)| (*at, (*kind, fill(*n, *seed)))).collect();
        Fake { regions: Arc::new(Mutex::new(regions)), ..Fake::default() }
    }

    /// Lets this place map this many chunks of another place.
    fn beside(mut self, other: &Fake, chunks: usize) -> Fake {
        self.mapped = Some((other.regions.clone(), chunks, other.shown.clone()));
        self
    }

    fn with<T>(&self, page: &Page, f: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut all = self.regions.lock().expect("lock");
        let (at, (_, bytes)) = all.range_mut(..=page.address).next_back()?;
        let start = (page.address - at) as usize;
        bytes.get_mut(start..start + page.bytes as usize).map(f)
    }

    fn contents(&self) -> BTreeMap<u64, (Kind, Vec<u8>)> {
        self.regions.lock().expect("lock").clone()
    }
}

fn fill(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

impl Memory for Fake {
    type Buffer = Vec<u8>;
    type Flight = (Vec<u8>, usize);
    type Hashes = Vec<PageHash>;
    fn regions(&self) -> Result<Vec<Region>, SyncError> {
        Ok(self.contents().into_iter().map(|(address, (kind, b))| Region { address, bytes: b.len() as u64, kind }).collect())
    }
    fn most_pages(&self, _: usize) -> u64 {
        self.most.unwrap_or(u64::MAX)
    }
    fn hashes(&self, pages: usize) -> Result<Vec<PageHash>, SyncError> {
        assert!(self.most.is_none_or(|most| pages as u64 <= most), "a table for more pages than there can be");
        Ok(vec![[0xee; 32]; pages])
    }
    fn hash(&self, key: &PageKey, pages: &Pages, which: Which<'_>) -> Result<(Vec<PageHash>, usize), SyncError> {
        wait_for_reads(&self.hashes_after, "nobody reads while the memory is hashed")?;
        let hash = |p: &Page, b: &[u8]| if p.by_host { *blake3::hash(b).as_bytes() } else { key.hash(b) };
        let mut hashes: Vec<_> = pages.iter().map(|p| self.with(&p, |b| hash(&p, b)).unwrap_or(NO_HASH)).collect();
        let gone = hashes.iter().filter(|h| **h == NO_HASH).count();
        leave_out(&mut hashes, pages, which);
        Ok((hashes, gone))
    }
    fn hash_shown(&self, key: &PageKey, pages: &Pages) -> Result<(), SyncError> {
        *self.shown.lock().expect("lock") = self.hash(key, pages, &|_| true)?.0;
        Ok(())
    }
    fn differing(&self, target: &Vec<PageHash>, from: usize, source: Option<&Vec<PageHash>>) -> Result<Vec<u64>, SyncError> {
        let shown = self.mapped.as_ref().map(|(_, _, shown)| shown.lock().expect("lock").clone());
        Ok(differing_hashes(&target[from..], source.or(shown.as_ref()).unwrap_or(&Vec::new())))
    }
    fn buffer(&self) -> Result<Vec<u8>, SyncError> {
        Ok(vec![0xee; BATCH])
    }
    fn bytes<'a>(&self, buffer: &'a mut Vec<u8>) -> &'a mut [u8] {
        buffer
    }
    fn read(&self, _: usize, mut to: Vec<u8>, pages: &[Page], _: bool) -> Result<(Vec<u8>, usize), SyncError> {
        let (mut at, mut missing) = (0, 0);
        for p in pages {
            let n = p.bytes as usize;
            missing += usize::from(self.with(p, |b| to[at..at + n].copy_from_slice(b)).is_none());
            at += n;
        }
        if let Some(address) = self.restless {
            self.with(&Page { address, bytes: 1, kind: Kind::Chunk, by_host: false }, |b| b[0] = b[0].wrapping_add(1));
        }
        Ok((to, missing))
    }
    fn write(&self, _: usize, from: Vec<u8>, pages: &[Page], _: bool) -> Result<(Vec<u8>, usize), SyncError> {
        let mut at = 0;
        for p in pages {
            if self.broken == Some(p.address) {
                return Err(SyncError::Gpu { what: "writing memory", code: 719 });
            }
            let n = p.bytes as usize;
            self.with(p, |b| b.copy_from_slice(&from[at..at + n])).expect("offered pages exist");
            at += n;
        }
        Ok((from, 0))
    }
    fn land(&self, flight: (Vec<u8>, usize)) -> Result<(Vec<u8>, usize), SyncError> {
        Ok(flight)
    }
    fn gpu(&self) -> [u8; 16] {
        [self.other_gpu.into(); 16]
    }
    fn show(&self) -> Show {
        let shown = |(address, (_, b)): (u64, (Kind, Vec<u8>))| Shown { address, bytes: b.len() as u64, number: 1 };
        Show {
            gpu: self.gpu(),
            offer: [1; 32],
            hashes: Some([2; 32]),
            chunks: self.contents().into_iter().filter(|(_, (kind, _))| *kind == Kind::Chunk).map(shown).collect(),
            regions: Vec::new(),
        }
    }
    fn view(&self, show: &Show) -> (Vec<u64>, Option<String>) {
        let Some((_, most, _)) = &self.mapped else { return (Vec::new(), Some("another machine".into())) };
        let mine = self.contents();
        let fits = show.chunks.iter().filter(|c| mine.get(&c.address).is_some_and(|(_, b)| b.len() as u64 == c.bytes));
        (fits.map(|c| c.address).take(*most).collect(), None)
    }
    fn adopted(&self) -> Vec<Shown> {
        self.adopted.clone()
    }
    fn fetch(&self, ranges: &[(u64, u64)]) -> Result<(), SyncError> {
        wait_for_reads(&self.fetches_after, "nobody reads while pages are fetched")?;
        let from = self.mapped.as_ref().expect("in view").0.lock().expect("lock").clone();
        for (address, bytes) in ranges {
            if self.broken.is_some_and(|at| (*address..address + bytes).contains(&at)) {
                return Err(SyncError::Gpu { what: "fetching memory", code: 719 });
            }
            let (at, (_, all)) = from.range(..=address).next_back().expect("there");
            let part = (address - at) as usize..(address - at + bytes) as usize;
            let page = Page { address: *address, bytes: *bytes, kind: Kind::Chunk, by_host: false };
            self.with(&page, |b| b.copy_from_slice(&all[part])).expect("ranges in view exist");
        }
        Ok(())
    }
    fn compare(&self, pages: &Pages) -> Result<Vec<u64>, SyncError> {
        let Some((theirs, ..)) = self.mapped.as_ref().filter(|_| pages.len() > 0) else { return Ok(Vec::new()) };
        let theirs = theirs.lock().expect("lock").clone();
        let same = |p: &Page| {
            let (at, (_, all)) = theirs.range(..=p.address).next_back().expect("there");
            let part = (p.address - at) as usize..(p.address - at + p.bytes) as usize;
            self.with(p, |b| b == &all[part]).expect("pages in view exist")
        };
        Ok(pages.iter().filter(|p| !same(p)).map(|p| p.address).collect())
    }
}

mod network;

type Ends = Vec<Box<dyn Stream>>;

fn connections(n: usize) -> (Ends, Ends) {
    (0..n)
        .map(|_| {
            let (a, b) = UnixStream::pair().expect("sockets");
            (Box::new(a) as Box<dyn Stream>, Box::new(b) as Box<dyn Stream>)
        })
        .unzip()
}

fn round(
    from: &Fake,
    to: &Fake,
    stripes: usize,
    verify: Verify,
    faults: Faults,
) -> (Result<Round, SyncError>, Result<Round, SyncError>) {
    round_over(connections(stripes), from, to, verify, faults)
}

fn round_over(
    ends: (Ends, Ends),
    from: &Fake,
    to: &Fake,
    verify: Verify,
    faults: Faults,
) -> (Result<Round, SyncError>, Result<Round, SyncError>) {
    round_with(Vec::new(), ends, from, to, verify, faults)
}

/// A round whose source knows this of its connections.
fn round_with(
    mut compression: Vec<Compression>,
    (mut a, mut b): (Ends, Ends),
    from: &Fake,
    to: &Fake,
    verify: Verify,
    faults: Faults,
) -> (Result<Round, SyncError>, Result<Round, SyncError>) {
    std::thread::scope(|s| {
        // Each end closes its connections when it is done, as callers do.
        let source = s.spawn({
            let faults = &faults;
            move || source::run(from, &mut a, &mut compression, false, faults)
        });
        let target = target::run(to, &mut b, verify, true, &faults);
        drop(b);
        (source.join().expect("source"), target)
    })
}

const CHUNK: usize = 9 << 20;
const PROOFS: [Verify; 3] = [Verify::Auto, Verify::Hash, Verify::Bytes];

/// Whether both ends detected that the copy is not identical.
fn noticed(ends: &(Result<Round, SyncError>, Result<Round, SyncError>)) -> bool {
    match ends {
        (Err(SyncError::Digest { .. }), Err(SyncError::Digest { .. })) => true,
        (Err(SyncError::Peer(text)), Err(SyncError::Bytes { pages: 1.., .. })) => text.contains("not identical"),
        _ => false,
    }
}

fn job(seed: u8) -> Fake {
    Fake::new(&[
        (0x2000_0000_0000, CHUNK, Kind::Chunk, seed),
        (0x2000_1000_0000, 2 << 20, Kind::Chunk, 9),
        (0x3000_0000_0000, 300, Kind::Global, seed),
        (0x3000_0000_1000, PAGE as usize + 77, Kind::Global, seed),
        (0x2_0540_0000, 1 << 20, Kind::Heap, seed),
    ])
}

/// Counts the bytes read from a connection.
struct Counted(UnixStream, Arc<AtomicUsize>);

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(to)?;
        self.1.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }
}

impl Write for Counted {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn what_is_in_view_must_be_shown() {
    let region = |address, bytes| Region { address, bytes, kind: Kind::Chunk };
    let shown: Vec<Shown> = [(1, 1), (2, 2), (8, 4), (16, 1)].map(|(at, bytes)| Shown { address: at, bytes, number: 9 }).into();
    let all = |regions: &[Region]| crate::diff::all_shown(regions, &shown);
    assert!(all(&[]) && all(&[region(1, 1)]) && all(&[region(2, 2), region(16, 1)]));
    assert!(all(&[region(1, 1), region(2, 2), region(8, 4), region(16, 1)]));
    // Another size, another address, behind the last one, and twice.
    for bad in [&[region(1, 1), region(2, 1)][..], &[region(9, 1)], &[region(8, 4), region(17, 1)], &[region(2, 2), region(2, 2)]]
    {
        assert!(!all(bad), "{bad:?}");
    }
    assert!(!crate::diff::all_shown(&[region(1, 1)], &[]));
}

#[test]
fn what_code_brings_along_is_no_allocation() {
    let region = |kind, bytes| Region { address: 1 << 30, bytes, kind };
    let is_of_code = crate::region::is_of_code;
    assert!(is_of_code(&[]) && is_of_code(&[region(Kind::Global, 100), region(Kind::Heap, 8 << 20)]));
    assert!(!is_of_code(&[region(Kind::Global, 100), region(Kind::Chunk, 100)]) && !is_of_code(&[region(Kind::Array, 1)]));
    assert!(!is_of_code(&[region(Kind::Global, 100), region(Kind::Heap, 64 << 20)]), "a large heap is missed by others");
}

#[test]
fn a_source_that_hashes_for_long_reads_meanwhile() {
    let (mut from, to) = (job(1), job(2));
    let pages = Pages::of(from.regions().expect("regions")).len();
    let read = Arc::new(AtomicUsize::new(0));
    from.hashes_after = Some((read.clone(), pages * size_of::<PageHash>()));
    let (a, b) = UnixStream::pair().expect("sockets");
    let (mut a, mut b): (Ends, Ends) = (vec![Box::new(Counted(a, read))], vec![Box::new(b)]);
    std::thread::scope(|s| {
        let source =
            s.spawn(move || source::run(&from, &mut a, &mut Vec::new(), false, &Faults::default()).map(|round| round.digest));
        let target = target::run(&to, &mut b, Verify::Auto, true, &Faults::default());
        drop(b);
        assert_eq!(source.join().expect("source").expect("source"), target.expect("target").digest);
    });
}

#[test]
fn a_target_that_lists_more_pages_than_there_can_be_gets_no_table() {
    let (mut from, to) = (job(1), job(2));
    let pages = Pages::of(from.regions().expect("regions")).len() as u64;
    from.most = Some(pages - 1);
    let (source, target) = round(&from, &to, 1, Verify::Auto, Faults::default());
    assert!(matches!(source, Err(SyncError::TooManyPages { pages: n, most }) if n == pages && most == pages - 1), "{source:?}");
    assert!(target.is_err());
    from.most = Some(pages);
    round(&from, &to, 1, Verify::Auto, Faults::default()).0.expect("as many as there can be");
}

#[test]
fn a_target_that_fetches_for_long_reads_what_is_compared_meanwhile() {
    let from = job(1);
    let mut to = job(2).beside(&from, 1);
    let read = Arc::new(AtomicUsize::new(0));
    // The bytes that differ and are not in view, and then, the second time, all bytes that are not in view.
    to.fetches_after = Some((read.clone(), 4 << 20));
    let (a, b) = UnixStream::pair().expect("sockets");
    let (mut a, mut b): (Ends, Ends) = (vec![Box::new(a)], vec![Box::new(Counted(b, read))]);
    std::thread::scope(|s| {
        let source = s.spawn(|| source::run(&from, &mut a, &mut Vec::new(), false, &Faults::default()).map(|round| round.digest));
        let target = target::run(&to, &mut b, Verify::Bytes, true, &Faults::default());
        drop(b);
        assert_eq!(target.expect("target").digest, source.join().expect("source").expect("source"));
    });
    assert!(from.contents() == to.contents());
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    for (verify, at_source) in PROOFS.into_iter().flat_map(|verify| [(verify, true), (verify, false)]) {
        for number in 0.. {
            let from = job(1);
            let to = job(2).beside(&from, 1);
            let (mut a, mut b) = connections(3);
            let refused = |here: bool| faults::refuse_thread(here.then_some(number));
            let (s, t) = std::thread::scope(|scope| {
                let source = scope.spawn(|| {
                    refused(at_source);
                    let ended = source::run(&from, &mut a, &mut Vec::new(), false, &Faults::default()).map(|round| round.digest);
                    a.clear();
                    ended
                });
                refused(!at_source);
                let ended = target::run(&to, &mut b, verify, true, &Faults::default()).map(|round| round.digest);
                b.clear();
                (source.join().expect("source"), ended)
            });
            let (here, there) = if at_source { (s, t) } else { (t, s) };
            match here {
                Err(SyncError::Thread(_)) => assert!(there.is_err(), "{verify:?} {number}: {there:?}"),
                // It starts fewer threads.
                ended => {
                    assert!(number >= 4 && ended.is_ok() && there.is_ok(), "{verify:?} {number}: {ended:?} {there:?}");
                    break;
                }
            }
        }
    }
    faults::refuse_thread(None);
}

#[test]
fn what_differs_is_copied_and_verified() {
    for (stripes, verify) in [1, 3, 8].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        let (from, to) = (job(1), job(2));
        let (s, t) = round(&from, &to, stripes, verify, Faults::default());
        let (s, t) = (s.expect("source"), t.expect("target"));
        assert!(from.contents() == to.contents());
        let total = (CHUNK + (2 << 20) + 300 + PAGE as usize + 77 + (1 << 20)) as u64;
        assert_eq!((s.regions, s.bytes_total, t.bytes_total), (5, total, total));
        assert_eq!(s.bytes_sent, total - (2 << 20), "the region that was equal is not sent");
        assert_eq!((s.bytes_sent, s.digest), (t.bytes_sent, t.digest));
        // No page is left to send.
        let (s, _) = round(&from, &to, stripes, verify, Faults::default());
        assert_eq!(s.expect("source").bytes_sent, 0);
    }
}

#[test]
fn pages_in_view_are_fetched_and_others_sent() {
    for (stripes, verify) in [1, 4].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        for (chunks, other_gpu) in [(0, false), (1, false), (2, false), (2, true)] {
            let from = job(1);
            let to = Fake { other_gpu, ..job(2).beside(&from, chunks) };
            // Some pages are equal, which leaves runs of several lengths.
            for page in [0, 1, 2, 5, 9, 10] {
                let part = page * PAGE as usize..(page + 1) * PAGE as usize;
                let mut all = from.regions.lock().expect("lock");
                all.get_mut(&0x2000_0000_0000).expect("chunk").1[part.clone()].copy_from_slice(&fill(CHUNK, 2)[part]);
            }
            let (s, t) = round(&from, &to, stripes, verify, Faults::default());
            let (s, t) = (s.expect("source"), t.expect("target"));
            assert!(from.contents() == to.contents());
            let direct = if chunks > 0 { CHUNK as u64 - 6 * PAGE } else { 0 };
            assert_eq!((s.bytes_fetched, t.bytes_fetched), (0, direct));
            assert_eq!((s.bytes_sent, s.digest), (t.bytes_sent, t.digest));
            assert_eq!(s.bytes_sent, t.bytes_total - (2 << 20) - 6 * PAGE - direct, "the rest was sent");
        }
    }
}

#[test]
fn what_goes_wrong_with_fetched_pages_is_told() {
    let from = job(1);
    let mut to = job(2).beside(&from, 2);
    for (page, verify) in [1, 20, 144].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        to.other_gpu = page == 20;
        let ends = round(&from, &to, 2, verify, Faults { corrupt_page: Some(page), ..Faults::default() });
        assert!(noticed(&ends), "{verify:?}: {ends:?}");
        to = job(2).beside(&from, 2);
    }
    to.broken = Some(0x2000_0000_0000 + 3 * PAGE);
    let (s, t) = round(&from, &to, 3, Verify::Auto, Faults::default());
    assert!(matches!(t, Err(SyncError::Gpu { code: 719, .. })), "{t:?}");
    assert!(matches!(s, Err(SyncError::Peer(text)) if text.contains("719")));
    // Regions that only the target has are allowed before the last round.
    let to = job(2).beside(&from, 2);
    let less = Fake::new(&[(0x2000_0000_0000, CHUNK, Kind::Chunk, 1)]);
    let (s, t) = round(&less, &to, 2, Verify::Skip, Faults::default());
    assert!(s.is_ok() && t.is_ok_and(|t| t.bytes_fetched > 0));
}

#[test]
fn one_changed_byte_sends_one_page() {
    let (from, to) = (job(1), job(1));
    from.regions.lock().expect("lock").get_mut(&0x2000_0000_0000).expect("chunk").1[5 << 20] ^= 0x80;
    let (s, t) = round(&from, &to, 2, Verify::Auto, Faults::default());
    assert_eq!(s.expect("source").bytes_sent, PAGE);
    t.expect("target");
    assert!(from.contents() == to.contents());
}

#[test]
fn a_corrupted_byte_is_caught_at_both_ends() {
    for (page, verify) in [1, 17, 100].into_iter().flat_map(|n| PROOFS.map(|v| (n, v))) {
        let (from, to) = (job(1), job(2));
        let ends = round(&from, &to, 2, verify, Faults { corrupt_page: Some(page), ..Faults::default() });
        assert!(noticed(&ends), "{verify:?}: {ends:?}");
    }
    // There is nothing to corrupt after the last page, and rounds before the last are not affected.
    let (from, to) = (job(1), job(2));
    let (_, t) = round(&from, &to, 2, Verify::Skip, Faults { corrupt_page: Some(1), ..Faults::default() });
    t.expect("pre-copy");
    let (_, t) = round(&from, &to, 2, Verify::Auto, Faults { corrupt_page: Some(1_000_000), ..Faults::default() });
    t.expect("verified");
}

#[test]
fn a_job_that_works_is_copied_in_rounds() {
    let (mut from, to) = (job(1), job(2));
    from.restless = Some(0x2000_0000_0000 + PAGE);
    let (s, t) = round(&from, &to, 2, Verify::Skip, Faults::default());
    assert!(s.is_ok() && t.is_ok());
    // The memory still changes: the last round must detect that.
    for verify in [Verify::Auto, Verify::Bytes] {
        let ends = round(&from, &to, 2, verify, Faults::default());
        assert!(noticed(&ends), "{verify:?}: {ends:?}");
    }
    from.restless = None;
    let (s, t) = round(&from, &to, 2, Verify::Auto, Faults::default());
    assert!(s.expect("source").bytes_sent <= PAGE);
    t.expect("target");
    assert!(from.contents() == to.contents());
}

#[test]
fn regions_must_agree_in_the_end_only() {
    let (from, to) = (job(1), job(2));
    from.regions.lock().expect("lock").insert(0x2000_2000_0000, (Kind::Chunk, fill(2 << 20, 3)));
    to.regions.lock().expect("lock").insert(0x2000_3000_0000, (Kind::Chunk, fill(2 << 20, 3)));
    let (s, t) = round(&from, &to, 2, Verify::Skip, Faults::default());
    assert_eq!((s.expect("source").regions, t.expect("target").regions), (5, 6));
    assert!(from.contents()[&0x2000_0000_0000] == to.contents()[&0x2000_0000_0000]);
    let (s, t) = round(&from, &to, 2, Verify::Auto, Faults::default());
    let s = s.unwrap_err().to_string();
    assert!(s.contains("0x200020000000"), "{s}");
    assert!(matches!(t, Err(SyncError::Peer(text)) if text.contains("0x200020000000")));
}

#[test]
fn trouble_at_the_target_reaches_the_source() {
    let (from, mut to) = (job(1), job(2));
    to.broken = Some(0x2000_0000_0000 + 3 * PAGE);
    for verify in PROOFS {
        let (s, t) = round(&from, &to, 3, verify, Faults::default());
        assert!(matches!(t, Err(SyncError::Gpu { code: 719, .. })), "{t:?}");
        assert!(matches!(s, Err(SyncError::Peer(text)) if text.contains("719")));
    }
}

#[test]
fn a_page_that_was_not_offered_is_refused() {
    let to = job(2);
    let (mut a, mut b) = connections(1);
    std::thread::scope(|s| {
        let target = s.spawn(move || target::run(&to, &mut b, Verify::Auto, true, &Faults::default()));
        Show::default().send(&Seeds::draw().expect("keys"), &mut *a[0]).expect("show");
        let (pages, _) = crate::frames::Hello::receive(&mut *a[0]).expect("hello").pages();
        crate::frames::receive_hashes(&mut a, &mut vec![NO_HASH; pages.len()]).expect("hashes");
        crate::frames::Word::send(&mut *a[0], None, [0; 32]).expect("verdict");
        crate::frames::send_batch(&mut *a[0], &[4_000_000], &[1, 2, 3]).expect("batch");
        crate::frames::send_batch(&mut *a[0], &[0], &[1, 2, 3]).expect("batch");
        crate::frames::send_batch(&mut *a[0], &[], &[]).expect("end");
        crate::frames::Word::send(&mut *a[0], None, [0; 32]).expect("summary");
        assert!(matches!(crate::frames::Word::receive(&mut *a[0]), Err(SyncError::Peer(_))));
        assert!(matches!(target.join().expect("target"), Err(SyncError::Protocol("a page that was not offered"))));
    });
}

#[test]
fn a_comparison_that_leaves_pages_out_proves_nothing() {
    use crate::frames::{Hello, Word, receive_hashes, send_batch};
    // Both ends already have the same bytes, so nothing is sent before the comparison. One page is left out of it, or
    // another is sent twice instead.
    let pages = |count: u32| (0..count).collect::<Vec<u32>>();
    let all = Pages::of(job(1).regions().expect("regions")).len() as u32;
    let twice = || [pages(all - 1), vec![0]].concat();
    for (numbers, complete) in
        [(pages(all), true), (Vec::new(), false), (pages(all - 1), false), (pages(all)[1..].to_vec(), false), (twice(), false)]
    {
        let (from, to) = (job(1), job(1));
        let (mut a, mut b) = connections(1);
        std::thread::scope(|s| {
            let target = s.spawn(move || target::run(&to, &mut b, Verify::Bytes, true, &Faults::default()));
            Show::default().send(&Seeds::draw().expect("keys"), &mut *a[0]).expect("show");
            let hello = Hello::receive(&mut *a[0]).expect("hello");
            let (theirs, _) = hello.pages();
            receive_hashes(&mut a, &mut vec![NO_HASH; theirs.len()]).expect("hashes");
            Word::send(&mut *a[0], None, [0; 32]).expect("verdict");
            send_batch(&mut *a[0], &[], &[]).expect("nothing differs");
            for n in &numbers {
                let page = theirs.get(*n as usize).expect("a page");
                let bytes = from.with(&page, |b| b.to_vec()).expect("its bytes");
                send_batch(&mut *a[0], &[*n], &bytes).expect("batch");
            }
            send_batch(&mut *a[0], &[], &[]).expect("end");
            let digest = crate::region::digest(&hello.regions, &[]);
            Word::send(&mut *a[0], None, digest).expect("summary");
            let answer = Word::receive(&mut *a[0]);
            let result = target.join().expect("target");
            assert_eq!((answer.is_ok(), result.is_ok()), (complete, complete), "{} pages: {result:?}", numbers.len());
            assert!(complete || matches!(result, Err(SyncError::Protocol(why)) if why.contains("every page")));
        });
    }
}

#[test]
fn a_broken_connection_is_an_error_at_both_ends() {
    let (from, to) = (job(1), job(2));
    let (mut a, b) = connections(2);
    drop(b);
    assert!(matches!(source::run(&from, &mut a, &mut Vec::new(), false, &Faults::default()), Err(SyncError::Io { .. })));
    let (a, mut b) = connections(2);
    drop(a);
    assert!(matches!(target::run(&to, &mut b, Verify::Auto, true, &Faults::default()), Err(SyncError::Io { .. })));
    assert!(matches!(target::run(&to, &mut [], Verify::Auto, true, &Faults::default()), Err(SyncError::NoConnection)));
    let (a, mut b) = connections(1);
    let mut garbage = a;
    garbage[0].write_all(&[0xff; 4096]).expect("write");
    assert!(matches!(source::run(&from, &mut b, &mut Vec::new(), false, &Faults::default()), Err(SyncError::Protocol(_))));
}

#[test]
fn what_was_adopted_is_left_out_as_long_as_it_is_the_source_s() {
    let chunk = Shown { address: 0x2000_0000_0000, bytes: CHUNK as u64, number: 1 };
    for verify in PROOFS {
        for by_descriptor in [false, true] {
            let (from, mut to) = (job(3), job(77));
            if by_descriptor {
                to = to.beside(&from, 2);
            }
            to.adopted = vec![chunk];
            let untouched = to.contents()[&chunk.address].clone();
            let (a, b) = round(&from, &to, 2, verify, Faults::default());
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!((a.digest, b.bytes_adopted), (b.digest, CHUNK as u64));
            let (mut want, got) = (from.contents(), to.contents());
            want.insert(chunk.address, untouched);
            assert!(want == got, "everything else is copied, and nothing is written there");
        }
    }
    // The job has exchanged its memory, or some of it has another size: only a round that proves something must not pass.
    for other in [Shown { number: 2, ..chunk }, Shown { bytes: PAGE, ..chunk }, Shown { address: chunk.address + PAGE, ..chunk }]
    {
        let (from, mut to) = (job(3), job(77));
        to.adopted = vec![other];
        let (a, _) = round(&from, &to, 2, Verify::Hash, Faults::default());
        let copied = to.contents() == from.contents();
        assert!(matches!(a, Err(SyncError::Regions(_))) || copied, "{other:?}: {a:?}");
        assert_eq!(other.number == 2, a.is_err());
        to.adopted = vec![other];
        round(&from, &to, 2, Verify::Skip, Faults::default()).0.unwrap();
    }
}
