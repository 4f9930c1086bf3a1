//! The messages between the places. Numbers are little endian.
//!
//! | frame | bytes |
//! |---|---|
//! | show | `MRMEMSR4`, two seeds of 32 bytes (the keys of the round), 16 bytes that identify the GPU, 32 bytes that say where chunks can be had and 32 for the hashes of what is in view (zeros: nowhere), u64 number of chunks, chunks of 24 bytes (u64 address, u64 bytes, u64 number of the memory), u64 number of regions, regions of 17 bytes (none unless the source was asked to send them) |
//! | hello | `MRMEMRY4`, u8 how what travels is verified, u8 how what is in view is (0 not, 2 by hashes, 3 by bytes), u64 number of regions, regions of 18 bytes (u64 address, u64 bytes, u8 kind, u8 in view), u64 number of adopted chunks, chunks of 24 bytes |
//! | hashes | u64 number of pages, 32 bytes for each; of more than 8,192 pages, parts on several connections |
//! | batch | u32 pages (0: the end), u32 bytes of these pages, u32 bytes that follow the numbers, u32 number of each page among the target's, then the bytes: as they are if as many follow as the pages have, or fewer, which are one frame of zstd |
//! | verdict, summary, result | u32 length and that much text (empty: all is well), then 32 bytes of digest |

use crate::error::SyncError;
use crate::region::{Kind, Pages, REGION_BYTES, Region, check_regions};
use crate::{Stream, Verify, threads};
use cuda_api::ops::Offer;
use cuda_api::wire::Wire;
use executor::{PageHash, PageKey, ProofKeys, Shown, share};

const MAGIC: &[u8; 8] = b"MRMEMRY4";
const SHOW: &[u8; 8] = b"MRMEMSR4";
const SHOWN_BYTES: usize = 24;
/// Maximum bytes of a batch of pages: the size of a buffer. Both ends of a copy must have the same one.
pub const BATCH: usize = 1 << 20;
/// Maximum pages of a batch.
pub(crate) const BATCH_PAGES: usize = 4096;
/// A list of regions is read in steps of this many bytes, so that an announced but unsent list takes no
/// memory.
const STEP: usize = 1 << 20;
/// Maximum number of regions. No job has more, since each takes a mapping or a variable.
const MAX_REGIONS: u64 = 1 << 24;
/// Hashes for which another connection is used: 256 KiB.
const PART: usize = 8192;
/// Maximum length of an error message; a longer text is malformed.
const MAX_TEXT: usize = 4096;

fn read<const N: usize>(s: &mut dyn Stream, what: &'static str) -> Result<[u8; N], SyncError> {
    let mut bytes = [0; N];
    s.read_exact(&mut bytes).map_err(SyncError::io(what))?;
    Ok(bytes)
}

/// Reads `count` items of `N` bytes and checks each as it arrives.
fn read_list<const N: usize, T>(
    s: &mut dyn Stream,
    count: u64,
    what: &'static str,
    mut item: impl FnMut(&[u8; N]) -> Result<T, SyncError>,
) -> Result<Vec<T>, SyncError> {
    let mut list = Vec::new();
    let mut left = count;
    let mut bytes = Vec::new();
    while left > 0 {
        let some = left.min((STEP / N) as u64);
        bytes.resize(some as usize * N, 0);
        s.read_exact(&mut bytes).map_err(SyncError::io(what))?;
        for one in bytes.chunks_exact(N).filter_map(|c| c.first_chunk::<N>()) {
            list.push(item(one)?);
        }
        left -= some;
    }
    Ok(list)
}

/// The keys of a round, as two seeds. They are drawn at the beginning of the round and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// Seed for the hashes by which pages are selected.
    choose: [u8; 32],
    /// Seed for the hashes that prove the copy.
    prove: [u8; 32],
}

impl Seeds {
    pub(crate) fn draw() -> Result<Seeds, SyncError> {
        let random = || share::random().map_err(SyncError::io("drawing the keys of a round"));
        Ok(Seeds { choose: random()?, prove: random()? })
    }

    /// The key by which pages are selected.
    pub(crate) fn choose(&self) -> PageKey {
        PageKey::from_seed(&self.choose)
    }

    /// The keys of the proof.
    pub(crate) fn prove(&self) -> ProofKeys {
        ProofKeys::from_seed(&self.prove)
    }
}

/// The source's memory that the target could bring into view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Show {
    /// Identifies the source's GPU.
    pub(crate) gpu: [u8; 16],
    pub(crate) offer: Offer,
    /// Where the hashes of what is in view can be mapped, if anywhere.
    pub(crate) hashes: Option<Offer>,
    pub(crate) chunks: Vec<Shown>,
    /// All its regions, if the target has none of its own.
    pub(crate) regions: Vec<Region>,
}

/// Reads a region that must lie behind the one that ends at `end`.
fn next_region(bytes: &[u8], end: &mut u64) -> Result<Region, SyncError> {
    let r = Region::get(&mut &bytes[..]).map_err(|_| SyncError::Protocol("a region of no known kind"))?;
    let fits = r.bytes > 0 && r.address >= *end;
    *end = r.address.checked_add(r.bytes).filter(|_| fits).ok_or(SyncError::Protocol("regions out of order"))?;
    Ok(r)
}

impl Show {
    pub(crate) fn send(&self, seeds: &Seeds, s: &mut dyn Stream) -> Result<(), SyncError> {
        let mut out = Vec::with_capacity(168 + self.chunks.len() * SHOWN_BYTES + self.regions.len() * REGION_BYTES);
        out.extend_from_slice(SHOW);
        out.extend_from_slice(&seeds.choose);
        out.extend_from_slice(&seeds.prove);
        out.extend_from_slice(&self.gpu);
        out.extend_from_slice(&self.offer);
        out.extend_from_slice(&self.hashes.unwrap_or_default());
        self.chunks.len().put(&mut out);
        self.chunks.iter().for_each(|c| c.put(&mut out));
        self.regions.len().put(&mut out);
        self.regions.iter().for_each(|r| r.put(&mut out));
        s.write_all(&out).and_then(|()| s.flush()).map_err(SyncError::io("telling what is here"))
    }

    pub(crate) fn receive(s: &mut dyn Stream) -> Result<(Seeds, Show), SyncError> {
        let what = "learning what the source has";
        if read::<8>(s, what)? != *SHOW {
            return Err(SyncError::Protocol("it does not begin like a round"));
        }
        let seeds = Seeds { choose: read(s, what)?, prove: read(s, what)? };
        let gpu = read(s, what)?;
        let offer = read(s, what)?;
        let hashes = Some(read(s, what)?).filter(|offer| *offer != Offer::default());
        let count = u64::from_le_bytes(read(s, what)?);
        if count > MAX_REGIONS {
            return Err(SyncError::Protocol("too many chunks"));
        }
        let chunk = |bytes: &[u8; SHOWN_BYTES]| Shown::get(&mut &bytes[..]).map_err(|_| SyncError::Protocol("half a chunk"));
        let chunks = read_list(s, count, what, chunk)?;
        let count = u64::from_le_bytes(read(s, what)?);
        if count > MAX_REGIONS {
            return Err(SyncError::Protocol("too many regions"));
        }
        let mut end = 0;
        let regions = read_list::<REGION_BYTES, Region>(s, count, what, |bytes| next_region(bytes, &mut end))?;
        Ok((seeds, Show { gpu, offer, hashes, chunks, regions }))
    }
}

/// The target's regions and how it verifies them.
#[derive(Debug)]
pub(crate) struct Hello {
    /// How pages that are sent are verified; the target has decided, so this is never [`Verify::Auto`].
    pub(crate) sent: Verify,
    /// How pages in view are verified; never [`Verify::Auto`] either.
    pub(crate) seen: Verify,
    pub(crate) regions: Vec<Region>,
    /// For each region, whether it is in view.
    pub(crate) in_view: Vec<bool>,
    /// Chunks whose memory is the source's own, by address; they are not among the regions.
    pub(crate) adopted: Vec<Shown>,
}

impl Hello {
    pub(crate) fn send(&self, s: &mut dyn Stream) -> Result<(), SyncError> {
        let regions = &self.regions;
        let mut out = Vec::with_capacity(40 + regions.len() * (REGION_BYTES + 1) + self.adopted.len() * SHOWN_BYTES);
        out.extend_from_slice(MAGIC);
        self.sent.put(&mut out);
        self.seen.put(&mut out);
        regions.len().put(&mut out);
        for (region, in_view) in regions.iter().zip(&self.in_view) {
            region.put(&mut out);
            in_view.put(&mut out);
        }
        self.adopted.len().put(&mut out);
        self.adopted.iter().for_each(|c| c.put(&mut out));
        s.write_all(&out).and_then(|()| s.flush()).map_err(SyncError::io("telling what is here"))
    }

    pub(crate) fn receive(s: &mut dyn Stream) -> Result<Hello, SyncError> {
        let what = "learning what the target has";
        if read::<8>(s, what)? != *MAGIC {
            return Err(SyncError::Protocol("it does not begin like a round"));
        }
        let how = |byte: u8| Verify::get(&mut &[byte][..]).ok().filter(|v| *v != Verify::Auto);
        let [sent, seen] = read::<2>(s, what)?.map(how);
        let (Some(sent), Some(seen)) = (sent, seen) else { return Err(SyncError::Protocol("no known way to verify")) };
        if (sent == Verify::Skip) != (seen == Verify::Skip) {
            return Err(SyncError::Protocol("half a verification"));
        }
        let count = u64::from_le_bytes(read(s, what)?);
        if count > MAX_REGIONS {
            return Err(SyncError::Protocol("too many regions"));
        }
        let mut end = 0;
        let mut in_view = Vec::new();
        let regions = read_list::<{ REGION_BYTES + 1 }, Region>(s, count, what, |bytes| {
            let r = next_region(&bytes[..REGION_BYTES], &mut end)?;
            in_view.push(bytes[REGION_BYTES] != 0 && r.kind == Kind::Chunk);
            Ok(r)
        })?;
        // The source keeps a hash of each.
        check_regions(&regions).map_err(|_| SyncError::Protocol("too many pages"))?;
        let count = u64::from_le_bytes(read(s, what)?);
        if count > MAX_REGIONS {
            return Err(SyncError::Protocol("too many chunks"));
        }
        let mut end = 0;
        let adopted = read_list::<SHOWN_BYTES, Shown>(s, count, what, |bytes| {
            let c = Shown::get(&mut &bytes[..]).map_err(|_| SyncError::Protocol("half a chunk"))?;
            let fits = c.bytes > 0 && c.address >= end;
            end = c.address.checked_add(c.bytes).filter(|_| fits).ok_or(SyncError::Protocol("chunks out of order"))?;
            Ok(c)
        })?;
        Ok(Hello { sent, seen, regions, in_view, adopted })
    }
}

impl Hello {
    /// Whether this round proves the copy, with the job quiesced.
    pub(crate) fn verifies(&self) -> bool {
        self.sent != Verify::Skip
    }

    /// The pages that are proved by hashes, of those that are sent and those in view.
    pub(crate) fn to_prove(&self, sent: &Pages, seen: &Pages) -> Pages {
        let parts = [(self.sent, sent), (self.seen, seen)];
        Pages::together(parts.into_iter().filter(|(how, _)| *how == Verify::Hash).map(|(_, pages)| pages))
    }

    /// The pages that are sent, and the pages in view.
    pub(crate) fn pages(&self) -> (Pages, Pages) {
        let part = |seen: bool| {
            let mine = self.regions.iter().zip(&self.in_view).filter(|(_, in_view)| **in_view == seen);
            Pages::of(mine.map(|(r, _)| *r).collect())
        };
        (part(false), part(true))
    }
}

/// The parts of a table of hashes that connections carry at the same time, one each: one connection carries little more than a gigabyte in a
/// second, and the calls of the job are blocked meanwhile.
fn parts_of(pages: usize, connections: usize) -> impl Iterator<Item = usize> {
    let parts = pages.div_ceil(PART).clamp(1, connections.max(1));
    (0..parts).map(move |n| (n + 1) * pages / parts - n * pages / parts)
}

/// Sends hashes of pages.
pub(crate) fn send_hashes(conns: &mut [Box<dyn Stream>], mut hashes: &[PageHash]) -> Result<(), SyncError> {
    let sizes = parts_of(hashes.len(), conns.len());
    let parts = conns.iter_mut().zip(sizes).map(|(s, size)| {
        let part;
        (part, hashes) = hashes.split_at(size);
        (s, part)
    });
    threads::for_all(parts, |(s, part): (&mut Box<dyn Stream>, &[PageHash])| {
        let count = (part.len() as u64).to_le_bytes();
        let sent = s.write_all(&count).and_then(|()| s.write_all(part.as_flattened())).and_then(|()| s.flush());
        sent.map_err(SyncError::io("telling hashes"))
    })
}

/// Receives the hashes of pages.
pub(crate) fn receive_hashes(conns: &mut [Box<dyn Stream>], mut hashes: &mut [PageHash]) -> Result<(), SyncError> {
    let what = "learning hashes";
    let sizes = parts_of(hashes.len(), conns.len());
    let parts = conns.iter_mut().zip(sizes).map(|(s, size)| {
        let part;
        (part, hashes) = std::mem::take(&mut hashes).split_at_mut(size);
        (s, part)
    });
    threads::for_all(parts, |(s, part): (&mut Box<dyn Stream>, &mut [PageHash])| {
        if u64::from_le_bytes(read(&mut **s, what)?) != part.len() as u64 {
            return Err(SyncError::Protocol("not a hash for each page"));
        }
        s.read_exact(part.as_flattened_mut()).map_err(SyncError::io(what))
    })
}

/// A verdict, summary or result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The error; empty if there is none.
    pub(crate) trouble: String,
    pub(crate) digest: [u8; 32],
}

impl Word {
    pub(crate) fn send(s: &mut dyn Stream, trouble: Option<&SyncError>, digest: [u8; 32]) -> Result<(), SyncError> {
        let mut text = trouble.map(SyncError::for_the_peer).unwrap_or_default();
        let cut = (0..=MAX_TEXT.min(text.len())).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
        text.truncate(cut);
        let mut out = (text.len() as u32).to_le_bytes().to_vec();
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(&digest);
        s.write_all(&out).and_then(|()| s.flush()).map_err(SyncError::io("telling how the round went"))
    }

    /// Receives the other end's message; its error is returned as ours.
    pub(crate) fn receive(s: &mut dyn Stream) -> Result<[u8; 32], SyncError> {
        let what = "learning how the round went";
        let len = u32::from_le_bytes(read(s, what)?) as usize;
        if len > MAX_TEXT {
            return Err(SyncError::Protocol("an endless message"));
        }
        let mut text = vec![0; len];
        s.read_exact(&mut text).map_err(SyncError::io(what))?;
        let digest = read(s, what)?;
        if len == 0 { Ok(digest) } else { Err(SyncError::Peer(String::from_utf8_lossy(&text).into_owned())) }
    }
}

/// Sends a batch of pages as they are; an empty batch marks the end.
pub(crate) fn send_batch(s: &mut dyn Stream, numbers: &[u32], bytes: &[u8]) -> Result<(), SyncError> {
    send_bytes(s, numbers, bytes.len(), bytes)
}

/// Sends a batch of pages that are compressed, and have so many bytes otherwise.
pub(crate) fn send_compressed(s: &mut dyn Stream, numbers: &[u32], bytes: usize, compressed: &[u8]) -> Result<(), SyncError> {
    send_bytes(s, numbers, bytes, compressed)
}

fn send_bytes(s: &mut dyn Stream, numbers: &[u32], bytes: usize, carried: &[u8]) -> Result<(), SyncError> {
    let mut head = Vec::with_capacity(12 + 4 * numbers.len());
    (numbers.len() as u32).put(&mut head);
    (bytes as u32).put(&mut head);
    (carried.len() as u32).put(&mut head);
    numbers.iter().for_each(|n| n.put(&mut head));
    let what = SyncError::io("sending pages");
    s.write_all(&head).and_then(|()| s.write_all(carried)).and_then(|()| s.flush()).map_err(what)
}

/// The head of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The numbers of its pages.
    pub(crate) numbers: Vec<u32>,
    /// The bytes of its pages; at most [`BATCH`].
    pub(crate) bytes: usize,
    /// The bytes that follow; as many, or fewer.
    pub(crate) carried: usize,
}

impl Batch {
    pub(crate) fn is_compressed(&self) -> bool {
        self.carried < self.bytes
    }
}

/// Receives the head of a batch; `None` at the end.
pub(crate) fn receive_batch(s: &mut dyn Stream) -> Result<Option<Batch>, SyncError> {
    let what = "receiving pages";
    let count = u32::from_le_bytes(read(s, what)?);
    let bytes = u32::from_le_bytes(read(s, what)?) as usize;
    let carried = u32::from_le_bytes(read(s, what)?) as usize;
    if count as usize > BATCH_PAGES || bytes > BATCH || (count == 0) != (bytes == 0) {
        return Err(SyncError::Protocol("a batch of impossible size"));
    }
    if carried > bytes || (carried == 0) != (bytes == 0) {
        return Err(SyncError::Protocol("a batch that became larger by compression, or vanished"));
    }
    if count == 0 {
        return Ok(None);
    }
    let numbers = read_list::<4, u32>(s, u64::from(count), what, |b| Ok(u32::from_le_bytes(*b)))?;
    Ok(Some(Batch { numbers, bytes, carried }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Kind;
    use executor::NO_HASH;
    use std::io::Cursor;
    use std::os::unix::net::UnixStream;

    fn hello() -> Vec<u8> {
        let regions = [
            Region { address: 0x10_0000, bytes: 0x1_0005, kind: Kind::Chunk },
            Region { address: 0x30_0000, bytes: 9, kind: Kind::Global },
        ];
        let mut s = Cursor::new(Vec::new());
        Hello {
            sent: Verify::Hash,
            seen: Verify::Bytes,
            regions: regions.to_vec(),
            in_view: vec![true, true],
            adopted: Vec::new(),
        }
        .send(&mut s)
        .expect("sent");
        s.into_inner()
    }

    #[test]
    fn hello_arrives() {
        let got = Hello::receive(&mut Cursor::new(hello())).expect("received");
        assert_eq!((got.sent, got.seen), (Verify::Hash, Verify::Bytes));
        assert_eq!(got.regions[1], Region { address: 0x30_0000, bytes: 9, kind: Kind::Global });
        assert_eq!(got.in_view, [true, false], "only chunks can be in view");
        let (sent, seen) = got.pages();
        assert_eq!((sent.len(), seen.len()), (1, 2));
    }

    #[test]
    fn what_is_shown_arrives_whole_or_not_at_all() {
        let chunks = vec![Shown { address: 1 << 45, bytes: 2 << 20, number: 7 }; 3];
        let regions = vec![Region { address: 1 << 45, bytes: 2 << 20, kind: Kind::Chunk }];
        let show = Show { gpu: [8; 16], offer: [9; 32], hashes: Some([7; 32]), chunks, regions };
        let seeds = Seeds::draw().expect("random bytes");
        assert_ne!(seeds, Seeds::draw().expect("random bytes"));
        let mut s = Cursor::new(Vec::new());
        show.send(&seeds, &mut s).expect("sent");
        let whole = s.into_inner();
        assert_eq!(Show::receive(&mut Cursor::new(whole.clone())).expect("received"), (seeds, show));
        for n in 0..whole.len() {
            assert!(matches!(Show::receive(&mut Cursor::new(whole[..n].to_vec())), Err(SyncError::Io { .. })), "{n}");
        }
        let lie = [&SHOW[..], &[0; 144], &u64::MAX.to_le_bytes()].concat();
        assert!(matches!(Show::receive(&mut Cursor::new(lie)), Err(SyncError::Protocol("too many chunks"))));
    }

    #[test]
    fn hashes_arrive_whole_or_not_at_all() {
        let hashes: Vec<PageHash> =
            (0..100_000u32).map(|n| [n.to_le_bytes(); 8].as_flattened().try_into().expect("32 bytes")).collect();
        for (connections, pages) in [(1, 100_000), (3, 100_000), (8, 100_000), (8, 8192), (8, 8193), (2, 1), (2, 0)] {
            let hashes = &hashes[..pages];
            let pairs = || -> (Vec<UnixStream>, Vec<UnixStream>) {
                (0..connections).map(|_| UnixStream::pair().expect("sockets")).unzip()
            };
            let boxed = |all: Vec<UnixStream>| all.into_iter().map(|s| Box::new(s) as Box<dyn Stream>).collect::<Vec<_>>();
            let receive = |pages: usize, cut: bool| {
                let (a, b) = pairs();
                let (mut a, mut b) = (boxed(a), boxed(b));
                let mut got = vec![NO_HASH; pages];
                let received = std::thread::scope(|scope| {
                    let sending =
                        scope.spawn(move || if cut { send_hashes(&mut a[..1], &[]) } else { send_hashes(&mut a, hashes) });
                    let received = receive_hashes(&mut b, &mut got);
                    drop(b);
                    let _ = sending.join().expect("no panic");
                    received
                });
                received.map(|()| got)
            };
            assert!(receive(pages, false).expect("received") == hashes, "{connections} {pages}");
            // With another number of parts it would wait for one that never comes, until the connections are closed.
            if parts_of(pages, connections).count() == parts_of(pages + 1, connections).count() {
                assert!(matches!(receive(pages + 1, false), Err(SyncError::Protocol(_))));
            }
            assert_eq!(receive(pages, true).is_err(), pages > 0);
        }
        assert_eq!(parts_of(100_000, 8).collect::<Vec<_>>(), [12500; 8]);
        assert_eq!(parts_of(8193, 8).collect::<Vec<_>>(), [4096, 4097]);
        assert_eq!(parts_of(8192, 8).collect::<Vec<_>>(), [8192]);
    }

    #[test]
    fn every_shortened_or_changed_hello_is_answered_calmly() {
        let whole = hello();
        for n in 0..whole.len() {
            assert!(matches!(Hello::receive(&mut Cursor::new(whole[..n].to_vec())), Err(SyncError::Io { .. })), "{n}");
            for bit in 0..8 {
                let mut bent = whole.clone();
                bent[n] ^= 1 << bit;
                // Either it is refused, or it is a different but consistent message. It must not allocate without limit
                // or panic.
                if let Ok(h) = Hello::receive(&mut Cursor::new(bent)) {
                    assert_eq!(h.in_view.len(), h.regions.len());
                }
            }
        }
        let lie = [&MAGIC[..], &[0, 0], &u64::MAX.to_le_bytes()].concat();
        assert!(matches!(Hello::receive(&mut Cursor::new(lie)), Err(SyncError::Protocol("too many regions"))));
    }

    #[test]
    fn overlapping_regions_are_refused() {
        let regions = [
            Region { address: 0x10_0000, bytes: 0x1_0000, kind: Kind::Chunk },
            Region { address: 0x10_8000, bytes: 9, kind: Kind::Global },
        ];
        let mut s = Cursor::new(Vec::new());
        let hello = Hello {
            sent: Verify::Skip,
            seen: Verify::Skip,
            regions: regions.to_vec(),
            in_view: vec![false; 2],
            adopted: Vec::new(),
        };
        hello.send(&mut s).expect("sent");
        s.set_position(0);
        assert!(matches!(Hello::receive(&mut s), Err(SyncError::Protocol("regions out of order"))));
    }

    #[test]
    fn words_carry_trouble() {
        let mut s = Cursor::new(Vec::new());
        Word::send(&mut s, None, [7; 32]).expect("sent");
        Word::send(&mut s, Some(&SyncError::Regions("ü".repeat(5000))), [0; 32]).expect("sent");
        s.set_position(0);
        assert_eq!(Word::receive(&mut s).expect("well"), [7; 32]);
        assert!(matches!(Word::receive(&mut s), Err(SyncError::Peer(text)) if text.ends_with('ü')));
    }

    #[test]
    fn impossible_batches_are_refused() {
        for (pages, bytes, carried) in [
            (1u32, 0u32, 0u32),
            (1, 0, 1),
            (0, 1, 1),
            (0, 0, 1),
            (5000, 10, 10),
            (1, u32::MAX, u32::MAX),
            (1, u32::MAX, 1),
            (1, 1 + BATCH as u32, 100),
            (1, 10, 11),
            (1, 10, u32::MAX),
            (1, 10, 0),
        ] {
            let head = [pages.to_le_bytes(), bytes.to_le_bytes(), carried.to_le_bytes()].concat();
            assert!(matches!(receive_batch(&mut Cursor::new(head)), Err(SyncError::Protocol(_))), "{pages} {bytes} {carried}");
        }
    }
}
