use super::*;

/// Rows inside an array.
fn rows(bytes: &mut [u8], at: usize, pitch: u64, width: u64, rows: u64) -> HostRows {
    assert!(at as u64 + (rows - 1) * pitch + width <= bytes.len() as u64);
    // SAFETY: inside the array, which the tests keep.
    unsafe { HostRows::new(bytes.as_mut_ptr() as u64 + at as u64, pitch, width, rows) }
}

#[test]
fn rows_are_packed_and_unpacked() {
    let mut from: Vec<u8> = (0..40).collect();
    let packed = rows(&mut from, 0, 10, 3, 4).read();
    assert_eq!(packed, [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);
    let mut to = [0u8; 40];
    rows(&mut to, 0, 10, 3, 4).write(&packed);
    assert_eq!((to[12], to[13], to[32], to[33]), (12, 0, 32, 0));
}

#[test]
fn no_more_rows_are_written_than_there_are() {
    let mut to = [0u8; 16];
    rows(&mut to, 0, 4, 2, 2).write(&[1; 16]);
    assert_eq!(to, [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn contiguous_rows_are_used_where_they_are() {
    let mut from: Vec<u8> = (0..64).collect();
    let start = from.as_ptr();
    let mut place = |pitch, n| rows(&mut from, 0, pitch, 8, n).with_bytes(|bytes| (bytes.as_ptr() == start, bytes.len()));
    assert_eq!((place(8, 4), place(56, 1), place(16, 4)), ((true, 32), (true, 8), (false, 32)));
}

#[test]
fn rows_may_overlap() {
    let mut bytes: Vec<u8> = (0..32).collect();
    let (from, to) = (rows(&mut bytes, 0, 16, 8, 2), rows(&mut bytes, 2, 16, 8, 2));
    from.copy_to(&to);
    assert_eq!(bytes[..12], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11]);
    assert_eq!(bytes[16..28], [16, 17, 16, 17, 18, 19, 20, 21, 22, 23, 26, 27]);
}

#[test]
fn a_part_is_in_the_row() {
    let mut bytes: Vec<u8> = (0..8).collect();
    let row = rows(&mut bytes, 0, 8, 8, 1);
    assert_eq!(row.part(2, 3).read(), [2, 3, 4]);
    assert!(row.part(8, 0).read().is_empty());
    assert!(std::panic::catch_unwind(|| row.part(2, 7)).is_err());
}
