//! Staging areas in the GPU's memory: where the driver says that network cards can use it, which softgpu does only if it is told to.

use super::*;
use executor::staging::{Room, Segment};
use std::process::Command;

/// Runs a test of this file in a process of its own, whose softgpu has these attributes; returns whether this is that process.
fn with_attributes(test: &str, attributes: &str) -> bool {
    if std::env::var_os("SOFTGPU_ATTRIBUTES").is_some() {
        return true;
    }
    let test = format!("gpu_areas::{test}");
    let mut again = Command::new(std::env::current_exe().expect("own path"));
    let again = again.args([&*test, "--exact", "--nocapture"]).env("SOFTGPU_ATTRIBUTES", attributes).output().expect("a process");
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn make(p: &Place, made: &mut Option<Arc<Room>>, reached: bool) -> Result<bool, i32> {
    p.exec.provide_gpu_area(&mut |room| {
        *made = Some(room.clone());
        reached
    })
}

/// What a network card does: the driver's dma-buf is a file, which it reads and writes.
fn carry(p: &Place, to_device: bool, host: &mut [u8]) {
    let mut left = host.len();
    while left > 0 {
        let mut segment: Segment = p.exec.staging().next(to_device);
        assert!(segment.bytes().is_none() && segment.bytes_mut().is_none(), "the processor cannot use them");
        let file = std::fs::File::from(segment.room().dma_buf().expect("dma-buf").try_clone_to_owned().expect("descriptor"));
        let at = segment.address() - segment.room().regions().0 as u64;
        let part = &mut host[segment.offset as usize..][..segment.size()];
        if to_device { file.write_all_at(part, at) } else { file.read_exact_at(part, at) }.expect("the memory of the GPU");
        left -= segment.size();
        p.exec.staging().over(&segment);
    }
}

#[test]
fn bytes_of_large_copies_pass_through_the_gpus_memory() {
    if !with_attributes("bytes_of_large_copies_pass_through_the_gpus_memory", "110=1,124=1,118=100") {
        return;
    }
    let p = place();
    let bytes: usize = 150 << 20;
    let to = p.map(0, 152 << 20);
    // A card that does not reach it.
    let mut room = None;
    assert_eq!((make(&p, &mut room, false), p.exec.staging().areas()), (Ok(false), 0));
    assert_eq!((make(&p, &mut room, true), p.exec.staging().areas()), (Ok(true), 1));
    let pattern: Vec<u8> = (0..bytes).map(|i| (i >> 9) as u8 ^ i as u8).collect();
    for round in 0..2 {
        let stream = p.stream(1 + round, 1);
        let copy = ops::BulkCopy { token: 5, address: to, bytes: bytes as u64, stream, late: false };
        let landed = p.later(id::BULK_IN, &body(&copy, &[]));
        carry(&p, true, &mut pattern.clone());
        assert_eq!(landed.wait(&p.exec, &mut Vec::new()), code::SUCCESS);
        assert!(p.read(to, 3 << 20, stream) == pattern[..3 << 20]);
        let left = p.later(id::BULK_OUT, &body(&copy, &[]));
        let mut host = vec![0; bytes];
        carry(&p, false, &mut host);
        assert_eq!(left.wait(&p.exec, &mut Vec::new()), code::SUCCESS);
        assert!(host == pattern);
        p.apply(id::FILL, &body(&Fill { dst: to, pitch: 0, value: 0, element: 1, width: bytes as u64, rows: 1, stream }, &[]));
    }
    // A reset ends the area; what a card has registered stays.
    let file = std::fs::File::from(room.expect("room").dma_buf().expect("dma-buf").try_clone_to_owned().expect("descriptor"));
    p.apply(id::CONTEXT_RESET, &[]);
    assert_eq!(p.exec.staging().areas(), 0);
    file.read_exact_at(&mut [0; 64], 0).expect("its memory");
    assert_eq!(make(&p, &mut None, true), Ok(true));
    p.leave();
}

#[test]
fn a_gpu_that_may_see_writes_of_cards_late_has_none() {
    if !with_attributes("a_gpu_that_may_see_writes_of_cards_late_has_none", "110=1,124=1,118=0") {
        return;
    }
    let p = place();
    assert_eq!(make(&p, &mut None, true), Ok(false));
    p.leave();
}
