//! A tolerant scan of PTX text for module-level declarations; instructions are not interpreted.

use super::kind::Param;
use std::collections::BTreeSet;

/// The declarations of a PTX module.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Variables in global and constant memory.
    pub(super) variables: Vec<String>,
    /// Kernels with their parameters; `None` where these could not be parsed.
    pub(super) kernels: Vec<(String, Option<Vec<Param>>)>,
    /// Whether a variable is managed.
    pub(super) managed: bool,
    /// Whether `malloc` or `free` are mentioned.
    pub(super) device_heap: bool,
    /// Kernels in which `vprintf` is mentioned.
    pub(super) printers: BTreeSet<String>,
    /// Kernels and functions that refer to a texture or surface reference, directly or through a function declared
    /// before them.
    pub(super) referring: BTreeSet<Vec<u8>>,
    /// Kernels and functions with atomic operations of system scope, directly or through a function declared before
    /// them.
    pub(super) system_atomics: BTreeSet<Vec<u8>>,
    /// Whether any kernel may print: `vprintf` is mentioned in other code, or kernels launch others.
    pub(super) prints: bool,
}

/// Maximum plausible size of a parameter buffer.
const MAX_PARAMS: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Identifier, directive, number or register.
    Word(&'a [u8]),
    Mark(u8),
}

/// Words and marks; comments and quoted strings are left out.
#[derive(Debug, Clone)]
pub(super) struct Tokens<'a>(pub(super) &'a [u8]);

/// What a byte begins or continues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Mark,
    Brace,
    Space,
    Slash,
    Quote,
    Word,
}

/// The class of each byte: texts have megabytes.
static CLASSES: [Class; 256] = {
    let mut classes = [Class::Mark; 256];
    let mut b = 0;
    while b < 256 {
        classes[b] = match b as u8 {
            b'/' => Class::Slash,
            b'"' => Class::Quote,
            b'{' | b'}' => Class::Brace,
            b'_' | b'$' | b'%' | b'.' => Class::Word,
            b if b.is_ascii_alphanumeric() => Class::Word,
            b if b.is_ascii_whitespace() => Class::Space,
            _ => Class::Mark,
        };
        b += 1;
    }
    classes
};

fn class(b: u8) -> Class {
    CLASSES[usize::from(b)]
}

/// Length of the word at the start.
fn word_len(text: &[u8]) -> usize {
    text.iter().position(|b| class(*b) != Class::Word).unwrap_or(text.len())
}

/// Words of a body that reveal something about the kernel begin with one of these.
const REVEALING: [&[u8]; 6] = [b"malloc", b"free", b"vprintf", b"cuda", b"atom.", b"red."];

impl Tokens<'_> {
    /// Skips what says nothing in a body without named references or functions: everything but braces and words that begin as in
    /// [`REVEALING`]. Bodies are nearly all of a text.
    fn skip_plain(&mut self) {
        let text = self.0;
        let mut at = 0;
        while let Some(b) = text.get(at) {
            match class(*b) {
                Class::Word => {
                    if matches!(b, b'm' | b'f' | b'v' | b'c' | b'a' | b'r') && REVEALING.iter().any(|w| text[at..].starts_with(w))
                    {
                        break;
                    }
                    at += word_len(&text[at..]);
                }
                Class::Slash | Class::Quote | Class::Brace => break,
                Class::Space | Class::Mark => at += 1,
            }
        }
        self.0 = &text[at..];
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let first = *self.0.first()?;
            let skip = match (class(first), self.0.get(1)) {
                (Class::Space, _) => 1,
                (Class::Word, _) => {
                    let (word, after) = self.0.split_at(word_len(self.0));
                    self.0 = after;
                    return Some(Token::Word(word));
                }
                (Class::Slash, Some(b'/')) => self.0.iter().position(|b| *b == b'\n').unwrap_or(self.0.len()),
                (Class::Slash, Some(b'*')) => self.0[2..].windows(2).position(|w| w == b"*/").map_or(self.0.len(), |p| p + 4),
                (Class::Quote, _) => string_len(self.0),
                (Class::Mark | Class::Brace | Class::Slash, _) => {
                    self.0 = &self.0[1..];
                    return Some(Token::Mark(first));
                }
            };
            self.0 = &self.0[skip..];
        }
    }
}

/// Length of the quoted string at the start, with its quotes.
fn string_len(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(b) = text.get(at) {
        match b {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Whether bytes are PTX text, which has a version or target directive.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    Tokens(bytes).take(1 << 12).any(|t| matches!(t, Token::Word(b".version" | b".target")))
}

/// Capability in `.target` (0: none), and whether it is only for this one or its family.
pub(super) fn target(text: &[u8]) -> (u32, bool) {
    let mut tokens = Tokens(text);
    while let Some(t) = tokens.next() {
        if t != Token::Word(b".target") {
            continue;
        }
        // Other words may come first: `.target texmode_unified, sm_90`.
        for t in tokens.by_ref().take(16) {
            let Token::Word(word) = t else { continue };
            if let Some(name) = word.strip_prefix(b"sm_") {
                let digits = name.iter().take_while(|b| b.is_ascii_digit()).count();
                let sm = number(&name[..digits]).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
                return (sm, digits < name.len());
            }
        }
        break;
    }
    (0, false)
}

/// Whether a module calls functions by their addresses, which takes a prototype or a list of targets, or names a function otherwise than to
/// declare or call it.
pub(super) fn takes_addresses(text: &[u8]) -> bool {
    let functions = functions(text);
    // Of the statement so far: whether it names a function, and whether it may.
    let (mut names, mut may) = (false, false);
    for token in Tokens(text) {
        match token {
            Token::Word(b".callprototype" | b".calltargets") => return true,
            Token::Word(b".func" | b".entry") => may = true,
            Token::Word(word) if word == b"call" || word.starts_with(b"call.") => may = true,
            Token::Word(word) => names |= functions.contains(word),
            Token::Mark(b';' | b'{' | b'}') => {
                if names && !may {
                    return true;
                }
                (names, may) = (false, false);
            }
            Token::Mark(_) => {}
        }
    }
    names && !may
}

/// Names of all functions and kernels that a module declares.
fn functions(text: &[u8]) -> BTreeSet<&[u8]> {
    let mut all = BTreeSet::new();
    let mut tokens = Tokens(text);
    while let Some(token) = tokens.next() {
        if !matches!(token, Token::Word(b".func" | b".entry")) {
            continue;
        }
        // Return values and attributes come before the name.
        let mut parens = 0u32;
        for token in tokens.by_ref() {
            match token {
                Token::Mark(b'(') => parens += 1,
                Token::Mark(b')') => parens = parens.saturating_sub(1),
                Token::Word(name) if parens == 0 && is_name(name) => {
                    all.insert(name);
                    break;
                }
                Token::Mark(b';' | b'{' | b'}') => break,
                _ => {}
            }
        }
    }
    all
}

/// Reads the declarations of a module; empty for text that is not PTX.
pub(super) fn module(text: &[u8]) -> Module {
    let mut m = Module::default();
    let mut tokens = Tokens(text);
    let (mut braces, mut parens) = (0u32, 0u32);
    let (mut in_kernel, mut launches) = (false, false);
    // References and their users so far; and the function whose body is being read.
    let (mut references, mut body): (BTreeSet<Vec<u8>>, Option<&[u8]>) = (BTreeSet::new(), None);
    loop {
        if braces > 0 && references.is_empty() && m.system_atomics.is_empty() {
            tokens.skip_plain();
        }
        let Some(t) = tokens.next() else { break };
        match t {
            Token::Word(b"malloc" | b"free") => m.device_heap = true,
            // A mere declaration, outside of braces, is not a call.
            Token::Word(b"vprintf") if braces > 0 => match m.kernels.last().filter(|_| in_kernel) {
                Some((name, _)) => {
                    m.printers.insert(name.clone());
                }
                None => m.prints = true,
            },
            Token::Word(name) if name.starts_with(b"cudaLaunchDevice") || name.starts_with(b"cudaGraphLaunch") => launches = true,
            Token::Word(b".func") if braces == 0 => (in_kernel, body) = (false, None),
            Token::Mark(b'{') => braces += 1,
            Token::Mark(b'}') => braces = braces.saturating_sub(1),
            Token::Mark(b'(') if braces == 0 => parens += 1,
            Token::Mark(b')') if braces == 0 => parens = parens.saturating_sub(1),
            // A parenthesis that is never closed must not hide the rest of the module.
            Token::Mark(b';') if braces == 0 => parens = 0,
            Token::Word(b".global" | b".const") if braces == 0 && parens == 0 => variables(&mut tokens, &mut m, &mut references),
            Token::Word(b".entry") if braces == 0 => {
                let Some(Token::Word(name)) = tokens.next() else {
                    continue;
                };
                let mut ahead = tokens.clone();
                let params = if ahead.next() == Some(Token::Mark(b'(')) {
                    tokens = ahead;
                    params(&mut tokens)
                } else {
                    // A kernel without a list has no parameters.
                    Some(Vec::new())
                };
                m.kernels.push((text_of(name), params));
                (in_kernel, body) = (true, Some(name));
                parens = 0;
            }
            // The name after `.func` and its return values.
            Token::Word(name) if braces == 0 && parens == 0 && body.is_none() && is_name(name) => body = Some(name),
            Token::Word(name) if braces > 0 && (is_system_atomic(name) || m.system_atomics.contains(name)) => {
                m.system_atomics.extend(body.map(<[u8]>::to_vec));
            }
            Token::Word(name) if braces > 0 && !references.is_empty() && references.contains(name) => {
                if let Some(body) = body {
                    m.referring.insert(body.to_vec());
                    references.insert(body.to_vec());
                }
            }
            _ => {}
        }
    }
    m.prints |= launches && !m.printers.is_empty();
    m
}

/// Whether an instruction is `atom` or `red` with scope `.sys`. The default scope is the GPU (PTX ISA, "atom").
fn is_system_atomic(instruction: &[u8]) -> bool {
    (instruction.starts_with(b"atom.") || instruction.starts_with(b"red."))
        && instruction.split(|b| *b == b'.').any(|part| part == b"sys")
}

/// Names in what follows `.global` or `.const`, up to the semicolon.
fn variables(tokens: &mut Tokens<'_>, m: &mut Module, references: &mut BTreeSet<Vec<u8>>) {
    let mut depth = 0u32;
    let mut name: Option<&[u8]> = None;
    let mut initial = false;
    let mut opaque = false;
    for t in tokens {
        match t {
            Token::Mark(b'(' | b'[' | b'{' | b'<') => depth += 1,
            Token::Mark(b')' | b']' | b'}' | b'>') => depth = depth.saturating_sub(1),
            Token::Word(b".managed") => m.managed = true,
            _ if depth > 0 => {}
            Token::Mark(end @ (b',' | b';')) => {
                match name.take() {
                    Some(name) if opaque => drop(references.insert(name.to_vec())),
                    Some(name) => m.variables.push(text_of(name)),
                    None => {}
                }
                initial = false;
                if end == b';' {
                    return;
                }
            }
            Token::Mark(b'=') => initial = true,
            // These have no memory that could be looked up.
            Token::Word(b".texref" | b".samplerref" | b".surfref") => opaque = true,
            Token::Word(word) if !initial && name.is_none() && is_name(word) => name = Some(word),
            _ => {}
        }
    }
}

/// The parsed parts of one parameter.
#[derive(Debug, Default)]
struct Draft {
    declared: bool,
    element: Option<u64>,
    align: Option<u64>,
    /// Product of the array lengths; `None`: no array.
    count: Option<u64>,
    pointer: bool,
}

impl Draft {
    /// Places it after the parameters before it, which end at `end`.
    fn place(&self, end: u64) -> Option<Param> {
        let element = self.element?;
        let offset = end.checked_next_multiple_of(self.align.unwrap_or(element).max(1))?;
        let size = element.checked_mul(self.count.unwrap_or(1))?;
        offset.checked_add(size).filter(|end| *end <= MAX_PARAMS)?;
        Some(Param { offset: u32::try_from(offset).ok()?, size: u32::try_from(size).ok()? })
    }
}

/// Parses the parameters up to the closing parenthesis. Unknown parts are skipped, so that the text after the list is
/// parsed correctly.
fn params(tokens: &mut Tokens<'_>) -> Option<Vec<Param>> {
    let mut all = Some(Vec::new());
    let mut end = 0u64;
    let mut draft = Draft::default();
    loop {
        let before = tokens.clone();
        match tokens.next()? {
            Token::Mark(mark @ (b',' | b')')) => {
                if draft.declared {
                    let placed = draft.place(end);
                    end = placed.map_or(0, |p| u64::from(p.offset) + u64::from(p.size));
                    all = all.zip(placed).map(|(mut all, p)| {
                        all.push(p);
                        all
                    });
                }
                if mark == b')' {
                    return all;
                }
                draft = Draft::default();
            }
            Token::Word(b".param") => draft.declared = true,
            // The following words describe the pointer's target.
            Token::Word(b".ptr") => draft.pointer = true,
            Token::Word(b".align") => {
                let n = next_number(tokens).filter(|n| n.is_power_of_two() && *n <= MAX_PARAMS);
                if !draft.pointer {
                    draft.align = n;
                }
                all = all.filter(|_| n.is_some());
            }
            Token::Mark(b'[') => {
                let n = next_number(tokens).and_then(|n| n.checked_mul(draft.count.unwrap_or(1)));
                draft.count = n;
                all = all.filter(|_| n.is_some());
            }
            Token::Word(word) if draft.element.is_none() => draft.element = type_size(word),
            Token::Mark(b'{' | b';') => {
                // The list was never closed.
                *tokens = before;
                return None;
            }
            _ => {}
        }
    }
}

/// The next number, if the next token is one.
fn next_number(tokens: &mut Tokens<'_>) -> Option<u64> {
    let mut ahead = tokens.clone();
    let Some(Token::Word(word)) = ahead.next() else {
        return None;
    };
    let n = number(word)?;
    *tokens = ahead;
    Some(n)
}

pub(super) fn type_size(word: &[u8]) -> Option<u64> {
    Some(match word {
        b".b8" | b".u8" | b".s8" | b".pred" => 1,
        b".b16" | b".u16" | b".s16" | b".f16" | b".bf16" => 2,
        b".b32" | b".u32" | b".s32" | b".f32" | b".f16x2" | b".bf16x2" => 4,
        b".b64" | b".u64" | b".s64" | b".f64" | b".texref" | b".samplerref" | b".surfref" => 8,
        b".b128" => 16,
        _ => return None,
    })
}

pub(super) fn is_name(word: &[u8]) -> bool {
    word.first().is_some_and(|b| b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'%'))
}

/// An integer constant: decimal, octal, hexadecimal or binary, with or without `U`.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok()?;
    let word = word.strip_suffix('U').unwrap_or(word);
    let (digits, radix) = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&word[2..], 16),
        [b'0', b'b' | b'B', ..] => (&word[2..], 2),
        [b'0', _, ..] => (&word[1..], 8),
        _ => (word, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

/// Words consist of ASCII alone.
fn text_of(word: &[u8]) -> String {
    word.iter().map(|b| char::from(*b)).collect()
}
