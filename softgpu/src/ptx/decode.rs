//! Decoding: a parsed function to an array of instructions with resolved operands.

use super::ast::{Local, RawFunction, RawInstr, VarSpace};
use super::control::{Ret, Trap};
use super::decoder::{Decoder, Op, Place, Problem};
use super::lanes::handler;
use super::machine::Function;
use super::operand::{NEGATED, NONE};
use super::spec::Slot;
use super::symbol::Symbols;
use super::{decode_mem, decode_ops, decode_tex};

/// Maximum local memory of one activation (bytes).
const MAX_FRAME: u64 = 512 << 10;

/// A decoded function and its references.
pub(crate) struct Decoded {
    pub(crate) function: Function,
    /// Shared variables by index.
    pub(crate) shared: Vec<usize>,
    /// Functions called or whose address is taken.
    pub(crate) callees: Vec<usize>,
    /// It contains indirect calls.
    pub(crate) indirect: bool,
}

/// Decodes a function. Never fails: what cannot be decoded becomes code that says so when it runs.
pub(crate) fn function(number: usize, raw: &RawFunction, symbols: &Symbols) -> Decoded {
    let mut d = Decoder::new(number, raw, symbols);
    if let Err(problem) = body(&mut d) {
        let message = format!("{}: {problem}", raw.name);
        d.guard = NONE;
        d.out.code.clear();
        d.out.messages = vec![message];
        let mut trap = d.instr(handler::<Trap>());
        trap.x = 0;
        d.emit(trap);
    }
    d.out.shared_vars = !d.shared.is_empty();
    Decoded { function: d.out, shared: d.shared, callees: d.callees, indirect: d.indirect }
}

fn body(d: &mut Decoder<'_>) -> Result<(), Problem> {
    layout(d)?;
    if let Some(unknown) = &d.raw.unknown {
        return Err(format!("unknown {unknown}"));
    }
    let raw = d.raw;
    let body = raw.body.as_deref().unwrap_or(&[]);
    let mut positions = Vec::with_capacity(body.len() + 1);
    for instr in body {
        positions.push(d.out.code.len());
        instruction(d, instr).map_err(|problem| format!("line {}: {}: {problem}", instr.line, instr.op.join(".")))?;
    }
    positions.push(d.out.code.len());
    // Falling off the end returns.
    d.guard = NONE;
    let end = d.instr(handler::<Ret>());
    d.emit(end);
    for &(code, target) in &d.fixups {
        d.out.code[code].imm = positions[target] as i64;
    }
    for &(list, target) in &d.list_fixups {
        d.out.lists[list] = positions[target] as u32;
    }
    Ok(())
}

fn instruction(d: &mut Decoder<'_>, raw: &RawInstr) -> Result<(), Problem> {
    d.scope = raw.scope;
    d.guard = match &raw.guard {
        None => NONE,
        Some((name, negated)) => d.pred_named(name)? | if *negated { NEGATED } else { 0 },
    };
    let mods: Vec<&str> = raw.op.iter().skip(1).map(String::as_str).collect();
    let o = Op { name: &raw.op[0], mods: &mods, args: &raw.operands };
    if decode_mem::memory(d, &o)? || decode_mem::control(d, &o)? || decode_tex::texture(d, &o)? || decode_ops::arithmetic(d, &o)?
    {
        return Ok(());
    }
    Err("unknown instruction".into())
}

/// Assigns places to parameters, results and variables.
fn layout(d: &mut Decoder<'_>) -> Result<(), Problem> {
    let raw = d.raw;
    let mut end = 0u64;
    let mut place = |size: u64, align: u32| {
        let offset = end.next_multiple_of(u64::from(align));
        end = offset.saturating_add(size);
        if end > MAX_FRAME {
            return Err("local variables are too large".to_string());
        }
        Ok(Slot { offset: offset as u32, size: size as u32 })
    };
    if raw.is_kernel {
        let mut end = 0u64;
        for var in &raw.params {
            let offset = end.next_multiple_of(u64::from(var.align));
            end = offset.saturating_add(var.size);
            let offset = u32::try_from(offset).map_err(|_| "parameters are too large")?;
            d.places.insert((0, var.name.clone()), Place::KernelParam(offset));
        }
    } else {
        for var in &raw.params {
            let slot = place(var.size, var.align)?;
            d.out.params.push(slot);
            d.places.insert((0, var.name.clone()), Place::FrameParam(slot));
        }
        for var in &raw.rets {
            let slot = place(var.size, var.align)?;
            d.out.rets.push(slot);
            d.places.insert((0, var.name.clone()), Place::FrameParam(slot));
        }
    }
    for (scope, names) in raw.scopes.iter().enumerate() {
        let mut vars: Vec<_> = names.names.values().filter_map(|l| if let Local::Var(v) = l { Some(v) } else { None }).collect();
        vars.sort_by(|a, b| (a.line, &a.name).cmp(&(b.line, &b.name)));
        for var in vars {
            let found = match var.space {
                VarSpace::Local => Place::Frame(place(var.size, var.align)?),
                VarSpace::Param => Place::FrameParam(place(var.size, var.align)?),
                VarSpace::Global | VarSpace::Const | VarSpace::Shared => {
                    let key = (d.number, scope, var.name.clone());
                    Place::Symbol(*d.symbols.inner.get(&key).ok_or("variable without storage")?)
                }
            };
            d.places.insert((scope, var.name.clone()), found);
        }
    }
    d.out.frame_bytes = end.next_multiple_of(16) as u32;
    Ok(())
}
