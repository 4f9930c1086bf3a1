//! The target's part of a round.

use crate::diff::{Compared, differing, in_view, places, ranges, ways, without};
use crate::error::SyncError;
use crate::frames::{BATCH, Hello, Show, Word, receive_batch, send_hashes};
use crate::memory::Memory;
use crate::region::{Page, Pages, Region, digest};
use crate::threads;
use crate::transfer::Incoming;
use crate::{Round, Stream, Verify};
use executor::{ProofKeys, Shown};
use faults::{Faults, Point};
use std::time::Instant;

/// The result of receiving on one connection.
#[derive(Debug, Default)]
struct Received {
    /// Bytes of pages.
    bytes: u64,
    /// Bytes that the connection has carried for them.
    carried: u64,
    /// Number of pages that differ, and the address of one of them.
    differing: Option<(usize, u64)>,
    /// An error at this end. The rest of the connection is read nevertheless, so that the source can end in order.
    trouble: Option<SyncError>,
}

impl Received {
    fn add(&mut self, other: Received) {
        self.bytes += other.bytes;
        self.carried += other.carried;
        self.trouble = self.trouble.take().or(other.trouble);
        self.differs(other.differing);
    }

    fn differs(&mut self, more: Option<(usize, u64)>) {
        let Some((pages, address)) = more else { return };
        self.differing = Some((self.differing.map_or(0, |(n, _)| n) + pages, address));
    }
}

/// A target executes nothing for the job.
const AT_REST: bool = true;

/// How received pages are used.
#[derive(Debug, Clone, Copy)]
enum Purpose<'a> {
    /// They are written to the GPU.
    Write,
    /// They are compared with the pages at the target, and recorded.
    Compare(&'a Compared),
}

/// Receives everything from one connection; while one batch is written to the GPU, the next is read.
fn receive<M: Memory>(
    m: &M,
    lane: usize,
    s: &mut dyn Stream,
    all: &Pages,
    purpose: Purpose<'_>,
    point: Point,
) -> Result<Received, SyncError> {
    let mut got = Received::default();
    let mut flying = None;
    let mut spare: Option<M::Buffer> = None;
    let mut discard = Vec::new();
    let mut incoming = Incoming::default();
    let all_bytes: u64 = all.regions().iter().map(|r| r.bytes).sum();
    while let Some(batch) = receive_batch(s)? {
        faults::at(point);
        got.bytes += batch.bytes as u64;
        // A source that sends pages again and again, compressed, would cost itself little and this place much. (What one page too often
        // means is decided below.)
        if got.bytes > all_bytes + BATCH as u64 {
            return Err(SyncError::Protocol("more bytes than all pages have"));
        }
        got.carried += batch.carried as u64;
        let ready = match (&got.trouble, spare.take()) {
            (Some(_), _) => None,
            (None, Some(buffer)) => Some(buffer),
            (None, None) => m.buffer().map_err(|e| got.trouble = Some(e)).ok(),
        };
        let Some(mut buffer) = ready else {
            discard.resize(BATCH, 0);
            incoming.read(s, &batch, &mut discard[..batch.bytes])?;
            continue;
        };
        let data = &mut m.bytes(&mut buffer)[..batch.bytes];
        incoming.read(s, &batch, data)?;
        let expanded = places(all, &batch.numbers, batch.bytes).and_then(|pages| incoming.expand(&batch, data).map(|()| pages));
        let written = expanded.and_then(|pages| {
            if let Purpose::Compare(noted) = purpose {
                got.differs(compare(m, lane, &pages, &m.bytes(&mut buffer)[..batch.bytes])?);
                noted.note(&batch.numbers);
                spare = Some(buffer);
                return Ok(None);
            }
            // One copy at a time per lane: the previous buffer is then free for the next batch.
            spare = flying.take().map(|f| land(m, f)).transpose()?;
            m.write(lane, buffer, &pages, AT_REST).map(Some)
        });
        match written {
            Ok(flight) => flying = flight,
            Err(e) => got.trouble = Some(e),
        }
    }
    if let Some(Err(e)) = flying.map(|f| land(m, f)) {
        got.trouble.get_or_insert(e);
    }
    Ok(got)
}

fn land<M: Memory>(m: &M, flight: M::Flight) -> Result<M::Buffer, SyncError> {
    match m.land(flight)? {
        (buffer, 0) => Ok(buffer),
        (_, gone) => Err(SyncError::Regions(format!("{gone} pages went away at the target during the round"))),
    }
}

/// Compares contiguous bytes with pages. Returns how many pages differ, and the address of one of them.
fn compare<M: Memory>(m: &M, lane: usize, pages: &[Page], bytes: &[u8]) -> Result<Option<(usize, u64)>, SyncError> {
    let mut ours = land(m, m.read(lane, m.buffer()?, pages, AT_REST)?)?;
    let ours = &m.bytes(&mut ours)[..bytes.len()];
    Ok(differing(pages, ours, bytes))
}

fn receive_all<M: Memory>(
    m: &M,
    conns: &mut [Box<dyn Stream>],
    all: &Pages,
    purpose: Purpose<'_>,
    point: Point,
) -> Result<Received, SyncError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = conns
            .iter_mut()
            .enumerate()
            .map(|(i, s)| threads::spawn(scope, move || receive(m, 1 + i, &mut **s, all, purpose, point)))
            .collect();
        let mut sum = Ok(Received::default());
        for t in threads {
            let one = threads::join(t);
            sum = sum.and_then(|mut sum| {
                sum.add(one?);
                Ok(sum)
            });
        }
        sum
    })
}

/// Copies pages in view whose hashes differ from those that the source shows; ours are behind `from` others. `spoil` (for tests): flips a
/// byte of the page with this number.
fn fetch<M: Memory>(
    m: &M,
    seen: &Pages,
    (hashes, from): (&M::Hashes, usize),
    spoil: Option<u64>,
    point: Point,
) -> Result<u64, SyncError> {
    let bits = m.differing(hashes, from, None)?;
    let to_fetch = || seen.marked(&bits).map(|(_, page)| page);
    let ranges = ranges(to_fetch());
    let spoiled = spoil.and_then(|count| to_fetch().nth(usize::try_from(count).ok()?.checked_sub(1)?));
    if seen.len() > 0 {
        faults::at(point);
    }
    if !ranges.is_empty() {
        m.fetch(&ranges)?;
    }
    if let Some(page) = spoiled {
        let (mut buffer, _) = m.land(m.read(0, m.buffer()?, &[page], AT_REST)?)?;
        m.bytes(&mut buffer)[0] ^= 1;
        m.land(m.write(0, buffer, &[page], AT_REST)?)?;
    }
    Ok(ranges.iter().map(|(_, bytes)| bytes).sum())
}

/// The regions that a round compares, and the chunks that it need not, because their memory is the source's own.
fn regions_and_adopted<M: Memory>(m: &M) -> Result<(Vec<Region>, Vec<Shown>), SyncError> {
    let adopted = m.adopted();
    Ok((without(m.regions()?, &adopted), adopted))
}

pub(crate) fn run<M: Memory>(
    m: &M,
    conns: &mut [Box<dyn Stream>],
    verify: Verify,
    by_descriptor: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    if conns.is_empty() {
        return Err(SyncError::NoConnection);
    }
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    // While the source lists what it shows.
    let ahead = m.has_regions().then(|| regions_and_adopted(m));
    let (seeds, show) = Show::receive(&mut *conns[0])?;
    m.take_regions(&show.regions)?;
    let proof = (verify != Verify::Skip).then(|| seeds.prove());
    m.begin(proof.as_ref().map(|keys| &keys.pages));
    let (chunks, not_in_view) = if by_descriptor { m.view(&show) } else { (Vec::new(), Some("it was not asked for".to_owned())) };
    let (regions, adopted) = ahead.unwrap_or_else(|| regions_and_adopted(m))?;
    let (sent, seen) = ways(verify, show.gpu == m.gpu());
    let bytes_adopted = adopted.iter().map(|c| c.bytes).sum();
    let hello = Hello { sent, seen, in_view: in_view(&regions, &chunks), regions, adopted };
    hello.send(&mut *conns[0])?;
    let hashing = Instant::now();
    let (all, seen) = hello.pages();
    // All are computed before anything is sent to the source: it then sends much data, which must be read without a pause.
    let (hashes, _) = m.hash(&seeds.choose(), &Pages::together([&all, &seen]), &|_| true)?;
    send_hashes(conns, &hashes.as_ref()[..all.len()])?;
    let mut hash_ms = ms(hashing);
    let mut hashed = (all.len() + seen.len()) as u64;
    Word::receive(&mut *conns[0])?;
    let copying = Instant::now();
    let point = if hello.verifies() { Point::DeltaReceive } else { Point::PrecopyReceive };
    let spoil = fault.corrupt_page.filter(|_| hello.verifies());
    let noted = Compared::none_of(&all);
    let (fetched, received) = std::thread::scope(|scope| {
        let fetching = threads::spawn(scope, || fetch(m, &seen, (&hashes, all.len()), spoil, point));
        let received = receive_all(m, conns, &all, Purpose::Write, point).and_then(|received| {
            // The source sends the pages for comparison without waiting for what is copied here. They are read in
            // parallel, because a connection that takes no data for long counts as broken.
            let compared = (hello.sent == Verify::Bytes).then(|| receive_all(m, conns, &all, Purpose::Compare(&noted), point));
            Ok((received, compared.transpose()?.unwrap_or_default()))
        });
        (threads::join(fetching), received)
    });
    let (mut received, compared) = received?;
    let bytes_fetched = fetched.unwrap_or_else(|e| {
        received.trouble.get_or_insert(e);
        0
    });
    let copy_ms = ms(copying);
    // It is used again for the proof.
    drop(hashes);
    let proof = proof.map(|keys| {
        // The source hashes at the same time.
        let hashing = Instant::now();
        let trouble = received.trouble.take().or(compared.trouble);
        let proof = trouble.map_or_else(|| prove(m, &hello, (&all, &seen), &keys, (compared.differing, &noted)), Err);
        hash_ms += ms(hashing);
        proof
    });
    let theirs = Word::receive(&mut *conns[0])?;
    let ours = match (proof, received.trouble) {
        (_, Some(e)) | (Some(Err(e)), None) => Err(e),
        (Some(Ok((digest, pages))), None) => {
            hashed += pages;
            Ok(digest)
        }
        (None, None) => Ok(theirs),
    };
    // The source waits for the result, so nothing that is not durable counts as proved.
    let sealed = ours.and_then(|ours| match hello.verifies() && ours == theirs {
        true => Ok((ours, m.seal()?)),
        false => Ok((ours, [0; 32])),
    });
    let (ours, seal) = match sealed {
        Ok(sealed) => sealed,
        Err(e) => {
            Word::send(&mut *conns[0], Some(&e), [0; 32])?;
            return Err(e);
        }
    };
    Word::send(&mut *conns[0], None, ours)?;
    if hello.verifies() && ours != theirs {
        return Err(SyncError::digest(&theirs, &ours));
    }
    let regions = hello.regions;
    Ok(Round {
        regions: regions.len() as u64,
        bytes_total: regions.iter().map(|r| r.bytes).sum(),
        bytes_sent: received.bytes,
        bytes_carried: received.carried,
        bytes_fetched,
        bytes_adopted,
        handed_over: false,
        not_in_view: not_in_view.unwrap_or_default(),
        pages_hashed: hashed,
        hash_ms,
        copy_ms,
        digest: ours,
        seal,
    })
}

/// The digest of the proof, and the number of pages hashed for it.
type Proof = Result<([u8; 32], u64), SyncError>;

/// Proves that the target holds the source's bytes. `compared`: the result of comparing the pages that the source has
/// sent for this, and their numbers.
fn prove<M: Memory>(
    m: &M,
    hello: &Hello,
    (all, seen): (&Pages, &Pages),
    keys: &ProofKeys,
    compared: (Option<(usize, u64)>, &Compared),
) -> Proof {
    let unequal = |(pages, address)| SyncError::Bytes { pages, address };
    if let Some(differ) = compared.0 {
        return Err(unequal(differ));
    }
    if hello.sent == Verify::Bytes && !compared.1.is_complete() {
        return Err(SyncError::Protocol("the source did not send every page for the comparison of bytes"));
    }
    let pages = hello.to_prove(all, seen);
    let hashes = m.prove(keys, &pages, "target")?;
    if hello.seen == Verify::Bytes {
        let differ = m.compare(seen)?;
        if let Some(address) = differ.first() {
            return Err(unequal((differ.len(), *address)));
        }
    }
    Ok((digest(&hello.regions, &hashes), pages.len() as u64))
}
