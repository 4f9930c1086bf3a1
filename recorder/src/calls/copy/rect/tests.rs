use super::*;
use cuda_api::address_map::OWN;

const BAD: Code = code::ERROR_INVALID_VALUE;

fn end(address: u64, pitch: u64) -> End {
    End { address, pitch, device: false }
}

fn rect(width: u64, rows: u64, dst_pitch: u64, src_pitch: u64) -> Rect {
    Rect { dst: end(1 << 40, dst_pitch), src: end(1 << 30, src_pitch), width, rows }
}

#[test]
fn a_span_is_from_the_first_to_the_last_byte() {
    assert_eq!(end(0, 100).span(10, 1), Ok(10));
    assert_eq!(end(0, 100).span(10, 3), Ok(210));
    assert_eq!(end(0, 0).span(10, 3), Ok(10), "all rows are the same one");
}

#[test]
fn a_span_ends_inside_the_addresses() {
    assert_eq!(end(END_OF_ADDRESSES - 10, 0).span(10, 1), Ok(10));
    assert_eq!(end(END_OF_ADDRESSES - 10, 0).span(11, 1), Err(BAD));
    assert_eq!(end(u64::MAX, 0).span(1, 1), Err(BAD));
}

#[test]
fn a_span_that_overflows_is_refused() {
    assert_eq!(end(0, u64::MAX).span(1, 3), Err(BAD));
    assert_eq!(end(0, u64::MAX).span(2, 2), Err(BAD));
    assert_eq!(end(1, 1).span(u64::MAX, 1), Err(BAD));
    assert_eq!(end(0, 1 << 56).span(1 << 56, 2), Ok(1 << 57));
}

/// The bytes that a rectangle writes, in order of the pieces, each with where it comes from.
fn bytes(r: &Rect) -> Vec<(u64, u64)> {
    let rows = |p: &Rect| {
        let p = *p;
        (0..p.rows).map(move |row| (p.dst.address + row * p.dst.pitch, p.src.address + row * p.src.pitch, p.width))
    };
    r.pieces().iter().flat_map(rows).map(|(to, from, n)| (to * 8 + n % 8, from)).collect()
}

#[test]
fn a_short_copy_is_one_piece() {
    let r = rect(100, 5, 200, 300);
    let all = r.pieces();
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].width, all[0].rows, all[0].dst.address, all[0].src.address), (100, 5, 1 << 40, 1 << 30));
    assert_eq!(bytes(&r).len(), 5);
}

#[test]
fn a_copy_of_exactly_one_piece_is_not_split() {
    assert_eq!(rect(PIECE, 1, 0, 0).pieces().len(), 1);
    assert_eq!(rect(PIECE / 4, 4, PIECE, PIECE).pieces().len(), 1);
    assert_eq!(rect(PIECE / 4, 5, PIECE, PIECE).pieces().len(), 2);
    assert_eq!(rect(PIECE + 1, 1, 0, 0).pieces().len(), 2);
}

#[test]
fn a_long_row_is_split_into_pieces_in_order() {
    let all = rect(2 * PIECE + 7, 1, 0, 0).pieces();
    let seen: Vec<(u64, u64, u64)> =
        all.iter().map(|p| (p.dst.address - (1 << 40), p.src.address - (1 << 30), p.width)).collect();
    assert_eq!(seen, [(0, 0, PIECE), (PIECE, PIECE, PIECE), (2 * PIECE, 2 * PIECE, 7)]);
    assert!(all.iter().all(|p| p.rows == 1));
}

#[test]
fn long_rows_are_split_one_after_the_other() {
    let (width, dst, src) = (PIECE + 1, 2 * PIECE, 3 * PIECE);
    let all = rect(width, 2, dst, src).pieces();
    let seen: Vec<(u64, u64, u64)> =
        all.iter().map(|p| (p.dst.address - (1 << 40), p.src.address - (1 << 30), p.width)).collect();
    assert_eq!(seen, [(0, 0, PIECE), (PIECE, PIECE, 1), (dst, src, PIECE), (dst + PIECE, src + PIECE, 1)]);
}

#[test]
fn many_rows_are_split_by_rows() {
    let all = rect(3 << 20, 5, 4 << 20, 3 << 20).pieces();
    assert_eq!(all.iter().map(|p| p.rows).collect::<Vec<_>>(), [1; 5]);
    let all = rect(1 << 20, 10, 4 << 20, 1 << 20).pieces();
    assert_eq!(all.iter().map(|p| (p.rows, (p.dst.address - (1 << 40)) >> 22)).collect::<Vec<_>>(), [(4, 0), (4, 4), (2, 8)]);
}

#[test]
fn pieces_cover_every_byte_once() {
    for (width, rows) in [(1, 1), (1, 1000), (PIECE - 1, 3), (PIECE, 3), (PIECE + 1, 3), (PIECE / 3, 10), (3 * PIECE, 2)] {
        let r = rect(width, rows, width + 5, width + 9);
        let all = r.pieces();
        assert_eq!(all.iter().map(|p| p.width * p.rows).sum::<u64>(), width * rows, "{width} {rows}");
        assert!(all.iter().all(|p| p.width * p.rows <= PIECE && p.dst.pitch == r.dst.pitch && p.src.pitch == r.src.pitch));
        let mut seen = bytes(&r);
        seen.dedup();
        assert!(seen.is_sorted(), "{width} {rows}");
    }
}

#[test]
fn the_first_error_ends_a_copy() {
    let mut seen = 0;
    let result = pieces(rect(4 * PIECE, 1, 0, 0), |_| {
        seen += 1;
        if seen == 2 { Err(code::ERROR_NOT_READY) } else { Ok(()) }
    });
    assert_eq!((result, seen), (Err(code::ERROR_NOT_READY), 2));
}

fn host(address: u64, pitch: u64, height: u64) -> CopyEnd {
    CopyEnd { memory: HOST, host: address, pitch, height, ..CopyEnd::default() }
}

fn copy3(src: CopyEnd, dst: CopyEnd, width: u64, rows: u64, depth: u64) -> Copy3 {
    Copy3 { src, dst, width, rows, depth }
}

fn on_device(address: u64, pitch: u64, height: u64) -> CopyEnd {
    CopyEnd { memory: DEVICE, device: address, pitch, height, ..CopyEnd::default() }
}

/// Where an end begins, and how many bytes it spans.
fn spans(c: &Copy3) -> Result<[Option<(u64, u64)>; 2], Code> {
    Ok(ends(c)?.map(|e| e.map(|(e, span)| (e.address, span))))
}

#[test]
fn the_ends_of_a_described_copy_begin_at_their_first_byte() {
    let dst = CopyEnd { x: 3, y: 2, z: 1, ..on_device(OWN, 100, 10) };
    let c = copy3(host(0x1000, 50, 5), dst, 20, 4, 2);
    let first = OWN + (10 + 2) * 100 + 3;
    assert_eq!(spans(&c), Ok([Some((first, (10 + 3) * 100 + 20)), Some((0x1000, (5 + 3) * 50 + 20))]));
}

#[test]
fn a_missing_pitch_or_height_is_that_of_the_copy() {
    let c = copy3(host(0x1000, 0, 0), on_device(OWN, 0, 0), 20, 4, 3);
    assert_eq!(spans(&c), Ok([Some((OWN, 240)), Some((0x1000, 240))]));
}

#[test]
fn an_array_has_no_address() {
    let array = CopyEnd { memory: ARRAY, array: 7, ..CopyEnd::default() };
    assert_eq!(spans(&copy3(array, host(0x1000, 0, 0), 20, 1, 1)), Ok([Some((0x1000, 20)), None]));
}

#[test]
fn rows_that_are_longer_than_their_pitch_are_refused_if_there_are_several() {
    assert_eq!(spans(&copy3(host(0x1000, 10, 0), host(0x9000, 20, 0), 20, 2, 1)), Err(BAD));
    assert_eq!(spans(&copy3(host(0x1000, 10, 0), host(0x9000, 20, 0), 20, 1, 2)), Err(BAD));
    assert!(spans(&copy3(host(0x1000, 10, 0), host(0x9000, 20, 0), 20, 1, 1)).is_ok());
    let shifted = CopyEnd { x: 1, ..host(0x9000, 20, 0) };
    assert_eq!(spans(&copy3(host(0x1000, 20, 0), shifted, 20, 2, 1)), Err(BAD), "it does not fit behind its offset");
}

#[test]
fn levels_of_mipmaps_are_refused() {
    let end = CopyEnd { lod: 1, ..host(0x1000, 0, 0) };
    assert_eq!(spans(&copy3(end, host(0x9000, 0, 0), 20, 1, 1)), Err(BAD));
}

#[test]
fn an_unknown_kind_of_memory_is_not_supported() {
    let end = CopyEnd { memory: 5, ..host(0x1000, 0, 0) };
    assert_eq!(spans(&copy3(end, host(0x9000, 0, 0), 20, 1, 1)), Err(code::ERROR_NOT_SUPPORTED));
}

#[test]
fn offsets_that_overflow_are_refused() {
    for (x, y, z) in [(u64::MAX, 0, 0), (0, u64::MAX, 0), (0, 0, u64::MAX)] {
        let end = CopyEnd { x, y, z, ..host(0x1000, 100, 100) };
        assert_eq!(spans(&copy3(end, host(0x9000, 0, 0), 20, 2, 2)), Err(BAD), "{x} {y} {z}");
    }
    assert_eq!(spans(&copy3(host(u64::MAX, 1, 1), CopyEnd { x: 1, ..host(u64::MAX, 0, 0) }, 1, 1, 1)), Err(BAD));
}

#[test]
fn an_end_beyond_all_addresses_is_refused() {
    let there = END_OF_ADDRESSES - 40;
    assert!(spans(&copy3(host(there, 20, 2), host(0x9000, 20, 2), 20, 2, 1)).is_ok());
    assert_eq!(spans(&copy3(host(there + 1, 20, 2), host(0x9000, 20, 2), 20, 2, 1)), Err(BAD));
    assert_eq!(spans(&copy3(host(u64::MAX - 10, 20, 2), host(0x9000, 20, 2), 20, 2, 1)), Err(BAD));
}

#[test]
fn unified_ends_are_told_apart_by_their_address() {
    let unified = sys::CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED as u32;
    let c = copy3(
        CopyEnd { memory: unified, ..on_device(0x1000, 0, 0) },
        CopyEnd { memory: unified, ..on_device(OWN, 0, 0) },
        8,
        1,
        1,
    );
    let p = plain(&c);
    assert_eq!((p.src.memory, p.src.host, p.src.device), (HOST, 0x1000, 0));
    assert_eq!((p.dst.memory, p.dst.host, p.dst.device), (DEVICE, 0, OWN));
}

#[test]
fn a_plain_copy_has_no_offsets_and_stays_plain() {
    let dst = CopyEnd { x: 3, y: 2, z: 1, ..on_device(OWN, 100, 10) };
    let p = plain(&copy3(host(0x1000, 0, 0), dst, 20, 4, 2));
    assert_eq!((p.dst.x, p.dst.y, p.dst.z, p.dst.pitch, p.dst.height), (0, 0, 0, 100, 10));
    assert_eq!((p.src.pitch, p.src.height), (20, 4));
    assert_eq!(plain(&p), p);
    assert_eq!(spans(&p).unwrap()[1], spans(&copy3(host(0x1000, 0, 0), dst, 20, 4, 2)).unwrap()[1]);
}

#[test]
fn a_plain_copy_keeps_what_counts_of_an_array() {
    let array = CopyEnd { memory: ARRAY, array: 7, x: 4, y: 5, z: 6, pitch: 9, height: 9, host: 1, ..CopyEnd::default() };
    let p = plain(&copy3(array, host(0x1000, 0, 0), 20, 1, 1));
    assert_eq!(p.src, CopyEnd { memory: ARRAY, array: 7, x: 4, y: 5, z: 6, ..CopyEnd::default() });
}

#[test]
fn the_rows_of_a_copy_come_slice_by_slice() {
    let c = copy3(host(0x1000, 16, 4), host(0x9000, 10, 2), 10, 2, 3);
    assert_eq!(slices(&c, &c.src).map(|slice| slice.address()).collect::<Vec<_>>(), [0x1000, 0x1040, 0x1080]);
    assert_eq!((source(&c), destination(&c)), (0x1000..0x109a, 0x9000..0x903c));
}

#[test]
fn a_copy_reads_and_writes_its_rows_only() {
    let from: Vec<u8> = (0..64).collect();
    let mut to = [0xffu8; 64];
    let c = copy3(host(from.as_ptr() as u64, 8, 4), host(to.as_mut_ptr() as u64, 16, 2), 3, 2, 2);
    let bytes = read_plain(&c);
    assert_eq!(bytes, [0, 1, 2, 8, 9, 10, 32, 33, 34, 40, 41, 42]);
    assert!(write_plain(&c, &bytes));
    let written: Vec<usize> = (0..64).filter(|i| to[*i] != 0xff).collect();
    assert_eq!(written, [0, 1, 2, 16, 17, 18, 32, 33, 34, 48, 49, 50]);
    assert_eq!((to[16], to[50]), (8, 42));
}

#[test]
fn bytes_of_another_length_are_not_written() {
    let mut to = [0xffu8; 16];
    let c = copy3(host(0x1000, 8, 1), host(to.as_mut_ptr() as u64, 8, 1), 8, 1, 2);
    for n in [0, 15, 17] {
        assert!(!write_plain(&c, &vec![0; n]), "{n}");
    }
    assert_eq!(to, [0xff; 16]);
}

#[test]
fn pageable_memory_of_a_later_copy_is_read_at_once() {
    let mut from: Vec<u8> = (0..24).collect();
    let mut to = [0u8; 24];
    let r = Rect { dst: end(to.as_mut_ptr() as u64, 12), src: end(from.as_ptr() as u64, 12), width: 4, rows: 2 };
    let later = HostCopy::later(&r).unwrap();
    from.fill(99);
    later.carry_out();
    assert_eq!((&to[..5], &to[12..17]), (&[0, 1, 2, 3, 0][..], &[12, 13, 14, 15, 0][..]));
    assert_eq!(from[0], 99);
}

#[test]
fn fills_of_host_memory_write_whole_elements() {
    for (element, expected) in [(1u8, [0x44, 0x44, 0x44, 0x44]), (2, [0x44, 0x33, 0x44, 0x33]), (4, [0x44, 0x33, 0x22, 0x11])] {
        let mut to = [0u8; 32];
        let (width, rows) = (4 / u64::from(element), 2);
        let fill = Fill { dst: to.as_mut_ptr() as u64, pitch: 16, value: 0x1122_3344, element, width, rows, stream: 0 };
        HostFill(fill).carry_out();
        assert_eq!(
            (&to[..5], &to[16..21]),
            (&[&expected[..], &[0]].concat()[..], &[&expected[..], &[0]].concat()[..]),
            "{element}"
        );
    }
}
