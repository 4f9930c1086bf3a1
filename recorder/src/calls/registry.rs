//! The kinds of objects of a job, in one table: how their objects end with a context, what keeps a device from moving, what a target
//! must have, what is replayed late, and how they are listed. A new kind is a file with its state and calls, and a row here.

use crate::base::log::lock;
use crate::calls::vmm::{self, tile_pools};
use crate::calls::{array, context_events, external, graph, module, reference, stream, texture};
use crate::device_memory::peer::TargetMappings;
use crate::device_memory::{chunks, imports, peer, shared_handles, shared_memory, supply};
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::contexts::primary;
use crate::job::{Device, Figures, Job, array_lookup};
use crate::move_error::MoveError;
use crate::place::Place;
use cuda_api::code::Code;
use journal::Record;

/// A kind of object.
struct Kind {
    /// Destroys those of a context of the device.
    end_of_context: Option<fn(&mut CallContext, &'static Device, u64) -> Result<(), Code>>,
    /// Destroys all those of a device, or forgets those that are destroyed with its context.
    end_of_device: Option<fn(&mut CallContext, &'static Device) -> Result<(), Code>>,
    /// Why a device cannot move.
    blocker: Option<fn(&Device) -> Option<MoveError>>,
    /// Why these devices cannot move without others.
    blockers_among: Option<fn(&[&'static Device]) -> Vec<MoveError>>,
    /// Gives the targets of a move what relates devices to each other. The gate is closed; the targets have all memory.
    rebuild: Option<Rebuild>,
    /// The same while the job runs, as far as that is possible.
    rebuild_ahead: Option<Rebuild>,
    /// Tries whether that would be possible at the targets of a plan, which have no memory.
    try_out: Option<fn(&[(&'static Device, &Place)]) -> Result<(), MoveError>>,
    /// Bytes that a target must have free for them.
    needed_bytes: Option<fn(&Job, &Device) -> u64>,
    /// Their records that may be replayed only when the job is quiesced.
    deferred: Option<Deferred>,
    /// The name under which they are listed, and their number; `None` if a lock is taken.
    listed: Option<(&'static str, fn(&Job, &Device) -> Option<u64>)>,
}

/// Gives the targets of a move what relates devices to each other; what they have of each other's memory already is noted.
type Rebuild = fn(&[(&'static Device, &Place)], &mut TargetMappings) -> Result<(), MoveError>;

/// Records that may refer to memory which a target has only when the job is quiesced.
struct Deferred {
    /// The object that a record concerns.
    object: fn(&Record) -> Option<u64>,
    /// Whether a record refers to such memory.
    comes_late: fn(&Device, &Record) -> bool,
    /// The object whose resource a record replaces.
    replaces: fn(&Record) -> Option<u64>,
    /// Whether a target still needs a deferred record.
    is_needed: fn(&Job, &Record) -> bool,
    /// Why a record cannot be replayed.
    blocker: fn(&Record) -> Option<MoveError>,
}

impl Kind {
    const NONE: Kind = Kind {
        end_of_context: None,
        end_of_device: None,
        blocker: None,
        blockers_among: None,
        rebuild: None,
        rebuild_ahead: None,
        try_out: None,
        needed_bytes: None,
        deferred: None,
        listed: None,
    };
}

impl Deferred {
    const NONE: Deferred =
        Deferred { object: |_| None, comes_late: |_, _| false, replaces: |_| None, is_needed: |_, _| true, blocker: |_| None };
}

/// In the order in which they end.
static KINDS: &[Kind] = &[
    // Access of devices to each other's memory.
    Kind {
        end_of_context: Some(|cx, device, ctx| {
            peer::forget(cx, device, ctx);
            Ok(())
        }),
        end_of_device: Some(|cx, device| {
            peer::forget(cx, device, primary(device.index));
            Ok(())
        }),
        blockers_among: Some(peer::blockers),
        rebuild: Some(peer::rebuild),
        rebuild_ahead: Some(peer::rebuild_ahead),
        try_out: Some(peer::try_out),
        ..Kind::NONE
    },
    // Memory of other devices that is mapped for copies.
    Kind { end_of_device: Some(|cx, device| imports::forget(cx, device)), ..Kind::NONE },
    // The recorder's streams and events in a context.
    Kind { end_of_context: Some(context_events::end), ..Kind::NONE },
    // Graph instances end with the streams.
    Kind {
        deferred: Some(Deferred { object: graph::instance_of, comes_late: graph::comes_late, ..Deferred::NONE }),
        ..Kind::NONE
    },
    // Streams and events.
    Kind {
        end_of_context: Some(|cx, device, ctx| stream::end_of(cx, device, Some(ctx))),
        end_of_device: Some(stream::end_all),
        listed: Some(("streams", |job, _| Some(job.tables.streams.live()))),
        ..Kind::NONE
    },
    // Those of the recorder were among the streams and events of the device.
    Kind {
        end_of_device: Some(|_, device| {
            context_events::forget(device);
            Ok(())
        }),
        listed: Some(("events", |job, _| {
            let spare = job.devices.iter().map(|d| d.spare_events.count() as u64).sum();
            Some(job.tables.events.live().saturating_sub(spare))
        })),
        ..Kind::NONE
    },
    // Pinned memory stays when a context ends, until the program frees it or the device's last context is destroyed.
    Kind {
        end_of_device: Some(|cx, device| {
            host_memory::end_all(cx, device);
            Ok(())
        }),
        ..Kind::NONE
    },
    // Texture and surface objects.
    Kind {
        end_of_context: Some(|cx, device, ctx| texture::end_of(cx, device, Some(ctx))),
        end_of_device: Some(|cx, device| texture::end_of(cx, device, None)),
        deferred: Some(Deferred {
            object: texture::object_of,
            comes_late: texture::comes_late,
            blocker: texture::blocker,
            ..Deferred::NONE
        }),
        ..Kind::NONE
    },
    // Texture and surface references.
    Kind {
        end_of_context: Some(|cx, device, ctx| reference::end_of(cx, device, Some(ctx))),
        end_of_device: Some(|cx, device| reference::end_of(cx, device, None)),
        deferred: Some(Deferred {
            object: reference::set_by,
            comes_late: reference::comes_late,
            replaces: reference::resource_set_by,
            is_needed: reference::is_needed,
            ..Deferred::NONE
        }),
        ..Kind::NONE
    },
    // Arrays and mipmapped arrays.
    Kind {
        end_of_context: Some(|cx, device, ctx| array::end_of(cx, device, Some(ctx))),
        end_of_device: Some(|cx, device| array::end_of(cx, device, None)),
        needed_bytes: Some(|job, device| array_lookup::bytes(job, device.index)),
        ..Kind::NONE
    },
    // Modules; libraries belong to no context.
    Kind {
        end_of_context: Some(|cx, device, ctx| module::unload_of(cx, device, Some(ctx))),
        end_of_device: Some(|cx, device| module::unload_of(cx, device, None)),
        listed: Some(("modules", |job, _| Some(job.tables.modules.live() + job.tables.libraries.live()))),
        ..Kind::NONE
    },
    Kind { listed: Some(("functions", |job, _| Some(job.tables.functions.live() + job.tables.kernels.live()))), ..Kind::NONE },
    // The program's own physical memory and mappings. Memory for tiles has no chunk.
    Kind {
        end_of_device: Some(|cx, device| {
            vmm::forget(cx, device);
            Ok(())
        }),
        needed_bytes: Some(|_, device| tile_pools::bytes(device)),
        ..Kind::NONE
    },
    // External memory.
    Kind {
        end_of_device: Some(|_, device| {
            external::forget(device);
            Ok(())
        }),
        ..Kind::NONE
    },
    // Memory and events that processes share by handles.
    Kind {
        end_of_device: Some(|_, device| {
            shared_handles::forget(device);
            Ok(())
        }),
        blocker: Some(shared_handles::blocker),
        ..Kind::NONE
    },
    // Memory that processes share by descriptors.
    Kind {
        end_of_device: Some(|_, device| {
            shared_memory::forget(device);
            Ok(())
        }),
        blocker: Some(shared_memory::blocker),
        ..Kind::NONE
    },
    // Allocations; chunks are also the homes of the program's own physical memory.
    Kind {
        end_of_context: Some(|cx, device, ctx| supply::free_of(cx, device, ctx)),
        end_of_device: Some(chunks::free_all),
        needed_bytes: Some(|_, device| device.memory().needed()),
        listed: Some(("allocations", |_, device| Some(device.memory.try_read()?.count()))),
        ..Kind::NONE
    },
];

/// Destroys everything that was created in a context.
pub(crate) fn end_of_context(cx: &mut CallContext, device: &'static Device, ctx: u64) -> Result<(), Code> {
    KINDS.iter().filter_map(|kind| kind.end_of_context).try_for_each(|end| end(cx, device, ctx))
}

/// Destroys everything in the contexts of a device, except libraries.
pub(crate) fn end_of_device(cx: &mut CallContext, device: &'static Device) -> Result<(), Code> {
    KINDS.iter().filter_map(|kind| kind.end_of_device).try_for_each(|end| end(cx, device))
}

/// Why a device cannot move.
pub(crate) fn blockers(device: &Device) -> impl Iterator<Item = MoveError> {
    KINDS.iter().filter_map(|kind| kind.blocker).filter_map(move |blocker| blocker(device))
}

/// Why these devices cannot move without others.
pub(crate) fn blockers_among(devices: &[&'static Device]) -> Vec<MoveError> {
    KINDS.iter().filter_map(|kind| kind.blockers_among).flat_map(|blockers| blockers(devices)).collect()
}

/// Gives the targets of a move what relates devices to each other. The gate is closed; the targets already have all memory.
pub(crate) fn rebuild(targets: &[(&'static Device, &Place)], mapped: &mut TargetMappings) -> Result<(), MoveError> {
    KINDS.iter().filter_map(|kind| kind.rebuild).try_for_each(|rebuild| rebuild(targets, mapped))
}

/// As [`rebuild`], as far as that is possible while the job runs and targets do not have all memory.
pub(crate) fn rebuild_ahead(targets: &[(&'static Device, &Place)], mapped: &mut TargetMappings) -> Result<(), MoveError> {
    KINDS.iter().filter_map(|kind| kind.rebuild_ahead).try_for_each(|rebuild| rebuild(targets, mapped))
}

/// Why what relates devices to each other would not be possible at the targets of a plan.
pub(crate) fn try_out(targets: &[(&'static Device, &Place)]) -> Option<MoveError> {
    KINDS.iter().filter_map(|kind| kind.try_out).find_map(|try_out| try_out(targets).err())
}

/// Bytes that a target must have free. The locks are taken one after the other: a thread that holds the lock of mapped memory takes that
/// of a device's.
pub(crate) fn needed_bytes(job: &Job, device: &Device) -> u64 {
    KINDS.iter().filter_map(|kind| kind.needed_bytes).map(|bytes| bytes(job, device)).sum()
}

fn deferred() -> impl Iterator<Item = &'static Deferred> {
    KINDS.iter().filter_map(|kind| kind.deferred.as_ref())
}

/// The object that a record concerns, if its records may be deferred.
pub(crate) fn deferred_object(record: &Record) -> Option<u64> {
    deferred().find_map(|kind| (kind.object)(record))
}

/// Returns whether a record refers to memory that a target has only when the job is quiesced.
pub(crate) fn comes_late(device: &Device, record: &Record) -> bool {
    deferred().any(|kind| (kind.comes_late)(device, record))
}

/// The object whose resource a record replaces: the previous resource is no longer needed.
pub(crate) fn replaces(record: &Record) -> Option<u64> {
    deferred().find_map(|kind| (kind.replaces)(record))
}

/// Returns whether a target still needs a deferred record.
pub(crate) fn is_needed(job: &Job, record: &Record) -> bool {
    deferred().all(|kind| (kind.is_needed)(job, record))
}

/// Why a record cannot be replayed.
pub(crate) fn record_blocker(record: &Record) -> Option<MoveError> {
    deferred().find_map(|kind| (kind.blocker)(record))
}

/// The current figures of a device, or the last known ones if a lock is taken: a call that waits for a place may hold it.
pub(crate) fn figures(job: &Job, device: &Device) -> Figures {
    let mut known = lock(&device.figures);
    if let Some(m) = device.memory.try_read() {
        known.used_bytes = m.used();
    }
    if let Ok(ledger) = device.ledger.try_lock() {
        (known.records, known.journal_bytes) = ledger.size();
    }
    let listed = KINDS.iter().filter_map(|kind| kind.listed);
    known.live.extend(listed.filter_map(|(name, count)| Some((name, count(job, device)?))));
    known.clone()
}
