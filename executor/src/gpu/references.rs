//! Texture and surface references.

use super::{Code, Gpu, checked, code, sys};
use cuda_api::array::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, Shape, write_shape};
use cuda_api::pointer::OutPtr;
use cuda_api::reference::Setting;
use std::ffi::c_int;
use std::mem::MaybeUninit;

impl Gpu {
    /// Binds an array to a surface reference; both handles are the driver's.
    pub(crate) fn see_array(&self, surface: u64, array: u64) -> Result<(), Code> {
        call!(self.array.cuSurfRefSetArray(surface as sys::CUsurfref, array as sys::CUarray, 0))
    }

    /// Changes a setting of a texture reference; handles are the driver's. For memory, returns the offset in bytes at which the texture
    /// begins.
    pub(crate) fn set_texture(&self, texture: u64, setting: &Setting) -> Result<Option<u64>, Code> {
        let t = texture as sys::CUtexref;
        match *setting {
            Setting::Resource(r) => return self.see(t, &r),
            Setting::Format([format, channels]) => call!(self.array.cuTexRefSetFormat(t, format, channels as c_int)),
            Setting::Outside([dimension, mode]) => call!(self.array.cuTexRefSetAddressMode(t, dimension as c_int, mode)),
            Setting::Filter(mode) => call!(self.array.cuTexRefSetFilterMode(t, mode)),
            Setting::LevelFilter(mode) => call!(self.array.cuTexRefSetMipmapFilterMode(t, mode)),
            Setting::LevelBias(bias) => call!(self.array.cuTexRefSetMipmapLevelBias(t, f32::from_bits(bias))),
            Setting::LevelClamp(clamp) => {
                let [low, high] = clamp.map(f32::from_bits);
                call!(self.array.cuTexRefSetMipmapLevelClamp(t, low, high))
            }
            Setting::Anisotropy(most) => call!(self.array.cuTexRefSetMaxAnisotropy(t, most)),
            Setting::Border(colour) => {
                let mut colour = colour.map(f32::from_bits);
                call!(self.array.cuTexRefSetBorderColor(t, colour.as_mut_ptr()))
            }
            Setting::Flags(flags) => call!(self.array.cuTexRefSetFlags(t, flags)),
        }?;
        Ok(None)
    }

    fn see(&self, t: sys::CUtexref, r: &Resource) -> Result<Option<u64>, Code> {
        match r.kind {
            OF_ARRAY => call!(self.array.cuTexRefSetArray(t, r.array as sys::CUarray, r.flags))?,
            OF_MIPMAP => {
                call!(self.array.cuTexRefSetMipmappedArray(t, r.array as sys::CUmipmappedArray, r.flags))?;
            }
            OF_MEMORY => {
                let mut offset = 0usize;
                call!(self.array.cuTexRefSetAddress_v2(&raw mut offset, t, r.address, r.width as usize))?;
                return Ok(Some(offset as u64));
            }
            OF_ROWS => {
                let shape =
                    Shape { width: r.width, height: r.height, format: r.format, channels: r.channels, ..Shape::default() };
                let mut what = MaybeUninit::<sys::CUDA_ARRAY_DESCRIPTOR>::uninit();
                write_shape(OutPtr::null(), OutPtr::of_room(&mut what), &shape)?;
                call!(self.array.cuTexRefSetAddress2D_v3(t, what.as_ptr(), r.address, r.pitch as usize))?;
            }
            _ => return Err(code::ERROR_INVALID_VALUE),
        }
        Ok(None)
    }
}
