//! Decoding of arithmetic, logic, comparisons, conversions and moves.

use super::alu::{
    self, AddSat, Bfi, Bmsk, BmskWrap, Carry, Cut16, Dp2a, Dp4aSS, Dp4aSU, Dp4aUS, Dp4aUU, Lop3, Low32, MadCarry, Mov, Mul24Hi,
    Mul24HiSigned, Mul24Lo, Mul24LoSigned, Pack16, Pack32, PredOp, Prmt, PrmtB4e, PrmtEcl, PrmtEcr, PrmtF4e, PrmtRc8, PrmtRc16,
    Selp, ShfLClamp, ShfLWrap, ShfRClamp, ShfRWrap, Shr, Slct, SubSat, SzextClamp, SzextClampSigned, Vabsdiff4, Vabsdiff4Add,
};
use super::ast::{Number, Operand, Ty};
use super::builtin::{Clock, ReadClock};
use super::cvt::{self, Convert, PackSmall};
use super::decoder::{Decoder, Op, Problem, Reg};
use super::falu;
use super::float::Round;
use super::lanes::{B2, T3, U1, handler};
use super::machine::Handler;
use super::operand::{NEGATED, NONE, Src};
use super::spec::CvtSpec;

/// Rounding direction among the modifiers, and whether it rounds to an integral value.
fn rounding(o: &Op<'_>) -> (Option<Round>, bool) {
    for word in o.mods {
        let found = match *word {
            "rn" => (Round::Nearest, false),
            "rz" => (Round::Zero, false),
            "rm" => (Round::Down, false),
            "rp" => (Round::Up, false),
            "rni" => (Round::Nearest, true),
            "rzi" => (Round::Zero, true),
            "rmi" => (Round::Down, true),
            "rpi" => (Round::Up, true),
            _ => continue,
        };
        return (Some(found.0), found.1);
    }
    (None, false)
}

fn missing() -> Problem {
    "softgpu does not support this form of the instruction".into()
}

/// Decodes the instruction if it is one of these; false if it is not.
pub(crate) fn arithmetic(decoder: &mut Decoder<'_>, o: &Op<'_>) -> Result<bool, Problem> {
    match o.name {
        "mov" => decoder.mov(o)?,
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl" | "shr" | "copysign" => {
            decoder.binary(o)?
        }
        "addc" | "subc" => decoder.carry(o)?,
        "not" | "cnot" | "neg" | "abs" | "brev" | "popc" | "clz" | "bfind" => decoder.unary(o)?,
        "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => decoder.float_unary(o)?,
        "mad" | "fma" | "madc" => decoder.mad(o)?,
        "mad24" | "mul24" => decoder.mul24(o)?,
        "sad" | "bfe" => decoder.ternary(o)?,
        "bfi" => {
            let ty = o.ty()?;
            let exec = if ty.size() == 8 { handler::<Bfi<u64>>() } else { handler::<Bfi<u32>>() };
            let d = decoder.dst(o.arg(0)?, ty)?;
            let s = [
                decoder.src(o.arg(1)?, ty)?,
                decoder.src(o.arg(2)?, ty)?,
                decoder.src(o.arg(3)?, Ty::U32)?,
                decoder.src(o.arg(4)?, Ty::U32)?,
            ];
            decoder.emit_op(exec, d, &s);
        }
        "prmt" => {
            let exec = match o.mods.last().copied() {
                Some("f4e") => handler::<T3<PrmtF4e>>(),
                Some("b4e") => handler::<T3<PrmtB4e>>(),
                Some("rc8") => handler::<T3<PrmtRc8>>(),
                Some("ecl") => handler::<T3<PrmtEcl>>(),
                Some("ecr") => handler::<T3<PrmtEcr>>(),
                Some("rc16") => handler::<T3<PrmtRc16>>(),
                _ => handler::<T3<Prmt>>(),
            };
            decoder.three(o, exec)?;
        }
        "shf" => {
            let exec = match (o.has("l"), o.has("wrap")) {
                (true, true) => handler::<T3<ShfLWrap>>(),
                (true, false) => handler::<T3<ShfLClamp>>(),
                (false, true) => handler::<T3<ShfRWrap>>(),
                (false, false) => handler::<T3<ShfRClamp>>(),
            };
            decoder.three(o, exec)?;
        }
        "lop3" => decoder.lop3(o)?,
        "dp4a" | "dp2a" => decoder.dot_product(o)?,
        "vabsdiff4" if !o.has("sat") && o.types().iter().all(|t| *t == Ty::U32) => {
            let exec = if o.has("add") { handler::<T3<Vabsdiff4Add>>() } else { handler::<T3<Vabsdiff4>>() };
            decoder.three(o, exec)?;
        }
        "bmsk" => {
            let exec = if o.has("wrap") { handler::<B2<BmskWrap>>() } else { handler::<B2<Bmsk>>() };
            decoder.two(o, exec)?;
        }
        "szext" if o.has("clamp") => {
            let exec = if o.ty()?.signed() { handler::<B2<SzextClampSigned>>() } else { handler::<B2<SzextClamp>>() };
            decoder.two(o, exec)?;
        }
        "selp" => {
            let ty = o.ty()?;
            let exec = if ty.size() == 8 { handler::<Selp<u64>>() } else { handler::<Selp<u32>>() };
            let d = decoder.dst(o.arg(0)?, ty)?;
            let s = [decoder.src(o.arg(1)?, ty)?, decoder.src(o.arg(2)?, ty)?, Src(decoder.pred(o.arg(3)?)?)];
            decoder.emit_op(exec, d, &s);
        }
        "slct" => decoder.slct(o)?,
        "setp" => decoder.setp(o)?,
        "set" => decoder.set(o)?,
        "testp" => decoder.testp(o)?,
        "cvt" => decoder.cvt(o)?,
        _ => return Ok(false),
    }
    Ok(true)
}

impl Decoder<'_> {
    /// Two 32-bit sources.
    fn two(&mut self, o: &Op<'_>, exec: Handler) -> Result<(), Problem> {
        let d = self.dst32(o.arg(0)?)?;
        let s = [self.src(o.arg(1)?, Ty::U32)?, self.src(o.arg(2)?, Ty::U32)?];
        self.emit_op(exec, d, &s);
        Ok(())
    }

    /// Three 32-bit sources.
    fn three(&mut self, o: &Op<'_>, exec: Handler) -> Result<(), Problem> {
        let d = self.dst32(o.arg(0)?)?;
        let s = [self.src(o.arg(1)?, Ty::U32)?, self.src(o.arg(2)?, Ty::U32)?, self.src(o.arg(3)?, Ty::U32)?];
        self.emit_op(exec, d, &s);
        Ok(())
    }

    fn pred_op(&mut self, o: &Op<'_>, kind: i64) -> Result<(), Problem> {
        let d = self.pred(o.arg(0)?)?;
        let a = self.pred(o.arg(1)?)?;
        let b = if kind == 0 { a } else { self.pred(o.arg(2)?)? };
        let mut instr = self.instr(handler::<PredOp>());
        instr.d = d;
        instr.s = [Src(a), Src(b), Src::NONE, Src::NONE];
        instr.imm = kind;
        self.emit(instr);
        Ok(())
    }

    fn mov(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        if ty == Ty::Pred {
            return self.pred_op(o, 0);
        }
        match (o.arg(0)?, o.arg(1)?) {
            (Operand::Vector(parts), whole) => self.unpack(ty, parts, whole),
            (whole, Operand::Vector(parts)) => self.pack(ty, whole, parts),
            (d, s) => {
                if let Some(clock) = self.name_of(s).and_then(Clock::named) {
                    let mut instr = self.instr(handler::<ReadClock>());
                    instr.x = u32::from(ty.size() == 8);
                    instr.d = self.dst(d, ty)?;
                    instr.imm = clock as i64;
                    self.emit(instr);
                    return Ok(());
                }
                let exec = if ty.size() == 8 { handler::<U1<Mov<u64>>>() } else { handler::<U1<Mov<u32>>>() };
                let d = self.dst(d, ty)?;
                let s = self.src(s, ty)?;
                self.emit_op(exec, d, &[s]);
                Ok(())
            }
        }
    }

    /// `mov.b64 d, {a, b}` and the like.
    fn pack(&mut self, ty: Ty, whole: &Operand, parts: &[Operand]) -> Result<(), Problem> {
        let d = self.dst(whole, ty)?;
        match (ty.size(), parts) {
            (4, [low, high]) => {
                let s = [self.src(low, Ty::B16)?, self.src(high, Ty::B16)?];
                self.emit_op(handler::<B2<Pack16>>(), d, &s);
            }
            (8, [low, high]) => {
                let s = [self.src(low, Ty::B32)?, self.src(high, Ty::B32)?];
                self.emit_op(handler::<B2<Pack32>>(), d, &s);
            }
            (8, [p0, p1, p2, p3]) => {
                let s = [self.src(p0, Ty::B16)?, self.src(p1, Ty::B16)?, self.src(p2, Ty::B16)?, self.src(p3, Ty::B16)?];
                let (low, high) = (self.new_reg32(), self.new_reg32());
                self.emit_op(handler::<B2<Pack16>>(), low, &s[..2]);
                self.emit_op(handler::<B2<Pack16>>(), high, &s[2..]);
                self.emit_op(handler::<B2<Pack32>>(), d, &[Src(low), Src(high)]);
            }
            _ => return Err(missing()),
        }
        Ok(())
    }

    /// `mov.b64 {a, b}, s` and the like.
    fn unpack(&mut self, ty: Ty, parts: &[Operand], whole: &Operand) -> Result<(), Problem> {
        let source = self.src(whole, ty)?;
        let count = parts.len() as u32;
        let bits = ty.size() * 8 / count.max(1);
        if !matches!((ty.size(), count), (4, 2) | (8, 2) | (8, 4)) {
            return Err(missing());
        }
        // The source may be among the destinations: read everything first.
        let mut pieces = Vec::new();
        for n in 0..count {
            let piece = self.new_reg32();
            let shift = self.const32(n * bits);
            if ty.size() == 8 {
                let shifted = self.new_reg64();
                self.emit_op(handler::<B2<Shr<u64>>>(), shifted, &[source, shift]);
                self.emit_op(handler::<U1<Low32<u64>>>(), piece, &[Src(shifted)]);
            } else {
                self.emit_op(handler::<B2<Shr<u32>>>(), piece, &[source, shift]);
            }
            pieces.push(piece);
        }
        for (piece, part) in pieces.into_iter().zip(parts) {
            if self.name_of(part) != Some("_") {
                let d = self.dst32(part)?;
                let exec = if bits == 16 { handler::<U1<Cut16<u32>>>() } else { handler::<U1<Mov<u32>>>() };
                self.emit_op(exec, d, &[Src(piece)]);
            }
        }
        Ok(())
    }

    /// Emits `.sat` and `.relu` after an operation that wrote `d`.
    fn finish_float(&mut self, o: &Op<'_>, ty: Ty, d: u32) -> Result<(), Problem> {
        for word in ["sat", "relu"] {
            if o.has(word) {
                let exec = falu::unary(word, ty, Round::Nearest, o.has("ftz"), false).ok_or_else(missing)?;
                self.emit_op(exec, d, &[Src(d)]);
            }
        }
        Ok(())
    }

    fn binary(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        if ty == Ty::Pred {
            let kind = match o.name {
                "and" => 1,
                "or" => 2,
                "xor" => 3,
                _ => return Err(missing()),
            };
            return self.pred_op(o, kind);
        }
        if o.has("cc") {
            return self.carry(o);
        }
        let float = ty.float();
        let name = match o.name {
            "mul" if !float && o.has("hi") => "mul.hi",
            "mul" if !float && o.has("wide") => "mul.wide",
            "div" if float && o.has("approx") => "div.approx",
            "min" if o.has("NaN") => "min.NaN",
            "max" if o.has("NaN") => "max.NaN",
            other => other,
        };
        if o.has("xorsign") || !float && o.has("relu") {
            return Err(missing());
        }
        let exec = if float {
            falu::binary(name, ty, rounding(o).0.unwrap_or(Round::Nearest), o.has("ftz"))
        } else if o.has("sat") {
            match (name, ty) {
                ("add", Ty::S32) => Some(handler::<B2<AddSat<i32>>>()),
                ("sub", Ty::S32) => Some(handler::<B2<SubSat<i32>>>()),
                _ => None,
            }
        } else {
            alu::binary(name, ty)
        }
        .ok_or_else(missing)?;
        let d = if name == "mul.wide" && ty.size() == 4 { self.dst64(o.arg(0)?)? } else { self.dst(o.arg(0)?, ty)? };
        let a = self.src(o.arg(1)?, ty)?;
        let count = matches!(name, "shl" | "shr");
        let b = self.src(o.arg(2)?, if count { Ty::U32 } else { ty })?;
        self.emit_op(exec, d, &[a, b]);
        if float {
            self.finish_float(o, ty, d)?;
        }
        // Three-operand forms `min.f32 d, a, b, c` apply the operation once more.
        if let Some(c) = o.args.get(3) {
            let c = self.src(c, ty)?;
            self.emit_op(exec, d, &[Src(d), c]);
        }
        Ok(())
    }

    /// `add.cc`, `addc`, `addc.cc` and the same of `sub`.
    fn carry(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let exec = if ty.size() == 8 { handler::<Carry<u64>>() } else { handler::<Carry<u32>>() };
        let mut instr = self.instr(exec);
        instr.d = self.dst(o.arg(0)?, ty)?;
        instr.s[0] = self.src(o.arg(1)?, ty)?;
        instr.s[1] = self.src(o.arg(2)?, ty)?;
        instr.imm = match o.name {
            "add" | "addc" => 0,
            "sub" | "subc" => 4,
            _ => return Err(missing()),
        };
        instr.imm |= i64::from(o.name.ends_with('c')) | i64::from(o.has("cc")) << 1;
        self.emit(instr);
        Ok(())
    }

    fn unary(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        if ty == Ty::Pred && o.name == "not" {
            let d = self.pred(o.arg(0)?)?;
            let a = self.pred(o.arg(1)?)? ^ NEGATED;
            self.emit_op(handler::<PredOp>(), d, &[Src(a), Src(a)]);
            return Ok(());
        }
        if ty.float() {
            return self.float_unary(o);
        }
        let name = if o.name == "bfind" && o.has("shiftamt") { "bfind.shiftamt" } else { o.name };
        let exec = alu::unary(name, ty).ok_or_else(missing)?;
        let counts = matches!(o.name, "popc" | "clz" | "bfind");
        let d = self.dst(o.arg(0)?, if counts { Ty::U32 } else { ty })?;
        let a = self.src(o.arg(1)?, ty)?;
        self.emit_op(exec, d, &[a]);
        Ok(())
    }

    fn float_unary(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let mode = rounding(o).0.unwrap_or(Round::Nearest);
        let exec = falu::unary(o.name, ty, mode, o.has("ftz"), o.has("approx")).ok_or_else(missing)?;
        let d = self.dst(o.arg(0)?, ty)?;
        let a = self.src(o.arg(1)?, ty)?;
        self.emit_op(exec, d, &[a]);
        self.finish_float(o, ty, d)
    }

    fn mad(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        if ty.float() {
            let exec = falu::fma(ty, rounding(o).0.unwrap_or(Round::Nearest), o.has("ftz")).ok_or_else(missing)?;
            let d = self.dst(o.arg(0)?, ty)?;
            let s = [self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, ty)?, self.src(o.arg(3)?, ty)?];
            self.emit_op(exec, d, &s);
            return self.finish_float(o, ty, d);
        }
        if o.has("cc") || o.name == "madc" {
            let exec = match ty {
                Ty::U32 => handler::<MadCarry<u32>>(),
                Ty::S32 => handler::<MadCarry<i32>>(),
                Ty::U64 => handler::<MadCarry<u64>>(),
                Ty::S64 => handler::<MadCarry<i64>>(),
                _ => return Err(missing()),
            };
            let mut instr = self.instr(exec);
            instr.d = self.dst(o.arg(0)?, ty)?;
            for n in 0..3 {
                instr.s[n] = self.src(o.arg(n + 1)?, ty)?;
            }
            instr.imm = i64::from(o.name == "madc") | i64::from(o.has("cc")) << 1 | i64::from(o.has("hi")) << 3;
            self.emit(instr);
            return Ok(());
        }
        let wide = o.has("wide");
        let name = if wide {
            "mad.wide"
        } else if o.has("hi") {
            "mad.hi"
        } else {
            "mad"
        };
        if o.has("sat") {
            return Err(missing());
        }
        let exec = alu::ternary(name, ty).ok_or_else(missing)?;
        let sum = match (wide, ty.size()) {
            (true, 2) => Ty::U32,
            (true, _) => Ty::U64,
            (false, _) => ty,
        };
        let d = self.dst(o.arg(0)?, sum)?;
        let s = [self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, ty)?, self.src(o.arg(3)?, sum)?];
        self.emit_op(exec, d, &s);
        Ok(())
    }

    fn mul24(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let exec = match (o.has("hi"), o.ty()?.signed()) {
            (false, false) => handler::<B2<Mul24Lo>>(),
            (false, true) => handler::<B2<Mul24LoSigned>>(),
            (true, false) => handler::<B2<Mul24Hi>>(),
            (true, true) => handler::<B2<Mul24HiSigned>>(),
        };
        if o.name == "mul24" {
            return self.two(o, exec);
        }
        let product = self.new_reg32();
        let d = self.dst32(o.arg(0)?)?;
        let s = [self.src(o.arg(1)?, Ty::U32)?, self.src(o.arg(2)?, Ty::U32)?];
        let c = self.src(o.arg(3)?, Ty::U32)?;
        let add = alu::binary("add", Ty::U32).ok_or_else(missing)?;
        self.emit_op(exec, product, &s);
        self.emit_op(add, d, &[Src(product), c]);
        Ok(())
    }

    fn ternary(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let exec = alu::ternary(o.name, ty).ok_or_else(missing)?;
        let rest = if o.name == "bfe" { Ty::U32 } else { ty };
        let d = self.dst(o.arg(0)?, ty)?;
        let s = [self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, rest)?, self.src(o.arg(3)?, rest)?];
        self.emit_op(exec, d, &s);
        Ok(())
    }

    fn lop3(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let Operand::Number(Number::Int(table)) = o.arg(4)? else {
            return Err("truth table is not a number".into());
        };
        if o.args.len() > 5 {
            return Err(missing());
        }
        let mut instr = self.instr(handler::<Lop3>());
        instr.d = self.dst32(o.arg(0)?)?;
        for n in 0..3 {
            instr.s[n] = self.src(o.arg(n + 1)?, Ty::B32)?;
        }
        instr.imm = (*table & 0xff) as i64;
        self.emit(instr);
        Ok(())
    }

    fn dot_product(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let [a, b] = o.types()[..] else { return Err(missing()) };
        let exec = match (o.name == "dp4a", a.signed(), b.signed(), o.has("hi")) {
            (true, false, false, _) => handler::<T3<Dp4aUU>>(),
            (true, true, true, _) => handler::<T3<Dp4aSS>>(),
            (true, false, true, _) => handler::<T3<Dp4aUS>>(),
            (true, true, false, _) => handler::<T3<Dp4aSU>>(),
            (false, false, false, false) => handler::<T3<Dp2a<false, false, false>>>(),
            (false, false, false, true) => handler::<T3<Dp2a<false, false, true>>>(),
            (false, false, true, false) => handler::<T3<Dp2a<false, true, false>>>(),
            (false, false, true, true) => handler::<T3<Dp2a<false, true, true>>>(),
            (false, true, false, false) => handler::<T3<Dp2a<true, false, false>>>(),
            (false, true, false, true) => handler::<T3<Dp2a<true, false, true>>>(),
            (false, true, true, false) => handler::<T3<Dp2a<true, true, false>>>(),
            (false, true, true, true) => handler::<T3<Dp2a<true, true, true>>>(),
        };
        self.three(o, exec)
    }

    fn slct(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let [ty, by] = o.types()[..] else { return Err(missing()) };
        let exec = match (ty.size(), by) {
            (8, Ty::F32) => handler::<Slct<u64, true>>(),
            (8, _) => handler::<Slct<u64, false>>(),
            (_, Ty::F32) => handler::<Slct<u32, true>>(),
            _ => handler::<Slct<u32, false>>(),
        };
        let d = self.dst(o.arg(0)?, ty)?;
        let s = [self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, ty)?, self.src(o.arg(3)?, Ty::U32)?];
        self.emit_op(exec, d, &s);
        Ok(())
    }

    /// The comparison word, and how and with which predicate operand the result is combined.
    fn combination(&mut self, o: &Op<'_>) -> Result<(i64, Src), Problem> {
        let kind = if o.has("and") {
            1
        } else if o.has("or") {
            2
        } else if o.has("xor") {
            3
        } else {
            0
        };
        let p = if kind == 0 { 0 } else { self.pred(o.arg(3)?)? };
        Ok((kind, Src(p)))
    }

    fn setp(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let op = o.mods.first().copied().unwrap_or("");
        let (kind, combined) = self.combination(o)?;
        let (p, q) = match o.arg(0)? {
            Operand::Pair(p, q) => (self.pred_dst(p)?, self.pred_dst(q)?),
            p => (self.pred_dst(p)?, NONE),
        };
        if let Some(half) = match ty {
            Ty::F16x2 => Some(Ty::F16),
            Ty::Bf16x2 => Some(Ty::Bf16),
            _ => None,
        } {
            // One predicate for each half.
            let (a, b) = (self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, ty)?);
            let sixteen = self.const32(16);
            let (high_a, high_b) = (self.new_reg32(), self.new_reg32());
            self.emit_op(handler::<B2<Shr<u32>>>(), high_a, &[a, sixteen]);
            self.emit_op(handler::<B2<Shr<u32>>>(), high_b, &[b, sixteen]);
            let exec = falu::setp(op, half, o.has("ftz")).ok_or_else(missing)?;
            for (d, a, b) in [(p, a, b), (q, Src(high_a), Src(high_b))] {
                let mut instr = self.instr(exec);
                instr.d = d;
                instr.s = [a, b, combined, Src::NONE];
                instr.imm = kind;
                self.emit(instr);
            }
            return Ok(());
        }
        let mut instr = self.instr(falu::setp(op, ty, o.has("ftz")).ok_or_else(missing)?);
        instr.s = [self.src(o.arg(1)?, ty)?, self.src(o.arg(2)?, ty)?, combined, Src::NONE];
        instr.d = p;
        instr.x = q;
        instr.imm = kind;
        self.emit(instr);
        Ok(())
    }

    /// Emits `set` of one value: `yes` where the comparison holds.
    fn set_one(&mut self, exec: Handler, d: u32, s: [Src; 3], kind: i64, yes: u32) {
        let mut instr = self.instr(exec);
        instr.d = d;
        instr.s[..3].copy_from_slice(&s);
        instr.imm = kind;
        instr.x = yes;
        self.emit(instr);
    }

    fn set(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let [to, from] = o.types()[..] else {
            return Err(missing());
        };
        let op = o.mods.first().copied().unwrap_or("");
        let (kind, combined) = self.combination(o)?;
        let d = self.dst32(o.arg(0)?)?;
        let (a, b) = (self.src(o.arg(1)?, from)?, self.src(o.arg(2)?, from)?);
        let half = match from {
            Ty::F16x2 => Ty::F16,
            Ty::Bf16x2 => Ty::Bf16,
            other => {
                let yes = match to {
                    Ty::F32 => 1f32.to_bits(),
                    Ty::F16 => 0x3c00,
                    Ty::Bf16 => 0x3f80,
                    Ty::U16 | Ty::S16 => 0xffff,
                    Ty::U32 | Ty::S32 => u32::MAX,
                    _ => return Err(missing()),
                };
                let exec = falu::set(op, other, o.has("ftz")).ok_or_else(missing)?;
                self.set_one(exec, d, [a, b, combined], kind, yes);
                return Ok(());
            }
        };
        let yes = match to {
            Ty::F16x2 => 0x3c00,
            Ty::Bf16x2 => 0x3f80,
            Ty::U32 | Ty::S32 => 0xffff,
            _ => return Err(missing()),
        };
        let exec = falu::set(op, half, o.has("ftz")).ok_or_else(missing)?;
        let sixteen = self.const32(16);
        let regs: [u32; 4] = std::array::from_fn(|_| self.new_reg32());
        let [high_a, high_b, low, high] = regs;
        self.emit_op(handler::<B2<Shr<u32>>>(), high_a, &[a, sixteen]);
        self.emit_op(handler::<B2<Shr<u32>>>(), high_b, &[b, sixteen]);
        self.set_one(exec, low, [a, b, combined], kind, yes);
        self.set_one(exec, high, [Src(high_a), Src(high_b), combined], kind, yes);
        self.emit_op(handler::<B2<Pack16>>(), d, &[Src(low), Src(high)]);
        Ok(())
    }

    /// `testp`: by comparisons of the magnitude.
    fn testp(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let op = o.mods.first().copied().unwrap_or("");
        let d = self.pred(o.arg(0)?)?;
        let a = self.src(o.arg(1)?, ty)?;
        let (least, infinity) = match ty {
            Ty::F32 => (u64::from(f32::MIN_POSITIVE.to_bits()), u64::from(f32::INFINITY.to_bits())),
            Ty::F64 => (f64::MIN_POSITIVE.to_bits(), f64::INFINITY.to_bits()),
            _ => return Err(missing()),
        };
        let magnitude = if ty.size() == 8 { self.new_reg64() } else { self.new_reg32() };
        let constant = |s: &mut Self, bits: u64| {
            if ty.size() == 8 { s.const64(bits) } else { s.const32(bits as u32) }
        };
        let (least, infinity, zero) = (constant(self, least), constant(self, infinity), constant(self, 0));
        let abs = falu::unary("abs", ty, Round::Nearest, false, false).ok_or_else(missing)?;
        self.emit_op(abs, magnitude, &[a]);
        let m = Src(magnitude);
        // Comparisons, each combined with those before it: 0 by nothing, 1 by `and`, 2 by `or`. Zero counts as normal.
        let tests: &[(i64, &str, Src)] = match op {
            "finite" => &[(0, "lt", infinity)],
            "infinite" => &[(0, "eq", infinity)],
            "number" => &[(0, "num", m)],
            "notanumber" => &[(0, "nan", m)],
            "normal" => &[(0, "ge", least), (2, "eq", zero), (1, "lt", infinity)],
            "subnormal" => &[(0, "lt", least), (1, "gt", zero)],
            _ => return Err(missing()),
        };
        for (combination, test, with) in tests {
            let mut instr = self.instr(falu::setp(test, ty, false).ok_or_else(missing)?);
            instr.d = d;
            instr.s = [m, *with, Src(d), Src::NONE];
            instr.imm = *combination;
            self.emit(instr);
        }
        Ok(())
    }

    fn cvt(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let [to, from] = o.types()[..] else {
            return Err(missing());
        };
        let (round, integral) = rounding(o);
        // Integral results of float-to-integer conversions are implied.
        let mut spec = CvtSpec {
            to,
            from,
            round: round.unwrap_or(if to.float() { Round::Nearest } else { Round::Zero }),
            integral: integral && to.float() && from.float(),
            sat: o.has("sat"),
            relu: o.has("relu"),
            ftz: o.has("ftz"),
            wide_src: false,
            wide_dst: false,
        };
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            spec.to = if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
            let d = self.dst32(o.arg(0)?)?;
            let s = [self.src(o.arg(1)?, Ty::F32)?, self.src(o.arg(2)?, Ty::F32)?];
            self.out.cvts.push(spec);
            let mut instr = self.instr(handler::<PackSmall>());
            instr.d = d;
            instr.s[..2].copy_from_slice(&s);
            instr.x = (self.out.cvts.len() - 1) as u32;
            self.emit(instr);
            return Ok(());
        }
        let d = match self.any_dst(o.arg(0)?, to.size() == 8)? {
            Reg::R32(d) => d,
            Reg::R64(d) => {
                spec.wide_dst = true;
                d
            }
            Reg::P(_) => return Err("conversion to a predicate".into()),
        };
        let source = o.arg(1)?;
        let register = self.name_of(source).and_then(|name| self.reg(name));
        let s = match register {
            Some(Reg::R64(r)) => {
                spec.wide_src = true;
                Src(r)
            }
            Some(Reg::R32(r)) => Src(r),
            Some(Reg::P(_)) => return Err("conversion of a predicate".into()),
            None => {
                spec.wide_src = from.size() == 8;
                self.src(source, from)?
            }
        };
        if spec.wide_src != (from.size() == 8) && from.size() == 8 || spec.wide_dst != (to.size() == 8) && to.size() == 8 {
            return Err("register is narrower than the type".into());
        }
        if let Some(exec) = cvt::direct(&spec) {
            self.emit_op(exec, d, &[s]);
            return Ok(());
        }
        self.out.cvts.push(spec);
        let mut instr = self.instr(handler::<Convert>());
        instr.d = d;
        instr.s[0] = s;
        instr.x = (self.out.cvts.len() - 1) as u32;
        self.emit(instr);
        Ok(())
    }
}
