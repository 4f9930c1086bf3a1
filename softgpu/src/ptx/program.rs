//! A module placed in memory, and the map from code addresses to functions.

use std::sync::Arc;

use super::code::{Function, Target};
use super::lanes::{LANES, Row};
use super::{Image, Placement};

/// Bytes of code address space that one function takes.
pub(crate) const CODE_STRIDE: u64 = 16;

/// A linked module: every address in its code and data is final.
pub struct Program {
    /// The module; its code has been patched.
    pub image: Image,
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
        for function in &mut image.code {
            for &(index, target, addend) in &function.relocs {
                let address = resolve(&placement, target).wrapping_add_signed(addend);
                function.consts64[index] = Row([address; LANES]);
            }
        }
        Arc::new(Program { image, placement })
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

    /// Size of the code address space from `Placement::code_base` on: 16 bytes a function, at least 16.
    pub fn code_bytes(&self) -> u64 {
        CODE_STRIDE * (self.image.functions.len() as u64).max(1)
    }

    /// The code address of a function.
    pub fn function_address(&self, function: usize) -> u64 {
        resolve(&self.placement, Target::Function(function))
    }

    pub(crate) fn functions(&self) -> &[Function] {
        &self.image.code
    }
}

fn resolve(placement: &Placement, target: Target) -> u64 {
    match target {
        Target::Global(index) => placement.globals.get(index).copied().unwrap_or(0),
        Target::Function(index) => placement.code_base.wrapping_add(CODE_STRIDE * index as u64),
    }
}

/// Which function lies at a code address, over all modules of a context.
#[derive(Clone, Debug, Default)]
pub struct CodeMap(Vec<Arc<Program>>);

impl CodeMap {
    /// Takes the loaded modules, whose code address spaces must not overlap.
    pub fn new(programs: impl IntoIterator<Item = Arc<Program>>) -> CodeMap {
        let mut all: Vec<_> = programs.into_iter().collect();
        all.sort_by_key(|p| p.placement.code_base);
        CodeMap(all)
    }

    /// The device function at `address`, if one begins there.
    pub(crate) fn find(&self, address: u64) -> Option<(&Program, &Function)> {
        let next = self.0.partition_point(|p| p.placement.code_base <= address);
        let program = self.0.get(next.checked_sub(1)?)?;
        let offset = address - program.placement.code_base;
        let index = usize::try_from(offset / CODE_STRIDE).ok()?;
        if !offset.is_multiple_of(CODE_STRIDE) || program.image.functions.get(index)?.is_kernel {
            return None;
        }
        Some((program, program.functions().get(index)?))
    }
}
