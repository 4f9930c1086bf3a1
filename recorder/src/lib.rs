//! The recorder: a `libcuda.so.1` that executes the job's driver calls at a place, and can move the job to another place.
//!
//! The path of a call: an exported symbol ([`exports`]) reads the program's arguments by the argument kinds of its row, and passes
//! ([`enter`]) through the gate ([`gate`]). What the recorder's tables know is answered at once. Every other call is encoded once and
//! sent to the place ([`place`]): a remote worker, a helper, or the executor in this process. Calls that build state are appended to the
//! device's journal ([`ledger`]). A move ([`mover`]) replays the journal at the new place, copies memory while the job runs, closes the
//! gate, copies and compares what has changed, and commits with one store.
//!
//! Modules by subject: [`device`], [`context`], [`memory`], [`vmm`], [`external`], [`host_memory`], [`managed`], [`copy`], [`stream`],
//! [`green`], [`context_events`], [`cross_device`], [`peer`], [`ipc`], [`host_function`], [`stream_memory`], [`module`], [`launch`],
//! [`graph`], [`symbols`]. [`control`] is the job's control socket, which `mrcuda migrate` and schedulers use; [`moves`] keeps the
//! requested moves and their results.

// Hand-written functions have their CUDA names.
#![allow(non_snake_case, non_upper_case_globals)]

mod answers;
mod array;
mod array_copy;
mod attributes;
mod captures;
mod carry;
mod children;
mod clock;
mod completion_cache;
mod config;
mod context;
mod context_events;
mod control;
mod copy;
mod coverage;
mod creation;
mod cross_device;
mod delay;
mod device;
mod encoding;
mod enter;
mod exports;
mod external;
mod follow;
mod function;
mod gate;
mod graph;
mod green;
mod handle_end;
mod host_function;
mod host_memory;
mod host_waiting;
mod internal_error;
mod ipc;
mod job;
mod landing;
mod launch;
mod ledger;
mod limits;
mod linker;
mod log;
mod logs_and_coredump;
mod managed;
mod managed_variables;
mod memory;
mod module;
mod mover;
mod moves;
mod objects;
mod old_launch;
mod output;
mod peer;
mod place;
mod pointer;
mod private_tables;
mod reference;
mod registry;
mod shared_memory;
mod spare_events;
mod spawn;
mod start;
mod stream;
mod stream_attributes;
mod stream_memory;
mod symbols;
mod sync;
mod system_atomics;
mod tables;
mod tensor_map;
mod texture;
mod thread;
mod ticket;
mod tiles;
mod variables;
mod vmm;
