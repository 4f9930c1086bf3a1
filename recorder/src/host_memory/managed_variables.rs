//! Managed variables of loaded code (`__managed__`): managed memory of the job, at one address in every place. The code is changed to use
//! that memory before it is sent, so places need no support for them.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::pinned::blocks::Kind as Memory;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_image::Image;
use cuda_image::managed::{Addresses, ManagedError};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
struct Variable {
    at: u64,
    bytes: u64,
    initial: Vec<u8>,
}

impl Variable {
    /// Sets the initial value.
    fn set(&self) {
        let rest = self.bytes as usize - self.initial.len();
        // SAFETY: memory of the arena, of this size, as long as the variable is in the table; a program that uses it in another thread
        // while it loads or resets has the race there natively too.
        unsafe {
            std::ptr::copy_nonoverlapping(self.initial.as_ptr(), self.at as *mut u8, self.initial.len());
            std::ptr::write_bytes((self.at as *mut u8).add(self.initial.len()), 0, rest);
        }
    }
}

/// Variables by name.
type Variables = BTreeMap<String, Variable>;

/// By module or library.
static LOADED: Mutex<BTreeMap<u64, Variables>> = Mutex::new(BTreeMap::new());
/// Whether there ever were any.
static ANY: AtomicBool = AtomicBool::new(false);

fn refuse(why: &ManagedError) -> Code {
    tracing::warn!(target: "code", "code is not loaded: of its managed variables (`__managed__`), {why}");
    code::ERROR_NOT_SUPPORTED
}

/// Creates the managed variables of code that is about to be loaded under this handle, and changes the code to use them.
pub(crate) fn place(cx: &CallContext, device: &Device, handle: u64, image: &Image) -> Result<Image, Code> {
    let wanted = image.managed().map_err(|why| refuse(&why))?;
    if wanted.is_empty() {
        return Err(code::ERROR_NOT_SUPPORTED);
    }
    let mut made = Variables::new();
    let make = || -> Result<Image, Code> {
        for (name, variable) in wanted {
            let at = host_memory::make(cx, device, variable.bytes, 0, Memory::Variable)?;
            let own = Variable { at, bytes: variable.bytes, initial: variable.initial };
            own.set();
            made.insert(name, own);
        }
        let at: Addresses = made.iter().map(|(name, v)| (name.clone(), v.at)).collect();
        let placed = image.with_managed(&at).map_err(|why| refuse(&why))?;
        for why in placed.left_out {
            tracing::debug!(target: "code", "code with managed variables: {why}; a GPU that needs this piece has to do without");
        }
        Ok(placed.image)
    };
    let changed = make();
    // Also set on a failure: the caller then frees what was created.
    ANY.store(true, Ordering::Relaxed);
    lock(&LOADED).insert(handle, made);
    changed.inspect_err(|_| ended(cx, handle))
}

/// Frees the variables of a module or library that was unloaded, which nothing uses any more.
pub(crate) fn ended(cx: &CallContext, handle: u64) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let gone = lock(&LOADED).remove(&handle).unwrap_or_default();
    let at: Vec<u64> = gone.values().map(|v| v.at).collect();
    if !at.is_empty() {
        host_memory::end_variables(cx, &at);
    }
}

/// Address and size of a managed variable of a library, a module, or the module of a library.
pub(crate) fn find(cx: &CallContext, owner: u64, name: &[u8]) -> Option<(u64, u64)> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    let lender = || cx.job.devices.iter().find_map(|d| lock(&d.ledger).parent(owner));
    let library = if kind(owner) == Some(Kind::Module) { lender().unwrap_or(owner) } else { owner };
    lock(&LOADED).get(&library)?.get(name).map(|v| (v.at, v.bytes))
}
