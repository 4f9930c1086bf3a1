//! Which parts of a file are free. What a complete state of the file consists of stays until a newer one is complete.

use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The room of a file.
#[derive(Debug, Default)]
pub(super) struct Extents {
    /// Free parts before the end: offset, bytes. No two of them touch.
    free: BTreeMap<u64, u64>,
    /// The same: bytes, offset.
    sizes: BTreeSet<(u64, u64)>,
    /// Where the used part ends.
    end: u64,
    /// Offsets of what is not part of the last complete state.
    fresh: HashSet<u64>,
    /// Parts of the last complete state that are not used any more: offset, bytes.
    old: Vec<(u64, u64)>,
    /// Parts of states before it.
    older: Vec<(u64, u64)>,
}

impl Extents {
    /// An empty file, whose first bytes are not given away.
    pub(super) fn new(start: u64) -> Extents {
        Extents { end: start, ..Extents::default() }
    }

    /// The room of a complete file whose parts are these: offset, bytes. The first bytes are not given away.
    pub(super) fn of(start: u64, mut used: Vec<(u64, u64)>) -> Extents {
        used.sort_unstable();
        let mut room = Extents::new(start);
        for (offset, bytes) in used {
            if offset > room.end {
                let end = room.end;
                room.put(end, offset - end);
            }
            room.end = room.end.max(offset + bytes);
        }
        room
    }

    /// Where the used part ends.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes so many bytes: from the smallest free part that has them, or behind the end.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        let offset = match self.sizes.range((bytes, 0)..).next().copied() {
            Some((size, offset)) => {
                self.remove(offset, size);
                if size > bytes {
                    self.insert(offset + bytes, size - bytes);
                }
                offset
            }
            None => {
                let offset = self.end;
                self.end += bytes;
                offset
            }
        };
        self.fresh.insert(offset);
        offset
    }

    /// Gives a part back that was taken. Returns whether it is free now; otherwise a complete state still has it.
    pub(super) fn give_back(&mut self, offset: u64, bytes: u64) -> bool {
        let is_free = self.fresh.remove(&offset);
        if is_free {
            self.put(offset, bytes)
        } else {
            self.old.push((offset, bytes))
        }
        is_free
    }

    /// A new state is complete: it consists of everything that is taken.
    pub(super) fn complete(&mut self) {
        self.fresh.clear();
        self.older.append(&mut self.old);
    }

    /// Gives up the states before the last complete one. Returns what has become free.
    pub(super) fn forget_older(&mut self) -> Vec<(u64, u64)> {
        let older = std::mem::take(&mut self.older);
        older.iter().for_each(|(offset, bytes)| self.put(*offset, *bytes));
        older
    }

    /// Adds a free part, together with those that it touches.
    fn put(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some((before, size)) = self.free.range(..offset).next_back().map(|(o, s)| (*o, *s))
            && before + size == offset
        {
            self.remove(before, size);
            (offset, bytes) = (before, size + bytes);
        }
        if let Some(size) = self.free.get(&(offset + bytes)).copied() {
            self.remove(offset + bytes, size);
            bytes += size;
        }
        self.insert(offset, bytes);
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.free.insert(offset, bytes);
        self.sizes.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        self.free.remove(&offset);
        self.sizes.remove(&(bytes, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_reused_but_not_those_of_the_last_complete_state() {
        let mut room = Extents::new(100);
        let parts: Vec<u64> = (0..4).map(|_| room.take(10)).collect();
        assert_eq!(parts, [100, 110, 120, 130]);
        assert!(room.give_back(110, 10), "no state is complete");
        assert_eq!((room.take(4), room.take(7), room.take(6)), (110, 140, 114));
        room.complete();
        assert!(!room.give_back(120, 10) && !room.give_back(130, 10));
        assert_eq!((room.forget_older(), room.take(10)), (vec![], 147), "the last state still has them");
        room.complete();
        assert!(!room.give_back(140, 7), "a part of the new state");
        assert_eq!(room.forget_older(), [(120, 10), (130, 10)]);
        assert_eq!((room.take(20), room.end()), (120, 157), "they are one part now");
    }

    #[test]
    fn the_gaps_of_a_complete_file_are_free() {
        let mut room = Extents::of(100, vec![(150, 10), (100, 20), (165, 5)]);
        assert_eq!((room.take(30), room.take(5), room.take(1)), (120, 160, 170));
        assert!(!room.give_back(100, 20) && room.give_back(120, 30));
        room.complete();
        assert_eq!(room.forget_older(), [(100, 20)]);
        assert_eq!(room.take(50), 100);
    }
}
