//! Pointer attributes.

use super::edge::put_bytes;
use super::{In, Res, abi};
use crate::gpu::memory::{self, Alloc, Kind};
use crate::gpu::synchronous;
use cuda_api::sys::{CUdeviceptr, CUpointer_attribute, CUresult};
use std::ffi::{c_uint, c_void};

abi! {
    call fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint as CUpointer_attribute, address: CUdeviceptr) {
        let memory = memory::read();
        let (base, alloc) = memory.find(address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        put_bytes(data, &value(attribute, address, base, alloc)?)
    }

    call fn cuPointerGetAttributes(
        count: c_uint, attributes: In<c_uint> as *mut CUpointer_attribute, data: In<*mut c_void> as *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        if count == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let memory = memory::read();
        let found = memory.find(address);
        for index in 0..count as usize {
            let attribute = attributes.at(index)?;
            let bytes = match found {
                // What does not apply to this memory is zero here, while the single query fails.
                Some((base, alloc)) => value(attribute, address, base, alloc).or_else(|_| absent(attribute, 0))?,
                None => absent(attribute, address)?,
            };
            if !bytes.is_empty() {
                put_bytes(data.at(index)?, &bytes)?;
            }
        }
        Ok(())
    }

    call fn cuPointerSetAttribute(
        value: In<c_uint> as *const c_void, attribute: c_uint as CUpointer_attribute, address: CUdeviceptr,
    ) {
        const SYNC_MEMOPS: c_uint = 6;
        let on = value.get()?;
        let memory = memory::read();
        let (_, alloc) = memory.find(address).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if attribute != SYNC_MEMOPS || on > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if matches!(alloc.kind, Kind::Mapped(_)) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        synchronous::set_waits(alloc, on == 1);
        Ok(())
    }
}

/// The value of an attribute, in its width: 4 or 8 bytes, for booleans too (measured on an H200 machine).
fn value(attribute: c_uint, address: u64, base: u64, alloc: &Alloc) -> Res<Vec<u8>> {
    let word = |n: u32| n.to_le_bytes().to_vec();
    let long = |n: u64| n.to_le_bytes().to_vec();
    let plain = matches!(alloc.kind, Kind::Device);
    let managed = alloc.is_managed();
    Ok(match attribute {
        // Memory of pools belongs to no context, nor do managed variables.
        1 => long(if matches!(alloc.kind, Kind::Pooled(_) | Kind::ManagedVariable) { 0 } else { alloc.context as u64 }),
        2 => word(if alloc.is_host() && !managed { 1 } else { 2 }),
        3 => long(address),
        4 if alloc.is_host() => long(address),
        // Calls about managed memory always wait (measured).
        6 => word(u32::from(managed || synchronous::waits(alloc))),
        // Memory of `cuMemAlloc` has legacy handles.
        10 => word(u32::from(plain)),
        7 | 20 => long(alloc.buffer),
        8 => word(u32::from(managed)),
        // Known to network cards, decompressed by hardware.
        15 | 21 => word(0),
        9 => word(alloc.device as u32),
        11 | 19 => long(base),
        12 | 18 => long(alloc.size),
        13 => word(1),
        14 => long(if let Kind::Mapped(mapping) = &alloc.kind { mapping.physical.handle_types.into() } else { 0 }),
        16 => match &alloc.kind {
            Kind::Mapped(mapping) if mapping.access.is_empty() => word(0),
            _ => word(3),
        },
        17 => long(if let Kind::Pooled(pool) = alloc.kind { pool as u64 } else { 0 }),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

/// What `cuPointerGetAttributes` stores for a pointer that is unknown to the driver; empty for outputs that it does not
/// change.
fn absent(attribute: c_uint, address: u64) -> Res<Vec<u8>> {
    Ok(match attribute {
        1 | 3 | 7 | 14 | 17..=20 => vec![0; 8],
        4 => address.to_le_bytes().to_vec(),
        2 | 6 | 8 | 10 | 13 | 15 | 16 | 21 => vec![0; 4],
        // No device: -2, as the real driver says.
        9 => (-2i32).to_le_bytes().to_vec(),
        11 | 12 => Vec::new(),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}
