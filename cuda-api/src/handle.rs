//! Handles: numbers that the recorder assigns and that mean the same in every place.
//!
//! `0x5C` · kind (8 bits) · generation (18 bits) · slot (24 bits) · six zero bits. One comparison identifies a handle
//! of ours, one shift extracts the slot, and the number of a destroyed handle is not reused before 2^18 reuses of its
//! slot.

use crate::code::{self, Code};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const MARK: u64 = 0x5c;
const SEGMENT_BITS: u32 = 12;
const SEGMENTS: usize = 1 << (24 - SEGMENT_BITS);

/// The kind of object that a handle identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// `CUcontext`
    Context = 1,
    /// `CUstream`
    Stream = 2,
    /// `CUevent`
    Event = 3,
    /// `CUmodule`
    Module = 4,
    /// `CUfunction`
    Function = 5,
    /// `CUlibrary`
    Library = 6,
    /// `CUkernel`
    Kernel = 7,
    /// `CUgraph`: never sent
    Graph = 8,
    /// `CUgraphNode`: never sent
    GraphNode = 9,
    /// `CUgraphExec`
    GraphExec = 10,
    /// `CUuserObject`: never sent
    UserObject = 11,
    /// `CUmemoryPool`: known to the recorder only.
    Pool = 12,
    /// `CUmemGenericAllocationHandle`: known to the recorder only.
    Physical = 13,
    /// `CUarray`, including a level of a mipmapped one
    Array = 14,
    /// `CUmipmappedArray`
    Mipmap = 15,
    /// A texture or surface object: the program has the driver's number; this is its name in the journal.
    Object = 16,
    /// `CUgreenCtx`: known to the recorder only.
    GreenContext = 17,
    /// `CUtexref`
    TextureRef = 18,
    /// `CUsurfref`
    SurfaceRef = 19,
}

/// Number of kinds, for tables indexed by kind.
pub const KINDS: usize = 20;

impl Kind {
    /// The kind with this number.
    #[inline]
    pub const fn from_number(n: u8) -> Option<Kind> {
        use Kind::*;
        // Called several times in each call, so this compiles to a range check.
        Some(match n {
            1 => Context,
            2 => Stream,
            3 => Event,
            4 => Module,
            5 => Function,
            6 => Library,
            7 => Kernel,
            8 => Graph,
            9 => GraphNode,
            10 => GraphExec,
            11 => UserObject,
            12 => Pool,
            13 => Physical,
            14 => Array,
            15 => Mipmap,
            16 => Object,
            17 => GreenContext,
            18 => TextureRef,
            19 => SurfaceRef,
            _ => return None,
        })
    }
}

/// Composes a handle. `slot` < 2^24, `generation` < 2^18.
#[inline]
pub fn compose(kind: Kind, generation: u32, slot: u32) -> u64 {
    MARK << 56 | (kind as u64) << 48 | u64::from(generation & 0x3ffff) << 30 | u64::from(slot & 0xff_ffff) << 6
}

/// Kind of a handle; `None` if the number is not one of ours.
#[inline]
pub fn kind(handle: u64) -> Option<Kind> {
    (handle >> 56 == MARK && handle & 63 == 0).then(|| Kind::from_number((handle >> 48) as u8)).flatten()
}

/// Slot of a handle.
#[inline]
pub fn slot(handle: u64) -> u32 {
    (handle >> 6) as u32 & 0xff_ffff
}

/// A growing array indexed by slot whose cells never move, so that reads need no lock.
#[derive(Debug)]
pub struct Cells<T> {
    /// The first segment, in which most handles are: found without reading the table.
    first: AtomicPtr<T>,
    /// All others, by number; the entry of the first one is unused.
    segments: Box<[AtomicPtr<T>]>,
}

impl<T: Default> Cells<T> {
    /// Creates an empty array; segments of 4096 cells are allocated on first use.
    pub fn new() -> Self {
        Cells { first: AtomicPtr::default(), segments: (0..SEGMENTS).map(|_| AtomicPtr::default()).collect() }
    }

    #[inline]
    fn segment(&self, slot: u32) -> Option<&AtomicPtr<T>> {
        if slot < 1 << SEGMENT_BITS { Some(&self.first) } else { self.segments.get((slot >> SEGMENT_BITS) as usize) }
    }

    /// The cell, if its segment exists.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&T> {
        let p = self.segment(slot)?.load(Ordering::Acquire);
        // SAFETY: a published segment holds 2^SEGMENT_BITS initialised cells and lives as long as `self`.
        (!p.is_null()).then(|| unsafe { &*p.add((slot & ((1 << SEGMENT_BITS) - 1)) as usize) })
    }

    /// All cells of the segments that exist.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        (0..1u32 << 24)
            .step_by(1 << SEGMENT_BITS)
            .filter(|first| self.get(*first).is_some())
            .flat_map(|first| (first..first + (1 << SEGMENT_BITS)).filter_map(|slot| self.get(slot)))
    }

    /// The cell; allocates its segment if necessary. `slot` must be below 2^24.
    #[inline]
    pub fn at(&self, slot: u32) -> &T {
        let slot = slot & 0xff_ffff;
        loop {
            if let Some(cell) = self.get(slot) {
                return cell;
            }
            let Some(place) = self.segment(slot) else { unreachable!("slots have 24 bits") };
            let fresh: Box<[T]> = (0..1 << SEGMENT_BITS).map(|_| T::default()).collect();
            let fresh = Box::into_raw(fresh).cast::<T>();
            if place.compare_exchange(std::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: `fresh` was made by Box::into_raw just above and was not published.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(fresh, 1 << SEGMENT_BITS)) });
            }
        }
    }
}

impl<T: Default> Default for Cells<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Cells<T> {
    fn drop(&mut self) {
        for s in std::iter::once(&mut self.first).chain(&mut self.segments) {
            let p = *s.get_mut();
            if !p.is_null() {
                // SAFETY: made by Box::into_raw of a slice of exactly this length in `at`; nothing borrows `self` any more.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(p, 1 << SEGMENT_BITS)) });
            }
        }
    }
}

#[derive(Debug, Default)]
struct Binding {
    handle: AtomicU64,
    live: AtomicU64,
}

/// An executor's map from our handles to the driver's values at this place.
#[derive(Debug)]
pub struct Bindings {
    kinds: [Cells<Binding>; KINDS],
}

/// Values at or above this are not driver handles but "its creation failed with code (value - FAILED)".
const FAILED: u64 = 0xffff_ffff_0000_0000;

impl Bindings {
    /// Creates an empty map.
    pub fn new() -> Self {
        Bindings { kinds: std::array::from_fn(|_| Cells::new()) }
    }

    /// Binds `handle` to the driver's `live` value.
    #[inline]
    pub fn bind(&self, handle: u64, live: u64) {
        if let Some(k) = kind(handle) {
            let b = self.kinds[k as usize].at(slot(handle));
            b.live.store(live, Ordering::Relaxed);
            b.handle.store(handle, Ordering::Release);
        }
    }

    /// Records that the creation of `handle` failed, so that its first use returns the error.
    pub fn bind_failed(&self, handle: u64, code: Code) {
        self.bind(handle, FAILED | u64::from(code as u32));
    }

    /// The driver's value of a handle of the expected kind, or the error that its use must return. A driver interprets
    /// the value as the expected type and follows it in its own memory, so other kinds must be rejected.
    #[inline]
    pub fn live(&self, wanted: Kind, handle: u64) -> Result<u64, Code> {
        let k = kind(handle).filter(|k| *k == wanted).ok_or(code::ERROR_INVALID_HANDLE)?;
        let b = self.kinds[k as usize].get(slot(handle)).ok_or(code::ERROR_INVALID_HANDLE)?;
        if b.handle.load(Ordering::Acquire) != handle {
            return Err(code::ERROR_INVALID_HANDLE);
        }
        let v = b.live.load(Ordering::Relaxed);
        if v >= FAILED { Err(v as u32 as Code) } else { Ok(v) }
    }

    /// Removes `handle`.
    #[inline]
    pub fn unbind(&self, handle: u64) {
        if let Some(b) = kind(handle).and_then(|k| self.kinds[k as usize].get(slot(handle))) {
            // Its number is not reused before this call has completed.
            if b.handle.load(Ordering::Acquire) == handle {
                b.handle.store(0, Ordering::Release);
            }
        }
    }
}

impl Bindings {
    /// Removes all handles of some kinds.
    pub fn unbind_all(&self, kinds: &[Kind]) {
        for binding in kinds.iter().flat_map(|k| self.kinds[*k as usize].all()) {
            binding.handle.store(0, Ordering::Release);
        }
    }
}

impl Default for Bindings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_tell_reuse() {
        let (a, b) = (compose(Kind::Event, 1, 77), compose(Kind::Event, 2, 77));
        let t = Bindings::new();
        let live = |h| t.live(Kind::Event, h);
        t.bind(a, 0x1000);
        assert_eq!(live(a), Ok(0x1000));
        assert_eq!(live(b), Err(code::ERROR_INVALID_HANDLE));
        assert_eq!(t.live(Kind::Stream, a), Err(code::ERROR_INVALID_HANDLE), "an event is no stream");
        t.bind(b, 0x2000);
        assert_eq!(live(a), Err(code::ERROR_INVALID_HANDLE));
        t.unbind(a);
        assert_eq!(live(b), Ok(0x2000));
        t.bind_failed(b, code::ERROR_OUT_OF_MEMORY);
        assert_eq!(live(b), Err(code::ERROR_OUT_OF_MEMORY));
        t.bind(a, 0x3000);
        t.unbind_all(&[Kind::Stream]);
        assert_eq!(live(a), Ok(0x3000));
        t.unbind_all(&[Kind::Event]);
        assert_eq!(live(a), Err(code::ERROR_INVALID_HANDLE));
    }

    #[test]
    fn numbers_and_kinds_agree() {
        assert!((0..=u8::MAX).all(|n| Kind::from_number(n).is_none_or(|k| k as u8 == n)));
        assert_eq!((0..=u8::MAX).filter_map(Kind::from_number).count(), KINDS - 1);
    }

    #[test]
    fn only_ours_have_a_kind() {
        assert_eq!(kind(compose(Kind::Stream, 3, 9)), Some(Kind::Stream));
        for h in [0, 1, 2, 0x7f00_1234_5678, compose(Kind::Stream, 3, 9) | 8] {
            assert_eq!(kind(h), None);
        }
    }
}
