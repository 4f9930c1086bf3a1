//! Lines of memory, the unit in which both sides send changes.

/// Bytes of a line: memory is compared by pages, and sent by lines.
pub(crate) const LINE: u64 = 64;
pub(super) const WORDS: usize = 8;

/// A line of memory: its address, a bit for each changed byte, its words.
pub type Line = [u64; 2 + WORDS];

/// The bits of a word of a line.
pub(super) fn of_word(mask: u64, number: usize) -> u64 {
    mask >> (8 * number) & 0xff
}
