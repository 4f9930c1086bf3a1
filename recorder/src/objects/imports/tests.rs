use super::*;
use interleave::every_choice;

const BYTES: u64 = 2 << 20;

fn source(owner: u32, number: u64, epoch: u64) -> Source {
    Source { owner, epoch, chunk: Chunk { address: 0x2000_0000_0000 + number * BYTES, bytes: BYTES } }
}

fn made(i: &mut Imports, of: Source) -> u64 {
    let at = i.reserve(&of).unwrap();
    i.made(at, of);
    at
}

#[test]
fn what_was_made_is_found_while_it_is_the_same_memory() {
    let mut i = Imports::new(1);
    let of = source(1, 0, 1);
    assert_eq!(i.take(&of), None);
    let at = made(&mut i, of);
    assert!((IMPORTS..IMPORTS_END).contains(&at));
    assert_eq!(i.take(&of), Some(at));
    assert_eq!(i.take(&source(1, 0, 2)), None, "the owner has moved");
    let larger = Source { chunk: Chunk { bytes: 2 * BYTES, ..of.chunk }, ..of };
    assert_eq!(i.take(&larger), None, "another chunk begins there");
}

#[test]
fn what_copies_use_is_unmapped_behind_them() {
    let mut i = Imports::new(1);
    let of = source(1, 0, 1);
    let at = made(&mut i, of);
    let mapping = Chunk { address: at, bytes: BYTES };
    assert_eq!((i.take(&of), i.take(&of)), (Some(at), Some(at)));
    assert_eq!(i.end(|s| *s == of), []);
    assert_eq!(i.take(&of), None, "no copy begins to use it");
    // Other memory at the same address of the owner, before the old mapping is gone.
    let again = made(&mut i, of);
    assert_ne!(again, at);
    assert_eq!(i.take(&of), Some(again));
    assert_eq!((i.done(at), i.done(at)), (None, Some(mapping)));
    assert_eq!(i.done(at), None, "only once");
    i.unmapped(mapping);
    assert_eq!(made(&mut i, source(1, 7, 1)), at, "the addresses are free again");
    assert_eq!(i.done(again), None, "a current one stays mapped");
    assert_eq!(i.take(&of), Some(again));
}

#[test]
fn room_is_made_by_ending_what_nothing_uses() {
    let mut i = Imports::new(1);
    let whole = IMPORTS_END - IMPORTS;
    let big = |n: u64| Source { chunk: Chunk { address: 0x2000_0000_0000 + n * whole, bytes: whole / 2 }, ..source(1, 0, 1) };
    let first = made(&mut i, big(0));
    let second = made(&mut i, big(1));
    assert_eq!(i.take(&big(0)), Some(first));
    assert_eq!(i.reserve(&big(2)), None);
    let gone = i.end_unused();
    assert_eq!(gone, [Chunk { address: second, bytes: whole / 2 }]);
    assert_eq!(i.reserve(&big(2)), None, "not before it is unmapped");
    gone.into_iter().for_each(|mapping| i.unmapped(mapping));
    assert_eq!(i.reserve(&big(2)), Some(second));
}

#[test]
fn a_failure_is_remembered_for_the_place() {
    let mut i = Imports::new(1);
    let of = source(1, 0, 1);
    let at = i.reserve(&of).unwrap();
    i.failed(at, &of, false);
    assert!(i.may_try(&of), "there was no memory just then");
    assert_eq!(i.reserve(&of), Some(at), "its addresses are free again");
    i.failed(at, &of, true);
    assert!(!i.may_try(&source(1, 5, 1)) && i.may_try(&source(1, 5, 2)) && i.may_try(&source(2, 5, 1)));
}

/// What exists, as the places have it: mappings by address, with the number of the physical memory behind them.
#[derive(Default)]
struct World {
    mapped: BTreeMap<u64, u64>,
    /// The physical memory of each chunk, which a re-allocation changes.
    physical: [u64; 2],
    /// Copies under way: address, physical memory that was meant.
    copies: Vec<(u64, u64)>,
}

impl World {
    fn unmap(&mut self, i: &mut Imports, mappings: Vec<Chunk>) {
        for mapping in mappings {
            assert!(self.copies.iter().all(|(at, _)| *at != mapping.address), "a copy uses it");
            assert!(self.mapped.remove(&mapping.address).is_some(), "unmapped twice");
            i.unmapped(mapping);
        }
    }
}

/// Copies that begin and end, memory that is re-allocated, and room that is made, in all orders of so many steps: each copy uses the memory
/// that its chunk had when it began, and what it uses stays mapped.
#[test]
fn no_order_of_steps_gives_a_copy_other_memory() {
    let orders = every_choice(|choices| {
        let (mut i, mut w, mut next) = (Imports::new(1), World::default(), 200);
        w.physical = [100, 200];
        for _ in 0..6 {
            match choices.pick(5) {
                chunk @ (0 | 1) => {
                    let of = source(1, chunk as u64, 1);
                    let at = i.take(&of).unwrap_or_else(|| {
                        let at = i.reserve(&of).unwrap();
                        assert!(w.mapped.insert(at, w.physical[chunk]).is_none(), "two mappings at one address");
                        i.made(at, of);
                        i.take(&of).unwrap()
                    });
                    assert_eq!(w.mapped.get(&at), Some(&w.physical[chunk]), "stale memory");
                    w.copies.push((at, w.physical[chunk]));
                }
                2 if !w.copies.is_empty() => {
                    let (at, meant) = w.copies.remove(0);
                    assert_eq!(w.mapped.get(&at), Some(&meant));
                    let gone = i.done(at);
                    w.unmap(&mut i, gone.into_iter().collect());
                }
                3 => {
                    let gone = i.end(|of| *of == source(1, 0, 1));
                    w.unmap(&mut i, gone);
                    next += 1;
                    w.physical[0] = next;
                }
                4 => {
                    let gone = i.end_unused();
                    w.unmap(&mut i, gone);
                }
                _ => {}
            }
            assert!(w.copies.iter().all(|(at, meant)| w.mapped.get(at) == Some(meant)));
        }
        for (at, _) in std::mem::take(&mut w.copies) {
            let gone = i.done(at);
            w.unmap(&mut i, gone.into_iter().collect());
        }
        let gone = i.end(|_| true);
        w.unmap(&mut i, gone);
        assert!(w.mapped.is_empty(), "something stays mapped");
    });
    assert!(orders > 10_000, "{orders}");
}
