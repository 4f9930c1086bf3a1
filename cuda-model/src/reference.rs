//! Texture and surface references: variables of a module that are bound by name. Their settings as plain values, and
//! the driver's answers about them, for the recorder and softgpu. The accepted values and the answers are those
//! observed on an H200 with driver 580.

use cuda_api::array::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, Sampling};
use cuda_api::code::{self, Code};
use cuda_api::reference::{OVERRIDE_FORMAT, Setting};

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// Flags that a reference accepts. Seamless cube maps, which objects support, are not among them.
const FLAGS: u32 = 0x3f;
/// `CU_TR_ADDRESS_MODE_CLAMP`
const CLAMP: u32 = 1;
/// `CU_TR_ADDRESS_MODE_BORDER`, the last one.
const BORDER: u32 = 3;
/// Required alignment of texture memory; otherwise the texture starts at the aligned address before.
pub const ALIGNED: u64 = 512;
/// `CU_PARAM_TR_DEFAULT`: the only unit of `cuParamSetTexRef`.
const DEFAULT_UNIT: i32 = -1;

/// The state of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// Its resource, if any.
    pub resource: Option<Resource>,
    /// `CUarray_format` and channels.
    pub format: [u32; 2],
    /// Its sampling parameters.
    pub sampling: Sampling,
}

impl Default for Reference {
    fn default() -> Self {
        // `CU_AD_FORMAT_FLOAT`
        Reference { resource: None, format: [0x20, 1], sampling: Sampling { address: [CLAMP; 3], ..Sampling::default() } }
    }
}

impl Reference {
    /// Changes a setting. The caller checks the memory or the array. As in the driver, many meaningless values are
    /// accepted.
    ///
    /// # Errors
    /// `INVALID_VALUE`: the driver rejects this value.
    pub fn set(&mut self, setting: &Setting) -> Result<(), Code> {
        let s = &mut self.sampling;
        match *setting {
            Setting::Resource(r) => {
                let brings = if matches!(r.kind, OF_ARRAY | OF_MIPMAP) { r.flags == OVERRIDE_FORMAT } else { r.kind == OF_ROWS };
                if brings {
                    self.format = [r.format, r.channels];
                }
                self.resource = Some(r);
            }
            Setting::Format([format, channels]) => {
                if channels == 3 || channels as i32 > 4 {
                    return Err(INVALID);
                }
                self.format = [format, channels];
            }
            Setting::Outside([dimension, mode]) => {
                let kept = s.address.get_mut(dimension as usize).ok_or(INVALID)?;
                *kept = if mode <= BORDER { mode } else { CLAMP };
            }
            Setting::LevelFilter(mode) if mode > 1 => return Err(INVALID),
            Setting::Filter(mode) => s.filter = mode,
            Setting::LevelFilter(mode) => s.mip_filter = mode,
            Setting::LevelBias(bias) => s.mip_bias = bias,
            Setting::LevelClamp(clamp) => s.mip_clamp = clamp,
            Setting::Anisotropy(most) => s.anisotropy = most,
            Setting::Border(colour) => s.border = colour,
            Setting::Flags(flags) if flags & !FLAGS != 0 => return Err(INVALID),
            Setting::Flags(flags) => s.flags = flags,
        }
        Ok(())
    }

    /// The array, or with `OF_MIPMAP` the mipmapped array, that it is bound to.
    ///
    /// # Errors
    /// `INVALID_VALUE`: it is bound to something else, or to nothing.
    pub fn array(&self, kind: u32) -> Result<u64, Code> {
        let seen = self.resource.filter(|r| r.kind == kind && matches!(kind, OF_ARRAY | OF_MIPMAP));
        seen.map(|r| r.array).ok_or(INVALID)
    }

    /// The aligned address of the memory that it is bound to.
    ///
    /// # Errors
    /// `INVALID_VALUE`: it is bound to something else, or to nothing.
    pub fn address(&self) -> Result<u64, Code> {
        let r = self.resource.ok_or(INVALID)?;
        let (address, _) = r.memory().ok_or(INVALID)?;
        Ok(if r.kind == OF_MEMORY { address - address % ALIGNED } else { address })
    }

    /// Checks whether it can be a parameter of a function (`cuParamSetTexRef`).
    ///
    /// # Errors
    /// `INVALID_VALUE`: it is not bound, or the unit does not exist.
    pub fn as_parameter(&self, unit: i32) -> Result<(), Code> {
        if unit == DEFAULT_UNIT && self.resource.is_some() { Ok(()) } else { Err(INVALID) }
    }

    /// The `CUaddress_mode` of a dimension.
    ///
    /// # Errors
    /// `INVALID_VALUE`: there is no such dimension.
    pub fn outside(&self, dimension: i32) -> Result<u32, Code> {
        usize::try_from(dimension).ok().and_then(|d| self.sampling.address.get(d).copied()).ok_or(INVALID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_take_changes_nothing() {
        let mut r = Reference::default();
        for wrong in [
            Setting::Format([1, 3]),
            Setting::Format([1, 5]),
            Setting::Outside([3, 0]),
            Setting::LevelFilter(2),
            Setting::Flags(0x40),
        ] {
            assert_eq!(r.set(&wrong), Err(INVALID), "{wrong:?}");
        }
        assert_eq!((r, r.as_parameter(-1)), (Reference::default(), Err(INVALID)));
        r.set(&Setting::Outside([2, 3])).unwrap();
        r.set(&Setting::Outside([0, 4])).unwrap();
        assert_eq!([r.outside(0), r.outside(1), r.outside(2)], [Ok(1), Ok(1), Ok(3)]);
        assert_eq!((r.outside(-1), r.outside(3)), (Err(INVALID), Err(INVALID)));
        r.set(&Setting::Format([99, u32::MAX])).unwrap();
        assert_eq!(r.format, [99, u32::MAX]);
        assert_eq!((r.array(OF_ARRAY), r.address()), (Err(INVALID), Err(INVALID)));
        r.set(&Setting::Resource(Resource { kind: OF_ARRAY, array: 7, format: 1, channels: 4, flags: 1, ..Resource::default() }))
            .unwrap();
        assert_eq!((r.array(OF_ARRAY), r.array(OF_MIPMAP), r.address(), r.format), (Ok(7), Err(INVALID), Err(INVALID), [1, 4]));
        r.set(&Setting::Resource(Resource { kind: OF_MEMORY, address: 0x1203, width: 4, ..Resource::default() })).unwrap();
        assert_eq!((r.address(), r.array(OF_ARRAY)), (Ok(0x1200), Err(INVALID)));
        assert_eq!((r.as_parameter(-1), r.as_parameter(0)), (Ok(()), Err(INVALID)));
    }
}
