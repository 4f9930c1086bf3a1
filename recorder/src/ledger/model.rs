//! Model check of the ledger: every short sequence, and long random ones, of calls that succeed or fail at the place, and of moves. The
//! places here carry out what they are sent and record it in their order; a replay of the journal must build the same state.

use super::call::{Begun, Load};
use super::*;
use cuda_api::calls::context::cuCtxSetLimit;
use cuda_api::calls::module::{cuFuncSetCacheConfig, cuModuleGetFunction, cuModuleUnload};
use cuda_api::handle::compose;
use cuda_api::ops::ImageLoaded;
use interleave::{Choices, bound, every_choice, random_choices};
use std::collections::BTreeMap;

/// Images in a world with so many that an unloaded one evicts another, besides those of the sequences.
const IDLE: u8 = IDLE_IMAGES as u8;
/// Maximum size of a world's journal. Thousands of larger ones would take most of the time.
const JOURNAL: usize = 2 << 20;
/// The images of the sequences.
const IMAGES: u8 = 2;

/// A wrong shell, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    RecordsBeforeTheAnswer,
    RecordsInAnotherOrder,
    ForgetsThatAnImageWasPut,
    EvictsWithoutARecord,
    TakesTheTailTwice,
    LosesTheTailOfAFailedMove,
}

/// The state of a place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// Images by hash.
    images: BTreeSet<[u8; 32]>,
    /// The image of each module.
    modules: BTreeMap<u64, [u8; 32]>,
    /// The module and the name of each function.
    functions: BTreeMap<u64, (u64, u8)>,
    /// Settings of functions, and limits of the context.
    settings: BTreeMap<(u16, u64), u64>,
    chunks: BTreeSet<u64>,
}

fn word(body: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(body[at..at + 8].try_into().unwrap())
}

impl Place {
    /// Carries out a call. What cannot be carried out, because it relies on something that is not there, is a panic.
    fn apply(&mut self, id: u16, body: &[u8]) {
        match id {
            ops::id::IMAGE_PUT => assert!(self.images.insert([body[0]; 32]), "the place has the image already"),
            ops::id::IMAGE_END => {
                let hash: [u8; 32] = body.try_into().unwrap();
                assert!(self.images.remove(&hash) && self.modules.values().all(|of| *of != hash));
            }
            ops::id::IMAGE_LOAD => {
                assert!(self.images.contains(&[body[8]; 32]), "the place does not have the image");
                assert!(self.modules.insert(word(body, 0), [body[8]; 32]).is_none());
            }
            cuModuleGetFunction::Fn::ID => {
                let (function, module) = (word(body, 0), word(body, 8));
                assert!(self.modules.contains_key(&module));
                assert!(self.functions.insert(function, (module, body[16])).is_none());
            }
            cuModuleUnload::Fn::ID => {
                let module = word(body, 0);
                assert!(self.modules.remove(&module).is_some());
                let gone: Vec<u64> = self.functions.extract_if(.., |_, (of, _)| *of == module).map(|(f, _)| f).collect();
                self.settings.retain(|(id, f), _| *id != cuFuncSetCacheConfig::Fn::ID || !gone.contains(f));
            }
            cuFuncSetCacheConfig::Fn::ID => {
                assert!(self.functions.contains_key(&word(body, 0)));
                self.settings.insert((id, word(body, 0)), body[8].into());
            }
            cuCtxSetLimit::Fn::ID => drop(self.settings.insert((id, body[0].into()), word(body, 4))),
            ops::id::CHUNK_MAP => assert!(self.chunks.insert(word(body, 0))),
            ops::id::CHUNK_UNMAP => assert!(self.chunks.remove(&word(body, 0))),
            ops::id::OVERTAKEN => {}
            other => panic!("{other:#x}"),
        }
    }

    /// A fresh place, after a replay of these records.
    fn replay<'a>(&mut self, records: impl Iterator<Item = (u16, Vec<u8>)> + 'a) {
        records.for_each(|(id, body)| self.apply(id, &body));
    }
}

struct World {
    ledger: Ledger,
    source: Place,
    mistake: Mistake,
    failures: bool,
    /// What the source has carried out, in its order.
    executed: Vec<(u16, Vec<u8>)>,
    /// The target of a move.
    target: Option<Place>,
    next: u64,
    /// Number of images from which code is loaded.
    images: u8,
}

fn of_buffer(records: &RecordBuffer) -> Vec<(u16, Vec<u8>)> {
    records.iter().map(|r| (r.id, r.body.to_vec())).collect()
}

impl World {
    fn new(failures: bool, mistake: Mistake) -> World {
        let (source, executed) = (Place::default(), Vec::new());
        World {
            ledger: Ledger::new(3, Writer::in_memory_up_to(JOURNAL).map_err(NoJournal::Memory)),
            source,
            mistake,
            failures,
            executed,
            target: None,
            next: 1,
            images: IMAGES,
        }
    }

    /// A world with as many images without code as are kept.
    fn crowded(failures: bool, mistake: Mistake, choices: &mut Choices) -> World {
        let mut world = World::new(false, mistake);
        for image in 0..IDLE {
            world.load(IMAGES + image, choices);
            world.unload(choices);
        }
        World { failures, images: IMAGES + IDLE, ..world }
    }

    /// Sends a call; returns whether it has succeeded.
    fn send(&mut self, id: u16, body: &[u8], choices: &mut Choices) -> bool {
        if self.failures && choices.rarely(3) {
            return self.mistake == Mistake::RecordsBeforeTheAnswer;
        }
        self.source.apply(id, body);
        self.executed.push((id, body.to_vec()));
        true
    }

    fn handle(&mut self, kind: Kind) -> u64 {
        self.next += 1;
        compose(kind, 1, self.next as u32)
    }

    /// Carries out a row, as the shell does. Returns the handle of a repeated request.
    fn row<C: Call>(&mut self, body: &[u8], edges: &Edges, choices: &mut Choices) -> Option<u64> {
        let call = match self.ledger.begin::<C>(body, edges) {
            Begun::IsSet => return None,
            Begun::Known(handle) => return Some(handle),
            Begun::Send(call) => call,
        };
        if !self.send(C::ID, body, choices) {
            return None;
        }
        for hash in self.ledger.succeeded::<C>(call, body, &[], edges).unwrap() {
            self.source.apply(ops::id::IMAGE_END, &hash);
            self.executed.push((ops::id::IMAGE_END, hash.to_vec()));
            if self.mistake != Mistake::EvictsWithoutARecord {
                self.ledger.end_image(&hash).unwrap();
            }
        }
        if let Some(ended) = edges.ends {
            self.ledger.forget_children(ended);
        }
        None
    }

    fn load(&mut self, image: u8, choices: &mut Choices) {
        let (handle, hash) = (self.handle(Kind::Module), [image; 32]);
        let name = match self.ledger.image(&hash) {
            Some(name) => name,
            None => {
                if !self.send(ops::id::IMAGE_PUT, &[image], choices) {
                    return;
                }
                if self.mistake == Mistake::ForgetsThatAnImageWasPut {
                    7
                } else {
                    self.ledger.put_image(hash, &[], &[image]).unwrap()
                }
            }
        };
        let body = [&handle.to_le_bytes()[..], &[image]].concat();
        if self.send(ops::id::IMAGE_LOAD, &body, choices) {
            let load = Load { handle, hash, image: name, body: &body };
            self.ledger.load_succeeded(&load, &ImageLoaded::default()).unwrap();
        }
    }

    fn get_function(&mut self, name: u8, choices: &mut Choices) {
        let Some(module) = self.source.modules.keys().next().copied() else { return };
        let new = self.handle(Kind::Function);
        let body = [&new.to_le_bytes()[..], &module.to_le_bytes(), &[name]].concat();
        let edges = Edges { creates: [new].into(), ends: None, uses: [module].into() };
        let had = self.source.functions.iter().find(|(_, of)| **of == (module, name)).map(|(f, _)| *f);
        let known = self.row::<cuModuleGetFunction::Fn>(&body, &edges, choices);
        assert_eq!(known, had, "a repeated request returns the same handle, and only that");
    }

    fn unload(&mut self, choices: &mut Choices) {
        let Some(module) = self.source.modules.keys().next_back().copied() else { return };
        let edges = Edges { ends: Some(module), ..Edges::default() };
        self.row::<cuModuleUnload::Fn>(&module.to_le_bytes(), &edges, choices);
    }

    fn set(&mut self, value: u8, choices: &mut Choices) {
        let Some(function) = self.source.functions.keys().next().copied() else { return };
        let body = [&function.to_le_bytes()[..], &[value, 0, 0, 0]].concat();
        let edges = Edges { uses: [function].into(), ..Edges::default() };
        self.row::<cuFuncSetCacheConfig::Fn>(&body, &edges, choices);
    }

    fn limit(&mut self, value: u64, choices: &mut Choices) {
        let body = [&(Limit::CU_LIMIT_STACK_SIZE as u32).to_le_bytes()[..], &value.to_le_bytes()].concat();
        self.row::<cuCtxSetLimit::Fn>(&body, &Edges::default(), choices);
    }

    /// Sets a limit to a value that it did not have: a setting that changes nothing is not recorded.
    fn new_limit(&mut self, choices: &mut Choices) {
        self.next += 1;
        self.limit(self.next, choices);
    }

    /// Maps a chunk, or unmaps it.
    fn chunk(&mut self, choices: &mut Choices) {
        let address = 1 << 40;
        let (id, edges) = match self.source.chunks.contains(&address) {
            true => (ops::id::CHUNK_UNMAP, Edges { ends: Some(address), ..Edges::default() }),
            false => (ops::id::CHUNK_MAP, Edges { creates: [address].into(), ..Edges::default() }),
        };
        let body = [&address.to_le_bytes()[..], &(2u64 << 20).to_le_bytes()].concat();
        if self.mistake == Mistake::RecordsInAnotherOrder {
            // Another thread's call is carried out between this one and its record.
            let sent = self.send(id, &body, choices);
            self.new_limit(choices);
            sent.then(|| self.ledger.append(id, &body, &[], &edges, Keep::PLAIN));
        } else if self.send(id, &body, choices) {
            self.ledger.append(id, &body, &[], &edges, Keep::PLAIN).unwrap();
        }
    }

    /// Begins a move, replays its tail, ends or abandons it.
    fn move_on(&mut self, choices: &mut Choices) {
        let Some(mut target) = self.target.take() else {
            let mut target = Place::default();
            target.replay(of_buffer(&self.ledger.begin_move().unwrap()).into_iter());
            self.target = Some(target);
            return;
        };
        match choices.pick(3) {
            0 => {
                let tail = of_buffer(&self.ledger.take_tail().unwrap());
                if self.mistake == Mistake::TakesTheTailTwice {
                    target.replay(tail.clone().into_iter());
                }
                target.replay(tail.into_iter());
                assert_eq!(target, self.source);
                self.target = Some(target);
            }
            1 => {
                target.replay(of_buffer(&self.ledger.take_tail().unwrap()).into_iter());
                assert_eq!(target, self.source);
                self.source = target;
                self.ledger.end_move();
            }
            // It has failed.
            _ if self.mistake == Mistake::LosesTheTailOfAFailedMove => {
                self.ledger.take_tail().unwrap();
                self.target = Some(target);
            }
            _ => self.ledger.end_move(),
        }
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.pick(8) {
            0 => {
                let image = choices.pick(self.images.into()) as u8;
                self.load(image, choices);
            }
            1 => self.unload(choices),
            name @ 2..4 => self.get_function(name as u8, choices),
            4 => {
                let value = choices.pick(2) as u8;
                self.set(value, choices);
            }
            5 => {
                let value = choices.pick(3) as u64;
                self.limit(value, choices);
            }
            6 => self.chunk(choices),
            _ => self.move_on(choices),
        }
        if !choices.is_repeated() {
            self.check();
        }
    }

    fn check(&self) {
        let l = &self.ledger;
        let images: BTreeSet<[u8; 32]> =
            (0..IMAGES + IDLE).map(|image| [image; 32]).filter(|hash| l.image(hash).is_some()).collect();
        assert_eq!(images, self.source.images);
        let used: BTreeSet<[u8; 32]> = self.source.modules.values().copied().collect();
        // What was put for a load that has failed is evicted at the next unloading.
        assert!(images.len() - used.len() <= IDLE_IMAGES + IMAGES as usize, "images are never evicted");
        // A fresh place that replays the live set is like the source.
        let mut fresh = Place::default();
        fresh.replay(l.live().unwrap().map(|r| r.map(|r| (r.id, r.body.to_vec())).unwrap()));
        assert_eq!(fresh, self.source, "a replay builds another state");
    }
}

fn run(steps: usize, failures: bool, mistake: Mistake, choices: &mut Choices) {
    let mut world = World::new(failures, mistake);
    (0..steps).for_each(|_| world.step(choices));
}

/// As [`run`], in a crowded world.
fn run_crowded(steps: usize, mistake: Mistake, choices: &mut Choices) {
    let mut world = World::crowded(true, mistake, choices);
    (0..steps).for_each(|_| world.step(choices));
}

/// Runs without moves but with a tail from the beginning on: it has everything that the place has carried out, in that order.
fn run_in_order(steps: usize, mistake: Mistake, choices: &mut Choices) {
    let mut world = World::new(true, mistake);
    world.ledger.begin_move().unwrap();
    for _ in 0..steps {
        match choices.pick(8) {
            image @ 0..2 => world.load(image as u8, choices),
            2 => world.unload(choices),
            name @ 3..5 => world.get_function(name as u8, choices),
            5 => world.set(1, choices),
            6 => world.new_limit(choices),
            _ => world.chunk(choices),
        }
    }
    assert_eq!(of_buffer(&world.ledger.take_tail().unwrap()), world.executed, "the journal has another order");
}

#[test]
fn a_replay_builds_what_the_calls_have_built_whatever_fails() {
    let plain = every_choice(|c| run(3, false, Mistake::None, c));
    let failing = every_choice(|c| run(bound(2, 3), true, Mistake::None, c));
    assert!(plain > 1000 && failing > bound(100, 1000), "{plain} {failing}");
    random_choices(40, |c| run(100, true, Mistake::None, c));
    random_choices(40, |c| run_crowded(60, Mistake::None, c));
}

#[test]
fn the_journal_has_the_order_of_the_place() {
    let all = every_choice(|c| run_in_order(3, Mistake::None, c));
    assert!(all > 1000, "{all}");
    random_choices(40, |c| run_in_order(100, Mistake::None, c));
}

#[test]
fn mistakes_are_detected() {
    let panics = |mistake, run: fn(usize, Mistake, &mut Choices)| {
        std::panic::catch_unwind(|| random_choices(30, |c| run(40, mistake, c))).is_err()
    };
    let all: fn(usize, Mistake, &mut Choices) = |steps, mistake, c| run(steps, true, mistake, c);
    assert!(!panics(Mistake::None, all) && !panics(Mistake::None, run_in_order) && !panics(Mistake::None, run_crowded));
    for mistake in [
        Mistake::RecordsBeforeTheAnswer,
        Mistake::ForgetsThatAnImageWasPut,
        Mistake::TakesTheTailTwice,
        Mistake::LosesTheTailOfAFailedMove,
    ] {
        assert!(panics(mistake, all), "{mistake:?}");
    }
    assert!(panics(Mistake::RecordsInAnotherOrder, run_in_order));
    assert!(panics(Mistake::EvictsWithoutARecord, run_crowded));
}
