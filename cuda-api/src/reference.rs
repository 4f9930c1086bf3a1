//! Texture and surface references: variables of a module that are bound by name. Their settings as plain values, and what the driver
//! says of them: in the job's process and in softgpu alike. What it takes and answers is what an H200 with driver 580 was seen to.
//!
//! A setting counts for the launches that follow. Each replaces the last one of its [`slot`](Setting::slot), so the last values,
//! set in the order in which they were set last, make a reference what it is.

use crate::array::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, Sampling};
use crate::code::{self, Code};
use crate::wire::{Short, Wire};
use crate::wire_struct;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// `CU_TRSA_OVERRIDE_FORMAT`, as flags of a resource: the array brings its format. Without it the reference keeps its own, which is how
/// CUDA's runtime binds arrays.
pub const OVERRIDE_FORMAT: u32 = 1;
/// Flags that a reference takes. Seamless cubes, which objects have, are not among them.
const FLAGS: u32 = 0x3f;
/// `CU_TR_ADDRESS_MODE_CLAMP`
const CLAMP: u32 = 1;
/// `CU_TR_ADDRESS_MODE_BORDER`, the last one.
const BORDER: u32 = 3;
/// Memory that a texture sees begins at a multiple of this, or is seen from the one before on.
pub const ALIGNED: u64 = 512;
/// `CU_PARAM_TR_DEFAULT`: the only unit of `cuParamSetTexRef`.
const DEFAULT_UNIT: i32 = -1;

/// One setting of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// What it sees; flags: [`OVERRIDE_FORMAT`]. Arrays and rows come with their format.
    Resource(Resource),
    /// `CUarray_format` and channels of memory.
    Format([u32; 2]),
    /// A dimension and its `CUaddress_mode`.
    Outside([u32; 2]),
    /// `CUfilter_mode`
    Filter(u32),
    /// `CUfilter_mode` between levels.
    LevelFilter(u32),
    /// Bits of the offset of the level.
    LevelBias(u32),
    /// Bits of the lowest and the highest level.
    LevelClamp([u32; 2]),
    /// Largest ratio of anisotropic filtering.
    Anisotropy(u32),
    /// Bits of the colour outside.
    Border([u32; 4]),
    /// `CU_TRSF_…`
    Flags(u32),
}

/// What a setting replaces the last one of.
pub type Slot = u8;

impl Setting {
    /// Its place among the settings of a reference.
    pub fn slot(&self) -> Slot {
        match self {
            Setting::Resource(_) => 0,
            Setting::Format(_) => 1,
            // There are three dimensions.
            Setting::Outside([dimension, _]) => 2 + (*dimension).min(2) as Slot,
            Setting::Filter(_) => 5,
            Setting::LevelFilter(_) => 6,
            Setting::LevelBias(_) => 7,
            Setting::LevelClamp(_) => 8,
            Setting::Anisotropy(_) => 9,
            Setting::Border(_) => 10,
            Setting::Flags(_) => 11,
        }
    }
}

impl Wire for Setting {
    fn put(&self, out: &mut Vec<u8>) {
        self.slot().put(out);
        match self {
            Setting::Resource(r) => r.put(out),
            Setting::Format(pair) | Setting::Outside(pair) | Setting::LevelClamp(pair) => pair.put(out),
            Setting::Filter(n) | Setting::LevelFilter(n) | Setting::LevelBias(n) | Setting::Anisotropy(n) | Setting::Flags(n) => {
                n.put(out)
            }
            Setting::Border(colour) => colour.put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        Ok(match Slot::get(src)? {
            0 => Setting::Resource(Wire::get(src)?),
            1 => Setting::Format(Wire::get(src)?),
            2..=4 => Setting::Outside(Wire::get(src)?),
            5 => Setting::Filter(Wire::get(src)?),
            6 => Setting::LevelFilter(Wire::get(src)?),
            7 => Setting::LevelBias(Wire::get(src)?),
            8 => Setting::LevelClamp(Wire::get(src)?),
            9 => Setting::Anisotropy(Wire::get(src)?),
            10 => Setting::Border(Wire::get(src)?),
            11 => Setting::Flags(Wire::get(src)?),
            _ => return Err(Short),
        })
    }
}

wire_struct! {
    /// Sets something of a reference.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ReferenceSet {
        /// Handle of the reference.
        pub reference: u64,
        /// What is set.
        pub setting: Setting,
    }
}

/// A reference as it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// What it sees, if anything.
    pub resource: Option<Resource>,
    /// `CUarray_format` and channels.
    pub format: [u32; 2],
    /// How it samples.
    pub sampling: Sampling,
}

impl Default for Reference {
    fn default() -> Self {
        // `CU_AD_FORMAT_FLOAT`
        Reference { resource: None, format: [0x20, 1], sampling: Sampling { address: [CLAMP; 3], ..Sampling::default() } }
    }
}

impl Reference {
    /// Sets something. Whether the memory or the array is a right one is for others to say. Much that means nothing is taken.
    ///
    /// # Errors
    /// `INVALID_VALUE`: the driver does not take this value.
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

    /// The array that it sees, or with `OF_MIPMAP` the mipmapped one.
    ///
    /// # Errors
    /// `INVALID_VALUE`: it sees something else, or nothing.
    pub fn array(&self, kind: u32) -> Result<u64, Code> {
        let seen = self.resource.filter(|r| r.kind == kind && matches!(kind, OF_ARRAY | OF_MIPMAP));
        seen.map(|r| r.array).ok_or(INVALID)
    }

    /// The address of the memory that it sees, from the aligned byte on.
    ///
    /// # Errors
    /// `INVALID_VALUE`: it sees something else, or nothing.
    pub fn address(&self) -> Result<u64, Code> {
        let r = self.resource.ok_or(INVALID)?;
        let (address, _) = r.memory().ok_or(INVALID)?;
        Ok(if r.kind == OF_MEMORY { address - address % ALIGNED } else { address })
    }

    /// Whether a function can be given it (`cuParamSetTexRef`).
    ///
    /// # Errors
    /// `INVALID_VALUE`: it sees nothing, or there is no such unit.
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
    fn settings_travel() {
        let rows = Resource {
            kind: 3,
            address: 0x200,
            format: 0x20,
            channels: 1,
            width: 7,
            height: 5,
            pitch: 64,
            ..Resource::default()
        };
        let all = [
            Setting::Resource(rows),
            Setting::Format([8, 4]),
            Setting::Outside([0, 1]),
            Setting::Outside([1, 2]),
            Setting::Outside([2, 3]),
            Setting::Filter(1),
            Setting::LevelFilter(1),
            Setting::LevelBias(9),
            Setting::LevelClamp([1, 2]),
            Setting::Anisotropy(16),
            Setting::Border([1, 2, 3, 4]),
            Setting::Flags(3),
        ];
        for (slot, setting) in all.into_iter().enumerate() {
            assert_eq!(usize::from(setting.slot()), slot);
            let mut bytes = Vec::new();
            setting.put(&mut bytes);
            assert_eq!(Setting::get(&mut &bytes[..]), Ok(setting));
            assert_eq!(Setting::get(&mut &bytes[..bytes.len() - 1]), Err(Short));
        }
        assert_eq!(Setting::get(&mut &[12u8, 0, 0, 0, 0][..]), Err(Short));
    }

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
