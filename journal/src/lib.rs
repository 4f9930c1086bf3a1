//! The journal: the file in which a job's state-building calls are kept, in the order in which they took effect.
//!
//! A record is one call that succeeded: its number, its encoded arguments and answer, and the handles that it creates, ends and
//! uses. Those edges are all that this crate knows of a call. From them follows the *live set* ([`Writer::live`], [`live_of`]):
//! the records that a fresh place must replay to get what exists now. The rules are in [`live_of`].
//!
//! * [`Writer`] appends to a memory-mapped file, or, where nobody else is to read it, to memory of its own. A record is published by its length word, last, so whoever reads the file sees
//!   whole records only, also after a crash. The file is rewritten without its dead records when these outweigh the live ones.
//! * [`Reader`] takes files from anyone: every length is checked before it is used, every record has a checksum.
//! * [`print_line`] shows a record as a line of JSON.
//!
//! The format is described in docs/journal-format.md. Calls are named by numbers that are only ever added, so a journal can
//! be printed by later versions; replaying needs the build that wrote it ([`Meta::build`]).

#![deny(unsafe_code)]
#![warn(missing_debug_implementations, unreachable_pub)]

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
mod writer;

pub use error::JournalError;
pub use header::Meta;
pub use live::live_of;
pub use print::print_line;
pub use reader::{Reader, Records};
pub use record::{MAX_PAYLOAD, OwnedRecord, Record, Role};
pub use writer::Writer;
