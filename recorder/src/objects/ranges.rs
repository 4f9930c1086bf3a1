//! Free ranges of addresses, found by address and by size.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges. Adjacent ranges are merged, but not across multiples of `unit`.
#[derive(Debug)]
pub(crate) struct Ranges {
    unit: u64,
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges::in_units(u64::MAX)
    }
}

impl Ranges {
    /// No ranges; none will span a multiple of `unit`.
    pub(crate) fn in_units(unit: u64) -> Ranges {
        Ranges { unit, by_address: BTreeMap::new(), by_size: BTreeSet::new(), bytes: 0 }
    }

    /// Total size of all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range that is not included yet.
    pub(crate) fn put(&mut self, mut address: u64, mut bytes: u64) {
        if !address.is_multiple_of(self.unit)
            && let Some((&before, &len)) = self.by_address.range(..address).next_back()
            && before + len == address
        {
            self.remove(before, len);
            (address, bytes) = (before, bytes + len);
        }
        let end = address + bytes;
        if !end.is_multiple_of(self.unit)
            && let Some(&len) = self.by_address.get(&end)
        {
            self.remove(end, len);
            bytes += len;
        }
        self.by_address.insert(address, bytes);
        self.by_size.insert((bytes, address));
        self.bytes += bytes;
    }

    /// Adds all ranges of another one.
    pub(crate) fn put_all(&mut self, other: Ranges) {
        for (address, bytes) in other.by_address {
            self.put(address, bytes);
        }
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_address.remove(&address);
        self.by_size.remove(&(bytes, address));
        self.bytes -= bytes;
    }

    /// The smallest range that fits, lowest address first.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(_, address) = self.by_size.range((bytes, 0)..).next()?;
        self.carve(address, bytes).then_some(address)
    }

    /// As [`Ranges::take`], at a multiple of `align`.
    pub(crate) fn take_aligned(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let fits = |&&(len, at): &&(u64, u64)| {
            let skipped = at.checked_next_multiple_of(align).map(|start| start - at);
            skipped.and_then(|s| s.checked_add(bytes)).is_some_and(|need| need <= len)
        };
        let &(_, at) = self.by_size.range((bytes, 0)..).find(fits)?;
        let address = at.next_multiple_of(align);
        self.carve(address, bytes).then_some(address)
    }

    /// Returns whether all of these bytes are free.
    pub(crate) fn has(&self, address: u64, bytes: u64) -> bool {
        let Some((&at, &len)) = self.by_address.range(..=address).next_back() else { return false };
        address - at <= len && bytes <= len - (address - at)
    }

    /// Takes exactly these bytes; returns false if they are not all free.
    pub(crate) fn carve(&mut self, address: u64, bytes: u64) -> bool {
        if !self.has(address, bytes) {
            return false;
        }
        let Some((&at, &len)) = self.by_address.range(..=address).next_back() else { return false };
        self.remove(at, len);
        // The remaining parts keep their ends, so nothing is merged here.
        for (start, end) in [(at, address), (address + bytes, at + len)] {
            if end > start {
                self.put(start, end - start);
            }
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
