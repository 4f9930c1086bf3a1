//! Values that runtime libraries attach to contexts, each library under its own key.
//!
//! Nearly every runtime call reads one, so a read takes only a shared lock.

use super::host::{Host, guard, write_out};
use cuda_api::code::{self, Code};
use cuda_api::lock::{read_lock, write_lock};
use std::collections::BTreeMap;
use std::sync::RwLock;

/// A library's destructor for the value, called when the context is destroyed: (context, key, value).
type Destructor = unsafe extern "C" fn(usize, usize, usize);

#[derive(Debug, Clone, Copy)]
struct Value {
    key: usize,
    value: usize,
    destructor: Option<Destructor>,
}

/// Values by context, in the order in which they were attached; there are only a few, one for each runtime library.
static VALUES: RwLock<BTreeMap<usize, Vec<Value>>> = RwLock::new(BTreeMap::new());

/// Resolves a context: the given one, or the calling thread's current one for 0.
fn meant(host: &dyn Host, context: usize) -> Result<usize, Code> {
    match if context == 0 { host.current_context() } else { context } {
        0 => Err(code::ERROR_INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Attaches a value, replacing an earlier one with this key.
pub(super) extern "C" fn put(context: usize, key: usize, value: usize, destructor: Option<Destructor>) -> Code {
    guard(|host| {
        let context = meant(host, context)?;
        let mut all = write_lock(&VALUES);
        let values = all.entry(context).or_default();
        let new = Value { key, value, destructor };
        match values.iter_mut().find(|v| v.key == key) {
            Some(old) => *old = new,
            None => values.push(new),
        }
        Ok(())
    })
}

/// Removes a value. Its destructor is not called: the caller frees it.
pub(super) extern "C" fn delete(context: usize, key: usize) -> Code {
    guard(|host| {
        let context = meant(host, context)?;
        let mut all = write_lock(&VALUES);
        if let Some(values) = all.get_mut(&context) {
            values.retain(|v| v.key != key);
            if values.is_empty() {
                all.remove(&context);
            }
        }
        Ok(())
    })
}

/// Reads a value.
///
/// # Safety
/// `to` must be null or valid for a write.
pub(super) unsafe extern "C" fn get(to: *mut usize, context: usize, key: usize) -> Code {
    guard(|host| {
        let context = meant(host, context)?;
        let all = read_lock(&VALUES);
        let value = all.get(&context).and_then(|values| values.iter().find(|v| v.key == key));
        let value = value.ok_or(code::ERROR_INVALID_HANDLE)?.value;
        // SAFETY: the caller vouches for `to`.
        unsafe { write_out(to, value) }
    })
}

/// Removes all values of a context that was reset or destroyed, and calls their destructors.
///
/// Must be called without holding locks, because runtimes call back into the driver. Each value is removed from the
/// table before its destructor runs, so it runs once, and values that a destructor attaches are kept.
pub fn context_destroyed(context: usize) {
    let gone = write_lock(&VALUES).remove(&context);
    for Value { key, value, destructor } in gone.unwrap_or_default() {
        if let Some(destructor) = destructor {
            // SAFETY: the library that attached the value wants this call, once; it outlives its values.
            unsafe { destructor(context, key, value) };
        }
    }
}
