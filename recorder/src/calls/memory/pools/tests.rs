use super::*;
use crate::device_memory::stream_ordered::FIRST_CREATED;
use cuda_api::handle::{Kind, compose};

fn is(p: &mut Pool, attribute: sys::CUmemPool_attribute_enum) -> Option<(u64, bool)> {
    level(p, attribute as u32).map(|(level, high)| (if high { level.high } else { level.now }, high))
}

#[test]
fn attributes_show_the_levels_of_a_pool() {
    use sys::CUmemPool_attribute_enum as A;
    let mut p = Pool::new(0);
    (p.reserved, p.used) = (Level { now: 1, high: 2 }, Level { now: 3, high: 4 });
    assert_eq!(is(&mut p, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), Some((1, false)));
    assert_eq!(is(&mut p, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), Some((2, true)));
    assert_eq!(is(&mut p, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), Some((3, false)));
    assert_eq!(is(&mut p, A::CU_MEMPOOL_ATTR_USED_MEM_HIGH), Some((4, true)));
}

#[test]
fn other_attributes_are_no_levels() {
    let mut p = Pool::new(0);
    assert!((0..5).chain([u32::MAX]).all(|attribute| level(&mut p, attribute).is_none()));
}

#[test]
fn default_pools_and_created_ones_have_different_handles() {
    let defaults: std::collections::HashSet<u64> = (0..FIRST_CREATED).map(default_of).collect();
    assert_eq!(defaults.len(), FIRST_CREATED as usize);
    assert!(!defaults.contains(&compose(Kind::Pool, 1, FIRST_CREATED)));
}
