//! What the recorder knows of the program's objects: data that knows nothing of the job.

pub(crate) mod allocations;
pub(crate) mod arrays;
pub(crate) mod chunks;
pub(crate) mod events;
pub(crate) mod function;
pub(crate) mod imports;
pub(crate) mod instances;
pub(crate) mod limits;
pub(crate) mod memory_lock;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod references;
pub(crate) mod resident;
pub(crate) mod spare_events;
pub(crate) mod stream_frees;
pub(crate) mod streams;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod ticket;
