//! Copies of the job from place to place: the bytes that it names, over the same connections as a round, without comparing anything.
//!
//! The job sends both ends the same sizes. On each connection go a head (the copy's number and the bytes that follow) and the bytes
//! of every n-th piece. So what an end takes never depends on what the other one says, and the rest of a copy that has failed at one end is
//! not taken for the next one.

use crate::error::SyncError;
use crate::frames::BATCH;
use crate::memory::Memory;
use crate::region::{Kind, Page};
use crate::{Part, Stream, threads};
use executor::LANE_OF_JOB;

/// Maximum number of pieces of a copy.
const MAX_PARTS: u64 = 1 << 24;

/// Number of pieces of a row.
fn per_row(part: &Part) -> u64 {
    part.width.div_ceil(BATCH as u64)
}

/// The pieces of a copy, in order. Each fits into a buffer.
fn pieces(parts: &[Part]) -> impl Iterator<Item = Page> + '_ {
    parts.iter().flat_map(|part| {
        (0..part.rows * per_row(part)).map(move |n| {
            let (row, at) = (n / per_row(part), n % per_row(part) * BATCH as u64);
            let bytes = (part.width - at).min(BATCH as u64);
            Page { address: part.address + row * part.pitch + at, bytes, kind: Kind::Chunk, by_host: false }
        })
    })
}

/// The pieces that one of `of` connections carries, and their bytes.
fn share(parts: &[Part], number: usize, of: usize) -> (impl Iterator<Item = Page> + '_, u64) {
    let mine = move || pieces(parts).skip(number).step_by(of);
    (mine(), mine().map(|piece| piece.bytes).sum())
}

/// Checks that no address overflows and that there are not too many pieces.
fn check(parts: &[Part]) -> Result<(), SyncError> {
    let fits = |part: &Part| {
        let last = part.rows.checked_sub(1)?.checked_mul(part.pitch)?.checked_add(part.width)?;
        part.address.checked_add(last)?;
        part.rows.checked_mul(part.width)?;
        part.rows.checked_mul(per_row(part))
    };
    let total = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(fits(part).filter(|n| *n > 0)?));
    match total {
        Some(1..=MAX_PARTS) => Ok(()),
        _ => Err(SyncError::Protocol("a copy of impossible size")),
    }
}

fn gone(missing: usize) -> Result<(), SyncError> {
    if missing == 0 { Ok(()) } else { Err(SyncError::Regions("memory of a copy does not exist".to_owned())) }
}

fn head(number: u64, bytes: u64) -> [u8; 16] {
    (u128::from(number) | u128::from(bytes) << 64).to_le_bytes()
}

/// Carries out one end's part on all connections in parallel.
fn on_all<M: Memory>(
    m: &M,
    conns: &mut [Box<dyn Stream>],
    parts: &[Part],
    one: impl Fn(&M, &mut dyn Stream, &mut dyn Iterator<Item = Page>, u64) -> Result<(), SyncError> + Sync,
) -> Result<(), SyncError> {
    check(parts)?;
    let of = conns.len();
    // A short copy uses as many as it has pieces; both ends find the same number.
    let used = pieces(parts).take(of).count().min(of);
    if of == 0 {
        return Err(SyncError::NoConnection);
    }
    threads::for_all(conns[..used].iter_mut().enumerate(), |(number, conn)| {
        let (mut mine, bytes) = share(parts, number, used);
        one(m, &mut **conn, &mut mine, bytes)
    })
}

/// Sends; while one piece is sent, the next is read from the GPU.
pub(crate) fn send<M: Memory>(m: &M, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), SyncError> {
    on_all(m, conns, parts, |m, s, mine, bytes| {
        let failed = || SyncError::io("sending a copy");
        s.write_all(&head(number, bytes)).map_err(failed())?;
        let mut start = |buffer: M::Buffer| {
            let Some(piece) = mine.next() else { return Ok(None) };
            Ok::<_, SyncError>(Some((m.read(LANE_OF_JOB, buffer, &[piece], false)?, piece.bytes as usize)))
        };
        let (mut flying, mut spare) = (start(m.buffer()?)?, None);
        while let Some((flight, bytes)) = flying {
            let (mut buffer, missing) = m.land(flight)?;
            gone(missing)?;
            flying = start(spare.take().map_or_else(|| m.buffer(), Ok)?)?;
            s.write_all(&m.bytes(&mut buffer)[..bytes]).map_err(failed())?;
            spare = Some(buffer);
        }
        s.flush().map_err(failed())
    })
}

/// Receives; while one piece is written to the GPU, the next is received.
pub(crate) fn receive<M: Memory>(m: &M, conns: &mut [Box<dyn Stream>], number: u64, parts: &[Part]) -> Result<(), SyncError> {
    on_all(m, conns, parts, |m, s, mine, bytes| {
        let failed = || SyncError::io("receiving a copy");
        let mut got = [0; 16];
        s.read_exact(&mut got).map_err(failed())?;
        if got != head(number, bytes) {
            return Err(SyncError::Protocol("another copy than the expected one"));
        }
        let (mut flying, mut spare): (Option<M::Flight>, Option<M::Buffer>) = (None, None);
        for piece in mine {
            let mut buffer = spare.take().map_or_else(|| m.buffer(), Ok)?;
            s.read_exact(&mut m.bytes(&mut buffer)[..piece.bytes as usize]).map_err(failed())?;
            let before = flying.replace(m.write(LANE_OF_JOB, buffer, &[piece], false)?);
            if let Some(flight) = before {
                let (buffer, missing) = m.land(flight)?;
                gone(missing)?;
                spare = Some(buffer);
            }
        }
        match flying {
            Some(flight) => gone(m.land(flight)?.1),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(address: u64, pitch: u64, width: u64, rows: u64) -> Part {
        Part { address, pitch, width, rows }
    }

    #[test]
    fn every_byte_is_carried_once_by_some_connection() {
        let batch = BATCH as u64;
        let parts = [part(1000, 0, 2 * batch + 5, 1), part(1 << 40, 4096, 100, 7)];
        let all: Vec<(u64, u64)> = pieces(&parts).map(|p| (p.address, p.bytes)).collect();
        assert_eq!(all[..3], [(1000, batch), (1000 + batch, batch), (1000 + 2 * batch, 5)]);
        assert_eq!((all.len(), all[9]), (10, ((1 << 40) + 6 * 4096, 100)));
        for of in 1..5 {
            let mut shared: Vec<(u64, u64)> = Vec::new();
            for number in 0..of {
                let (mine, bytes) = share(&parts, number, of);
                let mine: Vec<(u64, u64)> = mine.map(|p| (p.address, p.bytes)).collect();
                assert_eq!(mine.iter().map(|(_, n)| n).sum::<u64>(), bytes);
                shared.extend(mine);
            }
            shared.sort_unstable();
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!(shared, sorted);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        check(&[part(0, 0, 1, 1)]).unwrap();
        check(&[part(u64::MAX - 8, 0, 8, 1)]).unwrap();
        for bad in [
            part(0, 0, 0, 1),
            part(0, 0, 1, 0),
            part(u64::MAX, 0, 2, 1),
            part(0, u64::MAX, 1, 3),
            part(0, 0, 1 << 62, 8),
            part(0, 0, 1, u64::MAX),
            part(0, 0, 1, MAX_PARTS + 1),
            part(0, 0, u64::MAX, 1),
        ] {
            assert!(check(&[bad]).is_err(), "{bad:?}");
            assert!(check(&[part(0, 0, 1, 1), bad]).is_err(), "{bad:?}");
        }
        assert!(check(&[]).is_err());
    }
}
