//! Tickets: descriptors by which processes share memory ([`crate::device_memory::shared_memory`]), and the memory that they stand for.

use crate::base::encoding::encode;
use cuda_api::code::{self, Code};
use cuda_api::ops::Offer;
use cuda_api::wire::Wire;
use cuda_api::wire_struct;
use executor::share::Name;
use rcuda_forwarder::NotInherited;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

pub(crate) const MAGIC: [u8; 8] = *b"mrcudaLN";

/// Kinds of tickets.
pub(crate) const MEMORY: u32 = 1;

pub(crate) const POOL: u32 = 2;

pub(crate) const POINTER: u32 = 3;

wire_struct! {
    /// The contents of a descriptor, or of the data of a pointer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Ticket {
        pub(crate) magic: [u8; 8],
        pub(crate) door: Name,
        /// [`MEMORY`], [`POOL`] or [`POINTER`].
        pub(crate) kind: u32,
        pub(crate) zero: u32,
        /// The owner's handle or address.
        pub(crate) what: u64,
        /// For memory its size, for a pointer its pool.
        pub(crate) more: u64,
        /// The GPU of the memory, as the owner's program sees it.
        pub(crate) uuid: [u8; 16],
    }
}

/// Size of a ticket in bytes.
pub(crate) const TICKET: usize = 64;

/// Imported memory: it is returned to the owner when this is dropped, or when the process ends, whatever children it has.
#[derive(Debug)]
pub(crate) struct Loan {
    pub(crate) pieces: Vec<(Offer, u64)>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) _line: Line,
}

/// The importing end of a connection to the owner.
#[derive(Debug)]
pub(crate) struct Line {
    /// Closes the socket in forked children, which do not have the memory. Declared first because it must be dropped first.
    pub(crate) _not_inherited: Option<NotInherited>,
    pub(crate) stream: UnixStream,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> Line {
        Line { _not_inherited: NotInherited::note(stream.as_raw_fd()), stream }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Also for a child that was forked when the socket could not be registered for this. If the owner has ended, no message is
        // needed.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Returns whether the other end is still open.
pub(crate) fn is_open(ours: &UnixStream) -> bool {
    let mut poll = libc::pollfd { fd: ours.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one valid entry; the call does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents & libc::POLLHUP == 0
}

impl Ticket {
    /// Reads a ticket of the given kind.
    pub(crate) fn read(bytes: &[u8; TICKET], kind: u32) -> Result<Ticket, Code> {
        let ticket = Ticket::get(&mut &bytes[..]).map_err(|_| code::ERROR_INVALID_VALUE)?;
        let fine = ticket.magic == MAGIC && ticket.kind == kind && ticket.zero == 0;
        if fine { Ok(ticket) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    pub(crate) fn bytes(&self) -> Result<[u8; TICKET], Code> {
        encode(self).try_into().map_err(|_| code::ERROR_UNKNOWN)
    }

    /// Creates a descriptor with this ticket, and this process's end of it.
    pub(crate) fn descriptor(&self) -> Result<(OwnedFd, UnixStream), Code> {
        // A socket, since its other end shows whether any process still has the descriptor.
        let (mut ours, theirs) = UnixStream::pair().map_err(|_| code::ERROR_OPERATING_SYSTEM)?;
        ours.write_all(&self.bytes()?).map_err(|_| code::ERROR_OPERATING_SYSTEM)?;
        Ok((OwnedFd::from(theirs), ours))
    }

    /// Reads the ticket of a descriptor, which the program still owns.
    pub(crate) fn of_descriptor(fd: RawFd, kind: u32) -> Result<Ticket, Code> {
        let mut bytes = [0u8; TICKET];
        // SAFETY: the buffer has this length; a descriptor that is not a socket is an error.
        let n = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        if usize::try_from(n) == Ok(TICKET) { Ticket::read(&bytes, kind) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Returns whether both have the same owner.
    pub(crate) fn same_lender(&self, other: &Ticket) -> bool {
        self.door == other.door
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_have_their_size_and_are_recognised() {
        let ticket = Ticket { magic: MAGIC, door: [7; 16], kind: POOL, zero: 0, what: 1, more: 2, uuid: [9; 16] };
        let bytes = ticket.bytes().unwrap();
        assert_eq!(Ticket::read(&bytes, POOL), Ok(ticket));
        assert_eq!(Ticket::read(&bytes, MEMORY), Err(code::ERROR_INVALID_VALUE));
        let (theirs, ours) = ticket.descriptor().unwrap();
        for _ in 0..2 {
            assert_eq!(Ticket::of_descriptor(theirs.as_raw_fd(), POOL), Ok(ticket));
        }
        assert!(is_open(&ours));
        drop(theirs);
        assert!(!is_open(&ours));
        assert!(Ticket::of_descriptor(-1, POOL).is_err());
    }

    /// Forks; returns the child, which makes only system calls and exits with the result of `child` once it is released.
    fn fork(child: impl FnOnce() -> i32) -> (i32, std::io::PipeWriter) {
        let (held, hold) = std::io::pipe().unwrap();
        // SAFETY: the child makes only system calls, and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = child();
            // SAFETY: as above; one byte can be written.
            unsafe {
                libc::close(hold.as_raw_fd());
                let mut byte = 0u8;
                libc::read(held.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(status);
            }
        }
        (pid, hold)
    }

    fn status(child: i32) -> i32 {
        let mut status = 0;
        // SAFETY: our own child; the status is writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_forked_child_keeps_no_loan() {
        let (lender, borrower) = UnixStream::pair().unwrap();
        let line = Line::new(borrower);
        let fd = line.stream.as_raw_fd();
        // SAFETY: a plain system call.
        let (child, hold) = fork(|| i32::from(unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0));
        assert!(is_open(&lender));
        drop(hold);
        assert_eq!(status(child), 0, "the child has the socket");
        drop(line);
        assert!(!is_open(&lender));
        // A socket that was not registered is closed nevertheless.
        let (lender, borrower) = UnixStream::pair().unwrap();
        let line = Line { _not_inherited: None, stream: borrower };
        let (child, hold) = fork(|| 0);
        drop(line);
        assert!(!is_open(&lender), "a child keeps memory that its parent has given back");
        drop(hold);
        assert_eq!(status(child), 0);
    }

    #[test]
    fn a_lender_that_is_gone_lends_nothing() {
        let ticket = Ticket { magic: MAGIC, door: [7; 16], kind: POOL, zero: 0, what: 1, more: 2, uuid: [9; 16] };
        assert_eq!(ticket.borrow().unwrap_err(), code::ERROR_INVALID_VALUE);
    }
}
