//! Parser: tokens to a `RawModule`. Syntax errors are errors of the module; unknown instructions are left to decoding.

use super::ast::{InitItem, Local, Number, Operand, RawFunction, RawInstr, RawModule, Reference, Scope, Ty, VarDecl, VarSpace};
use super::error::PtxError;
use super::lex::{Token, tokens};

/// No variable of a module may be larger (bytes): a larger one cannot be placed anyway.
const MAX_VARIABLE: u64 = 1 << 36;
/// Scopes nest at most this deep: hostile text must not exhaust the stack.
const MAX_NESTING: usize = 64;

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
}

/// Parses the text of a module.
pub(crate) fn parse(text: &str) -> Result<RawModule, PtxError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut module = RawModule::default();
    while parser.at < parser.tokens.len() {
        parser.module_item(&mut module)?;
    }
    Ok(module)
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    fn peek_at(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|t| &t.0)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn error<T>(&self, expected: &str) -> Result<T, PtxError> {
        let found = self.peek().map_or("the end of the text".into(), Token::describe);
        Err(PtxError::new(self.line(), format!("expected {expected}, found {found}")))
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Token::Punct(c));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Result<(), PtxError> {
        if self.eat(c) { Ok(()) } else { self.error(&format!("'{c}'")) }
    }

    fn word(&mut self) -> Result<String, PtxError> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.error("a name"),
        }
    }

    fn dot(&mut self) -> Result<String, PtxError> {
        match self.peek() {
            Some(Token::Dot(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.error("a directive"),
        }
    }

    fn eat_dot(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Dot(w)) if w == word);
        self.at += usize::from(found);
        found
    }

    /// A literal with its sign.
    fn number(&mut self) -> Result<Number, PtxError> {
        let negative = self.eat('-');
        let Some(Token::Number(number)) = self.peek() else {
            return self.error("a number");
        };
        let number = *number;
        self.at += 1;
        Ok(match number {
            Number::Int(n) if negative => Number::Int(-n),
            Number::F32(x) if negative => Number::F32(-x),
            Number::F64(x) if negative => Number::F64(-x),
            same => same,
        })
    }

    fn integer(&mut self) -> Result<i64, PtxError> {
        let line = self.line();
        match self.number()? {
            // Values above i64::MAX are 64-bit patterns.
            Number::Int(n) => i64::try_from(n)
                .or_else(|_| u64::try_from(n).map(u64::cast_signed))
                .map_err(|_| PtxError::new(line, "integer out of range")),
            _ => Err(PtxError::new(line, "expected an integer, found a floating-point number")),
        }
    }

    fn count(&mut self) -> Result<u64, PtxError> {
        let line = self.line();
        u64::try_from(self.integer()?).map_err(|_| PtxError::new(line, "expected a size, found a negative number"))
    }

    /// Skips the arguments of `.file`, `.loc` and their like: all that stands on the same line.
    fn skip_line(&mut self) {
        let line = self.tokens[self.at - 1].1;
        while self.tokens.get(self.at).is_some_and(|t| t.1 == line) {
            self.at += 1;
        }
    }

    fn skip_past(&mut self, end: char) -> Result<(), PtxError> {
        while self.at < self.tokens.len() {
            if self.eat(end) {
                return Ok(());
            }
            self.at += 1;
        }
        self.error(&format!("'{end}'"))
    }

    fn module_item(&mut self, module: &mut RawModule) -> Result<(), PtxError> {
        let mut external = false;
        loop {
            let before = self.at;
            let word = self.dot()?;
            match word.as_str() {
                "version" => {
                    self.number()?;
                    self.skip_line();
                }
                "target" => {
                    let name = self.word()?;
                    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
                    module.target = digits.parse().unwrap_or_default();
                    self.skip_line();
                }
                "address_size" | "file" | "loc" => self.skip_line(),
                "pragma" => self.skip_past(';')?,
                "section" => {
                    self.skip_past('{')?;
                    self.skip_past('}')?;
                }
                "extern" => {
                    external = true;
                    continue;
                }
                "visible" | "weak" | "common" => continue,
                "alias" => {
                    let new = self.word()?;
                    self.expect(',')?;
                    let old = self.word()?;
                    self.expect(';')?;
                    module.aliases.push((new, old));
                }
                "entry" | "func" => {
                    let function = self.function(word == "entry")?;
                    module.functions.push(function);
                }
                "global" | "const" | "shared" => {
                    self.at = before;
                    module.vars.extend(self.variables(external)?);
                }
                _ => {
                    self.at = before;
                    return self.error("a directive of a module");
                }
            }
            return Ok(());
        }
    }

    /// `.space .align N .type name[dims] = init, ...;`
    fn variables(&mut self, external: bool) -> Result<Vec<VarDecl>, PtxError> {
        let mut out = Vec::new();
        let first = self.variable_head()?;
        loop {
            let mut var = first.clone();
            var.line = self.line();
            var.external = external;
            self.variable_name(&mut var)?;
            if var.reference.is_none() && self.eat('=') {
                self.initialiser(&mut var, 0)?;
                if var.size == 0 {
                    var.size = (var.init.len() as u64).saturating_mul(u64::from(var.ty.size()));
                }
            }
            out.push(var);
            if self.eat(',') {
                continue;
            }
            self.expect(';')?;
            return Ok(out);
        }
    }

    /// Space, alignment and type; the name is still empty and `size` is that of one element.
    fn variable_head(&mut self) -> Result<VarDecl, PtxError> {
        let line = self.line();
        let mut space = None;
        let mut align = None;
        let mut vector = 1;
        let mut ty = None;
        let mut managed = false;
        let mut reference = None;
        while let Some(Token::Dot(word)) = self.peek() {
            let word = word.clone();
            self.at += 1;
            match word.as_str() {
                "attribute" => {
                    let from = self.at;
                    self.skip_past(')')?;
                    managed |= self.tokens[from..self.at].iter().any(|t| matches!(&t.0, Token::Dot(word) if word == "managed"));
                }
                "align" => {
                    let value = self.count()?;
                    align = Some(
                        u32::try_from(value)
                            .ok()
                            .filter(|a| a.is_power_of_two() && *a <= 4096)
                            .ok_or_else(|| PtxError::new(line, "alignment is not a small power of two"))?,
                    );
                }
                "v2" => vector = 2,
                "v4" => vector = 4,
                "ptr" => {}
                "texref" => reference = Some(Reference::Texture),
                "surfref" => reference = Some(Reference::Surface),
                "global" | "const" | "shared" | "local" | "param" => {
                    // After `.ptr` the space is that of the pointer.
                    space = space.or(Some(match word.as_str() {
                        "global" => VarSpace::Global,
                        "const" => VarSpace::Const,
                        "shared" => VarSpace::Shared,
                        "local" => VarSpace::Local,
                        _ => VarSpace::Param,
                    }));
                }
                _ => match Ty::named(&word) {
                    // `.param .u64 .ptr .global .align 1 name`: the alignment is the pointee's.
                    Some(found) => ty = Some((found, align)),
                    None => return Err(PtxError::new(line, format!("unknown word '.{word}' in a declaration"))),
                },
            }
        }
        let Some(space) = space else {
            return self.error("a state space");
        };
        if reference.is_some() && (space != VarSpace::Global || ty.is_some()) {
            return self.error("a reference in global space");
        }
        let Some((ty, before_type)) = ty.or(reference.map(|_| (Ty::B64, align))) else {
            return self.error("a type");
        };
        let size = if reference.is_some() { 0 } else { ty.size() * vector };
        if space == VarSpace::Param && before_type.is_none() {
            align = None;
        }
        let align = align.unwrap_or(size.max(1));
        Ok(VarDecl {
            name: String::new(),
            space,
            ty,
            reference,
            align,
            size: u64::from(size),
            external: false,
            managed,
            init: Vec::new(),
            line,
        })
    }

    fn variable_name(&mut self, var: &mut VarDecl) -> Result<(), PtxError> {
        let line = self.line();
        var.name = self.word()?;
        while self.eat('[') {
            if self.eat(']') {
                var.size = 0;
                continue;
            }
            let count = self.count()?;
            self.expect(']')?;
            var.size = var
                .size
                .checked_mul(count)
                .filter(|&s| s <= MAX_VARIABLE)
                .ok_or_else(|| PtxError::new(line, format!("variable {} is too large", var.name)))?;
        }
        Ok(())
    }

    fn initialiser(&mut self, var: &mut VarDecl, depth: usize) -> Result<(), PtxError> {
        if !self.eat('{') {
            let item = self.init_item()?;
            var.init.push(item);
            return Ok(());
        }
        if depth > MAX_NESTING {
            return self.error("fewer nested braces");
        }
        while !self.eat('}') {
            self.initialiser(var, depth + 1)?;
            if !self.eat(',') && self.peek() != Some(&Token::Punct('}')) {
                return self.error("',' or '}'");
            }
        }
        Ok(())
    }

    fn init_item(&mut self) -> Result<InitItem, PtxError> {
        let mut mask = None;
        if matches!(self.peek(), Some(Token::Number(_)) | Some(Token::Punct('-'))) {
            let number = self.number()?;
            let (Number::Int(bits), true) = (number, self.eat('(')) else {
                return Ok(InitItem::Number(number));
            };
            mask = u64::try_from(bits).ok();
        }
        let mut name = self.word()?;
        let generic = name == "generic" && self.eat('(');
        if generic {
            name = self.word()?;
        }
        let mut addend = self.offset()?;
        if generic {
            self.expect(')')?;
            addend = addend.wrapping_add(self.offset()?);
        }
        if mask.is_some() {
            self.expect(')')?;
        }
        Ok(InitItem::Symbol { name, addend, mask })
    }

    /// `+n` or `-n`, if there is one.
    fn offset(&mut self) -> Result<i64, PtxError> {
        if self.eat('+') || self.peek() == Some(&Token::Punct('-')) { self.integer() } else { Ok(0) }
    }

    fn params(&mut self) -> Result<Vec<VarDecl>, PtxError> {
        let mut out = Vec::new();
        if !self.eat('(') {
            return Ok(out);
        }
        while !self.eat(')') {
            let mut var = self.variable_head()?;
            self.variable_name(&mut var)?;
            out.push(var);
            if !self.eat(',') && self.peek() != Some(&Token::Punct(')')) {
                return self.error("',' or ')'");
            }
        }
        Ok(out)
    }

    fn function(&mut self, is_kernel: bool) -> Result<RawFunction, PtxError> {
        let line = self.line();
        while self.eat_dot("attribute") {
            self.skip_past(')')?;
        }
        let rets = self.params()?;
        let name = self.word()?;
        let params = self.params()?;
        let mut function = RawFunction {
            name,
            line,
            is_kernel,
            params,
            rets,
            max_threads: None,
            scopes: vec![Scope::default()],
            body: None,
            unknown: None,
        };
        loop {
            if self.eat(';') {
                return Ok(function);
            }
            if self.eat('{') {
                let mut body = Vec::new();
                self.block(&mut function, &mut body, 0, 0)?;
                function.body = Some(body);
                return Ok(function);
            }
            match self.dot()?.as_str() {
                "noreturn" | "explicitcluster" => {}
                "pragma" => self.skip_past(';')?,
                "attribute" => self.skip_past(')')?,
                directive @ ("maxntid" | "reqntid") => {
                    let mut threads = self.count()?;
                    while self.eat(',') {
                        threads = threads.saturating_mul(self.count()?);
                    }
                    if directive == "reqntid" || function.max_threads.is_none() {
                        function.max_threads = u32::try_from(threads).ok();
                    }
                }
                "minnctapersm" | "maxnreg" | "maxnctapersm" | "reqnctapercluster" | "maxclusterrank" => {
                    self.count()?;
                    while self.eat(',') {
                        self.count()?;
                    }
                }
                other => {
                    function.unknown.get_or_insert(format!("directive .{other}"));
                }
            }
        }
    }

    /// Statements up to the closing brace.
    fn block(&mut self, f: &mut RawFunction, body: &mut Vec<RawInstr>, scope: usize, depth: usize) -> Result<(), PtxError> {
        if depth > MAX_NESTING {
            return self.error("fewer nested braces");
        }
        while !self.eat('}') {
            match self.peek() {
                Some(Token::Punct('{')) => {
                    self.at += 1;
                    f.scopes.push(Scope { parent: Some(scope), ..Scope::default() });
                    let inner = f.scopes.len() - 1;
                    self.block(f, body, inner, depth + 1)?;
                }
                Some(Token::Punct(';')) => self.at += 1,
                Some(Token::Dot(_)) => self.directive(f, scope)?,
                Some(Token::Word(_)) if self.peek_at(1) == Some(&Token::Punct(':')) => self.label(f, scope, body.len())?,
                Some(Token::Word(_) | Token::Punct('@')) => body.push(self.instruction(scope)?),
                _ => return self.error("a statement"),
            }
        }
        Ok(())
    }

    fn label(&mut self, f: &mut RawFunction, scope: usize, position: usize) -> Result<(), PtxError> {
        let name = self.word()?;
        self.expect(':')?;
        let meaning = if self.eat_dot("callprototype") || self.eat_dot("calltargets") {
            self.skip_past(';')?;
            Local::Prototype
        } else if self.eat_dot("branchtargets") {
            let mut targets = vec![self.word()?];
            while self.eat(',') {
                targets.push(self.word()?);
            }
            self.expect(';')?;
            Local::BranchTargets(targets)
        } else {
            Local::Label(position)
        };
        f.scopes[scope].names.insert(name, meaning);
        Ok(())
    }

    fn directive(&mut self, f: &mut RawFunction, scope: usize) -> Result<(), PtxError> {
        let before = self.at;
        match self.dot()?.as_str() {
            "reg" => {
                let word = self.dot()?;
                // Vector registers hold several values under one name.
                let Some(ty) = Ty::named(&word) else {
                    f.unknown.get_or_insert(format!("register type .{word}"));
                    return self.skip_past(';');
                };
                loop {
                    let name = self.word()?;
                    if self.eat('<') {
                        let count = self.count()?;
                        self.expect('>')?;
                        f.scopes[scope].names.insert(name, Local::RegRange(ty, count));
                    } else {
                        f.scopes[scope].names.insert(name, Local::Reg(ty));
                    }
                    if !self.eat(',') {
                        return self.expect(';');
                    }
                }
            }
            "local" | "shared" | "param" | "global" | "const" => {
                self.at = before;
                for var in self.variables(false)? {
                    f.scopes[scope].names.insert(var.name.clone(), Local::Var(var));
                }
                Ok(())
            }
            "loc" => {
                self.skip_line();
                Ok(())
            }
            "pragma" => self.skip_past(';'),
            other => {
                f.unknown.get_or_insert(format!("directive .{other}"));
                self.skip_past(';')
            }
        }
    }

    fn instruction(&mut self, scope: usize) -> Result<RawInstr, PtxError> {
        let line = self.line();
        let guard = if self.eat('@') {
            let negated = self.eat('!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let mut op = vec![self.word()?];
        while let Some(Token::Dot(word)) = self.peek() {
            op.push(word.clone());
            self.at += 1;
        }
        let mut operands = Vec::new();
        if !self.eat(';') {
            loop {
                operands.push(self.operand(0)?);
                if !self.eat(',') {
                    break;
                }
            }
            self.expect(';')?;
        }
        Ok(RawInstr { line, scope, guard, op, operands })
    }

    fn operand(&mut self, depth: usize) -> Result<Operand, PtxError> {
        if depth > 3 {
            return self.error("a simple operand");
        }
        let first = match self.peek() {
            Some(Token::Punct('[')) => {
                self.at += 1;
                let address = if let Some(Token::Word(_)) = self.peek() {
                    let name = self.word()?;
                    if self.eat(',') {
                        self.expect('{')?;
                        Operand::Sample { object: name, at: self.operands_until('}', depth)? }
                    } else {
                        Operand::Address { name, offset: self.offset()? }
                    }
                } else {
                    Operand::Address { name: String::new(), offset: self.integer()? }
                };
                self.expect(']')?;
                address
            }
            Some(Token::Punct('{')) => {
                self.at += 1;
                Operand::Vector(self.operands_until('}', depth)?)
            }
            Some(Token::Punct('(')) => {
                self.at += 1;
                Operand::List(self.operands_until(')', depth)?)
            }
            Some(Token::Punct('!')) => {
                self.at += 1;
                Operand::Not(self.word()?)
            }
            Some(Token::Number(_) | Token::Punct('-')) => Operand::Number(self.number()?),
            _ => {
                let mut name = self.word()?;
                // `%tid.x`
                while let Some(Token::Dot(word)) = self.peek() {
                    name = format!("{name}.{word}");
                    self.at += 1;
                }
                Operand::Name { name, offset: self.offset()? }
            }
        };
        if self.eat('|') {
            let second = self.operand(depth + 1)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn operands_until(&mut self, end: char, depth: usize) -> Result<Vec<Operand>, PtxError> {
        let mut out = Vec::new();
        while !self.eat(end) {
            out.push(self.operand(depth + 1)?);
            if !self.eat(',') && self.peek() != Some(&Token::Punct(end)) {
                return self.error(&format!("',' or '{end}'"));
            }
        }
        Ok(out)
    }
}
