//! Linking at run time. The job keeps the parts of a link and has a place link all of them each time that one is added (an invalid part
//! is then refused, as natively) and when the link is completed. So no place has state of a link, and a job can move in between.

use crate::base::log::lock;
use crate::calls::jit_options::JitOptions;
use crate::enter::CallContext;
use crate::order::concerned::WaitingCall;
use cuda_api::code::{self, Code};
use cuda_api::ops::{self, Link, LinkInput, Linked};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of parts: cubin, PTX, fat binary, object, library, NVVM.
const KINDS: u32 = 6;
const PTX: u32 = 1;

static LINKS: Mutex<Option<HashMap<u64, State>>> = Mutex::new(None);
/// Links have handles that look like unused addresses.
static NEXT: AtomicU64 = AtomicU64::new(0x6c69_0000_0000);

/// A link.
struct State {
    device: u32,
    options: JitOptions<'static>,
    inputs: Vec<LinkInput>,
    /// The result, which the program reads until it destroys the link.
    image: Option<Box<[u8]>>,
}

/// Runs `body` on a link.
fn with<T>(state: sys::CUlinkState, body: impl FnOnce(&mut State) -> Result<T, Code>) -> Result<T, Code> {
    body(lock(&LINKS).get_or_insert_default().get_mut(&(state as u64)).ok_or(code::ERROR_INVALID_HANDLE)?)
}

pub(crate) fn cuLinkCreate_v2(
    cx: &mut CallContext,
    count: c_uint,
    keys: InPtr<sys::CUjit_option>,
    values: InOutPtr<'static, *mut c_void>,
    to: OutPtr<sys::CUlinkState>,
) -> Result<(), Code> {
    let device = cx.device()?;
    device.check()?;
    let options = JitOptions::read(count, keys, values)?;
    let handle = NEXT.fetch_add(64, Ordering::Relaxed);
    to.write(handle as sys::CUlinkState)?;
    let state = State { device: device.index, options, inputs: Vec::new(), image: None };
    lock(&LINKS).get_or_insert_default().insert(handle, state);
    Ok(())
}

/// Has the place of a link's device link its parts, followed by `more`.
fn link(cx: &CallContext, state: sys::CUlinkState, more: Option<LinkInput>, complete: bool) -> Result<Vec<u8>, Code> {
    let (device, op) = with(state, |s| {
        let inputs = s.inputs.iter().cloned().chain(more.clone()).collect();
        Ok((s.device, Link { options: s.options.plain.clone(), inputs, complete }))
    })?;
    let device = cx.job.devices.get(device as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
    let mut body = Vec::new();
    op.put(&mut body);
    let waits = WaitingCall::begin(device);
    let answer = cx.ask(device, ops::id::LINK, &[&body])?;
    drop(waits);
    let linked = Linked::get(&mut &answer[..]).map_err(|_| code::ERROR_UNKNOWN)?;
    with(state, |s| {
        s.options.write(&linked.info, &linked.errors);
        if linked.code != code::SUCCESS {
            return Err(linked.code);
        }
        s.inputs.extend(more);
        Ok(linked.image)
    })
}

fn add(
    cx: &mut CallContext,
    state: sys::CUlinkState,
    kind: u32,
    data: Vec<u8>,
    name: InPtr<c_char>,
    count: c_uint,
    keys: InPtr<sys::CUjit_option>,
    values: InOutPtr<*mut c_void>,
) -> Result<(), Code> {
    if kind >= KINDS {
        return Err(code::ERROR_INVALID_VALUE);
    }
    with(state, |s| if s.image.is_some() { Err(code::ERROR_INVALID_VALUE) } else { Ok(()) })?;
    let options = JitOptions::read(count, keys, values)?.plain;
    // Null means no name.
    let name = name.c_str().map_or(Vec::new(), |name| name.to_bytes().to_vec());
    link(cx, state, Some(LinkInput { kind, name, options, data }), false).map(drop)
}

pub(crate) fn cuLinkAddData_v2(
    cx: &mut CallContext,
    state: sys::CUlinkState,
    kind: u32,
    data: InPtr<c_void>,
    size: usize,
    name: InPtr<c_char>,
    count: c_uint,
    keys: InPtr<sys::CUjit_option>,
    values: InOutPtr<*mut c_void>,
) -> Result<(), Code> {
    with(state, |_| Ok(()))?;
    if size == 0 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let data = data.typed::<u8>().bytes(size)?.to_vec();
    add(cx, state, kind, data, name, count, keys, values)
}

pub(crate) fn cuLinkAddFile_v2(
    cx: &mut CallContext,
    state: sys::CUlinkState,
    kind: u32,
    path: InPtr<c_char>,
    count: c_uint,
    keys: InPtr<sys::CUjit_option>,
    values: InOutPtr<*mut c_void>,
) -> Result<(), Code> {
    with(state, |_| Ok(()))?;
    let mut data = std::fs::read(path.text()?).map_err(|_| code::ERROR_FILE_NOT_FOUND)?;
    if kind == PTX {
        // Text in a file has no terminating zero.
        data.push(0);
    }
    add(cx, state, kind, data, path, count, keys, values)
}

pub(crate) fn cuLinkComplete(
    cx: &mut CallContext,
    state: sys::CUlinkState,
    image: OutPtr<*mut c_void>,
    size: OutPtr<usize>,
) -> Result<(), Code> {
    let image = image.not_null()?;
    if with(state, |s| Ok(s.image.is_none()))? {
        let linked = link(cx, state, None, true)?;
        with(state, |s| {
            s.image = Some(linked.into_boxed_slice());
            Ok(())
        })?;
    }
    with(state, |s| {
        let bytes = s.image.as_mut().ok_or(code::ERROR_UNKNOWN)?;
        size.write_if_wanted(bytes.len());
        image.write(bytes.as_mut_ptr().cast())
    })
}

pub(crate) fn cuLinkDestroy(_cx: &mut CallContext, state: u64) -> Result<(), Code> {
    lock(&LINKS).get_or_insert_default().remove(&state).map(drop).ok_or(code::ERROR_INVALID_HANDLE)
}

pub(crate) use {cuLinkAddData_v2 as cuLinkAddData, cuLinkAddFile_v2 as cuLinkAddFile, cuLinkCreate_v2 as cuLinkCreate};
