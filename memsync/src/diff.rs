//! What a round copies, without I/O: from the regions and the hashes of both ends follow the pages that the source sends and over which
//! connection, where the target writes them, and the ranges that the target fetches from memory in view. `diff/model.rs` checks it.

use crate::Verify;
use crate::error::SyncError;
use crate::frames::{BATCH, BATCH_PAGES};
use crate::region::{Kind, Page, Pages, Region};
use executor::{NO_HASH, PageHash, Shown, joined};
use std::sync::atomic::{AtomicU64, Ordering};

/// A page to send: its number among the pages that the target wants sent, and its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) number: u32,
    pub(crate) page: Page,
}

/// Bit n says whether page n of the target has another hash at the source, which has that page.
pub(crate) fn differing_hashes(target: &[PageHash], source: &[PageHash]) -> Vec<u64> {
    let word = |(target, source): (&[PageHash], &[PageHash])| {
        let pairs = target.iter().zip(source).enumerate();
        pairs.map(|(bit, (t, s))| u64::from(t != s && *s != NO_HASH) << bit).fold(0, |word, bit| word | bit)
    };
    target.chunks(64).zip(source.chunks(64)).map(word).collect()
}

/// The pages that the source sends: those whose bits are set.
pub(crate) fn to_send(target: &Pages, bits: &[u64]) -> Vec<Wanted> {
    target.marked(bits).map(|(number, page)| Wanted { number, page }).collect()
}

/// All pages that are sent for the comparison of their bytes.
pub(crate) fn everything(target: &Pages) -> Vec<Wanted> {
    target.iter().enumerate().map(|(i, page)| Wanted { number: i as u32, page }).collect()
}

/// The ranges (address, bytes) of pages; adjacent ones are joined.
pub(crate) fn ranges(pages: impl Iterator<Item = Page>) -> Vec<(u64, u64)> {
    joined(pages.map(|page| (page.address, page.bytes)))
}

/// Splits pages into batches that fit a buffer.
pub(crate) fn batches<T: Copy>(mut items: &[T], bytes: impl Fn(T) -> u64) -> Vec<&[T]> {
    let mut all = Vec::new();
    while !items.is_empty() {
        let mut sum = 0;
        let fits = |item: &&T| {
            sum += bytes(**item);
            sum <= BATCH as u64
        };
        let n = items.iter().take(BATCH_PAGES).take_while(fits).count().max(1);
        let (batch, rest) = items.split_at(n);
        all.push(batch);
        items = rest;
    }
    all
}

/// The batches that each of the connections sends, in order.
pub(crate) fn by_connection(wanted: &[Wanted], connections: usize) -> Vec<Vec<&[Wanted]>> {
    let batches = batches(wanted, |w| w.page.bytes);
    (0..connections).map(|i| batches.iter().copied().skip(i).step_by(connections).collect()).collect()
}

/// The destinations of the pages of a batch.
pub(crate) fn places(all: &Pages, numbers: &[u32], bytes: usize) -> Result<Vec<Page>, SyncError> {
    let wanted: Option<Vec<Page>> = numbers.iter().map(|n| all.get(*n as usize)).collect();
    let wanted = wanted.ok_or(SyncError::Protocol("a page that was not offered"))?;
    if wanted.iter().map(|p| p.bytes).sum::<u64>() != bytes as u64 {
        return Err(SyncError::Protocol("a batch whose size is not that of its pages"));
    }
    Ok(wanted)
}

/// The pages whose contiguous bytes differ from `ours`: how many, and the address of one of them.
pub(crate) fn differing(pages: &[Page], ours: &[u8], theirs: &[u8]) -> Option<(usize, u64)> {
    let mut at = 0;
    let differing: Vec<u64> = pages
        .iter()
        .filter(|page| {
            let part = at..at + page.bytes as usize;
            at = part.end;
            ours[part.clone()] != theirs[part]
        })
        .map(|page| page.address)
        .collect();
    differing.first().map(|address| (differing.len(), *address))
}

/// The numbers of the pages that were compared: a proof by bytes must cover all of them.
#[derive(Debug)]
pub(crate) struct Compared {
    noted: Vec<AtomicU64>,
    of: usize,
}

impl Compared {
    pub(crate) fn none_of(all: &Pages) -> Compared {
        Compared { noted: (0..all.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), of: all.len() }
    }

    /// Notes that pages were compared. Their numbers are those of pages that exist ([`places`]).
    pub(crate) fn note(&self, numbers: &[u32]) {
        for n in numbers {
            if let Some(word) = self.noted.get(*n as usize / 64) {
                word.fetch_or(1 << (n % 64), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether every page was compared.
    pub(crate) fn is_complete(&self) -> bool {
        self.noted.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum::<usize>() == self.of
    }
}

/// The regions without the chunks that the target has adopted.
pub(crate) fn without(mut regions: Vec<Region>, adopted: &[Shown]) -> Vec<Region> {
    let among = |r: &Region| adopted.binary_search_by_key(&r.address, |s| s.address).is_ok_and(|i| adopted[i].bytes == r.bytes);
    regions.retain(|r| r.kind != Kind::Chunk || !among(r));
    regions
}

/// Those of the adopted chunks whose memory is still the source's.
pub(crate) fn still_there(mut adopted: Vec<Shown>, source: &[Shown]) -> Vec<Shown> {
    adopted.retain(|a| source.binary_search_by_key(&a.address, |s| s.address).is_ok_and(|i| source[i] == *a));
    adopted
}

/// Whether all of these regions are chunks that are shown; both lists are in order.
pub(crate) fn all_shown(regions: &[Region], shown: &[Shown]) -> bool {
    let mut shown = shown.iter();
    regions.iter().all(|r| shown.find(|s| s.address >= r.address).is_some_and(|s| (s.address, s.bytes) == (r.address, r.bytes)))
}

/// For each region, whether it is among these chunks.
pub(crate) fn in_view(regions: &[Region], chunks: &[u64]) -> Vec<bool> {
    regions.iter().map(|r| r.kind == Kind::Chunk && chunks.binary_search(&r.address).is_ok()).collect()
}

/// How pages that are sent and pages in view are verified.
pub(crate) fn ways(verify: Verify, same_gpu: bool) -> (Verify, Verify) {
    match verify {
        Verify::Auto => (Verify::Hash, if same_gpu { Verify::Bytes } else { Verify::Hash }),
        all => (all, all),
    }
}

#[cfg(test)]
mod model;
