//! The recorder: a `libcuda.so.1` that executes the job's driver calls at a place, and can move the job to another place.
//!
//! The path of a call: an exported symbol ([`abi::exports`]) reads the program's arguments by the argument kinds of its row, and passes
//! ([`enter`]) through the gate ([`gate`]). What the recorder's tables know is answered at once. Every other call is encoded once and
//! sent to the place ([`place`]): a remote worker, a helper, or the executor in this process. Calls that build state are appended to the
//! device's journal ([`ledger`]). A move ([`mover`]) replays the journal at the new place, copies memory while the job runs, closes the
//! gate, copies and compares what has changed, and commits with one store.
//!
//! The layers, each of which uses only those below it (`docs/modules.md` has the files):
//!
//! | layer | contents |
//! |---|---|
//! | [`abi`], [`control`] | the exported symbols, start and end of the job; the control socket, which `mrcuda migrate` and schedulers use |
//! | [`mover`], [`moves`] | the move; the requested moves and their results |
//! | [`calls`] | what each driver function means, one file for each family, and the kinds of objects in one table ([`calls::registry`]) |
//! | [`carry`], [`host_memory`] | carrying out a row; pinned and managed memory |
//! | [`order`], [`device_memory`] | the order of work between streams and the host; allocations, chunks and pools |
//! | [`enter`] | a call of the program, and how it reaches a place |
//! | [`job`] | the job, its devices and contexts |
//! | [`objects`] | the recorder's data about handles |
//! | [`place`], [`ledger`], [`pinned`] | what executes calls; the journal; the blocks of pinned memory |
//! | [`thread`], [`gate`], [`base`] | the program's threads; the gate; what everything else uses |

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
mod device_memory;
mod enter;
mod gate;
mod handle_end;
mod host_memory;
mod internal_error;
mod job;
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
