//! Messages on the connections that carry the bytes of large copies, and nothing else (docs/formats.md, "Large copies").
//!
//! Each connection has one direction. The worker chooses what is carried next: it asks for bytes, or sends some; the job answers in the
//! order of these messages.

use crate::conn::Conn;
use std::io::{self, ErrorKind, Read};

/// Bytes of a message of the worker.
pub(crate) const HEAD: usize = 32;
/// [`Head::at`]: the bytes travel over the connection.
const IN_LINE: u64 = u64::MAX;
/// Bytes of an answer of the job.
pub(crate) const ANSWER: usize = 8;

/// A message of the worker: bytes of a copy that it wants, or that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The copy.
    pub(crate) token: u64,
    /// Where they begin in the copy.
    pub(crate) offset: u64,
    /// Their number.
    pub(crate) bytes: u64,
    /// Where they lie, or are to lie, in the file that both map; `None`: they travel over this connection.
    pub(crate) at: Option<u64>,
}

impl Head {
    pub(crate) fn bytes(&self) -> [u8; HEAD] {
        let mut all = [0; HEAD];
        for (to, word) in
            all.as_chunks_mut::<8>().0.iter_mut().zip([self.token, self.offset, self.bytes, self.at.unwrap_or(IN_LINE)])
        {
            *to = word.to_le_bytes();
        }
        all
    }

    pub(crate) fn read(all: &[u8; HEAD]) -> Head {
        let word = |i: usize| u64::from_le_bytes(all.as_chunks::<8>().0[i]);
        Head { token: word(0), offset: word(1), bytes: word(2), at: Some(word(3)).filter(|at| *at != IN_LINE) }
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
