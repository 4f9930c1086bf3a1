//! Variables of loaded code, as memory that a program queries. Their addresses are known to the place.

use crate::base::log::lock;
use crate::device_memory::regions;
use crate::enter::CallContext;
use crate::job::contexts;
use crate::objects::allocations::{PLACED, PLACED_END};
use cuda_api::handle::{Kind, kind};
use cuda_api::ops::{self, Variable};
use cuda_api::wire::Wire;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A variable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) device: u32,
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
}

static STATE: Mutex<State> = Mutex::new(State { ended: 0, known: BTreeMap::new() });

/// The variable that contains an address. Programs repeat such queries, so the place is queried once about each.
pub(crate) fn find(cx: &CallContext, address: u64) -> Option<Found> {
    if !(PLACED..PLACED_END).contains(&address) {
        return None;
    }
    let device = regions::home(cx.job, address)?;
    let ended = {
        let state = lock(&STATE);
        let near = state.known.range(..=address).next_back();
        if let Some((_, v)) = near.filter(|(start, v)| address - **start < v.bytes) {
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
    let context = match kind(module) {
        Some(Kind::Module) => cx.job.tables.modules.get(module).ok()?.context(),
        _ => contexts::primary(device.index),
    };
    let found = Found { device: device.index, start, bytes, context };
    let mut state = lock(&STATE);
    if state.ended == ended {
        state.known.insert(start, found);
    }
    Some(found)
}

/// Clears the cache when code was unloaded, since other variables may be placed there.
pub(crate) fn forget() {
    let mut state = lock(&STATE);
    state.ended += 1;
    state.known.clear();
}
