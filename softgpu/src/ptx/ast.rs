//! The syntax tree of PTX: types, variables, and statements with unresolved names.

use std::collections::HashMap;

/// Scalar types of PTX that the interpreter knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    U16x2,
    S16x2,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Ty {
    /// The type named by a modifier such as `u32`; `None` for every other word.
    pub(crate) fn named(word: &str) -> Option<Ty> {
        Some(match word {
            "pred" => Ty::Pred,
            "b8" => Ty::B8,
            "b16" => Ty::B16,
            "b32" => Ty::B32,
            "b64" => Ty::B64,
            "u8" => Ty::U8,
            "u16" => Ty::U16,
            "u32" => Ty::U32,
            "u64" => Ty::U64,
            "s8" => Ty::S8,
            "s16" => Ty::S16,
            "s32" => Ty::S32,
            "s64" => Ty::S64,
            "u16x2" => Ty::U16x2,
            "s16x2" => Ty::S16x2,
            "f16" => Ty::F16,
            "f16x2" => Ty::F16x2,
            "bf16" => Ty::Bf16,
            "bf16x2" => Ty::Bf16x2,
            "f32" => Ty::F32,
            "f64" => Ty::F64,
            _ => return None,
        })
    }

    /// Size in bytes of a value in memory; predicates have none.
    pub(crate) fn size(self) -> u32 {
        match self {
            Ty::Pred => 0,
            Ty::B8 | Ty::U8 | Ty::S8 => 1,
            Ty::B16 | Ty::U16 | Ty::S16 | Ty::F16 | Ty::Bf16 => 2,
            Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::U16x2 | Ty::S16x2 | Ty::F16x2 | Ty::Bf16x2 => 4,
            Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64 => 8,
        }
    }

    /// Whether an integer of this type is sign-extended when widened.
    pub(crate) fn signed(self) -> bool {
        matches!(self, Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64)
    }

    /// Whether values of this type are floating point.
    pub(crate) fn float(self) -> bool {
        matches!(self, Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 | Ty::F32 | Ty::F64)
    }
}

/// State space of a declared variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// What an opaque variable of a module refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// `.texref`
    Texture,
    /// `.surfref`
    Surface,
}

/// One element of an initialiser.
#[derive(Clone, Debug)]
pub(crate) enum InitItem {
    /// Integer or the bits of a float literal.
    Number(Number),
    /// Address of a symbol plus an offset; `mask` is the byte selector of `0xFF00(symbol)`, if any.
    Symbol { name: String, addend: i64, mask: Option<u64> },
}

/// A literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    F32(f32),
    F64(f64),
}

/// A variable declaration in any space.
#[derive(Clone, Debug)]
pub(crate) struct VarDecl {
    pub(crate) name: String,
    pub(crate) space: VarSpace,
    pub(crate) ty: Ty,
    /// Of an opaque variable, which has no bytes.
    pub(crate) reference: Option<Reference>,
    pub(crate) align: u32,
    /// Bytes; 0 for an array of unknown length.
    pub(crate) size: u64,
    /// `.extern`: storage is defined elsewhere (dynamic shared memory, if in shared space).
    pub(crate) external: bool,
    /// `.attribute(.managed)`
    pub(crate) managed: bool,
    pub(crate) init: Vec<InitItem>,
    pub(crate) line: usize,
}

/// An operand as written.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// Register, variable, function, label or special register, with `+offset` if any.
    Name {
        name: String,
        offset: i64,
    },
    /// `!%p1`
    Not(String),
    Number(Number),
    /// `[name+offset]`, or `[number]` with an empty name.
    Address {
        name: String,
        offset: i64,
    },
    /// `[name, {a, b}]`: an object and where it is sampled.
    Sample {
        object: String,
        at: Vec<Operand>,
    },
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `d|p`
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
}

/// One instruction with its guard.
#[derive(Clone, Debug)]
pub(crate) struct RawInstr {
    pub(crate) line: usize,
    /// Innermost scope, an index into `RawFunction::scopes`.
    pub(crate) scope: usize,
    /// Predicate register and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// Opcode and its modifiers: `ld`, `global`, `f32`.
    pub(crate) op: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

/// The kinds of names declared inside a function.
#[derive(Clone, Debug)]
pub(crate) enum Local {
    Reg(Ty),
    /// `.reg .b32 %r<7>`: names %r0 to %r6.
    RegRange(Ty, u64),
    Var(VarDecl),
    /// Index of the instruction that the label precedes.
    Label(usize),
    /// `.callprototype` and the like: nothing to know at run time.
    Prototype,
    BranchTargets(Vec<String>),
}

/// A `{ }` block; names are looked up from the inside out.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) parent: Option<usize>,
    pub(crate) names: HashMap<String, Local>,
}

/// A function as parsed.
#[derive(Debug)]
pub(crate) struct RawFunction {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) is_kernel: bool,
    pub(crate) params: Vec<VarDecl>,
    pub(crate) rets: Vec<VarDecl>,
    pub(crate) max_threads: Option<u32>,
    pub(crate) scopes: Vec<Scope>,
    /// `None` for a declaration without a body.
    pub(crate) body: Option<Vec<RawInstr>>,
    /// First unknown directive: the function loads but must not run.
    pub(crate) unknown: Option<String>,
}

impl RawFunction {
    /// Finds a name seen from `scope`, with the scope that declares it.
    pub(crate) fn lookup(&self, mut scope: usize, name: &str) -> Option<(usize, &Local)> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(digits);
        loop {
            let here = self.scopes.get(scope)?;
            if let Some(found) = here.names.get(name) {
                return Some((scope, found));
            }
            if let Some(found @ Local::RegRange(_, count)) = here.names.get(prefix)
                && number.parse::<u64>().is_ok_and(|n| n < *count)
            {
                return Some((scope, found));
            }
            scope = here.parent?;
        }
    }
}

/// A module as parsed.
#[derive(Debug, Default)]
pub(crate) struct RawModule {
    pub(crate) vars: Vec<VarDecl>,
    pub(crate) functions: Vec<RawFunction>,
    /// `.alias new, old`
    pub(crate) aliases: Vec<(String, String)>,
    /// `.target`: 75 for `sm_75`.
    pub(crate) target: u32,
}
