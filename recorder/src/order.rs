//! The order of work: what captures record, and what later work of a stream follows.

pub(crate) mod captures;
pub(crate) mod concerned;
pub(crate) mod creation;
pub(crate) mod delay;
pub(crate) mod follow;
pub(crate) mod host_waiting;
pub(crate) mod landing;
pub(crate) mod last_launch;
