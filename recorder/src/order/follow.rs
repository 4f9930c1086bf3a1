//! Makes streams wait for events: later work follows work of other streams.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::{Device, contexts};
use crate::order::delay::note_delay;
use crate::order::{follow, host_waiting, landing};
use cuda_api::code::Code;
use cuda_api::ops::StreamWaitEvent;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes later work of a stream wait for an event of its device: sends the wait, and notes copies and kernels before the event.
pub(crate) fn follow_event(cx: &CallContext, device: &'static Device, wait: &StreamWaitEvent) -> Result<(), Code> {
    landing::follows_event(device, wait.stream);
    host_waiting::follows_event(device, wait.stream);
    let span = cx.operate(device, wait)?;
    note_delay(cx, device, wait.stream, span.as_ref());
    Ok(())
}

/// What new streams of a context wait for. Locked beside the ledger, so only for a short time.
pub(crate) static PASSED: Mutex<Option<FxHashMap<u64, u64>>> = Mutex::new(None);

pub(crate) static ANY_PASSED: AtomicBool = AtomicBool::new(false);

/// Makes a new stream wait for what its context waits for.
pub(crate) fn new_in(cx: &CallContext, device: &'static Device, ctx: u64, stream: u64) -> Result<(), Code> {
    if !ANY_PASSED.load(Ordering::Acquire) {
        return Ok(());
    }
    // A green context waits with the primary one.
    let about = [Some(ctx), contexts::is_green(ctx).then(|| contexts::primary(device.index))];
    for of in about.into_iter().flatten() {
        let event = lock(&PASSED).as_ref().and_then(|all| all.get(&of).copied());
        if let Some(event) = event {
            follow::follow_event(cx, device, &StreamWaitEvent { stream, event })?;
        }
    }
    Ok(())
}
