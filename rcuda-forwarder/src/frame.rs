//! The headers of the messages on a job's connection (docs/formats.md, "Frames").
//!
//! To the worker: `len u32 · id u16 · flags u16 · seq u64 · ticket u64`, the body, padded with zeros to a multiple of
//! 8.
//! From the worker: `len u32 · code i32 · ticket u64`, the body. `len` counts head and body, not the padding.

use cuda_api::code::Code;

/// Bytes of the header of a call.
pub const HEAD: usize = 24;
/// Bytes of the header of an answer.
pub(crate) const ANSWER_HEAD: usize = 16;
/// Maximum length of a body in either direction, in bytes. Copies are sent in pieces; this limits one module image.
pub const MAX_BODY: usize = 1 << 30;
/// Control request: the body is a [`crate::Control`], the answer's a [`crate::ControlReply`].
pub(crate) const CONTROL: u16 = 0x0e00;
/// The job no longer needs the place; answered when everything is freed.
pub(crate) const GOODBYE: u16 = 0x0e01;
/// The job's answer to a heartbeat that asks for one: nothing is to be done.
pub(crate) const ALIVE: u16 = 0x0e02;
/// Ticket of a call without an answer, and of a fault report.
pub(crate) const NO_TICKET: u64 = 0;
/// Ticket of a heartbeat.
pub(crate) const HEARTBEAT: u64 = u64::MAX;
/// The code of a heartbeat that asks for an answer; otherwise it is 0.
pub(crate) const ANSWER_WANTED: i32 = 1;
/// Ticket of text for the job's output: the code is 1 for standard output, 2 for standard error.
pub(crate) const TEXT: u64 = u64::MAX - 1;
/// Ticket of changes to mirrored host memory: the numbers of the job's messages of changes and of its requests for blocks that were
/// applied before (u64 each), then lines.
pub(crate) const CHANGES: u64 = u64::MAX - 2;
/// Ticket of the server's request that the job move away: a [`crate::LeaveRequest`].
pub(crate) const LEAVE: u64 = u64::MAX - 3;

/// Ticket of news about the job's memory, which was evicted while the job was stopped: the code is 1 if its calls wait for it, 0 if it is
/// back.
pub(crate) const MEMORY: u64 = u64::MAX - 4;

/// Rounds up to the next multiple of 8.
pub(crate) fn filled(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Header of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of header and body.
    pub(crate) len: u32,
    /// Row or operation.
    pub(crate) id: u16,
    /// None is defined; must be 0.
    pub(crate) flags: u16,
    /// Position in the total order of the connection, from 0.
    pub(crate) seq: u64,
    /// Identifies the answer.
    pub(crate) ticket: u64,
}

impl Head {
    /// The first eight bytes as one word.
    pub(crate) fn word(&self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags) << 48
    }

    /// Encodes the header.
    pub(crate) fn bytes(&self) -> [u8; HEAD] {
        let mut b = [0; HEAD];
        b[..8].copy_from_slice(&self.word().to_le_bytes());
        b[8..16].copy_from_slice(&self.seq.to_le_bytes());
        b[16..].copy_from_slice(&self.ticket.to_le_bytes());
        b
    }

    /// Decodes the header.
    pub(crate) fn read(b: &[u8; HEAD]) -> Head {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| b[at + i]));
        let first = word(0);
        Head { len: first as u32, id: (first >> 32) as u16, flags: (first >> 48) as u16, seq: word(8), ticket: word(16) }
    }

    /// Bytes of the body, if the length is valid.
    pub(crate) fn body(&self) -> Option<usize> {
        (self.len as usize).checked_sub(HEAD).filter(|n| *n <= MAX_BODY)
    }
}

/// Header of an answer, a fault report or a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerHead {
    /// Bytes of header and body.
    pub(crate) len: u32,
    /// Result of the call.
    pub(crate) code: Code,
    /// The call's ticket, [`NO_TICKET`] or [`HEARTBEAT`].
    pub(crate) ticket: u64,
}

impl AnswerHead {
    /// The header of an answer with `body` bytes; `None` if it is too long.
    pub(crate) fn new(code: Code, ticket: u64, body: usize) -> Option<AnswerHead> {
        let len = u32::try_from(body).ok().filter(|_| body <= MAX_BODY)?.checked_add(ANSWER_HEAD as u32)?;
        Some(AnswerHead { len, code, ticket })
    }

    /// Encodes the header.
    pub(crate) fn bytes(&self) -> [u8; ANSWER_HEAD] {
        let mut b = [0; ANSWER_HEAD];
        b[..4].copy_from_slice(&self.len.to_le_bytes());
        b[4..8].copy_from_slice(&self.code.to_le_bytes());
        b[8..].copy_from_slice(&self.ticket.to_le_bytes());
        b
    }

    /// Decodes the header.
    pub(crate) fn read(b: &[u8; ANSWER_HEAD]) -> AnswerHead {
        AnswerHead {
            len: u32::from_le_bytes(std::array::from_fn(|i| b[i])),
            code: i32::from_le_bytes(std::array::from_fn(|i| b[4 + i])),
            ticket: u64::from_le_bytes(std::array::from_fn(|i| b[8 + i])),
        }
    }

    /// Bytes of the body, if the length is valid.
    pub(crate) fn body(&self) -> Option<usize> {
        (self.len as usize).checked_sub(ANSWER_HEAD).filter(|n| *n <= MAX_BODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_written() {
        let h = Head { len: 31, id: 0x0f02, flags: 0x1234, seq: u64::MAX - 1, ticket: 1 << 40 };
        assert_eq!(Head::read(&h.bytes()), h);
        let a = AnswerHead { len: 16, code: -7, ticket: HEARTBEAT };
        assert_eq!(AnswerHead::read(&a.bytes()), a);
    }

    #[test]
    fn impossible_lengths_have_no_body() {
        let h = |len| Head { len, id: 0, flags: 0, seq: 0, ticket: 0 };
        assert_eq!(h(24).body(), Some(0));
        assert_eq!(h(24 + MAX_BODY as u32).body(), Some(MAX_BODY));
        for bad in [0, 23, 25 + MAX_BODY as u32, u32::MAX] {
            assert_eq!(h(bad).body(), None);
        }
        assert!(AnswerHead::new(0, 1, MAX_BODY).is_some() && AnswerHead::new(0, 1, MAX_BODY + 1).is_none());
    }
}
