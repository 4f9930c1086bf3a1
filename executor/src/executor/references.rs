//! Texture and surface references.

use super::{Executor, short};
use cuda_api::array::OF_ARRAY;
use cuda_api::code::{self, Code};
use cuda_api::handle::{Kind, kind};
use cuda_api::reference::{ReferenceSet, Setting};
use cuda_api::wire::Wire;

impl Executor {
    /// Changes a setting of a reference, for later launches. For memory, returns the offset in bytes at which the texture begins.
    pub(super) fn set_reference(&self, mut body: &[u8]) -> Result<Option<u64>, Code> {
        let ReferenceSet { reference, mut setting } = ReferenceSet::get(&mut body).map_err(short)?;
        if let Setting::Resource(r) = &mut setting {
            *r = self.check_resource(r)?;
        }
        let live = self.bindings.live(kind(reference).ok_or(code::ERROR_INVALID_HANDLE)?, reference)?;
        match (kind(reference), &setting) {
            (Some(Kind::TextureRef), setting) => self.gpu.set_texture(live, setting),
            (Some(Kind::SurfaceRef), Setting::Resource(r)) if r.kind == OF_ARRAY => {
                self.gpu.see_array(live, r.array).map(|()| None)
            }
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }
}
