//! Turns of streams: what lets a short copy of one stream go on while another stream makes a large one.
//!
//! A GPU has one engine for all copies in a direction. It turns to another stream only where the stream that has it comes to something
//! else than a copy: a copy of 64 KiB waits for all of 1 GiB that another stream was given before, be it one copy or many
//! (docs/driver-facts.md, 5.12). Therefore a large copy is given to the driver in pieces, with a write of a word behind each. That keeps
//! everything else as it is: all of it is in the stream at once and in its order, and no thread waits for anything.
//!
//! The words also show how many pieces a stream has not passed yet. A driver's call waits where a stream has about a thousand commands,
//! so of a stream that has many pieces already a copy has fewer and larger ones.

use cuda_api::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a piece while the stream has few. Other streams wait for one at most: 0.3 ms at 55 GB/s. A write takes as long as 0.2 MiB.
const PIECE: u64 = 16 << 20;
/// Maximum number of pieces that a stream has not passed yet. The driver has two commands for each.
const MAX_PIECES: u32 = 128;
/// Bytes of memory for the words.
pub(crate) const BYTES: usize = 4096;
/// Maximum number of streams with pieces at one time.
const STREAMS: usize = BYTES / size_of::<u32>();

/// Whether a copy is given to the driver in pieces.
pub(crate) fn is_large(bytes: u64) -> bool {
    bytes >= 2 * PIECE
}

/// The streams of a context that have pieces of large copies.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Address of the words.
    at: Option<usize>,
    /// For each word the stream that has it, and the number of writes that it was given.
    streams: Vec<(u64, u32)>,
}

impl State {
    /// The number of writes that a stream has not passed.
    fn left(&self, word: usize) -> Option<u32> {
        let (at, (_, given)) = (self.at?, self.streams.get(word)?);
        // SAFETY: an aligned word of memory that stays while the state has its address; only atomics and the GPU access it.
        let passed = unsafe { AtomicU32::from_ptr((at as *mut u32).add(word)) }.load(Ordering::Acquire);
        Some(given.wrapping_sub(passed))
    }

    /// The word of a stream: its own, or one whose stream has passed everything, or one that none has.
    fn word(&mut self, stream: u64) -> Option<usize> {
        self.at?;
        let own = self.streams.iter().position(|(s, _)| *s == stream);
        let word = own.or_else(|| (0..self.streams.len()).find(|word| self.left(*word) == Some(0))).unwrap_or(self.streams.len());
        if word == STREAMS {
            return None;
        }
        if word == self.streams.len() {
            self.streams.push((stream, 0));
        }
        self.streams[word].0 = stream;
        Some(word)
    }
}

impl Turns {
    /// Whether there is memory for the words.
    pub(crate) fn has_words(&self) -> bool {
        lock(&self.0).at.is_some()
    }

    /// Takes page-locked memory of [`BYTES`] for the words, zero at first; false if there is some.
    ///
    /// # Safety
    /// It stays until [`Turns::end`] has given it back.
    pub(crate) unsafe fn provide(&self, at: usize) -> bool {
        let mut s = lock(&self.0);
        let first = s.at.is_none();
        s.at.get_or_insert(at);
        first
    }

    /// Bytes of the pieces of a copy in a stream of the driver. `None`: it is short, or the stream has too many already.
    pub(crate) fn piece(&self, stream: u64, bytes: u64) -> Option<u64> {
        if !is_large(bytes) {
            return None;
        }
        let mut s = lock(&self.0);
        let word = s.word(stream)?;
        // The copies that follow are to be divided too.
        let most = u64::from(MAX_PIECES.saturating_sub(s.left(word)?) / 2);
        let pieces = bytes.div_ceil(PIECE).min(most);
        (pieces > 1).then(|| bytes.div_ceil(pieces).next_multiple_of(4096))
    }

    /// What a stream of the driver is to write behind a piece, and where; nothing if it has [`MAX_PIECES`] already, because its driver's call
    /// must not wait, or if too many streams have pieces. Only one thread at a time gives work to a stream.
    pub(crate) fn write(&self, stream: u64) -> Option<(u64, u32)> {
        let mut s = lock(&self.0);
        let (word, at) = (s.word(stream)?, s.at?);
        if s.left(word)? >= MAX_PIECES {
            return None;
        }
        let given = &mut s.streams[word].1;
        *given = given.wrapping_add(1);
        Some(((at + word * size_of::<u32>()) as u64, *given))
    }

    /// Forgets all streams, none of which has work any more. Returns the memory of the words.
    pub(crate) fn end(&self) -> Option<usize> {
        std::mem::take(&mut *lock(&self.0)).at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words in memory of the test. What `write` returns is carried out by `pass`, as the GPU does.
    struct Words {
        turns: Turns,
        _memory: Vec<u32>,
    }

    fn words() -> Words {
        let mut memory = vec![0u32; STREAMS];
        let turns = Turns::default();
        // SAFETY: a vector keeps its memory when it moves, and lives as long as the turns.
        assert!(unsafe { turns.provide(memory.as_mut_ptr() as usize) });
        Words { turns, _memory: memory }
    }

    fn pass((at, value): (u64, u32)) {
        // SAFETY: a word of the test's memory.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }.store(value, Ordering::Release);
    }

    #[test]
    fn pieces_cover_a_copy_and_are_as_short_as_the_stream_allows() {
        let w = words();
        assert_eq!([1, PIECE, 2 * PIECE - 1].map(|n| w.turns.piece(1, n)), [None; 3]);
        for bytes in [2 * PIECE, 2 * PIECE + 1, 1 << 30, (1 << 30) + 7, 5 << 30, 1 << 40] {
            let piece = w.turns.piece(1, bytes).unwrap();
            assert!(piece.is_multiple_of(4096) && piece * u64::from(MAX_PIECES / 2) >= bytes, "{bytes}: {piece}");
            assert!(bytes > 1 << 30 || piece <= PIECE + 4096, "{bytes}: {piece}");
        }
    }

    /// However many copies a stream is given, its commands stay below what makes the driver's call wait.
    #[test]
    fn a_stream_has_a_limited_number_of_pieces() {
        let w = words();
        let (mut given, mut whole) = (Vec::new(), 0);
        for _ in 0..200 {
            let Some(piece) = w.turns.piece(1, 1 << 30) else {
                whole += 1;
                continue;
            };
            given.extend((0..(1u64 << 30).div_ceil(piece)).map(|_| w.turns.write(1).unwrap()));
        }
        assert!(given.len() <= MAX_PIECES as usize && whole > 0, "{} {whole}", given.len());
        // Another stream has as many of its own.
        assert_eq!(w.turns.piece(2, 1 << 30), Some(PIECE));
        // The stream goes on: there is room again.
        given.into_iter().for_each(pass);
        assert_eq!(w.turns.piece(1, 1 << 30), Some(PIECE));
    }

    /// Pieces whose bytes travel with their calls are of one size, and come as long as the program sends them.
    #[test]
    fn a_stream_that_stands_still_gets_no_more_writes() {
        let w = words();
        let given: Vec<_> = (0..500).filter_map(|_| w.turns.write(1)).collect();
        assert_eq!(given.len(), MAX_PIECES as usize);
        assert!(w.turns.write(2).is_some());
        pass(given[0]);
        assert_eq!(w.turns.write(1), Some((given[0].0, MAX_PIECES + 1)));
        assert_eq!(w.turns.write(1), None);
        pass((given[0].0, MAX_PIECES + 1));
        assert!(w.turns.write(1).is_some());
    }

    #[test]
    fn a_word_serves_another_stream_when_its_own_has_passed_everything() {
        let w = words();
        let first = w.turns.write(0).unwrap();
        for stream in 1..STREAMS as u64 {
            assert_ne!(w.turns.write(stream).unwrap().0, first.0);
        }
        let other = STREAMS as u64;
        assert!(w.turns.write(other).is_none() && w.turns.piece(other, 1 << 30).is_none());
        assert_eq!(w.turns.write(0), Some((first.0, 2)));
        pass((first.0, 2));
        assert_eq!(w.turns.write(other), Some((first.0, 3)));
        // Its numbers wrap around.
        lock(&w.turns.0).streams[0].1 = u32::MAX;
        pass((first.0, u32::MAX));
        assert_eq!(w.turns.write(other), Some((first.0, 0)));
        assert_eq!(lock(&w.turns.0).left(0), Some(1));
    }

    #[test]
    fn without_memory_copies_are_made_as_a_whole() {
        let turns = Turns::default();
        assert!(!turns.has_words() && turns.piece(1, 1 << 30).is_none() && turns.write(1).is_none() && turns.end().is_none());
        let w = words();
        assert!(w.turns.has_words() && w.turns.end().is_some() && !w.turns.has_words());
    }
}
