use super::*;
use crate::Account;
use crate::Applied;
use crate::executor::checker::tests::{Job, body};
use cuda_api::address_map::{HOST, VMM};
use cuda_api::arg::LEGACY;
use cuda_api::ops::{Alias, Fill, HOLD, HostPin, Offer, Slab, StreamHold, id};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;
/// Chunks of one copy, of several, and one behind a gap; the first one is the place's own of [`Job`].
const SIZES: [(u64, u64); 3] = [(0, 2 * MIB), (2 * MIB, 10 * MIB), (20 * MIB, 4 * MIB)];
const ALL: u64 = 16 * MIB;

/// A place with three chunks whose words say where they are.
struct Place {
    job: Job,
    free: u64,
}

impl Place {
    fn open() -> Place {
        let job = Job::open();
        for (at, bytes) in &SIZES[1..] {
            done(&job, id::CHUNK_MAP, &body(&Chunk { address: job.memory + at, bytes: *bytes }, &[]));
        }
        let place = Place { job, free: 0 };
        place.chunks().into_iter().for_each(|chunk| place.write(chunk, words(chunk)));
        Place { free: place.free(), ..place }
    }

    fn exec(&self) -> &Arc<Executor> {
        &self.job.exec
    }

    fn chunks(&self) -> [Chunk; 3] {
        SIZES.map(|(at, bytes)| Chunk { address: self.job.memory + at, bytes })
    }

    fn free(&self) -> u64 {
        self.job.exec.whole_memory().unwrap().0
    }

    fn write(&self, chunk: Chunk, words: impl Iterator<Item = u64>) {
        let mut buffer = self.exec().pinned(chunk.bytes as usize).unwrap();
        buffer
            .bytes_mut()
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(words)
            .for_each(|(to, word): (&mut [u8; 8], u64)| *to = word.to_le_bytes());
        let piece = Piece { address: chunk.address, at: 0, bytes: chunk.bytes as usize, raw: false };
        let flight = self.exec().copy_to_gpu(0, buffer, &[piece], false).unwrap();
        assert_eq!(flight.missing(), 0);
        flight.wait().unwrap();
    }

    fn is_as_written(&self, chunk: Chunk) -> bool {
        let buffer = self.exec().pinned(chunk.bytes as usize).unwrap();
        let piece = Piece { address: chunk.address, at: 0, bytes: chunk.bytes as usize, raw: false };
        let flight = self.exec().copy_from_gpu(0, buffer, &[piece], false).unwrap();
        let is = |buffer: &Pinned| {
            buffer.bytes().as_chunks().0[..chunk.bytes as usize / 8].iter().map(|word| u64::from_le_bytes(*word)).eq(words(chunk))
        };
        flight.missing() == 0 && is(&flight.wait().unwrap())
    }

    /// Nothing is evicted, and all is where it was.
    fn is_whole(&self) {
        assert_eq!((self.exec().evicted_bytes(), self.free()), (0, self.free));
        assert_eq!(self.exec().chunks(), self.chunks());
        assert!(self.chunks().into_iter().all(|chunk| self.is_as_written(chunk)));
    }

    fn evict(&self) -> Result<Evictable, NotEvicted> {
        self.exec().evict(u64::MAX, &|| false)
    }

    /// Evicts; `at_last` happens when all is copied and nothing is unmapped.
    fn evict_and(&self, at_last: impl Fn()) -> Result<Evictable, NotEvicted> {
        let all = parts(SIZES.iter().map(|(at, bytes)| (*at, *bytes as usize))).count();
        let asked = Cell::new(0);
        let goes_on = || {
            asked.set(asked.get() + 1);
            if asked.get() == all + 1 {
                at_last();
            }
            false
        };
        let evicted = self.exec().evict(u64::MAX, &goes_on);
        assert_eq!(asked.get(), all + 1, "it asks at each copy");
        evicted
    }

    fn close(self) {
        self.job.exec.clone().close();
    }
}

/// What a chunk contains: no two words of the place are the same, and none is zero.
fn words(chunk: Chunk) -> impl Iterator<Item = u64> {
    (0..chunk.bytes / 8).map(move |n| (chunk.address + 8 * n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

fn done(job: &Job, call: u16, body: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    assert!(matches!(job.exec.apply(call, body, &mut reply), Applied::Done(code::SUCCESS)), "{call:#x}");
    reply
}

#[test]
fn memory_comes_back_to_its_addresses_with_its_contents() {
    let place = Place::open();
    let used = place.exec().memory().used();
    assert_eq!(place.exec().evictable().unwrap(), Evictable { bytes: ALL, rest: used - ALL });
    for _ in 0..2 {
        assert_eq!(place.evict().unwrap().bytes, ALL);
        assert_eq!((place.exec().evicted_bytes(), place.exec().memory().used()), (ALL, used - ALL));
        assert_eq!((place.free(), place.exec().chunks()), (place.free + ALL, vec![]));
        assert!(matches!(place.exec().evictable(), Err(NotEvicted::Nothing)));
        assert_eq!(place.exec().restore(), Ok(ALL));
        assert_eq!((place.exec().memory().used(), place.exec().restore()), (used, Ok(0)));
        place.is_whole();
    }
    // The job's streams, code and graphs are what they were, and use this memory.
    let [first, ..] = place.chunks();
    let fill = Fill { dst: first.address, pitch: 0, value: 7, element: 1, width: 8, rows: 1, stream: LEGACY };
    done(&place.job, id::FILL, &body(&fill, &[]));
    place.exec().make_current().unwrap();
    place.exec().gpu.synchronize().unwrap();
    assert!(!place.is_as_written(first) && place.is_as_written(place.chunks()[1]));
    place.close();
}

#[test]
fn what_others_use_stays() {
    let place = Place::open();
    let [first, second, third] = place.chunks();
    let offer = done(&place.job, id::CHUNK_OFFER, &body(&second, &[]));
    assert_eq!(offer.len(), size_of::<Offer>());
    // Whoever has mapped it keeps it when the offer is withdrawn.
    done(&place.job, id::CHUNK_WITHDRAW, &body(&second.address, &[]));
    let alias = Alias { address: VMM, chunk: third.address, bytes: 2 * MIB, access: 3 };
    done(&place.job, id::ALIAS_MAP, &body(&alias, &[]));
    assert_eq!(place.evict().unwrap().bytes, first.bytes);
    assert_eq!(place.exec().chunks(), [second, third]);
    assert!(place.is_as_written(second) && place.is_as_written(third));
    assert_eq!(place.exec().restore(), Ok(first.bytes));
    place.is_whole();
    // Without the other mapping it goes, too.
    done(&place.job, id::ALIAS_UNMAP, &body(&alias, &[]));
    assert_eq!(place.evict().unwrap().bytes, first.bytes + third.bytes);
    assert_eq!(place.exec().restore(), Ok(first.bytes + third.bytes));
    place.is_whole();
    place.close();
}

#[test]
fn a_busy_gpu_and_a_move_keep_it() {
    let place = Place::open();
    let token = HOLD | 9;
    done(&place.job, id::STREAM_HOLD, &body(&StreamHold { token, stream: LEGACY }, &[]));
    let why = place.evict().unwrap_err();
    assert!(matches!(why, NotEvicted::Busy(_)) && why.to_string().contains("waits"), "{why}");
    done(&place.job, id::HOST_DONE, &body(&token, &[]));
    while place.exec().is_idle() != Ok(true) {}
    place.exec().show().unwrap();
    assert!(matches!(place.evict(), Err(NotEvicted::Moving)));
    place.exec().end_view();
    place.is_whole();
    assert_eq!(place.evict().unwrap().bytes, ALL);
    // It ends with the place.
    place.close();
}

#[test]
fn too_much_and_a_job_that_goes_on_change_nothing() {
    let place = Place::open();
    assert!(matches!(place.exec().evict(ALL - 1, &|| false), Err(NotEvicted::HostMemory(_))));
    place.is_whole();
    let all = parts(SIZES.iter().map(|(at, bytes)| (*at, *bytes as usize))).count();
    for after in 0..=all {
        let left = Cell::new(after);
        let goes_on = || left.replace(left.get().saturating_sub(1)) == 0;
        assert!(matches!(place.exec().evict(ALL, &goes_on), Err(NotEvicted::CalledOff)), "{after}");
        place.is_whole();
    }
    assert_eq!(place.exec().evict(ALL, &|| false).unwrap().bytes, ALL);
    assert_eq!(place.exec().restore(), Ok(ALL));
    place.is_whole();
    place.close();
}

/// Counts how often memory is used.
#[derive(Debug, Default)]
struct Uses(AtomicUsize);

impl Account for Uses {
    fn hold(&self, _bytes: u64) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn give_back(&self, _bytes: u64) {}

    fn limit(&self) -> u64 {
        u64::MAX
    }

    fn room(&self) -> u64 {
        u64::MAX
    }
}

#[test]
fn a_gpu_without_room_for_all_of_it_gets_nothing() {
    let place = Place::open();
    let uses = Arc::new(Uses::default());
    place.exec().memory().set_account(uses.clone());
    place.evict().unwrap();
    let gpu = &place.exec().gpu;
    // Room for all but the last chunk.
    let taken = (place.free() - ALL + 2 * MIB) / (2 * MIB) * (2 * MIB);
    let other = gpu.create_memory(taken, false).unwrap();
    let room = place.free();
    assert!((ALL - 2 * MIB..ALL).contains(&room));
    for _ in 0..2 {
        assert_eq!(place.exec().restore(), Err(code::ERROR_OUT_OF_MEMORY));
        assert_eq!((place.exec().evicted_bytes(), place.free(), place.exec().chunks()), (ALL, room, vec![]));
    }
    assert_eq!(uses.0.load(Ordering::Relaxed), 0, "others have the room meanwhile");
    gpu.release_memory(other).unwrap();
    // Hardly more than it needs is enough.
    let other = gpu.create_memory((place.free() - ALL) / (2 * MIB) * (2 * MIB), false).unwrap();
    assert!((ALL..ALL + 2 * MIB).contains(&place.free()));
    assert_eq!(place.exec().restore(), Ok(ALL));
    gpu.release_memory(other).unwrap();
    assert_eq!(uses.0.load(Ordering::Relaxed), 1);
    place.is_whole();
    place.close();
}

#[test]
fn mirrored_host_memory_does_not_take_the_room_of_what_is_evicted() {
    let place = Place::open();
    let pin = |at| {
        let block = HostPin { address: at, bytes: 4 * MIB, flags: 0, apart: true, exclusive: true, slab: Slab::default() };
        done(&place.job, id::HOST_PIN, &body(&block, &[]));
        place.exec().is_on_gpu(at)
    };
    let before = place.free();
    assert!(pin(HOST), "there is room");
    let block = before - place.free();
    place.evict().unwrap();
    assert!(!pin(HOST + (1 << 30)));
    assert_eq!(place.free(), place.free + ALL - block);
    // The block that was there before makes room.
    let gpu = &place.exec().gpu;
    let other = gpu.create_memory((place.free() - ALL + 2 * MIB) / (2 * MIB) * (2 * MIB), false).unwrap();
    assert!(place.free() < ALL && place.free() + block >= ALL);
    assert_eq!(place.exec().restore(), Ok(ALL));
    assert!(!place.exec().is_on_gpu(HOST));
    gpu.release_memory(other).unwrap();
    place.is_whole();
    place.close();
}

#[test]
fn the_limits_of_the_job_hold_for_what_comes_back() {
    let place = Place::open();
    let used = place.exec().memory().used();
    place.exec().memory().set_limit(used);
    place.evict().unwrap();
    let taken = place.exec().memory().hold(MIB).unwrap();
    assert_eq!(place.exec().restore(), Err(code::ERROR_OUT_OF_MEMORY));
    drop(taken);
    assert_eq!(place.exec().restore(), Ok(ALL));
    place.is_whole();
    place.close();
}

#[test]
fn a_failure_in_the_middle_of_copying_or_unmapping_leaves_the_memory() {
    let place = Place::open();
    let [_, _, third] = place.chunks();
    let gpu = &place.exec().gpu;
    let memory = lock(&place.exec().chunks)[&third.address].memory;
    let unmap = || gpu.unmap(third.address, third.bytes).unwrap();
    let map_again = || gpu.map(third.address, third.bytes, memory).and_then(|()| gpu.allow(third.address, third.bytes)).unwrap();
    // The driver knows the last chunk no more: it can be neither copied
    unmap();
    assert!(matches!(place.evict(), Err(NotEvicted::Driver { what: "copying memory to the host", .. })));
    map_again();
    place.is_whole();
    // nor, later, unmapped, when the others have been.
    assert!(matches!(place.evict_and(unmap), Err(NotEvicted::Driver { what: "unmapping memory", .. })));
    map_again();
    place.is_whole();
    assert_eq!(place.evict_and(|| ()).unwrap().bytes, ALL);
    assert_eq!(place.exec().restore(), Ok(ALL));
    place.is_whole();
    place.close();
}

#[test]
fn a_failure_in_the_middle_of_restoring_leaves_the_contents() {
    let place = Place::open();
    let [_, second, _] = place.chunks();
    place.evict().unwrap();
    let gpu = &place.exec().gpu;
    // Something lies at the second address.
    let other = gpu.create_memory(second.bytes, false).unwrap();
    gpu.map(second.address, second.bytes, other).unwrap();
    let free = place.free();
    assert!(place.exec().restore().is_err_and(|rc| rc != code::ERROR_OUT_OF_MEMORY));
    assert_eq!((place.exec().evicted_bytes(), place.free(), place.exec().chunks()), (ALL, free, vec![]));
    gpu.unmap(second.address, second.bytes).unwrap();
    gpu.release_memory(other).unwrap();
    assert_eq!(place.exec().restore(), Ok(ALL));
    place.is_whole();
    place.close();
}
