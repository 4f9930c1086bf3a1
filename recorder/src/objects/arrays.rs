//! The recorder's data about arrays and mipmapped arrays.

use crate::base::log::lock;
use crate::objects::table::Known;
use cuda_api::array::{Layout, Shape};
use std::sync::Mutex;

/// The recorder's state of an array.
#[derive(Debug, Clone, Default)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    /// The mipmapped array that it is a level of, or 0.
    pub(crate) mipmap: u64,
    /// For an array without memory that is not a level.
    pub(crate) layout: Option<Layout>,
}

/// The recorder's data about an array.
#[derive(Debug, Default)]
pub(crate) struct ArrayData(pub(crate) Mutex<Array>);

/// The recorder's state of a mipmapped array.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mipmap {
    pub(crate) levels: Vec<u64>,
    /// For one without memory.
    pub(crate) layout: Option<Layout>,
}

/// The recorder's data about a mipmapped array.
#[derive(Debug, Default)]
pub(crate) struct MipmapData(pub(crate) Mutex<Mipmap>);

impl Known for ArrayData {
    fn forget(&self) {
        *lock(&self.0) = Array::default();
    }
}

impl Known for MipmapData {
    fn forget(&self) {
        *lock(&self.0) = Mipmap::default();
    }
}
