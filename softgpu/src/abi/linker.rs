//! Run-time linking of PTX: the inputs are concatenated.

use super::edge::In;
use super::{Out, Res, Text, abi};
use crate::gpu::{code, context, lock, module};
use crate::ptx::unlinkable;
use cuda_api::sys::{CUjit_option, CUjitInputType, CUlinkState, CUresult};
use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Mutex;

const PTX: c_uint = 1;
/// Kinds of inputs that CUDA defines.
const KINDS: c_uint = 6;
/// Maximum number of options: a larger count than there are kinds is damaged.
const MAX_OPTIONS: c_uint = 64;
const FIRST: usize = 0x6c69_0000;

/// Links by handle.
static LINKS: Mutex<Option<HashMap<usize, Link>>> = Mutex::new(None);

#[derive(Default)]
struct Link {
    text: String,
    image: Vec<u8>,
}

fn with<T>(state: CUlinkState, body: impl FnOnce(&mut Link) -> Res<T>) -> Res<T> {
    body(lock(&LINKS).get_or_insert_default().get_mut(&(state as usize)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?)
}

fn add(state: CUlinkState, kind: c_uint, bytes: &[u8]) -> Res {
    if kind >= KINDS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if kind != PTX {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
    module::parse(text).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)?;
    with(state, |link| {
        link.text.push_str(text);
        link.text.push('\n');
        Ok(())
    })
}

abi! {
    call fn cuLinkCreate_v2 / cuLinkCreate(
        count: c_uint, options: In<c_uint> as *mut CUjit_option, values: In<*mut c_void> as *mut *mut c_void,
        out: Out<CUlinkState> as *mut CUlinkState,
    ) {
        context::current()?;
        if count > MAX_OPTIONS || count > 0 && (options.is_null() || values.is_null()) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        out.check()?;
        let mut links = lock(&LINKS);
        let links = links.get_or_insert_default();
        let handle = (FIRST..).step_by(16).find(|h| !links.contains_key(h)).unwrap_or(FIRST);
        links.insert(handle, Link::default());
        out.set(handle as CUlinkState)
    }

    call fn cuLinkAddData_v2 / cuLinkAddData(
        state: CUlinkState, kind: c_uint as CUjitInputType, data: In<u8> as *mut c_void, size: usize, _name: Text as *const c_char,
        _count: c_uint, _options: In<c_uint> as *mut CUjit_option, _values: In<*mut c_void> as *mut *mut c_void,
    ) {
        with(state, |_| Ok(()))?;
        if data.is_null() || size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        add(state, kind, &(0..size).map(|i| data.at(i)).collect::<Res<Vec<u8>>>()?)
    }

    call fn cuLinkAddFile_v2 / cuLinkAddFile(
        state: CUlinkState, kind: c_uint as CUjitInputType, path: Text as *const c_char,
        _count: c_uint, _options: In<c_uint> as *mut CUjit_option, _values: In<*mut c_void> as *mut *mut c_void,
    ) {
        with(state, |_| Ok(()))?;
        add(state, kind, &std::fs::read(path.get()?).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?)
    }

    call fn cuLinkComplete(state: CUlinkState, image: Out<*mut c_void> as *mut *mut c_void, size: Out<usize> as *mut usize) {
        image.check()?;
        with(state, |link| {
            if let Some(why) = unlinkable(&link.text).map_err(|_| CUresult::CUDA_ERROR_INVALID_PTX)? {
                code::complain(&why);
                // Measured: the real driver has no better word for it.
                return Err(CUresult::CUDA_ERROR_UNKNOWN);
            }
            link.image = link.text.bytes().chain([0]).collect();
            size.set_if_wanted(link.image.len());
            image.set(link.image.as_mut_ptr().cast())
        })
    }

    call fn cuLinkDestroy(state: CUlinkState) {
        lock(&LINKS).get_or_insert_default().remove(&(state as usize)).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }
}
