//! The recorder: a `libcuda.so.1` that executes the job's driver calls at a place, and can move the job to another place.
//!
//! The path of a call: an exported symbol ([`abi::exports`]) reads the program's arguments by the argument kinds of its row, and passes
//! ([`enter`]) through the gate ([`gate`]). What the recorder's tables know is answered at once. Every other call is encoded once and
//! sent to the place ([`place`]): a remote worker, a helper, or the executor in this process. Calls that build state are appended to the
//! device's journal ([`ledger`]). A move ([`mover`]) replays the journal at the new place, copies memory while the job runs, closes the
//! gate, copies and compares what has changed, and commits with one store.
//!
//! CONTRIBUTING.md lists the layers, each of which uses only those below it; `docs/modules.md` has the files, and `cargo xtask lint` checks
//! both. A call of the program is [`enter`], an object that it names is in [`objects`], the job with its devices and contexts is [`job`].
//! What each function means is in [`calls`], one file for each family, with the kinds of objects in one table ([`calls::registry`]);
//! [`carry`] carries out a row.

// Static variables that most calls read are together in the section `mrcuda_hot`: beside a real driver, which uses the caches for itself, a
// call costs what it must read from memory. Any static variable may be in such a section; the linker keeps its contents together.

// Hand-written functions have their CUDA names.
#![allow(non_snake_case, non_upper_case_globals)]

mod abi;
mod base;
mod calls;
mod carry;
mod children;
mod connections;
mod control;
mod copies;
mod device_memory;
mod enter;
mod gate;
mod handle_end;
mod host_memory;
mod internal_error;
mod job;
mod leave;
mod ledger;
mod move_error;
mod mover;
mod moves;
mod objects;
mod order;
mod pinned;
mod place;
mod random;
mod thread;
mod when_full;
