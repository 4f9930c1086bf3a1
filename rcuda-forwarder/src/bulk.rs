//! Messages on the connections that carry the bytes of large copies, and nothing else (docs/formats.md, "Large copies").
//!
//! Each connection has one direction. The worker chooses what is carried next: it asks for bytes, or sends some; the job answers in the
//! order of these messages.

use crate::conn::Conn;
use crate::rdma::queue::Memory;
use executor::host_mirror::RUNS_BYTES;
use std::io::{self, ErrorKind, Read};

/// Bytes of a message of the worker.
pub(crate) const HEAD: usize = 40;
/// [`Via`] as a number.
const BY_CONNECTION: u32 = 0;
const BY_FILE: u32 = 1;
const BY_RDMA: u32 = 2;
/// Bytes of an answer of the job.
pub(crate) const ANSWER: usize = 8;
/// In place of a copy's token: changes of mirrored memory that the job uses exclusively. `offset` is then the number of messages with changes on the
/// job's own connection that come before them.
pub(crate) const CHANGES: u64 = 0;
/// In place of a copy's token, on a connection to the host: the worker wants changes of such memory. `offset` is then how often the job has said in its calls that
/// there are some.
pub(crate) const WANTED: u64 = u64::MAX;
/// Maximum number of bytes of such changes.
pub(crate) const MAX_CHANGES: u64 = RUNS_BYTES as u64;

/// How bytes of a copy travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// Over the connection of the message.
    Connection,
    /// They lie, or are to lie, at this place of the file that both map.
    File(u64),
    /// For a copy to the device: they are to be written to this memory over RDMA. The worker skips them in the stream.
    Rdma(Memory),
}

/// A message of the worker: bytes of a copy that it wants, or that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The copy, or [`CHANGES`].
    pub(crate) token: u64,
    /// Where they begin in the copy.
    pub(crate) offset: u64,
    /// Their number.
    pub(crate) bytes: u64,
    /// How they travel.
    pub(crate) via: Via,
}

impl Head {
    pub(crate) fn bytes(&self) -> [u8; HEAD] {
        let (kind, place, key) = match self.via {
            Via::Connection => (BY_CONNECTION, 0, 0),
            Via::File(at) => (BY_FILE, at, 0),
            Via::Rdma(slot) => (BY_RDMA, slot.address, slot.key),
        };
        let mut all = [0; HEAD];
        for (to, word) in all.as_chunks_mut::<8>().0.iter_mut().zip([
            self.token,
            self.offset,
            self.bytes,
            place,
            u64::from(kind) | u64::from(key) << 32,
        ]) {
            *to = word.to_le_bytes();
        }
        all
    }

    pub(crate) fn read(all: &[u8; HEAD]) -> io::Result<Head> {
        let word = |i: usize| u64::from_le_bytes(all.as_chunks::<8>().0[i]);
        let via = match (word(4) as u32, (word(4) >> 32) as u32) {
            (BY_CONNECTION, 0) if word(3) == 0 => Via::Connection,
            (BY_FILE, 0) => Via::File(word(3)),
            (BY_RDMA, key) => Via::Rdma(Memory { address: word(3), key }),
            _ => return Err(io::Error::new(ErrorKind::InvalidData, "bytes that travel in no known way")),
        };
        Ok(Head { token: word(0), offset: word(1), bytes: word(2), via })
    }
}

/// Fills `to`, however long the peer is silent: that it is alive shows on the job's own connection.
pub(crate) fn fill(mut conn: &Conn, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match conn.read(to) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => to = &mut to[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
