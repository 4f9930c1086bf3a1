//! Reads messages from a connection: small ones through a buffer, long bodies directly into their
//! destination.

use std::io::{self, Read};

/// Size of the read-ahead buffer.
const AHEAD: usize = 256 << 10;
/// Most bytes of a long body that are read at once.
const PIECE: usize = 4 << 20;

/// A buffered reader.
#[derive(Debug)]
pub(crate) struct Inbox<R> {
    from: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes read from the source.
    read: u64,
}

impl<R: Read> Inbox<R> {
    /// Creates a reader of `from` with an empty buffer.
    pub(crate) fn new(from: R) -> Inbox<R> {
        Inbox { from, buffer: vec![0; AHEAD], start: 0, end: 0, read: 0 }
    }

    /// Bytes that were taken out so far.
    pub(crate) fn taken(&self) -> u64 {
        self.read - (self.end - self.start) as u64
    }

    /// The underlying source.
    pub(crate) fn source(&self) -> &R {
        &self.from
    }

    /// Whether nothing has been read ahead.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < AHEAD / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.from.read(&mut self.buffer[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.end += n;
                self.read += n as u64;
                Ok(())
            }
        }
    }

    /// Fills `to`.
    pub(crate) fn take_into(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        loop {
            let n = to.len().min(self.end - self.start);
            to[..n].copy_from_slice(&self.buffer[self.start..self.start + n]);
            self.start += n;
            to = &mut to[n..];
            if to.is_empty() {
                return Ok(());
            }
            if to.len() >= AHEAD {
                self.from.read_exact(to)?;
                self.read += to.len() as u64;
                return Ok(());
            }
            self.fill()?;
        }
    }

    /// The next `N` bytes; `None` at an orderly end of the stream before the first of them.
    pub(crate) fn head<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        while self.end - self.start < N {
            let empty = self.start == self.end;
            match self.fill() {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && empty => return Ok(None),
                r => r?,
            }
        }
        let mut head = [0; N];
        self.take_into(&mut head)?;
        Ok(Some(head))
    }

    /// Appends `n` bytes to `to`. Memory at most doubles with what has arrived, so that a false length takes none.
    pub(crate) fn append(&mut self, to: &mut Vec<u8>, n: usize) -> io::Result<()> {
        let mut left = n;
        while left > 0 {
            let had = to.len();
            let piece = left.min(had.clamp(2 * AHEAD, PIECE));
            to.resize(had + piece, 0);
            self.take_into(&mut to[had..])?;
            left -= piece;
        }
        Ok(())
    }

    /// Passes the next `n` bytes to `read`: from the buffer if they fit, otherwise collected in `long`.
    pub(crate) fn with<T>(&mut self, n: usize, long: &mut Vec<u8>, read: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        if n > AHEAD / 2 {
            long.clear();
            self.append(long, n)?;
            return Ok(read(long));
        }
        while self.end - self.start < n {
            self.fill()?;
        }
        let out = read(&self.buffer[self.start..self.start + n]);
        self.start += n;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time.
    struct Drip<'a>(&'a [u8], usize);
    impl Read for Drip<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = to.len().min(self.1).min(self.0.len());
            to[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn every_way_of_taking_gives_the_same_bytes() {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for step in [1000, 4096, 1 << 20] {
            let mut inbox = Inbox::new(Drip(&data, step));
            let (mut got, mut long) = (Vec::new(), Vec::new());
            got.extend(inbox.head::<24>().unwrap().unwrap());
            inbox.with(1001, &mut long, |b| got.extend(b)).unwrap();
            inbox.with(AHEAD, &mut long, |b| got.extend(b)).unwrap();
            inbox.append(&mut got, 999_999).unwrap();
            let mut direct = vec![0; 700_000];
            inbox.take_into(&mut direct).unwrap();
            got.extend(direct);
            inbox.with(0, &mut long, |b| assert!(b.is_empty())).unwrap();
            let left = data.len() - got.len();
            inbox.append(&mut got, left).unwrap();
            assert!(got == data);
            assert!(inbox.head::<16>().unwrap().is_none());
        }
    }

    #[test]
    fn an_end_inside_a_message_is_an_error() {
        let mut inbox = Inbox::new(Drip(&[1; 30], 7));
        assert!(inbox.head::<24>().unwrap().is_some());
        assert_eq!(inbox.head::<24>().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut inbox = Inbox::new(Drip(&[1; 30], 7));
        let mut out = Vec::new();
        assert!(inbox.append(&mut out, 1 << 30).is_err());
        assert!(out.capacity() <= 2 * PIECE, "a lying length costs no memory");
    }
}
