//! Cases with frees that another thread interrupts.

use super::*;
use crate::objects::chunks::{Growth, LARGE, Request, Step};

/// An allocation with a chunk of its own.
fn allocated(m: &mut Memory) -> u64 {
    let (mut growth, step) = Growth::begin(m, Request::Allocation(LARGE)).unwrap();
    let Step::Map(_) = step else { panic!("{step:?}") };
    let Step::Done(found) = growth.mapped(m, Ok(())).unwrap() else { panic!("not served") };
    found.address
}

#[test]
fn what_a_reset_has_freed_is_not_freed_again() {
    let mut m = Memory::new(0);
    let old = allocated(&mut m);
    let a = m.forget(old).unwrap();
    for chunk in m.reset() {
        m.unmapped(chunk, true);
    }
    let new = allocated(&mut m);
    assert_eq!(new, old, "the addresses are used again");
    assert!(!m.put_back(old, a));
    assert_eq!((m.spare_bytes, m.spare_or_unmapping()), (0, 0), "the new allocation's chunk is in use");
    let a = m.forget(new).unwrap();
    m.put_back(new, a);
    assert!(m.spare_bytes >= LARGE);
}

#[test]
fn a_chunk_counts_until_it_is_unmapped() {
    let mut m = Memory::new(0);
    let address = allocated(&mut m);
    let a = m.forget(address).unwrap();
    m.put_back(address, a);
    let spare = m.spare_or_unmapping();
    let chunk = m.surplus(0).unwrap();
    assert_eq!((m.spare_bytes, m.spare_or_unmapping()), (0, spare));
    m.unmapped(chunk, true);
    assert_eq!(m.spare_or_unmapping(), 0);
}
