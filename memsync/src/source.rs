//! The source's part of a round.

use crate::error::SyncError;
use crate::frames::{Hello, Word, send_batch, send_runs};
use crate::memory::{Hash, Memory, batches};
use crate::region::{Page, Region, difference, digest, pages};
use crate::{Round, Stream};
use faults::{Faults, Point};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A page to copy: its number among the target's pages, and where it is.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    number: u32,
    page: Page,
}

/// Pages of the target whose hashes differ from ours: those that it fetches, and those that are sent. Regions that only one side has
/// are left out.
fn wanted(hello: &Hello, regions: &[Region], all: &[Page], hashes: &[Hash]) -> (Vec<Wanted>, Vec<Wanted>) {
    let mut first_page = HashMap::new();
    let mut at = 0usize;
    for r in regions {
        first_page.insert(*r, at);
        at += r.pages() as usize;
    }
    let (mut fetched, mut sent) = (Vec::new(), Vec::new());
    let mut number = 0usize;
    for (r, in_view) in hello.regions.iter().zip(&hello.in_view) {
        let n = r.pages() as usize;
        let wanted = if *in_view { &mut fetched } else { &mut sent };
        if let Some(first) = first_page.get(r) {
            for i in 0..n {
                let (ours, theirs) = (hashes[first + i], hello.hashes[number + i]);
                if ours.is_some() && ours != theirs {
                    wanted.push(Wanted { number: (number + i) as u32, page: all[first + i] });
                }
            }
        }
        number += n;
    }
    (fetched, sent)
}

fn bytes(wanted: &[Wanted]) -> u64 {
    wanted.iter().map(|w| w.page.bytes).sum()
}

/// Numbers in order, as runs.
fn runs(numbers: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match all.last_mut() {
            Some((first, pages)) if *first + *pages == n => *pages += 1,
            _ => all.push((n, 1)),
        }
    }
    all
}

/// Spoils the page that was asked for: flips a byte of one that is sent, forgets one that the target fetches.
struct Corruption {
    page: Option<u64>,
    sent: AtomicU64,
}

impl Corruption {
    fn forget(&self, fetched: &mut Vec<Wanted>) {
        let before = self.sent.fetch_add(fetched.len() as u64, Ordering::Relaxed);
        if let Some(index) = self.page.and_then(|n| n.checked_sub(before + 1)).filter(|i| *i < fetched.len() as u64) {
            fetched.remove(index as usize);
        }
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

/// Sends batches over one connection: while one is sent the next is read from the GPU. Tells how many pages were gone.
fn send<M: Memory>(
    m: &M,
    lane: usize,
    s: &mut dyn Stream,
    mine: &[&[Wanted]],
    corruption: &Corruption,
    point: Point,
) -> Result<usize, SyncError> {
    let start = |batch: &[Wanted], buffer| {
        let pages: Vec<Page> = batch.iter().map(|w| w.page).collect();
        m.read(lane, buffer, &pages)
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
        faults::at(point);
        send_batch(s, &numbers, data)?;
        spare = Some(buffer);
    }
    Ok(gone)
}

/// All connections at once. Each ends in order unless it is broken, so that the target can hear what went wrong.
fn send_all<M: Memory>(
    m: &M,
    conns: &mut [Box<dyn Stream>],
    wanted: &[Wanted],
    corruption: &Corruption,
    point: Point,
) -> Result<usize, SyncError> {
    let batches = batches(wanted, |w| w.page.bytes);
    let stripes = conns.len();
    std::thread::scope(|scope| {
        let threads: Vec<_> = conns
            .iter_mut()
            .enumerate()
            .map(|(i, s)| {
                let mine: Vec<&[Wanted]> = batches.iter().copied().skip(i).step_by(stripes).collect();
                scope.spawn(move || {
                    let sent = send(m, 1 + i, &mut **s, &mine, corruption, point);
                    match &sent {
                        Err(e) if e.is_io() => sent,
                        _ => sent.and_then(|gone| send_batch(&mut **s, &[], &[]).map(|()| gone)).or_else(|e| {
                            if !e.is_io() {
                                send_batch(&mut **s, &[], &[])?;
                            }
                            Err(e)
                        }),
                    }
                })
            })
            .collect();
        let mut all = Ok(0);
        for t in threads {
            let one = t.join().unwrap_or(Err(SyncError::Protocol("a sending thread ended abruptly")));
            all = all.and_then(|sum| one.map(|n| sum + n));
        }
        all
    })
}

pub(crate) fn run<M: Memory>(m: &M, conns: &mut [Box<dyn Stream>], fault: &Faults) -> Result<Round, SyncError> {
    if conns.is_empty() {
        return Err(SyncError::NoConnection);
    }
    m.show().send(&mut *conns[0])?;
    // The target hashes at the same time; its answer is read when ours is ready.
    let hashing = Instant::now();
    let prepared = m.regions().and_then(|regions| {
        let all = pages(&regions);
        let hashes = m.hash(&all)?;
        Ok((regions, all, hashes))
    });
    let mut hash_ms = ms(hashing);
    let hello = Hello::receive(&mut *conns[0])?;
    let fits = prepared.and_then(|p| match difference(&p.0, &hello.regions).filter(|_| hello.verify) {
        Some(text) => Err(SyncError::Regions(text)),
        None => Ok(p),
    });
    let (regions, all, hashes) = match fits {
        Ok(p) => p,
        Err(e) => {
            Word::send(&mut *conns[0], Some(&e), [0; 32])?;
            return Err(e);
        }
    };
    Word::send(&mut *conns[0], None, [0; 32])?;
    let mut hashed = all.len() as u64;
    let (mut fetched, sent) = wanted(&hello, &regions, &all, &hashes);
    let (bytes_fetched, bytes_sent) = (bytes(&fetched), bytes(&sent));
    let copying = Instant::now();
    let corruption = Corruption { page: fault.corrupt_page.filter(|_| hello.verify), sent: AtomicU64::new(0) };
    let point = if hello.verify { Point::DeltaSend } else { Point::PrecopySend };
    corruption.forget(&mut fetched);
    if !fetched.is_empty() {
        faults::at(point);
    }
    send_runs(&mut *conns[0], &runs(fetched.iter().map(|w| w.number)))?;
    let sent = send_all(m, conns, &sent, &corruption, point);
    let copy_ms = ms(copying);
    let ended = sent.and_then(|gone| {
        if !hello.verify {
            return Ok(digest(&regions, &hashes));
        }
        if gone > 0 {
            return Err(SyncError::Regions(format!("{gone} pages went away at the source during the round")));
        }
        let hashing = Instant::now();
        let after = m.hash(&all)?;
        hash_ms += ms(hashing);
        hashed += all.len() as u64;
        Ok(digest(&regions, &after))
    });
    let ours = match ended {
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
    if hello.verify && theirs != ours {
        return Err(SyncError::digest(&ours, &theirs));
    }
    let common: Vec<&Region> = hello
        .regions
        .iter()
        .filter(|r| regions.binary_search_by_key(&r.address, |x| x.address).is_ok_and(|i| regions[i] == **r))
        .collect();
    Ok(Round {
        regions: common.len() as u64,
        bytes_total: common.iter().map(|r| r.bytes).sum(),
        bytes_sent: bytes_fetched + bytes_sent,
        bytes_fetched,
        not_in_view: String::new(),
        pages_hashed: hashed,
        hash_ms,
        copy_ms,
        digest: ours,
    })
}
