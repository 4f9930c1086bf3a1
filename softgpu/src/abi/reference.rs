//! Texture and surface references.

use super::{In, Out, Res, Text, abi};
use crate::gpu::graph_table::error;
use crate::gpu::{context, module, reference};
use crate::ptx::Reference::{self, Surface, Texture};
use cuda_api::array::{OF_ARRAY, OF_MIPMAP, OF_ROWS, Resource, shape_2d};
use cuda_api::pointer::InPtr;
use cuda_api::reference::{OVERRIDE_FORMAT, Setting};
use cuda_api::sys::{
    CUDA_ARRAY_DESCRIPTOR, CUaddress_mode, CUarray, CUarray_format, CUdeviceptr, CUfilter_mode, CUfunction, CUmipmappedArray,
    CUmodule, CUresult, CUsurfref, CUtexref,
};
use cuda_model::reference::{ALIGNED, Reference as Kept};
use std::ffi::{c_char, c_int, c_uint};

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The reference of a module with this name.
fn named(module: CUmodule, name: Text, kind: Reference) -> Res<usize> {
    let (module, live) = module::resolve(module as usize)?;
    let name = name.get()?;
    if name.is_empty() {
        return Err(BAD);
    }
    Ok(module.reference(&live, name, kind)?.handle)
}

fn kept(texture: CUtexref) -> Res<Kept> {
    Ok(reference::resolve(texture as usize, Texture)?.0.kept())
}

fn set(texture: CUtexref, setting: Setting) -> Res {
    let (reference, live) = reference::resolve(texture as usize, Texture)?;
    reference.set(&live, &setting)
}

abi! {
    call fn cuModuleGetTexRef(out: Out<CUtexref> as *mut CUtexref, module: CUmodule, name: Text as *const c_char) {
        out.check()?;
        out.set(named(module, name, Texture)? as CUtexref)
    }

    call fn cuModuleGetSurfRef(out: Out<CUsurfref> as *mut CUsurfref, module: CUmodule, name: Text as *const c_char) {
        out.check()?;
        out.set(named(module, name, Surface)? as CUsurfref)
    }

    call fn cuTexRefCreate(out: Out<CUtexref> as *mut CUtexref) {
        let live = context::current()?;
        out.check()?;
        out.set(reference::make(&live, Texture, None).handle as CUtexref)
    }

    call fn cuTexRefDestroy(texture: CUtexref) {
        reference::destroy(texture as usize)
    }

    call fn cuTexRefSetArray(texture: CUtexref, array: CUarray, flags: c_uint) {
        reference::resolve(texture as usize, Texture)?;
        if flags & !OVERRIDE_FORMAT != 0 {
            return Err(BAD);
        }
        set(texture, Setting::Resource(Resource { flags, ..reference::of_array(array as usize, Texture)? }))
    }

    call fn cuTexRefSetMipmappedArray(texture: CUtexref, mipmap: CUmipmappedArray, flags: c_uint) {
        reference::resolve(texture as usize, Texture)?;
        if flags & !OVERRIDE_FORMAT != 0 {
            return Err(BAD);
        }
        set(texture, Setting::Resource(Resource { flags, ..reference::of_mipmap(mipmap as usize)? }))
    }

    call fn cuTexRefSetAddress_v2(offset: Out<usize> as *mut usize, texture: CUtexref, address: CUdeviceptr, bytes: usize) {
        let (reference, live) = reference::resolve(texture as usize, Texture)?;
        if offset.is_null() && !address.is_multiple_of(ALIGNED) {
            return Err(BAD);
        }
        offset.set_if_wanted(reference.see_memory(&live, address, bytes as u64)? as usize);
        Ok(())
    }

    call fn cuTexRefSetAddress2D_v3(
        texture: CUtexref, what: InPtr<CUDA_ARRAY_DESCRIPTOR> as *const CUDA_ARRAY_DESCRIPTOR, address: CUdeviceptr, pitch: usize,
    ) {
        reference::resolve(texture as usize, Texture)?;
        let s = shape_2d(what).map_err(error)?;
        let (width, height, format, channels) = (s.width, s.height, s.format, s.channels);
        let pitch = pitch as u64;
        set(texture, Setting::Resource(Resource { kind: OF_ROWS, address, format, channels, width, height, pitch, ..Resource::default() }))
    }

    call fn cuTexRefSetFormat(texture: CUtexref, format: c_uint as CUarray_format, channels: c_int) {
        set(texture, Setting::Format([format, channels as u32]))
    }

    call fn cuTexRefSetAddressMode(texture: CUtexref, dimension: c_int, mode: c_uint as CUaddress_mode) {
        set(texture, Setting::Outside([dimension as u32, mode]))
    }

    call fn cuTexRefSetFilterMode(texture: CUtexref, mode: c_uint as CUfilter_mode) {
        set(texture, Setting::Filter(mode))
    }

    call fn cuTexRefSetMipmapFilterMode(texture: CUtexref, mode: c_uint as CUfilter_mode) {
        set(texture, Setting::LevelFilter(mode))
    }

    call fn cuTexRefSetMipmapLevelBias(texture: CUtexref, bias: f32) {
        set(texture, Setting::LevelBias(bias.to_bits()))
    }

    call fn cuTexRefSetMipmapLevelClamp(texture: CUtexref, lowest: f32, highest: f32) {
        set(texture, Setting::LevelClamp([lowest.to_bits(), highest.to_bits()]))
    }

    call fn cuTexRefSetMaxAnisotropy(texture: CUtexref, most: c_uint) {
        set(texture, Setting::Anisotropy(most))
    }

    call fn cuTexRefSetBorderColor(texture: CUtexref, colour: In<[u32; 4]> as *mut f32) {
        reference::resolve(texture as usize, Texture)?;
        set(texture, Setting::Border(colour.get()?))
    }

    call fn cuTexRefSetFlags(texture: CUtexref, flags: c_uint) {
        set(texture, Setting::Flags(flags))
    }

    call fn cuTexRefGetAddress_v2(out: Out<CUdeviceptr> as *mut CUdeviceptr, texture: CUtexref) {
        out.set(kept(texture)?.address().map_err(error)?)
    }

    call fn cuTexRefGetArray(out: Out<CUarray> as *mut CUarray, texture: CUtexref) {
        out.set(kept(texture)?.array(OF_ARRAY).map_err(error)? as CUarray)
    }

    call fn cuTexRefGetMipmappedArray(out: Out<CUmipmappedArray> as *mut CUmipmappedArray, texture: CUtexref) {
        out.set(kept(texture)?.array(OF_MIPMAP).map_err(error)? as CUmipmappedArray)
    }

    call fn cuTexRefGetAddressMode(out: Out<c_uint> as *mut CUaddress_mode, texture: CUtexref, dimension: c_int) {
        out.set(kept(texture)?.outside(dimension).map_err(error)?)
    }

    call fn cuTexRefGetFilterMode(out: Out<c_uint> as *mut CUfilter_mode, texture: CUtexref) {
        out.set(kept(texture)?.sampling.filter)
    }

    call fn cuTexRefGetFormat(format: Out<c_uint> as *mut CUarray_format, channels: Out<c_int> as *mut c_int, texture: CUtexref) {
        let [is, of] = kept(texture)?.format;
        format.set_if_wanted(is);
        channels.set_if_wanted(of as c_int);
        Ok(())
    }

    call fn cuTexRefGetMipmapFilterMode(out: Out<c_uint> as *mut CUfilter_mode, texture: CUtexref) {
        out.set(kept(texture)?.sampling.mip_filter)
    }

    call fn cuTexRefGetMipmapLevelBias(out: Out<u32> as *mut f32, texture: CUtexref) {
        out.set(kept(texture)?.sampling.mip_bias)
    }

    call fn cuTexRefGetMipmapLevelClamp(lowest: Out<u32> as *mut f32, highest: Out<u32> as *mut f32, texture: CUtexref) {
        let [low, high] = kept(texture)?.sampling.mip_clamp;
        lowest.set_if_wanted(low);
        highest.set_if_wanted(high);
        Ok(())
    }

    call fn cuTexRefGetMaxAnisotropy(out: Out<u32> as *mut c_int, texture: CUtexref) {
        out.set(kept(texture)?.sampling.anisotropy)
    }

    call fn cuTexRefGetBorderColor(out: Out<[u32; 4]> as *mut f32, texture: CUtexref) {
        out.set(kept(texture)?.sampling.border)
    }

    call fn cuTexRefGetFlags(out: Out<c_uint> as *mut c_uint, texture: CUtexref) {
        out.set(kept(texture)?.sampling.flags)
    }

    call fn cuParamSetTexRef(function: CUfunction, unit: c_int, texture: CUtexref) {
        module::resolve_function(function)?;
        kept(texture)?.as_parameter(unit).map_err(error)
    }

    call fn cuSurfRefSetArray(surface: CUsurfref, array: CUarray, flags: c_uint) {
        let (reference, live) = reference::resolve(surface as usize, Surface)?;
        if flags != 0 {
            return Err(BAD);
        }
        reference.set(&live, &Setting::Resource(reference::of_array(array as usize, Surface)?))
    }

    call fn cuSurfRefGetArray(out: Out<CUarray> as *mut CUarray, surface: CUsurfref) {
        let kept = reference::resolve(surface as usize, Surface)?.0.kept();
        out.set(kept.array(OF_ARRAY).map_err(error)? as CUarray)
    }
}
