//! What the recorder knows of the program's objects: states of their own that know nothing of the calls.

pub(crate) mod array_lookup;
pub(crate) mod arrays;
pub(crate) mod contexts;
pub(crate) mod events;
pub(crate) mod instances;
pub(crate) mod references;
pub(crate) mod shared_handles;
pub(crate) mod spare_events;
pub(crate) mod streams;
pub(crate) mod table;
