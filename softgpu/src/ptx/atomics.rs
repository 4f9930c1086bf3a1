//! `atom` and `red`: real atomics of the host on global memory, plain updates on shared and local memory.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::ast::Ty;
use super::falu::add_small;
use super::float::{Bf16, Half};
use super::lanes::{Exec, Word, store};
use super::machine::{Cta, Flow, Instr, Warp};
use super::mem::{Elem, Generic, Space, addresses, check_global};
use super::operand::{LANES, NONE, Src, lanes};
use super::spec::{AtomSpec, Update};
use super::window::{MemError, SHARED_WINDOW, window};

/// A 16-bit sum in each half.
fn pair(old: u64, b: u64, add: fn(u16, u16) -> u16) -> u64 {
    u64::from(add(old as u16, b as u16)) | u64::from(add((old >> 16) as u16, (b >> 16) as u16)) << 16
}

/// The update of `atom.OP.TYPE`; `None` if there is no such instruction.
pub(crate) fn update(op: &str, ty: Ty) -> Option<Update> {
    Some(match (op, ty) {
        ("exch", _) => |_, b, _| b,
        ("cas", _) => |old, b, c| if old == b { c } else { old },
        ("and", _) => |old, b, _| old & b,
        ("or", _) => |old, b, _| old | b,
        ("xor", _) => |old, b, _| old ^ b,
        ("add", Ty::U32 | Ty::S32 | Ty::B32 | Ty::U64 | Ty::S64 | Ty::B64) => |old, b, _| old.wrapping_add(b),
        ("add", Ty::F32) => |old, b, _| u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
        ("add", Ty::F64) => |old, b, _| (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        ("add", Ty::F16) => |old, b, _| u64::from(add_small::<Half>(old as u16, b as u16)),
        ("add", Ty::Bf16) => |old, b, _| u64::from(add_small::<Bf16>(old as u16, b as u16)),
        ("add", Ty::F16x2) => |old, b, _| pair(old, b, add_small::<Half>),
        ("add", Ty::Bf16x2) => |old, b, _| pair(old, b, add_small::<Bf16>),
        ("min", Ty::U32 | Ty::U64) => |old, b, _| old.min(b),
        ("max", Ty::U32 | Ty::U64) => |old, b, _| old.max(b),
        ("min", Ty::S32) => |old, b, _| if (b as i32) < old as i32 { b } else { old },
        ("max", Ty::S32) => |old, b, _| if b as i32 > old as i32 { b } else { old },
        ("min", Ty::S64) => |old, b, _| if b.cast_signed() < old.cast_signed() { b } else { old },
        ("max", Ty::S64) => |old, b, _| if b.cast_signed() > old.cast_signed() { b } else { old },
        ("inc", Ty::U32) => |old, b, _| if old >= b { 0 } else { old + 1 },
        ("dec", Ty::U32) => |old, b, _| if old == 0 || old > b { b } else { old - 1 },
        _ => return None,
    })
}

/// Applies an update to global memory; the old value.
///
/// # Safety
/// `address` is aligned to `size`, mapped and writable.
unsafe fn update_global(address: u64, spec: AtomSpec, b: u64, c: u64) -> u64 {
    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
    macro_rules! swap {
        ($atomic:ident, $t:ty) => {{
            // SAFETY: the caller vouches for the address; all concurrent accesses are atomic.
            let cell = unsafe { $atomic::from_ptr(address as *mut $t) };
            let step = |old: $t| Some((spec.update)(u64::from(old), b, c) as $t);
            match cell.fetch_update(success, failure, step) {
                Ok(old) | Err(old) => u64::from(old),
            }
        }};
    }
    match spec.size {
        2 => swap!(AtomicU16, u16),
        4 => swap!(AtomicU32, u32),
        _ => swap!(AtomicU64, u64),
    }
}

fn update_private<E: Elem>(
    w: &mut Warp<'_>,
    c: &mut Cta<'_>,
    lane: usize,
    address: u64,
    spec: AtomSpec,
    b: u64,
    second: u64,
) -> Result<u64, MemError> {
    let old = Generic::read::<E>(w, c, lane, address)?.extend();
    Generic::write(w, c, lane, address, E::cut((spec.update)(old, b, second)))?;
    Ok(old)
}

fn update_one(
    w: &mut Warp<'_>,
    c: &mut Cta<'_>,
    lane: usize,
    address: u64,
    spec: AtomSpec,
    b: u64,
    second: u64,
) -> Result<u64, MemError> {
    if window(address) != 0 {
        return match spec.size {
            2 => update_private::<u16>(w, c, lane, address, spec, b, second),
            4 => update_private::<u32>(w, c, lane, address, spec, b, second),
            _ => update_private::<u64>(w, c, lane, address, spec, b, second),
        };
    }
    let size = u64::from(spec.size);
    if address & (size - 1) != 0 {
        return Err(MemError::Misaligned(address));
    }
    check_global(w, c, address, size)?;
    // SAFETY: aligned, and inside a range that the driver keeps mapped during the launch.
    Ok(unsafe { update_global(address, spec, b, second) })
}

/// `atom` and `red`: `x` indexes `Function::atoms`; operands in `s[1]` and `s[2]`; `d` may be `NONE`.
pub(crate) struct Atom;
impl Exec for Atom {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let spec = w.frame.func.atoms[i.x as usize];
        let wide = spec.size == 8;
        let read = |w: &Warp<'_>, s: Src| -> [u64; LANES] { if wide { *w.row64(s) } else { w.row32(s).map(u64::from) } };
        let (address, b, second) = (addresses(w, i), read(w, i.s[1]), read(w, i.s[2]));
        let cut = if spec.size == 2 { 0xffff } else { u64::MAX };
        let mask = w.mask;
        let mut out = [0u64; LANES];
        for l in lanes(mask) {
            let at = if spec.shared { address[l].wrapping_add(SHARED_WINDOW) } else { address[l] };
            match update_one(w, c, l, at, spec, b[l] & cut, second[l] & cut) {
                Ok(old) => out[l] = old,
                Err(error) => return w.fail(error.into()),
            }
        }
        if i.d == NONE {
            return Flow::Next;
        }
        if wide {
            store(w, i.d, &out, mask);
        } else {
            store(w, i.d, &out.map(u32::from_u64), mask);
        }
        Flow::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_counters() {
        let inc = update("inc", Ty::U32).expect("exists");
        assert_eq!([inc(6, 7, 0), inc(7, 7, 0), inc(9, 7, 0)], [7, 0, 0]);
        let dec = update("dec", Ty::U32).expect("exists");
        assert_eq!([dec(3, 7, 0), dec(0, 7, 0), dec(9, 7, 0)], [2, 7, 7]);
    }

    #[test]
    fn signed_order() {
        let max = update("max", Ty::S32).expect("exists");
        assert_eq!(max(0xffff_ffff, 1, 0), 1);
        assert!(update("inc", Ty::S64).is_none());
    }
}
