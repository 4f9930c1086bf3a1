//! How the bytes of a connection travel on its stream: as they are, in TLS records, or beside it over RDMA.

use crate::byte_stream::ByteStream;
use crate::rdma::stream::Stream;
use crate::records::Records;
use nix::poll::PollFlags;
use std::io::{self, ErrorKind, IoSlice};
use std::time::Duration;

/// Maximum number of pieces that the kernel accepts at a time.
const PIECES: usize = 1024;
/// Time limit for one sleep of a read without a limit.
pub(crate) const ONE_SLEEP: Duration = Duration::from_secs(60);

/// Carries bytes over a stream: retries what was interrupted, and sends all of what is written.
pub(crate) trait Carrier {
    /// Reads what has arrived; 0 at the end. `WouldBlock` if nothing has and it may not wait.
    fn read(&self, stream: &dyn ByteStream, to: &mut [u8], wait: bool) -> io::Result<usize>;

    /// Writes several pieces in order.
    fn write(&self, stream: &dyn ByteStream, pieces: &[&[u8]]) -> io::Result<()>;

    /// Writes some bytes, as many as can be written together.
    fn write_some(&self, stream: &dyn ByteStream, from: &[u8]) -> io::Result<usize> {
        self.write(stream, &[from]).map(|()| from.len())
    }

    /// Waits for one of the events `wanted`, or until the peer has closed; empty on timeout.
    fn ready(&self, stream: &dyn ByteStream, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags>;

    /// Whether a read needs nothing from the stream.
    fn has_read_ahead(&self) -> bool {
        false
    }

    /// Waits until what was written has left this process, for a limited time. A kernel keeps what was written to a socket.
    fn wait_written(&self, _limit: Duration) {}
}

fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            r => return r,
        }
    }
}

/// The bytes are those of the stream.
pub(crate) struct Plain;

impl Carrier for Plain {
    fn read(&self, stream: &dyn ByteStream, to: &mut [u8], wait: bool) -> io::Result<usize> {
        again(|| stream.receive(to, wait))
    }

    fn write(&self, stream: &dyn ByteStream, pieces: &[&[u8]]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let n = again(|| stream.send(&rest[..rest.len().min(PIECES)], true))?;
            IoSlice::advance_slices(&mut rest, n);
        }
        Ok(())
    }

    fn write_some(&self, stream: &dyn ByteStream, from: &[u8]) -> io::Result<usize> {
        if from.is_empty() { Ok(0) } else { again(|| stream.send(&[IoSlice::new(from)], true)) }
    }

    fn ready(&self, stream: &dyn ByteStream, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        again(|| stream.poll(wanted, limit))
    }
}

/// The bytes are in records.
impl Carrier for Records {
    fn read(&self, stream: &dyn ByteStream, to: &mut [u8], wait: bool) -> io::Result<usize> {
        Records::read(self, to, |to| Plain.read(stream, to, wait))
    }

    fn write(&self, stream: &dyn ByteStream, pieces: &[&[u8]]) -> io::Result<()> {
        Records::write(self, pieces, |mut bytes| {
            while !bytes.is_empty() {
                bytes = &bytes[Plain.write_some(stream, bytes)?..];
            }
            Ok(())
        })
    }

    fn has_read_ahead(&self) -> bool {
        self.is_ready()
    }

    fn ready(&self, stream: &dyn ByteStream, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        match wanted.contains(PollFlags::POLLIN) && self.is_ready() {
            true => Ok(PollFlags::POLLIN),
            false => Plain.ready(stream, wanted, limit),
        }
    }
}

/// The bytes travel beside the stream, whose end is that of the connection.
impl Carrier for Stream {
    fn read(&self, stream: &dyn ByteStream, to: &mut [u8], wait: bool) -> io::Result<usize> {
        loop {
            match self.try_read(to) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && wait => {
                    let limit = self.silence();
                    if !self.wait_readable(stream.socket()?, limit.unwrap_or(ONE_SLEEP))? && limit.is_some() {
                        return Err(e);
                    }
                }
                read => return read,
            }
        }
    }

    fn write(&self, stream: &dyn ByteStream, pieces: &[&[u8]]) -> io::Result<()> {
        Stream::write(self, stream.socket()?, pieces)
    }

    fn ready(&self, stream: &dyn ByteStream, wanted: PollFlags, limit: Duration) -> io::Result<PollFlags> {
        let (event, seen) = if wanted.contains(PollFlags::POLLIN) {
            (PollFlags::POLLIN, self.wait_readable(stream.socket()?, limit)?)
        } else if wanted.contains(PollFlags::POLLOUT) {
            (PollFlags::POLLOUT, self.has_room())
        } else {
            // The end of the stream is an event of its own.
            return Plain.ready(stream, wanted, limit);
        };
        Ok(if seen { event } else { PollFlags::empty() })
    }

    fn wait_written(&self, limit: Duration) {
        self.wait_arrived(limit);
    }
}
