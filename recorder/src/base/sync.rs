//! Atomic types for code whose interleavings are model-checked: in tests each access is a step before which other threads may run
//! (`interleave`); otherwise those of the standard library.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, fence};

#[cfg(test)]
pub(crate) use interleave::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, fence};
