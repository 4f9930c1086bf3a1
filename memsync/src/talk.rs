//! Messages between the ends of a round (docs/formats.md, "Rounds").
//!
//! On the first connection: the target's [`Holds`], and when all pages have been sent the source's [`Done`]. On every
//! connection: batches, each a [`BatchHead`], that many [`Entry`]s and the bytes of the pages one after the other; a batch
//! without pages ends the connection's part of the round.

use crate::SyncError;
use crate::region::Region;
use cuda_api::wire::Wire;
use cuda_api::wire_struct;
use std::io::{Read, Write};

/// Pages of a batch, at most.
pub(crate) const BATCH: usize = 64;
/// A message that is longer is nonsense: it would describe more memory than any GPU has.
const MAX_MESSAGE: u64 = 1 << 30;

wire_struct! {
    /// What the target has.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Holds {
        pub(crate) verify: bool,
        pub(crate) regions: Vec<Region>,
        /// Hashes of the pages of all regions in order.
        pub(crate) hashes: Vec<Hash>,
    }
}

/// Hash of a page; absent if the page could not be read.
pub(crate) type Hash = Option<[u8; 16]>;

wire_struct! {
    /// The end of a round.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Done {
        /// Digest of what the source holds.
        pub(crate) digest: [u8; 32],
        /// Pages of the target that the source does not have.
        pub(crate) missing: u64,
        pub(crate) bytes_sent: u64,
    }
}

/// A page in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
}

/// Sends a message with its length in front.
pub(crate) fn send<T: Wire>(to: &mut dyn Write, message: &T) -> Result<(), SyncError> {
    let mut body = vec![0; 8];
    message.put(&mut body);
    let bytes = (body.len() - 8) as u64;
    body[..8].copy_from_slice(&bytes.to_le_bytes());
    to.write_all(&body)?;
    to.flush()?;
    Ok(())
}

/// Receives a message.
pub(crate) fn receive<T: Wire>(from: &mut dyn Read) -> Result<T, SyncError> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_MESSAGE {
        return Err(SyncError::Nonsense("a message that is too long"));
    }
    // Grows with what really comes: a length alone makes nobody allocate.
    let mut body = Vec::new();
    from.take(len).read_to_end(&mut body)?;
    if body.len() as u64 != len {
        return Err(SyncError::Wire(std::io::ErrorKind::UnexpectedEof.into()));
    }
    let mut rest = &body[..];
    let message = T::get(&mut rest).map_err(|_| SyncError::Nonsense("a message that is cut off"))?;
    if rest.is_empty() { Ok(message) } else { Err(SyncError::Nonsense("a message with something behind it")) }
}

/// Sends the head of a batch; its bytes follow.
pub(crate) fn send_entries(to: &mut dyn Write, entries: &[Entry]) -> Result<(), SyncError> {
    let mut head = Vec::with_capacity(4 + 12 * entries.len());
    (entries.len() as u32).put(&mut head);
    for e in entries {
        e.address.put(&mut head);
        e.bytes.put(&mut head);
    }
    to.write_all(&head)?;
    Ok(())
}

/// Receives the head of a batch: at most [`BATCH`] pages of at most a page's bytes each.
pub(crate) fn receive_entries(from: &mut dyn Read) -> Result<Vec<Entry>, SyncError> {
    let mut count = [0; 4];
    from.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    if count > BATCH {
        return Err(SyncError::Nonsense("a batch of too many pages"));
    }
    let mut head = vec![0; 12 * count];
    from.read_exact(&mut head)?;
    let mut rest = &head[..];
    let mut entry = || {
        let (address, bytes) = (u64::get(&mut rest).ok()?, u32::get(&mut rest).ok()?);
        (bytes > 0 && u64::from(bytes) <= crate::PAGE).then_some(Entry { address, bytes })
    };
    (0..count).map(|_| entry().ok_or(SyncError::Nonsense("a page of an impossible size"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_damage_is_noticed() {
        let m = Holds { verify: true, regions: Vec::new(), hashes: vec![Some([3; 16]), None] };
        let mut bytes = Vec::new();
        send(&mut bytes, &m).unwrap();
        assert_eq!(receive::<Holds>(&mut &bytes[..]).unwrap(), m);
        for n in 0..bytes.len() {
            assert!(receive::<Holds>(&mut &bytes[..n]).is_err(), "cut at {n}");
        }
        bytes[7] = 0xff;
        assert!(matches!(receive::<Holds>(&mut &bytes[..]), Err(SyncError::Nonsense(_))));
    }

    #[test]
    fn impossible_batches_are_refused() {
        let good = [Entry { address: 1, bytes: 65536 }, Entry { address: 2, bytes: 1 }];
        let mut bytes = Vec::new();
        send_entries(&mut bytes, &good).unwrap();
        assert_eq!(receive_entries(&mut &bytes[..]).unwrap(), good);
        bytes[12] = 0;
        bytes[14] = 2;
        assert!(receive_entries(&mut &bytes[..]).is_err(), "a page of 128 KiB");
        assert!(receive_entries(&mut &[0xff; 4][..]).is_err(), "four thousand million pages");
    }
}
