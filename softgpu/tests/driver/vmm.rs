//! Virtual memory: placing, sharing between processes, what may not be done.

use crate::support::*;
use std::os::fd::RawFd;

const INVALID_VALUE: u32 = 1;
/// A device that no other test uses: figures of free memory are compared.
const DEVICE: i32 = 1;
const GRANULE: usize = 2 << 20;
/// Set in the process that imports, to the descriptor's number.
const ROLE: &str = "SOFTGPU_TEST_DESCRIPTOR";

fn unmap(at: u64, size: usize) -> u32 {
    call!(cuMemUnmap(at, size): fn(u64, usize))
}

fn release(handle: u64) -> u32 {
    call!(cuMemRelease(handle): fn(u64))
}

fn import(descriptor: RawFd) -> (u32, u64) {
    let mut handle = 0;
    let code = call!(cuMemImportFromShareableHandle(&mut handle, descriptor as usize, 1): fn(*mut u64, usize, u32));
    (code, handle)
}

fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(call!(cuMemGetInfo_v2(&mut free, &mut total): fn(*mut usize, *mut usize)), SUCCESS);
    free
}

/// One after another: the figures of free memory belong to the process.
#[test]
fn virtual_memory() {
    if let Ok(descriptor) = std::env::var(ROLE) {
        return import_and_answer(descriptor.parse().expect("number"));
    }
    places_are_honoured_and_compared();
    mapping_follows_the_rules();
    memory_is_shared_with_another_process();
}

fn places_are_honoured_and_compared() {
    let _context = Context::on(DEVICE);
    let hint = 0x2000_0000_0000;
    assert_eq!(reserve(hint, 512 << 30), hint, "a large reservation");
    let taken = reserve(hint, 512 << 30);
    assert_ne!(taken, hint, "somewhere else, with success");
    let small = reserve(0x2100_0000_0000, GRANULE);
    assert_ne!(small, 0x2100_0000_0000, "a small one is put where the driver likes");
    for (at, size) in [(hint, 512 << 30), (taken, 512 << 30), (small, GRANULE)] {
        assert_eq!(call!(cuMemAddressFree(at, size): fn(u64, usize)), SUCCESS);
    }
    assert_eq!(call!(cuMemAddressFree(hint, 512 << 30): fn(u64, usize)), INVALID_VALUE);
}

fn mapping_follows_the_rules() {
    let _context = Context::on(DEVICE);
    let before = free_memory();
    let at = reserve(0, 4 * GRANULE);
    let (first, second) = (create(DEVICE, GRANULE), create(DEVICE, GRANULE));
    assert_eq!(free_memory(), before - 2 * GRANULE);
    assert_eq!(map(at + 1, GRANULE, first), INVALID_VALUE);
    assert_eq!(map(at, 2 * GRANULE, first), INVALID_VALUE, "more than there is");
    assert_eq!(map(0x2200_0000_0000, GRANULE, first), INVALID_VALUE, "not reserved");
    assert_eq!(map(at, GRANULE, first), SUCCESS);
    assert_eq!(map(at, GRANULE, second), INVALID_VALUE, "taken");
    assert_eq!(map(at + GRANULE as u64, GRANULE, second), SUCCESS);
    assert_eq!(write(at, &[1u8]), INVALID_VALUE, "nobody may use it yet");
    assert_eq!(allow(DEVICE, at, 2 * GRANULE), SUCCESS);
    // A copy may span mappings that lie side by side, but not leave them.
    assert_eq!(write(at, &vec![3u8; 2 * GRANULE]), SUCCESS);
    assert_eq!(write(at + 1, &vec![3u8; 2 * GRANULE]), INVALID_VALUE);
    let mut retained = 0;
    assert_eq!(call!(cuMemRetainAllocationHandle(&mut retained, at): fn(*mut u64, u64)), SUCCESS);
    assert_eq!(retained, first);
    for handle in [first, first, second] {
        assert_eq!(release(handle), SUCCESS);
    }
    assert_eq!(release(first), INVALID_VALUE);
    assert_eq!(read::<u8>(at + 5, 1), [3], "a mapping keeps its memory");
    assert_eq!(unmap(at, GRANULE / 2), INVALID_VALUE);
    assert_eq!(call!(cuMemAddressFree(at, 4 * GRANULE): fn(u64, usize)), INVALID_VALUE, "still mapped");
    assert_eq!(unmap(at, 2 * GRANULE), SUCCESS);
    assert_eq!(write(at, &[1u8]), INVALID_VALUE);
    assert_eq!(call!(cuMemAddressFree(at, 4 * GRANULE): fn(u64, usize)), SUCCESS);
    assert_eq!(free_memory(), before);
}

fn memory_is_shared_with_another_process() {
    let _context = Context::on(DEVICE);
    let handle = create(DEVICE, GRANULE);
    let at = reserve(0, GRANULE);
    assert_eq!((map(at, GRANULE, handle), allow(DEVICE, at, GRANULE)), (SUCCESS, SUCCESS));
    assert_eq!(write(at, b"question"), SUCCESS);
    let mut descriptor: RawFd = -1;
    assert_eq!(call!(cuMemExportToShareableHandle(&mut descriptor, handle, 1, 0): fn(*mut RawFd, u64, u32, u64)), SUCCESS);
    let (code, same) = import(descriptor);
    assert_eq!((code, release(same)), (SUCCESS, SUCCESS));
    assert_eq!(import(9999).0, INVALID_VALUE);
    assert_eq!(import(2).0, INVALID_VALUE, "no memory of ours");
    // SAFETY: an open descriptor; the copy is inherited by the child, which the exported one is not.
    let inherited = unsafe { libc::dup(descriptor) };
    let me = std::env::current_exe().expect("own path");
    let status = std::process::Command::new(me)
        .args(["vmm::virtual_memory", "--exact"])
        .env(ROLE, inherited.to_string())
        .status()
        .expect("child");
    assert!(status.success());
    assert_eq!(read::<u8>(at, 8), b"answered");
}

fn import_and_answer(descriptor: RawFd) {
    let _context = Context::on(DEVICE);
    let before = free_memory();
    let (code, handle) = import(descriptor);
    assert_eq!(code, SUCCESS);
    assert_eq!(free_memory(), before, "it is counted where it was made");
    let at = reserve(0, GRANULE);
    assert_eq!((map(at, GRANULE, handle), allow(DEVICE, at, GRANULE)), (SUCCESS, SUCCESS));
    assert_eq!(read::<u8>(at, 8), b"question");
    assert_eq!(write(at, b"answered"), SUCCESS);
}
