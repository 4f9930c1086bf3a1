//! The atomic words of code whose order of steps has a model: in the tests each access is a step that other threads may come before
//! (`interleave`), else the standard library's.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, fence};

#[cfg(test)]
pub(crate) use interleave::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, fence};
