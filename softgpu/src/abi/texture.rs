//! Texture and surface objects.

use super::{Out, abi};
use crate::gpu::context;
use crate::gpu::graph_table::error;
use crate::gpu::texture::{self, Made};
use cuda_api::array::{resource, sampling, view, write_resource, write_sampling, write_view};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUsurfObject, CUtexObject};

abi! {
    call fn cuTexObjectCreate(
        out: Out<CUtexObject> as *mut CUtexObject, what: InPtr<CUDA_RESOURCE_DESC> as *const CUDA_RESOURCE_DESC,
        how: InPtr<CUDA_TEXTURE_DESC> as *const CUDA_TEXTURE_DESC,
        seen_as: InPtr<CUDA_RESOURCE_VIEW_DESC> as *const CUDA_RESOURCE_VIEW_DESC,
    ) {
        let live = context::current()?;
        out.check()?;
        let sampling = Some(sampling(how).map_err(error)?);
        let made = Made { resource: resource(what).map_err(error)?, sampling, view: view(seen_as).map_err(error)? };
        out.set(texture::create(&live, made)?)
    }

    call fn cuTexObjectDestroy(object: CUtexObject) {
        texture::destroy(&*context::current()?, object, false);
        Ok(())
    }

    call fn cuTexObjectGetResourceDesc(out: OutPtr<CUDA_RESOURCE_DESC> as *mut CUDA_RESOURCE_DESC, object: CUtexObject) {
        write_resource(out, &texture::find(&*context::current()?, object, false)?.resource).map_err(error)
    }

    call fn cuTexObjectGetTextureDesc(out: OutPtr<CUDA_TEXTURE_DESC> as *mut CUDA_TEXTURE_DESC, object: CUtexObject) {
        let made = texture::find(&*context::current()?, object, false)?;
        write_sampling(out, &made.sampling.unwrap_or_default()).map_err(error)
    }

    call fn cuTexObjectGetResourceViewDesc(
        out: OutPtr<CUDA_RESOURCE_VIEW_DESC> as *mut CUDA_RESOURCE_VIEW_DESC, object: CUtexObject,
    ) {
        let made = texture::find(&*context::current()?, object, false)?;
        write_view(out, &made.view.unwrap_or_default()).map_err(error)
    }

    call fn cuSurfObjectCreate(
        out: Out<CUsurfObject> as *mut CUsurfObject, what: InPtr<CUDA_RESOURCE_DESC> as *const CUDA_RESOURCE_DESC,
    ) {
        let live = context::current()?;
        out.check()?;
        let made = Made { resource: resource(what).map_err(error)?, sampling: None, view: None };
        out.set(texture::create(&live, made)?)
    }

    call fn cuSurfObjectDestroy(object: CUsurfObject) {
        texture::destroy(&*context::current()?, object, true);
        Ok(())
    }

    call fn cuSurfObjectGetResourceDesc(out: OutPtr<CUDA_RESOURCE_DESC> as *mut CUDA_RESOURCE_DESC, object: CUsurfObject) {
        write_resource(out, &texture::find(&*context::current()?, object, true)?.resource).map_err(error)
    }
}
