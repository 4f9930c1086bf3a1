use super::*;

const CHUNK: u64 = 1 << 40;

fn pool() -> Pool {
    let mut p = Pool::new(0);
    p.grow(CHUNK, GROWTH);
    p
}

#[test]
fn a_stream_gets_back_what_it_has_freed_and_others_wait() {
    let mut p = pool();
    let all = p.take(7, GROWTH).unwrap();
    assert!(!all.pending && p.take(7, 512).is_none());
    p.give_back(7, 1, all.address, GROWTH);
    assert_eq!(p.take(8, 512), None, "work of stream 7 may still use it");
    assert_eq!(p.take(7, 512), Some(Found { address: CHUNK, pending: true }));
    p.complete(Some(8), 5);
    p.complete(None, 0);
    assert_eq!(p.take(8, 512), None, "another stream, an earlier generation");
    p.complete(Some(7), 1);
    assert_eq!(p.take(8, 512), Some(Found { address: CHUNK + 512, pending: false }));
    assert_eq!(p.used, Level { now: 1024, high: GROWTH });
}

#[test]
fn what_follows_no_stream_is_nobodys_until_all_is_done() {
    let mut p = pool();
    let a = p.take(7, GROWTH).unwrap().address;
    p.give_back(NO_STREAM, 3, a, GROWTH);
    assert!(p.take(NO_STREAM, 512).is_none() && p.take(7, 512).is_none());
    assert!(p.has_pending(3) && !p.has_pending(2) && p.is_waiting());
    p.complete(None, 3);
    assert!(p.take(7, GROWTH).is_some() && !p.is_waiting());
}

#[test]
fn only_empty_chunks_are_released() {
    let mut p = pool();
    p.grow(CHUNK + GROWTH, GROWTH);
    let a = p.take(7, GROWTH + 512).unwrap().address;
    assert!(p.release(0).is_empty(), "the block lies in both");
    p.give_back(7, 1, a, GROWTH + 512);
    assert!(p.release(0).is_empty(), "not complete");
    p.complete(None, 1);
    let b = p.take(7, 512).unwrap().address;
    assert!(p.holds_too_much());
    assert_eq!(p.release(GROWTH), [CHUNK + GROWTH]);
    assert_eq!((p.reserved.now, p.reserved.high), (GROWTH, 2 * GROWTH));
    assert!(p.release(0).is_empty());
    p.give_back(7, 2, b, 512);
    p.complete(None, 2);
    assert_eq!(p.release(0), [CHUNK]);
    assert!(p.is_empty());
}

#[test]
fn a_limit_is_kept() {
    let mut p = Pool::new(1024);
    p.grow(CHUNK, GROWTH);
    assert!(p.allows(1024) && !p.allows(1536));
    p.take(1, 1024).unwrap();
    assert!(!p.allows(512));
}

#[test]
fn sizes_are_rounded_to_the_alignment() {
    assert_eq!([1, 511, 512, 513].map(Pool::room), [Some(512), Some(512), Some(512), Some(1024)]);
    assert_eq!((Pool::room(0), Pool::room(u64::MAX), Pool::room(u64::MAX - 511)), (Some(0), None, Some(u64::MAX - 511)));
}

#[test]
fn a_size_that_cannot_be_rounded_is_refused() {
    let mut p = pool();
    assert_eq!(p.take(7, u64::MAX), None);
    assert_eq!(p.used, Level::default());
}

#[test]
fn the_requested_size_counts_as_used_and_not_the_rounded_one() {
    let mut p = pool();
    let a = p.take(7, 100).unwrap().address;
    let b = p.take(7, 100).unwrap().address;
    assert_eq!((b - a, p.used.now), (STEP, 200));
    p.give_back(7, 1, a, 100);
    assert_eq!(p.used, Level { now: 100, high: 200 });
}

#[test]
fn the_highest_level_stays_when_memory_is_freed() {
    let mut p = pool();
    let a = p.take(7, 4096).unwrap().address;
    p.give_back(7, 1, a, 4096);
    p.take(7, 512).unwrap();
    assert_eq!(p.used, Level { now: 512, high: 4096 });
    assert_eq!(p.reserved, Level { now: GROWTH, high: GROWTH });
}

#[test]
fn a_pool_without_memory_gives_none() {
    let mut p = Pool::new(0);
    assert_eq!(p.take(7, 1), None);
    assert!(p.is_empty() && !p.is_waiting() && !p.holds_too_much());
    assert!(p.release(0).is_empty());
}

#[test]
fn own_blocks_are_preferred_to_free_ones() {
    let mut p = pool();
    let a = p.take(7, 512).unwrap().address;
    p.give_back(7, 1, a, 512);
    assert_eq!(p.take(7, 512), Some(Found { address: a, pending: true }));
    assert!(!p.take(7, 512).unwrap().pending);
}

#[test]
fn a_stream_reuses_blocks_of_all_its_generations() {
    let mut p = pool();
    let all: Vec<u64> = (0..3).map(|_| p.take(7, GROWTH / 4).unwrap().address).collect();
    p.take(7, GROWTH / 4).unwrap();
    for (generation, at) in (1..).zip(&all) {
        p.give_back(7, generation, *at, GROWTH / 4);
    }
    let mut again: Vec<u64> = (0..3).map(|_| p.take(7, GROWTH / 4).unwrap().address).collect();
    again.sort_unstable();
    assert_eq!((again, p.take(7, 512)), (all, None));
}

#[test]
fn blocks_of_two_generations_are_not_joined_before_they_are_complete() {
    let mut p = pool();
    let (a, b) = (p.take(7, GROWTH / 2).unwrap().address, p.take(7, GROWTH / 2).unwrap().address);
    p.give_back(7, 1, a, GROWTH / 2);
    p.give_back(7, 2, b, GROWTH / 2);
    assert_eq!(p.take(7, GROWTH), None);
    p.complete(Some(7), 2);
    assert_eq!(p.take(8, GROWTH), Some(Found { address: CHUNK, pending: false }));
}

#[test]
fn completing_a_stream_leaves_frees_of_others() {
    let mut p = pool();
    let (a, b) = (p.take(7, GROWTH / 2).unwrap().address, p.take(8, GROWTH / 2).unwrap().address);
    p.give_back(7, 1, a, GROWTH / 2);
    p.give_back(8, 1, b, GROWTH / 2);
    p.complete(Some(7), 1);
    assert_eq!(p.take(9, GROWTH / 2).map(|f| f.address), Some(a));
    assert_eq!(p.take(9, 512), None);
    assert!(p.is_waiting() && p.has_pending(1));
}

#[test]
fn completing_a_stream_leaves_frees_that_follow_no_stream() {
    let mut p = pool();
    let a = p.take(7, GROWTH).unwrap().address;
    p.give_back(NO_STREAM, 1, a, GROWTH);
    p.complete(Some(7), u64::MAX);
    assert_eq!(p.take(7, 512), None);
    p.complete(None, 1);
    assert!(p.take(7, 512).is_some());
}

#[test]
fn later_generations_stay_incomplete() {
    let mut p = pool();
    let (a, b) = (p.take(7, GROWTH / 2).unwrap().address, p.take(7, GROWTH / 2).unwrap().address);
    p.give_back(7, 3, a, GROWTH / 2);
    p.give_back(7, 4, b, GROWTH / 2);
    p.complete(None, 3);
    assert!(!p.has_pending(3) && p.has_pending(4));
    assert_eq!(p.take(8, GROWTH / 2).map(|f| f.address), Some(a));
    assert_eq!(p.take(8, 512), None);
}

#[test]
fn a_block_that_was_taken_again_is_pending_no_more() {
    let mut p = pool();
    let a = p.take(7, GROWTH).unwrap().address;
    p.give_back(7, 1, a, GROWTH);
    assert!(p.has_pending(1));
    p.take(7, GROWTH).unwrap();
    assert!(!p.has_pending(1) && !p.is_waiting());
    p.complete(None, 9);
    assert_eq!(p.take(8, 512), None, "it is in use");
}

#[test]
fn a_limit_counts_what_is_used_and_not_what_is_reserved() {
    let mut p = Pool::new(4096);
    p.grow(CHUNK, GROWTH);
    assert!(p.allows(4096));
    let a = p.take(7, 4000).unwrap().address;
    assert!(!p.allows(512));
    p.give_back(7, 1, a, 4000);
    assert!(p.allows(4096), "a free counts at once");
}

#[test]
fn a_pool_without_a_limit_allows_any_size() {
    let mut p = pool();
    p.take(7, GROWTH).unwrap();
    assert!(p.allows(u64::MAX - GROWTH));
}

#[test]
fn memory_up_to_the_threshold_is_kept_by_synchronisations() {
    let mut p = pool();
    assert!(p.holds_too_much());
    p.settings.threshold = GROWTH;
    assert!(!p.holds_too_much());
    p.grow(CHUNK + 2 * GROWTH, GROWTH);
    assert!(p.holds_too_much());
    assert_eq!(p.release(p.settings.threshold), [CHUNK]);
    assert!(!p.holds_too_much());
}

#[test]
fn no_more_is_released_than_is_wanted() {
    let mut p = pool();
    p.grow(CHUNK + 2 * GROWTH, GROWTH);
    p.grow(CHUNK + 4 * GROWTH, GROWTH);
    assert!(p.release(3 * GROWTH).is_empty());
    assert_eq!(p.release(3 * GROWTH - 1), [CHUNK]);
    assert_eq!(p.release(1), [CHUNK + 2 * GROWTH, CHUNK + 4 * GROWTH]);
    assert_eq!((p.reserved.now, p.is_empty()), (0, true));
}

#[test]
fn released_memory_is_not_given_again() {
    let mut p = pool();
    assert_eq!(p.release(0), [CHUNK]);
    assert_eq!(p.take(7, 1), None);
    p.grow(CHUNK, GROWTH);
    assert!(p.take(7, GROWTH).is_some());
    assert_eq!(p.reserved, Level { now: GROWTH, high: GROWTH });
}

/// What a stream may get: a model with one owner for each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Free,
    Used,
    Freed(u64, u64),
}

#[test]
fn no_stream_gets_what_work_of_another_may_use() {
    use crate::objects::ranges::tests::Random;
    const BLOCKS: u64 = 64;
    for seed in 1..60 {
        let mut random = Random::new(seed);
        let mut p = Pool::new(0);
        p.grow(CHUNK, BLOCKS * STEP);
        let (mut model, mut live, mut generation) = (vec![Block::Free; BLOCKS as usize], Vec::new(), 1);
        for _ in 0..500 {
            let stream = 1 + random.below(3);
            match random.below(6) {
                0..=2 => {
                    let blocks = 1 + random.below(5);
                    let Some(found) = p.take(stream, blocks * STEP) else { continue };
                    let at = (found.address - CHUNK) / STEP;
                    for block in &mut model[at as usize..(at + blocks) as usize] {
                        match block {
                            Block::Free => assert!(!found.pending),
                            Block::Freed(of, _) => assert!(found.pending && *of == stream, "{seed}"),
                            Block::Used => panic!("given twice"),
                        }
                        *block = Block::Used;
                    }
                    live.push((at, blocks));
                }
                3 | 4 if !live.is_empty() => {
                    let (at, blocks) = live.swap_remove(random.below(live.len() as u64) as usize);
                    let stream = if random.below(8) == 0 { NO_STREAM } else { stream };
                    p.give_back(stream, generation, CHUNK + at * STEP, blocks * STEP);
                    model[at as usize..(at + blocks) as usize].fill(Block::Freed(stream, generation));
                }
                5 => {
                    let only = (random.below(2) == 0).then_some(stream);
                    let upto = generation - random.below(2).min(generation - 1);
                    p.complete(only, upto);
                    for block in &mut model {
                        if let Block::Freed(of, g) = *block
                            && g <= upto
                            && only.is_none_or(|o| o == of)
                        {
                            *block = Block::Free;
                        }
                    }
                    generation += 1;
                }
                _ => {}
            }
            assert_eq!(p.used.now, live.iter().map(|(_, blocks)| blocks * STEP).sum::<u64>());
            assert_eq!(p.is_waiting(), model.iter().any(|b| matches!(b, Block::Freed(..))));
        }
    }
}
