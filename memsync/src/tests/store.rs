//! Rounds from a fake memory to a store and from a store to a fake memory.

use super::{CHUNK, Ends, Fake, connections, fill, job};
use crate::error::SyncError;
use crate::memory::Memory;
use crate::region::{Kind, PAGE};
use crate::{Faults, Round, Store, Verify, source, target};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("mrcuda-store-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Directory(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("one.park")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type Results = (Result<Round, SyncError>, Result<Round, SyncError>);

/// A round over these connections, whose ends close them when they are done.
fn between<S: Memory + Sync, T: Memory + Sync>(
    from: &S,
    to: &T,
    (mut a, mut b): (Ends, Ends),
    send_regions: bool,
    verify: Verify,
) -> Results {
    std::thread::scope(|s| {
        let source = s.spawn(move || source::run(from, &mut a, &mut Vec::new(), send_regions, &Faults::default()));
        let target = target::run(to, &mut b, verify, false, &Faults::default());
        drop(b);
        (source.join().expect("source"), target)
    })
}

fn park(from: &Fake, to: &Store, verify: Verify) -> Results {
    between(from, to, connections(3), true, verify)
}

fn resume(from: &Store, to: &Fake, verify: Verify) -> Results {
    between(from, to, connections(3), false, verify)
}

fn good((source, target): Results) -> (Round, Round) {
    (source.expect("source"), target.expect("target"))
}

/// Memory with pages of zeros, pages that can be compressed, and pages that cannot.
fn mixed(seed: u8) -> Fake {
    let mut noise = blake3::Hasher::new().update(&[seed]).finalize_xof();
    let mut bytes = vec![0; CHUNK];
    noise.fill(&mut bytes[CHUNK / 2..]);
    bytes[..PAGE as usize].copy_from_slice(&fill(PAGE as usize, seed));
    let fake = job(seed);
    fake.regions.lock().expect("lock").insert(0x2000_4000_0000, (Kind::Chunk, bytes));
    fake.regions.lock().expect("lock").insert(0x4000_0000, (Kind::Array, fill(3 * PAGE as usize, seed)));
    fake
}

/// A mebibyte of memory of all kinds.
fn small(seed: u8) -> Fake {
    let mut noise = blake3::Hasher::new().update(&[seed]).finalize_xof();
    let mut bytes = vec![0; 1 << 20];
    noise.fill(&mut bytes[1 << 19..]);
    bytes[..PAGE as usize].copy_from_slice(&fill(PAGE as usize, seed));
    let fake =
        Fake::new(&[(0x3000_0000_0000, 300, Kind::Global, seed), (0x3000_0000_1000, PAGE as usize + 77, Kind::Global, seed)]);
    fake.regions.lock().expect("lock").insert(0x2000_4000_0000, (Kind::Chunk, bytes));
    fake
}

/// A place with the same regions, and other bytes.
fn other_than(fake: &Fake) -> Fake {
    let fake = Fake { regions: Arc::new(Mutex::new(fake.contents())), ..Fake::default() };
    fake.regions.lock().expect("lock").values_mut().for_each(|(_, bytes)| bytes.iter_mut().for_each(|b| *b = b.wrapping_add(1)));
    fake
}

#[test]
fn what_is_parked_in_memory_comes_back() {
    for verify in [Verify::Auto, Verify::Hash, Verify::Bytes] {
        let (from, store, to) = (mixed(1), Store::in_memory(u64::MAX), other_than(&mixed(1)));
        let (_, first) = good(park(&from, &store, Verify::Skip));
        assert!(first.bytes_sent < 2 * CHUNK as u64 + (4 << 20), "zeros do not travel: {first:?}");
        // The job goes on meanwhile.
        let changed = mixed(2);
        let (source, there) = good(park(&changed, &store, verify));
        assert_eq!((source.digest, source.regions, there.seal), (there.digest, 7, [0; 32]));
        let (source, there) = good(resume(&store, &to, verify));
        assert_eq!(source.digest, there.digest);
        assert!(to.contents() == changed.contents());
    }
}

#[test]
fn what_is_parked_in_a_file_comes_back_also_from_the_closed_file() {
    let directory = Directory::new("good");
    for (verify, again) in [(Verify::Hash, false), (Verify::Hash, true), (Verify::Bytes, true)] {
        let path = directory.file();
        let _ = std::fs::remove_file(&path);
        let (from, to) = (mixed(3), other_than(&mixed(1)));
        let mut store = Store::create(&path, u64::MAX).expect("a new file");
        assert!(Store::create(&path, u64::MAX).is_err(), "it exists");
        good(park(&mixed(4), &store, Verify::Skip));
        assert!(Store::open(&path, &[0; 32], 0).is_err(), "it is incomplete");
        let (_, there) = good(park(&from, &store, verify));
        let about = std::fs::metadata(&path).expect("there");
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&directory.0).expect("there").permissions().mode() & 0o777, 0o700);
        assert!(store.free_bytes(0).is_ok_and(|n| n > 0));
        if again {
            drop(store);
            store = Store::open(&path, &there.seal, 0).expect("complete");
        }
        good(resume(&store, &to, verify));
        assert!(to.contents() == from.contents());
    }
}

#[test]
fn memory_that_the_job_has_freed_takes_no_room_and_new_memory_is_zero() {
    let (first, store) = (mixed(5), Store::in_memory(u64::MAX));
    good(park(&first, &store, Verify::Skip));
    let second = Fake::new(&[(0x2000_1000_0000, 2 << 20, Kind::Chunk, 9), (0x2000_4000_0000, 4 << 20, Kind::Chunk, 1)]);
    let (source, _) = good(park(&second, &store, Verify::Hash));
    assert_eq!(source.bytes_sent, 4 << 20, "what both have is not sent again");
    let to = Fake::new(&[(0x2000_1000_0000, 2 << 20, Kind::Chunk, 7), (0x2000_4000_0000, 4 << 20, Kind::Chunk, 7)]);
    good(resume(&store, &to, Verify::Hash));
    assert!(to.contents() == second.contents());
    let other = Fake::new(&[(0x2000_1000_0000, 2 << 20, Kind::Chunk, 7)]);
    let (source, target) = resume(&store, &other, Verify::Hash);
    assert!(matches!(source, Err(SyncError::Regions(_))) && target.is_err(), "the target lacks memory");
}

#[test]
fn pages_that_become_zero_again_leave_the_file() {
    let directory = Directory::new("zero");
    let path = directory.file();
    let store = Store::create(&path, u64::MAX).expect("a new file");
    let at = 0x2000_0000_0000;
    good(park(&Fake::new(&[(at, CHUNK, Kind::Chunk, 1)]), &store, Verify::Skip));
    let zero = Fake::new(&[(at, CHUNK, Kind::Chunk, 1)]);
    zero.regions.lock().expect("lock").values_mut().for_each(|(_, bytes)| bytes.fill(0));
    let (_, there) = good(park(&zero, &store, Verify::Hash));
    let store = Store::open(&path, &there.seal, 0).expect("complete");
    let to = Fake::new(&[(at, CHUNK, Kind::Chunk, 3)]);
    let (source, _) = good(resume(&store, &to, Verify::Hash));
    assert!(to.contents() == zero.contents());
    assert_eq!(source.bytes_sent, CHUNK as u64, "the target had other bytes");
}

/// A complete file of a job, with its seal.
fn complete(directory: &Directory, from: &Fake) -> [u8; 32] {
    let store = Store::create(&directory.file(), u64::MAX).expect("a new file");
    good(park(from, &store, Verify::Hash)).1.seal
}

#[test]
fn a_file_that_is_kept_current_has_its_old_state_or_its_new_one() {
    let directory = Directory::new("current");
    let (path, copied) = (directory.file(), directory.0.join("copied"));
    let store = Store::create(&path, 1 << 30).expect("a new file");
    let mut states: Vec<(Fake, [u8; 32])> = Vec::new();
    let mut lengths = Vec::new();
    for round in 0..8 {
        // Each state differs from the one before in some pages.
        let from = mixed(20);
        from.regions.lock().expect("lock").values_mut().for_each(|(_, bytes)| {
            bytes.chunks_mut(7 * PAGE as usize).for_each(|part| part[round] ^= 0x55 + round as u8);
        });
        let (first, _) = park(&from, &store, Verify::Skip);
        let sent = first.expect("source").bytes_sent;
        assert!(round == 0 || sent < CHUNK as u64 / 2, "round {round} has sent {sent} bytes");
        // What is not complete yet has harmed nothing: the copy is what a kill at this moment leaves.
        if let Some((before, seal)) = states.last() {
            std::fs::copy(&path, &copied).expect("copied");
            assert!(refusal(&copied, seal, before).is_none(), "round {round}: the old state is lost");
        }
        let (_, there) = good(park(&from, &store, Verify::Hash));
        std::fs::copy(&path, &copied).expect("copied");
        assert!(refusal(&copied, &there.seal, &from).is_none(), "round {round}: the new state is not there");
        states.push((from, there.seal));
        lengths.push(std::fs::metadata(&path).expect("there").len());
    }
    // Each round has reused what the one before it has left.
    assert!(lengths[7] <= lengths[2] + (1 << 20), "{lengths:?}");
    // It goes on after the process that wrote it has ended in the middle of a round.
    let (last, seal) = states.pop().expect("states");
    park(&mixed(21), &store, Verify::Skip).0.expect("source");
    drop(store);
    assert!(Store::open(&path, &states[0].1, 1 << 30).is_err(), "a state of long ago");
    let store = Store::open(&path, &seal, 1 << 30).expect("the last complete state");
    let (first, _) = good(park(&last, &store, Verify::Skip));
    assert_eq!(first.bytes_sent, 0, "nothing differs from it");
    let from = mixed(22);
    let (_, there) = good(park(&from, &store, Verify::Hash));
    assert!(refusal(&path, &there.seal, &from).is_none());
}

/// Opens the file and resumes from it. The error, if there is one.
fn refusal(path: &Path, seal: &[u8; 32], from: &Fake) -> Option<SyncError> {
    let to = other_than(from);
    let store = match Store::open(path, seal, 0) {
        Ok(store) => store,
        Err(why) => return Some(why),
    };
    match resume(&store, &to, Verify::Hash) {
        (Ok(_), Ok(_)) => {
            assert!(to.contents() == from.contents(), "wrong bytes were accepted");
            None
        }
        (source, _) => Some(source.expect_err("an error at the source")),
    }
}

#[test]
fn every_flipped_bit_is_refused_and_named() {
    let directory = Directory::new("bits");
    let from = small(6);
    let seal = complete(&directory, &from);
    let path = directory.file();
    assert!(refusal(&path, &seal, &from).is_none());
    let length = std::fs::metadata(&path).expect("there").len();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let (mut pages, mut others) = (0, 0);
    // The head, the list at the end, and positions in between.
    let positions = (0..96).step_by(7).chain((8192..length).step_by((length / 100) as usize)).chain(length - 400..length);
    let mut flipped = 0;
    for (number, at) in positions.enumerate() {
        flipped += 1;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ (1 << (number % 8))], at).expect("written");
        match refusal(&path, &seal, &from) {
            Some(SyncError::Damaged { path: named, why }) => {
                assert_eq!(named, path);
                if why.contains("its page of address 0x") { pages += 1 } else { others += 1 }
            }
            // Between the pages of the last round lie those of no use.
            None => panic!("a flipped bit at {at} of {length} is not noticed"),
            Some(other) => panic!("{at}: {other}"),
        }
        file.write_all_at(&byte, at).expect("written");
    }
    assert!(flipped >= 500 && pages > 30 && others > 30, "{flipped} bits, {pages} of pages, {others} others");
    assert!(refusal(&path, &seal, &from).is_none());
}

#[test]
fn a_file_that_is_cut_or_exchanged_is_refused() {
    let directory = Directory::new("cut");
    let from = small(7);
    let seal = complete(&directory, &from);
    let path = directory.file();
    let whole = std::fs::read(&path).expect("read");
    for cut in [0, 1, 95, 4095, 4096, 8192, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).expect("written");
        assert!(matches!(refusal(&path, &seal, &from), Some(SyncError::Damaged { .. })), "cut to {cut}");
    }
    std::fs::write(&path, &whole).expect("written");
    assert!(refusal(&path, &seal, &from).is_none());
    let other = Directory::new("other");
    let theirs = complete(&other, &small(8));
    assert_ne!(seal, theirs);
    std::fs::copy(other.file(), &path).expect("copied");
    let why = refusal(&path, &seal, &from).expect("refused").to_string();
    assert!(why.contains("not what was written for this job"), "{why}");
}

#[test]
fn what_others_could_have_changed_is_refused() {
    let directory = Directory::new("modes");
    let from = small(9);
    let seal = complete(&directory, &from);
    let path = directory.file();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
    assert!(matches!(refusal(&path, &seal, &from), Some(SyncError::Damaged { why, .. }) if why.contains("other users")));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let link = directory.0.join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    assert!(matches!(refusal(&link, &seal, &from), Some(SyncError::File { .. })), "a link is not followed");
    assert!(refusal(&directory.0, &seal, &from).is_some(), "a directory");
    assert!(refusal(&directory.0.join("none"), &seal, &from).is_some());
}

#[test]
fn more_memory_than_a_store_can_hold_is_refused_at_once() {
    use crate::frames::{Seeds, Show};
    use crate::region::Region;
    let (mut a, mut b) = connections(1);
    let regions = vec![Region { address: 1, bytes: 1 << 50, kind: Kind::Chunk }];
    Show { regions, ..Show::default() }.send(&Seeds::draw().expect("random"), &mut *a[0]).expect("sent");
    let ended = target::run(&Store::in_memory(u64::MAX), &mut b, Verify::Hash, false, &Faults::default());
    assert!(matches!(ended, Err(SyncError::Protocol(_))), "{ended:?}");
}

#[test]
fn a_store_holds_no_more_than_it_may() {
    let (from, store) = (small(1), Store::in_memory(512 << 10));
    assert!(store.free_bytes(0).is_ok_and(|n| n <= 512 << 10));
    assert!(store.free_bytes(u64::MAX).is_ok_and(|n| n == 0), "others take everything");
    let (source, target) = park(&from, &store, Verify::Hash);
    assert!(matches!(target, Err(SyncError::Full { limit: 524_288 })) && source.is_err());
    let (zeros, store) = (Fake::new(&[(1 << 40, 4 << 20, Kind::Chunk, 0)]), Store::in_memory(64 << 10));
    zeros.regions.lock().expect("lock").values_mut().for_each(|(_, bytes)| bytes.fill(0));
    good(park(&zeros, &store, Verify::Hash));
}

#[test]
fn memory_in_view_that_was_not_shown_is_refused_before_it_is_hashed() {
    use crate::frames::{Hello, Seeds, Show};
    use crate::region::Region;
    let (mut a, mut b) = connections(1);
    let regions = vec![Region { address: 1 << 40, bytes: 1 << 39, kind: Kind::Chunk }];
    let hello = Hello { sent: Verify::Hash, seen: Verify::Hash, regions, in_view: vec![true], adopted: Vec::new() };
    hello.send(&mut *b[0]).expect("sent");
    let ended = source::run(&Store::in_memory(u64::MAX), &mut a, &mut Vec::new(), false, &Faults::default());
    assert!(matches!(ended, Err(SyncError::Protocol("memory in view that was not shown"))), "{ended:?}");
    let _: (Seeds, Show) = Show::receive(&mut *b[0]).expect("shown");
}
