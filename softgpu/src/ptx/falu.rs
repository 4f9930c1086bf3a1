//! Floating-point operations.

use std::marker::PhantomData;

use super::ast::Ty;
use super::float::{
    Bf16, Ftz, Half, NAN32, RM, RN, RP, RZ, Round, Small, Two, add_odd, add32, add64, div32, div64, fma_odd, fma32, fma64, mul32,
    mul64, round, sqrt32, sqrt64,
};
use super::lanes::{B2, Bin, Cmp, Lane, Set, Setp, T3, Tern, U1, Un, handler};
use super::machine::Handler;

/// f32 with or without flushing of subnormals.
pub(crate) trait Single: Lane<Word = u32> {
    fn get(self) -> f32;
    /// Takes a result: NaNs become the one the hardware makes.
    fn make(x: f32) -> Self;
    /// Takes bits as they are.
    fn keep(x: f32) -> Self;
}

impl Single for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }
    #[inline(always)]
    fn make(x: f32) -> f32 {
        if x.is_nan() { f32::from_bits(NAN32) } else { x }
    }
    #[inline(always)]
    fn keep(x: f32) -> f32 {
        x
    }
}

impl Single for Ftz {
    #[inline(always)]
    fn get(self) -> f32 {
        self.0
    }
    #[inline(always)]
    fn make(x: f32) -> Ftz {
        Ftz(f32::make(x))
    }
    #[inline(always)]
    fn keep(x: f32) -> Ftz {
        Ftz(x)
    }
}

macro_rules! single_binary {
    ($name:ident, $slow:expr, |$a:ident, $b:ident| $e:expr) => {
        pub(crate) struct $name<T, const R: u8>(PhantomData<T>);
        impl<T: Single, const R: u8> Bin for $name<T, R> {
            type A = T;
            type B = T;
            type D = T;
            const SLOW: bool = $slow;
            #[inline(always)]
            fn f($a: T, $b: T) -> T {
                let ($a, $b) = ($a.get(), $b.get());
                T::make($e)
            }
        }
    };
}
macro_rules! single_unary {
    ($name:ident, $slow:expr, |$a:ident| $e:expr) => {
        pub(crate) struct $name<T, const R: u8>(PhantomData<T>);
        impl<T: Single, const R: u8> Un for $name<T, R> {
            type A = T;
            type D = T;
            const SLOW: bool = $slow;
            #[inline(always)]
            fn f($a: T) -> T {
                let $a = $a.get();
                T::make($e)
            }
        }
    };
}
single_binary!(Add32, false, |a, b| add32(a, b, const { round(R) }));
single_binary!(Sub32, false, |a, b| add32(a, -b, const { round(R) }));
single_binary!(Mul32, false, |a, b| mul32(a, b, const { round(R) }));
single_binary!(Div32, false, |a, b| div32(a, b, const { round(R) }));
// Documented for divisors beyond 2^126: the reciprocal underflows.
single_binary!(DivApprox, false, |a, b| if b.abs() > f32::from_bits(0x7e80_0000) && b.abs() < f32::INFINITY {
    a * 0f32.copysign(b)
} else {
    a / b
});
single_binary!(Min32, false, |a, b| min(a, b));
single_binary!(Max32, false, |a, b| max(a, b));
single_binary!(MinNan32, false, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { min(a, b) });
single_binary!(MaxNan32, false, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) });
single_unary!(Rcp32, false, |a| div32(1.0, a, const { round(R) }));
single_unary!(Sqrt32, false, |a| sqrt32(a, const { round(R) }));
single_unary!(Rsqrt32, false, |a| (1.0 / f64::from(a).sqrt()) as f32);
single_unary!(Ex2, true, |a| a.exp2());
single_unary!(Lg2, true, |a| a.log2());
single_unary!(Sin, true, |a| a.sin());
single_unary!(Cos, true, |a| a.cos());
single_unary!(Tanh, true, |a| a.tanh());
// `.sat`: NaN becomes 0.
single_unary!(Sat32, false, |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 });

/// `neg` and `abs` change the sign bit only, also of a NaN.
pub(crate) struct Neg<T>(PhantomData<T>);
pub(crate) struct Abs<T>(PhantomData<T>);
impl<T: Single> Un for Neg<T> {
    type A = T;
    type D = T;
    #[inline(always)]
    fn f(a: T) -> T {
        T::keep(-a.get())
    }
}
impl<T: Single> Un for Abs<T> {
    type A = T;
    type D = T;
    #[inline(always)]
    fn f(a: T) -> T {
        T::keep(a.get().abs())
    }
}
/// `fma`
pub(crate) struct Fma32<T, const R: u8>(PhantomData<T>);
impl<T: Single, const R: u8> Tern for Fma32<T, R> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn f(a: T, b: T, c: T) -> T {
        T::make(fma32(a.get(), b.get(), c.get(), const { round(R) }))
    }
}

/// The number if one operand is NaN; -0 is less than +0.
#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b || b.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }
}
#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b || b.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
}
#[inline(always)]
fn min_f64(a: f64, b: f64) -> f64 {
    if a < b || b.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }
}
#[inline(always)]
fn max_f64(a: f64, b: f64) -> f64 {
    if a > b || b.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
}
#[inline(always)]
fn flush64(x: f64) -> f64 {
    if x.abs() < f64::MIN_POSITIVE { 0f64.copysign(x) } else { x }
}

macro_rules! double_binary {
    ($name:ident, |$a:ident, $b:ident| $e:expr) => {
        pub(crate) struct $name<const R: u8>;
        impl<const R: u8> Bin for $name<R> {
            type A = f64;
            type B = f64;
            type D = f64;
            const SLOW: bool = R != RN;
            #[inline(always)]
            fn f($a: f64, $b: f64) -> f64 {
                $e
            }
        }
    };
}
macro_rules! double_unary {
    ($name:ident, |$a:ident| $e:expr) => {
        pub(crate) struct $name<const R: u8>;
        impl<const R: u8> Un for $name<R> {
            type A = f64;
            type D = f64;
            const SLOW: bool = R != RN;
            #[inline(always)]
            fn f($a: f64) -> f64 {
                $e
            }
        }
    };
}
double_binary!(Add64, |a, b| add64(a, b, const { round(R) }));
double_binary!(Sub64, |a, b| add64(a, -b, const { round(R) }));
double_binary!(Mul64, |a, b| mul64(a, b, const { round(R) }));
double_binary!(Div64, |a, b| div64(a, b, const { round(R) }));
double_binary!(Min64, |a, b| min_f64(a, b));
double_binary!(Max64, |a, b| max_f64(a, b));
double_unary!(Rcp64, |a| div64(1.0, a, const { round(R) }));
double_unary!(Sqrt64, |a| sqrt64(a, const { round(R) }));
double_unary!(Rsqrt64, |a| 1.0 / a.sqrt());
double_unary!(Rcp64Ftz, |a| flush64(1.0 / flush64(a)));
double_unary!(Rsqrt64Ftz, |a| 1.0 / flush64(a).sqrt());
double_unary!(Neg64, |a| -a);
double_unary!(Abs64, |a| a.abs());
/// `fma`
pub(crate) struct Fma64<const R: u8>;
impl<const R: u8> Tern for Fma64<R> {
    type A = f64;
    type B = f64;
    type C = f64;
    type D = f64;
    const SLOW: bool = R != RN;
    #[inline(always)]
    fn f(a: f64, b: f64, c: f64) -> f64 {
        fma64(a, b, c, const { round(R) })
    }
}

/// `copysign`: the sign of the first operand on the second.
pub(crate) struct Copysign<T>(PhantomData<T>);
impl Bin for Copysign<f32> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32) -> f32 {
        b.copysign(a)
    }
}
impl Bin for Copysign<f64> {
    type A = f64;
    type B = f64;
    type D = f64;
    #[inline(always)]
    fn f(a: f64, b: f64) -> f64 {
        b.copysign(a)
    }
}

/// Values of 16-bit formats, alone or in pairs: what an operation does to each.
pub(crate) trait Smalls: Lane<Word = u32> {
    type One: Small;
    fn each(self, f: impl Fn(Self::One) -> Self::One) -> Self;
    fn zip(self, other: Self, f: impl Fn(Self::One, Self::One) -> Self::One) -> Self;
    fn zip3(self, b: Self, c: Self, f: impl Fn(Self::One, Self::One, Self::One) -> Self::One) -> Self;
}

macro_rules! one_small {
    ($t:ident) => {
        impl Smalls for $t {
            type One = $t;
            #[inline(always)]
            fn each(self, f: impl Fn($t) -> $t) -> Self {
                f(self)
            }
            #[inline(always)]
            fn zip(self, b: Self, f: impl Fn($t, $t) -> $t) -> Self {
                f(self, b)
            }
            #[inline(always)]
            fn zip3(self, b: Self, c: Self, f: impl Fn($t, $t, $t) -> $t) -> Self {
                f(self, b, c)
            }
        }
        impl Smalls for Two<$t> {
            type One = $t;
            #[inline(always)]
            fn each(self, f: impl Fn($t) -> $t) -> Self {
                Two(f(self.0), f(self.1))
            }
            #[inline(always)]
            fn zip(self, b: Self, f: impl Fn($t, $t) -> $t) -> Self {
                Two(f(self.0, b.0), f(self.1, b.1))
            }
            #[inline(always)]
            fn zip3(self, b: Self, c: Self, f: impl Fn($t, $t, $t) -> $t) -> Self {
                Two(f(self.0, b.0, c.0), f(self.1, b.1, c.1))
            }
        }
    };
}
one_small!(Half);
one_small!(Bf16);

fn wide<S: Small>(x: S) -> f64 {
    f64::from(x.wide())
}
fn nearest<S: Small>(x: f64) -> S {
    S::narrow(x, Round::Nearest)
}
/// Minimum and maximum as for f32; `nan` makes any NaN operand win.
fn small_min<S: Small>(a: S, b: S, nan: bool) -> S {
    let (x, y) = (a.wide(), b.wide());
    if (x.is_nan() && y.is_nan()) || nan && (x.is_nan() || y.is_nan()) {
        S::NAN
    } else if min(x, y).to_bits() == x.to_bits() {
        a
    } else {
        b
    }
}
fn small_max<S: Small>(a: S, b: S, nan: bool) -> S {
    let (x, y) = (a.wide(), b.wide());
    if (x.is_nan() && y.is_nan()) || nan && (x.is_nan() || y.is_nan()) {
        S::NAN
    } else if max(x, y).to_bits() == x.to_bits() {
        a
    } else {
        b
    }
}

macro_rules! small_unary {
    ($name:ident, |$a:ident| $e:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Smalls> Un for $name<T> {
            type A = T;
            type D = T;
            const SLOW: bool = true;
            #[inline(always)]
            fn f(a: T) -> T {
                a.each(|$a| $e)
            }
        }
    };
}
macro_rules! small_binary {
    ($name:ident, |$a:ident, $b:ident| $e:expr) => {
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Smalls> Bin for $name<T> {
            type A = T;
            type B = T;
            type D = T;
            const SLOW: bool = true;
            #[inline(always)]
            fn f(a: T, b: T) -> T {
                a.zip(b, |$a, $b| $e)
            }
        }
    };
}
small_unary!(NegH, |a| Small::from_bits(a.bits() ^ 0x8000));
small_unary!(AbsH, |a| Small::from_bits(a.bits() & 0x7fff));
small_unary!(Ex2H, |a| nearest(wide(a).exp2()));
small_unary!(TanhH, |a| nearest(wide(a).tanh()));
small_unary!(SatH, |a| nearest(if wide(a) > 0.0 { wide(a).min(1.0) } else { 0.0 }));
small_unary!(ReluH, |a| if a.wide().is_nan() { Small::NAN } else { nearest(wide(a).max(0.0)) });
small_binary!(AddH, |a, b| nearest(wide(a) + wide(b)));
small_binary!(SubH, |a, b| nearest(wide(a) - wide(b)));
small_binary!(MulH, |a, b| nearest(wide(a) * wide(b)));
small_binary!(MinH, |a, b| small_min(a, b, false));
small_binary!(MaxH, |a, b| small_max(a, b, false));
small_binary!(MinNanH, |a, b| small_min(a, b, true));
small_binary!(MaxNanH, |a, b| small_max(a, b, true));
/// `fma` of 16-bit formats.
pub(crate) struct FmaH<T>(PhantomData<T>);
impl<T: Smalls> Tern for FmaH<T> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    const SLOW: bool = true;
    #[inline(always)]
    fn f(a: T, b: T, c: T) -> T {
        a.zip3(b, c, |a, b, c| nearest(fma_odd(wide(a), wide(b), wide(c))))
    }
}

/// Sum as atomics on 16-bit formats need it.
pub(crate) fn add_small<S: Small>(a: u16, b: u16) -> u16 {
    nearest::<S>(add_odd(wide(S::from_bits(a)), wide(S::from_bits(b)))).bits()
}

macro_rules! comparisons {
    ($($name:ident, |$a:ident, $b:ident| $e:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        #[allow(
            clippy::double_comparisons,
            clippy::neg_cmp_op_on_partial_ord,
            clippy::nonminimal_bool,
            reason = "simpler forms are wrong for NaN"
        )]
        impl<T: Lane + Value> Cmp for $name<T> {
            type A = T;
            #[inline(always)]
            fn f(a: T, b: T) -> bool {
                let ($a, $b) = (a.value(), b.value());
                $e
            }
        }
    )*};
}
comparisons! {
    Eq, |a, b| a == b;
    Ne, |a, b| a < b || a > b;
    Lt, |a, b| a < b;
    Le, |a, b| a <= b;
    Gt, |a, b| a > b;
    Ge, |a, b| a >= b;
    Equ, |a, b| !(a < b || a > b);
    Neu, |a, b| a != b;
    Ltu, |a, b| !(a >= b);
    Leu, |a, b| !(a > b);
    Gtu, |a, b| !(a <= b);
    Geu, |a, b| !(a < b);
    Num, |a, b| a == b || a < b || a > b;
    Nan, |a, b| !(a == b || a < b || a > b);
}

/// What comparisons compare.
pub(crate) trait Value {
    type V: PartialOrd + Copy;
    fn value(self) -> Self::V;
}
macro_rules! values {
    ($($t:ty => $v:ty, |$x:ident| $e:expr;)*) => {$(
        impl Value for $t {
            type V = $v;
            #[inline(always)]
            fn value(self) -> $v { let $x = self; $e }
        }
    )*};
}
values! {
    u16 => u16, |x| x; i16 => i16, |x| x; u32 => u32, |x| x; i32 => i32, |x| x; u64 => u64, |x| x; i64 => i64, |x| x;
    f32 => f32, |x| x; f64 => f64, |x| x; Ftz => f32, |x| x.0; Half => f32, |x| x.wide(); Bf16 => f32, |x| x.wide();
}

macro_rules! int_compare {
    ($wrap:ident, $op:expr, $t:ty) => {
        match $op {
            "eq" => handler::<$wrap<Eq<$t>>>(),
            "ne" => handler::<$wrap<Neu<$t>>>(),
            "lt" | "lo" => handler::<$wrap<Lt<$t>>>(),
            "le" | "ls" => handler::<$wrap<Le<$t>>>(),
            "gt" | "hi" => handler::<$wrap<Gt<$t>>>(),
            "ge" | "hs" => handler::<$wrap<Ge<$t>>>(),
            _ => return None,
        }
    };
}
macro_rules! float_compare {
    ($wrap:ident, $op:expr, $t:ty) => {
        match $op {
            "eq" => handler::<$wrap<Eq<$t>>>(),
            "ne" => handler::<$wrap<Ne<$t>>>(),
            "lt" => handler::<$wrap<Lt<$t>>>(),
            "le" => handler::<$wrap<Le<$t>>>(),
            "gt" => handler::<$wrap<Gt<$t>>>(),
            "ge" => handler::<$wrap<Ge<$t>>>(),
            "equ" => handler::<$wrap<Equ<$t>>>(),
            "neu" => handler::<$wrap<Neu<$t>>>(),
            "ltu" => handler::<$wrap<Ltu<$t>>>(),
            "leu" => handler::<$wrap<Leu<$t>>>(),
            "gtu" => handler::<$wrap<Gtu<$t>>>(),
            "geu" => handler::<$wrap<Geu<$t>>>(),
            "num" => handler::<$wrap<Num<$t>>>(),
            "nan" => handler::<$wrap<Nan<$t>>>(),
            _ => return None,
        }
    };
}
macro_rules! compare {
    ($wrap:ident, $op:expr, $ty:expr, $ftz:expr) => {
        match $ty {
            // Unsigned comparison words make the signedness of the type immaterial.
            Ty::S16 if !matches!($op, "lo" | "ls" | "hi" | "hs") => int_compare!($wrap, $op, i16),
            Ty::S32 if !matches!($op, "lo" | "ls" | "hi" | "hs") => int_compare!($wrap, $op, i32),
            Ty::S64 if !matches!($op, "lo" | "ls" | "hi" | "hs") => int_compare!($wrap, $op, i64),
            Ty::B16 | Ty::U16 | Ty::S16 => int_compare!($wrap, $op, u16),
            Ty::B32 | Ty::U32 | Ty::S32 => int_compare!($wrap, $op, u32),
            Ty::B64 | Ty::U64 | Ty::S64 => int_compare!($wrap, $op, u64),
            Ty::F32 if $ftz => float_compare!($wrap, $op, Ftz),
            Ty::F32 => float_compare!($wrap, $op, f32),
            Ty::F64 => float_compare!($wrap, $op, f64),
            Ty::F16 => float_compare!($wrap, $op, Half),
            Ty::Bf16 => float_compare!($wrap, $op, Bf16),
            _ => return None,
        }
    };
}

/// Handler of `setp` with comparison word `op`.
pub(crate) fn setp(op: &str, ty: Ty, ftz: bool) -> Option<Handler> {
    Some(compare!(Setp, op, ty, ftz))
}

/// Handler of `set` with comparison word `op`.
pub(crate) fn set(op: &str, ty: Ty, ftz: bool) -> Option<Handler> {
    Some(compare!(Set, op, ty, ftz))
}

/// Picks the instance for a rounding direction.
macro_rules! rounded {
    ($wrap:ident, $mode:expr, $op:ident $(, $t:ty)?) => {
        match $mode {
            Round::Nearest => handler::<$wrap<$op<$($t,)? RN>>>(),
            Round::Zero => handler::<$wrap<$op<$($t,)? RZ>>>(),
            Round::Down => handler::<$wrap<$op<$($t,)? RM>>>(),
            Round::Up => handler::<$wrap<$op<$($t,)? RP>>>(),
        }
    };
}
/// Picks the instance for flushing and a rounding direction.
macro_rules! single {
    ($wrap:ident, $op:ident, $mode:expr, $ftz:expr) => {
        if $ftz { rounded!($wrap, $mode, $op, Ftz) } else { rounded!($wrap, $mode, $op, f32) }
    };
    ($wrap:ident, $op:ident, $ftz:expr) => {
        if $ftz { handler::<$wrap<$op<Ftz, RN>>>() } else { handler::<$wrap<$op<f32, RN>>>() }
    };
}
macro_rules! small {
    ($wrap:ident, $op:ident, $ty:expr) => {
        match $ty {
            Ty::F16 => handler::<$wrap<$op<Half>>>(),
            Ty::F16x2 => handler::<$wrap<$op<Two<Half>>>>(),
            Ty::Bf16 => handler::<$wrap<$op<Bf16>>>(),
            Ty::Bf16x2 => handler::<$wrap<$op<Two<Bf16>>>>(),
            _ => return None,
        }
    };
}

/// Handler of a floating-point operation of one source.
pub(crate) fn unary(op: &str, ty: Ty, mode: Round, ftz: bool, approx: bool) -> Option<Handler> {
    Some(match (op, ty) {
        ("neg", Ty::F32) => {
            if ftz {
                handler::<U1<Neg<Ftz>>>()
            } else {
                handler::<U1<Neg<f32>>>()
            }
        }
        ("abs", Ty::F32) => {
            if ftz {
                handler::<U1<Abs<Ftz>>>()
            } else {
                handler::<U1<Abs<f32>>>()
            }
        }
        ("sat", Ty::F32) => single!(U1, Sat32, ftz),
        ("rcp", Ty::F32) => single!(U1, Rcp32, mode, ftz),
        ("sqrt", Ty::F32) => single!(U1, Sqrt32, mode, ftz),
        ("rsqrt", Ty::F32) => single!(U1, Rsqrt32, ftz),
        ("ex2", Ty::F32) => single!(U1, Ex2, ftz),
        ("lg2", Ty::F32) => single!(U1, Lg2, ftz),
        ("sin", Ty::F32) => single!(U1, Sin, ftz),
        ("cos", Ty::F32) => single!(U1, Cos, ftz),
        ("tanh", Ty::F32) => single!(U1, Tanh, ftz),
        ("neg", Ty::F64) => handler::<U1<Neg64<RN>>>(),
        ("abs", Ty::F64) => handler::<U1<Abs64<RN>>>(),
        ("rcp", Ty::F64) if approx => handler::<U1<Rcp64Ftz<RN>>>(),
        ("rcp", Ty::F64) => rounded!(U1, mode, Rcp64),
        ("sqrt", Ty::F64) => rounded!(U1, mode, Sqrt64),
        ("rsqrt", Ty::F64) if ftz => handler::<U1<Rsqrt64Ftz<RN>>>(),
        ("rsqrt", Ty::F64) => handler::<U1<Rsqrt64<RN>>>(),
        ("neg", _) => small!(U1, NegH, ty),
        ("abs", _) => small!(U1, AbsH, ty),
        ("ex2", _) => small!(U1, Ex2H, ty),
        ("tanh", _) => small!(U1, TanhH, ty),
        ("sat", _) => small!(U1, SatH, ty),
        ("relu", _) => small!(U1, ReluH, ty),
        _ => return None,
    })
}

/// Handler of a floating-point operation of two sources.
pub(crate) fn binary(op: &str, ty: Ty, mode: Round, ftz: bool) -> Option<Handler> {
    Some(match (op, ty) {
        ("add", Ty::F32) => single!(B2, Add32, mode, ftz),
        ("sub", Ty::F32) => single!(B2, Sub32, mode, ftz),
        ("mul", Ty::F32) => single!(B2, Mul32, mode, ftz),
        ("div", Ty::F32) => single!(B2, Div32, mode, ftz),
        ("div.approx", Ty::F32) => single!(B2, DivApprox, ftz),
        ("min", Ty::F32) => single!(B2, Min32, ftz),
        ("max", Ty::F32) => single!(B2, Max32, ftz),
        ("min.NaN", Ty::F32) => single!(B2, MinNan32, ftz),
        ("max.NaN", Ty::F32) => single!(B2, MaxNan32, ftz),
        ("copysign", Ty::F32) => handler::<B2<Copysign<f32>>>(),
        ("add", Ty::F64) => rounded!(B2, mode, Add64),
        ("sub", Ty::F64) => rounded!(B2, mode, Sub64),
        ("mul", Ty::F64) => rounded!(B2, mode, Mul64),
        ("div", Ty::F64) => rounded!(B2, mode, Div64),
        ("min", Ty::F64) => handler::<B2<Min64<RN>>>(),
        ("max", Ty::F64) => handler::<B2<Max64<RN>>>(),
        ("copysign", Ty::F64) => handler::<B2<Copysign<f64>>>(),
        ("add", _) => small!(B2, AddH, ty),
        ("sub", _) => small!(B2, SubH, ty),
        ("mul", _) => small!(B2, MulH, ty),
        ("min", _) => small!(B2, MinH, ty),
        ("max", _) => small!(B2, MaxH, ty),
        ("min.NaN", _) => small!(B2, MinNanH, ty),
        ("max.NaN", _) => small!(B2, MaxNanH, ty),
        _ => return None,
    })
}

/// Handler of `fma` (and of `mad`, which is fused for floating point).
pub(crate) fn fma(ty: Ty, mode: Round, ftz: bool) -> Option<Handler> {
    Some(match ty {
        Ty::F32 => single!(T3, Fma32, mode, ftz),
        Ty::F64 => rounded!(T3, mode, Fma64),
        _ => small!(T3, FmaH, ty),
    })
}
