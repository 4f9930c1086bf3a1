//! Attributes of functions.

use super::device;
use crate::ptx::{FunctionInfo, Image};
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// The attributes that `cuFuncSetAttribute` and similar functions set.
#[derive(Debug)]
pub(crate) struct Attributes {
    /// Maximum dynamic shared memory, in bytes.
    pub max_dynamic_shared: AtomicI32,
    /// Preferred part of the cache for shared memory, in percent; -1 for no preference. Only reported.
    pub carveout: AtomicI32,
    /// Those of clusters: the attributes from [`Attributes::FIRST_OF_CLUSTERS`] on.
    pub clusters: [AtomicI32; 6],
}

impl Attributes {
    /// `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET`.
    pub const FIRST_OF_CLUSTERS: u32 = 10;

    /// The defaults for each function of an image.
    pub fn fresh(image: &Image) -> Vec<Arc<Attributes>> {
        let of = |info: &FunctionInfo| {
            let dynamic = device::SHARED_PER_BLOCK.saturating_sub(info.static_shared) as i32;
            Arc::new(Attributes {
                max_dynamic_shared: AtomicI32::new(dynamic),
                carveout: AtomicI32::new(-1),
                clusters: Default::default(),
            })
        };
        image.functions.iter().map(of).collect()
    }
}
