//! Lines of memory, as both sides tell them.

/// Memory is compared by pages, and told by lines.
pub(super) const PAGE: u64 = 4096;
pub(super) const LINE: u64 = 64;
pub(super) const WORDS: usize = 8;

/// A line of memory: its address, a bit for each byte that has changed, its words.
pub type Line = [u64; 2 + WORDS];

/// The bits of a word of a line.
pub(super) fn of_word(mask: u64, number: usize) -> u64 {
    mask >> (8 * number) & 0xff
}
