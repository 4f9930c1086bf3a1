//! The state of decoding a function: registers, places and constants, and what operands stand for.

use std::collections::HashMap;

use super::ast::{Local, Number, Operand, RawFunction, Ty, VarSpace};
use super::float::{Bf16, Half, Round, Small};
use super::lanes::handler;
use super::machine::{Function, Handler, Instr};
use super::mem::{FrameAddress, FrameAddress32};
use super::operand::{Base, LANES, NEGATED, NONE, Row, Src};
use super::spec::Slot;
use super::special;
use super::symbol::{Symbol, Symbols, Target};
use super::window::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

/// A register: its file and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    P(u32),
    R32(u32),
    R64(u32),
}

/// The location of a variable of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Local frame.
    Frame(Slot),
    /// Offset in the kernel's parameter buffer.
    KernelParam(u32),
    /// Frame as well, but addressed as parameter space.
    FrameParam(Slot),
    Symbol(Symbol),
}

/// Why a function cannot be decoded.
pub(crate) type Problem = String;

/// The state of decoding a function: its code so far, and where its names are.
pub(crate) struct Decoder<'m> {
    pub(crate) number: usize,
    pub(crate) raw: &'m RawFunction,
    pub(crate) symbols: &'m Symbols,
    pub(crate) out: Function,
    regs: HashMap<(usize, String), Reg>,
    pub(crate) places: HashMap<(usize, String), Place>,
    consts32: HashMap<u32, u32>,
    consts64: HashMap<u64, u32>,
    addresses: HashMap<(Target, i64), u32>,
    /// Code indices to patch: instruction and scope-resolved raw index.
    pub(crate) fixups: Vec<(usize, usize)>,
    /// The same for entries of `Function::lists`.
    pub(crate) list_fixups: Vec<(usize, usize)>,
    pub(crate) guard: u32,
    pub(crate) scope: usize,
    pub(crate) shared: Vec<usize>,
    pub(crate) callees: Vec<usize>,
    pub(crate) indirect: bool,
}

impl<'m> Decoder<'m> {
    /// A decoder of a function; see [`Symbols::inner`] for its number.
    pub(crate) fn new(number: usize, raw: &'m RawFunction, symbols: &'m Symbols) -> Decoder<'m> {
        Decoder {
            number,
            raw,
            symbols,
            out: Function { is_kernel: raw.is_kernel, n32: 1, n64: 1, npred: 1, ..Function::default() },
            regs: HashMap::new(),
            places: HashMap::new(),
            consts32: HashMap::new(),
            consts64: HashMap::new(),
            addresses: HashMap::new(),
            fixups: Vec::new(),
            list_fixups: Vec::new(),
            guard: NONE,
            scope: 0,
            shared: Vec::new(),
            callees: Vec::new(),
            indirect: false,
        }
    }

    /// An instruction that does nothing else but run `exec`, under the current guard.
    pub(crate) fn instr(&self, exec: Handler) -> Instr {
        Instr { exec, guard: self.guard, d: NONE, s: [Src::NONE; 4], imm: 0, x: NONE, base: Base::Wide }
    }

    pub(crate) fn emit(&mut self, instr: Instr) {
        self.out.code.push(instr);
    }

    /// Emits an operation of up to four sources.
    pub(crate) fn emit_op(&mut self, exec: Handler, d: u32, sources: &[Src]) {
        let mut instr = self.instr(exec);
        instr.d = d;
        instr.s[..sources.len()].copy_from_slice(sources);
        self.emit(instr);
    }

    pub(crate) fn new_reg32(&mut self) -> u32 {
        self.out.n32 += 1;
        self.out.n32 - 1
    }

    pub(crate) fn new_reg64(&mut self) -> u32 {
        self.out.n64 += 1;
        self.out.n64 - 1
    }

    /// The register called `name`, if there is one.
    pub(crate) fn reg(&mut self, name: &str) -> Option<Reg> {
        let (scope, found) = self.raw.lookup(self.scope, name)?;
        let (Local::Reg(ty) | Local::RegRange(ty, _)) = found else {
            return None;
        };
        let ty = *ty;
        if let Some(&reg) = self.regs.get(&(scope, name.to_string())) {
            return Some(reg);
        }
        let reg = match ty.size() {
            0 => {
                self.out.npred += 1;
                Reg::P(self.out.npred - 1)
            }
            8 => Reg::R64(self.new_reg64()),
            _ => Reg::R32(self.new_reg32()),
        };
        self.regs.insert((scope, name.to_string()), reg);
        Some(reg)
    }

    /// The predicate called `name`.
    pub(crate) fn pred_named(&mut self, name: &str) -> Result<u32, Problem> {
        match self.reg(name) {
            Some(Reg::P(p)) => Ok(p),
            _ => Err(format!("'{name}' is not a predicate")),
        }
    }

    /// A predicate operand with its negation.
    pub(crate) fn pred(&mut self, operand: &Operand) -> Result<u32, Problem> {
        match operand {
            Operand::Name { name, offset: 0 } => self.pred_named(name),
            Operand::Not(name) => Ok(self.pred_named(name)? | NEGATED),
            Operand::Number(Number::Int(n)) => Ok(self.constant_pred(*n != 0)),
            _ => Err("expected a predicate".into()),
        }
    }

    /// Predicate 0 is never written and thus false.
    fn constant_pred(&self, value: bool) -> u32 {
        if value { NEGATED } else { 0 }
    }

    /// A predicate destination; `_` is none.
    pub(crate) fn pred_dst(&mut self, operand: &Operand) -> Result<u32, Problem> {
        match operand {
            Operand::Name { name, .. } if name == "_" => Ok(NONE),
            _ => self.pred(operand),
        }
    }

    /// A 32-bit destination; `_` is a register that is never read.
    pub(crate) fn dst32(&mut self, operand: &Operand) -> Result<u32, Problem> {
        match self.any_dst(operand, false)? {
            Reg::R32(r) => Ok(r),
            _ => Err("destination is not a 32-bit register".into()),
        }
    }

    /// A 64-bit destination.
    pub(crate) fn dst64(&mut self, operand: &Operand) -> Result<u32, Problem> {
        match self.any_dst(operand, true)? {
            Reg::R64(r) => Ok(r),
            _ => Err("destination is not a 64-bit register".into()),
        }
    }

    /// A destination of the type's width.
    pub(crate) fn dst(&mut self, operand: &Operand, ty: Ty) -> Result<u32, Problem> {
        if ty.size() == 8 { self.dst64(operand) } else { self.dst32(operand) }
    }

    /// A destination of whatever width it has; `_` is 64 bits wide if `wide`.
    pub(crate) fn any_dst(&mut self, operand: &Operand, wide: bool) -> Result<Reg, Problem> {
        match operand {
            Operand::Name { name, .. } if name == "_" => {
                Ok(if wide { Reg::R64(self.new_reg64()) } else { Reg::R32(self.new_reg32()) })
            }
            Operand::Name { name, offset: 0 } => self.reg(name).ok_or_else(|| format!("'{name}' is not a register")),
            _ => Err("destination is not a register".into()),
        }
    }

    pub(crate) fn const32(&mut self, value: u32) -> Src {
        let index = *self.consts32.entry(value).or_insert_with(|| {
            self.out.consts32.push(Row([value; LANES]));
            (self.out.consts32.len() - 1) as u32
        });
        Src::constant(index)
    }

    pub(crate) fn const64(&mut self, value: u64) -> Src {
        let index = *self.consts64.entry(value).or_insert_with(|| {
            self.out.consts64.push(Row([value; LANES]));
            (self.out.consts64.len() - 1) as u32
        });
        Src::constant(index)
    }

    /// The address of a global or function: a constant that linking fills in.
    fn address_const(&mut self, target: Target, addend: i64) -> Src {
        let index = *self.addresses.entry((target, addend)).or_insert_with(|| {
            self.out.consts64.push(Row([0; LANES]));
            self.out.relocs.push((self.out.consts64.len() - 1, target, addend));
            (self.out.consts64.len() - 1) as u32
        });
        if let Target::Function(function) = target {
            self.callees.push(function);
        }
        Src::constant(index)
    }

    /// The variable or function called `name`.
    pub(crate) fn place(&mut self, name: &str) -> Option<Place> {
        let mut scope = Some(self.scope);
        while let Some(s) = scope {
            if let Some(&place) = self.places.get(&(s, name.to_string())) {
                return Some(place);
            }
            scope = self.raw.scopes[s].parent;
        }
        let symbol = *self.symbols.names.get(name)?;
        Some(Place::Symbol(symbol))
    }

    pub(crate) fn shared_src(&mut self, index: usize) -> Src {
        if !self.shared.contains(&index) {
            self.shared.push(index);
        }
        Src::shared(index as u32)
    }

    /// A source operand of the type's width. Emits code for addresses that depend on the activation.
    pub(crate) fn src(&mut self, operand: &Operand, ty: Ty) -> Result<Src, Problem> {
        let wide = ty.size() == 8;
        match operand {
            Operand::Number(number) => {
                let bits = bits_of(*number, ty);
                Ok(if wide { self.const64(bits) } else { self.const32(bits as u32) })
            }
            Operand::Name { name, offset } => {
                if *offset == 0 {
                    match (self.reg(name), wide) {
                        (Some(Reg::R32(r)), false) | (Some(Reg::R64(r)), true) => return Ok(Src(r)),
                        (Some(_), _) => return Err(format!("register '{name}' does not match the instruction's width")),
                        (None, _) => {}
                    }
                    if let Some(index) = special::index(name) {
                        return if wide { Err(format!("'{name}' is 32 bits wide")) } else { Ok(Src::special(index)) };
                    }
                }
                self.address_src(name, *offset, wide)
            }
            _ => Err("unexpected kind of operand".into()),
        }
    }

    fn address_src(&mut self, name: &str, offset: i64, wide: bool) -> Result<Src, Problem> {
        let place = self.place(name).ok_or_else(|| format!("unknown name '{name}'"))?;
        match place {
            Place::Symbol(Symbol::Address(target)) if wide => Ok(self.address_const(target, offset)),
            Place::Symbol(Symbol::Shared(index)) if offset == 0 => Ok(self.shared_src(index)),
            Place::KernelParam(at) if wide => {
                Ok(self.const64(PARAM_WINDOW.wrapping_add(u64::from(at)).wrapping_add_signed(offset)))
            }
            Place::Frame(slot) | Place::FrameParam(slot) => {
                let window = if matches!(place, Place::FrameParam(_)) { (LOCAL_WINDOW >> 56) as u32 } else { 0 };
                Ok(self.frame_address(i64::from(slot.offset) + offset, window, wide))
            }
            Place::Symbol(_) | Place::KernelParam(_) => Err(format!("address of '{name}' cannot be used like this")),
        }
    }

    /// A register that holds the address of `offset` in the local frame; `window` as `mem::FrameAddress` has it.
    fn frame_address(&mut self, offset: i64, window: u32, wide: bool) -> Src {
        let (exec, d) =
            if wide { (handler::<FrameAddress>(), self.new_reg64()) } else { (handler::<FrameAddress32>(), self.new_reg32()) };
        let mut instr = self.instr(exec);
        instr.d = d;
        instr.imm = offset;
        instr.x = window;
        // Without a guard: the operand may be used by several decoded instructions.
        instr.guard = NONE;
        self.emit(instr);
        Src(d)
    }

    /// The base, its kind and the offset of an address operand in space `space` (`None` for generic).
    pub(crate) fn address(&mut self, operand: &Operand, space: Option<VarSpace>) -> Result<(Src, Base, i64), Problem> {
        let Operand::Address { name, offset } = operand else {
            return Err("expected an address".into());
        };
        if name.is_empty() {
            return Ok((self.const64(offset.cast_unsigned()), Base::Wide, 0));
        }
        match self.reg(name) {
            Some(Reg::R64(r)) => return Ok((Src(r), Base::Wide, *offset)),
            Some(Reg::R32(r)) => return Ok((Src(r), Base::Narrow, *offset)),
            Some(Reg::P(_)) => return Err(format!("predicate '{name}' used as an address")),
            None => {}
        }
        let place = self.place(name).ok_or_else(|| format!("unknown name '{name}'"))?;
        match place {
            Place::Symbol(Symbol::Address(target)) => Ok((self.address_const(target, 0), Base::Wide, *offset)),
            Place::Symbol(Symbol::Shared(index)) => {
                let window = if space == Some(VarSpace::Shared) { 0 } else { SHARED_WINDOW.cast_signed() };
                Ok((self.shared_src(index), Base::Wide, offset + window))
            }
            Place::Frame(slot) | Place::FrameParam(slot) => match space {
                Some(VarSpace::Local | VarSpace::Param) => Ok((Src::NONE, Base::Frame, i64::from(slot.offset) + offset)),
                _ => Ok((self.frame_address(i64::from(slot.offset) + offset, (LOCAL_WINDOW >> 56) as u32, true), Base::Wide, 0)),
            },
            Place::KernelParam(at) => Ok((self.const64(PARAM_WINDOW + u64::from(at)), Base::Wide, *offset)),
        }
    }

    /// Remembers that the instruction emitted next branches to the label.
    pub(crate) fn branch_to(&mut self, label: &str) -> Result<(), Problem> {
        let target = self.label(label)?;
        self.fixups.push((self.out.code.len(), target));
        Ok(())
    }

    fn label(&self, name: &str) -> Result<usize, Problem> {
        match self.raw.lookup(self.scope, name) {
            Some((_, Local::Label(position))) => Ok(*position),
            _ => Err(format!("unknown label '{name}'")),
        }
    }

    /// Adds the targets of a `.branchtargets` to the lists: first index and count.
    pub(crate) fn branch_list(&mut self, name: &str) -> Result<(u32, u32), Problem> {
        let Some((_, Local::BranchTargets(labels))) = self.raw.lookup(self.scope, name) else {
            return Err(format!("unknown list of targets '{name}'"));
        };
        let start = self.out.lists.len();
        for label in labels {
            let target = self.label(label)?;
            self.list_fixups.push((self.out.lists.len(), target));
            self.out.lists.push(0);
        }
        Ok((start as u32, labels.len() as u32))
    }

    /// The register or first special name of an operand, for instructions that look at it themselves.
    pub(crate) fn name_of<'o>(&self, operand: &'o Operand) -> Option<&'o str> {
        match operand {
            Operand::Name { name, offset: 0 } => Some(name),
            _ => None,
        }
    }
}

/// An instruction being decoded.
pub(crate) struct Op<'o> {
    pub(crate) name: &'o str,
    pub(crate) mods: &'o [&'o str],
    pub(crate) args: &'o [Operand],
}

impl<'o> Op<'o> {
    pub(crate) fn has(&self, word: &str) -> bool {
        self.mods.contains(&word)
    }

    /// The types among the modifiers.
    pub(crate) fn types(&self) -> Vec<Ty> {
        self.mods.iter().filter_map(|m| Ty::named(m)).collect()
    }

    /// The first type.
    pub(crate) fn ty(&self) -> Result<Ty, Problem> {
        self.mods.iter().find_map(|m| Ty::named(m)).ok_or_else(|| "no type".to_string())
    }

    pub(crate) fn arg(&self, n: usize) -> Result<&'o Operand, Problem> {
        self.args.get(n).ok_or_else(|| "too few operands".to_string())
    }
}

/// The bits of a literal used where type `ty` is expected.
pub(crate) fn bits_of(number: Number, ty: Ty) -> u64 {
    match (number, ty) {
        (Number::Int(n), Ty::F32) => u64::from((n as f32).to_bits()),
        (Number::Int(n), Ty::F64) => (n as f64).to_bits(),
        (Number::Int(n), _) => n as u64,
        (Number::F32(x), Ty::F64) => f64::from(x).to_bits(),
        (Number::F64(x), Ty::F32) => u64::from((x as f32).to_bits()),
        (Number::F32(x), Ty::F16) => u64::from(Small::bits(<Half as Small>::narrow(f64::from(x), Round::Nearest))),
        (Number::F32(x), Ty::Bf16) => u64::from(Small::bits(<Bf16 as Small>::narrow(f64::from(x), Round::Nearest))),
        (Number::F32(x), _) => u64::from(x.to_bits()),
        (Number::F64(x), _) => x.to_bits(),
    }
}
