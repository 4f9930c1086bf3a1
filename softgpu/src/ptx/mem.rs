//! Memory: the checks, loads and stores.
//!
//! Shared memory belongs to the one CPU thread that runs the CTA and local memory to its warp, so both are plain vectors.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::error::Fault;
use super::lanes::{Exec, Word, store};
use super::machine::{Cta, Flow, Instr, Warp};
use super::operand::{Base, LANES, Src, lanes};
use super::window::{LOCAL_WINDOW, MemError, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SHIFT, window};

/// A scalar in memory.
pub(crate) trait Elem: Copy {
    const SIZE: u64;
    /// Reads global memory.
    ///
    /// # Safety
    /// `address` is aligned, mapped and readable.
    unsafe fn load(address: u64) -> Self;
    /// Writes global memory.
    ///
    /// # Safety
    /// `address` is aligned, mapped and writable.
    unsafe fn store(self, address: u64);
    fn from_slice(bytes: &[u8]) -> Self;
    fn to_slice(self, bytes: &mut [u8]);
    /// Extended by its signedness.
    fn extend(self) -> u64;
    fn cut(bits: u64) -> Self;
}

macro_rules! elem {
    ($($t:ty, $u:ty, $atomic:ident);*) => {$(
        impl Elem for $t {
            const SIZE: u64 = size_of::<$t>() as u64;
            #[inline(always)]
            unsafe fn load(address: u64) -> $t {
                // SAFETY: the caller vouches for the address; other threads use atomics on it as well, or volatile
                // accesses of other processes and kernels, which relaxed atomics tolerate.
                unsafe { $atomic::from_ptr(address as *mut $u) }.load(Ordering::Relaxed) as $t
            }
            #[inline(always)]
            unsafe fn store(self, address: u64) {
                // SAFETY: as in `load`.
                unsafe { $atomic::from_ptr(address as *mut $u) }.store(self as $u, Ordering::Relaxed);
            }
            #[inline(always)]
            fn from_slice(bytes: &[u8]) -> $t {
                let mut array = [0; size_of::<$t>()];
                array.copy_from_slice(bytes);
                <$t>::from_le_bytes(array)
            }
            #[inline(always)]
            fn to_slice(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn extend(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn cut(bits: u64) -> $t {
                bits as $t
            }
        }
    )*};
}
elem!(u8, u8, AtomicU8; i8, u8, AtomicU8; u16, u16, AtomicU16; i16, u16, AtomicU16; u32, u32, AtomicU32; i32, u32, AtomicU32;
    u64, u64, AtomicU64);

/// Whether `size` bytes at `address` of global memory may be used; remembers the range for the next access.
#[inline(always)]
pub(crate) fn check_global(w: &mut Warp<'_>, c: &Cta<'_>, address: u64, size: u64) -> Result<(), MemError> {
    let offset = address.wrapping_sub(w.window.0);
    if offset < w.window.1 && w.window.1 - offset >= size {
        return Ok(());
    }
    check_global_slow(w, c, address, size)
}

#[cold]
#[inline(never)]
fn check_global_slow(w: &mut Warp<'_>, c: &Cta<'_>, address: u64, size: u64) -> Result<(), MemError> {
    let (start, end) = c.find_range(address).ok_or(MemError::Illegal(address))?;
    if end - address < size {
        return Err(MemError::Illegal(address));
    }
    w.window = (start, end - start);
    Ok(())
}

/// The bytes `[offset, offset + size)`, or the error for the window they lie in.
#[inline(always)]
fn slice(bytes: &[u8], offset: u64, size: u64, window: u64) -> Result<&[u8], MemError> {
    let start = offset as usize;
    bytes.get(start..start.wrapping_add(size as usize)).ok_or(MemError::Illegal(window.wrapping_add(offset)))
}

#[inline(always)]
fn slice_mut(bytes: &mut [u8], offset: u64, size: u64, window: u64) -> Result<&mut [u8], MemError> {
    let start = offset as usize;
    bytes.get_mut(start..start.wrapping_add(size as usize)).ok_or(MemError::Illegal(window.wrapping_add(offset)))
}

/// A state space: how one lane reads and writes it.
pub(crate) trait Space {
    fn read<E: Elem>(w: &mut Warp<'_>, c: &Cta<'_>, lane: usize, address: u64) -> Result<E, MemError>;
    fn write<E: Elem>(w: &mut Warp<'_>, c: &mut Cta<'_>, lane: usize, address: u64, value: E) -> Result<(), MemError>;
}

pub(crate) struct Global;
pub(crate) struct Shared;
pub(crate) struct Local;
pub(crate) struct Generic;

#[inline(always)]
fn aligned<E: Elem>(address: u64) -> Result<(), MemError> {
    if address & (E::SIZE - 1) == 0 { Ok(()) } else { Err(MemError::Misaligned(address)) }
}

impl Space for Global {
    #[inline(always)]
    fn read<E: Elem>(w: &mut Warp<'_>, c: &Cta<'_>, _: usize, address: u64) -> Result<E, MemError> {
        aligned::<E>(address)?;
        check_global(w, c, address, E::SIZE)?;
        // SAFETY: aligned, and inside a range that the driver keeps mapped during the launch.
        Ok(unsafe { E::load(address) })
    }
    #[inline(always)]
    fn write<E: Elem>(w: &mut Warp<'_>, c: &mut Cta<'_>, _: usize, address: u64, value: E) -> Result<(), MemError> {
        aligned::<E>(address)?;
        check_global(w, c, address, E::SIZE)?;
        // SAFETY: as in `read`.
        unsafe { value.store(address) };
        Ok(())
    }
}

impl Space for Shared {
    #[inline(always)]
    fn read<E: Elem>(_: &mut Warp<'_>, c: &Cta<'_>, _: usize, address: u64) -> Result<E, MemError> {
        aligned::<E>(address)?;
        Ok(E::from_slice(slice(&c.shared, address, E::SIZE, SHARED_WINDOW)?))
    }
    #[inline(always)]
    fn write<E: Elem>(_: &mut Warp<'_>, c: &mut Cta<'_>, _: usize, address: u64, value: E) -> Result<(), MemError> {
        aligned::<E>(address)?;
        value.to_slice(slice_mut(&mut c.shared, address, E::SIZE, SHARED_WINDOW)?);
        Ok(())
    }
}

impl Space for Local {
    #[inline(always)]
    fn read<E: Elem>(w: &mut Warp<'_>, _: &Cta<'_>, lane: usize, address: u64) -> Result<E, MemError> {
        aligned::<E>(address)?;
        Ok(E::from_slice(slice(w.local_of(lane), address, E::SIZE, LOCAL_WINDOW)?))
    }
    #[inline(always)]
    fn write<E: Elem>(w: &mut Warp<'_>, _: &mut Cta<'_>, lane: usize, address: u64, value: E) -> Result<(), MemError> {
        aligned::<E>(address)?;
        value.to_slice(slice_mut(w.local_of_mut(lane), address, E::SIZE, LOCAL_WINDOW)?);
        Ok(())
    }
}

impl Space for Generic {
    #[inline(always)]
    fn read<E: Elem>(w: &mut Warp<'_>, c: &Cta<'_>, lane: usize, address: u64) -> Result<E, MemError> {
        match window(address) {
            0 => Global::read(w, c, lane, address),
            SHARED_WINDOW => Shared::read(w, c, lane, address - SHARED_WINDOW),
            LOCAL_WINDOW => Local::read(w, c, lane, address - LOCAL_WINDOW),
            PARAM_WINDOW => {
                aligned::<E>(address)?;
                Ok(E::from_slice(slice(c.params, address - PARAM_WINDOW, E::SIZE, PARAM_WINDOW)?))
            }
            _ => Err(MemError::Illegal(address)),
        }
    }
    #[inline(always)]
    fn write<E: Elem>(w: &mut Warp<'_>, c: &mut Cta<'_>, lane: usize, address: u64, value: E) -> Result<(), MemError> {
        match window(address) {
            0 => Global::write(w, c, lane, address, value),
            SHARED_WINDOW => Shared::write(w, c, lane, address - SHARED_WINDOW, value),
            LOCAL_WINDOW => Local::write(w, c, lane, address - LOCAL_WINDOW, value),
            // Kernel parameters are read-only.
            _ => Err(MemError::Illegal(address)),
        }
    }
}

/// The addresses an instruction forms, for all lanes.
#[inline(always)]
pub(crate) fn addresses(w: &Warp<'_>, i: &Instr) -> [u64; LANES] {
    let offset = i.imm.cast_unsigned();
    match i.base {
        Base::Wide => {
            let row = w.row64(i.s[0]);
            std::array::from_fn(|l| row[l].wrapping_add(offset))
        }
        Base::Narrow => {
            let row = w.row32(i.s[0]);
            std::array::from_fn(|l| u64::from(row[l].wrapping_add(offset as u32)))
        }
        Base::Frame => [u64::from(w.frame.local).wrapping_add(offset); LANES],
    }
}

/// `ld` of one element into a register of width `W`.
pub(crate) struct Load<S, E, W>(PhantomData<(S, E, W)>);
impl<S: Space, E: Elem, W: Word> Exec for Load<S, E, W> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = addresses(w, i);
        let mut out = [W::default(); LANES];
        let mut one = |w: &mut Warp<'a>, l: usize| match S::read::<E>(w, c, l, address[l]) {
            Ok(value) => {
                out[l] = W::from_u64(value.extend());
                None
            }
            Err(error) => Some(error),
        };
        let mask = w.mask;
        let error = if mask == u32::MAX { (0..LANES).find_map(|l| one(w, l)) } else { lanes(mask).find_map(|l| one(w, l)) };
        if let Some(error) = error {
            return w.fail(error.into());
        }
        store(w, i.d, &out, mask);
        Flow::Next
    }
}

/// `st` of one element from the register `s[1]`.
pub(crate) struct Store<S, E, W>(PhantomData<(S, E, W)>);
impl<S: Space, E: Elem, W: Word> Exec for Store<S, E, W> {
    #[inline(always)]
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = addresses(w, i);
        let values = *W::row(w, i.s[1]);
        let mask = w.mask;
        let mut one = |w: &mut Warp<'a>, l: usize| S::write(w, c, l, address[l], E::cut(values[l].to_u64())).err();
        let error = if mask == u32::MAX { (0..LANES).find_map(|l| one(w, l)) } else { lanes(mask).find_map(|l| one(w, l)) };
        match error {
            Some(error) => w.fail(error.into()),
            None => Flow::Next,
        }
    }
}

/// `ld.v2` and `ld.v4`: `d` destinations at index `x` of `Function::lists`.
pub(crate) struct LoadVec<S, E, W>(PhantomData<(S, E, W)>);
impl<S: Space, E: Elem, W: Word> Exec for LoadVec<S, E, W> {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = addresses(w, i);
        let mask = w.mask;
        let size = E::SIZE * u64::from(i.d);
        if let Some(l) = lanes(mask).find(|&l| address[l] & (size - 1) != 0) {
            return w.fail(Fault::MisalignedAddress(address[l]));
        }
        let func = w.frame.func;
        for (k, &d) in (0..).zip(&func.lists[i.x as usize..][..i.d as usize]) {
            let mut out = [W::default(); LANES];
            for l in lanes(mask) {
                match S::read::<E>(w, c, l, address[l].wrapping_add(k * E::SIZE)) {
                    Ok(value) => out[l] = W::from_u64(value.extend()),
                    Err(error) => return w.fail(error.into()),
                }
            }
            store(w, d, &out, mask);
        }
        Flow::Next
    }
}

/// `st.v2` and `st.v4`: `d` sources at index `x` of `Function::lists`.
pub(crate) struct StoreVec<S, E, W>(PhantomData<(S, E, W)>);
impl<S: Space, E: Elem, W: Word> Exec for StoreVec<S, E, W> {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = addresses(w, i);
        let mask = w.mask;
        let size = E::SIZE * u64::from(i.d);
        if let Some(l) = lanes(mask).find(|&l| address[l] & (size - 1) != 0) {
            return w.fail(Fault::MisalignedAddress(address[l]));
        }
        let func = w.frame.func;
        for (k, &s) in (0..).zip(&func.lists[i.x as usize..][..i.d as usize]) {
            let values = *W::row(w, Src(s));
            for l in lanes(mask) {
                let value = E::cut(values[l].to_u64());
                if let Err(error) = S::write(w, c, l, address[l].wrapping_add(k * E::SIZE), value) {
                    return w.fail(error.into());
                }
            }
        }
        Flow::Next
    }
}

/// `ld.param` of a kernel: the same value for all lanes, from byte `imm`.
pub(crate) struct LoadParam<E, W>(PhantomData<(E, W)>);
impl<E: Elem, W: Word> Exec for LoadParam<E, W> {
    fn exec<'a>(w: &mut Warp<'a>, c: &mut Cta<'a>, i: &Instr) -> Flow {
        match slice(c.params, i.imm.cast_unsigned(), E::SIZE, PARAM_WINDOW) {
            Ok(bytes) => {
                let value = W::from_u64(E::from_slice(bytes).extend());
                store(w, i.d, &[value; LANES], w.mask);
                Flow::Next
            }
            Err(error) => w.fail(error.into()),
        }
    }
}

/// `membar` and `fence`; also around accesses that acquire or release.
pub(crate) struct Fence;
impl Exec for Fence {
    fn exec<'a>(_: &mut Warp<'a>, _: &mut Cta<'a>, _: &Instr) -> Flow {
        fence(Ordering::SeqCst);
        Flow::Next
    }
}

/// `d` = `imm` bytes into the local frame; `x` is the window to add, in units of 2^56.
pub(crate) struct FrameAddress;
impl Exec for FrameAddress {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = (u64::from(i.x) << WINDOW_SHIFT) + u64::from(w.frame.local) + i.imm.cast_unsigned();
        store(w, i.d, &[address; LANES], w.mask);
        Flow::Next
    }
}

/// `FrameAddress` into a 32-bit register.
pub(crate) struct FrameAddress32;
impl Exec for FrameAddress32 {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let address = u64::from(w.frame.local) + i.imm.cast_unsigned();
        store(w, i.d, &[address as u32; LANES], w.mask);
        Flow::Next
    }
}

/// `isspacep`: whether the generic address lies in the window `imm`.
pub(crate) struct IsSpace;
impl Exec for IsSpace {
    fn exec<'a>(w: &mut Warp<'a>, _: &mut Cta<'a>, i: &Instr) -> Flow {
        let row = w.row64(i.s[0]);
        let bits = (0..LANES).fold(0, |bits, l| bits | u32::from(window(row[l]) == i.imm.cast_unsigned()) << l);
        w.set_pred(i.d, bits);
        Flow::Next
    }
}

/// Bytes `[address, address + size)` of generic memory, as the lane sees it; for the device functions of the runtime.
pub(crate) fn read_bytes(w: &mut Warp<'_>, c: &Cta<'_>, lane: usize, address: u64, size: u64) -> Result<Vec<u8>, MemError> {
    (0..size).map(|n| Generic::read::<u8>(w, c, lane, address.wrapping_add(n))).collect()
}

/// The string at `address` without its terminating zero; cut after `limit` bytes.
pub(crate) fn read_text(w: &mut Warp<'_>, c: &Cta<'_>, lane: usize, address: u64, limit: usize) -> Result<Vec<u8>, MemError> {
    let mut text = Vec::new();
    while text.len() < limit {
        match Generic::read::<u8>(w, c, lane, address.wrapping_add(text.len() as u64))? {
            0 => break,
            byte => text.push(byte),
        }
    }
    Ok(text)
}
