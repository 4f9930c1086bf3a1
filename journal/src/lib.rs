//! The journal: the records of a job's state-building calls, in the order in which they took effect.
//!
//! A record is one call that succeeded: its number, its encoded arguments and answer, and the handles that it creates,
//! destroys and uses. These edges are all that this crate knows of a call. They determine the *live set*
//! ([`Writer::live`], [`live_of`]): the records that a fresh place must replay to get what exists now. The rules are in
//! [`live_of`].
//!
//! * [`Writer`] appends to a memory-mapped file, or to private memory if no other process needs to read the journal.
//!   The length word of a record is written last and publishes it, so a reader of the file sees only whole records,
//!   even after a crash. The file is rewritten without its dead records when these outweigh the live ones.
//! * A [`Record`] that was read is a view: it borrows from the journal's storage ([`Writer::live`]), or from a copy of its
//!   bytes ([`RecordBuffer`]), which a move uses while the job continues to append.
//! * [`Reader`] accepts untrusted files: every length is checked before it is used, every record has a checksum.
//! * [`print_line`] formats a record as a line of JSON.
//!
//! docs/journal-format.md describes the format. Call numbers are only ever added, so later versions can print a
//! journal; replaying it needs the build that wrote it ([`Meta::build`]).

#![deny(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]

mod buffer;
mod error;
#[cfg(test)]
mod fuzz;
mod header;
mod live;
#[allow(unsafe_code)] // The island: memory-mapped files.
mod mapped;
#[allow(unsafe_code)] // The island: memory that grows.
mod memory;
mod print;
mod reader;
mod record;
#[allow(unsafe_code)] // The island: words as bytes.
mod words;
mod writer;

pub use buffer::RecordBuffer;
pub use error::JournalError;
pub use header::Meta;
pub use live::live_of;
pub use print::print_line;
pub use reader::{Reader, Records};
pub use record::{MAX_PAYLOAD, OwnedRecord, Record, Role};
pub use writer::Writer;
