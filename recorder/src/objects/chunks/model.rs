//! Model check of physical memory: every sequence of a few requests and frees with every result of every operation of the place, and long
//! random ones. The place here keeps account of what is mapped; between two steps of a request another thread may allocate and free.

use super::*;
use crate::objects::allocations::default_of;
use crate::objects::ranges::Ranges;
use interleave::{Choices, bound, every_choice, random_choices};
use std::collections::BTreeMap;

/// Memory of the fake GPU: enough for one usual growth of a pool and a little more.
const CAPACITY: u64 = pool::GROWTH + 4 * GRANULE;

const STREAM: u64 = 7;

/// What the sequences consist of.
const REQUESTS: [Request; 5] = [
    Request::Allocation(100),
    Request::Allocation(LARGE - 1),
    Request::Allocation(LARGE + 1),
    Request::Chunk(2 * GRANULE),
    Request::FromPool { pool: 0, stream: STREAM, bytes: 3 * STEP + 1 },
];

/// What may go wrong, and what happens between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Troubles {
    /// The place fails to map or unmap, for lack of memory or for another reason.
    failures: bool,
    /// Another thread allocates and frees between the steps of a request.
    others: bool,
}

/// A wrong shell or core, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    BelievesAFailedMap,
    BelievesAFailedUnmap,
    LosesTheAddressesOfAFailedMap,
    FreesTwice,
    GivesUpWithSpareMemory,
    KeepsAChunkInTwoTables,
}

/// The fake place.
#[derive(Debug, Default)]
struct Place {
    mapped: BTreeMap<u64, u64>,
    /// Chunks that it has failed to unmap.
    lost: Vec<Chunk>,
    /// Whether it has refused memory that it had.
    has_lied: bool,
}

impl Place {
    fn bytes(&self) -> u64 {
        self.mapped.values().sum()
    }

    fn map(&mut self, chunk: Chunk, troubles: Troubles, choices: &mut Choices) -> Result<(), Code> {
        assert!(chunk.bytes > 0 && chunk.bytes.is_multiple_of(GRANULE) && chunk.address.is_multiple_of(GRANULE));
        assert!(self.mapped.range(..chunk.address + chunk.bytes).next_back().is_none_or(|(at, len)| at + len <= chunk.address));
        if self.bytes() + chunk.bytes > CAPACITY {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        match if troubles.failures { choices.pick(3) } else { 0 } {
            0 => {
                self.mapped.insert(chunk.address, chunk.bytes);
                Ok(())
            }
            1 => {
                self.has_lied = true;
                Err(code::ERROR_OUT_OF_MEMORY)
            }
            _ => Err(code::ERROR_UNKNOWN),
        }
    }

    fn unmap(&mut self, chunk: Chunk, troubles: Troubles, choices: &mut Choices) -> bool {
        assert_eq!(self.mapped.get(&chunk.address), Some(&chunk.bytes), "it is not mapped");
        if troubles.failures && choices.pick(2) == 1 {
            self.lost.push(chunk);
            return false;
        }
        self.mapped.remove(&chunk.address);
        true
    }
}

struct World {
    m: Memory,
    place: Place,
    troubles: Troubles,
    mistake: Mistake,
    /// What the program has: the request, and the address.
    held: Vec<(Request, u64)>,
    /// The chunk that is being mapped or unmapped.
    in_flight: Option<Chunk>,
}

impl World {
    fn new(troubles: Troubles, mistake: Mistake) -> World {
        World { m: Memory::new(0), place: Place::default(), troubles, mistake, held: Vec::new(), in_flight: None }
    }

    /// The default pool stands for any.
    fn request(number: usize) -> Request {
        match REQUESTS[number] {
            Request::FromPool { stream, bytes, .. } => Request::FromPool { pool: default_of(0), stream, bytes },
            other => other,
        }
    }

    /// Serves a request, as the shell does.
    fn serve(&mut self, request: Request, choices: &mut Choices) {
        let served = self.grow(request, choices);
        self.in_flight = None;
        match served {
            Ok(found) => self.held.push((request, found.address)),
            Err(code::ERROR_OUT_OF_MEMORY) => {
                let is_alone = !self.troubles.others;
                assert!(!is_alone || self.place.has_lied || self.m.spare_bytes == 0, "spare memory was not used");
            }
            Err(rc) => assert!(self.troubles.failures && rc == code::ERROR_UNKNOWN, "{rc}"),
        }
        self.check(choices);
    }

    fn grow(&mut self, request: Request, choices: &mut Choices) -> Result<Found, Code> {
        if let Some(found) = self.m.take(request)? {
            return Ok(found);
        }
        let (mut growth, mut step) = Growth::begin(&mut self.m, request)?;
        loop {
            step = match step {
                Step::Done(found) => {
                    if let (Mistake::KeepsAChunkInTwoTables, Home::Own) = (self.mistake, self.home(found.address)) {
                        self.m.make_spare(found.address);
                    }
                    return Ok(found);
                }
                Step::Map(chunk) => {
                    self.in_flight = Some(chunk);
                    self.other_thread(choices);
                    let mut result = self.place.map(chunk, self.troubles, choices);
                    self.other_thread_sees(result.is_ok());
                    if self.mistake == Mistake::BelievesAFailedMap {
                        result = Ok(());
                    }
                    let before = self.m.bare.bytes();
                    if self.mistake == Mistake::GivesUpWithSpareMemory && result.is_err() {
                        self.m.bare.put(chunk.address, chunk.bytes);
                        return result.map(|()| Found::ready(0));
                    }
                    self.in_flight = None;
                    let next = growth.mapped(&mut self.m, result);
                    if self.mistake == Mistake::LosesTheAddressesOfAFailedMap && self.m.bare.bytes() > before {
                        assert!(self.m.bare.carve(chunk.address, chunk.bytes));
                    }
                    if let Ok(Step::Unmap(_)) = next {
                        self.in_flight = Some(chunk);
                    }
                    next?
                }
                Step::Unmap(chunk) => {
                    let mapping = self.in_flight.take();
                    let unmapped = self.place.unmap(chunk, self.troubles, choices);
                    let believed = unmapped || self.mistake == Mistake::BelievesAFailedUnmap;
                    self.in_flight = mapping;
                    let next = growth.unmapped(&mut self.m, chunk, believed);
                    if let Step::Map(_) = next {
                        self.check(choices);
                        self.other_thread(choices);
                    }
                    next
                }
            };
        }
    }

    fn home(&self, address: u64) -> Home {
        self.m.live.get(&address).map_or(Home::Shared, |a| a.home)
    }

    /// Another thread does something between two steps.
    fn other_thread(&mut self, choices: &mut Choices) {
        if !self.troubles.others {
            return;
        }
        match choices.pick(3 + self.held.len().min(1)) {
            0 => {}
            3 => self.free(0),
            n => {
                let request = World::request(2 * n - 2);
                if let Ok(Some(found)) = self.m.take(request) {
                    self.held.push((request, found.address));
                }
            }
        }
    }

    /// A chunk is in no table until its result is reported.
    fn other_thread_sees(&self, mapped: bool) {
        let chunk = self.in_flight.filter(|_| mapped);
        assert!(chunk.is_none_or(|chunk| self.m.chunk_of(chunk.address).is_none() && !self.m.bare.has(chunk.address, 1)));
    }

    /// Frees what the program has had for longest, if `number` is 0.
    fn free(&mut self, number: usize) {
        if number >= self.held.len() {
            return;
        }
        let (request, address) = self.held.remove(number);
        for _ in 0..if self.mistake == Mistake::FreesTwice { 2 } else { 1 } {
            match request {
                Request::Chunk(_) => self.m.make_spare(address),
                Request::FromPool { stream, .. } => {
                    assert_eq!(self.m.free_in(stream, address), Ok(false));
                    let generation = self.m.seal();
                    assert!(self.m.complete(None, generation).is_empty());
                    self.m.trim();
                }
                Request::Allocation(_) => {
                    let a = self.m.forget(address).expect("it is allocated");
                    assert!(!self.m.put_back(address, a));
                }
            }
        }
    }

    /// Unmaps spare chunks.
    fn drop_spare(&mut self, keep: u64, choices: &mut Choices) {
        while let Some(chunk) = self.m.surplus(keep) {
            let unmapped = self.place.unmap(chunk, self.troubles, choices);
            self.m.unmapped(chunk, unmapped || self.mistake == Mistake::BelievesAFailedUnmap);
            self.check(choices);
        }
        assert!(self.m.spare_bytes <= keep);
    }

    /// What holds between all steps.
    fn check(&self, choices: &Choices) {
        if choices.is_repeated() {
            return;
        }
        let m = &self.m;
        // The place has exactly these chunks, and each address of the arena has one use.
        let mut arena = Ranges::default();
        arena.put(OWN, ARENA);
        let mut uses = |address, bytes| assert!(arena.carve(address, bytes), "{address:#x} has two uses");
        m.chunks.iter().for_each(|(at, bytes)| uses(*at, *bytes));
        self.place.lost.iter().for_each(|chunk| uses(chunk.address, chunk.bytes));
        self.in_flight.iter().for_each(|chunk| uses(chunk.address, chunk.bytes));
        let mut mapped = m.chunks.clone();
        mapped.extend(self.place.lost.iter().map(|chunk| (chunk.address, chunk.bytes)));
        assert_eq!(mapped, self.place.mapped);
        assert_eq!(arena.bytes(), m.bare.bytes(), "addresses were lost");
        assert!(m.chunks.iter().all(|(at, _)| !m.bare.has(*at, 1)));
        // The sums are right.
        assert_eq!(m.mapped, m.chunks.values().sum::<u64>());
        assert_eq!(m.spare_bytes, m.spare.keys().map(|at| m.chunks[at]).sum::<u64>());
        assert_eq!(m.used, m.live.values().map(|a| a.bytes).sum::<u64>());
        assert_eq!(m.live.len(), self.held.iter().filter(|(request, _)| !matches!(request, Request::Chunk(_))).count());
        // What the program has is mapped, and nothing else uses it.
        let mut free = Ranges::default();
        m.chunks.iter().filter(|(at, _)| !m.spare.contains_key(*at)).for_each(|(at, bytes)| free.put(*at, *bytes));
        for (request, address) in &self.held {
            let bytes = match request {
                Request::Chunk(bytes) => *bytes,
                Request::Allocation(bytes) | Request::FromPool { bytes, .. } => {
                    assert_eq!(m.find(address + bytes - 1).map(|found| found.start), Some(*address));
                    bytes.next_multiple_of(STEP)
                }
            };
            assert!(free.carve(*address, bytes), "{address:#x} is used twice, or not mapped");
        }
        // Chunks belong to what is allocated in them: none is left over.
        let shared = m.shared.iter().map(|at| m.chunks[at]).sum::<u64>();
        let own = self.held.iter().filter(|(request, at)| {
            m.chunks.contains_key(at)
                && matches!(request.chunk(), Ok((_, more)) if more > 0 || matches!(request, Request::Chunk(_)))
        });
        let own: u64 = own.map(|(_, at)| m.chunks[at]).sum();
        let pools: u64 = m.pools.values().map(|p| p.reserved.now).sum();
        assert_eq!(m.mapped, m.spare_bytes + shared + own + pools, "a chunk has no use");
        let small: u64 = self
            .held
            .iter()
            .filter_map(|(request, _)| match request {
                Request::Allocation(bytes) if *bytes < LARGE => Some(bytes.next_multiple_of(STEP)),
                _ => None,
            })
            .sum();
        assert_eq!(shared, small + m.small.bytes());
    }

    /// A step of the program.
    fn step(&mut self, choices: &mut Choices) {
        const SPARE: usize = REQUESTS.len();
        const FREE: usize = SPARE + 1;
        match choices.pick(FREE + self.held.len().min(2)) {
            request @ ..SPARE => self.serve(World::request(request), choices),
            SPARE => self.drop_spare(GRANULE, choices),
            FREE => self.free(0),
            _ => self.free(self.held.len() - 1),
        }
        self.check(choices);
    }

    /// Frees everything: then nothing is left, except what the place has not unmapped.
    fn end(mut self, choices: &mut Choices) {
        if choices.pick(2) == 0 {
            while !self.held.is_empty() {
                self.free(0);
            }
            self.check(choices);
            self.drop_spare(0, choices);
        } else {
            self.held.clear();
            for chunk in self.m.reset() {
                let unmapped = self.place.unmap(chunk, self.troubles, choices);
                self.m.unmapped(chunk, unmapped);
            }
        }
        self.check(choices);
        assert_eq!((self.m.mapped, self.m.count()), (0, 0));
        assert_eq!(self.place.bytes(), self.place.lost.iter().map(|chunk| chunk.bytes).sum::<u64>());
    }
}

fn run(steps: usize, troubles: Troubles, mistake: Mistake, choices: &mut Choices) {
    let mut world = World::new(troubles, mistake);
    (0..steps).for_each(|_| world.step(choices));
    world.end(choices);
}

#[test]
fn nothing_overlaps_and_nothing_is_lost_whatever_the_place_answers() {
    let (failures, others) = (true, true);
    let plain = every_choice(|c| run(bound(4, 5), Troubles { failures: false, others: false }, Mistake::None, c));
    let failing = every_choice(|c| run(3, Troubles { failures, others: false }, Mistake::None, c));
    let together = every_choice(|c| run(2, Troubles { failures, others }, Mistake::None, c));
    assert!(plain > bound(1000, 10_000) && failing > 1000 && together > 1000, "{plain} {failing} {together}");
}

#[test]
fn long_random_sequences_lose_nothing() {
    for failures in [false, true] {
        for others in [false, true] {
            random_choices(bound(10, 100), |c| run(200, Troubles { failures, others }, Mistake::None, c));
        }
    }
}

#[test]
fn mistakes_are_detected() {
    let found = |mistake| {
        std::panic::catch_unwind(|| random_choices(300, |c| run(40, Troubles { failures: true, others: false }, mistake, c)))
            .is_err()
    };
    assert!(!found(Mistake::None));
    for mistake in [
        Mistake::BelievesAFailedMap,
        Mistake::BelievesAFailedUnmap,
        Mistake::LosesTheAddressesOfAFailedMap,
        Mistake::FreesTwice,
        Mistake::KeepsAChunkInTwoTables,
    ] {
        assert!(found(mistake), "{mistake:?}");
    }
    let gives_up =
        || random_choices(300, |c| run(40, Troubles { failures: false, others: false }, Mistake::GivesUpWithSpareMemory, c));
    assert!(std::panic::catch_unwind(gives_up).is_err());
}

#[test]
fn a_pool_that_ends_while_memory_is_mapped_for_it_loses_no_chunk() {
    const POOL: u64 = 1;
    let request = Request::FromPool { pool: POOL, stream: STREAM, bytes: STEP };
    let mut m = Memory::new(0);
    m.pools.insert(POOL, Pool::new(0));
    let (mut growth, step) = Growth::begin(&mut m, request).unwrap();
    assert!(matches!(step, Step::Map(chunk) if chunk.bytes == pool::GROWTH));
    m.pools.entry(POOL).and_modify(|p| p.doomed = true);
    assert!(m.complete(None, 0).is_empty() && !m.pools.contains_key(&POOL));
    assert_eq!(growth.mapped(&mut m, Ok(())), Err(code::ERROR_INVALID_VALUE));
    assert_eq!((m.spare_bytes, m.mapped, m.count()), (pool::GROWTH, pool::GROWTH, 0), "it is spare");
}
