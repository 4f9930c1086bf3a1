//! Control flow: branches, calls, and the ends of threads.

use super::error::Fault;
use super::lanes::Exec;
use super::machine::{Cta, Flow, Frame, Function, Instr, Return, State, Warp};
use super::operand::{LANES, NONE, Row, lanes};
use super::spec::CallSite;
use super::sync;
use super::window::LOCAL_WINDOW;

/// Deepest nesting of calls.
const MAX_DEPTH: usize = 4096;
/// Rows of either register file that the calls of one warp may use together.
const MAX_ROWS: usize = 1 << 17;
/// Local memory of a thread (bytes), the architectural limit.
const MAX_LOCAL: u32 = 512 << 10;

impl<'a> Warp<'a> {
    /// Enters `func` with the lanes of `mask`; each lane's arguments are copied from the frame of the caller.
    pub(crate) fn enter(&mut self, mask: u32, func: &'a Function, site: &CallSite) -> Result<(), Fault> {
        let caller = self.frame;
        let caller_func = caller.func;
        let frame = Frame {
            func,
            r32: caller.r32 + caller_func.n32,
            r64: caller.r64 + caller_func.n64,
            preds: caller.preds + caller_func.npred,
            local: caller.local + caller_func.frame_bytes,
            depth: caller.depth + 1,
        };
        let overflow = Fault::IllegalAddress(LOCAL_WINDOW + u64::from(frame.local));
        let (n32, n64) = (frame.r32 as usize + func.n32 as usize, frame.r64 as usize + func.n64 as usize);
        let local = frame.local.checked_add(func.frame_bytes).filter(|&l| l <= MAX_LOCAL).ok_or(overflow.clone())?;
        if frame.depth as usize > MAX_DEPTH || n32 > MAX_ROWS || n64 > MAX_ROWS {
            return Err(overflow);
        }
        if self.r32.len() < n32 {
            self.r32.resize(n32, Row([0; LANES]));
        }
        if self.r64.len() < n64 {
            self.r64.resize(n64, Row([0; LANES]));
        }
        let preds = (frame.preds + func.npred) as usize;
        if self.preds.len() < preds {
            self.preds.resize(preds, 0);
        }
        // Predicate 0 of every function reads as false.
        self.preds[frame.preds as usize] &= !mask;
        self.grow_local(local);
        let depth = caller.depth as usize;
        if self.returns.len() <= depth {
            self.returns.resize_with(depth + 1, || [Return { frame: caller, pc: 0 }; LANES]);
        }
        for lane in lanes(mask) {
            self.returns[depth][lane] = Return { frame: caller, pc: self.pc + 1 };
            for (from, to) in site.args.iter().zip(&func.params) {
                self.copy_local(lane, caller.local + from.offset, frame.local + to.offset, from.size.min(to.size));
            }
        }
        self.push(mask, 0, frame, State::Ready);
        Ok(())
    }

    fn copy_local(&mut self, lane: usize, from: u32, to: u32, size: u32) {
        let start = lane * self.local_cap as usize;
        let (from, to) = (start + from as usize, start + to as usize);
        self.local.copy_within(from..from + size as usize, to);
    }

    /// Makes room for `bytes` of local memory in each lane.
    fn grow_local(&mut self, bytes: u32) {
        if bytes <= self.local_cap {
            return;
        }
        let (old, new) = (self.local_cap as usize, bytes.next_power_of_two() as usize);
        let mut local = vec![0; new * LANES];
        for lane in 0..LANES {
            local[lane * new..lane * new + old].copy_from_slice(&self.local[lane * old..(lane + 1) * old]);
        }
        self.local = local;
        self.local_cap = new as u32;
    }

    fn exit_lanes(&mut self, c: &mut Cta<'a>) -> Flow {
        self.live &= !self.mask;
        c.exited(self.mask.count_ones());
        self.leave();
        sync::wake(self);
        Flow::Reschedule
    }
}

/// `bra` to instruction `imm`.
pub(crate) struct Bra;
impl Exec for Bra {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        w.branch(i.imm as u32)
    }
}

/// `brx.idx`: `s[0]` indexes the `d` targets at index `x` of `Function::lists`.
pub(crate) struct BraIndexed;
impl Exec for BraIndexed {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let func = w.frame.func;
        let targets = &func.lists[i.x as usize..][..i.d as usize];
        let index = *w.row32(i.s[0]);
        let mut left = w.mask;
        while left != 0 {
            let value = index[left.trailing_zeros() as usize];
            let same = lanes(left).filter(|&l| index[l] == value).fold(0, |m, l| m | 1 << l);
            let Some(&target) = targets.get(value as usize) else {
                return w.fail(Fault::InvalidPc(u64::from(value)));
            };
            w.push(same, target, w.frame, State::Ready);
            left &= !same;
        }
        w.leave();
        Flow::Reschedule
    }
}

/// `exit`
pub(crate) struct Exit;
impl Exec for Exit {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, _: &Instr) -> Flow {
        w.exit_lanes(c)
    }
}

/// `ret`: results are copied to the frame of the caller.
pub(crate) struct Ret;
impl Exec for Ret {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, _: &Instr) -> Flow {
        let frame = w.frame;
        let Some(depth) = (frame.depth as usize).checked_sub(1) else {
            return w.exit_lanes(c);
        };
        let mut left = w.mask;
        while left != 0 {
            let first = w.returns[depth][left.trailing_zeros() as usize];
            let same = lanes(left)
                .filter(|&l| w.returns[depth][l].pc == first.pc && w.returns[depth][l].frame == first.frame)
                .fold(0, |m, l| m | 1 << l);
            let caller = first.frame.func;
            let call = &caller.code[first.pc as usize - 1];
            let site = &caller.calls[call.x as usize];
            for lane in lanes(same) {
                for (from, to) in frame.func.rets.iter().zip(&site.rets) {
                    w.copy_local(lane, frame.local + from.offset, first.frame.local + to.offset, from.size.min(to.size));
                }
            }
            w.push(same, first.pc, first.frame, State::Ready);
            left &= !same;
        }
        w.leave();
        Flow::Reschedule
    }
}

/// Direct call of function `imm`; `x` indexes `Function::calls`.
pub(crate) struct Call;
impl Exec for Call {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let caller = w.frame.func;
        let entered = w.enter(w.mask, &c.module.functions[i.imm as usize], &caller.calls[i.x as usize]);
        if let Err(fault) = entered {
            return w.fail(fault);
        }
        w.leave();
        Flow::Reschedule
    }
}

/// Call through the function pointer in `s[0]`; `x` indexes `Function::calls`.
pub(crate) struct CallIndirect;
impl Exec for CallIndirect {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let caller = w.frame.func;
        let targets = *w.row64(i.s[0]);
        let mut left = w.mask;
        while left != 0 {
            let address = targets[left.trailing_zeros() as usize];
            let same = lanes(left).filter(|&l| targets[l] == address).fold(0, |m, l| m | 1 << l);
            let Some(func) = c.module.pointed_to(address) else {
                return w.fail(Fault::InvalidPc(address));
            };
            if let Err(fault) = w.enter(same, func, &caller.calls[i.x as usize]) {
                return w.fail(fault);
            }
            left &= !same;
        }
        w.leave();
        Flow::Reschedule
    }
}

/// `trap`, and what could not be decoded: `x` indexes `Function::messages`, or is `NONE` for a plain trap.
pub(crate) struct Trap;
impl Exec for Trap {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        if i.x == NONE {
            return w.fail(Fault::Trap);
        }
        let func = w.frame.func;
        w.fail(Fault::IllegalInstruction(func.messages[i.x as usize].clone()))
    }
}

/// `nanosleep`: lets the other warps run.
pub(crate) struct Rest;
impl Exec for Rest {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, _: &Instr) -> Flow {
        w.rest = true;
        Flow::Next
    }
}
