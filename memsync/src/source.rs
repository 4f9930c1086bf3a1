//! The source's part of a round.

use crate::diff::{Wanted, all_shown, by_connection, everything, still_there, to_send, without};
use crate::error::SyncError;
use crate::frames::{Hello, Seeds, Word, receive_hashes};
use crate::memory::Memory;
use crate::region::{Page, Region, difference, digest, has, is_of_code};
use crate::threads;
use crate::transfer::Outgoing;
use crate::{Compression, Round, Stream, Verify};
use faults::{Faults, Point};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// For tests: flips a byte of the selected page.
struct Corruption {
    page: Option<u64>,
    sent: AtomicU64,
}

impl Corruption {
    fn none() -> Corruption {
        Corruption { page: None, sent: AtomicU64::new(0) }
    }

    fn touch(&self, batch: &[Wanted], bytes: &mut [u8]) {
        let before = self.sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let Some(index) = self.page.and_then(|n| n.checked_sub(before + 1)).filter(|i| *i < batch.len() as u64) else {
            return;
        };
        let offset: u64 = batch[..index as usize].iter().map(|w| w.page.bytes).sum();
        bytes[offset as usize] ^= 1;
    }
}

/// The moment at which a batch is sent.
fn sending(verifies: bool) -> Point {
    if verifies { Point::DeltaSend } else { Point::PrecopySend }
}

/// What was sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    /// Number of pages that no longer existed.
    gone: usize,
    /// Bytes that connections have carried for all pages.
    carried: u64,
}

impl Sent {
    fn and(self, other: Sent) -> Sent {
        Sent { gone: self.gone + other.gone, carried: self.carried + other.carried }
    }
}

/// Sends batches over one connection; while one is sent, the next is read from the GPU.
fn send<M: Memory>(
    m: &M,
    lane: usize,
    s: &mut Outgoing<'_>,
    mine: &[&[Wanted]],
    corruption: &Corruption,
    verifies: bool,
) -> Result<Sent, SyncError> {
    let start = |batch: &[Wanted], buffer| {
        let pages: Vec<Page> = batch.iter().map(|w| w.page).collect();
        // In a round that proves something the job is at rest.
        m.read(lane, buffer, &pages, verifies)
    };
    let mut gone = 0;
    let mut next = mine.first().map(|batch| start(batch, m.buffer()?)).transpose()?;
    let mut spare = None;
    for (i, batch) in mine.iter().enumerate() {
        let Some(flight) = next.take() else { break };
        next = match mine.get(i + 1) {
            Some(following) => {
                let buffer = spare.take().map_or_else(|| m.buffer(), Ok)?;
                Some(start(following, buffer)?)
            }
            None => None,
        };
        let (mut buffer, missing) = m.land(flight)?;
        gone += missing;
        let bytes = batch.iter().map(|w| w.page.bytes as usize).sum();
        let data = &mut m.bytes(&mut buffer)[..bytes];
        corruption.touch(batch, data);
        let numbers: Vec<u32> = batch.iter().map(|w| w.number).collect();
        faults::at(sending(verifies));
        s.send(&numbers, data)?;
        spare = Some(buffer);
    }
    Ok(Sent { gone, carried: s.carried() })
}

/// Sends over all connections in parallel. Each ends in order unless it is broken, so that the target can receive the
/// error.
fn send_all<M: Memory>(
    m: &M,
    (conns, compression): (&mut [Box<dyn Stream>], &mut [Compression]),
    wanted: &[Wanted],
    corruption: &Corruption,
    verifies: bool,
) -> Result<Sent, SyncError> {
    let shares = by_connection(wanted, conns.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = conns
            .iter_mut()
            .zip(compression)
            .zip(&shares)
            .enumerate()
            .map(|(i, ((s, compression), mine))| {
                threads::spawn(scope, move || {
                    let mut s = Outgoing::new(&mut **s, compression);
                    let sent = send(m, 1 + i, &mut s, mine, corruption, verifies);
                    match &sent {
                        Err(e) if e.is_io() => sent,
                        _ => sent.and_then(|sent| s.send(&[], &[]).map(|()| sent)).or_else(|e| {
                            if !e.is_io() {
                                s.send(&[], &[])?;
                            }
                            Err(e)
                        }),
                    }
                })
            })
            .collect();
        let mut all = Ok(Sent::default());
        for t in threads {
            let one = threads::join(t);
            all = all.and_then(|sum| one.map(|sent| sum.and(sent)));
        }
        all
    })
}

fn none_gone(gone: usize) -> Result<(), SyncError> {
    if gone == 0 { Ok(()) } else { Err(SyncError::Regions(format!("{gone} pages went away at the source during the round"))) }
}

pub(crate) fn run<M: Memory>(
    m: &M,
    conns: &mut [Box<dyn Stream>],
    compression: &mut Vec<Compression>,
    send_regions: bool,
    fault: &Faults,
) -> Result<Round, SyncError> {
    if conns.is_empty() {
        return Err(SyncError::NoConnection);
    }
    compression.resize_with(conns.len(), Compression::default);
    let seeds = Seeds::draw()?;
    let mut show = m.show();
    if send_regions {
        show.regions = m.regions()?;
    }
    show.send(&seeds, &mut *conns[0])?;
    // While the target maps what is shown. Later than that list: what it has and this has not is no difference in a round that verifies,
    // where the job is at rest.
    let ours = m.regions();
    let mut hello = Hello::receive(&mut *conns[0])?;
    let proof = hello.verifies().then(|| seeds.prove());
    m.begin(proof.as_ref().map(|keys| &keys.pages));
    // The target hashes at the same time.
    let hashing = Instant::now();
    let (theirs, seen) = hello.pages();
    // Before there are tables for them: a short list of long regions must not take much page-locked memory.
    let (pages, most) = ((theirs.len() + seen.len()) as u64, m.most_pages(hello.regions.len()));
    if pages > most {
        return Err(SyncError::TooManyPages { pages, most });
    }
    if !all_shown(seen.regions(), &show.chunks) {
        // Their hashes are computed whether or not they exist.
        return Err(SyncError::Protocol("memory in view that was not shown"));
    }
    let mut their_hashes = m.hashes(theirs.len())?;
    let (received, hashes) = (&mut *conns, their_hashes.as_mut());
    let (prepared, mut hash_ms, received) = std::thread::scope(|scope| {
        // Received in parallel: a connection that takes no data for long counts as broken.
        let receiving = threads::spawn(scope, move || receive_hashes(received, hashes));
        let prepared = ours.and_then(|regions| {
            // In the last round the job is at rest. If it has exchanged memory since the target adopted it, the regions differ.
            let adopted = still_there(std::mem::take(&mut hello.adopted), &show.chunks);
            let regions = without(regions, &adopted);
            let key = seeds.choose();
            let hashes = m.hash_to_send(&key, &theirs, &|r| has(&regions, r))?;
            m.hash_shown(&key, &seen)?;
            let handed_over = hello.verifies() && !adopted.is_empty() && is_of_code(&regions);
            Ok((regions, hashes, handed_over))
        });
        let hash_ms = ms(hashing);
        (prepared, hash_ms, threads::join(receiving))
    });
    received?;
    let fits = prepared.and_then(|p| match difference(&p.0, &hello.regions).filter(|_| hello.verifies()) {
        Some(text) => Err(SyncError::Regions(text)),
        None => Ok((p.0, m.differing(&their_hashes, 0, Some(&p.1))?, p.2)),
    });
    // The tables are used again for the proof.
    drop(their_hashes);
    let (regions, bits, handed_over) = match fits {
        Ok(p) => p,
        Err(e) => {
            Word::send(&mut *conns[0], Some(&e), [0; 32])?;
            return Err(e);
        }
    };
    Word::send(&mut *conns[0], None, [0; 32])?;
    let mut hashed = (theirs.len() + seen.len()) as u64;
    let copying = Instant::now();
    let verifies = hello.verifies();
    if seen.len() > 0 {
        faults::at(sending(verifies));
    }
    let wanted = to_send(&theirs, &bits);
    let corruption = Corruption { page: fault.corrupt_page.filter(|_| hello.verifies()), sent: AtomicU64::new(0) };
    let sent = send_all(m, (&mut *conns, &mut *compression), &wanted, &corruption, verifies);
    let copy_ms = ms(copying);
    if hello.sent == Verify::Bytes && sent.as_ref().is_err_and(|e| !e.is_io()) {
        // The target reads the pages of the comparison before it reads an error message.
        send_all(m, (&mut *conns, &mut *compression), &[], &Corruption::none(), verifies)?;
    }
    let ended = sent.and_then(|sent| {
        let Some(keys) = &proof else {
            // The proof's table is made now rather than while calls of the job wait.
            return m.hashes(theirs.len() + seen.len()).map(|_| ([0; 32], sent.carried));
        };
        let hashing = Instant::now();
        let more = match hello.sent {
            Verify::Bytes => {
                let all = everything(&theirs);
                send_all(m, (&mut *conns, &mut *compression), &all, &Corruption::none(), verifies)?.gone
            }
            _ => 0,
        };
        none_gone(sent.gone + more)?;
        let pages = hello.to_prove(&theirs, &seen);
        let hashes = m.prove(keys, &pages, "source")?;
        hash_ms += ms(hashing);
        hashed += pages.len() as u64;
        Ok((digest(&regions, &hashes), sent.carried))
    });
    let (ours, bytes_carried) = match ended {
        Ok(d) => d,
        Err(e) => {
            if !e.is_io() {
                Word::send(&mut *conns[0], Some(&e), [0; 32])?;
            }
            return Err(e);
        }
    };
    Word::send(&mut *conns[0], None, ours)?;
    let theirs = Word::receive(&mut *conns[0])?;
    if hello.verifies() && theirs != ours {
        return Err(SyncError::digest(&ours, &theirs));
    }
    let common: Vec<&Region> = hello.regions.iter().filter(|r| has(&regions, r)).collect();
    Ok(Round {
        regions: common.len() as u64,
        bytes_total: common.iter().map(|r| r.bytes).sum(),
        bytes_sent: wanted.iter().map(|w| w.page.bytes).sum(),
        bytes_carried,
        bytes_fetched: 0,
        bytes_adopted: 0,
        handed_over,
        not_in_view: String::new(),
        pages_hashed: hashed,
        hash_ms,
        copy_ms,
        digest: ours,
        seal: [0; 32],
    })
}
