//! Handles: numbers that identify objects and are never reused, so that a destroyed handle stays invalid.

use cuda_api::lock::{read_lock, write_lock};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Distance between handles: they look like aligned pointers, and small integers are never valid.
const STEP: usize = 0x40;

/// Objects of one kind by handle.
pub(crate) struct Table<T> {
    inner: RwLock<Inner<T>>,
}

struct Inner<T> {
    next: usize,
    map: HashMap<usize, Arc<T>>,
}

impl<T> Table<T> {
    /// A table whose handles start at `kind` × 64 GiB above a base that no plan of addresses uses.
    pub fn new(kind: usize) -> Self {
        Table { inner: RwLock::new(Inner { next: 0x5300_0000_0000 + (kind << 36), map: HashMap::new() }) }
    }

    /// Creates an object that knows its handle.
    pub fn insert_with(&self, make: impl FnOnce(usize) -> T) -> Arc<T> {
        let mut inner = write_lock(&self.inner);
        inner.next += STEP;
        let handle = inner.next;
        let object = Arc::new(make(handle));
        inner.map.insert(handle, object.clone());
        object
    }

    /// The object of a handle, if it exists.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        read_lock(&self.inner).map.get(&handle).cloned()
    }

    /// Whether the object no longer exists.
    pub fn is_past(&self, handle: usize) -> bool {
        let inner = read_lock(&self.inner);
        // Handles of the kind differ in the lower bits only.
        handle <= inner.next && handle >> 36 == inner.next >> 36 && !inner.map.contains_key(&handle)
    }

    /// Removes a handle.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        write_lock(&self.inner).map.remove(&handle)
    }

    /// Calls `f` for every object.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        read_lock(&self.inner).map.values().for_each(|object| f(object));
    }

    /// Removes every object for which `gone` is true.
    pub fn remove_if(&self, gone: impl Fn(&T) -> bool) {
        write_lock(&self.inner).map.retain(|_, object| !gone(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_never_reused() {
        let table = Table::new(1);
        let first = *table.insert_with(|h| h);
        assert!(table.remove(first).is_some());
        let second = *table.insert_with(|h| h);
        assert_ne!(first, second);
        assert!(table.is_past(first) && !table.is_past(second) && !table.is_past(second + 1));
        assert!(table.get(first).is_none() && table.get(second).is_some());
    }
}
