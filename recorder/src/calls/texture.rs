//! Texture and surface objects. Kernels receive their numbers by value, so a number is chosen by the first place's driver, and every
//! later place must reproduce it (`executor/src/executor/arrays.rs`).

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::device_memory::regions;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::ledger::Keep;
use crate::move_error::MoveError;
use crate::pinned::blocks;
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::{OF_ARRAY, OF_MIPMAP, ObjectMake, Resource, Sampling, View};
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::handle::Kind;
use cuda_api::ops;
use cuda_api::wire::Wire;
use journal::Record;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A live object.
#[derive(Debug, Clone, Copy)]
struct Object {
    made: ObjectMake,
    /// The sampling parameters as the driver reports them, which are not always those of the program.
    sampling: Option<Sampling>,
}

/// Live objects by device and number: textures and surfaces share the numbers.
static OBJECTS: Mutex<BTreeMap<(u32, u64), Object>> = Mutex::new(BTreeMap::new());

fn find(cx: &CallContext, surface: bool, number: u64) -> Result<(&'static Device, Object), Code> {
    let device = cx.device()?;
    let found = lock(&OBJECTS).get(&(device.index, number)).copied();
    let right = found.filter(|object| object.made.sampling.is_none() == surface);
    right.map(|object| (device, object)).ok_or(code::ERROR_INVALID_VALUE)
}

/// The journal names that an object or a reference needs: its array, or the memory around its address. The program may free both before
/// the object.
pub(crate) fn needs(cx: &mut CallContext, device: &'static Device, r: &Resource) -> Result<Few, Code> {
    match r.kind {
        OF_ARRAY => cx.use_handle(Kind::Array, Kind::Array, r.array)?,
        OF_MIPMAP => cx.use_handle(Kind::Mipmap, Kind::Mipmap, r.array)?,
        _ => {
            // Whether there is memory is checked only when a kernel accesses it (measured, 580 driver).
            let (address, bytes) = r.memory().ok_or(code::ERROR_INVALID_VALUE)?;
            let chunks = device.memory().chunks_behind(address, bytes);
            let alias = || crate::device_memory::mappings::find(address).map(|f| f.start);
            return Ok(if chunks.is_empty() { alias().into_iter().collect() } else { chunks });
        }
    };
    if cx.device()?.index == device.index { Ok([r.array].into()) } else { Err(code::ERROR_INVALID_VALUE) }
}

/// Notes that the GPU uses, by its address, the host memory of an object or a reference.
pub(crate) fn note_host(cx: &CallContext, r: &Resource) -> Result<(), Code> {
    r.memory().map_or(Ok(()), |(address, _)| host_memory::note_words(cx, &address.to_le_bytes()))
}

/// The object that a journal record creates or destroys.
pub(crate) fn object_of(record: &Record) -> Option<u64> {
    match record.id {
        ops::id::OBJECT_MAKE => record.creates.first().copied(),
        ops::id::OBJECT_END => record.ends,
        _ => None,
    }
}

/// Returns whether such a record creates an object for memory that a target has only when the job is quiesced.
pub(crate) fn comes_late(device: &Device, record: &Record) -> bool {
    let shows = |op: ObjectMake| op.resource.memory().is_some_and(|(address, _)| regions::comes_late(device, address));
    record.id == ops::id::OBJECT_MAKE && ObjectMake::get(&mut &record.body[..]).is_ok_and(shows)
}

/// Why an object cannot be created at a target, if it uses host memory that the program has freed.
pub(crate) fn blocker(record: &Record) -> Option<MoveError> {
    let made = || ObjectMake::get(&mut &record.body[..]).ok();
    let (address, _) = (record.id == ops::id::OBJECT_MAKE).then(made)??.resource.memory()?;
    let freed = !regions::is_device(address) && blocks::find(address).is_none();
    freed.then_some(MoveError::TextureMemoryFreed { address })
}

/// Creates an object at the place. Returns its number.
fn make(cx: &mut CallContext, resource: Resource, sampling: Option<Sampling>, view: Option<View>) -> Result<u64, Code> {
    let device = cx.device()?;
    let uses = needs(cx, device, &resource)?;
    device.check()?;
    note_host(cx, &resource)?;
    let handle = cx.new_handle(Kind::Object)?;
    let mut op = ObjectMake { handle, number: 0, resource, sampling, view };
    let mut ledger = lock(&device.ledger);
    let reply = cx.ask(device, ops::id::OBJECT_MAKE, &[&encode(&op)])?;
    let (number, sampling) = <(u64, Option<Sampling>)>::get(&mut &reply[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    // A replay requests this number.
    op.number = number;
    let edges = Edges { creates: [handle].into(), ends: None, uses };
    ledger.append(ops::id::OBJECT_MAKE, &encode(&op), &reply, &edges, Keep::PLAIN)?;
    lock(&OBJECTS).insert((device.index, number), Object { made: op, sampling });
    Ok(number)
}

fn end(cx: &mut CallContext, device: &'static Device, object: &ObjectMake) -> Result<(), Code> {
    // Removed before the place can assign the number to another object.
    lock(&OBJECTS).remove(&(device.index, object.number));
    device.check()?;
    let (edges, body) = (Edges { ends: Some(object.handle), ..Edges::default() }, object.handle.to_le_bytes());
    let mut ledger = lock(&device.ledger);
    device.record_error(cx.place(device).send(ops::id::OBJECT_END, &[&body]))?;
    ledger.append(ops::id::OBJECT_END, &body, &[], &edges, Keep::PLAIN)?;
    drop(ledger);
    cx.job.tables.end(object.handle);
    Ok(())
}

/// Destroys an object. An unused number is not an error (measured, 580 driver).
fn destroy(cx: &mut CallContext, surface: bool, number: u64) -> Result<(), Code> {
    cx.device()?.check()?;
    match find(cx, surface, number) {
        Ok((device, object)) => end(cx, device, &object.made),
        Err(_) => Ok(()),
    }
}

/// Destroys the objects of a context, or all of a device.
pub(crate) fn end_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    let of_device = (device.index, 0)..=(device.index, u64::MAX);
    let mut all: Vec<ObjectMake> = lock(&OBJECTS).range(of_device).map(|(_, object)| object.made).collect();
    all.retain(|object| cx.job.tables.objects.get(object.handle).is_ok_and(|o| o.ends_with(whose)));
    all.iter().try_for_each(|object| end(cx, device, object))
}

pub(crate) fn cuTexObjectCreate(
    cx: &mut CallContext,
    resource: Resource,
    sampling: Sampling,
    view: Option<View>,
) -> Result<u64, Code> {
    make(cx, resource, Some(sampling), view)
}

pub(crate) fn cuTexObjectDestroy(cx: &mut CallContext, object: u64) -> Result<(), Code> {
    destroy(cx, false, object)
}

pub(crate) fn cuTexObjectGetResourceDesc(cx: &mut CallContext, object: u64) -> Result<Resource, Code> {
    Ok(find(cx, false, object)?.1.made.resource)
}

pub(crate) fn cuTexObjectGetTextureDesc(cx: &mut CallContext, object: u64) -> Result<Sampling, Code> {
    Ok(find(cx, false, object)?.1.sampling.unwrap_or_default())
}

pub(crate) fn cuTexObjectGetResourceViewDesc(cx: &mut CallContext, object: u64) -> Result<View, Code> {
    let (_, object) = find(cx, false, object)?;
    Ok(object.made.view.unwrap_or_default())
}

pub(crate) fn cuSurfObjectCreate(cx: &mut CallContext, resource: Resource) -> Result<u64, Code> {
    if resource.kind != OF_ARRAY {
        return Err(code::ERROR_INVALID_VALUE);
    }
    make(cx, resource, None, None)
}

pub(crate) fn cuSurfObjectDestroy(cx: &mut CallContext, object: u64) -> Result<(), Code> {
    destroy(cx, true, object)
}

pub(crate) fn cuSurfObjectGetResourceDesc(cx: &mut CallContext, object: u64) -> Result<Resource, Code> {
    Ok(find(cx, true, object)?.1.made.resource)
}
