//! Extracts the PTX from what programs load.

use super::output;
use crate::config;
use crate::result::Res;
use cuda_api::sys::CUresult;
use cuda_image::{Entry, EntryKind, Image, ImageError, Kind};
use std::ffi::c_void;

/// As [`from_pointer`], for a module: a driver rejects wrappers there.
pub(crate) fn for_module(pointer: *const c_void) -> Res<String> {
    let image = measured(pointer)?;
    if image.is_wrapped() {
        complain("modules are not loaded from wrappers of fat binaries");
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    choose(&image)
}

/// PTX text of the image at `pointer`, of any kind.
pub(crate) fn from_pointer(pointer: *const c_void) -> Res<String> {
    choose(&measured(pointer)?)
}

fn measured(pointer: *const c_void) -> Res<Image> {
    // SAFETY: the caller of the driver says that an image is there; what it claims is checked while it is read.
    unsafe { cuda_image::measure(pointer.cast()) }.map_err(|e| refuse(&e))
}

/// PTX text of the image in a file.
pub(crate) fn from_file(name: &str) -> Res<String> {
    if name.is_empty() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut bytes = std::fs::read(name).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    // Text in a file has no terminating zero.
    bytes.push(0);
    from_pointer(bytes.as_ptr().cast())
}

fn refuse(error: &ImageError) -> CUresult {
    match error {
        ImageError::Null => CUresult::CUDA_ERROR_INVALID_VALUE,
        _ => {
            complain(&error.to_string());
            CUresult::CUDA_ERROR_INVALID_IMAGE
        }
    }
}

fn choose(image: &Image) -> Res<String> {
    let entries = image.entries().map_err(|e| refuse(&e))?;
    let best = newest(&entries, config::get().sm()).ok_or(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)?;
    let parts = entries.iter().filter(|e| e.kind == EntryKind::Ptx && (e.sm, e.arch_specific) == (best.sm, best.arch_specific));
    if image.kind == Kind::Linked && parts.count() > 1 {
        complain("relocatable code of several files has to be linked for the device beforehand");
        return Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    String::from_utf8(best.bytes.to_vec()).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)
}

/// The PTX for the newest architecture that the device has.
fn newest<'a>(entries: &'a [Entry<'a>], sm: u32) -> Option<&'a Entry<'a>> {
    let fits = |e: &&Entry<'_>| e.kind == EntryKind::Ptx && if e.arch_specific { e.sm == sm } else { e.sm <= sm };
    // Of equals the last one wins: the arch-specific form of the device's own architecture comes behind the general one.
    entries.iter().filter(fits).max_by_key(|e| (e.sm, e.arch_specific))
}

/// Reports on stderr why code was refused: a program often reports only a number.
pub(crate) fn complain(message: &str) {
    output::complain(&format!("softgpu: code refused: {message}\n"));
}
