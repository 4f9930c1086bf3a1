//! Reads ELF files of device code.

use super::kind::{ImageError, Param, Result};
use super::size;
use super::source::{u16_at, u32_at, u64_at};
use std::collections::HashMap;

/// Section type of a symbol table, and the bytes of a symbol.
pub(super) const SYMTAB: u32 = 2;
pub(super) const SYMBOL: usize = 24;
/// Section types of relocations with and without an addend.
pub(super) const RELA: u32 = 4;
pub(super) const REL: u32 = 9;
/// The section types, and the bytes of a relocation.
const WITH_ADDEND: (u32, usize) = (RELA, 24);
const WITHOUT_ADDEND: (u32, usize) = (REL, 16);
/// Symbol types of variables: the ordinary one, and the vendor's, which relocatable cubins use.
pub(super) const OBJECT: u8 = 1;
pub(super) const CUDA_OBJECT: u8 = 13;
const FUNCTION: u8 = 2;
const SECTION: u8 = 3;
/// Symbol types of texture, sampler and surface references.
const REFERENCES: std::ops::RangeInclusive<u8> = 10..=12;
/// Bit of a variable's `st_other`: a managed variable, which host and GPU use at one address.
pub(super) const MANAGED: u8 = 0x04;
/// Bit of a symbol's `st_other`: the function is a kernel.
const ENTRY_POINT: u8 = 0x10;
/// Section type of `.nv.info` and `.nv.info.<kernel>`.
const INFO: u32 = 0x7000_0000;
/// Maximum length of a name; a longer one is damaged.
const MAX_NAME: usize = 1 << 16;

struct Section<'a> {
    name: &'a str,
    kind: u32,
    link: u32,
    body: &'a [u8],
}

/// A cubin whose section table has been read.
pub(super) struct Cubin<'a> {
    sections: Vec<Section<'a>>,
    /// Attribute records by kernel, since libraries have thousands of kernels in one cubin.
    info: HashMap<&'a str, &'a [u8]>,
}

/// The kinds of symbols that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol<'a> {
    /// A variable in global or constant memory.
    Variable(&'a str),
    /// A kernel.
    Kernel(&'a str),
    /// Any other function, defined here or external.
    Function(&'a str),
}

/// Compute capability (10 × major + minor) of a cubin; 0 if its header is incomplete.
pub(super) fn sm(bytes: &[u8]) -> u32 {
    // Since toolkit 13 (ELF OS/ABI 0x41) the number is in the second byte of e_flags, previously in the first.
    let flags = u32_at(bytes, 0x30);
    if bytes.get(7) == Some(&0x41) { flags >> 8 & 0xFF } else { flags & 0xFF }
}

impl<'a> Cubin<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Cubin<'a>> {
        if !bytes.starts_with(b"\x7fELF") {
            return Err(ImageError::Damaged { what: "ELF magic", at: 0 });
        }
        let tables = size::elf_tables(bytes)?;
        let (at, count) = tables.sections;
        let table = range(bytes, at, count * size::SECTION_ROW).ok_or(ImageError::Damaged { what: "section table", at })?;
        let rows: Vec<&[u8]> = table.chunks_exact(size::SECTION_ROW as usize).collect();
        let body = |row: &[u8]| match size::no_bytes(u32_at(row, 0x04)) {
            true => Some(&[][..]),
            false => range(bytes, u64_at(row, 0x18), u64_at(row, 0x20)),
        };
        let names = usize::try_from(tables.names).ok().and_then(|n| rows.get(n)).and_then(|row| body(row)).unwrap_or(&[]);
        let mut sections = Vec::with_capacity(rows.len());
        for (n, row) in rows.iter().enumerate() {
            sections.push(Section {
                name: string(names, u32_at(row, 0)).unwrap_or(""),
                kind: u32_at(row, 0x04),
                link: u32_at(row, 0x28),
                body: body(row)
                    .ok_or(ImageError::Damaged { what: "body of a section", at: at + n as u64 * size::SECTION_ROW })?,
            });
        }
        let info = sections
            .iter()
            .filter(|s| s.kind == INFO)
            .filter_map(|s| Some((s.name.strip_prefix(".nv.info.")?, s.body)))
            .collect();
        Ok(Cubin { sections, info })
    }

    /// All relevant symbols.
    pub(super) fn symbols(&self) -> impl Iterator<Item = Symbol<'a>> {
        let tables = self.sections.iter().filter(|s| s.kind == SYMTAB);
        tables.flat_map(move |table| {
            let names = self.sections.get(table.link as usize).map_or(&[][..], |s| s.body);
            table.body.chunks_exact(SYMBOL).filter_map(move |row| {
                let name = string(names, u32_at(row, 0)).filter(|n| !n.is_empty())?;
                match row[4] & 0xF {
                    OBJECT | CUDA_OBJECT => {
                        let home = self.sections.get(usize::from(u16_at(row, 6)))?.name;
                        variable_memory(home).then_some(Symbol::Variable(name))
                    }
                    FUNCTION if row[5] & ENTRY_POINT != 0 => Some(Symbol::Kernel(name)),
                    FUNCTION => Some(Symbol::Function(name)),
                    _ => None,
                }
            })
        })
    }

    /// Whether there are managed variables.
    pub(super) fn has_managed(&self) -> bool {
        let tables = self.sections.iter().filter(|s| s.kind == SYMTAB);
        let mut rows = tables.flat_map(|table| table.body.chunks_exact(SYMBOL));
        rows.any(|row| matches!(row[4] & 0xF, OBJECT | CUDA_OBJECT) && row[5] & MANAGED != 0)
    }

    /// Whether a function refers to one with a given name: the linker records everything that a kernel may call,
    /// directly or indirectly.
    pub(super) fn refers(&self, function: &str, to: &[&str]) -> bool {
        let Some(records) = self.info.get(function) else { return false };
        let symbols = self.sections.iter().filter(|s| s.kind == SYMTAB);
        let named = |number: u32| {
            symbols.clone().any(|table| {
                let names = self.sections.get(table.link as usize).map_or(&[][..], |s| s.body);
                let row = table.body.chunks_exact(SYMBOL).nth(number as usize);
                row.and_then(|row| string(names, u32_at(row, 0))).is_some_and(|name| to.contains(&name))
            })
        };
        let mut found = false;
        attributes(records, |attribute, value| {
            found |= attribute == EXTERNS && value.chunks_exact(4).any(|number| named(u32_at(number, 0)));
        });
        found
    }

    /// Whether there are texture or surface references.
    pub(super) fn has_references(&self) -> bool {
        let tables = self.sections.iter().filter(|s| s.kind == SYMTAB);
        let mut rows = tables.flat_map(|table| table.body.chunks_exact(SYMBOL));
        rows.any(|row| REFERENCES.contains(&(row[4] & 0xF)))
    }

    /// Whether a kernel uses texture or surface references: their numbers are stored beside its parameters, or in its
    /// code.
    pub(super) fn uses_references(&self, kernel: &str) -> bool {
        self.sections.iter().any(|s| {
            let Some((_, bytes)) = [WITH_ADDEND, WITHOUT_ADDEND].into_iter().find(|(kind, _)| *kind == s.kind) else {
                return false;
            };
            let of = s.name.strip_prefix(".rela").or_else(|| s.name.strip_prefix(".rel")).unwrap_or("");
            let of = of.strip_prefix(".nv.constant0.").or_else(|| of.strip_prefix(".text."));
            let symbols = self.sections.get(s.link as usize).map_or(&[][..], |s| s.body);
            let refers = |row: &[u8]| {
                let symbol = symbols.chunks_exact(SYMBOL).nth(u32_at(row, 12) as usize);
                symbol.is_some_and(|symbol| REFERENCES.contains(&(symbol[4] & 0xF)))
            };
            of == Some(kernel) && s.body.chunks_exact(bytes).any(refers)
        })
    }

    /// Whether relocations of code or variables refer to functions other than the one that they are in.
    pub(super) fn refers_to_functions(&self) -> bool {
        self.sections.iter().any(|s| {
            let Some((_, bytes)) = [WITH_ADDEND, WITHOUT_ADDEND].into_iter().find(|(kind, _)| *kind == s.kind) else {
                return false;
            };
            let of = s.name.strip_prefix(".rela").or_else(|| s.name.strip_prefix(".rel")).unwrap_or("");
            let symbols = self.sections.get(s.link as usize).map_or(&[][..], |s| s.body);
            let is_function = |row: &[u8]| {
                let symbol = symbols.chunks_exact(SYMBOL).nth(u32_at(row, 12) as usize);
                symbol.is_some_and(|symbol| match symbol[4] & 0xF {
                    FUNCTION => true,
                    SECTION => {
                        let home = self.sections.get(usize::from(u16_at(symbol, 6))).map_or("", |s| s.name);
                        // A function refers to places of its own, such as those of a jump table; no other code does.
                        home.strip_prefix(".text.").is_some_and(|home| owner(of) != Some(home))
                    }
                    _ => false,
                })
            };
            // What debuggers and unwinders read is not the program's.
            let is_memory = of.starts_with(".text") || of.starts_with(".nv.global") || of.starts_with(".nv.constant");
            is_memory && s.body.chunks_exact(bytes).any(is_function)
        })
    }

    /// Kernels and other functions whose machine code for `sm` contains atomic operations with system scope.
    pub(super) fn system_atomics(&self, sm: u32) -> impl Iterator<Item = &'a str> {
        let code = self.sections.iter().filter_map(|s| Some((s.name.strip_prefix(".text.")?, s.body)));
        code.filter(move |(_, body)| body.chunks_exact(INSTRUCTION).any(|i| is_system_atomic(i, sm))).map(|(name, _)| name)
    }

    /// Parameters of a kernel, in order; `None` if the cubin does not describe this kernel.
    pub(super) fn params(&self, kernel: &str) -> Option<Vec<Param>> {
        params(self.info.get(kernel)?)
    }
}

/// The function whose code or constants a section holds.
fn owner(section: &str) -> Option<&str> {
    section.strip_prefix(".text.").or_else(|| section.strip_prefix(".nv.constant")?.split_once('.').map(|(_, function)| function))
}

/// Whether a section holds variables that the program can look up by name. Bank 0 holds parameters.
fn variable_memory(section: &str) -> bool {
    section.starts_with(".nv.global")
        || section.strip_prefix(".nv.constant").is_some_and(|bank| !matches!(bank.as_bytes(), [b'0'] | [b'0', b'.', ..]))
}

/// Bytes of an instruction since compute capability 7.0.
const INSTRUCTION: usize = 16;

/// Whether an instruction is an atomic operation on global memory with system scope. Derived from the output of ptxas
/// 13.0 for `atom` and `red` of every scope, type and operation for 7.5 to 12.0: the operation is in the lowest nine
/// bits, the scope in bits 77 to 79. Other machine code is not examined.
fn is_system_atomic(instruction: &[u8], sm: u32) -> bool {
    let scope = match sm {
        70..80 => 3,
        80..130 => 2,
        _ => return false,
    };
    // Generic addresses, those that compare and exchange, without result; global addresses of floats with and without result, of integers,
    // that compare and exchange.
    let atomic = matches!(u16_at(instruction, 0) & 0x1ff, 0x18a | 0x18b | 0x18e | 0x1a3 | 0x1a6 | 0x1a8 | 0x1a9);
    atomic && u16_at(instruction, 8) >> 13 == scope
}

/// Attribute: numbers of the external symbols that a function calls.
const EXTERNS: u8 = 0x0f;

/// Passes each attribute record with a value to `each`; `None` if one is truncated.
fn attributes<'a>(mut records: &'a [u8], mut each: impl FnMut(u8, &'a [u8])) -> Option<()> {
    const SIZED: u8 = 4;
    while let [format, attribute, low, high, rest @ ..] = records {
        let mut len = 0;
        if *format == SIZED {
            len = usize::from(u16::from_le_bytes([*low, *high]));
            each(*attribute, rest.get(..len)?);
        }
        // Records start at multiples of four.
        records = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(())
}

/// Reads the attribute records of a kernel.
fn params(records: &[u8]) -> Option<Vec<Param>> {
    const KPARAM_INFO: u8 = 0x17;
    const KPARAM_INFO_V2: u8 = 0x45;
    let mut found: Vec<(u16, Param)> = Vec::new();
    attributes(records, |attribute, value| {
        let size = match attribute {
            KPARAM_INFO if value.len() >= 12 => u32_at(value, 8) >> 18,
            KPARAM_INFO_V2 if value.len() >= 12 => u32::from(u16_at(value, 8)),
            _ => return,
        };
        found.push((u16_at(value, 4), Param { offset: u32::from(u16_at(value, 6)), size }));
    })?;
    found.sort_unstable_by_key(|(ordinal, _)| *ordinal);
    let in_order = found.iter().enumerate().all(|(n, (ordinal, _))| n == usize::from(*ordinal));
    in_order.then(|| found.into_iter().map(|(_, p)| p).collect())
}

fn range(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
    bytes.get(at..at.checked_add(len)?)
}

/// The zero-terminated string at an offset of a string table.
fn string(table: &[u8], at: u32) -> Option<&str> {
    let tail = table.get(at as usize..)?;
    let len = tail.iter().take(MAX_NAME).position(|b| *b == 0)?;
    std::str::from_utf8(&tail[..len]).ok()
}

#[cfg(test)]
mod tests {
    use super::is_system_atomic;

    #[test]
    fn atomics_of_the_system_are_told_from_others() {
        let is = |low: u64, high: u64, sm| {
            let mut instruction = [0; 16];
            instruction[..8].copy_from_slice(&low.to_le_bytes());
            instruction[8..].copy_from_slice(&high.to_le_bytes());
            is_system_atomic(&instruction, sm)
        };
        // What ptxas 13.0 makes: of `.sys`, then of the same with `.gpu`, `.cta` and in shared memory; last of no atomic operation.
        assert!(is(0x0000_0000_ff00_798e, 0x0001_e200_0c11_6104, 75), "red");
        assert!(is(0x0000_0007_0207_09a8, 0x002e_a200_081f_41c4, 90), "atom");
        assert!(is(0x0000_0004_0205_73a9, 0x001e_a200_001f_4105, 90), "compare and exchange");
        assert!(is(0x0000_0009_04ff_198a, 0x002f_e200_081f_41c4, 90), "a generic address");
        assert!(is(0x0000_0008_0405_738b, 0x000e_a800_001f_4109, 80), "a generic address, compare and exchange");
        assert!(is(0x0000_0005_0200_79a6, 0x001f_e200_0c11_5384, 90), "red of floats");
        assert!(is(0x8000_0005_0205_79a3, 0x001e_a800_0c1f_5304, 100), "atom of floats");
        assert!(is(0x0000_0005_0200_098e, 0x004f_e200_0c13_4104, 120), "red");
        assert!(!is(0x0000_0005_0200_098e, 0x002f_e800_0c10_e184, 90) && !is(0x0000_0000_ff00_098e, 0x000f_e800_0c11_4104, 75));
        assert!(!is(0x0000_0007_0207_09a8, 0x002e_a200_081e_a1c4, 90) && !is(0x0000_0000_ff07_098c, 0x000e_a200_0800_0004, 90));
        assert!(!is(0x0000_0000_0000_79ab, 0x000f_c000_0000_0000, 90), "a fence");
        assert!(!is(0x0000_0007_0207_09a8, 0x002e_a200_081f_41c4, 60), "machine code of another kind");
    }
}
