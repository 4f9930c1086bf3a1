//! A warp: registers, local memory, and groups of lanes that run in lockstep.
//!
//! Lanes of a warp that are at the same instruction of the same call form a group. The warp runs the group that is
//! deepest in calls and, there, earliest in the code, until it reaches the next waiting group, which it then joins:
//! lanes that diverged reconverge where compilers put the join. A group that spins on another one would never let it
//! run, so each time a slice ends with several groups, the one that has waited longest gets the next slice.

use super::Fault;
use super::code::{CallSite, Function};
use super::grid::Cta;
use super::lanes::{Exec, Flow, Instr, LANES, NEGATED, NONE, Row, Src, lanes};
use super::mem::LOCAL_WINDOW;
use super::program::Program;
use std::sync::{Mutex, PoisonError};

/// Deepest nesting of calls.
const MAX_DEPTH: usize = 4096;
/// Rows of either register file that the calls of one warp may use together.
const MAX_ROWS: usize = 1 << 17;
/// Local memory of a thread (bytes), the architectural limit.
const MAX_LOCAL: u32 = 512 << 10;

/// An activation of a function, common to the lanes of a group.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) func: &'a Function,
    pub(crate) program: &'a Program,
    /// First 32-bit, 64-bit and predicate register.
    pub(crate) r32: u32,
    pub(crate) r64: u32,
    pub(crate) preds: u32,
    /// First byte of the local frame.
    pub(crate) local: u32,
    /// Number of callers.
    pub(crate) depth: u32,
}

impl PartialEq for Frame<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.func, other.func)
            && (self.r32, self.r64, self.preds, self.local, self.depth)
                == (other.r32, other.r64, other.preds, other.local, other.depth)
    }
}

/// What a group is doing while it does not run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum State {
    Ready,
    /// At a `.sync` instruction, until all lanes of the member mask are.
    Sync(u32),
    /// At barrier `n` of the CTA.
    Barrier(u32),
}

/// Lanes at one place.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) mask: u32,
    pub(crate) pc: u32,
    pub(crate) frame: Frame<'a>,
    pub(crate) state: State,
    /// When it stopped running, on the clock `Warp::turns`.
    since: u64,
}

/// Where a lane goes on after a return.
#[derive(Clone, Copy)]
struct Return<'a> {
    frame: Frame<'a>,
    pc: u32,
}

/// Why a slice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceEnd {
    /// Every group waits for a barrier or another warp.
    Blocked,
    Expired,
    Exited,
    Fault,
}

/// See the module.
pub(crate) struct Warp<'a> {
    /// Lanes that execute the current instruction: those of the group whose guard holds.
    pub(crate) mask: u32,
    /// Lanes of the running group.
    pub(crate) active: u32,
    pub(crate) frame: Frame<'a>,
    pub(crate) pc: u32,
    /// The running group stops here to join or let pass another one.
    limit: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Carry flag of each lane.
    pub(crate) carry: u32,
    /// Start and length of the global range that was used last.
    pub(crate) window: (u64, u64),
    pub(crate) fault: Option<Fault>,
    pub(crate) groups: Vec<Group<'a>>,
    /// Set by `nanosleep`: let others run.
    pub(crate) rest: bool,
    /// Thread-level instructions executed.
    pub(crate) executed: u64,
    /// Instructions issued, each for all lanes of a group.
    pub(crate) issued: u64,
    r32: Vec<Row<u32>>,
    r64: Vec<Row<u64>>,
    preds: Vec<u32>,
    special: Vec<Row<u32>>,
    shared: &'a SharedSymbols,
    local: Vec<u8>,
    local_cap: u32,
    /// Where each lane goes on, for each depth of calls.
    returns: Vec<[Return<'a>; LANES]>,
    rotate: bool,
    turns: u64,
}

/// Registers and local memory of a warp that has ended, for another one: with memory made anew for each, small kernels were mostly
/// page faults.
#[derive(Default)]
struct Files {
    r32: Vec<Row<u32>>,
    r64: Vec<Row<u64>>,
    preds: Vec<u32>,
    local: Vec<u8>,
}

/// Unused register files.
static SPARE: Mutex<Vec<Files>> = Mutex::new(Vec::new());
/// So many of them are kept,
const SPARES: usize = 256;
/// none of them with more bytes than this.
const SPARE_BYTES: usize = 256 << 10;

impl Files {
    fn take() -> Files {
        SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(self) {
        let bytes = size_of::<Row<u32>>() * self.r32.capacity() + size_of::<Row<u64>>() * self.r64.capacity();
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARES && bytes + self.local.capacity() <= SPARE_BYTES {
            spare.push(self);
        }
    }
}

/// A vector's memory with so many zeros in it.
fn zeros<T: Clone>(mut of: Vec<T>, n: usize, zero: T) -> Vec<T> {
    of.clear();
    of.resize(n, zero);
    of
}

/// Addresses of the shared variables of a program in one launch, as rows.
pub(crate) struct SharedSymbols {
    pub(crate) narrow: Vec<Row<u32>>,
    pub(crate) wide: Vec<Row<u64>>,
}

impl Drop for Warp<'_> {
    fn drop(&mut self) {
        let (r32, r64) = (std::mem::take(&mut self.r32), std::mem::take(&mut self.r64));
        Files { r32, r64, preds: std::mem::take(&mut self.preds), local: std::mem::take(&mut self.local) }.give_back();
    }
}

impl<'a> Warp<'a> {
    /// A warp about to execute `func` with the lanes of `live`; `special` holds the special registers.
    pub(crate) fn new(
        program: &'a Program,
        func: &'a Function,
        shared: &'a SharedSymbols,
        live: u32,
        special: Vec<Row<u32>>,
    ) -> Warp<'a> {
        let frame = Frame { func, program, r32: 0, r64: 0, preds: 0, local: 0, depth: 0 };
        let local_cap = func.frame_bytes;
        let files = Files::take();
        Warp {
            mask: 0,
            active: 0,
            frame,
            pc: 0,
            limit: u32::MAX,
            live,
            carry: 0,
            window: (0, 0),
            fault: None,
            groups: vec![Group { mask: live, pc: 0, frame, state: State::Ready, since: 0 }],
            rest: false,
            executed: 0,
            issued: 0,
            r32: zeros(files.r32, func.n32 as usize, Row([0; LANES])),
            r64: zeros(files.r64, func.n64 as usize, Row([0; LANES])),
            preds: zeros(files.preds, func.npred as usize, 0),
            special,
            shared,
            local: zeros(files.local, local_cap as usize * LANES, 0),
            local_cap,
            returns: Vec::new(),
            rotate: false,
            turns: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn row32(&self, s: Src) -> &[u32; LANES] {
        let index = (s.0 & Src::INDEX) as usize;
        match s.0 & !Src::INDEX {
            0 => &self.r32[self.frame.r32 as usize + index].0,
            Src::CONST => &self.frame.func.consts32[index].0,
            Src::SPECIAL => &self.special[index].0,
            _ => &self.shared.narrow[index].0,
        }
    }

    #[inline(always)]
    pub(crate) fn row64(&self, s: Src) -> &[u64; LANES] {
        let index = (s.0 & Src::INDEX) as usize;
        match s.0 & !Src::INDEX {
            0 => &self.r64[self.frame.r64 as usize + index].0,
            Src::CONST => &self.frame.func.consts64[index].0,
            _ => &self.shared.wide[index].0,
        }
    }

    #[inline(always)]
    pub(crate) fn row32_mut(&mut self, d: u32) -> &mut [u32; LANES] {
        &mut self.r32[(self.frame.r32 + d) as usize].0
    }

    #[inline(always)]
    pub(crate) fn row64_mut(&mut self, d: u32) -> &mut [u64; LANES] {
        &mut self.r64[(self.frame.r64 + d) as usize].0
    }

    /// A predicate of all lanes, negated if so encoded.
    #[inline(always)]
    pub(crate) fn pred_value(&self, code: u32) -> u32 {
        let bits = self.preds[(self.frame.preds + (code & !NEGATED)) as usize];
        if code & NEGATED == 0 { bits } else { !bits }
    }

    /// Sets a predicate for the lanes of `mask`; `NONE` is no predicate.
    #[inline(always)]
    pub(crate) fn set_pred(&mut self, d: u32, bits: u32) {
        if d != NONE {
            let p = &mut self.preds[(self.frame.preds + d) as usize];
            *p = *p & !self.mask | bits & self.mask;
        }
    }

    /// Local memory of a lane up to the end of the running frame.
    #[inline(always)]
    pub(crate) fn local_of(&self, lane: usize) -> &[u8] {
        let start = lane * self.local_cap as usize;
        &self.local[start..start + (self.frame.local + self.frame.func.frame_bytes) as usize]
    }

    /// See `local_of`.
    #[inline(always)]
    pub(crate) fn local_of_mut(&mut self, lane: usize) -> &mut [u8] {
        let start = lane * self.local_cap as usize;
        &mut self.local[start..start + (self.frame.local + self.frame.func.frame_bytes) as usize]
    }

    /// A special register of one lane; 0 if there is none of that name.
    pub(crate) fn special(&self, name: &str, lane: usize) -> u32 {
        super::special::index(name).map_or(0, |n| self.special[n as usize].0[lane])
    }

    /// A parameter of at most 8 bytes at byte `offset` of the running frame; zero-extended.
    pub(crate) fn frame_word(&self, lane: usize, offset: u32, size: u32) -> u64 {
        let at = (self.frame.local + offset) as usize;
        let mut bytes = [0; 8];
        let size = size.min(8) as usize;
        bytes[..size].copy_from_slice(&self.local_of(lane)[at..at + size]);
        u64::from_le_bytes(bytes)
    }

    /// Stores the low `size` bytes of `value` at byte `offset` of the running frame.
    pub(crate) fn set_frame_word(&mut self, lane: usize, offset: u32, size: u32, value: u64) {
        let at = (self.frame.local + offset) as usize;
        let size = size.min(8) as usize;
        self.local_of_mut(lane)[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }

    /// Records a fault.
    #[cold]
    pub(crate) fn fail(&mut self, fault: Fault) -> Flow {
        self.fault = Some(fault);
        Flow::Fault
    }

    /// Whether some group could run.
    pub(crate) fn ready(&self) -> bool {
        self.groups.iter().any(|g| g.state == State::Ready)
    }

    /// Puts lanes of the running group aside.
    pub(crate) fn push(&mut self, mask: u32, pc: u32, frame: Frame<'a>, state: State) {
        if mask != 0 {
            self.turns += 1;
            self.groups.push(Group { mask, pc, frame, state, since: self.turns });
        }
    }

    /// Chooses the group to run; false if none can.
    fn pick(&mut self) -> bool {
        let ready = self.groups.iter().enumerate().filter(|(_, g)| g.state == State::Ready);
        let rotate = std::mem::take(&mut self.rotate);
        let best =
            if rotate { ready.min_by_key(|(_, g)| g.since) } else { ready.min_by_key(|(_, g)| (u32::MAX - g.frame.depth, g.pc)) };
        let Some((index, _)) = best else { return false };
        let group = self.groups.swap_remove(index);
        self.frame = group.frame;
        self.pc = group.pc;
        self.active = group.mask;
        self.limit = u32::MAX;
        let mut at = 0;
        while let Some(other) = self.groups.get(at) {
            let same = other.state == State::Ready && other.frame == self.frame;
            if same && other.pc == self.pc {
                self.active |= other.mask;
                self.groups.swap_remove(at);
                continue;
            }
            // A rotated group may be behind or ahead of others and keeps its slice, except that it joins those ahead.
            if same && other.pc > self.pc {
                self.limit = self.limit.min(other.pc);
            }
            at += 1;
        }
        true
    }

    /// Runs until the warp blocks or exits, or `budget` instructions are issued.
    pub(crate) fn run_slice(&mut self, c: &mut Cta<'a>, budget: u32) -> SliceEnd {
        let mut left = budget;
        let end = 'slice: loop {
            if !self.pick() {
                break if self.live == 0 { SliceEnd::Exited } else { SliceEnd::Blocked };
            }
            loop {
                if self.pc >= self.limit {
                    self.push(self.active, self.pc, self.frame, State::Ready);
                    break;
                }
                if left == 0 || self.rest {
                    self.rest = false;
                    self.push(self.active, self.pc, self.frame, State::Ready);
                    self.rotate = self.groups.len() > 1;
                    break 'slice SliceEnd::Expired;
                }
                let func = self.frame.func;
                let instr = &func.code[self.pc as usize];
                left -= 1;
                self.mask = if instr.guard == NONE { self.active } else { self.active & self.pred_value(instr.guard) };
                if self.mask == 0 {
                    self.pc += 1;
                    continue;
                }
                self.executed += u64::from(self.mask.count_ones());
                // SAFETY: `lanes::handler` chose the function by the features of this processor.
                let flow = unsafe { (instr.exec)(self, c, instr) };
                match flow {
                    Flow::Next => self.pc += 1,
                    Flow::Jump => {}
                    Flow::Reschedule => break,
                    Flow::Fault => break 'slice SliceEnd::Fault,
                }
            }
        };
        self.issued += u64::from(budget - left);
        end
    }

    /// Releases the lanes waiting at barrier `id`; `bits` gives the result of a reduction for its destination.
    pub(crate) fn release_barrier(&mut self, id: u32, popc: u32, and: bool, or: bool) {
        for n in 0..self.groups.len() {
            let mut group = self.groups[n];
            if group.state != State::Barrier(id) {
                continue;
            }
            self.frame = group.frame;
            self.mask = group.mask;
            let instr = &group.frame.func.code[group.pc as usize];
            super::sync::finish_barrier(self, instr, popc, and, or);
            group.pc += 1;
            group.state = State::Ready;
            self.groups[n] = group;
        }
    }

    /// Enters `func` with the lanes of `mask`; each lane's arguments are copied from the frame of the caller.
    pub(crate) fn enter(&mut self, mask: u32, program: &'a Program, func: &'a Function, site: &CallSite) -> Result<(), Fault> {
        let caller = self.frame;
        let caller_func = caller.func;
        let frame = Frame {
            func,
            program,
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

    /// Ends the running group: the lanes not in `mask` go on behind the current instruction.
    pub(crate) fn leave(&mut self) {
        self.push(self.active & !self.mask, self.pc + 1, self.frame, State::Ready);
        self.active = 0;
    }

    fn exit_lanes(&mut self, c: &mut Cta<'a>) -> Flow {
        self.live &= !self.mask;
        c.exited(self.mask.count_ones());
        self.leave();
        super::sync::wake(self);
        Flow::Reschedule
    }

    /// Moves the lanes of `mask` to `target` and the others to the next instruction.
    #[inline(always)]
    pub(crate) fn branch(&mut self, target: u32) -> Flow {
        let stay = self.active & !self.mask;
        if stay == 0 {
            self.pc = target;
            return Flow::Jump;
        }
        // Go on with whichever part is earlier; the other one waits there.
        let next = self.pc + 1;
        let (first, rest, rest_pc) = if target < next { (self.mask, stay, next) } else { (stay, self.mask, target) };
        self.pc = target.min(next);
        self.active = first;
        self.push(rest, rest_pc, self.frame, State::Ready);
        if rest_pc == self.pc {
            // Both parts at one place: let `pick` join them.
            self.push(first, self.pc, self.frame, State::Ready);
            return Flow::Reschedule;
        }
        self.limit = self.limit.min(rest_pc);
        Flow::Jump
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

/// Direct call of function `imm` of the same program; `x` indexes `Function::calls`.
pub(crate) struct Call;
impl Exec for Call {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let (caller, program) = (w.frame.func, w.frame.program);
        let entered = w.enter(w.mask, program, &program.functions()[i.imm as usize], &caller.calls[i.x as usize]);
        if let Err(fault) = entered {
            return w.fail(fault);
        }
        w.leave();
        Flow::Reschedule
    }
}

/// Call through the code address in `s[0]`; `x` indexes `Function::calls`.
pub(crate) struct CallIndirect;
impl Exec for CallIndirect {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let caller = w.frame.func;
        let targets = *w.row64(i.s[0]);
        let mut left = w.mask;
        while left != 0 {
            let address = targets[left.trailing_zeros() as usize];
            let same = lanes(left).filter(|&l| targets[l] == address).fold(0, |m, l| m | 1 << l);
            let Some((program, func)) = c.env.code.find(address) else {
                return w.fail(Fault::InvalidPc(address));
            };
            if func.shared_vars && !std::ptr::eq(program, c.program) {
                let name = &func.name;
                return w.fail(Fault::IllegalInstruction(format!("{name}: shared variables of a function of another module")));
            }
            if let Err(fault) = w.enter(same, program, func, &caller.calls[i.x as usize]) {
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
