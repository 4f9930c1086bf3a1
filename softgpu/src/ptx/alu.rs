//! Integer, logic and data-movement operations.

use std::marker::PhantomData;

use super::ast::Ty;
use super::lanes::{B2, Bin, Exec, Lane, T3, Tern, U1, Un, Word, handler, store};
use super::machine::{Cta, Flow, Handler, Instr, Warp};
use super::operand::LANES;

/// Operation generic over its operand type.
macro_rules! unary {
    ($name:ident, $($t:ty),* => $d:ty, |$a:ident| $e:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);
        $(impl Un for $name<$t> {
            type A = $t;
            type D = $d;
            #[inline(always)]
            fn f($a: $t) -> $d { $e }
        })*
    };
    ($name:ident, $($t:ty),*, |$a:ident| $e:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);
        $(impl Un for $name<$t> {
            type A = $t;
            type D = $t;
            #[inline(always)]
            fn f($a: $t) -> $t { $e }
        })*
    };
}
macro_rules! binary {
    ($name:ident, $($t:ty),*, |$a:ident, $b:ident| $e:expr) => { binary!($name, false, $($t),*, |$a, $b| $e); };
    ($name:ident, $slow:literal, $($t:ty),*, |$a:ident, $b:ident| $e:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);
        $(impl Bin for $name<$t> {
            type A = $t;
            type B = $t;
            type D = $t;
            const SLOW: bool = $slow;
            #[inline(always)]
            fn f($a: $t, $b: $t) -> $t { $e }
        })*
    };
}
/// Operation on fixed types.
macro_rules! ternary {
    ($name:ident, $a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty => $d:ty, $e:expr) => {
        pub(crate) struct $name;
        impl Tern for $name {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type D = $d;
            #[inline(always)]
            fn f($a: $ta, $b: $tb, $c: $tc) -> $d {
                $e
            }
        }
    };
}
macro_rules! fixed {
    ($name:ident, $a:ident: $ta:ty, $b:ident: $tb:ty => $d:ty, $e:expr) => {
        pub(crate) struct $name;
        impl Bin for $name {
            type A = $ta;
            type B = $tb;
            type D = $d;
            #[inline(always)]
            fn f($a: $ta, $b: $tb) -> $d {
                $e
            }
        }
    };
}

unary!(Mov, u32, u64, |a| a);
unary!(Not, u16, u32, u64, |a| !a);
unary!(Cnot, u16, u32, u64, |a| (a == 0).into());
unary!(Neg, u16, u32, u64, |a| a.wrapping_neg());
unary!(Abs, i16, i32, i64, |a| a.wrapping_abs());
unary!(Brev, u32, u64, |a| a.reverse_bits());
unary!(Popc, u32, u64 => u32, |a| a.count_ones());
unary!(Clz, u32, u64 => u32, |a| a.leading_zeros());
unary!(Bfind, u32, u64 => u32, |a| a.checked_ilog2().unwrap_or(u32::MAX));
unary!(BfindSigned, i32, i64 => u32, |a| (if a < 0 { !a } else { a }).checked_ilog2().unwrap_or(u32::MAX));
unary!(BfindShift, u32, u64 => u32, |a| if a == 0 { u32::MAX } else { a.leading_zeros() });
unary!(BfindShiftSigned, i32, i64 => u32, |a| {
    let a = if a < 0 { !a } else { a };
    if a == 0 { u32::MAX } else { a.leading_zeros() }
});
// Integer conversions without saturation: the source extended, then cut by the destination's view.
unary!(Extend32, u8, i8, u16, i16, u32 => u32, |a| a as u32);
unary!(Extend64, u8, i8, u16, i16, u32, i32, u64 => u64, |a| a as u64);
unary!(Cut8, u32, u64 => u8, |a| a as u8);
unary!(Cut8Signed, u32, u64 => i8, |a| a as i8);
unary!(Cut16, u32, u64 => u16, |a| a as u16);
unary!(Cut16Signed, u32, u64 => i16, |a| a as i16);
unary!(Low32, u64 => u32, |a| a as u32);

binary!(Add, u16, u32, u64, |a, b| a.wrapping_add(b));
binary!(Sub, u16, u32, u64, |a, b| a.wrapping_sub(b));
binary!(AddSat, i32, |a, b| a.saturating_add(b));
binary!(SubSat, i32, |a, b| a.saturating_sub(b));
binary!(Mul, u16, u32, u64, |a, b| a.wrapping_mul(b));
binary!(Min, u16, i16, u32, i32, u64, i64, |a, b| if b < a { b } else { a });
binary!(Max, u16, i16, u32, i32, u64, i64, |a, b| if b > a { b } else { a });
binary!(And, u16, u32, u64, |a, b| a & b);
binary!(Or, u16, u32, u64, |a, b| a | b);
binary!(Xor, u16, u32, u64, |a, b| a ^ b);
// The hardware answers all ones to a division by zero.
binary!(Div, true, u16, u32, u64, |a, b| a.checked_div(b).unwrap_or(!0));
binary!(DivSigned, true, i16, i32, i64, |a, b| if b == 0 { -1 } else { a.wrapping_div(b) });
binary!(Rem, true, u16, u32, u64, |a, b| a.checked_rem(b).unwrap_or(a));
binary!(RemSigned, true, i16, i32, i64, |a, b| if b == 0 { a } else { a.wrapping_rem(b) });

/// High half of a product.
pub(crate) struct MulHi<T>(PhantomData<T>);
/// Product of twice the width.
pub(crate) struct MulWide<T>(PhantomData<T>);
/// `mad.lo`
pub(crate) struct Mad<T>(PhantomData<T>);
/// `mad.hi`
pub(crate) struct MadHi<T>(PhantomData<T>);
/// `mad.wide`
pub(crate) struct MadWide<T>(PhantomData<T>);
/// `sad`: |a - b| + c
pub(crate) struct Sad<T>(PhantomData<T>);
/// Shifts clamp their count: all bits go.
pub(crate) struct Shl<T>(PhantomData<T>);
/// `shr` of the type's signedness.
pub(crate) struct Shr<T>(PhantomData<T>);

macro_rules! products {
    ($($t:ty, $wide:ty, $bits:literal, $word:ty);*) => {$(
        impl Bin for MulHi<$t> {
            type A = $t; type B = $t; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: $t) -> $t { ((a as $wide * b as $wide) >> $bits) as $t }
        }
        impl Tern for MadHi<$t> {
            type A = $t; type B = $t; type C = $t; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: $t, c: $t) -> $t { (((a as $wide * b as $wide) >> $bits) as $t).wrapping_add(c) }
        }
        impl Tern for Sad<$t> {
            type A = $t; type B = $t; type C = $t; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: $t, c: $t) -> $t { c.wrapping_add(if a > b { a.wrapping_sub(b) } else { b.wrapping_sub(a) }) }
        }
        impl Bin for Shr<$t> {
            type A = $t; type B = u32; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: u32) -> $t {
                #[allow(unused_comparisons, reason = "the macro serves unsigned types too")]
                let beyond: $t = if a < 0 { !0 } else { 0 };
                if b < $bits { a >> (b & ($bits - 1)) } else { beyond }
            }
        }
    )*};
}
products!(u16, u32, 16, u32; i16, i32, 16, u32; u32, u64, 32, u32; i32, i64, 32, u32; u64, u128, 64, u64; i64, i128, 64, u64);

macro_rules! wide_products {
    ($($t:ty, $wide:ty);*) => {$(
        impl Bin for MulWide<$t> {
            type A = $t; type B = $t; type D = $wide;
            #[inline(always)]
            fn f(a: $t, b: $t) -> $wide { a as $wide * b as $wide }
        }
        impl Tern for MadWide<$t> {
            type A = $t; type B = $t; type C = $wide; type D = $wide;
            #[inline(always)]
            fn f(a: $t, b: $t, c: $wide) -> $wide { (a as $wide * b as $wide).wrapping_add(c) }
        }
    )*};
}
wide_products!(u16, u32; i16, i32; u32, u64; i32, i64);

macro_rules! low_products {
    ($($t:ty, $bits:literal);*) => {$(
        impl Tern for Mad<$t> {
            type A = $t; type B = $t; type C = $t; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: $t, c: $t) -> $t { a.wrapping_mul(b).wrapping_add(c) }
        }
        impl Bin for Shl<$t> {
            type A = $t; type B = u32; type D = $t;
            #[inline(always)]
            fn f(a: $t, b: u32) -> $t { if b < $bits { a << (b & ($bits - 1)) } else { 0 } }
        }
    )*};
}
low_products!(u16, 16; u32, 32; u64, 64);

fn low24(a: u32) -> u64 {
    u64::from(a & 0xff_ffff)
}
fn low24s(a: u32) -> i64 {
    i64::from((a << 8).cast_signed() >> 8)
}
fixed!(Mul24Lo, a: u32, b: u32 => u32, (low24(a) * low24(b)) as u32);
fixed!(Mul24Hi, a: u32, b: u32 => u32, ((low24(a) * low24(b)) >> 16) as u32);
fixed!(Mul24LoSigned, a: u32, b: u32 => u32, (low24s(a) * low24s(b)) as u32);
fixed!(Mul24HiSigned, a: u32, b: u32 => u32, ((low24s(a) * low24s(b)) >> 16) as u32);
fixed!(Pack32, a: u32, b: u32 => u64, u64::from(a) | u64::from(b) << 32);
fixed!(Pack16, a: u16, b: u16 => u32, u32::from(a) | u32::from(b) << 16);
fixed!(Bmsk, a: u32, b: u32 => u32, if a >= 32 || b == 0 { 0 } else { (u32::MAX >> 32u32.saturating_sub(b)) << a });
fixed!(BmskWrap, a: u32, b: u32 => u32, ((1u64 << (b & 31)) as u32).wrapping_sub(1) << (a & 31));
fixed!(SzextClamp, a: u32, b: u32 => u32, if b >= 32 { a } else { a & ((1u64 << b) - 1) as u32 });
fixed!(SzextClampSigned, a: u32, b: u32 => u32, if b >= 32 { a } else { bfe_s32(a, 0, b) });

/// Position and length of a bit field. The 32-bit instructions use the low 8 bits of each, the 64-bit ones all.
fn field(pos: u32, len: u32, bits: u32) -> (u32, u32) {
    if bits == 32 { (pos & 255, len & 255) } else { (pos.min(64), len.min(64)) }
}
fn bfe_u64(a: u64, pos: u32, len: u32, bits: u32) -> u64 {
    let (pos, len) = field(pos, len, bits);
    if pos >= bits || len == 0 { 0 } else { (a >> pos) & if len >= 64 { u64::MAX } else { (1 << len) - 1 } }
}
/// Signed bit-field extract: the sign is the field's highest bit, or the value's where the field reaches past it.
fn bfe_signed(a: i64, pos: u32, len: u32, bits: u32) -> i64 {
    let (pos, len) = field(pos, len, bits);
    if len == 0 {
        return 0;
    }
    let top = (pos + len - 1).min(bits - 1);
    let sign = a >> top & 1;
    let field = if pos >= bits { 0 } else { bfe_u64(a.cast_unsigned(), pos, len.min(bits - pos), bits).cast_signed() };
    let width = if pos >= bits { 0 } else { len.min(bits - pos) };
    if sign == 0 || width >= 64 { field } else { field | -1 << width }
}
fn bfe_s32(a: u32, pos: u32, len: u32) -> u32 {
    bfe_signed(i64::from(a.cast_signed()), pos, len, 32) as u32
}
ternary!(BfeU32, a: u32, b: u32, c: u32 => u32, bfe_u64(u64::from(a), b, c, 32) as u32);
ternary!(BfeU64, a: u64, b: u32, c: u32 => u64, bfe_u64(a, b, c, 64));
ternary!(BfeS32, a: u32, b: u32, c: u32 => u32, bfe_s32(a, b, c));
ternary!(BfeS64, a: i64, b: u32, c: u32 => i64, bfe_signed(a, b, c, 64));

fn byte_of(a: u32, b: u32, selector: u32) -> u32 {
    let both = u64::from(a) | u64::from(b) << 32;
    let byte = (both >> ((selector & 7) * 8)) as u32 & 255;
    if selector & 8 == 0 {
        byte
    } else if byte & 128 == 0 {
        0
    } else {
        255
    }
}
fn permute(a: u32, b: u32, s: impl Fn(u32) -> u32) -> u32 {
    (0..4).map(|n| byte_of(a, b, s(n)) << (8 * n)).sum()
}
ternary!(Prmt, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| c >> (4 * n)));
ternary!(PrmtF4e, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| (c & 3) + n));
ternary!(PrmtB4e, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| (c & 3).wrapping_sub(n) & 7));
ternary!(PrmtRc8, a: u32, b: u32, c: u32 => u32, permute(a, b, |_| c & 3));
ternary!(PrmtEcl, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| n.max(c & 3)));
ternary!(PrmtEcr, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| n.min(c & 3)));
ternary!(PrmtRc16, a: u32, b: u32, c: u32 => u32, permute(a, b, |n| (c & 1) * 2 + (n & 1)));

fn both(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
ternary!(ShfLWrap, a: u32, b: u32, c: u32 => u32, (both(a, b) << (c & 31) >> 32) as u32);
ternary!(ShfRWrap, a: u32, b: u32, c: u32 => u32, (both(a, b) >> (c & 31)) as u32);
ternary!(ShfLClamp, a: u32, b: u32, c: u32 => u32, (both(a, b) << c.min(32) >> 32) as u32);
ternary!(ShfRClamp, a: u32, b: u32, c: u32 => u32, (both(a, b) >> c.min(32)) as u32);

fn dot4(a: [i32; 4], b: [i32; 4], c: u32) -> u32 {
    (0..4).fold(c, |sum, n| sum.wrapping_add((a[n] * b[n]).cast_unsigned()))
}
fn ubytes(a: u32) -> [i32; 4] {
    a.to_le_bytes().map(i32::from)
}
fn sbytes(a: u32) -> [i32; 4] {
    a.to_le_bytes().map(|b| i32::from(b.cast_signed()))
}
ternary!(Dp4aUU, a: u32, b: u32, c: u32 => u32, dot4(ubytes(a), ubytes(b), c));
ternary!(Dp4aSS, a: u32, b: u32, c: u32 => u32, dot4(sbytes(a), sbytes(b), c));
ternary!(Dp4aUS, a: u32, b: u32, c: u32 => u32, dot4(ubytes(a), sbytes(b), c));
ternary!(Dp4aSU, a: u32, b: u32, c: u32 => u32, dot4(sbytes(a), ubytes(b), c));

/// `dp2a`: the halves of `a` times two bytes of `b`. `HIGH` takes the upper bytes.
pub(crate) struct Dp2a<const SA: bool, const SB: bool, const HIGH: bool>;
impl<const SA: bool, const SB: bool, const HIGH: bool> Tern for Dp2a<SA, SB, HIGH> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32) -> u32 {
        let half = |n: u32| {
            let h = (a >> (16 * n)) as u16;
            if SA { i32::from(h.cast_signed()) } else { i32::from(h) }
        };
        let bytes = if SB { sbytes(b) } else { ubytes(b) };
        let first = if HIGH { 2 } else { 0 };
        c.wrapping_add((half(0).wrapping_mul(bytes[first]).wrapping_add(half(1).wrapping_mul(bytes[first + 1]))).cast_unsigned())
    }
}

ternary!(Vabsdiff4, a: u32, b: u32, _c: u32 => u32, {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    u32::from_le_bytes([0, 1, 2, 3].map(|n| a[n].abs_diff(b[n])))
});

ternary!(Vabsdiff4Add, a: u32, b: u32, c: u32 => u32, {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    (0..4).fold(c, |sum, n| sum.wrapping_add(u32::from(a[n].abs_diff(b[n]))))
});

fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}
fn signed(f: impl Fn(i16, i16) -> i16) -> impl Fn(u16, u16) -> u16 {
    move |a, b| f(a.cast_signed(), b.cast_signed()).cast_unsigned()
}
fixed!(AddPair, a: u32, b: u32 => u32, halves(a, b, u16::wrapping_add));
fixed!(MinPair, a: u32, b: u32 => u32, halves(a, b, u16::min));
fixed!(MaxPair, a: u32, b: u32 => u32, halves(a, b, u16::max));
fixed!(MinPairSigned, a: u32, b: u32 => u32, halves(a, b, signed(i16::min)));
fixed!(MaxPairSigned, a: u32, b: u32 => u32, halves(a, b, signed(i16::max)));

/// `bfi`: inserts the low `s[3]` bits of `a` into `b` at `s[2]`.
pub(crate) struct Bfi<W>(PhantomData<W>);
impl<W: Word> Exec for Bfi<W> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [W::default(); LANES];
        let (a, b, pos, len) = (W::row(w, i.s[0]), W::row(w, i.s[1]), w.row32(i.s[2]), w.row32(i.s[3]));
        let bits = size_of::<W>() as u32 * 8;
        for l in 0..LANES {
            let (pos, len) = field(pos[l], len[l], bits);
            out[l] = if pos >= bits || len == 0 {
                b[l]
            } else {
                let field = (if len >= 64 { u64::MAX } else { (1 << len) - 1 }) << pos;
                W::from_u64((a[l].to_u64() << pos & field) | (b[l].to_u64() & !field))
            };
        }
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}

/// `lop3`: `imm` is the truth table.
pub(crate) struct Lop3;
impl Exec for Lop3 {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [0u32; LANES];
        let (a, b, c) = (w.row32(i.s[0]), w.row32(i.s[1]), w.row32(i.s[2]));
        for l in 0..LANES {
            for bit in 0..8u32 {
                // Minterm of the truth table's row `bit`: its bits 2, 1, 0 select a, b, c or their complements.
                let pick = |v: u32, n: u32| if bit >> n & 1 == 1 { v } else { !v };
                let on = 0u32.wrapping_sub((i.imm >> bit & 1) as u32);
                out[l] |= on & pick(a[l], 2) & pick(b[l], 1) & pick(c[l], 0);
            }
        }
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}

/// `selp`: predicate in `s[2]`.
pub(crate) struct Selp<W>(PhantomData<W>);
impl<W: Word> Exec for Selp<W> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [W::default(); LANES];
        let p = w.pred_value(i.s[2].0);
        let (a, b) = (W::row(w, i.s[0]), W::row(w, i.s[1]));
        for l in 0..LANES {
            out[l] = W::blend(p >> l & 1 != 0, a[l], b[l]);
        }
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}

/// `slct`: `a` where the third operand is not negative; `FLOAT` if it is an f32 (where -0 counts as 0 and NaN as negative).
pub(crate) struct Slct<W, const FLOAT: bool>(PhantomData<W>);
impl<W: Word, const FLOAT: bool> Exec for Slct<W, FLOAT> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [W::default(); LANES];
        let (a, b, c) = (W::row(w, i.s[0]), W::row(w, i.s[1]), w.row32(i.s[2]));
        for l in 0..LANES {
            let first = if FLOAT { f32::from_bits(c[l]) >= 0.0 } else { c[l].cast_signed() >= 0 };
            out[l] = W::blend(first, a[l], b[l]);
        }
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}

/// Arithmetic with the carry flag. `imm`: 1 reads it, 2 writes it, 4 subtracts.
pub(crate) struct Carry<W>(PhantomData<W>);
impl<W: Word> Exec for Carry<W> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [W::default(); LANES];
        let mut carries = 0;
        let (a, b) = (W::row(w, i.s[0]), W::row(w, i.s[1]));
        let bits = size_of::<W>() * 8;
        let carry_in = if i.imm & 1 != 0 { w.carry } else { 0 };
        for l in 0..LANES {
            let (a, b) = (u128::from(a[l].to_u64()), u128::from(b[l].to_u64()));
            let c = u128::from(carry_in >> l & 1);
            let r = if i.imm & 4 == 0 { a + b + c } else { a.wrapping_sub(b).wrapping_sub(c) };
            out[l] = W::from_u64(r as u64);
            carries |= ((r >> bits & 1) as u32) << l;
        }
        store(w, i.d, &out, w.mask);
        if i.imm & 2 != 0 {
            w.carry = w.carry & !w.mask | carries & w.mask;
        }
        Flow::Next
    }
}

/// `mad.cc` and `madc`: `imm` as in `Carry`, and 8 for the high half. `T` determines width and signedness.
pub(crate) struct MadCarry<T>(PhantomData<T>);
impl<T: Lane> Exec for MadCarry<T>
where
    i128: FromLane<T>,
{
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mut out = [T::Word::default(); LANES];
        let mut carries = 0;
        let (a, b, c) = (T::Word::row(w, i.s[0]), T::Word::row(w, i.s[1]), T::Word::row(w, i.s[2]));
        let bits = size_of::<T::Word>() * 8;
        let carry_in = if i.imm & 1 != 0 { w.carry } else { 0 };
        for l in 0..LANES {
            let product = i128::from_lane(T::of(a[l])).wrapping_mul(i128::from_lane(T::of(b[l])));
            let part = T::Word::from_u64(if i.imm & 8 == 0 { product } else { product >> bits } as u64);
            let r = u128::from(part.to_u64()) + u128::from(c[l].to_u64()) + u128::from(carry_in >> l & 1);
            out[l] = T::Word::from_u64(r as u64);
            carries |= ((r >> bits & 1) as u32) << l;
        }
        store(w, i.d, &out, w.mask);
        if i.imm & 2 != 0 {
            w.carry = w.carry & !w.mask | carries & w.mask;
        }
        Flow::Next
    }
}

/// Widening that keeps the value's low 128 bits of products right.
pub(crate) trait FromLane<T> {
    fn from_lane(v: T) -> Self;
}
macro_rules! from_lane {
    ($($t:ty),*) => {$(
        impl FromLane<$t> for i128 {
            #[inline(always)]
            fn from_lane(v: $t) -> i128 { v as i128 }
        }
    )*};
}
from_lane!(u32, i32, u64, i64);

/// Predicate logic: `imm` 0 mov, 1 and, 2 or, 3 xor; operands are predicates with their negation.
pub(crate) struct PredOp;
impl Exec for PredOp {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let (a, b) = (w.pred_value(i.s[0].0), w.pred_value(i.s[1].0));
        let r = match i.imm {
            0 => a,
            1 => a & b,
            2 => a | b,
            _ => a ^ b,
        };
        w.set_pred(i.d, r);
        Flow::Next
    }
}

/// Picks `$op` for the type, by size only (`unsigned`) or by size and sign.
macro_rules! by_type {
    ($wrap:ident, $ty:expr, unsigned $op:ident) => {
        match $ty.size() {
            2 => handler::<$wrap<$op<u16>>>(),
            4 => handler::<$wrap<$op<u32>>>(),
            8 => handler::<$wrap<$op<u64>>>(),
            _ => return None,
        }
    };
    ($wrap:ident, $ty:expr, unsigned32 $op:ident) => {
        match $ty.size() {
            4 => handler::<$wrap<$op<u32>>>(),
            8 => handler::<$wrap<$op<u64>>>(),
            _ => return None,
        }
    };
    ($wrap:ident, $ty:expr, signed $op:ident) => {
        match $ty.size() {
            2 => handler::<$wrap<$op<i16>>>(),
            4 => handler::<$wrap<$op<i32>>>(),
            8 => handler::<$wrap<$op<i64>>>(),
            _ => return None,
        }
    };
    ($wrap:ident, $ty:expr, both $op:ident) => {
        if $ty.signed() { by_type!($wrap, $ty, signed $op) } else { by_type!($wrap, $ty, unsigned $op) }
    };
}

/// Handler of an integer operation of two sources, by opcode.
pub(crate) fn binary(op: &str, ty: Ty) -> Option<Handler> {
    if matches!(ty, Ty::U16x2 | Ty::S16x2) {
        return Some(match (op, ty == Ty::S16x2) {
            ("add", _) => handler::<B2<AddPair>>(),
            ("min", false) => handler::<B2<MinPair>>(),
            ("max", false) => handler::<B2<MaxPair>>(),
            ("min", true) => handler::<B2<MinPairSigned>>(),
            ("max", true) => handler::<B2<MaxPairSigned>>(),
            _ => return None,
        });
    }
    Some(match op {
        "add" => by_type!(B2, ty, unsigned Add),
        "sub" => by_type!(B2, ty, unsigned Sub),
        "mul" => by_type!(B2, ty, unsigned Mul),
        "mul.hi" => by_type!(B2, ty, both MulHi),
        "mul.wide" => match ty {
            Ty::U16 => handler::<B2<MulWide<u16>>>(),
            Ty::S16 => handler::<B2<MulWide<i16>>>(),
            Ty::U32 => handler::<B2<MulWide<u32>>>(),
            Ty::S32 => handler::<B2<MulWide<i32>>>(),
            _ => return None,
        },
        "div" if ty.signed() => by_type!(B2, ty, signed DivSigned),
        "div" => by_type!(B2, ty, unsigned Div),
        "rem" if ty.signed() => by_type!(B2, ty, signed RemSigned),
        "rem" => by_type!(B2, ty, unsigned Rem),
        "min" => by_type!(B2, ty, both Min),
        "max" => by_type!(B2, ty, both Max),
        "and" => by_type!(B2, ty, unsigned And),
        "or" => by_type!(B2, ty, unsigned Or),
        "xor" => by_type!(B2, ty, unsigned Xor),
        "shl" => by_type!(B2, ty, unsigned Shl),
        "shr" => by_type!(B2, ty, both Shr),
        _ => return None,
    })
}

/// Handler of an integer operation of one source, by opcode.
pub(crate) fn unary(op: &str, ty: Ty) -> Option<Handler> {
    Some(match op {
        "mov" => by_type!(U1, ty, unsigned32 Mov),
        "not" => by_type!(U1, ty, unsigned Not),
        "cnot" => by_type!(U1, ty, unsigned Cnot),
        "neg" => by_type!(U1, ty, unsigned Neg),
        "abs" => by_type!(U1, ty, signed Abs),
        "brev" => by_type!(U1, ty, unsigned32 Brev),
        "popc" => by_type!(U1, ty, unsigned32 Popc),
        "clz" => by_type!(U1, ty, unsigned32 Clz),
        "bfind" if ty.signed() && ty.size() == 8 => handler::<U1<BfindSigned<i64>>>(),
        "bfind" if ty.signed() => handler::<U1<BfindSigned<i32>>>(),
        "bfind" => by_type!(U1, ty, unsigned32 Bfind),
        "bfind.shiftamt" if ty.signed() && ty.size() == 8 => handler::<U1<BfindShiftSigned<i64>>>(),
        "bfind.shiftamt" if ty.signed() => handler::<U1<BfindShiftSigned<i32>>>(),
        "bfind.shiftamt" => by_type!(U1, ty, unsigned32 BfindShift),
        _ => return None,
    })
}

/// Handler of an integer operation of three sources, by opcode.
pub(crate) fn ternary(op: &str, ty: Ty) -> Option<Handler> {
    Some(match op {
        "mad" => by_type!(T3, ty, unsigned Mad),
        "mad.hi" => by_type!(T3, ty, both MadHi),
        "mad.wide" => match ty {
            Ty::U16 => handler::<T3<MadWide<u16>>>(),
            Ty::S16 => handler::<T3<MadWide<i16>>>(),
            Ty::U32 => handler::<T3<MadWide<u32>>>(),
            Ty::S32 => handler::<T3<MadWide<i32>>>(),
            _ => return None,
        },
        "sad" => by_type!(T3, ty, both Sad),
        "bfe" => match ty {
            Ty::U32 => handler::<T3<BfeU32>>(),
            Ty::S32 => handler::<T3<BfeS32>>(),
            Ty::U64 => handler::<T3<BfeU64>>(),
            Ty::S64 => handler::<T3<BfeS64>>(),
            _ => return None,
        },
        _ => return None,
    })
}
