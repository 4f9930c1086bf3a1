//! What a plan tries out at a target: whether the job's code loads there, with the answers that the job has got, and whether its variables
//! come to lie at the same addresses. Nothing else of a move is known only when it is tried.
//!
//! Memory is left out, since a plan must not take the memory of others: chunks and what is mapped from them, and objects for memory (graph
//! instances, textures). They place nothing that code depends on, and whether there is room for them is known.

use super::fit::Different;
use super::residence::{known_functions, not_resident, weaker_function};
use super::to_place::replay_to;
use crate::base::log::lock;
use crate::base::spawn;
use crate::calls::registry;
use crate::host_memory;
use crate::job::{Device, Job};
use crate::move_error::{Layout, MoveError};
use crate::moves::Task;
use crate::place::Place;
use cuda_api::ops::{self, Memory, Op};
use journal::Record;
use rcuda_forwarder::{Control, ControlReply, GlobalInfo};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Pinned memory of a job beyond this is not registered at the target for a plan: calls of the job that allocate such memory wait meanwhile.
const MAX_HOST_MEMORY: u64 = 64 << 20;

/// Variables and heap of a job beyond this are not made at the target for a plan: others may need that memory.
const MAX_CODE_MEMORY: u64 = 256 << 20;
/// How long a target may take. Calls of the job that allocate pinned memory may wait for it.
const LIMIT: Duration = Duration::from_secs(60);

/// Globals and the heap of a place.
type Code = (Vec<GlobalInfo>, Option<(u64, u64)>);

/// As [`rehearse`]; a target that takes longer than [`LIMIT`] is abandoned.
pub(super) fn rehearse_in_time(job: &Job, device: &Device, source: &Place, target: &Place, task: &Task) -> Result<(), MoveError> {
    let (done, is_done) = mpsc::channel::<()>();
    let (late, theirs) = (Arc::new(AtomicBool::new(false)), target.clone());
    let is_late = late.clone();
    let watch = move || {
        if is_done.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            is_late.store(true, Ordering::Release);
            theirs.abandon();
        }
    };
    spawn::spawn("mrcuda-plan", watch).map_err(MoveError::no_thread)?;
    let result = rehearse(job, device, source, target, task);
    drop(done);
    if late.load(Ordering::Acquire) { Err(MoveError::PlaceSilent(LIMIT)) } else { result }
}

/// Loads the job's code at a target that was opened for a plan. An error is a blocker.
fn rehearse(job: &Job, device: &Device, source: &Place, target: &Place, task: &Task) -> Result<(), MoveError> {
    let known = known_functions(job, device);
    let before = code(source)?;
    let live = lock(&device.ledger).copy_live()?;
    let different = Different::since(device, target.device());
    live.iter().find_map(|record| different.blocker(&record)).map_or(Ok(()), Err)?;
    if bytes(&before) > MAX_CODE_MEMORY {
        return Ok(());
    }
    let (host_bytes, has_variables) = host_memory::needed_at(target);
    if host_bytes <= MAX_HOST_MEMORY {
        host_memory::settle(target, &mut BTreeMap::new())?;
    } else if has_variables {
        // Code with managed variables cannot be loaded without that memory.
        return Ok(());
    }
    replay_to(target, code_records(live.iter()), task)?;
    if different.any() {
        not_resident(job, device, target)?.map_or(Ok(()), Err)?;
        weaker_function(job, device, target, &known)?.map_or(Ok(()), Err)?;
    }
    let there = code(target)?;
    // The target has what the job had when its journal was copied. If the job has loaded code meanwhile, only a move can compare.
    if code(source)? == before { same(&before, &there) } else { Ok(()) }
}

/// How much memory code has.
fn bytes((globals, heap): &Code) -> u64 {
    globals.iter().map(|global| global.bytes).chain(heap.map(|(_, bytes)| bytes)).fold(0, u64::saturating_add)
}

fn code(place: &Place) -> Result<Code, MoveError> {
    match place.control(&Control::Regions)? {
        ControlReply::Regions { globals, heap, .. } => Ok((globals, heap)),
        other => Err(MoveError::unexpected(&other)),
    }
}

/// The records of code and of what determines where it lies.
fn code_records<'r>(live: impl Iterator<Item = Record<'r>>) -> impl Iterator<Item = Record<'r>> {
    let mut left_out: HashSet<u64> = HashSet::new();
    live.filter(move |record| {
        let concerned = record.uses.iter().chain(&record.ends).any(|object| left_out.contains(object));
        let keep = !concerned && !is_of_memory(record);
        if !keep {
            left_out.extend(record.creates.iter());
        }
        keep
    })
}

/// Whether a record maps memory, or makes an object for memory.
fn is_of_memory(record: &Record) -> bool {
    let maps = |op: Op| matches!(op.memory(), Memory::Placed | Memory::Known);
    let of_tiles = matches!(record.id, ops::id::TILE_POOL_MAKE | ops::id::TILE_POOL_END | ops::id::TILES_MAP);
    of_tiles || Op::from_id(record.id).is_some_and(maps) || registry::deferred_object(record).is_some()
}

fn same(here: &Code, there: &Code) -> Result<(), MoveError> {
    let place = |g: &GlobalInfo| (g.name.clone(), g.address);
    let differs = here.0.iter().zip(&there.0).find(|(a, b)| place(a) != place(b));
    let layout = match differs {
        Some((a, b)) => Layout::Address { here: place(a), there: place(b) },
        None if here.0.len() != there.0.len() => Layout::Count { here: here.0.len(), there: there.0.len() },
        None if here.1 != there.1 => {
            let heap = |heap: Option<(u64, u64)>| ("the device heap".to_owned(), heap.map_or(0, |(address, _)| address));
            Layout::Address { here: heap(here.1), there: heap(there.1) }
        }
        None => return Ok(()),
    };
    Err(MoveError::LayoutDiffers(layout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::OwnedRecord;

    fn record(id: u16, creates: &[u64], uses: &[u64], ends: Option<u64>) -> OwnedRecord {
        OwnedRecord {
            seq: 0,
            id,
            role: journal::Role::Plain,
            setting: None,
            device: 0,
            creates: creates.to_vec(),
            ends,
            uses: uses.to_vec(),
            body: Vec::new(),
            reply: Vec::new(),
        }
    }

    #[test]
    fn memory_and_what_depends_on_it_is_left_out() {
        let all = [
            record(ops::id::IMAGE_PUT, &[], &[], None),
            record(ops::id::IMAGE_LOAD, &[1], &[], None),
            record(ops::id::CHUNK_MAP, &[2], &[], None),
            record(ops::id::TILE_POOL_MAKE, &[3], &[], None),
            record(ops::id::ARRAY_MAKE, &[4], &[3], None),
            record(ops::id::ARRAY_END, &[], &[], Some(4)),
            record(ops::id::FUNCTION_INFO, &[5], &[1], None),
            record(ops::id::ARRAY_MAKE, &[6], &[], None),
        ];
        let kept: Vec<u16> = code_records(all.iter().map(OwnedRecord::as_record)).map(|record| record.id).collect();
        assert_eq!(kept, [ops::id::IMAGE_PUT, ops::id::IMAGE_LOAD, ops::id::FUNCTION_INFO, ops::id::ARRAY_MAKE]);
    }

    #[test]
    fn the_first_address_that_differs_is_named() {
        let global = |name: &str, address| GlobalInfo { module: 1, name: name.into(), address, bytes: 4 };
        let here = (vec![global("a", 1), global("b", 2)], Some((9, 8)));
        assert!(same(&here, &here.clone()).is_ok());
        let why = |there: Code| same(&here, &there).unwrap_err().to_string();
        let moved = why((vec![global("a", 1), global("b", 3)], here.1));
        assert!(moved.contains("b lies at 0x2 here and b at 0x3"), "{moved}");
        assert!(why((vec![global("a", 1)], here.1)).contains("2 ranges"));
        assert!(why((here.0.clone(), Some((7, 8)))).contains("the device heap"));
    }
}
