//! One direction of a connection.

use std::collections::VecDeque;
use std::time::Instant;

/// Whether bytes can be put on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// So many.
    Room(usize),
    /// None ever again.
    Closed,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Bytes, with the times of their arrival. A part arrives no earlier than those before it.
    parts: VecDeque<(Instant, VecDeque<u8>)>,
    /// Number of bytes in them.
    under_way: usize,
    room: usize,
    /// Number of bytes that were ever put in.
    sent: u64,
    is_closed: bool,
}

impl Pipe {
    pub(crate) fn new(room: usize) -> Pipe {
        Pipe { parts: VecDeque::new(), under_way: 0, room, sent: 0, is_closed: false }
    }

    pub(crate) fn room(&self) -> Way {
        if self.is_closed { Way::Closed } else { Way::Room(self.room - self.under_way) }
    }

    pub(crate) fn put(&mut self, bytes: &[u8], arrival: Instant) {
        let now = Instant::now();
        match self.parts.back_mut() {
            // Both have arrived already.
            Some((before, part)) if *before <= now && arrival <= now => part.extend(bytes),
            last => {
                let arrival = last.map_or(arrival, |(before, _)| arrival.max(*before));
                self.parts.push_back((arrival, bytes.iter().copied().collect()));
            }
        }
        self.under_way += bytes.len();
        self.sent += bytes.len() as u64;
    }

    /// Number of bytes that have arrived and can be taken.
    pub(crate) fn arrived(&self) -> usize {
        let now = Instant::now();
        self.parts.iter().take_while(|(at, _)| *at <= now).map(|(_, bytes)| bytes.len()).sum()
    }

    /// When the next bytes arrive that have not.
    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        let now = Instant::now();
        self.parts.iter().map(|(at, _)| *at).find(|at| *at > now)
    }

    /// Takes bytes that have arrived.
    pub(crate) fn take(&mut self, to: &mut [u8]) {
        let mut rest = to;
        while let Some((_, part)) = self.parts.front_mut().filter(|_| !rest.is_empty()) {
            let n = part.len().min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            now.iter_mut().zip(part.drain(..n)).for_each(|(to, byte)| *to = byte);
            self.under_way -= n;
            rest = later;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }

    /// Accepts no more bytes.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether the receiver has everything that there will ever be.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.under_way == 0
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }
}
