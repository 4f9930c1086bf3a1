//! Variables of loaded code, as memory that a program asks about. Where they lie, the place knows.

use crate::context;
use crate::enter::CallContext;
use crate::log::lock;
use crate::memory::{self, PLACED, PLACED_END};
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
    /// Context of its module; libraries are of the primary one.
    pub(crate) context: u64,
}

#[derive(Debug)]
struct State {
    /// Grows when code ends.
    ended: u64,
    /// What was asked about, by address.
    known: BTreeMap<u64, Found>,
}

static STATE: Mutex<State> = Mutex::new(State { ended: 0, known: BTreeMap::new() });

/// The variable around an address. Programs ask again and again, so the place is asked once about each.
pub(crate) fn find(cx: &CallContext, address: u64) -> Option<Found> {
    if !(PLACED..PLACED_END).contains(&address) {
        return None;
    }
    let device = memory::home(cx.job, address)?;
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
    // It is kept and believed for other addresses, too: so it must be around this one, and where variables can be.
    let around = (start..start.checked_add(bytes)?).contains(&address);
    if !around || start < PLACED || start + bytes > PLACED_END {
        return None;
    }
    let context = match kind(module) {
        Some(Kind::Module) => cx.job.tables.modules.get(module).ok()?.context(),
        _ => context::primary(device.index),
    };
    let found = Found { device: device.index, start, bytes, context };
    let mut state = lock(&STATE);
    if state.ended == ended {
        state.known.insert(start, found);
    }
    Some(found)
}

/// Some code has ended, and others' variables may lie where its own did.
pub(crate) fn forget() {
    let mut state = lock(&STATE);
    state.ended += 1;
    state.known.clear();
}
