//! Attributes of streams: checked and stored. They affect how work is executed, which makes no difference
//! here.

use super::{Res, abi};
use crate::gpu::lock;
use crate::gpu::stream::resolve;
use crate::gpu::stream_state::{Attribute, Stream};
use cuda_api::sys::{CUaccessPolicyWindow, CUresult, CUstream, CUstreamAttrID, CUstreamAttrValue};
use std::ffi::c_uint;

const BAD: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const WINDOW: c_uint = 1;
const SYNCHRONISATION: c_uint = 3;
const PRIORITY: c_uint = 8;
const DOMAINS: c_uint = 9;
const DOMAIN: c_uint = 10;
/// Attribute 126.
const MAX_DOMAINS: u8 = 4;
/// Attribute 109.
const LARGEST_WINDOW: u64 = 134_213_632;

/// Bytes of an attribute's value; other sizes are invalid.
fn width(id: c_uint) -> Res<usize> {
    match id {
        WINDOW => Ok(size_of::<CUaccessPolicyWindow>()),
        SYNCHRONISATION | PRIORITY | DOMAIN => Ok(4),
        DOMAINS => Ok(2),
        _ => Err(BAD),
    }
}

fn word(value: &Attribute, at: usize) -> u32 {
    u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
}

fn check(id: c_uint, value: &Attribute) -> Res {
    let fine = match id {
        WINDOW => {
            let bytes = u64::from(word(value, 8)) | u64::from(word(value, 12)) << 32;
            let ratio = f32::from_bits(word(value, 16));
            // What misses the window cannot stay (`CU_ACCESS_PROPERTY_PERSISTING`).
            bytes <= LARGEST_WINDOW && (0.0..=1.0).contains(&ratio) && word(value, 20) <= 2 && word(value, 24) <= 1
        }
        SYNCHRONISATION => (1..=4).contains(&word(value, 0)),
        DOMAINS => value[0] < MAX_DOMAINS && value[1] < MAX_DOMAINS,
        DOMAIN => word(value, 0) <= 1,
        _ => true,
    };
    if fine { Ok(()) } else { Err(BAD) }
}

fn value_of(stream: &Stream, id: c_uint) -> Attribute {
    if let Some((_, value)) = lock(&stream.attributes).iter().find(|(known, _)| *known == id) {
        return *value;
    }
    let mut value = [0; _];
    match id {
        PRIORITY => value[..4].copy_from_slice(&stream.priority().to_le_bytes()),
        SYNCHRONISATION => value[0] = 1,
        DOMAINS => value[1] = 1,
        _ => {}
    }
    value
}

/// The attributes that a captured kernel gets from its stream.
pub(super) fn of_kernels(stream: &Stream) -> Vec<(u32, Attribute)> {
    let mut all = lock(&stream.attributes).clone();
    let priority = value_of(stream, PRIORITY);
    if priority != [0; _] && !all.iter().any(|(id, _)| *id == PRIORITY) {
        all.push((PRIORITY, priority));
    }
    all
}

fn keep(stream: &Stream, id: c_uint, value: Attribute) {
    let mut all = lock(&stream.attributes);
    all.retain(|(known, _)| *known != id);
    all.push((id, value));
}

abi! {
    stream fn cuStreamSetAttribute / cuStreamSetAttribute_ptsz(
        stream: CUstream, id: c_uint as CUstreamAttrID, from: *const CUstreamAttrValue,
    ) |default| {
        let target = resolve(stream, default)?;
        let bytes = width(id)?;
        let mut value = [0; _];
        super::edge::get_bytes(from.cast(), &mut value[..bytes])?;
        check(id, &value)?;
        keep(&target.stream, id, value);
        Ok(())
    }

    stream fn cuStreamGetAttribute / cuStreamGetAttribute_ptsz(
        stream: CUstream, id: c_uint as CUstreamAttrID, to: *mut CUstreamAttrValue,
    ) |default| {
        let target = resolve(stream, default)?;
        let bytes = width(id)?;
        super::edge::put_bytes(to.cast(), &value_of(&target.stream, id)[..bytes])
    }

    stream fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz(to: CUstream, from: CUstream) |default| {
        let (to, from) = (resolve(to, default)?, resolve(from, default)?);
        if to.live.number != from.live.number {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        for id in [WINDOW, SYNCHRONISATION, PRIORITY, DOMAINS, DOMAIN] {
            let value = value_of(&from.stream, id);
            keep(&to.stream, id, value);
        }
        Ok(())
    }
}
