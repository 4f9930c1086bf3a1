use super::*;
use crate::calls::vmm::unreserve;

fn empty() -> Vmm {
    let mut room = Ranges::in_units(ARENA);
    room.put(VMM, ARENA);
    Vmm { room, reserved: BTreeMap::new(), mappings: BTreeMap::new(), physical: HashMap::new(), next: 1, next_id: 1 }
}

fn mapping(bytes: u64) -> Mapping {
    Mapping { bytes: bytes * GRANULE, physical: 7, device: 0, access: ACCESS_READ_WRITE, id: 1 }
}

/// Mappings at these granules, with these lengths.
fn with(all: &[(u64, u64)]) -> Vmm {
    let mut v = empty();
    v.mappings = all.iter().map(|(at, bytes)| (VMM + at * GRANULE, mapping(*bytes))).collect();
    v
}

fn mappings_of(v: &Vmm, at: u64, bytes: u64) -> Result<Vec<u64>, Code> {
    v.mappings_of(VMM + at * GRANULE, bytes * GRANULE).map(|all| all.into_iter().map(|a| (a - VMM) / GRANULE).collect())
}

const BAD: Code = code::ERROR_INVALID_VALUE;

#[test]
fn a_range_of_whole_mappings_is_found() {
    let v = with(&[(0, 1), (1, 2), (3, 1)]);
    assert_eq!(
        (mappings_of(&v, 0, 4), mappings_of(&v, 1, 2), mappings_of(&v, 0, 3)),
        (Ok(vec![0, 1, 3]), Ok(vec![1]), Ok(vec![0, 1]))
    );
}

#[test]
fn a_range_that_cuts_a_mapping_is_refused() {
    let v = with(&[(0, 1), (1, 2), (3, 1)]);
    assert_eq!((mappings_of(&v, 0, 2), mappings_of(&v, 2, 2), mappings_of(&v, 1, 1)), (Err(BAD), Err(BAD), Err(BAD)));
}

#[test]
fn a_range_with_a_gap_is_refused() {
    let v = with(&[(0, 1), (2, 1)]);
    assert_eq!((mappings_of(&v, 0, 3), mappings_of(&v, 1, 1), mappings_of(&v, 2, 2)), (Err(BAD), Err(BAD), Err(BAD)));
}

#[test]
fn an_empty_or_overflowing_range_is_refused() {
    let v = with(&[(0, 1)]);
    assert_eq!((v.mappings_of(VMM, 0), v.mappings_of(VMM, u64::MAX)), (Err(BAD), Err(BAD)));
}

#[test]
fn memory_of_other_processes_cannot_be_unmapped_by_the_program() {
    let mut v = with(&[(0, 1), (1, 1)]);
    v.mappings.get_mut(&(VMM + GRANULE)).unwrap().physical = FOREIGN;
    assert_eq!((mappings_of(&v, 0, 1), mappings_of(&v, 1, 1), mappings_of(&v, 0, 2)), (Ok(vec![0]), Err(BAD), Err(BAD)));
}

#[test]
fn ranges_that_touch_a_mapping_do_not_overlap_it() {
    let v = with(&[(2, 2)]);
    let overlaps = |at, bytes| v.overlaps(VMM + at * GRANULE, bytes * GRANULE);
    assert!(!overlaps(0, 2) && !overlaps(4, 1) && !overlaps(1, 1));
    assert!(overlaps(0, 3) && overlaps(3, 1) && overlaps(3, 9) && overlaps(2, 2) && overlaps(0, 9) && overlaps(1, 2));
}

#[test]
fn the_mapping_before_a_range_may_reach_into_it() {
    let v = with(&[(0, 1), (1, 5)]);
    assert!(v.overlaps(VMM + 5 * GRANULE, GRANULE) && !v.overlaps(VMM + 6 * GRANULE, GRANULE));
}

#[test]
fn numbers_of_memory_are_handles_of_their_kind_and_all_different() {
    let mut v = empty();
    let all: std::collections::HashSet<u64> = (0..1000).map(|_| v.number()).collect();
    assert_eq!(all.len(), 1000);
    assert!(all.iter().all(|h| cuda_api::handle::kind(*h) == Some(Kind::Physical)));
}

#[test]
fn numbers_of_memory_go_on_in_the_next_generation() {
    let mut v = empty();
    v.next = (1 << 24) - 2;
    let all: Vec<u64> = (0..4).map(|_| v.number()).collect();
    assert!(all.iter().all(|a| all.iter().filter(|b| a == *b).count() == 1), "{all:x?}");
}

#[test]
fn an_unknown_handle_has_no_memory() {
    let mut v = empty();
    assert_eq!((v.known(0).err(), v.known(compose(Kind::Physical, 0, 2)).err()), (Some(BAD), Some(BAD)));
}

/// Mappings in the job's table, at the end of the last arena, where no other test has any.
fn in_the_job(all: &[(u64, u64, u32, u32)]) -> u64 {
    let base = VMM_END - ARENA / 2;
    let mut v = write();
    for (at, bytes, device, access) in all {
        v.mappings.insert(base + at * GRANULE, Mapping { device: *device, access: *access, ..mapping(*bytes) });
    }
    base
}

#[test]
fn copies_may_use_mappings_of_their_device() {
    let base = in_the_job(&[
        (0, 1, 5, ACCESS_READ_WRITE),
        (1, 2, 5, ACCESS_READ_WRITE),
        (3, 1, 6, ACCESS_READ_WRITE),
        (4, 1, 5, 0),
        (6, 1, 5, 1),
    ]);
    let ok = |device, at: u64, bytes: u64| allows(device, base + at, bytes);
    assert!(ok(5, 0, GRANULE) && ok(5, 0, 3 * GRANULE) && ok(5, GRANULE + 7, 100), "one or several");
    assert!(!ok(5, 0, 3 * GRANULE + 1), "the next one is another device's");
    assert!(!ok(6, 0, 1) && ok(6, 3 * GRANULE, GRANULE));
    assert!(!ok(5, 4 * GRANULE, 1), "access was not allowed");
    assert!(!ok(5, 5 * GRANULE, 1), "nothing is mapped");
    assert!(ok(5, 6 * GRANULE, 1) && ok(5, 7 * GRANULE - 1, 1) && !ok(5, 7 * GRANULE - 1, 2));
    assert!(!ok(5, 0, u64::MAX) && !allows(5, u64::MAX, 2), "it overflows");
    let found = find(base + GRANULE + 7).unwrap();
    assert_eq!((found.start, found.bytes, found.device, found.handle_types), (base + GRANULE, 2 * GRANULE, 5, 0));
    assert!(find(base + 5 * GRANULE).is_none() && find(0x1000).is_none() && find(base - 1).is_none());
    assert_eq!(crate::device_memory::regions::home_index(base + 3 * GRANULE), Some(6));
    assert_eq!(behind(base + 7, 1)[..], [base]);
    assert_eq!(behind(base + GRANULE - 1, 2 * GRANULE + 2)[..], [base, base + GRANULE, base + 3 * GRANULE]);
    assert_eq!(behind(base + 8 * GRANULE, 1)[..], [base + 6 * GRANULE], "the last one before it");
}

#[test]
fn reserved_addresses_are_those_of_the_range() {
    assert!(is_reserved(VMM) && is_reserved(VMM_END - 1) && !is_reserved(VMM - 1) && !is_reserved(VMM_END));
}

#[test]
fn room_for_other_processes_is_aligned_and_comes_back() {
    let at = reserve_addresses(GRANULE).unwrap();
    assert!(at.is_multiple_of(GRANULE) && is_reserved(at));
    release_addresses(at, GRANULE);
    assert_eq!(reserve_addresses(u64::MAX - GRANULE + 1), None);
    assert_eq!(reserve_addresses(ARENA + GRANULE), None, "no range spans two arenas");
}

#[test]
fn an_unknown_reservation_cannot_be_released() {
    assert_eq!((unreserve(VMM_END - GRANULE, GRANULE), unreserve(0, 0)), (Err(BAD), Err(BAD)));
}
