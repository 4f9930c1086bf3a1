//! A module placed in memory.

use std::sync::Arc;

use super::image::Image;
use super::machine::Code;
use super::operand::{LANES, Row};
use super::symbol::Target;

/// Addresses chosen by the driver.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Address of each of `Image::globals`.
    pub globals: Vec<u64>,
}

/// A linked module: every address in its code and data is final.
pub struct Program {
    /// The module, without its code.
    pub image: Image,
    /// Its code, with all addresses resolved.
    pub(crate) code: Arc<Code>,
    /// Where the driver put it.
    pub placement: Placement,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("placement", &self.placement).field("functions", &self.image.functions.len()).finish()
    }
}

impl Program {
    /// Resolves the symbols in the code. Globals without an address in `placement` count as placed at 0, where every
    /// access faults.
    pub fn link(mut image: Image, placement: Placement) -> Arc<Program> {
        let mut functions = std::mem::take(&mut image.code);
        for function in &mut functions {
            for &(index, target, addend) in &function.relocs {
                let address = resolve(&placement, target).wrapping_add_signed(addend);
                function.consts64[index] = Row([address; LANES]);
            }
        }
        let code = Arc::new(Code { functions });
        Arc::new(Program { image, code, placement })
    }

    /// The initial contents of a global with all addresses in it resolved; the driver writes them to memory.
    /// Empty if there is no such global.
    pub fn init_bytes(&self, global: usize) -> Vec<u8> {
        let Some(var) = self.image.globals.get(global) else {
            return Vec::new();
        };
        let mut bytes = var.init.clone();
        for reloc in &var.relocs {
            let address = resolve(&self.placement, reloc.target).wrapping_add_signed(reloc.addend);
            let start = usize::try_from(reloc.offset).unwrap_or(usize::MAX);
            if let Some(slot) = start.checked_add(8).and_then(|end| bytes.get_mut(start..end)) {
                slot.copy_from_slice(&address.to_le_bytes());
            }
        }
        bytes
    }
}

fn resolve(placement: &Placement, target: Target) -> u64 {
    match target {
        Target::Global(index) => placement.globals.get(index).copied().unwrap_or(0),
        Target::Function(index) => Code::pointer_to(index),
    }
}
