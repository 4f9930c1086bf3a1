//! Splits PTX text into tokens with line numbers.

use super::ast::Number;
use super::error::PtxError;

/// One token of PTX.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Identifier, register or label.
    Word(String),
    /// A dot and the word after it: directive or modifier.
    Dot(String),
    Number(Number),
    Text,
    Punct(char),
}

impl Token {
    /// The token as it reads in a message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Token::Word(word) => format!("'{word}'"),
            Token::Dot(word) => format!("'.{word}'"),
            Token::Number(number) => format!("{number:?}"),
            Token::Text => "a string".into(),
            Token::Punct(c) => format!("'{c}'"),
        }
    }
}

fn word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

fn word_part(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
}

/// Tokens of `text`, each with its line (from 1).
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, PtxError> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 4);
    let (mut at, mut line) = (0, 1);
    while let Some(&c) = bytes.get(at) {
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        match c {
            b'\n' => {
                line += 1;
                at += 1;
            }
            // A PTX text handed over by the runtime may still carry its terminating zero.
            b' ' | b'\t' | b'\r' | 0 => at += 1,
            b'/' if next == b'/' => at += bytes[at..].iter().take_while(|&&b| b != b'\n').count(),
            b'/' if next == b'*' => {
                let end = text[at + 2..].find("*/").ok_or_else(|| PtxError::new(line, "comment without an end"))?;
                line += bytes[at..at + 2 + end].iter().filter(|&&b| b == b'\n').count();
                at += end + 4;
            }
            b'"' => {
                let end = bytes[at + 1..].iter().position(|&b| b == b'"' || b == b'\n');
                match end {
                    Some(n) if bytes[at + 1 + n] == b'"' => at += n + 2,
                    _ => return Err(PtxError::new(line, "string without an end")),
                }
                out.push((Token::Text, line));
            }
            b'.' if word_start(next) || next.is_ascii_digit() => {
                // Modifiers such as `.L2::128B` and `.shared::cta` keep their colons.
                let mut end = at + 1;
                while end < bytes.len() {
                    if word_part(bytes[end]) {
                        end += 1;
                    } else if bytes[end..].starts_with(b"::") {
                        end += 2;
                    } else {
                        break;
                    }
                }
                out.push((Token::Dot(text[at + 1..end].to_string()), line));
                at = end;
            }
            _ if word_start(c) => {
                let end = at + 1 + bytes[at + 1..].iter().take_while(|&&b| word_part(b)).count();
                out.push((Token::Word(text[at..end].to_string()), line));
                at = end;
            }
            _ if c.is_ascii_digit() => {
                let (number, length) = number(&text[at..]).ok_or_else(|| PtxError::new(line, "malformed number"))?;
                out.push((Token::Number(number), line));
                at += length;
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b';' | b':' | b'+' | b'-' | b'|' | b'!' | b'@'
            | b'=' => {
                out.push((Token::Punct(c as char), line));
                at += 1;
            }
            _ => {
                let found = text.get(at..).and_then(|t| t.chars().next()).unwrap_or('\u{fffd}');
                return Err(PtxError::new(line, format!("unexpected character {found:?}")));
            }
        }
    }
    Ok(out)
}

/// Reads the literal that `text` begins with; also its length in bytes.
fn number(text: &str) -> Option<(Number, usize)> {
    let bytes = text.as_bytes();
    let run = |from: usize, ok: fn(&u8) -> bool| from + bytes.get(from..).unwrap_or(&[]).iter().take_while(|b| ok(b)).count();
    let hex = |from: usize| {
        let end = run(from, u8::is_ascii_hexdigit);
        u64::from_str_radix(text.get(from..end)?, 16).ok().map(|value| (value, end))
    };
    // `U` marks an unsigned literal and changes nothing here.
    let suffix = |end: usize| if bytes.get(end) == Some(&b'U') { end + 1 } else { end };
    match (bytes.first()?, bytes.get(1)) {
        (b'0', Some(b'f' | b'F')) => {
            let (bits, end) = hex(2)?;
            Some((Number::F32(f32::from_bits(u32::try_from(bits).ok()?)), end))
        }
        (b'0', Some(b'd' | b'D')) => {
            let (bits, end) = hex(2)?;
            Some((Number::F64(f64::from_bits(bits)), end))
        }
        (b'0', Some(b'x' | b'X')) => {
            let (value, end) = hex(2)?;
            Some((Number::Int(i128::from(value)), suffix(end)))
        }
        (b'0', Some(b'b' | b'B')) => {
            let end = run(2, |b| matches!(b, b'0' | b'1'));
            Some((Number::Int(i128::from(u64::from_str_radix(text.get(2..end)?, 2).ok()?)), suffix(end)))
        }
        _ => {
            let whole = run(0, u8::is_ascii_digit);
            let mut end = whole;
            if bytes.get(end) == Some(&b'.') {
                end = run(end + 1, u8::is_ascii_digit);
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
                end = run(end + 1 + sign, u8::is_ascii_digit);
            }
            if end > whole {
                return Some((Number::F64(text.get(..end)?.parse().ok()?), end));
            }
            let digits = text.get(..whole)?;
            let value =
                if whole > 1 && digits.starts_with('0') { u64::from_str_radix(digits, 8).ok()? } else { digits.parse().ok()? };
            Some((Number::Int(i128::from(value)), suffix(whole)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Token> {
        tokens(text).expect("lexes").into_iter().map(|(t, _)| t).collect()
    }

    #[test]
    fn numbers_of_every_base() {
        assert_eq!(words("0x1F"), [Token::Number(Number::Int(31))]);
        assert_eq!(words("017 0b101 9U"), [15, 5, 9].map(|n| Token::Number(Number::Int(n))));
        assert_eq!(words("0f3F800000"), [Token::Number(Number::F32(1.0))]);
        assert_eq!(words("0d4000000000000000 1.5e1"), [2.0, 15.0].map(|n| Token::Number(Number::F64(n))));
    }

    #[test]
    fn lines_count_through_comments() {
        let all = tokens("a /* x\n y */ b // c\nd").expect("lexes");
        assert_eq!(all.iter().map(|t| t.1).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line) in [("\n#", 2), ("\"abc\n", 1), ("/* \n", 1), ("0xZ", 1), ("99999999999999999999999", 1)] {
            assert_eq!(tokens(text).expect_err("bad text").line, line, "{text:?}");
        }
    }

    #[test]
    fn modifiers_keep_colons() {
        assert_eq!(
            words("ld.global.L2::128B"),
            [Token::Word("ld".into()), Token::Dot("global".into()), Token::Dot("L2::128B".into())]
        );
    }
}
