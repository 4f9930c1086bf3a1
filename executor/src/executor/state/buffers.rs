//! Page-locked buffers for transfers.

use crate::gpu::Gpu;
use cuda_api::code::Code;
use cuda_api::lock::lock;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// Unused page-locked buffers, kept for reuse because freeing them would wait for the job's kernels. By the context's number and the
/// size.
static SPARE: Mutex<Option<Spare>> = Mutex::new(None);
type Spare = FxHashMap<(u64, usize), Vec<usize>>;

/// A page-locked buffer.
#[derive(Debug)]
pub struct Pinned {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) life: u64,
}

impl Pinned {
    /// Its contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the driver's allocation of `len` bytes; a copy that writes to it owns the `Pinned` meanwhile.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.len) }
    }

    /// Its contents, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }
}

/// A page-locked buffer of exactly `bytes`, of the context with this number, which is current.
pub(crate) fn take(gpu: &Gpu, life: u64, bytes: usize) -> Result<Pinned, Code> {
    let at = match spare(life, bytes) {
        Some(at) => at,
        None => gpu.pin(bytes)?,
    };
    Ok(Pinned { at, len: bytes, life })
}

/// An unused buffer of a context, if there is one.
fn spare(life: u64, bytes: usize) -> Option<usize> {
    lock(&SPARE).get_or_insert_default().get_mut(&(life, bytes)).and_then(Vec::pop)
}

impl Drop for Pinned {
    fn drop(&mut self) {
        lock(&SPARE).get_or_insert_default().entry((self.life, self.len)).or_default().push(self.at);
    }
}

/// Frees the buffers of a context that is about to be destroyed.
pub(crate) fn forget_spares(gpu: &Gpu, life: u64) {
    let mut spare = lock(&SPARE);
    for ((_, len), buffers) in spare.get_or_insert_default().extract_if(|(l, _), _| *l == life) {
        buffers.into_iter().for_each(|at| gpu.unpin(at, len));
    }
}
