//! Into what large copies are divided, and how much memory that takes.

use faults::Faults;

/// Regions of an area.
pub const REGIONS: u32 = 4;
/// Maximum number of areas, and so of streams with such copies at one time.
pub const AREAS: usize = 8;
/// Commands of a stream that belong to one piece, and those that belong to the whole copy.
const COMMANDS: [usize; 2] = [2, 2];
/// Bytes of an area for the two words, a page of their own: they are never shared with the job.
pub const WORDS: usize = 4096;

/// Into what copies are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a region: the largest piece.
    pub region: usize,
    /// Bytes of the smallest piece, unless the copy is smaller.
    pub piece: usize,
    /// Bytes of the smallest and the largest segment; in shared memory these are up to twice as long.
    pub segment: [usize; 2],
}

impl Sizes {
    /// The usual ones; small ones where a test asks for them.
    pub fn of_process() -> Sizes {
        match Faults::from_env().small_copies {
            false => Sizes { region: 8 << 20, piece: 2 << 20, segment: [256 << 10, 1 << 20] },
            true => Sizes { region: 64 << 10, piece: 4 << 10, segment: [4 << 10, 8 << 10] },
        }
    }

    /// Bytes of the pieces of a copy.
    pub(super) fn pieces_of(&self, bytes: u64) -> u64 {
        (bytes / u64::from(REGIONS)).next_multiple_of(4096).clamp(self.piece as u64, self.region as u64)
    }

    /// Number of commands in a stream for a copy of so many bytes.
    pub fn commands(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.pieces_of(bytes)) as usize * COMMANDS[0] + COMMANDS[1]
    }

    /// Bytes of the segments of a piece of a copy. In memory that the job shares, the kernel copies a segment for a thread of the job. Threads
    /// that do so within 2 MiB of the program's memory wait for each other, since these have one lock in the kernel: eight reach 16 GB/s with
    /// segments of 256 KiB, 24 with 512 KiB and 44 with 2 MiB (docs/measurements.md). Short copies have a segment for each of eight threads.
    pub(super) fn segment_of(&self, piece: usize, copy: u64, is_shared: bool) -> usize {
        let [least, most] = self.segment;
        if is_shared {
            return (copy / 8).next_multiple_of(4096).clamp(least as u64, 2 * most as u64) as usize;
        }
        (piece / 8).next_multiple_of(4096).clamp(least, most)
    }

    /// Bytes of an area.
    pub fn area(&self) -> usize {
        self.regions() + WORDS
    }

    /// Bytes of the regions of an area.
    pub fn regions(&self) -> usize {
        self.region * REGIONS as usize
    }

    /// Bytes of a file for the regions of all areas.
    pub fn file(&self) -> usize {
        self.regions() * AREAS
    }
}
