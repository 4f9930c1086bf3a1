//! Words of 64 bits seen as bytes, and bytes as words. The format is little endian, as this system is.

const _: () = assert!(cfg!(target_endian = "little"), "records are viewed in place");

/// The bytes of words.
#[inline]
pub(crate) fn bytes(words: &[u64]) -> &[u8] {
    // SAFETY: the same memory, which is initialised; bytes need no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The bytes of words, mutable.
#[inline]
pub(crate) fn bytes_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: as above, borrowed exclusively; any bytes are words.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// The words of a mapping, whose length is a multiple of the system's pages.
pub(crate) fn of_mapping(bytes: &[u8]) -> &[u64] {
    // SAFETY: any bytes are words.
    let (before, words, after) = unsafe { bytes.align_to() };
    debug_assert!(before.is_empty() && after.is_empty(), "mappings begin and end at a page");
    words
}

/// As [`of_mapping`], mutable.
pub(crate) fn of_mapping_mut(bytes: &mut [u8]) -> &mut [u64] {
    // SAFETY: any bytes are words, and any words are bytes.
    let (before, words, after) = unsafe { bytes.align_to_mut() };
    debug_assert!(before.is_empty() && after.is_empty(), "mappings begin and end at a page");
    words
}
