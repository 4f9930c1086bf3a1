//! One source file: the modules that it declares, and the paths that it names. Comments, strings and what is compiled for tests
//! alone do not count, nor do visibilities.

use crate::error::Error;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};

/// A path: `["crate", "wire", "Wire"]`.
pub(super) type Path = Vec<String>;

/// What a module (a file, or a module in braces inside one) declares and names.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Modules in files of their own: `mod name;`.
    pub(super) files: Vec<String>,
    /// Modules in braces.
    pub(super) inline: BTreeMap<String, Module>,
    /// Names of functions, types, constants and macros.
    pub(super) items: BTreeSet<String>,
    /// Macros that the crate's root has, by `#[macro_export]`.
    pub(super) exported_macros: BTreeSet<String>,
    /// Names that `use` declares, and what they stand for.
    pub(super) aliases: BTreeMap<String, Path>,
    /// The modules of `use …::*`.
    pub(super) globs: Vec<Path>,
    /// The paths that the module names, with their lines, as often as it does. A path that is only declared for others
    /// (`pub use`) is not among them.
    pub(super) named: Vec<(Path, usize)>,
}

/// Reads a file.
///
/// # Errors
/// It is not Rust.
pub(super) fn read(text: &str) -> Result<Module, Error> {
    let stream: TokenStream = text.parse().map_err(|e: proc_macro2::LexError| e.to_string())?;
    let mut tokens = Vec::new();
    flatten(stream, &mut tokens);
    let mut module = Module::default();
    let mut reader = Reader { tokens, at: 0 };
    reader.module(&mut module);
    Ok(module)
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Word(String),
    Sign(char),
    Open(Delimiter),
    Close,
    Literal,
}

type Token = (Kind, usize);

/// The tokens in one list. Doc comments are attributes here, other comments are gone.
fn flatten(stream: TokenStream, to: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(g) => {
                to.push((Kind::Open(g.delimiter()), line));
                flatten(g.stream(), to);
                to.push((Kind::Close, g.span_close().start().line));
            }
            TokenTree::Ident(i) => to.push((Kind::Word(i.to_string()), line)),
            TokenTree::Punct(p) => to.push((Kind::Sign(p.as_char()), line)),
            TokenTree::Literal(_) => to.push((Kind::Literal, line)),
        }
    }
}

/// A `use` declaration that others see: its names count where they are used.
struct Reexport {
    name: String,
    path: Path,
    line: usize,
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn kind(&self, ahead: usize) -> Option<&Kind> {
        self.tokens.get(self.at + ahead).map(|t| &t.0)
    }

    fn word(&self, ahead: usize) -> Option<&str> {
        match self.kind(ahead) {
            Some(Kind::Word(w)) => Some(w),
            _ => None,
        }
    }

    fn sign(&self, ahead: usize, sign: char) -> bool {
        self.kind(ahead) == Some(&Kind::Sign(sign))
    }

    fn colons(&self, ahead: usize) -> bool {
        self.sign(ahead, ':') && self.sign(ahead + 1, ':')
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |t| t.1)
    }

    /// Steps over a token, or over a group from its opening to its closing bracket.
    fn skip(&mut self) {
        let mut depth = 0;
        while let Some(kind) = self.kind(0) {
            match kind {
                Kind::Open(_) => depth += 1,
                Kind::Close => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth <= 0 {
                return;
            }
        }
    }

    /// Reads up to the end of the module: of the file, or the closing bracket, over which it steps.
    fn module(&mut self, module: &mut Module) {
        let mut depth = 0;
        let mut exported = false;
        let mut public = false;
        let mut words = BTreeSet::new();
        let mut reexports = Vec::new();
        while let Some(kind) = self.kind(0).cloned() {
            let was_public = std::mem::take(&mut public);
            match kind {
                Kind::Open(_) => depth += 1,
                Kind::Close if depth == 0 => {
                    self.at += 1;
                    break;
                }
                Kind::Close => depth -= 1,
                // A lifetime is no name.
                Kind::Sign('\'') => self.at += 1,
                // The rest of a path, of which the start was dealt with or is of no interest.
                Kind::Sign(':') if self.sign(1, ':') && self.word(2).is_some() => self.at += 2,
                // A range.
                Kind::Sign('.') if self.sign(1, '.') => self.at += 1,
                // A field or a method.
                Kind::Sign('.') if self.word(1).is_some() => self.at += 1,
                Kind::Sign('#') => {
                    let inner = self.sign(1, '!');
                    self.at += if inner { 2 } else { 1 };
                    if self.kind(0) == Some(&Kind::Open(Delimiter::Bracket)) {
                        let is_test = self.is_for_tests();
                        exported |= self.word(1) == Some("macro_export");
                        self.skip();
                        match (is_test, inner) {
                            (true, true) => self.at = self.tokens.len(),
                            (true, false) => self.skip_item(),
                            (false, _) => {}
                        }
                    }
                    continue;
                }
                Kind::Word(word) => match word.as_str() {
                    "pub" => {
                        self.at += 1;
                        let restricted = self.kind(0) == Some(&Kind::Open(Delimiter::Parenthesis))
                            && matches!(self.word(1), Some("crate" | "super" | "self" | "in"));
                        if restricted {
                            self.skip();
                        }
                        public = true;
                        continue;
                    }
                    "use" if !self.sign(1, '<') => {
                        self.at += 1;
                        self.declaration(&mut Vec::new(), was_public, module, &mut reexports);
                        continue;
                    }
                    "mod" if self.word(1).is_some() => {
                        let name = self.word(1).unwrap_or_default().to_owned();
                        self.at += 2;
                        if self.sign(0, ';') {
                            module.files.push(name);
                        } else if self.kind(0) == Some(&Kind::Open(Delimiter::Brace)) {
                            self.at += 1;
                            self.module(module.inline.entry(name).or_default());
                        }
                        continue;
                    }
                    "macro_rules" if self.sign(1, '!') => {
                        if let Some(name) = self.word(2).map(str::to_owned) {
                            if std::mem::take(&mut exported) {
                                module.exported_macros.insert(name.clone());
                            }
                            module.items.insert(name);
                        }
                        self.at += 3;
                        continue;
                    }
                    "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                        if let Some(name) = self.word(1).map(str::to_owned) {
                            module.items.insert(name);
                        }
                    }
                    _ if self.colons(1) => {
                        let line = self.line();
                        let path = self.path();
                        words.insert(path[0].clone());
                        module.named.push((path, line));
                        continue;
                    }
                    // The name of a field or a parameter.
                    _ if self.sign(1, ':') => {}
                    _ => {
                        words.insert(word);
                    }
                },
                _ => {}
            }
            self.at += 1;
        }
        for Reexport { name, path, line } in reexports {
            if words.contains(&name) {
                module.named.push((path, line));
            }
        }
    }

    /// Reads a path of at least one name; stops before what is no name, such as generic arguments.
    fn path(&mut self) -> Path {
        let mut path = Vec::new();
        while let Some(word) = self.word(0).map(str::to_owned) {
            path.push(word);
            self.at += 1;
            if !self.colons(0) || self.word(2).is_none() {
                break;
            }
            self.at += 2;
        }
        path
    }

    /// Whether the attribute in the brackets that open here is `cfg(test)`, or asks for more than that.
    fn is_for_tests(&self) -> bool {
        let all =
            self.word(3) == Some("all") && (5..).map_while(|n| self.kind(n)).take_while(|k| **k != Kind::Close).any(is_test);
        self.word(1) == Some("cfg") && (self.kind(3).is_some_and(is_test) && self.kind(4) == Some(&Kind::Close) || all)
    }

    /// Steps over an item: its attributes, then up to a semicolon or a block.
    fn skip_item(&mut self) {
        while let Some(kind) = self.kind(0).cloned() {
            match kind {
                Kind::Close => return,
                Kind::Sign(';') | Kind::Open(Delimiter::Brace) => return self.skip(),
                _ => self.skip(),
            }
        }
    }

    /// Reads what a `use` declares, from after `use` or an opening brace or a comma inside it. `path` comes before it.
    fn declaration(&mut self, path: &mut Path, public: bool, module: &mut Module, reexports: &mut Vec<Reexport>) {
        let (start, line) = (path.len(), self.line());
        loop {
            match self.kind(0).cloned() {
                Some(Kind::Word(word)) => {
                    self.at += 1;
                    path.push(word);
                    if self.colons(0) {
                        self.at += 2;
                        continue;
                    }
                    let renamed = if self.word(0) == Some("as") { self.word(1).map(str::to_owned) } else { None };
                    if renamed.is_some() {
                        self.at += 2;
                    }
                    self.declare(path, renamed, (public, line), module, reexports);
                    break;
                }
                // `::name` is a crate, never a module of this one.
                Some(Kind::Sign(':')) if self.colons(0) && path.is_empty() => {
                    self.at += 2;
                    path.push(String::new());
                }
                Some(Kind::Sign('*')) => {
                    self.at += 1;
                    if !public {
                        module.named.push((path.clone(), line));
                    }
                    module.globs.push(path.clone());
                    break;
                }
                Some(Kind::Open(_)) => {
                    self.at += 1;
                    while !matches!(self.kind(0), Some(Kind::Close) | None) {
                        self.declaration(path, public, module, reexports);
                        if self.sign(0, ',') {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                _ => break,
            }
        }
        path.truncate(start);
    }

    fn declare(
        &self,
        path: &Path,
        renamed: Option<String>,
        (public, line): (bool, usize),
        module: &mut Module,
        reexports: &mut Vec<Reexport>,
    ) {
        let mut path = path.clone();
        if path.len() > 1 {
            path.pop_if(|last| last == "self");
        }
        let Some(name) = renamed.or_else(|| path.last().cloned()) else { return };
        if public {
            reexports.push(Reexport { name: name.clone(), path: path.clone(), line });
        } else {
            module.named.push((path.clone(), line));
        }
        module.aliases.insert(name, path);
    }
}

fn is_test(kind: &Kind) -> bool {
    matches!(kind, Kind::Word(w) if w == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<String> {
        read(text).unwrap().named.iter().map(|(path, _)| path.join("::")).collect()
    }

    #[test]
    fn declarations_are_read() {
        let found = named("use crate::a::{self, B, c::{D, E as F}, g::*};\nuse super::h as i;\nuse std::fmt;\n");
        assert_eq!(found, ["crate::a", "crate::a::B", "crate::a::c::D", "crate::a::c::E", "crate::a::g", "super::h", "std::fmt"]);
        let m = read("use crate::a::{self, c::E as F};\nuse super::{h as i, *};\n").unwrap();
        let alias = |name: &str| m.aliases.get(name).map(|p| p.join("::"));
        assert_eq!(
            (alias("a"), alias("F"), alias("i")),
            (Some("crate::a".into()), Some("crate::a::c::E".into()), Some("super::h".into()))
        );
        assert_eq!(m.globs, [["super"]]);
    }

    #[test]
    fn paths_in_code_are_read() {
        let text = r#"
            fn f<'a>(x: &'a crate::a::B) -> Vec<super::C> {
                let y = x.d::<crate::e::F>();
                m!(g::h(), $crate::i::J);
                ::std::k::l();
                let z = N { o: 1..p::Q, ..super::r() };
            }
        "#;
        assert_eq!(named(text), ["crate::a::B", "super::C", "crate::e::F", "g::h", "crate::i::J", "p::Q", "super::r"]);
    }

    #[test]
    fn comments_strings_and_visibilities_name_nothing() {
        let text = r##"
            //! See [`crate::a`].
            // crate::b::c
            /* crate::d::e */
            /// [`crate::f`]
            pub(in crate::g) fn h() -> &'static str { r#"crate::i::j"# }
            pub(super) struct K(pub(crate) u8, pub (u8, u8));
            const C: char = ':';
        "##;
        assert_eq!(named(text), Vec::<String>::new());
        assert_eq!(read(text).unwrap().items.into_iter().collect::<Vec<_>>(), ["C", "K", "h"]);
    }

    #[test]
    fn tests_do_not_count() {
        let text = "
            #[cfg(test)] mod tests { use super::a; }
            #[cfg(test)] mod more;
            #[cfg(test)] use crate::b::C;
            #[cfg(test)] #[allow(x)] fn f<A, B>(x: [u8; 2]) { crate::d::e() }
            #[cfg(all(test, unix))] const G: u8 = crate::h::I;
            #[cfg(not(test))] const J: u8 = crate::k::L;
            struct M { #[cfg(test)] n: crate::o::P }
            mod last;
        ";
        assert_eq!(named(text), ["crate::k::L"]);
        assert_eq!(read(text).unwrap().files, ["last"]);
        assert_eq!(named("#![cfg(test)]\nuse crate::a;"), Vec::<String>::new());
    }

    #[test]
    fn names_declared_for_others_count_only_if_used() {
        assert_eq!(named("pub use a::B;\npub(crate) use c::D;\npub use e::*;\nfn f(_: D) {}"), ["c::D"]);
        assert_eq!(named("pub use a::b;\nstruct X { b: u8 }"), Vec::<String>::new());
        assert_eq!(named("pub use a::B;\nstruct X { x: u8 }\nfn f(x: X) { x.B; Y::B; }"), ["Y::B"]);
    }

    #[test]
    fn modules_and_macros_are_found() {
        let text = "
            mod a;
            pub(crate) mod b { mod c; use super::d; }
            #[macro_export] macro_rules! e { () => { $crate::f::g() } }
            macro_rules! h { () => {} }
        ";
        let m = read(text).unwrap();
        assert_eq!(m.files, ["a"]);
        assert_eq!(m.inline["b"].files, ["c"]);
        assert_eq!(m.inline["b"].named, [(vec!["super".to_owned(), "d".to_owned()], 3)]);
        assert_eq!(m.exported_macros.into_iter().collect::<Vec<_>>(), ["e"]);
        assert_eq!(m.named, [(vec!["crate".to_owned(), "f".to_owned(), "g".to_owned()], 4)]);
    }

    #[test]
    fn what_is_not_rust_is_an_error() {
        assert!(read("fn f( {").is_err());
    }
}
