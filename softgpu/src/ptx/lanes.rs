//! The generic loops that execute instructions, and the types of the values in registers.
//!
//! Every operation is a zero-sized type; `handler` creates a function pointer for it, compiled twice on x86-64: for
//! the baseline and for AVX2 with FMA, selected once by the processor's features.

use std::marker::PhantomData;

use super::float::{Bf16, Ftz, Half, Two, flush};
use super::machine::{Cta, Flow, Handler, Instr, Warp};
use super::operand::{LANES, NONE, Src, lanes};

/// An operation of the machine.
pub(crate) trait Exec {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow;
}

unsafe fn plain<'a, E: Exec>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
    E::exec(w, c, i)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn vector<'a, E: Exec>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
    E::exec(w, c, i)
}

/// Whether the functions compiled for vector instructions may be called on this processor.
#[cfg(target_arch = "x86_64")]
fn has_vector() -> bool {
    use std::sync::LazyLock;
    static HAS: LazyLock<bool> = LazyLock::new(|| {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    });
    *HAS
}

/// The function that executes `E` on this processor.
pub(crate) fn handler<E: Exec>() -> Handler {
    #[cfg(target_arch = "x86_64")]
    if has_vector() {
        return vector::<E>;
    }
    plain::<E>
}

/// Contents of a register: 32 or 64 bits.
pub(crate) trait Word: Copy + Default + 'static {
    fn row<'w>(w: &'w Warp<'_>, s: Src) -> &'w [Self; LANES];
    fn row_mut<'w>(w: &'w mut Warp<'_>, d: u32) -> &'w mut [Self; LANES];
    fn from_u64(v: u64) -> Self;
    fn to_u64(self) -> u64;
    fn blend(take: bool, new: Self, old: Self) -> Self;
}

macro_rules! word {
    ($t:ty, $row:ident, $row_mut:ident) => {
        impl Word for $t {
            #[inline(always)]
            fn row<'w>(w: &'w Warp<'_>, s: Src) -> &'w [Self; LANES] {
                w.$row(s)
            }
            #[inline(always)]
            fn row_mut<'w>(w: &'w mut Warp<'_>, d: u32) -> &'w mut [Self; LANES] {
                w.$row_mut(d)
            }
            #[inline(always)]
            fn from_u64(v: u64) -> Self {
                v as $t
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn blend(take: bool, new: Self, old: Self) -> Self {
                let keep = <$t>::from(take).wrapping_sub(1);
                (new & !keep) | (old & keep)
            }
        }
    };
}
word!(u32, row32, row32_mut);
word!(u64, row64, row64_mut);

/// A typed view of a register. Types narrower than the register ignore its upper bits, whatever they hold.
pub(crate) trait Lane: Copy {
    type Word: Word;
    fn of(word: Self::Word) -> Self;
    fn word(self) -> Self::Word;
}

macro_rules! int_lane {
    ($($t:ty => $w:ty),*) => {$(
        impl Lane for $t {
            type Word = $w;
            #[inline(always)]
            fn of(word: $w) -> Self {
                word as $t
            }
            #[inline(always)]
            fn word(self) -> $w {
                self as $w
            }
        }
    )*};
}
int_lane!(u8 => u32, i8 => u32, u32 => u32, i32 => u32, u64 => u64, i64 => u64, u16 => u32, i16 => u32);

impl Lane for f32 {
    type Word = u32;
    #[inline(always)]
    fn of(word: u32) -> Self {
        f32::from_bits(word)
    }
    #[inline(always)]
    fn word(self) -> u32 {
        self.to_bits()
    }
}

impl Lane for f64 {
    type Word = u64;
    #[inline(always)]
    fn of(word: u64) -> Self {
        f64::from_bits(word)
    }
    #[inline(always)]
    fn word(self) -> u64 {
        self.to_bits()
    }
}

impl Lane for Ftz {
    type Word = u32;
    #[inline(always)]
    fn of(word: u32) -> Self {
        Ftz(flush(f32::from_bits(word)))
    }
    #[inline(always)]
    fn word(self) -> u32 {
        flush(self.0).to_bits()
    }
}

macro_rules! small_lane {
    ($t:ident) => {
        impl Lane for $t {
            type Word = u32;
            #[inline(always)]
            fn of(word: u32) -> Self {
                $t(word as u16)
            }
            #[inline(always)]
            fn word(self) -> u32 {
                u32::from(self.0)
            }
        }
        impl Lane for Two<$t> {
            type Word = u32;
            #[inline(always)]
            fn of(word: u32) -> Self {
                Two($t(word as u16), $t((word >> 16) as u16))
            }
            #[inline(always)]
            fn word(self) -> u32 {
                u32::from(self.0.0) | u32::from(self.1.0) << 16
            }
        }
    };
}
small_lane!(Half);
small_lane!(Bf16);

/// Stores `out` to register `d` for the lanes of `mask`.
#[inline(always)]
pub(crate) fn store<W: Word>(w: &mut Warp<'_>, d: u32, out: &[W; LANES], mask: u32) {
    let row = W::row_mut(w, d);
    if mask == u32::MAX {
        *row = *out;
    } else {
        for l in 0..LANES {
            row[l] = W::blend(mask >> l & 1 != 0, out[l], row[l]);
        }
    }
}

/// Lanes computed by a loop over all 32 even if few are active: total functions without side effects vectorise so.
/// `SLOW` ones visit active lanes only.
pub(crate) trait Un {
    type A: Lane;
    type D: Lane;
    const SLOW: bool = false;
    fn f(a: Self::A) -> Self::D;
}

/// See `Un`.
pub(crate) trait Bin {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    const SLOW: bool = false;
    fn f(a: Self::A, b: Self::B) -> Self::D;
}

/// See `Un`.
pub(crate) trait Tern {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    const SLOW: bool = false;
    fn f(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison.
pub(crate) trait Cmp {
    type A: Lane;
    fn f(a: Self::A, b: Self::A) -> bool;
}

type WordOf<T> = <T as Lane>::Word;

pub(crate) struct U1<O>(PhantomData<O>);
pub(crate) struct B2<O>(PhantomData<O>);
pub(crate) struct T3<O>(PhantomData<O>);
/// `setp`: d = compare, combined with predicate `s[2]` by `imm` (0 none, 1 and, 2 or, 3 xor; `NEGATED` in `s[2]`);
/// `x` is the second destination.
pub(crate) struct Setp<O>(PhantomData<O>);
/// `set`: `x` (all ones, or 1.0) where the comparison holds, else 0; combined as `setp` is.
pub(crate) struct Set<O>(PhantomData<O>);

impl<O: Un> Exec for U1<O> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mask = w.mask;
        let mut out = [WordOf::<O::D>::default(); LANES];
        let a = WordOf::<O::A>::row(w, i.s[0]);
        if O::SLOW {
            for l in lanes(mask) {
                out[l] = O::f(O::A::of(a[l])).word();
            }
        } else {
            for l in 0..LANES {
                out[l] = O::f(O::A::of(a[l])).word();
            }
        }
        store(w, i.d, &out, mask);
        Flow::Next
    }
}

impl<O: Bin> Exec for B2<O> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mask = w.mask;
        let mut out = [WordOf::<O::D>::default(); LANES];
        let (a, b) = (WordOf::<O::A>::row(w, i.s[0]), WordOf::<O::B>::row(w, i.s[1]));
        if O::SLOW {
            for l in lanes(mask) {
                out[l] = O::f(O::A::of(a[l]), O::B::of(b[l])).word();
            }
        } else {
            for l in 0..LANES {
                out[l] = O::f(O::A::of(a[l]), O::B::of(b[l])).word();
            }
        }
        store(w, i.d, &out, mask);
        Flow::Next
    }
}

impl<O: Tern> Exec for T3<O> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let mask = w.mask;
        let mut out = [WordOf::<O::D>::default(); LANES];
        let (a, b) = (WordOf::<O::A>::row(w, i.s[0]), WordOf::<O::B>::row(w, i.s[1]));
        let c = WordOf::<O::C>::row(w, i.s[2]);
        if O::SLOW {
            for l in lanes(mask) {
                out[l] = O::f(O::A::of(a[l]), O::B::of(b[l]), O::C::of(c[l])).word();
            }
        } else {
            for l in 0..LANES {
                out[l] = O::f(O::A::of(a[l]), O::B::of(b[l]), O::C::of(c[l])).word();
            }
        }
        store(w, i.d, &out, mask);
        Flow::Next
    }
}

#[inline(always)]
fn compare<O: Cmp>(w: &Warp<'_>, i: &Instr) -> u32 {
    let (a, b) = (WordOf::<O::A>::row(w, i.s[0]), WordOf::<O::A>::row(w, i.s[1]));
    let mut bits = 0;
    for l in 0..LANES {
        bits |= u32::from(O::f(O::A::of(a[l]), O::A::of(b[l]))) << l;
    }
    bits
}

/// Combines a comparison with the predicate operand, as `setp.CmpOp.BoolOp` says.
#[inline(always)]
fn combine(w: &Warp<'_>, i: &Instr, bits: u32) -> u32 {
    match i.imm & 3 {
        0 => bits,
        op => {
            let p = w.pred_value(i.s[2].0);
            match op {
                1 => bits & p,
                2 => bits | p,
                _ => bits ^ p,
            }
        }
    }
}

impl<O: Cmp> Exec for Setp<O> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let bits = compare::<O>(w, i);
        let (p, q) = (combine(w, i, bits), if i.x == NONE { 0 } else { combine(w, i, !bits) });
        w.set_pred(i.d, p);
        w.set_pred(i.x, q);
        Flow::Next
    }
}

impl<O: Cmp> Exec for Set<O> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let bits = combine(w, i, compare::<O>(w, i));
        let out = std::array::from_fn(|l| if bits >> l & 1 != 0 { i.x } else { 0 });
        store(w, i.d, &out, w.mask);
        Flow::Next
    }
}
