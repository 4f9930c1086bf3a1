//! Wrappers: conversion between a program's pointers and a container without pointers.

use super::kind::{ImageError, Kind, MAX_IMAGE, Result};
use super::size;
use super::source::{Memory, Source, u32_at, u64_at};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// First word of the structure that compilers put into a program's data for each fat binary.
pub(super) const WRAPPER_MAGIC: u32 = 0x4662_43B1;
pub(super) const WRAPPER: usize = 24;

/// Magic number of the container of several fat binaries.
const CONTAINER_MAGIC: &[u8; 8] = b"MRFATV2\0";
/// Bytes before the container's table, and bytes of one row (offset, length) of it.
const CONTAINER_HEADER: usize = 16;
const CONTAINER_ROW: usize = 16;
/// Fat binaries require 8; more costs nothing.
const ALIGN: usize = 16;
/// Maximum number of inputs of a wrapper; a larger list is damaged.
const MAX_PARTS: usize = 1 << 16;

/// Copies what a wrapper points to; returns the kind and the bytes of the image.
///
/// # Safety
/// The pointers in the wrapper must be as the driver wants them: see [`super::measure`].
pub(super) unsafe fn unwrap(wrapper: &Memory) -> Result<(Kind, Arc<[u8]>)> {
    let mut head = [0; WRAPPER];
    wrapper.read(0, &mut head)?;
    let (data, aux) = (u64_at(&head, 8), u64_at(&head, 16));
    match u32_at(&head, 4) {
        1 => {
            // SAFETY: the caller vouches for the pointer.
            let (memory, len) = unsafe { fatbin_at(data) }?;
            Ok((Kind::Wrapped, memory.shared(len)?))
        }
        2 => {
            // A program may have linked inputs only.
            let linked = match data {
                0 => Vec::new(),
                // SAFETY: as above.
                _ => copy(unsafe { fatbin_at(data) }?)?,
            };
            let mut parts = vec![linked];
            if aux != 0 {
                // SAFETY: as above.
                let list = unsafe { Memory::new(pointer(aux).cast()) }?;
                let mut total = parts[0].len() as u64;
                for n in 0.. {
                    let mut word = [0; 8];
                    list.read(n * 8, &mut word)?;
                    if word == [0; 8] {
                        break;
                    }
                    // SAFETY: as above.
                    let part = copy(unsafe { fatbin_at(u64::from_le_bytes(word)) }?)?;
                    total += part.len() as u64;
                    if parts.len() == MAX_PARTS || total > MAX_IMAGE {
                        return Err(ImageError::TooLarge { size: total });
                    }
                    parts.push(part);
                }
            }
            Ok((Kind::Linked, contain(&parts).into()))
        }
        _ => Err(ImageError::Damaged { what: "version of a fat binary wrapper", at: 4 }),
    }
}

fn copy((memory, len): (Memory, u64)) -> Result<Vec<u8>> {
    memory.copy(len)
}

/// A fat binary in memory, and its length.
///
/// # Safety
/// As for [`unwrap`].
unsafe fn fatbin_at(address: u64) -> Result<(Memory, u64)> {
    // SAFETY: the caller vouches for the address.
    let memory = unsafe { Memory::new(pointer(address).cast()) }?;
    match size::of(&memory)? {
        (Kind::Fatbin, len) => Ok((memory, len)),
        _ => Err(ImageError::Damaged { what: "magic of a wrapped fat binary", at: 0 }),
    }
}

pub(super) fn pointer(address: u64) -> *const c_void {
    std::ptr::with_exposed_provenance(address as usize)
}

/// Creates a container of fat binaries; an empty one represents a null pointer.
pub(super) fn contain(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(CONTAINER_MAGIC);
    bytes.extend_from_slice(&(parts.len() as u64).to_le_bytes());
    let mut at = (CONTAINER_HEADER + parts.len() * CONTAINER_ROW).next_multiple_of(ALIGN);
    for part in parts {
        bytes.extend_from_slice(&(at as u64).to_le_bytes());
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        at += part.len().next_multiple_of(ALIGN);
    }
    for part in parts {
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The ranges of a container's fat binaries: the linked one (empty if there is none), then its inputs.
pub(super) fn parts(bytes: &[u8]) -> Result<Vec<Range<usize>>> {
    let damaged = |what, at: usize| ImageError::Damaged { what, at: at as u64 };
    if !bytes.starts_with(CONTAINER_MAGIC) {
        return Err(damaged("magic of a container", 0));
    }
    let count = usize::try_from(u64_at(bytes, 8)).unwrap_or(usize::MAX);
    if count == 0 || count > MAX_PARTS || bytes.len() < CONTAINER_HEADER + count * CONTAINER_ROW {
        return Err(damaged("number of parts of a container", 8));
    }
    let mut all = Vec::with_capacity(count);
    let mut end = CONTAINER_HEADER + count * CONTAINER_ROW;
    for n in 0..count {
        let row = CONTAINER_HEADER + n * CONTAINER_ROW;
        let part = usize::try_from(u64_at(bytes, row)).ok();
        let part = part.and_then(|at| Some(at..at.checked_add(usize::try_from(u64_at(bytes, row + 8)).ok()?)?));
        // Each part directly follows the previous one, so equal parts have one container and one hash.
        let Some(part) = part.filter(|p| p.start == end.next_multiple_of(ALIGN) && p.end <= bytes.len()) else {
            return Err(damaged("place of a part in a container", row));
        };
        let absent = n == 0 && part.is_empty();
        if !absent && size::of(&bytes[part.clone()]) != Ok((Kind::Fatbin, part.len() as u64)) {
            return Err(damaged("part of a container", part.start));
        }
        end = part.end;
        all.push(part);
    }
    if end != bytes.len() { Err(damaged("end of a container", end)) } else { Ok(all) }
}

#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
    aux: *const c_void,
}

enum Store {
    Shared(Arc<[u8]>),
    Own(Vec<u128>),
}

/// An image in the form that the driver accepts, with everything that the pointer refers to.
///
/// Must be kept until the load has returned; with `CU_LIBRARY_BINARY_IS_PRESERVED` until the library has been
/// unloaded.
pub struct LoadForm {
    ptr: *const c_void,
    /// The targets of `ptr` and of the pointers in it. They are vectors, because moving a vector does not move its
    /// contents.
    _keep: (Store, Vec<*const c_void>, Vec<Wrapper>),
}

// SAFETY: the pointers lead to memory that this object owns and never changes.
unsafe impl Send for LoadForm {}
// SAFETY: as above.
unsafe impl Sync for LoadForm {}

impl std::fmt::Debug for LoadForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadForm").field("ptr", &self.ptr).finish_non_exhaustive()
    }
}

impl LoadForm {
    pub(super) fn new(kind: Kind, bytes: &Arc<[u8]>, wrapped: bool) -> Result<LoadForm> {
        let store = align(bytes);
        let base: *const u8 = match &store {
            Store::Shared(bytes) => bytes.as_ptr(),
            Store::Own(words) => words.as_ptr().cast(),
        };
        let (mut list, mut wrapper) = (Vec::<*const c_void>::new(), Vec::new());
        match kind {
            Kind::Wrapped if wrapped => {
                wrapper.push(Wrapper { magic: WRAPPER_MAGIC, version: 1, data: base.cast(), aux: std::ptr::null() });
            }
            Kind::Linked => {
                for part in parts(bytes)? {
                    let at = base.wrapping_add(part.start).cast();
                    list.push(if part.is_empty() { std::ptr::null() } else { at });
                }
                list.push(std::ptr::null());
                // The first is the linked one, followed by the inputs and a terminating null.
                let aux = list[1..].as_ptr().cast();
                wrapper.push(Wrapper { magic: WRAPPER_MAGIC, version: 2, data: list[0], aux });
            }
            Kind::Wrapped | Kind::Fatbin | Kind::Cubin | Kind::Archive | Kind::Ptx => {}
        }
        let ptr = wrapper.first().map_or(base.cast(), |w| std::ptr::from_ref(w).cast());
        Ok(LoadForm { ptr, _keep: (store, list, wrapper) })
    }

    /// The pointer to give to the driver; valid while this object lives.
    pub fn as_ptr(&self) -> *const c_void {
        self.ptr
    }
}

/// Copies the bytes to aligned memory.
fn align(bytes: &Arc<[u8]>) -> Store {
    if bytes.as_ptr().addr().is_multiple_of(ALIGN) {
        return Store::Shared(Arc::clone(bytes));
    }
    let mut words = vec![0; bytes.len().div_ceil(ALIGN)];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(ALIGN)) {
        let mut raw = [0; ALIGN];
        raw[..chunk.len()].copy_from_slice(chunk);
        *word = u128::from_ne_bytes(raw);
    }
    Store::Own(words)
}
