//! Model check of frees in the order of streams: every short sequence, and long random ones, of allocations, work, frees, synchronisations
//! and fences, with a fake GPU that knows which work may still use which bytes. Between the steps of a synchronisation or a fence another
//! thread does the same; fences and mappings may fail.

use super::*;
use crate::objects::allocations::default_of;
use crate::objects::chunks::{Growth, Request, Step};
use crate::objects::pool::{NO_STREAM, Pool, STEP};
use cuda_api::address_map::{ARENA, GRANULE};
use cuda_api::code;
use interleave::{Choices, bound, every_choice, random_choices};

const STREAMS: usize = 2;
/// A pool that the program creates and destroys.
const CREATED: u64 = 1;

/// A wrong shell, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    SealsAfterTheMark,
    TakesOneStreamForAll,
    TakesAFenceForCompleteAtOnce,
    CompletesLaterGenerations,
    FreesWithoutWaiting,
    TakesAFailedFenceForComplete,
}

/// Bytes that work of a stream uses.
#[derive(Debug, Clone, Copy)]
struct Use {
    address: u64,
    bytes: u64,
    /// The stream, by its index, and the number of the work in it.
    stream: usize,
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    address: u64,
    bytes: u64,
    /// The stream whose work uses it, by its index.
    stream: usize,
}

/// A fence: the last generation that it covers, and how much work each stream had then.
#[derive(Debug, Clone, Copy)]
struct Mark {
    generation: u64,
    work: [u64; STREAMS],
}

struct World {
    m: Memory,
    mistake: Mistake,
    failures: bool,
    submitted: [u64; STREAMS],
    done: [u64; STREAMS],
    uses: Vec<Use>,
    held: Vec<Held>,
    fence: Option<Mark>,
}

/// The handle of a stream.
fn handle(stream: usize) -> u64 {
    100 + stream as u64
}

impl World {
    fn new(failures: bool, mistake: Mistake) -> World {
        let mut m = Memory::new(0);
        m.pools.insert(CREATED, Pool::new(0));
        let (uses, held) = (Vec::new(), Vec::new());
        World { m, mistake, failures, submitted: [0; STREAMS], done: [0; STREAMS], uses, held, fence: None }
    }

    /// Allocates, and lets work of the stream use it.
    fn allocate(&mut self, pool: Option<u64>, stream: usize, bytes: u64, choices: &mut Choices) {
        let request = match pool {
            Some(pool) => Request::FromPool { pool, stream: handle(stream), bytes },
            None => Request::Allocation(bytes),
        };
        let Ok(found) = self.serve(request, choices) else { return };
        for of in self.unfinished(found.address, bytes) {
            let is_ordered = found.pending && of.stream == stream;
            assert!(is_ordered, "work of stream {} may still use what stream {stream} gets", of.stream);
        }
        let overlaps = |h: &Held| h.address < found.address + bytes && found.address < h.address + h.bytes;
        assert!(!self.held.iter().any(overlaps));
        let held = Held { address: found.address, bytes, stream };
        self.held.push(held);
        self.work_with(held);
    }

    /// Submits work that uses an allocation.
    fn work_with(&mut self, Held { address, bytes, stream }: Held) {
        self.submitted[stream] += 1;
        self.uses.push(Use { address, bytes, stream, number: self.submitted[stream] });
    }

    /// Serves a request as the shell does, without its fences.
    fn serve(&mut self, request: Request, choices: &mut Choices) -> Result<crate::objects::pool::Found, i32> {
        if let Some(found) = self.m.take(request)? {
            return Ok(found);
        }
        let (mut growth, mut step) = Growth::begin(&mut self.m, request)?;
        loop {
            step = match step {
                Step::Done(found) => return Ok(found),
                Step::Map(_) => {
                    let fails = self.failures && choices.rarely(8);
                    let result = if fails { Err(code::ERROR_OUT_OF_MEMORY) } else { Ok(()) };
                    growth.mapped(&mut self.m, result)?
                }
                Step::Unmap(chunk) => {
                    assert!(self.unfinished(chunk.address, chunk.bytes).is_empty(), "memory in use is unmapped");
                    growth.unmapped(&mut self.m, chunk, true)
                }
            };
        }
    }

    /// Work that is not complete and uses these bytes.
    fn unfinished(&self, address: u64, bytes: u64) -> Vec<Use> {
        let overlaps = |u: &&Use| u.address < address + bytes && address < u.address + u.bytes;
        self.uses.iter().filter(|u| u.number > self.done[u.stream]).filter(overlaps).copied().collect()
    }

    /// Frees the allocation with this index, in its stream or behind no stream, after more work with it.
    fn free(&mut self, index: usize, in_stream: bool) {
        if index >= self.held.len() {
            return;
        }
        let h = self.held.remove(index);
        self.work_with(h);
        let stream = if in_stream { handle(h.stream) } else { NO_STREAM };
        self.m.free_in(stream, h.address).expect("it is allocated");
        if self.mistake == Mistake::FreesWithoutWaiting {
            let late = self.m.late.drain(..).map(|(_, address, a)| (address, a)).collect();
            self.put_back(late);
        }
    }

    /// Frees what the core has returned.
    fn put_back(&mut self, gone: Vec<(u64, Allocation)>) {
        for (address, a) in gone {
            assert!(self.unfinished(address, a.bytes).is_empty(), "an allocation in use is freed");
            self.m.put_back(address, a);
        }
        // Spare chunks serve any request, and are unmapped.
        for address in self.m.spare.keys() {
            assert!(self.unfinished(*address, self.m.chunks[address]).is_empty(), "a chunk in use is spare");
        }
    }

    fn complete(&mut self, stream: Option<u64>, generation: u64) {
        let gone = match self.mistake {
            Mistake::TakesOneStreamForAll => self.m.complete(None, generation),
            Mistake::CompletesLaterGenerations => self.m.complete(stream, u64::MAX),
            _ => self.m.complete(stream, generation),
        };
        self.put_back(gone);
        self.m.trim();
        self.put_back(Vec::new());
    }

    /// Waits for a stream, or for all.
    fn synchronize(&mut self, stream: Option<usize>, choices: &mut Choices) {
        if self.m.is_settled() {
            return;
        }
        let mut generation = self.m.seal();
        self.other_thread(choices);
        let work = self.submitted;
        self.other_thread(choices);
        if self.mistake == Mistake::SealsAfterTheMark {
            generation = self.m.seal();
        }
        for (s, done) in self.done.iter_mut().enumerate() {
            if stream.is_none_or(|only| only == s) {
                *done = work[s].max(*done);
            }
        }
        self.complete(stream.map(handle), generation);
    }

    /// Begins a fence, as the shell does.
    fn begin_fence(&mut self, choices: &mut Choices) {
        if self.fence.is_some() {
            return;
        }
        let Some(mut generation) = self.m.seal_if_waiting() else { return };
        self.other_thread(choices);
        let work = self.submitted;
        if self.mistake == Mistake::SealsAfterTheMark {
            self.other_thread(choices);
            generation = self.m.seal();
        }
        if self.failures && choices.rarely(4) {
            if self.mistake == Mistake::TakesAFailedFenceForComplete {
                self.complete(None, generation);
            }
            return;
        }
        self.fence = Some(Mark { generation, work });
    }

    /// Checks whether the fence is complete.
    fn check_fence(&mut self) {
        let (done, early) = (self.done, self.mistake == Mistake::TakesAFenceForCompleteAtOnce);
        let is_done = |mark: &mut Mark| early || (0..STREAMS).all(|s| done[s] >= mark.work[s]);
        if let Some(mark) = self.fence.take_if(is_done) {
            self.complete(None, mark.generation);
        }
    }

    /// What another thread does between two steps.
    fn other_thread(&mut self, choices: &mut Choices) {
        match choices.pick(2 + self.held.len().min(1)) {
            0 => {}
            1 => self.allocate(Some(default_of(0)), 0, STEP, choices),
            _ => self.free(0, true),
        }
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.pick(10) {
            0 => self.allocate(Some(default_of(0)), 0, STEP, choices),
            1 => self.allocate(Some(default_of(0)), 1, STEP + 1, choices),
            2 => self.allocate(None, 1, GRANULE, choices),
            3 => self.free(0, true),
            4 => self.free(self.held.len().saturating_sub(1), false),
            5 => self.synchronize(Some(0), choices),
            6 => self.synchronize(None, choices),
            7 => self.begin_fence(choices),
            8 => {
                // The GPU completes the work of a stream.
                let stream = choices.pick(STREAMS);
                self.done[stream] = self.submitted[stream];
                self.check_fence();
            }
            _ if self.m.pools.contains_key(&CREATED) => {
                self.allocate(Some(CREATED), 0, STEP, choices);
                self.m.pools.entry(CREATED).and_modify(|p| p.doomed = true);
                self.complete(None, 0);
            }
            _ => self.check_fence(),
        }
        let used = self.held.iter().map(|h| h.bytes).sum::<u64>();
        assert_eq!((self.m.used, self.m.count()), (used, self.held.len() as u64));
    }

    /// Frees everything: when all work is complete, no memory is left.
    fn end(mut self) {
        while !self.held.is_empty() {
            self.free(0, self.held.len().is_multiple_of(2));
        }
        self.done = self.submitted;
        let generation = self.m.seal();
        self.complete(None, generation);
        assert!(self.m.is_settled(), "a free was forgotten");
        assert!(!self.m.pools.contains_key(&CREATED) || !self.m.pools[&CREATED].doomed, "a pool never ends");
        while let Some(chunk) = self.m.surplus(0) {
            self.m.unmapped(chunk, true);
        }
        assert_eq!((self.m.bare.bytes(), self.m.mapped), (ARENA, 0));
    }
}

fn run(steps: usize, failures: bool, mistake: Mistake, choices: &mut Choices) {
    let mut world = World::new(failures, mistake);
    (0..steps).for_each(|_| world.step(choices));
    world.end();
}

#[test]
fn no_work_loses_its_memory_in_any_short_sequence() {
    let plain = every_choice(|c| run(bound(3, 4), false, Mistake::None, c));
    let failing = every_choice(|c| run(3, true, Mistake::None, c));
    assert!(plain > bound(1000, 10_000) && failing > 1000, "{plain} {failing}");
}

#[test]
fn no_work_loses_its_memory_in_long_sequences() {
    random_choices(300, |c| run(200, false, Mistake::None, c));
    random_choices(300, |c| run(200, true, Mistake::None, c));
}

#[test]
fn mistakes_are_detected() {
    let found = |mistake| std::panic::catch_unwind(|| random_choices(500, |c| run(100, true, mistake, c))).is_err();
    assert!(!found(Mistake::None));
    for mistake in [
        Mistake::SealsAfterTheMark,
        Mistake::TakesOneStreamForAll,
        Mistake::TakesAFenceForCompleteAtOnce,
        Mistake::CompletesLaterGenerations,
        Mistake::FreesWithoutWaiting,
        Mistake::TakesAFailedFenceForComplete,
    ] {
        assert!(found(mistake), "{mistake:?}");
    }
}
