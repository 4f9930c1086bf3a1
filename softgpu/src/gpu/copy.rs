//! Copies and fills.
//!
//! CUDA's rules define when host memory is read and written, and programs that violate them must be detected: pageable
//! sources are read at the call, page-locked ones when the copy runs; pageable destinations are written before the call
//! returns, page-locked ones later. Copies between device memories and fills of device memory do not wait, even in
//! their synchronous forms.

use super::array::{self, Keeper};
use super::capture;
use super::engines::{self, Engine};
use super::graph_table::error;
use super::live::Live;
use super::memory::{self, Kind, Memory};
use super::sched::{self, Work};
use super::stream::Target;
use super::synchronous;
use super::tiles::LevelTiles;
use crate::ptx::{Spot, Tiled};
use crate::result::Res;
use cuda_api::array::ARRAY;
use cuda_api::sys::CUresult;
use cuda_api::work::{Copy3, CopyEnd, HOST, Work as GraphWork};
use cuda_model::batch::{Fault, Item, Order};
use std::sync::Arc;

/// So much of page-locked memory is read at the call, if it is one row, the copy need not wait for anything of its own stream, and nobody
/// waits for it: what the stream has to follow in the legacy stream, or that one in others, does not count then (seen on an H200).
const READ_EARLY: u64 = 4096;

/// So much of pageable memory travels with the commands of a stream, and needs no engine (seen on an H100).
const INLINE: u64 = 64 << 10;

/// The table is locked for at most this many bytes at a time.
const PIECE: u64 = 4 << 20;

/// The caller's statement about an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Host memory, page-locked or not.
    Host,
    /// Memory that the device can use, including page-locked host memory.
    Device,
    /// Determined by the address.
    Unified,
}

/// One end of a copy: rows `pitch` apart, slices `slice` apart.
#[derive(Clone)]
pub(crate) struct Side {
    pub space: Space,
    pub address: u64,
    pub pitch: u64,
    pub slice: u64,
    /// Owner of the array's memory.
    pub array: Option<Keeper>,
    /// If it is made of tiles: these, and where the copy begins (byte of a row, row, slice).
    pub tiles: Option<(Arc<LevelTiles>, [u64; 3])>,
}

/// The extent of a copy: bytes of a row, rows of a slice, slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Side {
    /// Bytes from the first to the last one used.
    fn extent(&self, shape: &Shape) -> Option<u64> {
        let slices = self.slice.checked_mul(shape.depth - 1)?;
        self.pitch.checked_mul(shape.height - 1)?.checked_add(slices)?.checked_add(shape.width)
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.address + z * self.slice + y * self.pitch
    }

    /// The location of a byte of a row, and how many bytes follow it there.
    fn spot(&self, x: u64, y: u64, z: u64) -> (Spot, u64) {
        match &self.tiles {
            None => (Spot::At(self.row(y, z) + x), u64::MAX),
            Some((tiles, from)) => tiles.at(from[0] + x, from[1] + y, from[2] + z),
        }
    }
}

/// The actual kind of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Device,
    Pinned,
    Pageable,
    Array,
}

fn end(memory: &Memory, side: &Side, shape: &Shape) -> Res<End> {
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    if side.array.is_some() {
        return Ok(End::Array);
    }
    let len = side.extent(shape).ok_or(bad)?;
    if side.address == 0 || side.address.checked_add(len).is_none() {
        return Err(bad);
    }
    let known = memory.find(side.address).is_some();
    match side.space {
        Space::Device if !known => Err(bad),
        // A device address given for host memory is taken for what it is, as on hardware.
        Space::Host if !memory.is_device(side.address) && !memory.is_pinned(side.address, len) => Ok(End::Pageable),
        Space::Unified if !known => Ok(End::Pageable),
        _ if !memory.covers(side.address, len) => Err(bad),
        _ if memory.is_device(side.address) => Ok(End::Device),
        _ => Ok(End::Pinned),
    }
}

/// One end of a described copy.
fn side(e: &CopyEnd, c: &Copy3) -> Res<Side> {
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let (space, base) = match e.memory {
        1 => (Space::Host, e.host),
        2 => (Space::Device, e.device),
        4 => (Space::Unified, e.device),
        ARRAY => return of_array(e, c),
        _ => return Err(bad),
    };
    let (width, rows) = (c.width, c.rows);
    // A pitch of 0 means rows side by side.
    let pitch = if e.pitch == 0 { width } else { e.pitch };
    let height = if e.height == 0 { rows } else { e.height };
    if e.lod != 0 || e.x.checked_add(width).is_none_or(|end| end > pitch) {
        return Err(bad);
    }
    let slice = pitch.checked_mul(height).ok_or(bad)?;
    let skip = e.z.checked_mul(slice).zip(e.y.checked_mul(pitch));
    let skip = skip.and_then(|(z, y)| z.checked_add(y)?.checked_add(e.x)).ok_or(bad)?;
    Ok(Side { space, address: base.checked_add(skip).ok_or(bad)?, pitch, slice, array: None, tiles: None })
}

/// An end that is an array.
fn of_array(e: &CopyEnd, c: &Copy3) -> Res<Side> {
    if e.array == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let array = array::resolve(e.array as usize)?;
    array.shape.check(e, c).map_err(error)?;
    let [pitch, rows, _] = array.shape.rows().map_err(error)?;
    let slice = pitch * rows;
    let address = array.base + e.z * slice + e.y * pitch + e.x;
    let tiles = array.tiles.clone().map(|tiles| (tiles, [e.x, e.y, e.z]));
    Ok(Side { space: Space::Device, address, pitch, slice, array: Some(array.storage.clone()), tiles })
}

/// Both ends of a described copy, destination first.
fn sides(c: &Copy3) -> Res<(Side, Side, Shape)> {
    let shape = Shape { width: c.width, height: c.rows, depth: c.depth };
    if [c.width, c.rows, c.depth].contains(&0) && (c.dst.memory == 0 || c.src.memory == 0) {
        // If nothing is copied, the kind of memory does not matter.
        let none = Side { space: Space::Unified, address: 0, pitch: 0, slice: 0, array: None, tiles: None };
        return Ok((none.clone(), none, shape));
    }
    Ok((side(&c.dst, c)?, side(&c.src, c)?, shape))
}

/// Checks a copy as far as possible beforehand.
pub(crate) fn check(c: &Copy3) -> Res {
    let (to, from, shape) = sides(c)?;
    if shape.width == 0 || shape.height == 0 || shape.depth == 0 {
        return Ok(());
    }
    let memory = memory::read();
    end(&memory, &to, &shape)?;
    end(&memory, &from, &shape).map(drop)
}

/// What a copy reads when its graph is launched: pageable memory, as hardware was seen to do (docs/measurements.md). The bytes are those
/// that the copy is to have instead.
pub(crate) fn at_launch(c: &Copy3) -> Option<(Copy3, Vec<u8>)> {
    let e = &c.src;
    let or = |n: u64, other: u64| if n == 0 { other } else { n };
    let (pitch, height) = (or(e.pitch, c.width), or(e.height, c.rows));
    let row = |z: u64, y: u64| e.host + ((e.z + z) * height + e.y + y) * pitch + e.x;
    if e.memory != HOST || c.dst.memory == HOST || memory::read().find(e.host).is_some() {
        return None;
    }
    let mut bytes = Vec::new();
    for (z, y) in (0..c.depth).flat_map(|z| (0..c.rows).map(move |y| (z, y))) {
        // SAFETY: the program says that its source has these bytes.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(row(z, y) as *const u8, c.width as usize) });
    }
    let src = CopyEnd { memory: HOST, host: bytes.as_ptr() as u64, pitch: c.width, height: c.rows, ..CopyEnd::default() };
    Some((Copy3 { src, ..*c }, bytes))
}

/// A copy that is executed now, by the thread that runs a graph.
pub(crate) fn perform(c: &Copy3) -> Res {
    let (to, from, shape) = sides(c)?;
    if shape.width == 0 || shape.height == 0 || shape.depth == 0 {
        return Ok(());
    }
    let (to_end, from_end) = {
        let memory = memory::read();
        (end(&memory, &to, &shape)?, end(&memory, &from, &shape)?)
    };
    run(&to, to_end, &from, from_end, &shape)
}

/// Submits a described copy to the stream of `target`, or to its capture; `waits` for the synchronous forms.
pub(crate) fn copy_3d(target: &Target, c: Copy3, waits: bool) -> Res {
    let (to, from, shape) = sides(&c)?;
    if capture::take(target, waits, || check(&c).map(|()| GraphWork::Copy(c)))? {
        return Ok(());
    }
    copy(target, to, from, shape, waits, None)
}

/// The copies of a batch, which cannot be captured.
pub(crate) fn copy_all(target: &Target, items: &[Item]) -> Result<(), Fault<CUresult>> {
    capture::refuse(target)?;
    for (i, item) in items.iter().enumerate() {
        let one = || {
            let (to, from, shape) = sides(&item.copy)?;
            copy(target, to, from, shape, false, Some(item.order))
        };
        one().map_err(|code| Fault { code, at: Some(i) })?;
    }
    Ok(())
}

/// A copy in the stream of `target`; `waits` for the synchronous forms. In a batch the program says when the source is read, and means it.
fn copy(target: &Target, to: Side, from: Side, shape: Shape, waits: bool, order: Option<Order>) -> Res {
    if shape.width == 0 || shape.height == 0 || shape.depth == 0 {
        return Ok(());
    }
    let (to_end, from_end, asked, managed) = {
        let memory = memory::read();
        let managed = [&to, &from].iter().any(|side| memory.find(side.address).is_some_and(|(_, alloc)| alloc.is_managed()));
        let asked = [&to, &from].iter().any(|side| memory.find(side.address).is_some_and(|(_, alloc)| synchronous::waits(alloc)));
        (end(&memory, &to, &shape)?, end(&memory, &from, &shape)?, asked, managed)
    };
    let on_device = |end| matches!(end, End::Device | End::Array);
    let now = order == Some(Order::DuringCall);
    // Of copies inside the host's memory only those with managed memory can be left to the stream.
    let inside = order.is_none() && to_end == End::Pinned && from_end == End::Pinned && !managed;
    let waits = to_end == End::Pageable
        || inside
        || waits && (asked || !(on_device(to_end) && on_device(from_end)))
        || now && on_device(from_end);
    let early = from_end == End::Pinned
        && !managed
        && on_device(to_end)
        && shape.height * shape.depth == 1
        && shape.width <= READ_EARLY
        && target.stream.pending().is_none();
    // Who waits for the copy leaves the source alone meanwhile.
    let at_call = early || from_end == End::Pageable && order.is_none() || now && !on_device(from_end);
    let staged = if at_call && !waits { Some(stage(&from, &shape)?) } else { None };
    let bytes = shape.width.saturating_mul(shape.height).saturating_mul(shape.depth);
    let engine = match (on_device(from_end), on_device(to_end)) {
        (false, true) if !early && (from_end == End::Pinned || bytes > INLINE) => Some(Engine::ToDevice),
        (true, false) => Some(Engine::ToHost),
        _ => None,
    };
    let work = Box::new(move |_: &Live| {
        if engine.is_some() {
            engines::pass_gate(bytes);
        }
        let source = match &staged {
            // Staged rows lie side by side.
            Some(bytes) => Side {
                space: Space::Host,
                address: bytes.as_ptr() as u64,
                pitch: shape.width,
                slice: shape.width * shape.height,
                array: None,
                tiles: None,
            },
            None => from.clone(),
        };
        run(&to, to_end, &source, if staged.is_some() { End::Pageable } else { from_end }, &shape)
    });
    let work = match engine {
        Some(engine) => Work::Copy(engine, work),
        None => Work::Run(work),
    };
    let mark = target.submit(work, Vec::new());
    if waits {
        sched::wait(&[mark]);
        return target.live.settle();
    }
    Ok(())
}

fn stage(from: &Side, shape: &Shape) -> Res<Vec<u8>> {
    let total = shape.width.checked_mul(shape.height).and_then(|n| n.checked_mul(shape.depth));
    let total = total.and_then(|n| usize::try_from(n).ok()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(total).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    for z in 0..shape.depth {
        for y in 0..shape.height {
            // SAFETY: the program says that its host memory has these rows; a wrong pointer crashes as it does natively.
            let row = unsafe { std::slice::from_raw_parts(from.row(y, z) as *const u8, shape.width as usize) };
            bytes.extend_from_slice(row);
        }
    }
    Ok(bytes)
}

fn run(to: &Side, to_end: End, from: &Side, from_end: End, shape: &Shape) -> Res {
    let usable = |memory: &Memory, side: &Side, kind: End, at: u64, len: u64| {
        matches!(kind, End::Pageable | End::Array) || side.extent(shape).is_some() && memory.covers(at, len)
    };
    for z in 0..shape.depth {
        for y in 0..shape.height {
            let mut x = 0;
            // Overlapping ends of one piece come out right; of longer copies CUDA promises nothing.
            while x < shape.width {
                let ((dst, dst_run), (src, src_run)) = (to.spot(x, y, z), from.spot(x, y, z));
                let len = (shape.width - x).min(PIECE).min(dst_run).min(src_run);
                x += len;
                let memory = memory::read();
                let (dst, src) = match (dst, src) {
                    (Spot::Missing, _) | (_, Spot::Missing) => return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
                    (Spot::Nothing, _) => continue,
                    (Spot::At(dst), Spot::Nothing) if usable(&memory, to, to_end, dst, len) => {
                        // SAFETY: as below.
                        unsafe { std::ptr::write_bytes(dst as *mut u8, 0, len as usize) };
                        continue;
                    }
                    (Spot::At(dst), Spot::At(src)) => (dst, src),
                    (Spot::At(_), Spot::Nothing) => return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
                };
                if !usable(&memory, to, to_end, dst, len) || !usable(&memory, from, from_end, src, len) {
                    return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
                }
                // SAFETY: both ends are in the table, which is locked, an array's memory, which the end keeps, or the program's
                // own (staged bytes, or a destination whose owner waits for this copy).
                unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, len as usize) };
            }
        }
    }
    Ok(())
}

/// Rows to be filled with one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub address: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    /// The low bytes of it go into each element.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub size: u64,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

impl From<Fill> for cuda_api::work::Fill {
    fn from(f: Fill) -> Self {
        let element = f.size as u32;
        cuda_api::work::Fill { dst: f.address, pitch: f.pitch, value: f.value, element, width: f.width, rows: f.height }
    }
}

impl From<&cuda_api::work::Fill> for Fill {
    fn from(f: &cuda_api::work::Fill) -> Self {
        let (size, height) = (u64::from(f.element), f.rows);
        Fill { address: f.dst, pitch: f.pitch, value: f.value, size, width: f.width, height }
    }
}

/// The memory of a fill, checked; `None` if it is empty.
fn filled(what: &Fill) -> Res<Option<End>> {
    let Fill { address, pitch, size, width, height, .. } = *what;
    let bad = CUresult::CUDA_ERROR_INVALID_VALUE;
    let width = width.checked_mul(size).ok_or(bad)?;
    if !address.is_multiple_of(size) || height > 1 && (!pitch.is_multiple_of(size) || pitch < width) {
        return Err(bad);
    }
    if width == 0 || height == 0 {
        return Ok(None);
    }
    let side = Side { space: Space::Device, address, pitch, slice: 0, array: None, tiles: None };
    end(&memory::read(), &side, &Shape { width, height, depth: 1 }).map(Some)
}

/// Checks a fill as far as possible beforehand.
pub(crate) fn check_fill(what: &Fill) -> Res {
    filled(what).map(drop)
}

/// A fill that is executed now, by the calling thread.
pub(crate) fn perform_fill(what: &Fill) -> Res {
    for y in 0..what.height {
        fill_row(what.address + y * what.pitch, what.value, what.size, what.width * what.size)?;
    }
    Ok(())
}

/// Submits a fill to the stream of `target`, or to its capture; `waits` for the synchronous forms.
pub(crate) fn fill(target: &Target, what: Fill, waits: bool) -> Res {
    let Some(kind) = filled(&what)? else { return Ok(()) };
    if capture::take(target, waits, || Ok(GraphWork::Fill(what.into())))? {
        return Ok(());
    }
    let waits =
        waits && (kind == End::Pinned || memory::read().find(what.address).is_some_and(|(_, alloc)| synchronous::waits(alloc)));
    let mark = target.submit(Work::Run(Box::new(move |_| perform_fill(&what))), Vec::new());
    if waits {
        sched::wait(&[mark]);
        return target.live.settle();
    }
    Ok(())
}

fn fill_row(address: u64, value: u32, size: u64, width: u64) -> Res {
    let mut done = 0;
    while done < width {
        let len = (width - done).min(PIECE);
        let at = address + done;
        let memory = memory::read();
        if !memory.covers(at, len) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        let count = (len / size) as usize;
        match size {
            // SAFETY: in the table, which is locked; aligned, as checked at the call.
            1 => unsafe { std::slice::from_raw_parts_mut(at as *mut u8, count) }.fill(value as u8),
            // SAFETY: as above.
            2 => unsafe { std::slice::from_raw_parts_mut(at as *mut u16, count) }.fill(value as u16),
            // SAFETY: as above.
            _ => unsafe { std::slice::from_raw_parts_mut(at as *mut u32, count) }.fill(value),
        }
        drop(memory);
        done += len;
    }
    Ok(())
}

/// Whether a stream may write or wait for a value of `size` bytes at `address`.
pub(crate) fn check_word(address: u64, size: u64) -> Res {
    let memory = memory::read();
    // Neither memory of pools nor managed memory (measured on an H200 machine).
    let kept_out = |kind: &Kind| matches!(kind, Kind::Pooled(_) | Kind::Managed);
    let right = address.is_multiple_of(size) && memory.covers(address, size);
    if right && !memory.find(address).is_some_and(|(_, alloc)| kept_out(&alloc.kind)) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Reads a value of 4 or 8 bytes that kernels and the host may be changing concurrently.
pub(crate) fn load_word(address: u64, size: u64) -> Res<u64> {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    let memory = memory::read();
    if !memory.covers(address, size) {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    if size == 4 {
        // SAFETY: in the table, which is locked, and aligned, as checked at the call.
        return Ok(u64::from(unsafe { AtomicU32::from_ptr(address as *mut u32) }.load(Ordering::Acquire)));
    }
    // SAFETY: as above.
    Ok(unsafe { AtomicU64::from_ptr(address as *mut u64) }.load(Ordering::Acquire))
}

/// Writes a value of 4 or 8 bytes after everything written before.
pub(crate) fn store_word(address: u64, size: u64, value: u64) -> Res {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    let memory = memory::read();
    if !memory.covers(address, size) {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    if size == 4 {
        // SAFETY: in the table, which is locked, and aligned, as checked at the call.
        unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value as u32, Ordering::Release);
    } else {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Ordering::Release);
    }
    Ok(())
}
