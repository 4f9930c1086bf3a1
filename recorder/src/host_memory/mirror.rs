//! Ensures that a place of this machine shares all of the program's pinned memory, or none of it.
//!
//! Such a place maps the file of pinned memory, but it has a mirrored copy of memory that the program has registered. Writes of a GPU to
//! the two would be seen in another order than they were made, and so would the program's writes. So from the time at which GPUs use
//! registered memory by its address, a place of this machine mirrors pinned memory too, like a place on another machine: then one order
//! of changes covers all of it (docs/consistency.md).

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::gate::{self, NotClosed};
use crate::job::Device;
use crate::move_error::{Busyness, MoveError};
use crate::pinned::blocks::{BLOCKS, Block, CHANGING, Known, NEEDED, is_registered};
use crate::place::Place;
use cuda_api::code::{self, Code};
use rcuda_forwarder::{Control, ControlReply, LinkError};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limits of successive attempts to wait for running work: short ones first, since other threads make no calls meanwhile. Work that
/// waits for the program does not end: then the program gets an error.
const ATTEMPTS: [Duration; 4] =
    [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// Poll interval for work that has not ended.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Must be called before GPUs use the memory at an address: if it is registered, all places of this machine stop mapping the file.
pub(super) fn prepare(cx: &CallContext, address: u64) -> Result<(), Code> {
    let with_file = |d: &&'static Device| cx.place(d).maps_file();
    if !is_registered(address) || !cx.job.devices.iter().any(|d| with_file(&d)) {
        return Ok(());
    }
    tracing::debug!(
        target: "memory",
        "a GPU uses registered memory by its address, {address:#x}: places of this machine mirror pinned memory from now on"
    );
    let devices: Vec<&'static Device> = cx.job.devices.iter().collect();
    // A move waits for the waiters of its device, so the places stay.
    for d in &devices {
        d.waiters.fetch_add(1, Ordering::AcqRel);
    }
    let places: Vec<Place> = devices.iter().map(|d| cx.place(d).clone()).collect();
    let changed = cx.pass.outside(|| {
        let mut outcome = Ok(());
        for limit in ATTEMPTS {
            // A move that keeps the gate closed waits for this thread as long as its limit says, and then opens it: no attempt was made.
            outcome = loop {
                match change(&places, limit) {
                    Err(MirrorError::GateTaken) => {}
                    outcome => break outcome,
                }
            };
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        outcome
    });
    for d in &devices {
        d.waiters.fetch_sub(1, Ordering::AcqRel);
    }
    changed.map_err(|why| {
        tracing::warn!(target: "memory", "kernels cannot use registered memory beside pinned memory at this place: {why}");
        code::ERROR_NOT_SUPPORTED
    })
}

/// Why places cannot change to mirrored copies of pinned memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum MirrorError {
    #[error("a thread stays inside a CUDA call")]
    ThreadInCall,
    #[error("another thread holds up all calls")]
    GateTaken,
    #[error("it does not come to rest: {0}")]
    NotIdle(String),
    #[error(transparent)]
    Control(#[from] LinkError),
    #[error("it has answered something else: {0:?}")]
    Answer(Box<ControlReply>),
    #[error("error {error} on pinning {bytes} bytes there")]
    Pin { error: Code, bytes: u64 },
    #[error("it is gone")]
    Gone,
}

impl From<MirrorError> for MoveError {
    fn from(e: MirrorError) -> MoveError {
        match e {
            MirrorError::ThreadInCall | MirrorError::GateTaken => MoveError::NotIdle(Busyness::ThreadInCall),
            MirrorError::NotIdle(what) => MoveError::NotIdle(Busyness::Gpu { what, last: None }),
            MirrorError::Control(e) => e.into(),
            MirrorError::Answer(reply) => MoveError::unexpected(&reply),
            MirrorError::Pin { error, bytes } => MoveError::HostMemory { error, bytes },
            MirrorError::Gone => MoveError::PlaceLost(None),
        }
    }
}

/// Changes all places that map the file, while no call is made and nothing runs there.
fn change(places: &[Place], limit: Duration) -> Result<(), MirrorError> {
    let until = Instant::now() + limit;
    gate::note_held();
    let waits = || {
        gate::note_held();
        true
    };
    let _closed = gate::close(limit, waits).map_err(|why| match why {
        NotClosed::Taken => MirrorError::GateTaken,
        NotClosed::Busy | NotClosed::NoBarrier => MirrorError::ThreadInCall,
    })?;
    for place in places.iter().filter(|p| p.maps_file()) {
        come_to_rest(place, until)?;
    }
    NEEDED.store(true, Ordering::Release);
    let _changing = lock(&CHANGING);
    places.iter().filter(|p| p.maps_file()).try_for_each(leave_file)
}

fn come_to_rest(place: &Place, until: Instant) -> Result<(), MirrorError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match place.control(&Control::Drain { limit_ms: left.min(Duration::from_millis(100)).as_millis() as u32 })? {
            ControlReply::Drained { idle: true, .. } if place.outstanding() == 0 => return Ok(()),
            ControlReply::Drained { waits_for, .. } if left.is_zero() => {
                return Err(MirrorError::NotIdle(waits_for));
            }
            ControlReply::Drained { .. } => std::thread::sleep(POLL_INTERVAL),
            other => return Err(MirrorError::Answer(Box::new(other))),
        }
    }
}

/// Unmaps the file's blocks at an idle place, and gives it copies of those that GPUs use by their addresses.
pub(super) fn leave_file(place: &Place) -> Result<(), MirrorError> {
    let blocks = lock(&BLOCKS).clone();
    place.leave_file();
    let known: Vec<(&u64, &Block)> = blocks.iter().filter(|(at, b)| b.filed && place.has_pinned(**at)).collect();
    // All of them first: blocks of one slab are mapped together.
    for (at, _) in &known {
        place.unpin(**at);
    }
    for (at, b) in known.into_iter().filter(|(_, b)| matches!(b.known, Known::Found | Known::Everywhere)) {
        b.pin(place, *at).map_err(|error| MirrorError::Pin { error, bytes: b.bytes })?;
    }
    place.send_changes().map_err(|_| MirrorError::Gone)
}
