//! Conversions. Frequent ones have specialized loops; `Convert` interprets every other combination.

use super::alu::{Cut8, Cut8Signed, Cut16, Cut16Signed, Extend32, Extend64, Low32};
use super::ast::Ty;
use super::float::{Bf16, Half, Round, Small, flush, int_odd, int64, integral, narrow32};
use super::lanes::{Exec, U1, Un, Word, handler, store};
use super::machine::{Cta, Flow, Handler, Instr, Warp};
use super::operand::{LANES, lanes};
use super::spec::CvtSpec;

#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

fn read(bits: u64, ty: Ty, ftz: bool) -> Value {
    match ty {
        Ty::U8 | Ty::B8 => Value::Int(i128::from(bits as u8)),
        Ty::S8 => Value::Int(i128::from(bits as i8)),
        Ty::U16 | Ty::B16 => Value::Int(i128::from(bits as u16)),
        Ty::S16 => Value::Int(i128::from(bits as i16)),
        Ty::S32 => Value::Int(i128::from(bits as i32)),
        Ty::U64 | Ty::B64 => Value::Int(i128::from(bits)),
        Ty::S64 => Value::Int(i128::from(bits as i64)),
        Ty::F16 => Value::Float(f64::from(Half(bits as u16).wide())),
        Ty::Bf16 => Value::Float(f64::from(Bf16(bits as u16).wide())),
        Ty::F32 => {
            let x = f32::from_bits(bits as u32);
            Value::Float(f64::from(if ftz { flush(x) } else { x }))
        }
        Ty::F64 => Value::Float(f64::from_bits(bits)),
        Ty::Pred | Ty::U32 | Ty::B32 | Ty::U16x2 | Ty::S16x2 | Ty::F16x2 | Ty::Bf16x2 => Value::Int(i128::from(bits as u32)),
    }
}

/// Least and greatest value of an integer type.
fn range(ty: Ty) -> (i128, i128) {
    let bits = ty.size() * 8;
    if ty.signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// Converts one value, as bits.
pub(crate) fn convert(spec: &CvtSpec, bits: u64) -> u64 {
    let value = read(bits, spec.from, spec.ftz);
    if !spec.to.float() {
        let (least, greatest) = range(spec.to);
        let result = match value {
            Value::Int(v) if spec.sat => v.clamp(least, greatest),
            Value::Int(v) => v,
            // What the hardware makes of NaN depends on the widths.
            Value::Float(x) if x.is_nan() => {
                if spec.from == Ty::F64 || spec.to.size() == 8 {
                    1 << (spec.to.size() * 8 - 1)
                } else {
                    0
                }
            }
            Value::Float(x) => (integral(x, spec.round) as i128).clamp(least, greatest),
        };
        // The destination register may be wider: the value is extended by its own type.
        let cut = match spec.to.size() {
            1 if spec.to.signed() => i64::from(result as i8) as u64,
            1 => u64::from(result as u8),
            2 if spec.to.signed() => i64::from(result as i16) as u64,
            2 => u64::from(result as u16),
            4 if spec.to.signed() => i64::from(result as i32) as u64,
            4 => u64::from(result as u32),
            _ => result as u64,
        };
        return cut;
    }
    let mut x = match value {
        // Rounded to odd for the narrow formats, so that there is one rounding in effect.
        Value::Int(v) => {
            if spec.to == Ty::F64 {
                int64(v, spec.round)
            } else {
                int_odd(v)
            }
        }
        Value::Float(x) if spec.integral => integral(x, spec.round),
        Value::Float(x) => x,
    };
    if spec.sat {
        x = if x > 0.0 { x.min(1.0) } else { 0.0 };
    }
    if spec.relu && x < 0.0 {
        x = 0.0;
    }
    match spec.to {
        Ty::F16 => u64::from(Half::narrow(x, spec.round).0),
        Ty::Bf16 => u64::from(Bf16::narrow(x, spec.round).0),
        Ty::F32 => {
            let r = narrow32(x, spec.round);
            let r = if spec.ftz { flush(r) } else { r };
            u64::from(if r.is_nan() { super::float::NAN32 } else { r.to_bits() })
        }
        _ => x.to_bits(),
    }
}

/// Any conversion; `x` is its index in `Function::cvts`.
pub(crate) struct Convert;
impl Exec for Convert {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let spec = w.frame.func.cvts[i.x as usize];
        let mut out = [0u64; LANES];
        for l in lanes(w.mask) {
            let bits = if spec.wide_src { w.row64(i.s[0])[l] } else { u64::from(w.row32(i.s[0])[l]) };
            out[l] = convert(&spec, bits);
        }
        if spec.wide_dst {
            store(w, i.d, &out, w.mask);
        } else {
            store(w, i.d, &out.map(u32::from_u64), w.mask);
        }
        Flow::Next
    }
}

/// `cvt.rn.f16x2.f32 d, a, b`: a in the upper half.
pub(crate) struct PackSmall;
impl Exec for PackSmall {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let spec = w.frame.func.cvts[i.x as usize];
        let mut out = [0u32; LANES];
        let (a, b) = (w.row32(i.s[0]), w.row32(i.s[1]));
        for l in lanes(w.mask) {
            let (high, low) = (convert(&spec, u64::from(a[l])), convert(&spec, u64::from(b[l])));
            out[l] = (high << 16 | low) as u32;
        }
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}

macro_rules! direct {
    ($($name:ident, $slow:literal, $a:ident: $ta:ty => $d:ty, $e:expr;)*) => {$(
        struct $name;
        impl Un for $name {
            type A = $ta;
            type D = $d;
            const SLOW: bool = $slow;
            #[inline(always)]
            fn f($a: $ta) -> $d { $e }
        }
    )*};
}
direct! {
    S32ToF32, false, a: i32 => f32, a as f32;
    U32ToF32, false, a: u32 => f32, a as f32;
    S32ToF64, false, a: i32 => f64, f64::from(a);
    U32ToF64, false, a: u32 => f64, f64::from(a);
    F32ToF64, false, a: f32 => f64, f64::from(a);
    F64ToF32, false, a: f64 => f32, a as f32;
    F32ToS32, false, a: f32 => i32, a as i32;
    F32ToU32, false, a: f32 => u32, a as u32;
    F32ToS32Near, false, a: f32 => i32, a.round_ties_even() as i32;
    F32Near, false, a: f32 => f32, a.round_ties_even();
    F32Trunc, false, a: f32 => f32, a.trunc();
    F32Floor, false, a: f32 => f32, a.floor();
    F32Ceil, false, a: f32 => f32, a.ceil();
    HalfToF32, true, a: Half => f32, a.wide();
    Bf16ToF32, false, a: Bf16 => f32, a.wide();
    F32ToHalf, true, a: f32 => Half, Half::narrow(f64::from(a), Round::Nearest);
    F32ToBf16, true, a: f32 => Bf16, Bf16::narrow(f64::from(a), Round::Nearest);
}

/// A specialised loop for this conversion, if there is one.
pub(crate) fn direct(spec: &CvtSpec) -> Option<Handler> {
    if spec.sat || spec.relu || spec.ftz {
        return None;
    }
    if !spec.to.float() && !spec.from.float() {
        return integer(spec);
    }
    // Registers wider than the type only occur with integers; leave those to the general path.
    if spec.wide_src != (spec.from.size() == 8) || spec.wide_dst != (spec.to.size() == 8) {
        return None;
    }
    let near = spec.round == Round::Nearest;
    Some(match (spec.to, spec.from) {
        (Ty::F32, Ty::S32) if near => handler::<U1<S32ToF32>>(),
        (Ty::F32, Ty::U32) if near => handler::<U1<U32ToF32>>(),
        (Ty::F64, Ty::S32) => handler::<U1<S32ToF64>>(),
        (Ty::F64, Ty::U32) => handler::<U1<U32ToF64>>(),
        (Ty::F64, Ty::F32) if !spec.integral => handler::<U1<F32ToF64>>(),
        (Ty::F32, Ty::F64) if near && !spec.integral => handler::<U1<F64ToF32>>(),
        (Ty::S32, Ty::F32) if spec.round == Round::Zero => handler::<U1<F32ToS32>>(),
        (Ty::U32, Ty::F32) if spec.round == Round::Zero => handler::<U1<F32ToU32>>(),
        (Ty::S32, Ty::F32) if near => handler::<U1<F32ToS32Near>>(),
        (Ty::F32, Ty::F32) if spec.integral => match spec.round {
            Round::Nearest => handler::<U1<F32Near>>(),
            Round::Zero => handler::<U1<F32Trunc>>(),
            Round::Down => handler::<U1<F32Floor>>(),
            Round::Up => handler::<U1<F32Ceil>>(),
        },
        (Ty::F32, Ty::F16) => handler::<U1<HalfToF32>>(),
        (Ty::F32, Ty::Bf16) => handler::<U1<Bf16ToF32>>(),
        (Ty::F16, Ty::F32) if near => handler::<U1<F32ToHalf>>(),
        (Ty::Bf16, Ty::F32) if near => handler::<U1<F32ToBf16>>(),
        _ => return None,
    })
}

/// Integer to integer: one extension or cut, if that is all the conversion does.
fn integer(spec: &CvtSpec) -> Option<Handler> {
    let (from, to) = (spec.from.size(), spec.to.size());
    let register = if spec.wide_dst { 8 } else { 4 };
    if to <= from && to == register {
        // The low bits: widths are equal, or 64 to 32.
        return Some(match (spec.wide_src, spec.wide_dst) {
            (true, false) => handler::<U1<Low32<u64>>>(),
            (false, false) => handler::<U1<Extend32<u32>>>(),
            (true, true) => handler::<U1<Extend64<u64>>>(),
            (false, true) => return None,
        });
    }
    let fits = to == register || to == 2 && spec.from.signed() == spec.to.signed();
    if to > from && fits && !spec.wide_src {
        return Some(match (spec.from, spec.wide_dst) {
            (Ty::U8 | Ty::B8, false) => handler::<U1<Extend32<u8>>>(),
            (Ty::S8, false) => handler::<U1<Extend32<i8>>>(),
            (Ty::U16 | Ty::B16, false) => handler::<U1<Extend32<u16>>>(),
            (Ty::S16, false) => handler::<U1<Extend32<i16>>>(),
            (Ty::U8 | Ty::B8, true) => handler::<U1<Extend64<u8>>>(),
            (Ty::S8, true) => handler::<U1<Extend64<i8>>>(),
            (Ty::U16 | Ty::B16, true) => handler::<U1<Extend64<u16>>>(),
            (Ty::S16, true) => handler::<U1<Extend64<i16>>>(),
            (Ty::U32 | Ty::B32, true) => handler::<U1<Extend64<u32>>>(),
            (Ty::S32, true) => handler::<U1<Extend64<i32>>>(),
            _ => return None,
        });
    }
    if to <= from && register == 4 {
        return Some(match (spec.to, spec.wide_src) {
            (Ty::U8 | Ty::B8, false) => handler::<U1<Cut8<u32>>>(),
            (Ty::U8 | Ty::B8, true) => handler::<U1<Cut8<u64>>>(),
            (Ty::S8, false) => handler::<U1<Cut8Signed<u32>>>(),
            (Ty::S8, true) => handler::<U1<Cut8Signed<u64>>>(),
            (Ty::U16 | Ty::B16, false) => handler::<U1<Cut16<u32>>>(),
            (Ty::U16 | Ty::B16, true) => handler::<U1<Cut16<u64>>>(),
            (Ty::S16, false) => handler::<U1<Cut16Signed<u32>>>(),
            (Ty::S16, true) => handler::<U1<Cut16Signed<u64>>>(),
            _ => return None,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(to: Ty, from: Ty, round: Round) -> CvtSpec {
        CvtSpec {
            to,
            from,
            round,
            integral: false,
            sat: false,
            relu: false,
            ftz: false,
            wide_src: from.size() == 8,
            wide_dst: to.size() == 8,
        }
    }

    #[test]
    fn floats_to_integers_saturate() {
        let to_s32 = spec(Ty::S32, Ty::F32, Round::Zero);
        for (x, want) in [(1.9, 1), (-1.9, -1), (3e9, i32::MAX), (-3e9, i32::MIN), (f32::NAN, 0), (f32::INFINITY, i32::MAX)] {
            assert_eq!(convert(&to_s32, u64::from(x.to_bits())) as i32, want, "{x}");
        }
        let to_u8 = spec(Ty::U8, Ty::F32, Round::Zero);
        assert_eq!(convert(&to_u8, u64::from(300f32.to_bits())), 255);
        assert_eq!(convert(&to_u8, u64::from((-3f32).to_bits())), 0);
        let nan64 = spec(Ty::S64, Ty::F32, Round::Zero);
        assert_eq!(convert(&nan64, u64::from(f32::NAN.to_bits())), 1 << 63);
    }

    #[test]
    fn rounding_of_halves() {
        for (round, want) in [(Round::Nearest, 2), (Round::Zero, 2), (Round::Down, 2), (Round::Up, 3)] {
            assert_eq!(convert(&spec(Ty::S32, Ty::F64, round), 2.5f64.to_bits()), want);
        }
    }

    #[test]
    fn integers_extend_by_source_and_cut_by_destination() {
        assert_eq!(convert(&spec(Ty::S64, Ty::S8, Round::Zero), 0xff), u64::MAX);
        assert_eq!(convert(&spec(Ty::U32, Ty::S8, Round::Zero), 0x80) as u32, 0xffff_ff80);
        assert_eq!(convert(&spec(Ty::S8, Ty::U32, Round::Zero), 0x1ff) as i32, -1);
        let sat = CvtSpec { sat: true, ..spec(Ty::U16, Ty::S32, Round::Zero) };
        assert_eq!(convert(&sat, -5i32 as u32 as u64), 0);
        assert_eq!(convert(&sat, 70000), 65535);
    }
}
