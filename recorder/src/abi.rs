//! The exported symbols, and start and end of the job.

pub(crate) mod exports;
pub(crate) mod private_tables;
pub(crate) mod start;
pub(crate) mod symbols;
