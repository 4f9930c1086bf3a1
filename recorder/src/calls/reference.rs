//! Texture and surface references: variables of a module, bound by name. This process stores their settings and answers queries; the
//! place has them for later launches; the journal keeps the last value of each.
//!
//! A setting whose errors are known here is sent without waiting; for memory the place's driver checks it.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::calls::array::use_array;
use crate::calls::texture::{needs, note_host};
use crate::device_memory::regions;
use crate::enter::CallContext;
use crate::handle_end::reference_data;
use crate::job::{Device, Job};
use crate::objects::references::Kept;
use crate::pinned::blocks;
use cuda_api::arg::Capture;
use cuda_api::array::{OF_ARRAY, OF_MEMORY, OF_MIPMAP, OF_ROWS, Resource, SURFACE, Shape};
use cuda_api::calls::array::cuTexRefDestroy;
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::handle::Kind;
use cuda_api::ops::id;
use cuda_api::pointer::OutPtr;
use cuda_api::reference::{OVERRIDE_FORMAT, ReferenceSet, Setting};
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_model::reference::{ALIGNED, Reference};
use journal::Record;
use std::ffi::{c_int, c_uint};

/// The reference that a journal record sets.
pub(crate) fn set_by(record: &Record) -> Option<u64> {
    decoded(record).map(|op| op.reference)
}

/// Returns whether such a record binds memory that a target has only when the job is quiesced.
pub(crate) fn comes_late(device: &Device, record: &Record) -> bool {
    shown(record).is_some_and(|address| regions::comes_late(device, address))
}

/// Returns whether a target needs a deferred record: not if it sets a reference that was destroyed with its module, or binds host memory
/// that the program has freed. Until it is set again no kernel may use such a reference.
pub(crate) fn is_needed(job: &Job, record: &Record) -> bool {
    let Some(reference) = set_by(record) else { return true };
    let tables = &job.tables;
    let Ok(slot) = tables.textures.get(reference) else { return tables.surfaces.get(reference).is_ok() };
    shown(record).is_none_or(|address| regions::is_device(address) || is_shown_still(&lock(&slot.data.0), address))
}

fn is_shown_still(kept: &Kept, address: u64) -> bool {
    let now = blocks::find(address).map(|block| block.id);
    now.is_some() && now == kept.host
}

/// The reference whose resource a record sets.
pub(crate) fn resource_set_by(record: &Record) -> Option<u64> {
    decoded(record).filter(|op| matches!(op.setting, Setting::Resource(_))).map(|op| op.reference)
}

/// The memory that such a record binds, if there is any.
fn shown(record: &Record) -> Option<u64> {
    let Setting::Resource(r) = decoded(record)?.setting else { return None };
    let (address, bytes) = r.memory()?;
    (bytes != 0).then_some(address)
}

fn decoded(record: &Record) -> Option<ReferenceSet> {
    (record.id == id::REFERENCE_SET).then(|| ReferenceSet::get(&mut &record.body[..]).ok())?
}

/// A live texture reference, which determines the device of the call.
fn texture(cx: &mut CallContext, texture: u64) -> Result<u64, Code> {
    cx.use_handle(Kind::TextureRef, Kind::TextureRef, texture)
}

/// A live surface reference, which determines the device of the call.
fn surface(cx: &mut CallContext, surface: u64) -> Result<u64, Code> {
    cx.use_handle(Kind::SurfaceRef, Kind::SurfaceRef, surface)
}

/// The settings of a reference, without an array that was destroyed.
fn is_set(cx: &CallContext, reference: u64) -> Result<Reference, Code> {
    let mut is = lock(&reference_data(cx, reference)?.1.0).is;
    let gone = |kind, array| cx.job.tables.device(kind, array).is_err();
    if let Some(r) = is.resource
        && (r.kind == OF_ARRAY && gone(Kind::Array, r.array) || r.kind == OF_MIPMAP && gone(Kind::Mipmap, r.array))
    {
        is.resource = None;
    }
    Ok(is)
}

/// Changes a setting; returns the place's answer, if there is one.
fn set(cx: &mut CallContext, reference: u64, setting: Setting) -> Result<Vec<u8>, Code> {
    let device = cx.device()?;
    device.check()?;
    let mut uses: Few = [reference].into();
    let mut asks = false;
    if let Setting::Resource(r) = &setting {
        needs(cx, device, r)?.iter().for_each(|h| uses.push(*h));
        note_host(cx, r)?;
        asks = r.memory().is_some();
    }
    let mut kept = lock(&reference_data(cx, reference)?.1.0);
    let mut next = kept.is;
    next.set(&setting)?;
    let body = encode(&ReferenceSet { reference, setting });
    let mut ledger = lock(&device.ledger);
    let reply = if asks {
        cx.ask(device, id::REFERENCE_SET, &[&body])?
    } else if next == kept.is && kept.changes.contains_key(&setting.slot()) {
        return Ok(Vec::new());
    } else {
        device.record_error(cx.place(device).send(id::REFERENCE_SET, &[&body]))?;
        Vec::new()
    };
    let format = kept.is.format;
    kept.is = next;
    kept.journal(&mut ledger, setting, (&body, &reply), uses)?;
    if let Setting::Resource(r) = &setting {
        kept.host = r.memory().and_then(|(address, _)| blocks::find(address)).map(|block| block.id);
        // A format that came with the resource stays when another one is bound, and so needs a record of its own.
        if kept.is.format != format && is_plain(kept.is.format) {
            let brought = Setting::Format(kept.is.format);
            let body = encode(&ReferenceSet { reference, setting: brought });
            kept.journal(&mut ledger, brought, (&body, &[]), [reference].into())?;
        }
    }
    Ok(reply)
}

/// Returns whether memory can have this format; arrays can have others, which the driver accepts for nothing else.
fn is_plain([format, _]: [u32; 2]) -> bool {
    const FLOAT: u32 = 0x20;
    format <= FLOAT
}

/// Sets the device of the call to that of the reference, after one of its array.
fn set_texture(cx: &mut CallContext, reference: u64, setting: Setting) -> Result<(), Code> {
    let reference = texture(cx, reference)?;
    set(cx, reference, setting).map(drop)
}

/// Destroys the references of a context that belong to no module, or all of a device.
pub(crate) fn end_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    let all = cx.job.tables.textures.all(device.index).into_iter();
    let all: Vec<u64> = all.filter(|(_, r)| r.ends_with(whose)).map(|(h, _)| h).collect();
    for hTexRef in all {
        // A module's references are destroyed with it.
        if lock(&device.ledger).is_child(hTexRef) {
            continue;
        }
        cx.on(device);
        cx.carry::<cuTexRefDestroy::Fn>(&mut cuTexRefDestroy::Sent { hTexRef })?;
    }
    Ok(())
}

fn of_array(cx: &mut CallContext, array: u64, needed: u32) -> Result<Resource, Code> {
    let shape = use_array(cx, array)?.shape;
    if shape.flags & needed != needed {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (format, channels) = (shape.format, shape.channels);
    Ok(Resource { kind: OF_ARRAY, array, format, channels, ..Resource::default() })
}

pub(crate) fn cuTexRefSetArray(cx: &mut CallContext, reference: u64, array: u64, flags: c_uint) -> Result<(), Code> {
    if flags & !OVERRIDE_FORMAT != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let resource = Resource { flags, ..of_array(cx, array, 0)? };
    set_texture(cx, reference, Setting::Resource(resource))
}

pub(crate) fn cuTexRefSetMipmappedArray(cx: &mut CallContext, reference: u64, array: u64, flags: c_uint) -> Result<(), Code> {
    if flags & !OVERRIDE_FORMAT != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let shape = crate::job::array_lookup::first_level(cx.job, array)?;
    let (format, channels) = (shape.format, shape.channels);
    let resource = Resource { kind: OF_MIPMAP, array, format, channels, flags, ..Resource::default() };
    set_texture(cx, reference, Setting::Resource(resource))
}

pub(crate) fn cuTexRefSetAddress_v2(
    cx: &mut CallContext,
    offset: OutPtr<usize>,
    reference: sys::CUtexref,
    address: sys::CUdeviceptr,
    bytes: usize,
) -> Result<(), Code> {
    let reference = texture(cx, reference as u64)?;
    let [format, channels] = is_set(cx, reference)?.format;
    let plain = Resource { kind: OF_MEMORY, address, format, channels, width: bytes as u64, ..Resource::default() };
    // If the program does not request the offset, it must be zero.
    if offset.is_null() && !address.is_multiple_of(ALIGNED) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let answer = set(cx, reference, Setting::Resource(plain))?;
    let before = u64::get(&mut &answer[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    offset.write_if_wanted(before as usize);
    Ok(())
}

pub(crate) fn cuTexRefSetAddress2D_v3(
    cx: &mut CallContext,
    reference: u64,
    s: Shape,
    address: u64,
    pitch: usize,
) -> Result<(), Code> {
    let (width, height, format, channels, pitch) = (s.width, s.height, s.format, s.channels, pitch as u64);
    let resource = Resource { kind: OF_ROWS, address, format, channels, width, height, pitch, ..Resource::default() };
    set_texture(cx, reference, Setting::Resource(resource))
}

pub(crate) fn cuTexRefSetFormat(cx: &mut CallContext, reference: u64, format: u32, channels: c_int) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Format([format, channels as u32]))
}

pub(crate) fn cuTexRefSetAddressMode(cx: &mut CallContext, reference: u64, dimension: c_int, mode: u32) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Outside([dimension as u32, mode]))
}

pub(crate) fn cuTexRefSetFilterMode(cx: &mut CallContext, reference: u64, mode: u32) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Filter(mode))
}

pub(crate) fn cuTexRefSetMipmapFilterMode(cx: &mut CallContext, reference: u64, mode: u32) -> Result<(), Code> {
    set_texture(cx, reference, Setting::LevelFilter(mode))
}

pub(crate) fn cuTexRefSetMipmapLevelBias(cx: &mut CallContext, reference: u64, bias: f32) -> Result<(), Code> {
    set_texture(cx, reference, Setting::LevelBias(bias.to_bits()))
}

pub(crate) fn cuTexRefSetMipmapLevelClamp(cx: &mut CallContext, reference: u64, low: f32, high: f32) -> Result<(), Code> {
    set_texture(cx, reference, Setting::LevelClamp([low.to_bits(), high.to_bits()]))
}

pub(crate) fn cuTexRefSetMaxAnisotropy(cx: &mut CallContext, reference: u64, most: c_uint) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Anisotropy(most))
}

pub(crate) fn cuTexRefSetBorderColor(cx: &mut CallContext, reference: u64, colour: [f32; 4]) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Border(colour.map(f32::to_bits)))
}

pub(crate) fn cuTexRefSetFlags(cx: &mut CallContext, reference: u64, flags: c_uint) -> Result<(), Code> {
    set_texture(cx, reference, Setting::Flags(flags))
}

pub(crate) fn cuTexRefGetAddress_v2(cx: &mut CallContext, reference: u64) -> Result<sys::CUdeviceptr, Code> {
    is_set(cx, reference)?.address()
}

pub(crate) fn cuTexRefGetArray(cx: &mut CallContext, reference: u64) -> Result<u64, Code> {
    is_set(cx, reference)?.array(OF_ARRAY)
}

pub(crate) fn cuTexRefGetMipmappedArray(cx: &mut CallContext, reference: u64) -> Result<u64, Code> {
    is_set(cx, reference)?.array(OF_MIPMAP)
}

pub(crate) fn cuTexRefGetAddressMode(cx: &mut CallContext, reference: u64, dimension: c_int) -> Result<u32, Code> {
    is_set(cx, reference)?.outside(dimension)
}

pub(crate) fn cuTexRefGetFilterMode(cx: &mut CallContext, reference: u64) -> Result<u32, Code> {
    Ok(is_set(cx, reference)?.sampling.filter)
}

pub(crate) fn cuTexRefGetFormat(cx: &mut CallContext, reference: u64) -> Result<(u32, c_int), Code> {
    let [format, channels] = is_set(cx, reference)?.format;
    Ok((format, channels as c_int))
}

pub(crate) fn cuTexRefGetMipmapFilterMode(cx: &mut CallContext, reference: u64) -> Result<u32, Code> {
    Ok(is_set(cx, reference)?.sampling.mip_filter)
}

pub(crate) fn cuTexRefGetMipmapLevelBias(cx: &mut CallContext, reference: u64) -> Result<f32, Code> {
    Ok(f32::from_bits(is_set(cx, reference)?.sampling.mip_bias))
}

pub(crate) fn cuTexRefGetMipmapLevelClamp(cx: &mut CallContext, reference: u64) -> Result<(f32, f32), Code> {
    let [low, high] = is_set(cx, reference)?.sampling.mip_clamp.map(f32::from_bits);
    Ok((low, high))
}

pub(crate) fn cuTexRefGetMaxAnisotropy(cx: &mut CallContext, reference: u64) -> Result<c_int, Code> {
    Ok(is_set(cx, reference)?.sampling.anisotropy as c_int)
}

pub(crate) fn cuTexRefGetBorderColor(cx: &mut CallContext, reference: u64) -> Result<[f32; 4], Code> {
    Ok(is_set(cx, reference)?.sampling.border.map(f32::from_bits))
}

pub(crate) fn cuTexRefGetFlags(cx: &mut CallContext, reference: u64) -> Result<c_uint, Code> {
    Ok(is_set(cx, reference)?.sampling.flags)
}

pub(crate) fn cuParamSetTexRef(cx: &mut CallContext, function: u64, unit: c_int, reference: u64) -> Result<(), Code> {
    cx.use_handle(Kind::Function, Kind::Function, function)?;
    let reference = texture(cx, reference)?;
    is_set(cx, reference)?.as_parameter(unit)
}

pub(crate) fn cuSurfRefSetArray(cx: &mut CallContext, reference: u64, array: u64, flags: c_uint) -> Result<(), Code> {
    if flags != 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let resource = of_array(cx, array, SURFACE)?;
    // The device of the call is that of the reference, not of the array.
    let reference = surface(cx, reference)?;
    set(cx, reference, Setting::Resource(resource)).map(drop)
}

pub(crate) fn cuSurfRefGetArray(cx: &mut CallContext, reference: u64) -> Result<u64, Code> {
    is_set(cx, reference)?.array(OF_ARRAY)
}
