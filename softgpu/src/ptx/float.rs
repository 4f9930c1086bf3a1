//! Floating-point arithmetic with explicit rounding, subnormal flushing, and the 16-bit formats.
//!
//! Method: operations on narrow formats are done in f64 and rounded to odd there. 53 bits hold at least two more than any
//! narrow format, so the final rounding, in whatever direction, sees what the exact value would have shown it.

/// Rounding direction of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// `Round` as a const generic argument.
pub(crate) const RN: u8 = 0;
pub(crate) const RZ: u8 = 1;
pub(crate) const RM: u8 = 2;
pub(crate) const RP: u8 = 3;

/// The rounding direction of the const generic argument.
pub(crate) const fn round(code: u8) -> Round {
    match code {
        RZ => Round::Zero,
        RM => Round::Down,
        RP => Round::Up,
        _ => Round::Nearest,
    }
}

/// The bits of the quiet NaN that the hardware makes.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// Bits of an IEEE half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Half(pub(crate) u16);
/// Bits of a bfloat16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bf16(pub(crate) u16);
/// Two packed values of a 16-bit format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Two<T>(pub(crate) T, pub(crate) T);
/// An f32 whose subnormals read and write as zero of their sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ftz(pub(crate) f32);

/// Replaces a subnormal by zero of its sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// A 16-bit format.
pub(crate) trait Small: Copy {
    /// Canonical NaN.
    const NAN: Self;
    fn wide(self) -> f32;
    /// Rounds `x`; an infinity means overflow only if `x` is one or the direction says so.
    fn narrow(x: f64, mode: Round) -> Self;
    fn bits(self) -> u16;
    fn from_bits(bits: u16) -> Self;
}

impl Small for Half {
    const NAN: Half = Half(0x7fff);
    fn wide(self) -> f32 {
        let (sign, exponent, fraction) = (u32::from(self.0 >> 15) << 31, u32::from(self.0 >> 10 & 31), u32::from(self.0 & 0x3ff));
        let magnitude = match exponent {
            0 => (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits(),
            31 => 0x7f80_0000 | fraction << 13,
            _ => (exponent + 112) << 23 | fraction << 13,
        };
        f32::from_bits(sign | magnitude)
    }
    fn narrow(x: f64, mode: Round) -> Self {
        if x.is_nan() { Half::NAN } else { Half(round_small(x, 10, 15, mode)) }
    }
    fn bits(self) -> u16 {
        self.0
    }
    fn from_bits(bits: u16) -> Self {
        Half(bits)
    }
}

impl Small for Bf16 {
    const NAN: Bf16 = Bf16(0x7fff);
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    fn narrow(x: f64, mode: Round) -> Self {
        if x.is_nan() { Bf16::NAN } else { Bf16(round_small(x, 7, 127, mode)) }
    }
    fn bits(self) -> u16 {
        self.0
    }
    fn from_bits(bits: u16) -> Self {
        Bf16(bits)
    }
}

/// Rounds `x` (not NaN) to a 16-bit format of `fraction` stored bits and exponent bias `bias`.
fn round_small(x: f64, fraction: u32, bias: i32, mode: Round) -> u16 {
    let sign = u16::from(x.is_sign_negative()) << 15;
    let infinity = ((2 * bias + 1) as u16) << fraction;
    let bits = x.abs().to_bits();
    if x == 0.0 || x.is_infinite() {
        return sign | if x == 0.0 { 0 } else { infinity };
    }
    let exponent = (bits >> 52) as i32 - 1023;
    // A subnormal f64 is far below half the least value of any small format; its exact bits do not matter.
    let significand = bits & ((1 << 52) - 1) | 1 << 52;
    let exponent = exponent.max(-200);
    // Bits to drop so that the unit in the last place is that of the format, subnormals included.
    let lost = (52 - fraction as i32) + (1 - bias - exponent).max(0);
    let biased = (exponent + bias).max(1);
    let (kept, rest, half) =
        if lost >= 63 { (0, 1u64, 2u64) } else { (significand >> lost, significand & ((1 << lost) - 1), 1u64 << (lost - 1)) };
    let up = rest != 0
        && match mode {
            Round::Nearest => rest > half || rest == half && kept & 1 == 1,
            Round::Zero => false,
            Round::Down => sign != 0,
            Round::Up => sign == 0,
        };
    let kept = kept + u64::from(up);
    // The implicit bit of `kept` carries into the exponent field, also when rounding overflowed the significand.
    let magnitude = ((biased - 1) as u64) << fraction;
    let magnitude = magnitude + kept;
    if magnitude >= u64::from(infinity) {
        let away = match mode {
            Round::Nearest => true,
            Round::Zero => false,
            Round::Down => sign != 0,
            Round::Up => sign == 0,
        };
        return sign | if away { infinity } else { infinity - 1 };
    }
    sign | magnitude as u16
}

/// Moves `r`, the nearest value to `r + error`, to the neighbour that `mode` asks for. Only the sign of `error` counts.
macro_rules! directed {
    ($name:ident, $t:ty) => {
        #[inline(always)]
        fn $name(r: $t, error: f64, mode: Round) -> $t {
            if error == 0.0 || r.is_nan() {
                return r;
            }
            match mode {
                Round::Nearest => r,
                Round::Down => {
                    if error < 0.0 {
                        r.next_down()
                    } else {
                        r
                    }
                }
                Round::Up => {
                    if error > 0.0 {
                        r.next_up()
                    } else {
                        r
                    }
                }
                Round::Zero => {
                    // A result of 0 has lost a tiny exact value: zero is its truncation.
                    if r > 0.0 && error < 0.0 {
                        r.next_down()
                    } else if r < 0.0 && error > 0.0 {
                        r.next_up()
                    } else {
                        r
                    }
                }
            }
        }
    };
}
directed!(directed32, f32);
directed!(directed64, f64);

/// Rounds an f64 (possibly itself rounded to odd) to f32.
#[inline(always)]
pub(crate) fn narrow32(x: f64, mode: Round) -> f32 {
    let r = x as f32;
    if mode == Round::Nearest || x.is_infinite() {
        return r;
    }
    directed32(r, x - f64::from(r), mode)
}

/// Given `s` nearest to the exact `s + error`, the same value rounded to odd.
#[inline(always)]
fn to_odd(s: f64, error: f64) -> f64 {
    if error == 0.0 || !s.is_finite() || error.is_nan() || s.to_bits() & 1 == 1 {
        return s;
    }
    if error > 0.0 { s.next_up() } else { s.next_down() }
}

/// Error of `s`, the nearest value to `a + b`: exact unless something overflowed.
#[inline(always)]
fn sum_error(a: f64, b: f64, s: f64) -> f64 {
    let t = s - a;
    (a - (s - t)) + (b - t)
}

/// `a + b` of values narrower than f64, rounded to odd.
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    to_odd(s, sum_error(a, b, s))
}

/// `a * b + c` of values narrower than f64 whose product f64 holds exactly, rounded to odd.
#[inline(always)]
pub(crate) fn fma_odd(a: f64, b: f64, c: f64) -> f64 {
    add_odd(a * b, c)
}

/// `a / b` of values narrower than f64, rounded to odd.
#[inline(always)]
pub(crate) fn div_odd(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || q == 0.0 {
        return q;
    }
    let rest = (-q).mul_add(b, a);
    to_odd(q, if b < 0.0 { -rest } else { rest })
}

/// Square root of a value narrower than f64, rounded to odd.
#[inline(always)]
pub(crate) fn sqrt_odd(a: f64) -> f64 {
    let r = a.sqrt();
    to_odd(r, (-r).mul_add(r, a))
}

/// Sum of zeros of opposite sign is -0 only when rounding down.
#[inline(always)]
fn zero_sum(s: f64, a: f64, b: f64, mode: Round) -> f64 {
    if s == 0.0 && mode == Round::Down && (a != 0.0 || a.is_sign_negative() || b.is_sign_negative()) { -0.0 } else { s }
}

/// f32 addition in a direction.
#[inline(always)]
pub(crate) fn add32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Nearest {
        return a + b;
    }
    let (a, b) = (f64::from(a), f64::from(b));
    narrow32(zero_sum(add_odd(a, b), a, b, mode), mode)
}

/// f32 multiplication in a direction.
#[inline(always)]
pub(crate) fn mul32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Nearest { a * b } else { narrow32(f64::from(a) * f64::from(b), mode) }
}

/// f32 fused multiply-add in a direction.
#[inline(always)]
pub(crate) fn fma32(a: f32, b: f32, c: f32, mode: Round) -> f32 {
    if mode == Round::Nearest {
        return a.mul_add(b, c);
    }
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    narrow32(zero_sum(add_odd(p, c), p, c, mode), mode)
}

/// f32 division in a direction.
#[inline(always)]
pub(crate) fn div32(a: f32, b: f32, mode: Round) -> f32 {
    if mode == Round::Nearest { a / b } else { narrow32(div_odd(f64::from(a), f64::from(b)), mode) }
}

/// f32 square root in a direction.
#[inline(always)]
pub(crate) fn sqrt32(a: f32, mode: Round) -> f32 {
    if mode == Round::Nearest { a.sqrt() } else { narrow32(sqrt_odd(f64::from(a)), mode) }
}

/// Where finite operands overflowed to infinity, the exact value lies below it.
#[inline(always)]
fn overflow_error(r: f64, finite: bool, error: f64) -> f64 {
    if r.is_infinite() { if finite { -r } else { 0.0 } } else { error }
}

/// f64 addition in a direction.
#[inline(always)]
pub(crate) fn add64(a: f64, b: f64, mode: Round) -> f64 {
    let s = a + b;
    if mode == Round::Nearest {
        return s;
    }
    let error = overflow_error(s, a.is_finite() && b.is_finite(), sum_error(a, b, s));
    directed64(zero_sum(s, a, b, mode), error, mode)
}

/// Brings a finite nonzero `x` near 1 in magnitude; also the power of two that undoes it.
fn normalised(x: f64) -> (f64, i32) {
    let (x, pre) = if x.abs() < f64::MIN_POSITIVE { (x * 2f64.powi(60), -60) } else { (x, 0) };
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    (f64::from_bits(x.to_bits() & !(0x7ff << 52) | 1023 << 52), exponent + pre)
}

/// `x * 2^exponent` without intermediate rounding for results in range; saturates to 0 or infinity far outside.
fn scaled(x: f64, exponent: i32) -> f64 {
    let step = exponent.clamp(-1000, 1000);
    let rest = (exponent - step).clamp(-1000, 1000);
    x * 2f64.powi(step) * 2f64.powi(rest)
}

/// f64 multiplication in a direction.
#[inline(always)]
pub(crate) fn mul64(a: f64, b: f64, mode: Round) -> f64 {
    let r = a * b;
    if mode == Round::Nearest || a == 0.0 || b == 0.0 || !a.is_finite() || !b.is_finite() {
        return r;
    }
    // Scaled so that the error of the product cannot underflow.
    let ((na, ea), (nb, eb)) = (normalised(a), normalised(b));
    let error = na.mul_add(nb, -scaled(r, -(ea + eb)));
    directed64(r, overflow_error(r, true, error), mode)
}

/// f64 fused multiply-add in a direction.
#[inline(always)]
pub(crate) fn fma64(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    let r = a.mul_add(b, c);
    if mode == Round::Nearest || !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return r;
    }
    directed64(zero_sum(r, a * b, c, mode), overflow_error(r, true, fma_error(a, b, c, r)), mode)
}

/// A value with the sign of `a * b + c - r`, for `r` the nearest value to `a * b + c`.
fn fma_error(a: f64, b: f64, c: f64, r: f64) -> f64 {
    let tiny = 2f64.powi(-900);
    let (mut a, mut b, mut c, mut r) = (a, b, c, r);
    if a != 0.0 && b != 0.0 && (a * b).abs() < tiny {
        // The product's error could underflow: compute in units of the product.
        let ((na, ea), (nb, eb)) = (normalised(a), normalised(b));
        let exponent = ea + eb;
        if c != 0.0 && normalised(c).1 - exponent > 900 {
            // Far below the last place of `c`, which then is the nearest value.
            return 1f64.copysign(na * nb);
        }
        (a, b, c, r) = (na, nb, scaled(c, -exponent), scaled(r, -exponent));
    }
    let p = a * b;
    let p_error = a.mul_add(b, -p);
    let s = p + c;
    let s_error = sum_error(p, c, s);
    let t = s - r;
    let u = t + s_error;
    let u_error = sum_error(t, s_error, u);
    let v = u + p_error;
    if v == 0.0 { u_error } else { v }
}

/// f64 division in a direction.
#[inline(always)]
pub(crate) fn div64(a: f64, b: f64, mode: Round) -> f64 {
    let r = a / b;
    if mode == Round::Nearest || a == 0.0 || b == 0.0 || !a.is_finite() || !b.is_finite() {
        return r;
    }
    let ((na, ea), (nb, eb)) = (normalised(a), normalised(b));
    let rest = (-scaled(r, eb - ea)).mul_add(nb, na);
    directed64(r, overflow_error(r, true, if b < 0.0 { -rest } else { rest }), mode)
}

/// f64 square root in a direction.
#[inline(always)]
pub(crate) fn sqrt64(a: f64, mode: Round) -> f64 {
    let r = a.sqrt();
    if mode == Round::Nearest || a == 0.0 || !a.is_finite() || a < 0.0 {
        return r;
    }
    let shift = if a < 2f64.powi(-900) { 200 } else { 0 };
    let (a, root) = (a * 2f64.powi(shift), r * 2f64.powi(shift / 2));
    directed64(r, (-root).mul_add(root, a), mode)
}

/// An integer as f64 rounded to odd.
pub(crate) fn int_odd(v: i128) -> f64 {
    let f = v as f64;
    let error = v - f as i128;
    to_odd(f, error as f64)
}

/// An integer as f64 in a direction.
pub(crate) fn int64(v: i128, mode: Round) -> f64 {
    let f = v as f64;
    directed64(f, (v - f as i128) as f64, mode)
}

/// `x` rounded to an integral value in a direction.
pub(crate) fn integral(x: f64, mode: Round) -> f64 {
    match mode {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_round_trips_and_rounds() {
        for bits in 0..=0xffffu16 {
            let wide = Half(bits).wide();
            if wide.is_nan() {
                assert_eq!(Half::narrow(f64::from(wide), Round::Nearest), Half::NAN);
            } else {
                assert_eq!(Half::narrow(f64::from(wide), Round::Nearest).0, bits);
                assert_eq!(Half::narrow(f64::from(wide), Round::Up).0, bits);
            }
        }
        assert_eq!(Half::narrow(65519.0, Round::Nearest).0, 0x7bff);
        assert_eq!(Half::narrow(65520.0, Round::Nearest).0, 0x7c00);
        assert_eq!(Half::narrow(1e9, Round::Zero).0, 0x7bff);
        assert_eq!(Half::narrow(-1e9, Round::Up).0, 0xfbff);
        assert_eq!(Half::narrow(1e-30, Round::Up).0, 1);
        assert_eq!(Half::narrow(2f64.powi(-25), Round::Nearest).0, 0);
        assert_eq!(Half::narrow(2f64.powi(-25) * 1.0001, Round::Nearest).0, 1);
        assert_eq!(Half::narrow(1.0 + 2f64.powi(-11), Round::Nearest).0, 0x3c00);
        assert_eq!(Half::narrow(1.0 + 3.0 * 2f64.powi(-11), Round::Nearest).0, 0x3c02);
    }

    #[test]
    fn bf16_round_trips() {
        for bits in 0..=0xffffu16 {
            let wide = Bf16(bits).wide();
            if !wide.is_nan() {
                assert_eq!(Bf16::narrow(f64::from(wide), Round::Nearest).0, bits);
            }
        }
        assert_eq!(Bf16::narrow(f64::from(f32::MAX), Round::Nearest).0, 0x7f80);
    }

    #[test]
    fn directions_of_f32() {
        let third = 1.0f32 / 3.0;
        assert!(div32(1.0, 3.0, Round::Down) < div32(1.0, 3.0, Round::Up));
        assert!([Round::Down, Round::Up].map(|m| div32(1.0, 3.0, m)).contains(&third));
        assert_eq!(add32(1.0, 1e-20, Round::Up), 1f32.next_up());
        assert_eq!(add32(1.0, 1e-20, Round::Zero), 1.0);
        assert_eq!(add32(1.0, -1e-20, Round::Zero), 1f32.next_down());
        assert_eq!(mul32(f32::MAX, 2.0, Round::Zero), f32::MAX);
        assert_eq!(mul32(f32::MAX, 2.0, Round::Up), f32::INFINITY);
        assert_eq!(mul32(1e-30, 1e-30, Round::Up), f32::from_bits(1));
        assert_eq!(mul32(-1e-30, 1e-30, Round::Zero).to_bits(), 0x8000_0000);
        assert!(add32(1.0, -1.0, Round::Down).is_sign_negative());
        assert!(add32(1.0, -1.0, Round::Up).is_sign_positive());
        // 1 + 2^-60: f64 alone would lose the small part.
        assert_eq!(fma32(2f32.powi(-30), 2f32.powi(-30), 1.0, Round::Up), 1f32.next_up());
        assert_eq!(sqrt32(4.0, Round::Up), 2.0);
        assert!(sqrt32(2.0, Round::Up) > sqrt32(2.0, Round::Down));
    }

    #[test]
    fn directions_of_f64() {
        assert_eq!(add64(1.0, 1e-300, Round::Up), 1f64.next_up());
        assert_eq!(add64(f64::MAX, f64::MAX, Round::Zero), f64::MAX);
        assert_eq!(mul64(1e-200, 1e-200, Round::Up), f64::from_bits(1));
        assert_eq!(mul64(1e-200, 1e-200, Round::Down), 0.0);
        assert_eq!(div64(6.0, 3.0, Round::Up), 2.0);
        assert_eq!(div64(1.0, 3.0, Round::Up), div64(1.0, 3.0, Round::Down).next_up());
        assert_eq!(fma64(1.0 + f64::EPSILON, 1.0 - f64::EPSILON, -1.0, Round::Up), -(2f64.powi(-104)));
        assert_eq!(fma64(3.0, 1.0, 1e-300, Round::Up), 3f64.next_up());
        assert_eq!(fma64(1e-300, 1e-300, 3.0, Round::Up), 3f64.next_up());
        assert_eq!(fma64(-1e-300, 1e-300, 1e-310, Round::Zero), 1e-310f64.next_down());
        let [low, high] = [Round::Down, Round::Up].map(|m| fma64(1e-160, 1e-160, 0.0, m));
        assert!(low.next_up() == high && (low == 1e-160 * 1e-160 || high == 1e-160 * 1e-160));
        assert_eq!(sqrt64(2.0, Round::Up), sqrt64(2.0, Round::Down).next_up());
        assert_eq!(sqrt64(9.0, Round::Down), 3.0);
    }

    #[test]
    fn integers_round_once() {
        assert_eq!(narrow32(int_odd((1 << 54) + 1), Round::Nearest), 2f32.powi(54));
        // Exactly between two floats plus one: must go up.
        assert_eq!(narrow32(int_odd((1 << 60) + (1 << 36) + 1), Round::Nearest), 2f32.powi(60).next_up());
        assert_eq!(int64(i128::from(u64::MAX), Round::Zero), 2f64.powi(64).next_down());
    }
}
