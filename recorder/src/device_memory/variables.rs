//! Variables of loaded code, as memory that a program queries. Their addresses are known to the place.

use crate::base::log::lock;
use crate::device_memory::regions;
use crate::enter::CallContext;
use crate::job::{Device, contexts};
use cuda_api::address_map::{PLACED, PLACED_END};
use cuda_api::handle::{Kind, kind};
use cuda_api::ops::{self, CodeFacts, Variable};
use cuda_api::wire::Wire;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A variable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) device: u32,
    /// The module or library that was loaded.
    owner: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Context of its module; libraries belong to the primary one.
    pub(crate) context: u64,
}

#[derive(Debug)]
struct State {
    /// Grows when code is unloaded.
    ended: u64,
    /// Variables queried before, by address.
    known: BTreeMap<u64, Found>,
    /// Numbers of variables that have been asked for, by owner and address. A later variable at the address has another one.
    numbers: BTreeMap<(u64, u64), u64>,
    next_number: u64,
}

/// The first number of a variable, above those of all other memory.
const FIRST_NUMBER: u64 = 1 << 49;

static STATE: Mutex<State> = Mutex::new(State::new());

fn context_of(cx: &CallContext, device: u32, owner: u64) -> Option<u64> {
    match kind(owner) {
        Some(Kind::Module) => Some(cx.job.tables.modules.get(owner).ok()?.context()),
        _ => Some(contexts::primary(device)),
    }
}

/// Notes the variables of code that was loaded just now. Of variables that overlap, the place knows which one is meant.
pub(crate) fn learn(cx: &CallContext, device: &Device, owner: u64, facts: &CodeFacts) {
    let Some(context) = context_of(cx, device.index, owner) else { return };
    let mut all: Vec<(u64, u64)> = facts.variables.iter().take(CodeFacts::VARIABLES).map(|v| (v.address, v.bytes)).collect();
    all.sort_unstable();
    let end = |(start, bytes): (u64, u64)| start.saturating_add(bytes);
    let mut state = lock(&STATE);
    for (i, (start, bytes)) in all.iter().copied().enumerate() {
        let apart = (i == 0 || end(all[i - 1]) <= start) && all.get(i + 1).is_none_or(|next| end((start, bytes)) <= next.0);
        if apart && start >= PLACED && end((start, bytes)) <= PLACED_END {
            state.known.insert(start, Found { device: device.index, owner, start, bytes, context });
        }
    }
}

/// The variable that contains an address. Programs repeat such queries, so the place is queried once about each.
pub(crate) fn find(cx: &CallContext, address: u64) -> Option<Found> {
    if !(PLACED..PLACED_END).contains(&address) {
        return None;
    }
    let device = regions::home(cx.job, address)?;
    let ended = {
        let state = lock(&STATE);
        let before = state.known.range(..=address).next_back();
        if let Some((_, v)) = before.filter(|(start, v)| address - **start < v.bytes) {
            return Some(*v);
        }
        state.ended
    };
    let answer = cx.ask(device, ops::id::VARIABLE_AROUND, &[&address.to_le_bytes()]).ok()?;
    let Variable { module, start, bytes } = Variable::get(&mut &answer[..]).ok()?;
    // The answer is stored and used for other addresses, too: so it must contain this one, and lie where variables can be.
    let around = (start..start.checked_add(bytes)?).contains(&address);
    if !around || start < PLACED || start + bytes > PLACED_END {
        return None;
    }
    let context = context_of(cx, device.index, module)?;
    let found = Found { device: device.index, owner: module, start, bytes, context };
    let mut state = lock(&STATE);
    if state.ended == ended {
        state.known.insert(start, found);
    }
    Some(found)
}

/// Number of a variable in the job (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
pub(crate) fn number(of: &Found) -> u64 {
    lock(&STATE).number(of.owner, of.start)
}

/// Notes that code was unloaded: other variables may be placed there.
pub(crate) fn unloaded(owner: u64) {
    lock(&STATE).forget(|of, _| of == owner);
}

/// Notes that the context of a device was reset: its code has new variables.
pub(crate) fn context_ended(device: &Device) {
    lock(&STATE).forget(|_, at| regions::home_index(at) == Some(device.index));
}

impl State {
    const fn new() -> State {
        State { ended: 0, known: BTreeMap::new(), numbers: BTreeMap::new(), next_number: FIRST_NUMBER }
    }

    fn number(&mut self, owner: u64, start: u64) -> u64 {
        *self.numbers.entry((owner, start)).or_insert_with(|| {
            self.next_number += 1;
            self.next_number - 1
        })
    }

    /// Clears the cache, and the numbers of variables that have ended, by owner and address.
    fn forget(&mut self, ended: impl Fn(u64, u64) -> bool) {
        self.ended += 1;
        self.known.clear();
        self.numbers.retain(|(owner, start), _| !ended(*owner, *start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_its_number_until_its_code_is_unloaded() {
        let mut s = State::new();
        let (a, b) = (s.number(1, PLACED), s.number(2, PLACED + 64));
        assert!(a != b && a >= FIRST_NUMBER);
        s.forget(|owner, _| owner == 1);
        assert_eq!(s.number(2, PLACED + 64), b, "other code was unloaded");
        let again = s.number(1, PLACED);
        assert!(![a, b].contains(&again), "code that was loaded since has another variable at the address");
        assert_eq!(s.number(1, PLACED), again);
    }
}
