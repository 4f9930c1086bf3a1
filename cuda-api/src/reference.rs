//! Encoded settings of texture and surface references, which are variables of a module that are bound by name.
//!
//! A setting applies to later launches. Each replaces the last one of its [`slot`](Setting::slot), so the last value of
//! each slot, applied in the order in which they were set, reproduces the state of a reference.

use crate::array::Resource;
use crate::wire::{Short, Wire};
use crate::wire_struct;

/// `CU_TRSA_OVERRIDE_FORMAT`, as flags of a resource: the array's format is used. Without it the reference keeps its
/// format, which is how CUDA's runtime binds arrays.
pub const OVERRIDE_FORMAT: u32 = 1;
/// One setting of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// The resource; flags: [`OVERRIDE_FORMAT`]. Arrays and pitched memory include their format.
    Resource(Resource),
    /// `CUarray_format` and channels of memory.
    Format([u32; 2]),
    /// A dimension and its `CUaddress_mode`.
    Outside([u32; 2]),
    /// `CUfilter_mode`
    Filter(u32),
    /// `CUfilter_mode` between levels.
    LevelFilter(u32),
    /// Bits of the level bias.
    LevelBias(u32),
    /// Bits of the lowest and the highest level.
    LevelClamp([u32; 2]),
    /// Maximum anisotropy.
    Anisotropy(u32),
    /// Bits of the border colour.
    Border([u32; 4]),
    /// `CU_TRSF_…`
    Flags(u32),
}

/// Identifies which earlier setting a setting replaces.
pub type Slot = u8;

impl Setting {
    /// Its slot among the settings of a reference.
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
    /// Changes a setting of a reference.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ReferenceSet {
        /// Handle of the reference.
        pub reference: u64,
        /// The setting.
        pub setting: Setting,
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
}
