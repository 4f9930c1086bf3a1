//! Attributes of streams: the place's driver checks and applies them, this process stores the values set, and the journal keeps the last
//! value of each.
//!
//! They affect how work is carried out, not its results: which part of memory should stay in the cache, how the host waits, priorities,
//! what a memory barrier waits for. Kernels that a capture records get those of their stream.

use crate::base::encoding::encode;
use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::Device;
use crate::ledger::Keep;
use cuda_api::arg::{Capture, Edges, LEGACY};
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::ops::{STREAM_ATTRIBUTE_BYTES, StreamAttribute, id};
use cuda_api::pointer::{InPtr, OutPtr};
use cuda_api::sys::{self, CUlaunchAttributeID_enum as Id};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

type Value = [u8; STREAM_ATTRIBUTE_BYTES];
const _: () = assert!(STREAM_ATTRIBUTE_BYTES == size_of::<sys::CUstreamAttrValue>());

const PRIORITY: u32 = Id::CU_LAUNCH_ATTRIBUTE_PRIORITY as u32;
/// The attributes of streams (CUDA driver API reference, `CUstreamAttrID`), each with the size of its value.
const KNOWN: [(u32, usize); 5] = [
    (Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW as u32, size_of::<sys::CUaccessPolicyWindow>()),
    (Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as u32, 4),
    (PRIORITY, 4),
    (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP as u32, 2),
    (Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN as u32, 4),
];

/// An attribute that the program has set.
#[derive(Debug, Clone, Copy)]
struct Setting {
    attribute: u32,
    value: Value,
}

/// By device and stream.
static KEPT: Mutex<Option<HashMap<(u32, u64), Vec<Setting>>>> = Mutex::new(None);

/// Removes all values of a device whose context is destroyed.
pub(crate) fn forget(device: &Device) {
    if let Some(kept) = lock(&KEPT).as_mut() {
        kept.retain(|(index, _), _| *index != device.index);
    }
}

/// Size of an attribute's value.
fn width(attribute: u32) -> Result<usize, Code> {
    KNOWN.iter().find(|(known, _)| *known == attribute).map(|(_, bytes)| *bytes).ok_or(code::ERROR_INVALID_VALUE)
}

/// The value of an attribute that the program has not set.
fn initial(cx: &CallContext, stream: u64, attribute: u32) -> Result<Value, Code> {
    let mut value = [0; STREAM_ATTRIBUTE_BYTES];
    if attribute == PRIORITY {
        let priority =
            if stream == LEGACY { 0 } else { cx.job.tables.streams.get(stream)?.data.priority.load(Ordering::Relaxed) };
        value[..4].copy_from_slice(&priority.to_le_bytes());
    } else if attribute == Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as u32 {
        // `CU_SYNC_POLICY_AUTO`
        value[0] = 1;
    } else if attribute == Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP as u32 {
        // Of the default and of the remote domain.
        value[1] = 1;
    }
    Ok(value)
}

fn known(device: &Device, stream: u64, attribute: u32) -> Option<Value> {
    let kept = lock(&KEPT);
    let settings = kept.as_ref()?.get(&(device.index, stream))?;
    settings.iter().find(|s| s.attribute == attribute).map(|s| s.value)
}

/// The attributes that a kernel captured in a stream gets from it.
pub(crate) fn of_kernels(cx: &CallContext, device: &Device, stream: u64) -> Result<Vec<(u32, Value)>, Code> {
    let mut all: Vec<_> = KNOWN.iter().filter_map(|(id, _)| Some((*id, known(device, stream, *id)?))).collect();
    let priority = initial(cx, stream, PRIORITY)?;
    if priority != [0; STREAM_ATTRIBUTE_BYTES] && !all.iter().any(|(id, _)| *id == PRIORITY) {
        all.push((PRIORITY, priority));
    }
    Ok(all)
}

fn set(cx: &CallContext, device: &'static Device, stream: u64, attribute: u32, value: Value) -> Result<(), Code> {
    device.check()?;
    if known(device, stream, attribute) == Some(value) {
        return Ok(());
    }
    let mut kept = lock(&KEPT);
    let kept = kept.get_or_insert_default();
    kept.retain(|(_, stream), _| *stream == LEGACY || cx.job.tables.streams.get(*stream).is_ok());
    let uses = if stream == LEGACY { Few::default() } else { [stream].into() };
    let keep = Keep::setting(stream, id::STREAM_ATTRIBUTE, attribute);
    let body = encode(&StreamAttribute { stream, attribute, value });
    cx.build(device, id::STREAM_ATTRIBUTE, &body, &Edges { uses, ..Edges::default() }, keep)?;
    let settings = kept.entry((device.index, stream)).or_default();
    match settings.iter_mut().find(|s| s.attribute == attribute) {
        None => settings.push(Setting { attribute, value }),
        Some(s) => s.value = value,
    }
    if attribute == PRIORITY
        && let Ok(s) = cx.job.tables.streams.get(stream)
    {
        s.data.priority.store(u32::from_le_bytes([value[0], value[1], value[2], value[3]]), Ordering::Relaxed);
    }
    Ok(())
}

pub(crate) fn cuStreamSetAttribute(
    cx: &mut CallContext,
    stream: sys::CUstream,
    attribute: u32,
    value: InPtr<sys::CUstreamAttrValue>,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    let bytes = width(attribute)?;
    let mut own = [0; STREAM_ATTRIBUTE_BYTES];
    own[..bytes].copy_from_slice(value.cast::<u8>().bytes(bytes)?);
    set(cx, device, stream, attribute, own)
}

pub(crate) fn cuStreamGetAttribute(
    cx: &mut CallContext,
    stream: sys::CUstream,
    attribute: u32,
    to: OutPtr<sys::CUstreamAttrValue>,
) -> Result<(), Code> {
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    let bytes = width(attribute)?;
    let to = to.not_null()?;
    let value = match known(device, stream, attribute) {
        Some(value) => value,
        None => initial(cx, stream, attribute)?,
    };
    to.cast::<u8>().write_list(&value[..bytes])
}

pub(crate) fn cuStreamCopyAttributes(cx: &mut CallContext, to: u64, from: u64) -> Result<(), Code> {
    let from = cx.use_stream(from)?;
    let device = cx.device()?;
    let to = cx.use_stream(to)?;
    if cx.device()?.index != device.index {
        return Err(code::ERROR_INVALID_CONTEXT);
    }
    for (attribute, _) in KNOWN {
        let (theirs, own) = (known(device, from, attribute), known(device, to, attribute));
        if theirs.is_none() && own.is_none() && attribute != PRIORITY {
            continue;
        }
        let wanted = theirs.map_or_else(|| initial(cx, from, attribute), Ok)?;
        if own.map_or_else(|| initial(cx, to, attribute), Ok)? != wanted {
            set(cx, device, to, attribute, wanted)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
