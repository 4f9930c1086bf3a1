//! Operations across the lanes of a warp (shuffles, votes, matches, reductions) and barriers of the CTA.
//!
//! A `.sync` operation is executed once all live lanes of its member mask have arrived, possibly at different
//! instructions: lanes that arrive early wait in the state `Sync`.

use super::error::Fault;
use super::lanes::{Exec, store};
use super::machine::{Cta, Flow, Function, Group, Instr, State, Warp};
use super::operand::{LANES, NONE, lanes};
use super::spec::{BarKind, SyncKind, SyncSpec};

/// Operands gathered from all participating lanes.
struct Gathered {
    a: [u64; LANES],
    b: [u32; LANES],
    c: [u32; LANES],
}

/// Results of all lanes; predicates as bits.
struct Results {
    d: [u32; LANES],
    p: u32,
}

fn spec_of(func: &Function, pc: u32) -> &SyncSpec {
    &func.syncs[func.code[pc as usize].x as usize]
}

/// Copies the operands of the lanes of `mask`, which are in the frame `w.frame`.
fn gather(w: &Warp<'_>, spec: &SyncSpec, mask: u32, into: &mut Gathered) {
    let pred = if spec.pred { w.pred_value(spec.a.0) } else { 0 };
    for l in lanes(mask) {
        into.a[l] = if spec.pred {
            u64::from(pred >> l & 1)
        } else if spec.wide {
            w.row64(spec.a)[l]
        } else {
            u64::from(w.row32(spec.a)[l])
        };
        into.b[l] = w.row32(spec.b)[l];
        into.c[l] = w.row32(spec.c)[l];
    }
}

fn scatter(w: &mut Warp<'_>, spec: &SyncSpec, mask: u32, results: &Results) {
    w.mask = mask;
    if spec.d != NONE {
        store(w, spec.d, &results.d, mask);
    }
    w.set_pred(spec.p, results.p);
}

/// Source lane of a shuffle for lane `l`, and whether it lies in range (else the lane reads itself).
fn shuffle_source(kind: SyncKind, l: u32, b: u32, c: u32) -> (u32, bool) {
    let (clamp, segment) = (c & 31, c >> 8 & 31);
    let max_lane = (l & segment) | (clamp & !segment);
    let min_lane = l & segment;
    let (b, lane) = (b & 31, l.cast_signed());
    let (source, valid) = match kind {
        SyncKind::ShflUp => {
            let j = lane - b.cast_signed();
            (j, j >= max_lane.cast_signed())
        }
        SyncKind::ShflDown => {
            let j = lane + b.cast_signed();
            (j, j <= max_lane.cast_signed())
        }
        SyncKind::ShflBfly => {
            let j = lane ^ b.cast_signed();
            (j, j <= max_lane.cast_signed())
        }
        _ => {
            let j = (min_lane | (b & !segment)).cast_signed();
            (j, j <= max_lane.cast_signed())
        }
    };
    (if valid { source.cast_unsigned() & 31 } else { l }, valid)
}

fn compute(kind: SyncKind, mask: u32, g: &Gathered) -> Results {
    let mut out = Results { d: [0; LANES], p: 0 };
    let fold = |start: u32, f: fn(u32, u32) -> u32| lanes(mask).fold(start, |x, l| f(x, g.a[l] as u32));
    let truth = lanes(mask).fold(0u32, |m, l| m | u32::from(g.a[l] != 0) << l);
    let min_s = |a: u32, b: u32| a.cast_signed().min(b.cast_signed()).cast_unsigned();
    let max_s = |a: u32, b: u32| a.cast_signed().max(b.cast_signed()).cast_unsigned();
    let everywhere = |value: u32| Results { d: [value; LANES], p: 0 };
    let decided = |holds: bool| Results { d: [0; LANES], p: if holds { u32::MAX } else { 0 } };
    match kind {
        SyncKind::ShflUp | SyncKind::ShflDown | SyncKind::ShflBfly | SyncKind::ShflIdx => {
            for l in lanes(mask) {
                let (source, valid) = shuffle_source(kind, l as u32, g.b[l], g.c[l]);
                // Reading a lane that takes no part is undefined; its own value is as good as any.
                let from = if mask >> source & 1 != 0 { source as usize } else { l };
                out.d[l] = g.a[from] as u32;
                out.p |= u32::from(valid) << l;
            }
            out
        }
        SyncKind::VoteAll => decided(truth == mask),
        SyncKind::VoteAny => decided(truth != 0),
        SyncKind::VoteUni => decided(truth == mask || truth == 0),
        SyncKind::Ballot => everywhere(truth),
        SyncKind::ActiveMask => everywhere(mask),
        SyncKind::MatchAny => {
            for l in lanes(mask) {
                out.d[l] = lanes(mask).filter(|&k| g.a[k] == g.a[l]).fold(0, |m, k| m | 1 << k);
            }
            out
        }
        SyncKind::MatchAll => {
            let first = g.a[mask.trailing_zeros() as usize & 31];
            let same = lanes(mask).all(|l| g.a[l] == first);
            Results { d: [if same { mask } else { 0 }; LANES], p: if same { u32::MAX } else { 0 } }
        }
        SyncKind::ReduxAdd => everywhere(fold(0, u32::wrapping_add)),
        SyncKind::ReduxMinU => everywhere(fold(u32::MAX, u32::min)),
        SyncKind::ReduxMaxU => everywhere(fold(0, u32::max)),
        SyncKind::ReduxMinS => everywhere(fold(i32::MAX.cast_unsigned(), min_s)),
        SyncKind::ReduxMaxS => everywhere(fold(i32::MIN.cast_unsigned(), max_s)),
        SyncKind::ReduxAnd => everywhere(fold(u32::MAX, |a, b| a & b)),
        SyncKind::ReduxOr => everywhere(fold(0, |a, b| a | b)),
        SyncKind::ReduxXor => everywhere(fold(0, |a, b| a ^ b)),
        SyncKind::Elect => {
            let leader = mask.trailing_zeros();
            Results { d: [leader; LANES], p: 1 << (leader & 31) }
        }
        SyncKind::WarpBarrier => out,
    }
}

/// Executes an operation for groups that have all arrived. Leaves them ready behind it.
fn complete<'a>(w: &mut Warp<'a>, kind: SyncKind, groups: &[Group<'a>]) {
    let mask = groups.iter().fold(0, |m, g| m | g.mask);
    let mut gathered = Gathered { a: [0; LANES], b: [0; LANES], c: [0; LANES] };
    for group in groups {
        w.frame = group.frame;
        gather(w, spec_of(group.frame.func, group.pc), group.mask, &mut gathered);
    }
    let results = compute(kind, mask, &gathered);
    for group in groups {
        w.frame = group.frame;
        scatter(w, spec_of(group.frame.func, group.pc), group.mask, &results);
        w.push(group.mask, group.pc + 1, group.frame, State::Ready);
    }
}

/// Completes every operation whose live members have all arrived; for arrivals and exits.
pub(crate) fn wake(w: &mut Warp<'_>) {
    let mut at = 0;
    while at < w.groups.len() {
        let State::Sync(members) = w.groups[at].state else {
            at += 1;
            continue;
        };
        let kind = spec_of(w.groups[at].frame.func, w.groups[at].pc).kind;
        let same = |g: &Group<'_>| g.state == State::Sync(members) && spec_of(g.frame.func, g.pc).kind == kind;
        let arrived = w.groups.iter().filter(|g| same(g)).fold(0, |m, g| m | g.mask);
        if members & w.live & !arrived != 0 {
            at += 1;
            continue;
        }
        let (ready, rest): (Vec<_>, Vec<_>) = w.groups.iter().copied().partition(same);
        w.groups = rest;
        complete(w, kind, &ready);
        at = 0;
    }
}

/// An operation across lanes; `x` indexes `Function::syncs`.
pub(crate) struct Collective;
impl Exec for Collective {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let func = w.frame.func;
        let spec = &func.syncs[i.x as usize];
        let mask = w.mask;
        let together = match spec.members {
            None => true,
            Some(members) => {
                let row = w.row32(members);
                // All members are here already, the common case.
                lanes(mask).all(|l| row[l] & w.live & !mask == 0 && row[l] & mask == mask)
            }
        };
        if together {
            let mut gathered = Gathered { a: [0; LANES], b: [0; LANES], c: [0; LANES] };
            gather(w, spec, mask, &mut gathered);
            let results = compute(spec.kind, mask, &gathered);
            scatter(w, spec, mask, &results);
            return Flow::Next;
        }
        let members = spec.members.map_or([mask; LANES], |s| *w.row32(s));
        let mut left = mask;
        while left != 0 {
            let value = members[left.trailing_zeros() as usize];
            let same = lanes(left).filter(|&l| members[l] == value).fold(0, |m, l| m | 1 << l);
            w.push(same, w.pc, w.frame, State::Sync(value));
            left &= !same;
        }
        w.leave();
        wake(w);
        Flow::Reschedule
    }
}

/// `bar` and `barrier`; `x` indexes `Function::bars`.
pub(crate) struct Bar;
impl Exec for Bar {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let func = w.frame.func;
        let spec = &func.bars[i.x as usize];
        let lane = w.mask.trailing_zeros() as usize & 31;
        let id = w.row32(spec.id)[lane];
        let count = spec.count.map(|s| w.row32(s)[lane]);
        let lanes = w.mask.count_ones();
        let truths = if spec.pred == NONE { 0 } else { (w.pred_value(spec.pred) & w.mask).count_ones() };
        let Some(barrier) = c.barriers.get_mut(id as usize) else {
            return w.fail(Fault::IllegalInstruction(format!("barrier {id} does not exist")));
        };
        barrier.arrived += lanes;
        barrier.count = count.or(barrier.count);
        barrier.votes += lanes;
        barrier.truths += truths;
        c.barrier_changed = true;
        if spec.kind == BarKind::Arrive {
            return Flow::Next;
        }
        w.push(w.mask, w.pc, w.frame, State::Barrier(id));
        w.leave();
        Flow::Reschedule
    }
}

impl Warp<'_> {
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
            finish_barrier(self, instr, popc, and, or);
            group.pc += 1;
            group.state = State::Ready;
            self.groups[n] = group;
        }
    }
}

/// Stores the result of a reduction for the released lanes `w.mask` of `w.frame`.
fn finish_barrier(w: &mut Warp<'_>, instr: &Instr, popc: u32, and: bool, or: bool) {
    let func = w.frame.func;
    let spec = &func.bars[instr.x as usize];
    let all = |holds: bool| if holds { u32::MAX } else { 0 };
    match spec.kind {
        BarKind::Popc => store(w, spec.d, &[popc; LANES], w.mask),
        BarKind::And => w.set_pred(spec.d, all(and)),
        BarKind::Or => w.set_pred(spec.d, all(or)),
        BarKind::Sync | BarKind::Arrive => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_segment() {
        // Width 8: c = (32 - 8) << 8 | clamp.
        assert_eq!(shuffle_source(SyncKind::ShflDown, 6, 1, 0x181f), (7, true));
        assert_eq!(shuffle_source(SyncKind::ShflDown, 7, 1, 0x181f), (7, false));
        assert_eq!(shuffle_source(SyncKind::ShflUp, 8, 1, 0x1800), (8, false));
        assert_eq!(shuffle_source(SyncKind::ShflUp, 9, 1, 0x1800), (8, true));
        assert_eq!(shuffle_source(SyncKind::ShflIdx, 13, 3, 0x181f), (11, true));
        assert_eq!(shuffle_source(SyncKind::ShflBfly, 5, 1, 0x1f), (4, true));
    }
}
