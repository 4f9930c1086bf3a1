use super::*;
use crate::base::encoding::encode;
use crate::device_memory::regions::{home_index, is_device};
use cuda_api::address_map::{HEAP, HEAP_END, PLACED, PLACED_END, VMM, VMM_END};
use cuda_api::wire::Wire;

#[test]
fn copies_stay_inside_allocations() {
    let mut m = Memory::new(1);
    let a = m.base + 512;
    m.note(a, 100, Home::Shared);
    assert_eq!(m.allows(a, 100), Some(true));
    assert_eq!(m.allows(a + 99, 1), Some(true));
    assert_eq!(m.allows(a + 99, 2), Some(false));
    assert_eq!(m.allows(a - 1, 1), Some(false));
    assert_eq!(m.allows(a, u64::MAX), Some(false));
    assert_eq!(m.allows(PLACED, 4), None);
}

fn with_chunks(chunks: &[(u64, u64)]) -> Memory {
    let mut m = Memory::new(0);
    for (at, bytes) in chunks {
        assert!(m.bare.carve(OWN + at, *bytes));
        m.chunks.insert(OWN + at, *bytes);
        m.mapped += bytes;
    }
    m
}

#[test]
fn each_device_has_an_arena_of_its_own() {
    for device in 0..32 {
        let m = Memory::new(device);
        assert_eq!((m.base, m.bare.bytes()), (OWN + u64::from(device) * ARENA, ARENA));
        assert_eq!((home_index(m.base), home_index(m.base + ARENA - 1)), (Some(device), Some(device)));
        assert!(m.in_arena(m.base) && m.in_arena(m.base + ARENA - 1));
        assert!(!m.in_arena(m.base - 1) && !m.in_arena(m.base + ARENA));
    }
}

#[test]
fn addresses_of_the_drivers_placements_show_their_device() {
    assert_eq!((home_index(PLACED), home_index(PLACED + ARENA - 1), home_index(PLACED + ARENA)), (Some(0), Some(0), Some(1)));
    assert_eq!((home_index(PLACED_END - 1), home_index(PLACED_END)), (Some(31), None));
}

#[test]
fn host_addresses_show_no_device() {
    for address in [0, 1, 0x1000, 0x7fff_ffff_f000, 0x4000_0000_0000, u64::MAX] {
        assert_eq!(home_index(address), None, "{address:#x}");
        assert!(!is_device(address), "{address:#x}");
    }
}

#[test]
fn device_memory_is_known_by_its_address() {
    let heap = [HEAP, HEAP_END - 1];
    for address in [OWN, PLACED - 1, PLACED, PLACED_END - 1, VMM, VMM_END - 1].into_iter().chain(heap) {
        assert!(is_device(address), "{address:#x}");
    }
    for address in [HEAP - 1, HEAP_END, VMM - 1, PLACED_END] {
        assert!(!is_device(address), "{address:#x}");
    }
}

#[test]
fn an_empty_memory_contains_nothing() {
    let m = Memory::new(3);
    assert!(m.find(m.base).is_none() && m.chunk_of(m.base).is_none() && m.chunk_around(m.base).is_none());
    assert_eq!(m.allows(m.base, 0), Some(false));
    assert_eq!((m.count(), m.used(), m.needed(), m.chunks().count()), (0, 0, 0, 0));
}

#[test]
fn an_allocation_is_found_by_every_address_in_it() {
    let mut m = Memory::new(0);
    m.note(OWN + 1024, 100, Home::Shared);
    for (address, is_in) in [(1023, false), (1024, true), (1123, true), (1124, false)] {
        assert_eq!(m.find(OWN + address).is_some(), is_in, "{address}");
    }
    let found = m.find(OWN + 1100).unwrap();
    assert_eq!((found.start, found.bytes, found.pool), (OWN + 1024, 100, 0));
}

#[test]
fn an_allocation_without_bytes_is_found_by_its_address_only() {
    let mut m = Memory::new(0);
    m.note(OWN, 0, Home::Own);
    assert!(m.find(OWN).is_some() && m.find(OWN + 1).is_none());
    assert_eq!((m.allows(OWN, 0), m.allows(OWN, 1)), (Some(true), Some(false)));
}

#[test]
fn numbers_of_allocations_are_never_those_of_others() {
    let mut seen = BTreeSet::new();
    for device in 0..32 {
        let mut m = Memory::new(device);
        for reset in [10, 20, 30] {
            for _ in 0..reset {
                m.note(OWN, 512, Home::Shared);
                assert!(seen.insert(m.find(OWN).unwrap().id));
                let freed = m.forget(OWN).unwrap();
                assert!(freed.id > m.last_reset);
            }
            m.reset();
        }
    }
    assert!(seen.first() > Some(&(1 << 33)) && seen.last() < Some(&(1 << 48)), "between host memory and mappings");
}

#[test]
fn the_pool_of_an_allocation_is_known() {
    let mut m = Memory::new(0);
    m.note(OWN, 512, Home::Pool(77));
    m.note(OWN + 512, 512, Home::Borrowed(78));
    m.note(OWN + 1024, 512, Home::Own);
    assert_eq!([0, 512, 1024].map(|at| m.find(OWN + at).unwrap().pool), [77, 78, 0]);
}

#[test]
fn what_was_forgotten_is_not_found_and_cannot_be_forgotten_again() {
    let mut m = Memory::new(0);
    m.note(OWN, 512, Home::Own);
    m.note(OWN + 512, 100, Home::Own);
    assert_eq!((m.count(), m.used()), (2, 612));
    assert_eq!(m.forget(OWN).map(|a| a.bytes), Ok(512));
    assert_eq!((m.count(), m.used(), m.find(OWN).is_none()), (1, 100, true));
    assert_eq!(m.forget(OWN).err(), Some(code::ERROR_INVALID_VALUE));
}

#[test]
fn an_address_inside_an_allocation_does_not_free_it() {
    let mut m = Memory::new(0);
    m.note(OWN, 512, Home::Own);
    assert_eq!(m.forget(OWN + 1).err(), Some(code::ERROR_INVALID_VALUE));
    assert_eq!(m.count(), 1);
}

#[test]
fn a_copy_may_not_span_adjacent_allocations() {
    let mut m = Memory::new(0);
    m.note(OWN, 512, Home::Shared);
    m.note(OWN + 512, 512, Home::Shared);
    assert_eq!((m.allows(OWN, 512), m.allows(OWN, 513), m.allows(OWN + 511, 2)), (Some(true), Some(false), Some(false)));
    assert_eq!(m.allows(OWN + 512, 512), Some(true));
}

#[test]
fn a_copy_of_nothing_is_allowed_up_to_the_last_byte() {
    let mut m = Memory::new(0);
    m.note(OWN, 512, Home::Shared);
    assert_eq!((m.allows(OWN + 511, 0), m.allows(OWN + 512, 0)), (Some(true), Some(false)));
}

#[test]
fn addresses_of_another_arena_are_not_judged() {
    let m = Memory::new(1);
    assert_eq!((m.allows(m.base - 1, 1), m.allows(m.base + ARENA, 1), m.allows(0x7000_0000_0000, 1)), (None, None, None));
}

#[test]
fn a_chunk_is_found_by_every_address_in_it() {
    let m = with_chunks(&[(0, GRANULE), (2 * GRANULE, 2 * GRANULE)]);
    let of = |at: u64| m.chunk_of(OWN + at).map(|at| at - OWN);
    assert_eq!((of(0), of(GRANULE - 1), of(GRANULE)), (Some(0), Some(0), None));
    assert_eq!((of(2 * GRANULE), of(4 * GRANULE - 1), of(4 * GRANULE)), (Some(2 * GRANULE), Some(2 * GRANULE), None));
}

#[test]
fn the_chunk_around_an_address_is_the_one_that_contains_it() {
    let m = with_chunks(&[(GRANULE, GRANULE), (2 * GRANULE, 4 * GRANULE)]);
    let around = |at: u64| m.chunk_around(OWN + at).map(|c| (c.address - OWN, c.bytes));
    assert_eq!((around(GRANULE - 1), around(2 * GRANULE - 1)), (None, Some((GRANULE, GRANULE))));
    assert_eq!((around(5 * GRANULE), around(6 * GRANULE)), (Some((2 * GRANULE, 4 * GRANULE)), None));
}

#[test]
fn chunks_are_listed_by_address() {
    let m = with_chunks(&[(8 * GRANULE, GRANULE), (0, 2 * GRANULE), (4 * GRANULE, GRANULE)]);
    let all: Vec<(u64, u64)> = m.chunks().map(|c| ((c.address - OWN) / GRANULE, c.bytes / GRANULE)).collect();
    assert_eq!(all, [(0, 2), (4, 1), (8, 1)]);
}

#[test]
fn a_move_needs_no_memory_for_spare_chunks() {
    let mut m = with_chunks(&[(0, GRANULE), (GRANULE, 3 * GRANULE)]);
    assert_eq!(m.needed(), 4 * GRANULE);
    m.spare.insert(OWN + GRANULE, 1);
    m.spare_bytes = 3 * GRANULE;
    assert_eq!(m.needed(), GRANULE);
}

#[test]
fn a_new_memory_has_the_devices_default_pool() {
    for device in [0, 5, 31] {
        let m = Memory::new(device);
        assert_eq!(m.pools.keys().copied().collect::<Vec<_>>(), [default_of(device)]);
        assert_eq!(m.current_pool, default_of(device));
    }
    assert_ne!(default_of(0), default_of(1));
}

#[test]
fn operations_are_encoded_field_by_field() {
    let bytes = encode(&Chunk { address: 0x2000_0000_0000, bytes: 2 << 20 });
    assert_eq!(bytes.len(), 16);
    assert_eq!(Chunk::get(&mut &bytes[..]), Ok(Chunk { address: 0x2000_0000_0000, bytes: 2 << 20 }));
    assert!(Chunk::get(&mut &bytes[..15]).is_err());
}
