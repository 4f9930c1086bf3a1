use super::*;
use crate::pinned::blocks::*;
use crate::pinned::naming::may_name;
use cuda_api::address_map::{HOST as ARENA, HOST_END as ARENA_END};
use std::ops::Range;

fn block(bytes: u64) -> Block {
    Block {
        bytes,
        flags: 0,
        kind: Kind::Pinned,
        filed: true,
        slab: Slab::default(),
        exclusive: false,
        device: 0,
        id: 0,
        known: Known::Unused,
    }
}

#[test]
fn gaps_are_found_lowest_first() {
    let mut blocks = BTreeMap::new();
    assert_eq!(gap(&blocks, ARENA, PAGE, PAGE), Some(ARENA));
    blocks.insert(ARENA, block(5000));
    blocks.insert(ARENA + 8 * PAGE, block(1));
    // Memory of the program is at other addresses.
    blocks.insert(0x7f00_0000_0000, block(1 << 30));
    assert_eq!(gap(&blocks, ARENA, 2 * PAGE, PAGE), Some(ARENA + 3 * PAGE));
    assert_eq!(gap(&blocks, ARENA, 4 * PAGE, PAGE), Some(ARENA + 3 * PAGE));
    assert_eq!(gap(&blocks, ARENA, 5 * PAGE, PAGE), Some(ARENA + 10 * PAGE));
    assert_eq!(gap(&blocks, ARENA + 2 * PAGE, PAGE, PAGE), Some(ARENA + 2 * PAGE));
    assert_eq!(gap(&blocks, ARENA, ARENA_END - ARENA, PAGE), None);
    assert_eq!(gap(&BTreeMap::new(), ARENA, ARENA_END - ARENA, PAGE), Some(ARENA));
}

/// A range that contains no address.
const NOTHING: Range<u64> = Range { start: u64::MAX, end: 0 };

#[test]
fn addresses_are_found_among_bytes() {
    let highest = ARENA + (5 << 30);
    for (word, found) in [(ARENA, true), (highest - 1, true), (ARENA - 1, false), (highest + (1 << 32), false), (0, false)] {
        let mut bytes = vec![0xffu8; 80];
        bytes[40..48].copy_from_slice(&word.to_le_bytes());
        assert_eq!(may_name(&bytes, &[ARENA..highest, NOTHING]), found, "{word:#x}");
    }
    let own = 0x7f12_0000_0000..0x7f13_0000_1000u64;
    for (word, found) in
        [(ARENA, true), (own.start, true), (own.end - 1, true), (own.start - 1, false), (own.end + (1 << 32), false)]
    {
        let mut bytes = vec![0xffu8; 80];
        bytes[72..].copy_from_slice(&word.to_le_bytes());
        assert_eq!(may_name(&bytes, &[ARENA..highest, own.clone()]), found, "{word:#x}");
    }
}

#[test]
fn addresses_just_outside_of_a_block_stand_for_it() {
    let own = 0x7f00_0000_0000;
    let blocks =
        BTreeMap::from([(ARENA, block(2 * PAGE)), (ARENA + 3 * PAGE, block(100)), (own, block(64)), (own + 64, block(64))]);
    let second = ARENA + 3 * PAGE;
    for (address, is) in [
        (ARENA - OUTSIDE - 1, None),
        (ARENA - 8, Some(ARENA)),
        (ARENA + 2 * PAGE - 1, Some(ARENA)),
        (ARENA + 2 * PAGE, Some(ARENA)),
        (second - 4, Some(second)),
        (second + 100, Some(second)),
        (second + 100 + OUTSIDE, None),
        (own + 64, Some(own + 64)),
        (own + 128, Some(own + 64)),
        (u64::MAX, None),
    ] {
        assert_eq!(meant(&blocks, address), is, "{address:#x}");
    }
}

#[test]
fn a_block_made_again_is_another_one() {
    let blocks = BTreeMap::from([(ARENA, block(5000)), (ARENA + 2 * PAGE, Block { id: 7, ..block(8) })]);
    let known = BTreeMap::from([(ARENA, 0), (ARENA + 2 * PAGE, 6), (ARENA + 4 * PAGE, 1)]);
    assert!(is_same(ARENA, 5000, &blocks, &known));
    assert!(!is_same(ARENA, 4096, &blocks, &known), "another size");
    assert!(!is_same(ARENA, 5000, &blocks, &BTreeMap::new()), "nobody told");
    assert!(!is_same(ARENA + 2 * PAGE, 8, &blocks, &known), "freed and made again");
    assert!(!is_same(ARENA + 4 * PAGE, 8, &blocks, &known), "freed");
}

#[test]
fn memory_is_zero_and_zero_again() {
    // Between the two steps of another test's `unmap` its old bytes would be here.
    let _changing = lock(&CHANGING);
    let blocks = BTreeMap::new();
    for _ in 0..3 {
        let (at, filed) = map(&blocks, 3 * PAGE).unwrap();
        assert!(filed);
        // SAFETY: just mapped.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 3 * PAGE as usize) };
        assert!(bytes.iter().all(|b| *b == 0));
        bytes.fill(7);
        unmap(at, 3 * PAGE);
    }
}

#[test]
fn small_blocks_share_memory_and_begin_with_zeros() {
    // Other tests of this process may have small blocks too.
    let blocks = BTreeMap::new();
    let _changing = lock(&CHANGING);
    let mut live: Vec<Memory> = (0..40).map(|_| provide(&blocks, 5000).unwrap()).filter(|m| m.slab.bytes > 0).collect();
    assert!(live.len() > 20, "{live:?}");
    assert!(live.windows(2).all(|pair| pair[0].slab == pair[1].slab && pair[0].at.abs_diff(pair[1].at) == 3 * PAGE));
    let whole = |m: &Memory| {
        // SAFETY: the pages of a block that nothing else has.
        unsafe { std::slice::from_raw_parts_mut(m.at as *mut u8, 2 * PAGE as usize) }
    };
    live.iter().for_each(|m| whole(m).fill(7));
    for m in live.drain(10..) {
        release(m.at, 5000, m.slab, false);
    }
    for _ in 0..20 {
        let again = provide(&blocks, 5000).unwrap();
        assert!(whole(&again).iter().all(|b| *b == 0), "{again:?}");
        live.push(again);
    }
    let slab = live[0].slab;
    live.into_iter().for_each(|m| release(m.at, 5000, m.slab, false));
    // SAFETY: asks which pages are mapped, and touches none.
    let gone = unsafe { libc::mincore(slab.address as *mut c_void, PAGE as usize, [0u8].as_mut_ptr()) } != 0;
    assert!(gone, "its memory is given back");
}

#[test]
fn what_is_in_the_way_is_stepped_over() {
    let at = ARENA + (1 << 40);
    // SAFETY: a fresh mapping where nothing is.
    let p = unsafe {
        libc::mmap(
            at as *mut c_void,
            4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    assert_eq!(p as u64, at);
    let _changing = lock(&CHANGING);
    let blocks = BTreeMap::from([(ARENA, block(1 << 40))]);
    let (got, _) = map(&blocks, 2 * PAGE).unwrap();
    assert!(got > at);
    unmap(got, 2 * PAGE);
}

#[test]
fn blocks_that_are_used_exclusively_have_slots() {
    use cuda_api::address_map::{SLOT, slot};
    let bytes = (60 << 20) + 5;
    assert_eq!((slot(bytes), slot(2 << 20), slot(63 << 20), slot(u64::MAX)), (Some(SLOT), Some(SLOT), Some(2 * SLOT), None));
    let _changing = lock(&CHANGING);
    let exclusive = |bytes| Block { exclusive: true, kind: Kind::Managed, ..block(bytes) };
    let mut blocks = BTreeMap::from([(ARENA + (2 << 40), block(5000))]);
    let mut last = 0;
    for bytes in [bytes, 63 << 20, 2 << 20] {
        let memory = provide_slot(&blocks, bytes).unwrap();
        assert!(memory.at.is_multiple_of(SLOT) && memory.at >= last && memory.slab.bytes == 0, "{memory:?}");
        last = memory.at + slot(bytes).unwrap();
        blocks.insert(memory.at, exclusive(bytes));
    }
    // Nothing else lies in a slot, also not where the job has mapped nothing.
    let first = *blocks.keys().next().unwrap();
    let behind = gap(&blocks, first, PAGE, PAGE).unwrap();
    assert!(blocks.iter().all(|(at, b)| behind < *at || behind >= at + slot(b.bytes).unwrap()), "{behind:x}");
    blocks.iter().filter(|(_, b)| b.exclusive).for_each(|(at, b)| release(*at, b.bytes, b.slab, false));
    assert_eq!(provide_slot(&blocks, ARENA_END - ARENA).unwrap_err(), code::ERROR_OUT_OF_MEMORY);
}
