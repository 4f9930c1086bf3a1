//! Images, and the modules and libraries that were loaded from them.

use crate::executor::globals::Global;
use crate::gpu_memory::HeldMemory;
use cuda_api::code::Code;
use cuda_api::handle::{Kind, kind};
use cuda_image::{Image, Index};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An image with its known properties.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) image: Image,
    /// Its size, which counts until it is no longer used.
    pub(crate) bytes: u64,
    pub(crate) all: Arc<AtomicU64>,
    /// Maximum size of its decompressed code.
    pub(crate) most: u64,
    /// Compute capability of the GPU that it is for: 10 × major + minor.
    pub(crate) capability: u32,
    pub(crate) index: OnceLock<Index>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A loaded module or library.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) handle: u64,
    pub(crate) live: u64,
    pub(crate) library: bool,
    /// The driver's library that owns this module.
    pub(crate) lender: Option<u64>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) globals: Vec<Global>,
    /// The memory of its variables.
    pub(crate) _held: Option<HeldMemory>,
}

impl Kept {
    pub(crate) fn index(&self) -> &Index {
        self.index.get_or_init(|| self.image.index_within(self.most, Some(self.capability)))
    }
}

#[derive(Debug, Default)]
pub(crate) enum Heap {
    #[default]
    Unused,
    At(u64, u64),
    /// There is one, and it could not be found.
    Unknown(Code),
}

/// Images, and what was loaded from them, in the order of loading.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) images: HashMap<[u8; 32], Arc<Kept>>,
    /// Total size of the images.
    pub(crate) bytes: Arc<AtomicU64>,
    /// Whether the job has a message that the limit for images, or for the contents of one, is reached.
    pub(crate) reported: AtomicBool,
    pub(crate) units: Vec<Unit>,
    /// Handles of functions, kernels and other objects that were obtained from a module, a library or a kernel. A driver follows its
    /// handles of them, even if the object no longer exists.
    pub(crate) parts: HashMap<u64, Vec<u64>>,
    pub(crate) heap: Heap,
    /// The memory of the heap.
    pub(crate) held_heap: Option<HeldMemory>,
    /// Maximum local memory of a function that was used, in bytes per thread.
    pub(crate) local: u32,
}

impl Modules {
    pub(crate) fn has_heap(&self) -> bool {
        !matches!(self.heap, Heap::Unused)
    }

    /// Modules are unloaded with the context, libraries are not; a new context has no heap yet. The caller must unload the returned
    /// owners of modules.
    pub(crate) fn context_ended(&mut self) -> Vec<u64> {
        let lenders = self.units.iter().filter_map(|u| u.lender).collect();
        self.units.retain(|u| u.library);
        self.parts.retain(|of, _| kind(*of) == Some(Kind::Library));
        (self.heap, self.held_heap) = (Heap::Unused, None);
        self.local = 0;
        lenders
    }

    /// Removes everything; the caller must unload the returned libraries.
    pub(crate) fn take_libraries(&mut self) -> Vec<u64> {
        std::mem::take(self).units.into_iter().filter_map(|u| if u.library { Some(u.live) } else { u.lender }).collect()
    }
}
