//! Managed variables of PTX text.
//!
//! Their declarations are removed. A statement that names one gets the address from a register: it is put into a block
//! in which the register is loaded first. In initial values of other variables and in tables for debuggers, the address
//! is written as a number.

use super::super::ptx::{Token, Tokens, is_name, number, type_size};
use super::variables::{Addresses, MAX_INITIAL, Managed, ManagedError, Variables};
use std::collections::HashMap;
use std::ops::Range;

/// Maximum number of bytes that lists skip before an element that is not zero.
const MAX_SKIPPED: usize = 1 << 20;
/// Maximum nesting of initializer lists; a deeper one is damaged.
const MAX_DEPTH: usize = 16;

/// A token and its range in the text.
#[derive(Debug, Clone)]
struct Piece<'a> {
    token: Token<'a>,
    at: Range<usize>,
}

impl<'a> Piece<'a> {
    fn word(&self) -> Option<&'a [u8]> {
        if let Token::Word(word) = self.token { Some(word) } else { None }
    }

    fn is(&self, mark: u8) -> bool {
        self.token == Token::Mark(mark)
    }
}

fn pieces(text: &[u8]) -> Vec<Piece<'_>> {
    let mut tokens = Tokens(text);
    let mut all = Vec::new();
    while let Some(token) = tokens.next() {
        let end = text.len() - tokens.0.len();
        let len = if let Token::Word(word) = token { word.len() } else { 1 };
        all.push(Piece { token, at: end - len..end });
    }
    all
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

/// Managed variables defined in the text; external ones are not included.
pub(super) fn variables(text: &[u8]) -> Result<Variables, ManagedError> {
    let all = pieces(text);
    let mut found = Variables::new();
    for range in declarations(&all)? {
        let (name, variable) = declaration(&all[range])?;
        if let Some(variable) = variable {
            found.insert(name, variable);
        }
    }
    Ok(found)
}

/// The declarations of managed variables at module level, from their first word to the semicolon.
fn declarations(all: &[Piece<'_>]) -> Result<Vec<Range<usize>>, ManagedError> {
    let (mut depth, mut from) = (0u32, 0);
    let mut found = Vec::new();
    for (i, piece) in all.iter().enumerate() {
        match piece.token {
            Token::Mark(b'{' | b'(' | b'[') => depth += 1,
            Token::Mark(b'}' | b')' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        match piece.token {
            Token::Word(b".visible" | b".extern" | b".weak" | b".common") if depth == 0 => from = i,
            // The preceding words are part of the declaration.
            Token::Word(b".global") if depth == 0 => from = if from + 1 == i { from } else { i },
            Token::Word(b".managed") => {
                // `.attribute(.managed)`: one deep.
                let is_variable = depth == 1 && all[from..i].iter().any(|p| p.token == Token::Word(b".global"));
                let end = all[i..].iter().position(|p| p.is(b';')).filter(|_| is_variable);
                let end = i + end.ok_or(ManagedError::Declaration)?;
                found.push(from..end + 1);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Name and contents; no contents if it is external.
fn declaration(all: &[Piece<'_>]) -> Result<(String, Option<Managed>), ManagedError> {
    let mut element = None;
    let mut vector = 1;
    let mut at = all.iter().position(|p| p.word() == Some(b".global")).ok_or(ManagedError::Declaration)? + 1;
    let external = all[..at].iter().any(|p| p.word() == Some(b".extern"));
    let name = loop {
        match all.get(at).ok_or(ManagedError::Declaration)?.token {
            Token::Word(b".attribute") => at += all[at..].iter().position(|p| p.is(b')')).ok_or(ManagedError::Declaration)?,
            Token::Word(b".align") => at += 1,
            Token::Word(b".v2") => vector = 2,
            Token::Word(b".v4") => vector = 4,
            Token::Word(word) if word[0] == b'.' => element = Some((type_size(word).ok_or(ManagedError::Declaration)?, word)),
            Token::Word(word) if is_name(word) => break shown(word),
            _ => return Err(ManagedError::Declaration),
        }
        at += 1;
    };
    let (size, kind) = element.ok_or(ManagedError::Declaration)?;
    let mut dimensions = Vec::new();
    at += 1;
    while all.get(at).is_some_and(|p| p.is(b'[')) {
        match all.get(at + 1..at + 3) {
            Some([n, end]) if end.is(b']') => dimensions.push(n.word().and_then(number).ok_or(ManagedError::Declaration)?),
            _ if external => return Ok((name, None)),
            _ => return Err(ManagedError::NoSize(name)),
        }
        at += 3;
    }
    if external {
        return Ok((name, None));
    }
    if vector > 1 {
        dimensions.push(vector);
    }
    let bytes = dimensions.iter().try_fold(size, |n, d| n.checked_mul(*d)).ok_or(ManagedError::Declaration)?;
    let mut initial = Vec::new();
    if all.get(at).is_some_and(|p| p.is(b'=')) {
        if bytes > MAX_INITIAL {
            return Err(ManagedError::InitialTooLarge(name));
        }
        let mut list = Values { all, size: size as usize, kind, initial: Vec::new() };
        at = list.read(at + 1, &dimensions, 0..bytes as usize).ok_or_else(|| ManagedError::InitialUnknown(name.clone()))?;
        initial = list.initial;
    }
    match &all[at..] {
        [end] if end.is(b';') => Ok((name, Some(Managed::new(bytes, initial)?))),
        _ => Err(ManagedError::Declaration),
    }
}

/// The initial value of a variable.
struct Values<'a> {
    all: &'a [Piece<'a>],
    /// Size and type of an element.
    size: usize,
    kind: &'a [u8],
    /// The bytes up to the last element that is not zero.
    initial: Vec<u8>,
}

impl Values<'_> {
    /// Reads a value, or a list of values in braces, for these bytes of the variable; returns the end.
    fn read(&mut self, mut at: usize, dimensions: &[u64], to: Range<usize>) -> Option<usize> {
        if !self.all.get(at)?.is(b'{') {
            let (bits, next) = value(self.all, at, self.kind)?;
            self.put(bits, to)?;
            return Some(next);
        }
        let (_, inner) = dimensions.split_first().filter(|_| dimensions.len() <= MAX_DEPTH)?;
        let step = inner.iter().try_fold(self.size, |n, d| n.checked_mul(usize::try_from(*d).ok()?))?;
        at += 1;
        let mut from = to.start;
        while !self.all.get(at)?.is(b'}') {
            // A list is of the next dimension; single values fill consecutive elements.
            let len = if self.all[at].is(b'{') { step } else { self.size };
            let end = from.checked_add(len).filter(|end| *end <= to.end)?;
            at = self.read(at, inner, from..end)?;
            from = end;
            if self.all.get(at)?.is(b',') {
                at += 1;
            }
        }
        Some(at + 1)
    }

    fn put(&mut self, bits: u128, to: Range<usize>) -> Option<()> {
        let end = to.start + self.size;
        if end > to.end {
            return None;
        }
        if bits != 0 && end > self.initial.len() {
            // Compilers write the elements before it, too: a short text is not to take much memory.
            if end > MAX_SKIPPED + self.all.len() * self.size {
                return None;
            }
            self.initial.resize(end, 0);
        }
        if let Some(element) = self.initial.get_mut(to.start..end) {
            element.copy_from_slice(bits.to_le_bytes().get(..self.size)?);
        }
        Some(())
    }
}

/// The bits of a number.
fn value(all: &[Piece<'_>], mut at: usize, kind: &[u8]) -> Option<(u128, usize)> {
    let negative = all.get(at)?.is(b'-');
    at += usize::from(negative);
    let word = all.get(at)?.word()?;
    let bits = match word {
        [b'0', b'f' | b'F', digits @ ..] if kind == b".f32" && digits.len() == 8 => hex(digits)?,
        [b'0', b'd' | b'D', digits @ ..] if kind == b".f64" && digits.len() == 16 => hex(digits)?,
        // Every compiler writes floating-point numbers as bits.
        _ if kind.starts_with(b".f") && kind != b".f16" || kind.starts_with(b".bf") => return None,
        word => number(word)?,
    };
    let bits = u128::from(bits);
    Some((if negative { bits.wrapping_neg() } else { bits }, at + 1))
}

fn hex(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns the text with its managed variables at these addresses.
pub(super) fn place(text: &[u8], at: &Addresses) -> Result<Vec<u8>, ManagedError> {
    let all = pieces(text);
    let mut known = HashMap::new();
    let mut edits = Vec::new();
    for range in declarations(&all)? {
        let (name, _) = declaration(&all[range.clone()])?;
        let address = *at.get(&name).ok_or_else(|| ManagedError::NoAddress(name.clone()))?;
        known.insert(name.into_bytes(), address);
        edits.push((all[range.start].at.start..all[range.end - 1].at.end, String::new()));
    }
    if known.is_empty() {
        return Ok(text.to_vec());
    }
    let mut scan = Scan { text, all: &all, known: &known, edits };
    scan.module()?;
    let mut edits = scan.edits;
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let mut changed = Vec::with_capacity(text.len() + 64 * edits.len());
    let mut from = 0;
    for (range, new) in edits {
        changed.extend_from_slice(text.get(from..range.start).ok_or(ManagedError::Damaged("changes overlap"))?);
        changed.extend_from_slice(new.as_bytes());
        from = range.end;
    }
    changed.extend_from_slice(&text[from..]);
    Ok(changed)
}

struct Scan<'a> {
    text: &'a [u8],
    all: &'a [Piece<'a>],
    /// Addresses by name.
    known: &'a HashMap<Vec<u8>, u64>,
    edits: Vec<(Range<usize>, String)>,
}

impl Scan<'_> {
    fn named(&self, i: usize) -> Option<u64> {
        self.known.get(self.all.get(i)?.word()?).copied()
    }

    fn is(&self, i: usize, mark: u8) -> bool {
        self.all.get(i).is_some_and(|p| p.is(mark))
    }

    fn refuse<T>(&self, i: usize, how: &'static str) -> Result<T, ManagedError> {
        Err(ManagedError::Use { name: self.all[i].word().map(shown).unwrap_or_default(), how })
    }

    /// The addend of the name at `i`, and the index of the next piece.
    fn offset(&self, i: usize) -> Result<(u64, usize), ManagedError> {
        let plus = self.is(i + 1, b'+');
        if !plus && !self.is(i + 1, b'-') {
            return if self.is(i + 1, b'[') { self.refuse(i, "with an index") } else { Ok((0, i + 1)) };
        }
        let minus = !plus || self.is(i + 2, b'-');
        let digits = i + 2 + usize::from(plus && minus);
        let Some(n) = self.all.get(digits).and_then(Piece::word).and_then(number) else {
            return self.refuse(i, "in a sum that is not known");
        };
        if self.is(digits + 1, b'+') || self.is(digits + 1, b'-') || self.is(digits + 1, b'*') {
            return self.refuse(i, "in a sum that is not known");
        }
        Ok((if minus { n.wrapping_neg() } else { n }, digits + 1))
    }

    fn is_removed(&self, i: usize) -> bool {
        let start = self.all[i].at.start;
        self.edits.iter().any(|(range, new)| new.is_empty() && range.contains(&start))
    }

    /// Copies everything at module level.
    fn module(&mut self) -> Result<(), ManagedError> {
        let (mut i, mut is_function) = (0, false);
        let mut is_value = false;
        while let Some(piece) = self.all.get(i) {
            match piece.token {
                Token::Word(b".entry" | b".func") => is_function = true,
                Token::Word(b".section") => {
                    i = self.section(i)?;
                    continue;
                }
                Token::Mark(b'{') if is_function => {
                    i = self.body(i + 1)?;
                    is_function = false;
                    continue;
                }
                Token::Mark(b';') => (is_function, is_value) = (false, false),
                Token::Mark(b'=') => is_value = true,
                Token::Word(_) if self.named(i).is_some() && !self.is_removed(i) => {
                    if !is_value {
                        return self.refuse(i, "in a declaration");
                    }
                    i = self.number(i, true)?;
                    continue;
                }
                _ => {}
            }
            i += 1;
        }
        Ok(())
    }

    /// Writes a number for the name at `i`; returns the index of the next piece.
    fn number(&mut self, i: usize, is_value: bool) -> Result<usize, ManagedError> {
        let Some(address) = self.named(i) else { return Ok(i + 1) };
        let is_generic = i > 1 && self.is(i - 1, b'(') && self.all[i - 2].word() == Some(b"generic");
        if !is_generic && i > 0 && self.is(i - 1, b'(') {
            return self.refuse(i, "byte by byte in a first value");
        }
        let (from, (more, behind)) = match is_generic {
            false => (i, self.offset(i)?),
            true if !self.is(i + 1, b')') => return self.refuse(i, "in a sum that is not known"),
            // `generic(name)`, and what is added behind the parenthesis.
            true => (i - 2, self.offset(i + 1)?),
        };
        if is_value && !matches!(self.all.get(behind).map(|p| p.token), Some(Token::Mark(b',' | b';' | b'}'))) {
            return self.refuse(i, "in a first value that is not known");
        }
        let range = self.all[from].at.start..self.all[behind - 1].at.end;
        self.edits.push((range, address.wrapping_add(more).to_string()));
        Ok(behind)
    }

    /// Copies a table for debuggers; returns the index of the next piece.
    fn section(&mut self, from: usize) -> Result<usize, ManagedError> {
        let mut i = from;
        while i < self.all.len() && !self.is(i, b'{') {
            i += 1;
        }
        while i < self.all.len() && !self.is(i, b'}') {
            i = self.number(i, false)?;
        }
        Ok(i + 1)
    }

    /// Copies the body of a function after its brace; returns the index of the next piece.
    fn body(&mut self, mut i: usize) -> Result<usize, ManagedError> {
        let mut depth = 1;
        while depth > 0 {
            let Some(piece) = self.all.get(i) else { return Err(ManagedError::Damaged("a function does not end")) };
            match piece.token {
                Token::Mark(b'{') => depth += 1,
                Token::Mark(b'}') => depth -= 1,
                // The only directive that ends with its line.
                Token::Word(b".loc") => {
                    let rest = &self.text[piece.at.start..];
                    let end = piece.at.start + rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                    while self.all.get(i + 1).is_some_and(|p| p.at.start < end) {
                        i += 1;
                    }
                }
                Token::Word(_) if self.is(i + 1, b':') => {
                    if self.named(i).is_some() {
                        return self.refuse(i, "as a label");
                    }
                    i += 1;
                }
                _ => {
                    i = self.statement(i)?;
                    continue;
                }
            }
            i += 1;
        }
        Ok(i)
    }

    /// Copies a statement; returns the index of the piece after its semicolon.
    fn statement(&mut self, from: usize) -> Result<usize, ManagedError> {
        let end =
            from + self.all[from..].iter().position(|p| p.is(b';')).ok_or(ManagedError::Damaged("a statement does not end"))?;
        let is_declaration = self.all[from].word().is_some_and(|w| w[0] == b'.');
        let mut set_up = String::new();
        let (mut i, mut registers) = (from, 0);
        while i < end {
            let Some(address) = self.named(i) else {
                i += 1;
                continue;
            };
            if is_declaration {
                return self.refuse(i, "in a declaration inside of a function");
            }
            let (more, behind) = self.offset(i)?;
            let register = format!("%mrcuda_managed_{registers}");
            set_up += &format!(".reg .b64 {register}; mov.b64 {register}, {}; ", address.wrapping_add(more));
            self.edits.push((self.all[i].at.start..self.all[behind - 1].at.end, register));
            registers += 1;
            i = behind;
        }
        if registers > 0 {
            let start = self.all[from].at.start;
            self.edits.push((start..start, format!("{{ {set_up}")));
            let behind = self.all[end].at.end;
            self.edits.push((behind..behind, " }".into()));
        }
        Ok(end + 1)
    }
}
