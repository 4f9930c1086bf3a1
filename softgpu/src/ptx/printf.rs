//! The formatting of C's `printf`, over arguments that are fetched one by one.

/// Where arguments come from.
pub(crate) trait Source {
    /// Why an argument could not be read.
    type Error;
    /// The next argument, of `size` bytes (4 or 8), zero-extended.
    fn word(&mut self, size: u64) -> Result<u64, Self::Error>;
    /// The string at an address, without its end.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

/// Widths and precisions beyond this are cut: device code must not make the host run out of memory.
const MAX_WIDTH: usize = 1 << 16;

#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Argument size of integers in bytes: `hh` 1, `h` 2, none 4, `l`, `ll`, `z`, `j`, `t` 8.
    size: u32,
}

/// Formats `format` to `out`. Returns the number of arguments used.
pub(crate) fn format<S: Source>(format: &[u8], source: &mut S, out: &mut Vec<u8>) -> Result<u32, S::Error> {
    let mut at = 0;
    let mut count = 0;
    while let Some(&byte) = format.get(at) {
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let start = at - 1;
        let mut spec = Spec { size: 4, ..Spec::default() };
        while let Some(flag) = format.get(at) {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            at += 1;
        }
        if format.get(at) == Some(&b'*') {
            at += 1;
            count += 1;
            let width = source.word(4)? as u32;
            spec.left |= width.cast_signed() < 0;
            spec.width = (width.cast_signed().unsigned_abs() as usize).min(MAX_WIDTH);
        } else {
            spec.width = digits(format, &mut at);
        }
        if format.get(at) == Some(&b'.') {
            at += 1;
            if format.get(at) == Some(&b'*') {
                at += 1;
                count += 1;
                let precision = (source.word(4)? as u32).cast_signed();
                spec.precision = usize::try_from(precision).ok().map(|p| p.min(MAX_WIDTH));
            } else {
                spec.precision = Some(digits(format, &mut at));
            }
        }
        loop {
            match format.get(at) {
                Some(b'h') => spec.size = if spec.size == 2 { 1 } else { 2 },
                Some(b'l' | b'z' | b'j' | b't' | b'L' | b'q') => spec.size = 8,
                _ => break,
            }
            at += 1;
        }
        let Some(&conversion) = format.get(at) else {
            out.extend_from_slice(&format[start..]);
            break;
        };
        at += 1;
        if conversion == b'%' {
            out.push(b'%');
            continue;
        }
        match conversion {
            b'd' | b'i' => {
                let bits = source.word(if spec.size == 8 { 8 } else { 4 })?;
                let value = match spec.size {
                    1 => i64::from(bits as i8),
                    2 => i64::from(bits as i16),
                    4 => i64::from(bits as i32),
                    _ => bits.cast_signed(),
                };
                let sign = sign_of(value < 0, &spec);
                integer(&spec, sign, value.unsigned_abs().to_string(), out);
            }
            b'u' | b'x' | b'X' | b'o' => {
                let bits = source.word(if spec.size == 8 { 8 } else { 4 })?;
                let value = match spec.size {
                    1 => bits & 0xff,
                    2 => bits & 0xffff,
                    4 => bits & 0xffff_ffff,
                    _ => bits,
                };
                let (prefix, digits) = match conversion {
                    b'x' => (if spec.alternate && value != 0 { "0x" } else { "" }, format!("{value:x}")),
                    b'X' => (if spec.alternate && value != 0 { "0X" } else { "" }, format!("{value:X}")),
                    b'o' if spec.alternate && value != 0 => ("", format!("0{value:o}")),
                    b'o' => ("", format!("{value:o}")),
                    _ => ("", value.to_string()),
                };
                integer(&spec, prefix, digits, out);
            }
            b'c' => {
                let byte = source.word(4)? as u8;
                pad(&spec, &[byte], out);
            }
            b's' => {
                let address = source.word(8)?;
                let mut text = if address == 0 { b"(null)".to_vec() } else { source.text(address)? };
                text.truncate(spec.precision.unwrap_or(text.len()));
                pad(&spec, &text, out);
            }
            b'p' => {
                let address = source.word(8)?;
                let text = if address == 0 { "(nil)".to_string() } else { format!("{address:#x}") };
                pad(&spec, text.as_bytes(), out);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(source.word(8)?);
                float(&spec, conversion, value, out);
            }
            b'n' => {
                source.word(8)?;
            }
            _ => {
                // Unknown conversions print as they stand and take no argument.
                out.extend_from_slice(&format[start..at]);
                continue;
            }
        }
        count += 1;
    }
    Ok(count)
}

fn digits(format: &[u8], at: &mut usize) -> usize {
    let mut value = 0usize;
    while let Some(digit) = format.get(*at).filter(|b| b.is_ascii_digit()) {
        value = (value * 10 + usize::from(digit - b'0')).min(MAX_WIDTH);
        *at += 1;
    }
    value
}

fn sign_of(negative: bool, spec: &Spec) -> &'static str {
    if negative {
        "-"
    } else if spec.plus {
        "+"
    } else if spec.space {
        " "
    } else {
        ""
    }
}

fn pad(spec: &Spec, text: &[u8], out: &mut Vec<u8>) {
    let fill = spec.width.saturating_sub(text.len());
    if !spec.left {
        out.resize(out.len() + fill, b' ');
    }
    out.extend_from_slice(text);
    if spec.left {
        out.resize(out.len() + fill, b' ');
    }
}

/// Pads with zeros between prefix and digits if the flag says so.
fn pad_number(spec: &Spec, zero: bool, prefix: &str, digits: &str, out: &mut Vec<u8>) {
    let length = prefix.len() + digits.len();
    if zero && !spec.left && spec.width > length {
        out.extend_from_slice(prefix.as_bytes());
        out.resize(out.len() + spec.width - length, b'0');
        out.extend_from_slice(digits.as_bytes());
    } else {
        pad(spec, format!("{prefix}{digits}").as_bytes(), out);
    }
}

fn integer(spec: &Spec, prefix: &str, mut digits: String, out: &mut Vec<u8>) {
    if let Some(precision) = spec.precision {
        if precision == 0 && digits == "0" {
            digits.clear();
        }
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    }
    pad_number(spec, spec.zero && spec.precision.is_none(), prefix, &digits, out);
}

fn float(spec: &Spec, conversion: u8, value: f64, out: &mut Vec<u8>) {
    let sign = sign_of(value.is_sign_negative(), spec);
    let upper = conversion.is_ascii_uppercase();
    let x = value.abs();
    let (text, zero) = if !x.is_finite() {
        ((if x.is_nan() { "nan" } else { "inf" }).to_string(), false)
    } else {
        let precision = spec.precision.unwrap_or(6);
        let text = match conversion.to_ascii_lowercase() {
            b'f' => {
                let dot = if spec.alternate && precision == 0 { "." } else { "" };
                format!("{x:.precision$}{dot}")
            }
            b'e' => exponential(x, precision, spec.alternate),
            b'g' => general(x, precision.max(1), spec.alternate),
            _ => hexadecimal(x, spec.precision),
        };
        (text, spec.zero)
    };
    let text = if upper { text.to_ascii_uppercase() } else { text };
    pad_number(spec, zero, sign, &text, out);
}

/// `d.ddde±dd`
fn exponential(x: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{x:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let dot = if alternate && precision == 0 { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{dot}e{sign}{:02}", exponent.unsigned_abs())
}

fn general(x: f64, precision: usize, alternate: bool) -> String {
    // The exponent after rounding to the precision decides between the two styles.
    let rounded = format!("{x:.*e}", precision - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let fixed = exponent >= -4 && exponent < precision as i64;
    let text = if fixed {
        let decimals = usize::try_from(precision as i64 - 1 - exponent).unwrap_or(0);
        format!("{x:.decimals$}")
    } else {
        exponential(x, precision - 1, alternate)
    };
    if alternate {
        return text;
    }
    let (mantissa, rest) = match text.find('e') {
        Some(at) => text.split_at(at),
        None => (text.as_str(), ""),
    };
    let mantissa = if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
    format!("{mantissa}{rest}")
}

/// `0x1.8p+1`
fn hexadecimal(x: f64, precision: Option<usize>) -> String {
    let bits = x.to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1));
    let mut lead = 1u64;
    if bits >> 52 == 0 {
        lead = 0;
        exponent = if fraction == 0 { 0 } else { -1022 };
    }
    let digits = match precision {
        Some(p) if p < 13 => {
            let drop = 52 - 4 * p as u32;
            let whole = lead << 52 | fraction;
            let (kept, rest, half) = (whole >> drop, whole & ((1 << drop) - 1), 1u64 << (drop - 1));
            let kept = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
            lead = kept >> (4 * p);
            fraction = kept & ((1u64 << (4 * p)) - 1);
            if p == 0 { String::new() } else { format!("{fraction:0p$x}") }
        }
        Some(p) => format!("{fraction:013x}{}", "0".repeat(p - 13)),
        None => format!("{fraction:013x}").trim_end_matches('0').to_string(),
    };
    let dot = if digits.is_empty() { "" } else { "." };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("0x{lead}{dot}{digits}p{sign}{}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed<'a>(std::iter::Copied<std::slice::Iter<'a, u64>>);
    impl Source for Fixed<'_> {
        type Error = ();
        fn word(&mut self, _: u64) -> Result<u64, ()> {
            self.0.next().ok_or(())
        }
        fn text(&mut self, _: u64) -> Result<Vec<u8>, ()> {
            Ok(b"text".to_vec())
        }
    }

    fn print(text: &str, args: &[u64]) -> String {
        let mut out = Vec::new();
        format(text.as_bytes(), &mut Fixed(args.iter().copied()), &mut out).expect("enough arguments");
        String::from_utf8(out).expect("ascii")
    }

    #[test]
    fn integers() {
        assert_eq!(print("%d|%5d|%-5d|%05d|%+d", &[u64::MAX, 42, 42, 42, 7]), "-1|   42|42   |00042|+7");
        assert_eq!(print("%lld %llu %u", &[u64::MAX, u64::MAX, u64::MAX]), "-1 18446744073709551615 4294967295");
        assert_eq!(print("%x %#X %o %#o %.3d %hhd", &[255, 255, 8, 8, 5, 511]), "ff 0XFF 10 010 005 -1");
        assert_eq!(print("%*d|%.*d", &[4, 9, 3, 9]), "   9|009");
    }

    #[test]
    fn floats() {
        let f = |x: f64| x.to_bits();
        assert_eq!(print("%f %.2f %8.3f|%-8.1f|", &[f(1.5), f(3.1373), f(-2.0), f(0.25)]), "1.500000 3.14   -2.000|0.2     |");
        assert_eq!(print("%e %.0e %E", &[f(12345.678), f(5.0), f(1e-7)]), "1.234568e+04 5e+00 1.000000E-07");
        assert_eq!(
            print("%g %g %g %g %#g", &[f(100000.0), f(1e6), f(0.0001), f(1e-5), f(1.0)]),
            "100000 1e+06 0.0001 1e-05 1.00000"
        );
        assert_eq!(print("%g %g %G %f", &[f(0.0), f(9.9999995e5), f(f64::INFINITY), f(-f64::NAN.abs())]), "0 1e+06 INF -nan");
        assert_eq!(print("%a %.1a %a", &[f(3.0), f(1.96875), f(0.0)]), "0x1.8p+1 0x2.0p+0 0x0p+0");
        assert_eq!(print("%08.2f|%+.1f", &[f(-3.1373), f(2.0)]), "-0003.14|+2.0");
    }

    #[test]
    fn the_rest() {
        assert_eq!(print("%s|%.2s|%6s|%c|%%|%p|%p|%s", &[1, 1, 1, 65, 16, 0, 0]), "text|te|  text|A|%|0x10|(nil)|(null)");
        assert_eq!(print("100%", &[]), "100%");
        assert_eq!(print("%y", &[]), "%y");
    }
}
