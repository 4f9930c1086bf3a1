//! Fills, and words that streams write and wait for.

use super::{BYTES, MUCH, Memory, ROW, World, case, case_of, is_used, pattern, world, world_of_used};
use crate::tell::Tell;

/// Fills of each size and shape.
pub fn fills(t: &Tell) {
    let w = world(t);
    for m in &w.memory {
        t.about(m.name);
        fill(t, &w, m);
    }
}

/// Words that streams write and wait for.
pub fn words(t: &Tell) {
    let w = world(t);
    for m in &w.memory {
        t.about(m.name);
        word(t, &w, m);
    }
}

/// Both, in memory of the host's that a GPU uses by its address.
pub fn writes_of_used(t: &Tell) {
    let w = world_of_used(t);
    for m in w.memory.iter().filter(|m| is_used(m)) {
        t.about(m.name);
        fill(t, &w, m);
        word(t, &w, m);
    }
}

fn fill(t: &Tell, w: &World, m: &Memory) {
    let (at, s) = (m.at, w.stream);
    case(t, "cuMemsetD8_v2", m, || call!(t, memory.cuMemsetD8_v2(at, 0x81, 33)));
    case(t, "cuMemsetD16_v2", m, || call!(t, memory.cuMemsetD16_v2(at, 0x8182, 17)));
    case(t, "cuMemsetD32_v2", m, || call!(t, memory.cuMemsetD32_v2(at, 0x8182_8384, 9)));
    case(t, "cuMemsetD8Async", m, || call!(t, memory.cuMemsetD8Async(at, 0x91, 33, s)));
    case(t, "cuMemsetD16Async", m, || call!(t, memory.cuMemsetD16Async(at, 0x9192, 17, s)));
    case(t, "cuMemsetD32Async", m, || call!(t, memory.cuMemsetD32Async(at, 0x9192_9394, 9, s)));
    case(t, "cuMemsetD2D8_v2", m, || call!(t, memory.cuMemsetD2D8_v2(at, ROW, 0xa1, 5, 3)));
    case(t, "cuMemsetD2D16_v2", m, || call!(t, memory.cuMemsetD2D16_v2(at, ROW, 0xa1a2, 5, 3)));
    case(t, "cuMemsetD2D32_v2", m, || call!(t, memory.cuMemsetD2D32_v2(at, ROW, 0xa1a2_a3a4, 3, 3)));
    case(t, "cuMemsetD2D8Async", m, || call!(t, memory.cuMemsetD2D8Async(at, ROW, 0xb1, 5, 3, s)));
    case(t, "cuMemsetD2D16Async", m, || call!(t, memory.cuMemsetD2D16Async(at, ROW, 0xb1b2, 5, 3, s)));
    case(t, "cuMemsetD2D32Async", m, || call!(t, memory.cuMemsetD2D32Async(at, ROW, 0xb1b2_b3b4, 3, 3, s)));
    if m.bytes >= MUCH {
        case_of(t, "cuMemsetD8Async of much", m, MUCH, || call!(t, memory.cuMemsetD8Async(at, 0xc1, MUCH, s)));
    }
}

fn word(t: &Tell, w: &World, m: &Memory) {
    let (at, s) = (m.at, w.stream);
    // What `case` has put there: waits for no less end at once.
    let bytes = pattern(0xa5, BYTES);
    let (word, both) = ([bytes[0], bytes[1], bytes[2], bytes[3]], bytes.first_chunk::<8>().copied().unwrap_or_default());
    let (word, both) = (u32::from_le_bytes(word), u64::from_le_bytes(both));
    case(t, "cuStreamWriteValue32_v2", m, || call!(t, stream.cuStreamWriteValue32_v2(s, at + 4, 0x1357_9bdf, 0)));
    case(t, "cuStreamWriteValue64_v2", m, || call!(t, stream.cuStreamWriteValue64_v2(s, at + 8, 0x0246_8ace, 0)));
    case(t, "cuStreamWaitValue32_v2", m, || call!(t, stream.cuStreamWaitValue32_v2(s, at, word, 1)));
    case(t, "cuStreamWaitValue64_v2", m, || call!(t, stream.cuStreamWaitValue64_v2(s, at, both, 1)));
    let mut parts = [[2u64, at, 7, 0, 0, 0], [1, at, 7, 1, 0, 0]];
    case(t, "cuStreamBatchMemOp_v2", m, || call!(t, stream.cuStreamBatchMemOp_v2(s, 2, parts.as_mut_ptr().cast(), 0)));
    case(t, "cuStreamWriteValue32", m, || call!(t, stream.cuStreamWriteValue32(s, at + 4, 0x1357_9bdf, 0)));
    case(t, "cuStreamWriteValue64", m, || call!(t, stream.cuStreamWriteValue64(s, at + 8, 0x0246_8ace, 0)));
    case(t, "cuStreamWaitValue32", m, || call!(t, stream.cuStreamWaitValue32(s, at, word, 1)));
    case(t, "cuStreamBatchMemOp", m, || call!(t, stream.cuStreamBatchMemOp(s, 2, parts.as_mut_ptr().cast(), 0)));
}
