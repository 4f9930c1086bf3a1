//! Decoding of memory accesses, atomics, control flow, calls and synchronisation.

use super::ast::{Operand, Ty, VarSpace};
use super::atomics::{self, Atom};
use super::builtin::{self, CallBuiltin};
use super::control::{Bra, BraIndexed, Call, CallIndirect, Exit, Rest, Ret, Trap};
use super::decoder::{Decoder, Op, Place, Problem, Reg};
use super::lanes::{U1, handler};
use super::machine::{Handler, Instr};
use super::mem::{Fence, Generic, Global, IsSpace, Load, LoadParam, LoadVec, Local, Shared, Store, StoreVec};
use super::operand::{NONE, Src};
use super::spec::{AtomSpec, BarKind, BarSpec, CallSite, Slot, SyncKind, SyncSpec};
use super::symbol::{Symbol, Target};
use super::sync::{Bar, Collective};
use super::window::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

/// Picks the instance for an element type and register width.
macro_rules! by_elem {
    ($op:ident, $space:ty, $ty:expr, $wide:expr) => {
        match ($ty, $wide) {
            (Ty::B8 | Ty::U8, false) => handler::<$op<$space, u8, u32>>(),
            (Ty::S8, false) => handler::<$op<$space, i8, u32>>(),
            (Ty::B16 | Ty::U16 | Ty::F16 | Ty::Bf16, false) => handler::<$op<$space, u16, u32>>(),
            (Ty::S16, false) => handler::<$op<$space, i16, u32>>(),
            (Ty::B32 | Ty::U32 | Ty::S32 | Ty::F32 | Ty::F16x2 | Ty::Bf16x2, false) => handler::<$op<$space, u32, u32>>(),
            (Ty::B8 | Ty::U8, true) => handler::<$op<$space, u8, u64>>(),
            (Ty::S8, true) => handler::<$op<$space, i8, u64>>(),
            (Ty::B16 | Ty::U16, true) => handler::<$op<$space, u16, u64>>(),
            (Ty::S16, true) => handler::<$op<$space, i16, u64>>(),
            (Ty::B32 | Ty::U32, true) => handler::<$op<$space, u32, u64>>(),
            (Ty::S32, true) => handler::<$op<$space, i32, u64>>(),
            (Ty::B64 | Ty::U64 | Ty::S64 | Ty::F64, true) => handler::<$op<$space, u64, u64>>(),
            _ => return Err("register and type do not fit".into()),
        }
    };
}
macro_rules! by_space {
    ($op:ident, $space:expr, $ty:expr, $wide:expr) => {
        match $space {
            Some(VarSpace::Global | VarSpace::Const) => by_elem!($op, Global, $ty, $wide),
            Some(VarSpace::Shared) => by_elem!($op, Shared, $ty, $wide),
            Some(VarSpace::Local | VarSpace::Param) => by_elem!($op, Local, $ty, $wide),
            None => by_elem!($op, Generic, $ty, $wide),
        }
    };
}

fn load(space: Option<VarSpace>, ty: Ty, wide: bool) -> Result<Handler, Problem> {
    Ok(by_space!(Load, space, ty, wide))
}
fn store(space: Option<VarSpace>, ty: Ty, wide: bool) -> Result<Handler, Problem> {
    Ok(by_space!(Store, space, ty, wide))
}
fn load_vec(space: Option<VarSpace>, ty: Ty, wide: bool) -> Result<Handler, Problem> {
    Ok(by_space!(LoadVec, space, ty, wide))
}
fn store_vec(space: Option<VarSpace>, ty: Ty, wide: bool) -> Result<Handler, Problem> {
    Ok(by_space!(StoreVec, space, ty, wide))
}
fn load_param(ty: Ty, wide: bool) -> Result<Handler, Problem> {
    macro_rules! param {
        ($($pattern:pat => $e:ty, $w:ty;)*) => {
            match (ty.size(), ty.signed(), wide) {
                $($pattern => handler::<LoadParam<$e, $w>>(),)*
                _ => return Err("register and type do not fit".into()),
            }
        };
    }
    Ok(param! {
        (1, false, false) => u8, u32; (1, true, false) => i8, u32; (2, false, false) => u16, u32; (2, true, false) => i16, u32;
        (4, _, false) => u32, u32; (1, false, true) => u8, u64; (1, true, true) => i8, u64; (2, false, true) => u16, u64;
        (2, true, true) => i16, u64; (4, false, true) => u32, u64; (4, true, true) => i32, u64; (8, _, true) => u64, u64;
    })
}

/// State space among the modifiers; `None` is generic.
fn space_of(o: &Op<'_>) -> Option<VarSpace> {
    o.mods.iter().find_map(|word| match word.split("::").next() {
        Some("global") => Some(VarSpace::Global),
        Some("const") => Some(VarSpace::Const),
        Some("shared") => Some(VarSpace::Shared),
        Some("local") => Some(VarSpace::Local),
        Some("param") => Some(VarSpace::Param),
        _ => None,
    })
}

fn count_of(o: &Op<'_>) -> usize {
    if o.has("v2") {
        2
    } else if o.has("v4") {
        4
    } else {
        1
    }
}

/// Decodes memory instructions; false if it is none.
pub(crate) fn memory(decoder: &mut Decoder<'_>, o: &Op<'_>) -> Result<bool, Problem> {
    match o.name {
        "ld" | "ldu" => {
            decoder.ld(o)?;
            if o.has("acquire") {
                decoder.plain(handler::<Fence>());
            }
        }
        "st" => {
            if o.has("release") {
                decoder.plain(handler::<Fence>());
            }
            decoder.st(o)?;
        }
        "atom" => decoder.atom(o, true)?,
        "red" => decoder.atom(o, false)?,
        "membar" | "fence" => decoder.plain(handler::<Fence>()),
        // Hints to caches and to the launch of dependent kernels, which never overlap here.
        "prefetch" | "prefetchu" | "applypriority" | "griddepcontrol" | "pmevent" => {}
        "cvta" => decoder.cvta(o)?,
        "isspacep" => {
            let window = match space_of(o) {
                Some(VarSpace::Global) => 0,
                Some(VarSpace::Shared) => SHARED_WINDOW,
                Some(VarSpace::Local) => LOCAL_WINDOW,
                Some(VarSpace::Param) => PARAM_WINDOW,
                Some(VarSpace::Const) | None => return Err("softgpu does not support this form of the instruction".into()),
            };
            let mut instr = decoder.instr(handler::<IsSpace>());
            instr.d = decoder.pred(o.arg(0)?)?;
            instr.s[0] = decoder.src(o.arg(1)?, Ty::U64)?;
            instr.imm = window.cast_signed();
            decoder.emit(instr);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Decodes control flow and synchronisation; false if it is none.
pub(crate) fn control(decoder: &mut Decoder<'_>, o: &Op<'_>) -> Result<bool, Problem> {
    match o.name {
        "bra" => {
            let label = decoder.name_of(o.arg(0)?).ok_or("target is not a label")?;
            decoder.branch_to(label)?;
            decoder.plain(handler::<Bra>());
        }
        "brx" => {
            let mut instr = decoder.instr(handler::<BraIndexed>());
            instr.s[0] = decoder.src(o.arg(0)?, Ty::U32)?;
            let list = decoder.name_of(o.arg(1)?).ok_or("list of targets is not a name")?;
            (instr.x, instr.d) = decoder.branch_list(list)?;
            decoder.emit(instr);
        }
        "call" => decoder.call(o)?,
        "ret" => decoder.plain(handler::<Ret>()),
        "exit" => decoder.plain(handler::<Exit>()),
        "trap" | "brkpt" => decoder.plain(handler::<Trap>()),
        "nanosleep" => decoder.plain(handler::<Rest>()),
        "bar" | "barrier" => decoder.barrier(o)?,
        "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => decoder.collective(o)?,
        _ => return Ok(false),
    }
    Ok(true)
}

impl Decoder<'_> {
    fn plain(&mut self, exec: Handler) {
        let instr = self.instr(exec);
        self.emit(instr);
    }

    fn ld(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let mut space = space_of(o);
        let single = [o.arg(0)?.clone()];
        let dsts = match o.arg(0)? {
            Operand::Vector(parts) => &parts[..],
            _ => &single[..],
        };
        if dsts.len() != count_of(o) {
            return Err("number of destinations does not fit".into());
        }
        let mut regs = Vec::new();
        let mut wide = ty.size() == 8;
        for (n, d) in dsts.iter().enumerate() {
            let (reg, is_wide) = match self.any_dst(d, wide)? {
                Reg::R32(r) => (r, false),
                Reg::R64(r) => (r, true),
                Reg::P(_) => return Err("load into a predicate".into()),
            };
            if n > 0 && is_wide != wide {
                return Err("destinations of different widths".into());
            }
            wide = is_wide;
            regs.push(reg);
        }
        let address = o.arg(1)?;
        if space == Some(VarSpace::Param)
            && let Some(start) = self.kernel_param(address)
        {
            let exec = load_param(ty, wide)?;
            for (n, d) in (0..).zip(regs) {
                let mut instr = self.instr(exec);
                instr.d = d;
                instr.imm = start + n * i64::from(ty.size());
                self.emit(instr);
            }
            return Ok(());
        }
        if space == Some(VarSpace::Param) && self.through_register(address) {
            // Addresses of parameters are generic ones.
            space = None;
        }
        let (base, kind, offset) = self.address(address, space)?;
        let mut instr = self.instr(if regs.len() == 1 { load(space, ty, wide)? } else { load_vec(space, ty, wide)? });
        instr.s[0] = base;
        instr.base = kind;
        instr.imm = offset;
        if let [d] = regs[..] {
            instr.d = d;
        } else {
            instr.d = regs.len() as u32;
            instr.x = self.out.lists.len() as u32;
            self.out.lists.extend(regs);
        }
        self.emit(instr);
        Ok(())
    }

    fn st(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        let mut space = space_of(o);
        let single = [o.arg(1)?.clone()];
        let values = match o.arg(1)? {
            Operand::Vector(parts) => &parts[..],
            _ => &single[..],
        };
        if values.len() != count_of(o) {
            return Err("number of sources does not fit".into());
        }
        let mut wide = None;
        let mut sources = Vec::new();
        for value in values {
            let register = self.name_of(value).and_then(|name| self.reg(name));
            let (source, is_wide) = match register {
                Some(Reg::R32(r)) => (Src(r), false),
                Some(Reg::R64(r)) => (Src(r), true),
                Some(Reg::P(_)) => return Err("store of a predicate".into()),
                None => (self.src(value, ty)?, ty.size() == 8),
            };
            if *wide.get_or_insert(is_wide) != is_wide {
                return Err("sources of different widths".into());
            }
            sources.push(source);
        }
        let wide = wide.unwrap_or(false);
        if space == Some(VarSpace::Param) && self.through_register(o.arg(0)?) {
            space = None;
        }
        let (base, kind, offset) = self.address(o.arg(0)?, space)?;
        let mut instr = self.instr(if sources.len() == 1 { store(space, ty, wide)? } else { store_vec(space, ty, wide)? });
        instr.s[0] = base;
        instr.base = kind;
        instr.imm = offset;
        if let [source] = sources[..] {
            instr.s[1] = source;
        } else {
            instr.d = sources.len() as u32;
            instr.x = self.out.lists.len() as u32;
            self.out.lists.extend(sources.iter().map(|s| s.0));
        }
        self.emit(instr);
        Ok(())
    }

    /// The offset in the parameter buffer if the address names a parameter of the kernel.
    fn kernel_param(&mut self, address: &Operand) -> Option<i64> {
        let Operand::Address { name, offset } = address else {
            return None;
        };
        match self.place(name) {
            Some(Place::KernelParam(at)) => Some(i64::from(at) + offset),
            _ => None,
        }
    }

    fn through_register(&mut self, address: &Operand) -> bool {
        matches!(address, Operand::Address { name, .. } if self.reg(name).is_some())
    }

    fn atom(&mut self, o: &Op<'_>, returns: bool) -> Result<(), Problem> {
        let ty = o.ty()?;
        let space = space_of(o);
        let words = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let op = o.mods.iter().find(|m| words.contains(m)).ok_or("softgpu does not support this form of the instruction")?;
        let update = atomics::update(op, ty)
            .filter(|_| count_of(o) == 1 && ty.size() >= 2)
            .ok_or("softgpu does not support this form of the instruction")?;
        let first = usize::from(returns);
        let d = if returns && self.name_of(o.arg(0)?) != Some("_") { self.dst(o.arg(0)?, ty)? } else { NONE };
        let b = self.src(o.arg(first + 1)?, ty)?;
        let c = if *op == "cas" { self.src(o.arg(first + 2)?, ty)? } else { b };
        let (base, kind, offset) = self.address(o.arg(first)?, space)?;
        let shared = space == Some(VarSpace::Shared);
        self.out.atoms.push(AtomSpec { update, size: ty.size(), shared });
        let mut instr = self.instr(handler::<Atom>());
        instr.d = d;
        instr.s = [base, b, c, Src::NONE];
        instr.base = kind;
        instr.imm = offset;
        instr.x = (self.out.atoms.len() - 1) as u32;
        self.emit(instr);
        Ok(())
    }

    fn cvta(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let ty = o.ty()?;
        if ty.size() != 8 {
            return Err("32-bit generic addresses".into());
        }
        let d = self.dst64(o.arg(0)?)?;
        let s = self.src(o.arg(1)?, ty)?;
        let window = match space_of(o) {
            Some(VarSpace::Shared) => SHARED_WINDOW,
            Some(VarSpace::Local) => LOCAL_WINDOW,
            _ => 0,
        };
        if window == 0 {
            // Global and constant addresses are generic ones, and so are those of parameters here.
            self.emit_op(handler::<U1<super::alu::Mov<u64>>>(), d, &[s]);
            return Ok(());
        }
        let shift = self.const64(if o.has("to") { window.wrapping_neg() } else { window });
        let add = super::alu::binary("add", Ty::U64).ok_or("no addition")?;
        self.emit_op(add, d, &[s, shift]);
        Ok(())
    }

    fn call(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let mut args = o.args;
        let mut site = CallSite::default();
        if let Some((Operand::List(rets), rest)) = args.split_first() {
            site.rets = self.slots(rets)?;
            args = rest;
        }
        let (target, rest) = args.split_first().ok_or("call without a target")?;
        if let Some(Operand::List(values)) = rest.first() {
            site.args = self.slots(values)?;
        }
        let name = self.name_of(target).ok_or("call of something without a name")?.to_string();
        let mut instr: Instr;
        match self.reg(&name) {
            Some(Reg::R64(r)) => {
                instr = self.instr(handler::<CallIndirect>());
                instr.s[0] = Src(r);
                self.indirect = true;
            }
            Some(_) => return Err("call through a register that is not 64 bits wide".into()),
            None => match self.place(&name) {
                Some(Place::Symbol(Symbol::Address(Target::Function(function)))) => {
                    instr = self.instr(handler::<Call>());
                    instr.imm = function as i64;
                    self.callees.push(function);
                }
                _ => match builtin::named(&name) {
                    Some(kind) => {
                        builtin::check(kind, &site)?;
                        instr = self.instr(handler::<CallBuiltin>());
                        instr.imm = kind as i64;
                    }
                    None => {
                        // Only a call that happens is an error: libraries declare more than they use.
                        self.out.messages.push(format!("{}: call of '{name}', which no module defines", self.raw.name));
                        instr = self.instr(handler::<Trap>());
                        instr.x = (self.out.messages.len() - 1) as u32;
                        self.emit(instr);
                        return Ok(());
                    }
                },
            },
        }
        instr.x = self.out.calls.len() as u32;
        self.out.calls.push(site);
        self.emit(instr);
        Ok(())
    }

    /// Places of the parameter variables of a call.
    fn slots(&mut self, operands: &[Operand]) -> Result<Vec<Slot>, Problem> {
        let mut slots = Vec::new();
        for operand in operands {
            let name = self.name_of(operand).ok_or("argument is not a parameter variable")?;
            match self.place(name) {
                Some(Place::FrameParam(slot)) => slots.push(slot),
                _ => return Err(format!("'{name}' is not a parameter variable")),
            }
        }
        Ok(slots)
    }

    fn barrier(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        if o.has("warp") {
            let members = self.src(o.arg(0)?, Ty::U32)?;
            self.sync(SyncSpec { members: Some(members), ..blank(SyncKind::WarpBarrier) });
            return Ok(());
        }
        if o.has("cluster") {
            // Clusters have one CTA: its barrier is theirs. Waiting does what arriving would.
            if o.has("arrive") {
                return Ok(());
            }
            let id = self.const32(0);
            self.bar(BarSpec { kind: BarKind::Sync, id, count: None, pred: NONE, d: NONE });
            return Ok(());
        }
        let kind = if o.has("red") {
            if o.has("popc") {
                BarKind::Popc
            } else if o.has("and") {
                BarKind::And
            } else {
                BarKind::Or
            }
        } else if o.has("arrive") {
            BarKind::Arrive
        } else {
            BarKind::Sync
        };
        let mut args = o.args;
        let mut spec = BarSpec { kind, id: Src::NONE, count: None, pred: NONE, d: NONE };
        if o.has("red") {
            spec.d = if kind == BarKind::Popc { self.dst32(o.arg(0)?)? } else { self.pred(o.arg(0)?)? };
            let (last, rest) = args[1..].split_last().ok_or("too few operands")?;
            spec.pred = self.pred(last)?;
            args = rest;
        }
        spec.id = self.src(args.first().ok_or("too few operands")?, Ty::U32)?;
        if let Some(count) = args.get(1) {
            spec.count = Some(self.src(count, Ty::U32)?);
        }
        self.bar(spec);
        Ok(())
    }

    fn bar(&mut self, spec: BarSpec) {
        self.out.bars.push(spec);
        let mut instr = self.instr(handler::<Bar>());
        instr.x = (self.out.bars.len() - 1) as u32;
        self.emit(instr);
    }

    fn sync(&mut self, spec: SyncSpec) {
        self.out.syncs.push(spec);
        let mut instr = self.instr(handler::<Collective>());
        instr.x = (self.out.syncs.len() - 1) as u32;
        self.emit(instr);
    }

    fn collective(&mut self, o: &Op<'_>) -> Result<(), Problem> {
        let missing = || Problem::from("softgpu does not support this form of the instruction");
        let kind = match o.name {
            "activemask" => SyncKind::ActiveMask,
            "elect" => SyncKind::Elect,
            "shfl" if o.has("up") => SyncKind::ShflUp,
            "shfl" if o.has("down") => SyncKind::ShflDown,
            "shfl" if o.has("bfly") => SyncKind::ShflBfly,
            "shfl" if o.has("idx") => SyncKind::ShflIdx,
            "vote" if o.has("all") => SyncKind::VoteAll,
            "vote" if o.has("any") => SyncKind::VoteAny,
            "vote" if o.has("uni") => SyncKind::VoteUni,
            "vote" if o.has("ballot") => SyncKind::Ballot,
            "match" if o.has("any") => SyncKind::MatchAny,
            "match" if o.has("all") => SyncKind::MatchAll,
            "redux" => {
                let ty = o.ty()?;
                let op = o.mods.iter().find(|m| ["add", "min", "max", "and", "or", "xor"].contains(m)).ok_or_else(missing)?;
                match (*op, ty) {
                    ("add", Ty::U32 | Ty::S32) => SyncKind::ReduxAdd,
                    ("min", Ty::U32) => SyncKind::ReduxMinU,
                    ("min", Ty::S32) => SyncKind::ReduxMinS,
                    ("max", Ty::U32) => SyncKind::ReduxMaxU,
                    ("max", Ty::S32) => SyncKind::ReduxMaxS,
                    ("and", _) => SyncKind::ReduxAnd,
                    ("or", _) => SyncKind::ReduxOr,
                    ("xor", _) => SyncKind::ReduxXor,
                    _ => return Err(missing()),
                }
            }
            _ => return Err(missing()),
        };
        let mut spec = blank(kind);
        match o.arg(0)? {
            Operand::Pair(d, p) => {
                spec.d = self.dst32(d)?;
                spec.p = self.pred_dst(p)?;
            }
            d if matches!(kind, SyncKind::VoteAll | SyncKind::VoteAny | SyncKind::VoteUni) => spec.p = self.pred_dst(d)?,
            d => spec.d = self.dst32(d)?,
        }
        let mut args = &o.args[1..];
        if (o.has("sync") || kind == SyncKind::Elect) && kind != SyncKind::ActiveMask {
            let (last, rest) = args.split_last().ok_or("too few operands")?;
            spec.members = Some(self.src(last, Ty::U32)?);
            args = rest;
        }
        let arg = |n: usize| args.get(n).ok_or_else(|| Problem::from("too few operands"));
        match o.name {
            "vote" => {
                spec.pred = true;
                spec.a = Src(self.pred(arg(0)?)?);
            }
            "match" | "redux" => {
                let ty = o.ty()?;
                spec.wide = ty.size() == 8;
                spec.a = self.src(arg(0)?, ty)?;
            }
            "shfl" => {
                spec.a = self.src(arg(0)?, Ty::B32)?;
                spec.b = self.src(arg(1)?, Ty::U32)?;
                spec.c = self.src(arg(2)?, Ty::U32)?;
            }
            _ => {}
        }
        self.sync(spec);
        Ok(())
    }
}

/// A specification without operands.
fn blank(kind: SyncKind) -> SyncSpec {
    SyncSpec { kind, members: None, a: Src::NONE, wide: false, pred: false, b: Src::NONE, c: Src::NONE, d: NONE, p: NONE }
}
