//! Regions of a job's memory, and their pages.

use crate::error::SyncError;
use cuda_api::wire::Wire;
use executor::{Executor, NO_HASH, PAGE_BYTES, PageHash};
use std::sync::Arc;

/// Unit of comparison and copying, in bytes.
pub const PAGE: u64 = PAGE_BYTES as u64;

/// Maximum number of pages of a store: a tebibyte.
const MAX_PAGES: u64 = 1 << 24;

cuda_api::wire_enum! {
    /// Kind of a region.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind {
        /// Physical memory mapped in the job's arena.
        Chunk = 0,
        /// A variable of a module or library.
        Global = 1,
        /// The device heap, which only kernels can access.
        Heap = 2,
        /// Contents of an array, in a window of numbers that are not addresses (`cuda_api::array`).
        Array = 3,
    }
}

cuda_api::wire_struct! {
    /// A range of device memory that belongs to the job.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct Region {
        /// Start address.
        pub address: u64,
        /// Size in bytes.
        pub bytes: u64,
        /// Kind of memory.
        pub kind: Kind,
    }
}

/// Encoded size of a region in bytes.
pub(crate) const REGION_BYTES: usize = 17;

impl Region {
    /// Number of its pages; the last may be shorter.
    pub fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE)
    }

    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            Kind::Chunk => "memory",
            Kind::Global => "a variable",
            Kind::Heap => "the device heap",
            Kind::Array => "an array",
        };
        write!(f, "{what} of {} bytes at {:#x}", self.bytes, self.address)
    }
}

/// The regions of a place, sorted by address, without overlap.
///
/// # Errors
/// The place cannot list its memory.
pub fn regions(exec: &Arc<Executor>) -> Result<Vec<Region>, SyncError> {
    let globals = exec.variables().map_err(SyncError::gpu("listing variables"))?;
    let heap = exec.heap().map_err(SyncError::gpu("finding the device heap"))?;
    let mut all: Vec<Region> =
        exec.chunks().into_iter().map(|c| Region { address: c.address, bytes: c.bytes, kind: Kind::Chunk }).collect();
    all.extend(globals.into_iter().map(|(address, bytes)| Region { address, bytes, kind: Kind::Global }));
    all.extend(heap.map(|(address, bytes)| Region { address, bytes, kind: Kind::Heap }));
    all.extend(exec.arrays().into_iter().map(|(address, bytes)| Region { address, bytes, kind: Kind::Array }));
    Ok(tidy(all))
}

/// Sorts regions and removes what an earlier one covers: a variable may have several names, and symbols of code may
/// overlap partially. Each region lies inside one symbol, because a driver copies no further than to a symbol's end.
fn tidy(mut all: Vec<Region>) -> Vec<Region> {
    all.retain(|r| r.bytes > 0);
    all.sort_by_key(|r| (r.address, std::cmp::Reverse(r.bytes), r.kind));
    let mut tidy: Vec<Region> = Vec::with_capacity(all.len());
    for r in all {
        let covered = tidy.last().map_or(0, Region::end);
        let address = r.address.max(covered);
        if r.end() > address {
            tidy.push(Region { address, bytes: r.end() - address, ..r });
        }
    }
    tidy
}

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// Hashed by the host, because it is part of an array, which kernels cannot access as memory.
    pub(crate) by_host: bool,
}

impl Region {
    /// The page of this region with this number.
    pub(crate) fn page(&self, number: u64) -> Page {
        let bytes = PAGE.min(self.bytes.saturating_sub(number * PAGE));
        let by_host = self.kind == Kind::Array;
        Page { address: self.address + number * PAGE, bytes, kind: self.kind, by_host }
    }
}

/// Checks that a store can have these regions, which are in order.
pub(crate) fn check_regions(regions: &[Region]) -> Result<(), &'static str> {
    let pages: u64 = regions.iter().map(Region::pages).fold(0, u64::saturating_add);
    if pages > MAX_PAGES { Err("more memory than a store can hold") } else { Ok(()) }
}

/// The page of these regions that begins at an address.
pub(crate) fn page_at(regions: &[Region], address: u64) -> Option<Page> {
    let region = regions[..regions.partition_point(|r| r.address <= address)].last()?;
    let inside = address - region.address;
    (inside < region.bytes && inside.is_multiple_of(PAGE)).then(|| region.page(inside / PAGE))
}

/// Pages of regions, numbered in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pages {
    regions: Vec<Region>,
    /// Number of each region's first page.
    first: Vec<usize>,
    len: usize,
}

impl Pages {
    pub(crate) fn of(regions: Vec<Region>) -> Pages {
        let mut len = 0;
        let mut first = Vec::with_capacity(regions.len());
        for r in &regions {
            first.push(len);
            len += r.pages() as usize;
        }
        Pages { regions, first, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Each region with the number of its first page.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (&Region, usize)> {
        self.regions.iter().zip(self.first.iter().copied())
    }

    pub(crate) fn get(&self, number: usize) -> Option<Page> {
        let region = self.first.partition_point(|first| *first <= number).checked_sub(1)?;
        let (r, first) = (self.regions.get(region)?, self.first.get(region)?);
        let inside = (number - first) as u64;
        (inside < r.pages()).then(|| r.page(inside))
    }

    /// Several lists, one behind the other.
    pub(crate) fn together<'a>(parts: impl IntoIterator<Item = &'a Pages>) -> Pages {
        Pages::of(parts.into_iter().flat_map(|pages| pages.regions.iter().copied()).collect())
    }

    /// The pages whose bits are set, with their numbers. What this takes depends on their number and that of the regions.
    pub(crate) fn marked<'a>(&'a self, bits: &'a [u64]) -> impl Iterator<Item = (u32, Page)> + 'a {
        let set = bits.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        });
        let mut region = 0;
        set.take_while(|number| *number < self.len).filter_map(move |number| {
            while self.first.get(region + 1).is_some_and(|first| *first <= number) {
                region += 1;
            }
            let inside = number - self.first.get(region)?;
            Some((number as u32, self.regions[region].page(inside as u64)))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Page> {
        self.regions.iter().flat_map(|r| (0..r.pages()).map(|n| r.page(n)))
    }
}

/// Digest of regions with the hashes that prove their pages.
pub(crate) fn digest(regions: &[Region], proof: &[PageHash]) -> [u8; 32] {
    let mut bytes = Vec::with_capacity(regions.len() * REGION_BYTES);
    for r in regions {
        r.put(&mut bytes);
    }
    *blake3::Hasher::new().update(&bytes).update(proof.as_flattened()).finalize().as_bytes()
}

/// Replaces the hashes of other regions than `which`.
pub(crate) fn leave_out(hashes: &mut [PageHash], pages: &Pages, which: impl Fn(&Region) -> bool) {
    let others = pages.numbered().filter(|(r, _)| !which(r));
    others.for_each(|(r, first)| hashes[first..first + r.pages() as usize].fill(NO_HASH));
}

/// More bytes than this are missed where they stay in use, whatever they hold.
const LITTLE: u64 = 64 << 20;

/// Whether these regions have no allocations of the program, but what its code brings along: variables, and a device heap of little size.
pub(crate) fn is_of_code(regions: &[Region]) -> bool {
    let is_code = |r: &Region| matches!(r.kind, Kind::Global | Kind::Heap);
    regions.iter().all(is_code) && regions.iter().map(|r| r.bytes).fold(0, u64::saturating_add) <= LITTLE
}

/// Whether a sorted list has this region.
pub(crate) fn has(regions: &[Region], r: &Region) -> bool {
    regions.binary_search_by_key(&r.address, |x| x.address).is_ok_and(|i| regions[i] == *r)
}

/// Describes the first difference between two lists of regions.
pub(crate) fn difference(source: &[Region], target: &[Region]) -> Option<String> {
    for (s, t) in source.iter().zip(target) {
        if s != t {
            return Some(if s.address <= t.address {
                format!("the source has {s}, the target does not")
            } else {
                format!("the target has {t}, the source does not")
            });
        }
    }
    let common = source.len().min(target.len());
    let more = source.get(common).map(|s| format!("the source has {s}, the target does not"));
    more.or_else(|| target.get(common).map(|t| format!("the target has {t}, the source does not")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(address: u64, bytes: u64, kind: Kind) -> Region {
        Region { address, bytes, kind }
    }

    #[test]
    fn pages_cover_regions_exactly() {
        let list = [
            region(0x1000, 3 * PAGE, Kind::Chunk),
            region(0x90_0000, PAGE + 5, Kind::Global),
            region(0xa0_0003, 7, Kind::Global),
            region(0xb0_0000, PAGE, Kind::Array),
        ];
        let numbered = Pages::of(list.to_vec());
        let pages: Vec<Page> = numbered.iter().collect();
        assert_eq!(pages.iter().map(|p| p.bytes).collect::<Vec<_>>(), [PAGE, PAGE, PAGE, PAGE, 5, 7, PAGE]);
        assert_eq!(pages.iter().map(|p| p.by_host).collect::<Vec<_>>(), [false, false, false, false, false, false, true]);
        assert!(numbered.len() == 7 && (0..8).all(|n| numbered.get(n) == pages.get(n).copied()));
        assert!(Pages::of(Vec::new()).get(0).is_none());
        assert_eq!(pages[4].address, 0x90_0000 + PAGE);
    }

    #[test]
    fn marked_pages_are_those_of_the_bits() {
        let list =
            [region(0, 3 * PAGE, Kind::Chunk), region(1 << 30, 7, Kind::Global), region(1 << 40, 200 * PAGE + 1, Kind::Chunk)];
        let pages = Pages::of(list.to_vec());
        let all: Vec<Page> = pages.iter().collect();
        for chosen in [vec![], vec![0, 2, 3, 4, 63, 64, 100, 203, 204], (0..205).collect::<Vec<usize>>(), vec![204]] {
            let mut bits = vec![0u64; 4];
            chosen.iter().for_each(|n| bits[n / 64] |= 1 << (n % 64));
            // Bits behind the last page say nothing.
            bits[3] |= 1 << 63;
            let want: Vec<(u32, Page)> = chosen.iter().map(|n| (*n as u32, all[*n])).collect();
            assert_eq!(pages.marked(&bits).collect::<Vec<_>>(), want);
        }
        assert_eq!(Pages::of(Vec::new()).marked(&[u64::MAX]).count(), 0);
        let (front, back) = (Pages::of(list[..1].to_vec()), Pages::of(list[1..].to_vec()));
        assert_eq!(Pages::together([&front, &back]).iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn names_of_one_variable_make_one_region() {
        let list = vec![
            region(0x2000, 8, Kind::Global),
            region(0x1000, 64, Kind::Global),
            region(0x1000, 16, Kind::Global),
            region(0x1010, 16, Kind::Global),
            region(0x3000, 0, Kind::Global),
        ];
        assert_eq!(tidy(list), [region(0x1000, 64, Kind::Global), region(0x2000, 8, Kind::Global)]);
    }

    #[test]
    fn overlapping_symbols_are_covered_once() {
        let list = vec![
            region(0x1000, 0x40, Kind::Global),
            region(0x1020, 0x40, Kind::Global),
            region(0x1030, 0x10, Kind::Global),
            region(0x1050, 0x30, Kind::Global),
            region(0x1080, 8, Kind::Global),
        ];
        let found = tidy(list);
        let wanted = [(0x1000, 0x40), (0x1040, 0x20), (0x1060, 0x20), (0x1080, 8)];
        assert_eq!(found, wanted.map(|(address, bytes)| region(address, bytes, Kind::Global)));
        assert!(found.windows(2).all(|pair| pair[0].end() <= pair[1].address));
    }

    #[test]
    fn differences_are_told() {
        let a = [region(0x1000, 64, Kind::Chunk), region(0x2000, 64, Kind::Chunk)];
        assert_eq!(difference(&a, &a), None);
        assert!(difference(&a, &a[..1]).expect("differs").contains("0x2000"));
        assert!(difference(&a[1..], &a).expect("differs").starts_with("the target has memory of 64 bytes at 0x1000"));
        assert!(difference(&a, &[a[0], region(0x2000, 65, Kind::Chunk)]).is_some());
    }

    #[test]
    fn digests_depend_on_everything() {
        let a = [region(0x1000, PAGE, Kind::Chunk)];
        let base = digest(&a, &[[1; 32]]);
        assert_ne!(base, digest(&a, &[[2; 32]]));
        assert_ne!(base, digest(&a, &[[1; 32], [1; 32]]));
        assert_ne!(base, digest(&[region(0x2000, PAGE, Kind::Chunk)], &[[1; 32]]));
        assert_eq!(base, digest(&a, &[[1; 32]]));
    }
}
