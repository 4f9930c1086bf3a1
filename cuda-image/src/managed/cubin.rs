//! Managed variables of cubins.
//!
//! A bit of the symbol marks them. Code gets their addresses by relocations: of 8-byte words in constant memory or
//! among the values of variables, or of the halves that instructions contain. The address is written where each
//! relocation points, the relocation is removed (a 580 driver rejects relocations without an effect), and the symbol
//! becomes that of an ordinary, unused variable.

use super::super::cubin::{CUDA_OBJECT, MANAGED, OBJECT, REL, RELA, SYMBOL, SYMTAB};
use super::super::size::{self, SECTION_ROW};
use super::super::source::{u16_at, u32_at, u64_at};
use super::variables::{Addresses, MAX_INITIAL, Managed, ManagedError, Variables};

// Section types of the second form of the code, from which a driver may compile anew.
const SECOND_RELA: u32 = 0x7000_0082;
const SECOND_SYMTAB: u32 = 0x7000_0085;

/// Offset and size of the number in an instruction.
const HALF: (u64, u64) = (4, 4);

/// The part of an address that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Whole,
    /// Its lower or upper half, contained in an instruction.
    Low,
    High,
}

/// The part that a relocation writes. Instructions of the second form are compressed: relocations into them are not
/// supported.
fn field(kind: u32) -> Option<Field> {
    Some(match kind {
        // R_CUDA_64, R_CUDA_G64 and the equivalent of the first one in the second form.
        2 | 4 | 0x1_0002 => Field::Whole,
        // R_CUDA_ABS32_LO_32, R_CUDA_ABS32_HI_32
        0x38 => Field::Low,
        0x39 => Field::High,
        _ => return None,
    })
}

/// A row of the section table.
#[derive(Debug, Clone, Copy)]
struct Section {
    /// Offset of this row.
    row: u64,
    kind: u32,
    at: u64,
    bytes: u64,
    link: u32,
    info: u32,
}

fn sections(bytes: &[u8]) -> Result<Vec<Section>, ManagedError> {
    let tables = size::elf_tables(bytes)?;
    let (at, count) = tables.sections;
    let table = slice(bytes, at, count * SECTION_ROW).ok_or(ManagedError::Damaged("its section table is cut off"))?;
    let read = |(number, row): (u64, &[u8])| Section {
        row: at + number * SECTION_ROW,
        kind: u32_at(row, 0x04),
        at: u64_at(row, 0x18),
        bytes: u64_at(row, 0x20),
        link: u32_at(row, 0x28),
        info: u32_at(row, 0x2C),
    };
    Ok((0..).zip(table.chunks_exact(SECTION_ROW as usize)).map(read).collect())
}

fn slice(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get(at..at.checked_add(usize::try_from(len).ok()?)?)
}

fn slice_mut(bytes: &mut [u8], at: u64, len: u64) -> Option<&mut [u8]> {
    let at = usize::try_from(at).ok()?;
    bytes.get_mut(at..at.checked_add(usize::try_from(len).ok()?)?)
}

/// A managed variable's symbol.
#[derive(Debug)]
struct Symbol {
    name: String,
    section: u16,
    at: u64,
    bytes: u64,
}

/// The managed variable of a symbol, if it is one.
fn symbol(bytes: &[u8], sections: &[Section], table: &Section, number: u64) -> Result<Option<Symbol>, ManagedError> {
    let cut = || ManagedError::Damaged("a symbol is not there");
    let within = number.checked_mul(SYMBOL as u64).filter(|at| at + SYMBOL as u64 <= table.bytes).ok_or_else(cut)?;
    let row = slice(bytes, table.at.saturating_add(within), SYMBOL as u64).ok_or_else(cut)?;
    if !matches!(row[4] & 0xF, OBJECT | CUDA_OBJECT) || row[5] & MANAGED == 0 {
        return Ok(None);
    }
    let names = sections.get(table.link as usize).ok_or_else(cut)?;
    let name = slice(bytes, names.at, names.bytes).and_then(|all| all.get(u32_at(row, 0) as usize..)).ok_or_else(cut)?;
    let name = name.split(|b| *b == 0).next().and_then(|n| std::str::from_utf8(n).ok()).filter(|n| !n.is_empty());
    let name = name.ok_or(ManagedError::Damaged("a managed variable has no name"))?.to_owned();
    Ok(Some(Symbol { name, section: u16_at(row, 6), at: u64_at(row, 8), bytes: u64_at(row, 16) }))
}

/// Managed variables defined in the cubin; external ones are not included.
pub(super) fn variables(bytes: &[u8]) -> Result<Variables, ManagedError> {
    let sections = sections(bytes)?;
    let mut all = Variables::new();
    let mut homes = Vec::new();
    for table in sections.iter().filter(|s| s.kind == SYMTAB) {
        for number in 0..table.bytes / SYMBOL as u64 {
            let Some(symbol) = symbol(bytes, &sections, table, number)? else { continue };
            if symbol.section == 0 {
                continue;
            }
            let home =
                sections.get(usize::from(symbol.section)).ok_or(ManagedError::Damaged("a managed variable has no section"))?;
            let inside = symbol.at.checked_add(symbol.bytes).is_some_and(|end| end <= home.bytes);
            let initial = match size::no_bytes(home.kind) {
                true => Some(&[][..]),
                false if symbol.bytes <= MAX_INITIAL => slice(bytes, home.at.saturating_add(symbol.at), symbol.bytes),
                false => None,
            };
            let initial =
                initial.filter(|_| inside).ok_or(ManagedError::Damaged("a managed variable does not fit its section"))?;
            homes.push((u32::from(symbol.section), symbol.at..symbol.at + symbol.bytes));
            all.insert(symbol.name, Managed::new(symbol.bytes, initial.to_vec())?);
        }
    }
    // An initial value that is an address is known only after the code has been loaded, which is too late.
    for table in sections.iter().filter(|s| matches!(s.kind, RELA | REL)) {
        let row = if table.kind == REL { 16 } else { 24 };
        let rows = slice(bytes, table.at, table.bytes).ok_or(ManagedError::Damaged("relocations are cut off"))?;
        if rows.chunks_exact(row).any(|r| homes.iter().any(|(home, range)| *home == table.info && range.contains(&u64_at(r, 0))))
        {
            return Err(ManagedError::InitialAddress);
        }
    }
    Ok(all)
}

/// Returns the cubin with its managed variables at these addresses.
pub(super) fn place(original: &[u8], at: &Addresses) -> Result<Vec<u8>, ManagedError> {
    let sections = sections(original)?;
    let mut bytes = original.to_vec();
    for table in &sections {
        let row = match table.kind {
            RELA | SECOND_RELA => 24,
            REL => 16,
            _ => continue,
        };
        let symbols = sections.get(table.link as usize).ok_or(ManagedError::Damaged("relocations without symbols"))?;
        let mut kept = Vec::new();
        for number in 0..table.bytes / row {
            let row_at = table.at.saturating_add(number * row);
            let r = slice(original, row_at, row).ok_or(ManagedError::Damaged("relocations are cut off"))?;
            let (place, info) = (u64_at(r, 0), u64_at(r, 8));
            let Some(symbol) = symbol(original, &sections, symbols, info >> 32)? else {
                kept.extend_from_slice(r);
                continue;
            };
            let kind = info as u32;
            let field = field(kind).ok_or_else(|| ManagedError::Relocation { kind, name: symbol.name.clone() })?;
            let address = *at.get(&symbol.name).ok_or_else(|| ManagedError::NoAddress(symbol.name.clone()))?;
            let target = sections.get(table.info as usize).filter(|t| !size::no_bytes(t.kind));
            let target = target.ok_or(ManagedError::Damaged("a relocation of a section that has no bytes"))?;
            let (skip, width) = match field {
                Field::Whole => (0, 8),
                Field::Low | Field::High => HALF,
            };
            let inside = place.checked_add(skip + width).is_some_and(|end| end <= target.bytes);
            let there = slice_mut(&mut bytes, target.at.saturating_add(place).saturating_add(skip), width);
            let there = there.filter(|_| inside).ok_or(ManagedError::Damaged("a relocation lies outside of its section"))?;
            let addend = match (table.kind, field) {
                (REL, Field::Whole) => u64_at(there, 0),
                // A half does not contain the full addend.
                (REL, _) if u32_at(there, 0) != 0 => return Err(ManagedError::HalfAddend(symbol.name)),
                (REL, _) => 0,
                _ => u64_at(r, 16),
            };
            let value = address.wrapping_add(addend);
            match field {
                Field::Whole => there.copy_from_slice(&value.to_le_bytes()),
                Field::Low => there.copy_from_slice(&(value as u32).to_le_bytes()),
                Field::High => there.copy_from_slice(&((value >> 32) as u32).to_le_bytes()),
            }
        }
        let room = slice_mut(&mut bytes, table.at, kept.len() as u64).ok_or(ManagedError::Damaged("relocations are cut off"))?;
        room.copy_from_slice(&kept);
        let size = slice_mut(&mut bytes, table.row + 0x20, 8).ok_or(ManagedError::Damaged("its section table is cut off"))?;
        size.copy_from_slice(&(kept.len() as u64).to_le_bytes());
    }
    for table in sections.iter().filter(|s| matches!(s.kind, SYMTAB | SECOND_SYMTAB)) {
        for number in 0..table.bytes / SYMBOL as u64 {
            if symbol(original, &sections, table, number)?.is_some() {
                let row = slice_mut(&mut bytes, table.at + number * SYMBOL as u64, SYMBOL as u64);
                row.into_iter().for_each(|row| row[5] &= !MANAGED);
            }
        }
    }
    Ok(bytes)
}
