//! How a warp runs: groups of lanes in lockstep, and the memory for its registers.
//!
//! Lanes of a warp that are at the same instruction of the same call form a group. The warp runs the group that is
//! deepest in calls and, there, earliest in the code, until it reaches the next waiting group, which it then joins:
//! lanes that diverged reconverge where compilers put the join. A group that spins on another one would never let it
//! run, so each time a slice ends with several groups, the one that has waited longest gets the next slice.

use super::machine::{Cta, Flow, Frame, Function, Group, SharedSymbols, State, Warp};
use super::operand::{LANES, NONE, Row};
use cuda_api::lock::lock;
use std::sync::Mutex;

/// Why a slice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SliceEnd {
    /// Every group waits for a barrier or another warp.
    Blocked,
    Expired,
    Exited,
    Fault,
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
        lock(&SPARE).pop().unwrap_or_default()
    }

    fn give_back(self) {
        let bytes = size_of::<Row<u32>>() * self.r32.capacity() + size_of::<Row<u64>>() * self.r64.capacity();
        let mut spare = lock(&SPARE);
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

impl Drop for Warp<'_> {
    fn drop(&mut self) {
        let (r32, r64) = (std::mem::take(&mut self.r32), std::mem::take(&mut self.r64));
        Files { r32, r64, preds: std::mem::take(&mut self.preds), local: std::mem::take(&mut self.local) }.give_back();
    }
}

impl<'a> Warp<'a> {
    /// A warp about to execute `func` with the lanes of `live`; `special` holds the special registers.
    pub(crate) fn new(func: &'a Function, shared: &'a SharedSymbols, live: u32, special: Vec<Row<u32>>) -> Warp<'a> {
        let frame = Frame { func, r32: 0, r64: 0, preds: 0, local: 0, depth: 0 };
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

    /// Ends the running group: the lanes not in `mask` go on behind the current instruction.
    pub(crate) fn leave(&mut self) {
        self.push(self.active & !self.mask, self.pc + 1, self.frame, State::Ready);
        self.active = 0;
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
