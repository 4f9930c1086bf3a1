//! Physical memory as memory files, and its handles.
//!
//! The name of the memory file contains machine and device, so that imported descriptors can be validated. Importing a file
//! that this process already has returns the same memory, counted once.

use super::device::{self, Device};
use super::lock;
use super::os::{self, Protection};
use crate::config;
use crate::result::Res;
use cuda_api::sys::CUresult;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

/// Unit of physical memory, mappings and reservations.
pub(crate) const GRANULARITY: u64 = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX: u32 = 1;

/// A reservation; its address is the key of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub size: u64,
}

/// Physical memory in a reservation.
pub(crate) struct Mapping {
    pub physical: Arc<Physical>,
    /// Ordinals of the devices that may use it.
    pub access: Vec<usize>,
}

/// Physical memory. It exists as long as a handle or a mapping does.
pub(crate) struct Physical {
    pub size: u64,
    pub device: Arc<Device>,
    /// Handle types that it may be exported as.
    pub handle_types: u32,
    /// It can only be mapped to tiles of arrays.
    pub is_for_tiles: bool,
    /// Where the driver sees it, if it has ever been asked.
    view: OnceLock<u64>,
    /// Created here: memory of another process is counted there.
    own: bool,
    pub fd: OwnedFd,
}

impl std::fmt::Debug for Physical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.size)
    }
}

impl Physical {
    /// Its address for the driver alone.
    pub fn view(&self) -> Res<u64> {
        if let Some(at) = self.view.get() {
            return Ok(*at);
        }
        let at = os::anywhere(self.size)?;
        let seen = os::map_file(at, self.size, &self.fd).and_then(|()| os::protect(at, self.size, Protection::ReadWrite));
        if seen.is_err() || self.view.set(at).is_err() {
            // Or another thread has been faster.
            os::unmap(at, self.size);
        }
        seen.and(self.view.get().copied().ok_or(CUresult::CUDA_ERROR_UNKNOWN))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(at) = self.view.get() {
            os::unmap(*at, self.size);
        }
        if self.own {
            self.device.release(self.size);
        }
    }
}

/// Handles of physical memory, each with its reference count.
struct Handles {
    next: u64,
    live: HashMap<u64, (Arc<Physical>, u32)>,
    /// By device and inode of the memory file.
    known: HashMap<(u64, u64), Weak<Physical>>,
}

static HANDLES: LazyLock<Mutex<Handles>> =
    LazyLock::new(|| Mutex::new(Handles { next: 0x5310_0000_0000, live: HashMap::new(), known: HashMap::new() }));

impl Handles {
    fn add(&mut self, physical: Arc<Physical>) -> u64 {
        self.next += 0x40;
        self.live.insert(self.next, (physical, 1));
        self.next
    }
}

fn file_name(device: &Device) -> String {
    format!("softgpu:{}:{}", config::get().seed_id, device.physical)
}

/// Whether a size is one of physical memory.
pub(crate) fn whole_granules(n: u64) -> bool {
    n != 0 && n.is_multiple_of(GRANULARITY)
}

/// `cuMemCreate` of device memory.
pub(crate) fn create(device: &Arc<Device>, size: u64, handle_types: u32, is_for_tiles: bool) -> Res<u64> {
    if !whole_granules(size) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if handle_types & !POSIX != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    device.take(size)?;
    let fd = os::memory_file(&file_name(device), size).inspect_err(|_| device.release(size))?;
    let identity = os::file_identity(&fd).inspect_err(|_| device.release(size))?.1;
    let physical =
        Arc::new(Physical { size, device: device.clone(), handle_types, is_for_tiles, view: OnceLock::new(), own: true, fd });
    let mut handles = lock(&HANDLES);
    handles.known.retain(|_, known| known.strong_count() > 0);
    handles.known.insert(identity, Arc::downgrade(&physical));
    Ok(handles.add(physical))
}

/// The memory of a handle.
pub(crate) fn resolve(handle: u64) -> Res<Arc<Physical>> {
    lock(&HANDLES).live.get(&handle).map(|(physical, _)| physical.clone()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// `cuMemRelease`: releases one reference of the handle.
pub(crate) fn release(handle: u64) -> Res {
    let mut handles = lock(&HANDLES);
    let (_, count) = handles.live.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    *count -= 1;
    let gone = if *count == 0 { handles.live.remove(&handle) } else { None };
    drop(handles);
    drop(gone);
    Ok(())
}

/// Another reference to the handle of physical memory; a new handle, if it has none.
pub(crate) fn retain(physical: Arc<Physical>) -> u64 {
    let mut handles = lock(&HANDLES);
    let found = handles.live.iter_mut().find(|(_, (p, _))| Arc::ptr_eq(p, &physical)).map(|(handle, (_, count))| {
        *count += 1;
        *handle
    });
    found.unwrap_or_else(|| handles.add(physical))
}

/// `cuMemExportToShareableHandle`: a descriptor for the caller to own.
pub(crate) fn export(handle: u64) -> Res<i32> {
    let physical = resolve(handle)?;
    if physical.handle_types & POSIX == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    duplicate(&physical)
}

/// A descriptor of physical memory for the caller to own.
pub(crate) fn duplicate(physical: &Physical) -> Res<i32> {
    Ok(os::duplicate(physical.fd.as_raw_fd())?.into_raw_fd())
}

/// `cuMemImportFromShareableHandle`: a handle for the memory behind a descriptor that some process exported on this machine.
/// The descriptor stays the caller's.
pub(crate) fn import(descriptor: i32) -> Res<u64> {
    let fd = os::duplicate(descriptor)?;
    let name = os::memory_file_name(&fd).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let device =
        device::all().iter().chain(device::unseen()).find(|d| file_name(d) == name).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    let (size, identity) = os::file_identity(&fd)?;
    if !whole_granules(size) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut handles = lock(&HANDLES);
    if let Some(physical) = handles.known.get(&identity).and_then(Weak::upgrade) {
        return Ok(handles.add(physical));
    }
    let physical = Arc::new(Physical {
        size,
        device: device.clone(),
        handle_types: POSIX,
        is_for_tiles: false,
        view: OnceLock::new(),
        own: false,
        fd,
    });
    handles.known.insert(identity, Arc::downgrade(&physical));
    Ok(handles.add(physical))
}
