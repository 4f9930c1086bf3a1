//! Host memory of the job that is registered with the place's driver: kernels use it by its address, and the driver makes the copies.
//!
//! In the job's process the memory is already there. A worker of the same machine has the file of the job's pinned memory and maps the
//! parts that the job requests, at their addresses. The job can write to them at any time; it cannot remove them, because the file cannot
//! shrink. A worker that cannot share the memory has a copy at the same addresses; both sides send each other their changes
//! ([`crate::host_mirror`]).

use super::state::gpu_blocks::Contents;
use super::state::pinned::{Apart, From, Part, SlabPart, inside};
use super::{ContextState, Executor, short};
use crate::host_mirror::PlaceChanges;
use crate::limits::{Held, MAX_PINNED_BLOCKS, report_once};
use crate::memory_file;
use cuda_api::address_map::{DIRECT_END, HEAP, HEAP_END, HOST, HOST_END, PAGE, VMM, slot};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::{HostPin, Slab};
use cuda_api::wire::Wire;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// End of user space.
const END: u64 = 1 << 47;
/// The whole pages that contain a range.
fn pages(at: u64, bytes: u64) -> (u64, u64) {
    let start = at & !(PAGE - 1);
    (start, (at + bytes).next_multiple_of(PAGE) - start)
}

/// Returns whether a block lies in a slab.
fn is_in_slab(at: u64, bytes: u64, slab: &Slab) -> bool {
    bytes > 0 && at >= slab.address && at.checked_add(bytes).is_some_and(|end| end - slab.address <= slab.bytes)
}

/// Removes a slab from the list if it has no block.
fn take_unused(slabs: &mut BTreeMap<u64, SlabPart>, slab: u64) -> Option<SlabPart> {
    if slabs.get(&slab)?.blocks == 0 { slabs.remove(&slab) } else { None }
}

/// Why memory was not mapped at the requested address.
#[derive(Debug, PartialEq, Eq)]
enum NotMapped {
    /// The address is in use.
    Taken,
    /// The system refuses.
    Refused,
}

impl std::convert::From<NotMapped> for Code {
    fn from(_: NotMapped) -> Code {
        code::ERROR_OUT_OF_MEMORY
    }
}

/// Maps fresh pages at an address that must be unused.
fn map_apart(at: u64, bytes: u64) -> Result<(), NotMapped> {
    let (start, len) = pages(at, bytes);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping at unused addresses: the flag refuses to replace a mapping.
    let p = unsafe { libc::mmap(start as *mut c_void, len as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    there_or_nowhere(p, start, len)
}

/// Checks that a mapping was made at the requested address; removes it otherwise.
fn there_or_nowhere(p: *mut c_void, at: u64, len: u64) -> Result<(), NotMapped> {
    if p == libc::MAP_FAILED {
        let taken = io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST);
        return Err(if taken { NotMapped::Taken } else { NotMapped::Refused });
    }
    if p as u64 != at {
        // SAFETY: a kernel that does not know the flag has mapped it elsewhere; nothing refers to that mapping.
        unsafe { libc::munmap(p, len as usize) };
        return Err(NotMapped::Taken);
    }
    Ok(())
}

fn unmap(at: u64, bytes: u64) {
    let (start, len) = pages(at, bytes);
    // SAFETY: mapped by `map` or `map_apart` with this length; the driver does not use it any more.
    unsafe { libc::munmap(start as *mut c_void, len as usize) };
}

/// Maps a part of the file at its address, which must be unused.
fn map(file: &OwnedFd, at: u64, bytes: u64) -> Result<(), Code> {
    let (offset, len) = (at - HOST, bytes.next_multiple_of(PAGE));
    // An access beyond the end of the file would kill the process.
    if memory_file::fixed_size(file.as_fd()).is_none_or(|size| size < offset + len) {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: a fresh mapping at unused addresses: the flag refuses to replace a mapping.
    let p = unsafe { libc::mmap(at as *mut c_void, len as usize, prot, flags, file.as_raw_fd(), offset as libc::off_t) };
    Ok(there_or_nowhere(p, at, len)?)
}

impl Executor {
    /// Sets the file of the job's pinned memory, for an executor outside its process.
    ///
    /// # Errors
    /// `InvalidData` if it is not a memory file, or one that could shrink.
    pub fn set_pinned_file(&self, file: OwnedFd) -> io::Result<()> {
        if memory_file::fixed_size(file.as_fd()).is_none() || self.pinned.file.set(file).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the job's pinned memory is not what it should be"));
        }
        Ok(())
    }

    /// Registers host memory of the job, for an executor in its process: copies from and to it are then asynchronous, and kernels can use
    /// it at the same address. `flags` as of `cuMemHostRegister`; they include those of `cuMemHostAlloc` except one. A block of a slab is
    /// registered with all of the slab, which must be mapped.
    ///
    /// # Errors
    /// The driver's error; `NOT_SUPPORTED` if the GPU sees the memory at another address.
    pub fn pin_host(&self, at: u64, bytes: u64, flags: u32, slab: Slab) -> Result<(), Code> {
        if slab.bytes > 0 {
            return self.pin_in_slab(at, (bytes, flags), slab, From::Here);
        }
        self.register_host(at, bytes, flags, From::Here)
    }

    /// Registers a block of a slab, and the slab with the first one; `from` says whether it is there, or is mapped from the file.
    fn pin_in_slab(&self, at: u64, (bytes, flags): (u64, u32), slab: Slab, from: From) -> Result<(), Code> {
        if !is_in_slab(at, bytes, &slab) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        // Held while it is registered: another thread's block of it has to wait for that.
        let mut slabs = lock(&self.pinned.slabs);
        if lock(&self.pinned.parts).contains_key(&at) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        match slabs.get_mut(&slab.address) {
            Some(known) if (known.number, known.bytes) == (slab.number, slab.bytes) => known.blocks += 1,
            // The driver still has the pages of one that the job has unmapped.
            Some(_) => return Err(code::ERROR_INVALID_VALUE),
            None => {
                if from == From::File {
                    map(self.pinned.file.get().ok_or(code::ERROR_NOT_SUPPORTED)?, slab.address, slab.bytes)?;
                }
                let registration = self.register(slab.address, slab.bytes, 0).inspect_err(|_| {
                    if from == From::File {
                        unmap(slab.address, slab.bytes);
                    }
                })?;
                let known = SlabPart { bytes: slab.bytes, number: slab.number, blocks: 1, from, registration };
                slabs.insert(slab.address, known);
            }
        }
        lock(&self.pinned.parts).insert(at, Part { bytes, flags, from: From::Slab(slab.address), registration: 0 });
        Ok(())
    }

    /// Allocates a block of mirrored memory in a slab, and the slab with its first one.
    fn pin_in_mirrored_slab(&self, pin: &HostPin) -> Result<(), Code> {
        let slab = &pin.slab;
        let (start, len) = (slab.address, slab.bytes);
        self.end_other_slabs(start..start + len, Some(slab.number));
        let mut slabs = lock(&self.pinned.slabs);
        if let Entry::Vacant(place) = slabs.entry(start) {
            let held = self.hold_pinned(len)?;
            if self.overlaps_part(start, len) {
                return Err(code::ERROR_OUT_OF_MEMORY);
            }
            self.map_mirrored(start, len)?;
            let registration = self.register(start, len, 0).inspect_err(|_| unmap(start, len))?;
            // Until the slab ends.
            held.keep();
            place.insert(SlabPart { bytes: len, number: slab.number, blocks: 0, from: From::Apart, registration });
        }
        let added = self.add_block(&mut slabs, &mut lock(&self.pinned.apart), pin);
        let unused = take_unused(&mut slabs, start);
        drop(slabs);
        unused.into_iter().for_each(|known| self.end_slab(start, known, true));
        added
    }

    /// Adds a block of mirrored memory to a slab, with zeros. Blocks that overlap it are gone: the job has given their pages to this one.
    fn add_block(&self, slabs: &mut BTreeMap<u64, SlabPart>, apart: &mut Apart, pin: &HostPin) -> Result<(), Code> {
        let &HostPin { address, bytes, flags, slab, .. } = pin;
        let is_it = |known: &&mut SlabPart| known.from == From::Apart && (known.number, known.bytes) == (slab.number, slab.bytes);
        let known = slabs.get_mut(&slab.address).filter(is_it).ok_or(code::ERROR_INVALID_VALUE)?;
        if !is_in_slab(address, bytes, &slab) || !address.is_multiple_of(PAGE) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let mut parts = lock(&self.pinned.parts);
        if parts.len() >= MAX_PINNED_BLOCKS {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let (start, len) = pages(address, bytes);
        let gone: Vec<u64> =
            parts.range(slab.address..start + len).filter(|(at, part)| *at + part.bytes > start).map(|(at, _)| *at).collect();
        for at in gone {
            parts.remove(&at);
            apart.mirrored.remove(at);
            known.blocks -= 1;
            self.pinned.ended.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: pages of a slab that is mapped here, and ends under the lock that the caller holds. No block has them now, so neither
        // the GPU nor a scan uses them.
        unsafe { std::ptr::write_bytes(start as *mut u8, 0, len as usize) };
        // SAFETY: mapped, as above; `remove_block` removes it from the list before the slab is unmapped.
        unsafe { apart.mirrored.add(start, len) }.map_err(|_| code::ERROR_OUT_OF_MEMORY)?;
        parts.insert(address, Part { bytes, flags, from: From::Slab(slab.address), registration: 0 });
        known.blocks += 1;
        self.pinned.any_apart.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends slabs of mirrored memory that overlap a range, except that with a number: the job has unmapped them without a message.
    pub(super) fn end_other_slabs(&self, range: Range<u64>, number: Option<u64>) {
        let other = |(at, slab): &(&u64, &SlabPart)| {
            **at < range.end && range.start < **at + slab.bytes && slab.from == From::Apart && Some(slab.number) != number
        };
        let slabs: Vec<u64> = lock(&self.pinned.slabs).iter().filter(other).map(|(at, _)| *at).collect();
        for slab in slabs {
            let blocks: Vec<u64> =
                lock(&self.pinned.parts).iter().filter(|(_, p)| p.from == From::Slab(slab)).map(|(at, _)| *at).collect();
            blocks.into_iter().for_each(|at| self.unpin_host(at));
            // One whose only block could not be replaced has none.
            let unused = take_unused(&mut lock(&self.pinned.slabs), slab);
            unused.into_iter().for_each(|known| self.end_slab(slab, known, self.make_current().is_ok()));
        }
    }

    /// Removes a block, at this address, of a slab from the lists. Returns the slab if that was its last block: it is to be
    /// [ended](Self::end_slab).
    fn remove_block(&self, slabs: &mut BTreeMap<u64, SlabPart>, slab: u64, at: u64) -> Option<SlabPart> {
        let known = slabs.get_mut(&slab)?;
        if known.from == From::Apart {
            self.stop_mirroring(at);
        }
        known.blocks -= 1;
        take_unused(slabs, slab)
    }

    /// Unregisters a slab that is in no list any more, if the context is there, and unmaps it. The driver may wait for the GPU meanwhile, and
    /// the GPU for the job's next messages about other slabs, so no lock may be held.
    fn end_slab(&self, slab: u64, known: SlabPart, current: bool) {
        if current {
            // Fails only if the context was destroyed, and the registration with it.
            let _ = self.gpu.unregister(slab);
        }
        if known.from == From::Apart {
            self.pinned.budget.give_back(known.bytes);
        }
        if known.from != From::Here {
            unmap(slab, known.bytes);
        }
    }

    fn stop_mirroring(&self, at: u64) {
        let mut apart = lock(&self.pinned.apart);
        apart.mirrored.remove(pages(at, 1).0);
        drop(apart);
        self.still_apart();
    }

    /// Notes whether there are mirrored copies.
    pub(super) fn still_apart(&self) {
        let apart = lock(&self.pinned.apart);
        self.pinned.any_apart.store(!apart.mirrored.is_empty() || !self.pinned.on_gpu.is_empty(), Ordering::Release);
    }

    /// Ends the block at an address, if that needs no driver: if it is mirrored memory in a slab that has other blocks. Otherwise returns
    /// false.
    pub fn end_block(&self, at: u64) -> bool {
        let mut slabs = lock(&self.pinned.slabs);
        let mut parts = lock(&self.pinned.parts);
        let Some(From::Slab(slab)) = parts.get(&at).map(|part| part.from) else { return false };
        if !slabs.get(&slab).is_some_and(|known| known.from == From::Apart && known.blocks > 1) {
            return false;
        }
        parts.remove(&at);
        drop(parts);
        self.pinned.ended.fetch_add(1, Ordering::Relaxed);
        // It was not the last.
        self.remove_block(&mut slabs, slab, at);
        true
    }

    /// Returns the number of the registration.
    fn register(&self, at: u64, bytes: u64, flags: u32) -> Result<u64, Code> {
        self.make_current()?;
        self.gpu.register(at, bytes, flags)?;
        if self.gpu.device_pointer(at) == Ok(at) {
            return Ok(self.pinned.registrations.fetch_add(1, Ordering::Relaxed));
        }
        // The refusal is reported.
        let _ = self.gpu.unregister(at);
        Err(code::ERROR_NOT_SUPPORTED)
    }

    fn register_host(&self, at: u64, bytes: u64, flags: u32, from: From) -> Result<(), Code> {
        let registration = self.register(at, bytes, flags)?;
        lock(&self.pinned.parts).insert(at, Part { bytes, flags, from, registration });
        Ok(())
    }

    /// The registration to which an address belongs; a driver may have noted more about an address than the address.
    pub(super) fn registration(&self, address: u64) -> Option<u64> {
        let part =
            lock(&self.pinned.parts).range(..=address).next_back().filter(|(at, p)| address - **at < p.bytes).map(|(_, p)| *p)?;
        match part.from {
            From::Slab(slab) => lock(&self.pinned.slabs).get(&slab).map(|s| s.registration),
            _ => Some(part.registration),
        }
    }

    /// Unregisters the memory at this address, if any is registered; it must no longer be in use.
    pub fn unpin_host(&self, at: u64) {
        // Also for other memory: no block may come to the address of another one between the two lists.
        let mut slabs = lock(&self.pinned.slabs);
        let Some(part) = lock(&self.pinned.parts).remove(&at) else { return };
        self.pinned.ended.fetch_add(1, Ordering::Relaxed);
        let last = if let From::Slab(slab) = part.from { self.remove_block(&mut slabs, slab, at) } else { None };
        drop(slabs);
        self.forget(at, part, last, self.make_current().is_ok());
    }

    /// `last`: the slab, if it was the last block of one. `current`: whether the context is there.
    fn forget(&self, at: u64, part: Part, last: Option<SlabPart>, current: bool) {
        if let From::Slab(slab) = part.from {
            // The slab ends with its last block in any case.
            return last.into_iter().for_each(|known| self.end_slab(slab, known, current));
        }
        if part.from == From::OnGpu {
            return self.end_on_gpu(at);
        }
        if !current {
            return;
        }
        // Fails only if the context was destroyed, and the registration with it.
        let _ = self.gpu.unregister(at);
        if part.from == From::Apart {
            self.pinned.budget.give_back(pages(at, part.bytes).1);
            self.stop_mirroring(at);
        }
        if part.from != From::Here {
            unmap(at, part.bytes);
        }
    }

    /// Address and size of each registered block.
    pub fn pinned_host(&self) -> Vec<(u64, u64)> {
        lock(&self.pinned.parts).iter().map(|(at, part)| (*at, part.bytes)).collect()
    }

    /// Registers host memory of the job; returns whether it is in the GPU's memory.
    pub(super) fn host_pin(&self, life: &ContextState, mut body: &[u8]) -> Result<bool, Code> {
        let pin = HostPin::get(&mut body).map_err(short)?;
        if pin.apart && pin.exclusive && pin.slab.bytes == 0 && self.pin_on_gpu(life, &pin)? {
            return Ok(true);
        }
        self.pin_in_host_memory(&pin).map(|()| false)
    }

    fn pin_in_host_memory(&self, pin: &HostPin) -> Result<(), Code> {
        let &HostPin { address, bytes, flags, apart, slab, .. } = pin;
        if lock(&self.pinned.parts).len() >= MAX_PINNED_BLOCKS {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        let inside = |at: u64, bytes: u64| at >= HOST && at.checked_add(bytes).is_some_and(|end| end <= HOST_END);
        if slab.bytes > 0 && (slab.address % PAGE != 0 || slab.bytes % PAGE != 0 || !inside(slab.address, slab.bytes)) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        if apart && slab.bytes > 0 {
            return self.pin_in_mirrored_slab(pin);
        }
        if apart {
            return self.pin_apart(address, bytes, flags);
        }
        let file = self.pinned.file.get().ok_or(code::ERROR_NOT_SUPPORTED)?;
        if slab.bytes > 0 {
            return self.pin_in_slab(address, (bytes, flags), slab, From::File);
        }
        if bytes == 0 || address % PAGE != 0 || !inside(address, bytes) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        map(file, address, bytes)?;
        self.register_host(address, bytes, flags, From::File).inspect_err(|_| unmap(address, bytes))
    }

    /// Allocates a mirrored copy, replacing an earlier one at this address. It is in the range of pinned memory, or at an address of
    /// memory that the program has registered: outside of all ranges of the job on the device, and of the executor.
    ///
    /// A job must not learn which addresses this process uses (its layout is secret). So the first address that is in use closes the
    /// place: a job that probes addresses only learns about a process that no longer exists.
    fn pin_apart(&self, address: u64, bytes: u64, flags: u32) -> Result<(), Code> {
        let bad = code::ERROR_INVALID_VALUE;
        let end = address.checked_add(bytes).filter(|end| bytes > 0 && address >= PAGE && *end <= END).ok_or(bad)?;
        let clear_of = |range: &Range<u64>| end <= range.start || address >= range.end;
        if !(address >= HOST && end <= HOST_END || clear_of(&(VMM..DIRECT_END)) && clear_of(&(HEAP..HEAP_END))) {
            return Err(bad);
        }
        if lock(&self.pinned.parts).get(&address).is_some_and(|p| matches!(p.from, From::Apart | From::OnGpu)) {
            self.unpin_host(address);
        }
        let (start, len) = pages(address, bytes);
        self.end_other_slabs(start..start + len, None);
        if self.overlaps_part(start, len) {
            return Err(code::ERROR_OUT_OF_MEMORY);
        }
        self.pin_apart_with((address, bytes), flags, &Contents::default(), self.hold_pinned(len)?)
    }

    /// As [`Executor::pin_apart`], at checked addresses, with contents from the first page on; what is behind them is zero. `held`: its pages.
    pub(super) fn pin_apart_with(
        &self,
        (address, bytes): (u64, u64),
        flags: u32,
        contents: &Contents,
        held: Held,
    ) -> Result<(), Code> {
        let (start, len) = pages(address, bytes);
        self.map_mirrored(address, bytes)?;
        // SAFETY: fresh pages, that only this thread knows, of no less bytes.
        unsafe { std::ptr::copy_nonoverlapping(contents.now.as_ptr(), start as *mut u8, contents.now.len().min(len as usize)) };
        self.register_host(address, bytes, flags, From::Apart).inspect_err(|_| unmap(address, bytes))?;
        // Until it is forgotten.
        held.keep();
        let mut apart = lock(&self.pinned.apart);
        // SAFETY: mapped above; `forget` removes it from the list before it unmaps it.
        let added = unsafe { apart.mirrored.add_as(start, len, &contents.agreed) };
        self.pinned.any_apart.store(true, Ordering::Release);
        drop(apart);
        added.map_err(|_| {
            self.unpin_host(address);
            code::ERROR_OUT_OF_MEMORY
        })
    }

    /// Reserves bytes of this machine's pinned memory for the job.
    pub(super) fn hold_pinned(&self, bytes: u64) -> Result<Held, Code> {
        let budget = &self.pinned.budget;
        budget.hold(bytes).ok_or_else(|| {
            report_once(&self.pinned.reported, "pinned and managed memory", budget.limit(), "--max-pinned");
            code::ERROR_OUT_OF_MEMORY
        })
    }

    /// Returns whether registered memory has some of these pages.
    pub(super) fn overlaps_part(&self, start: u64, len: u64) -> bool {
        let overlaps = |(at, part): (&u64, &Part)| {
            let (other, others) = match part.from {
                From::OnGpu => (*at, slot(part.bytes).unwrap_or(part.bytes)),
                _ => pages(*at, part.bytes),
            };
            other < start + len && start < other + others
        };
        lock(&self.pinned.parts).iter().any(overlaps)
    }

    /// Maps fresh pages for mirrored memory.
    fn map_mirrored(&self, at: u64, bytes: u64) -> Result<(), Code> {
        let mapped = map_apart(at, bytes).inspect_err(|why| {
            if *why == NotMapped::Taken {
                self.pinned.collided.store(true, Ordering::Release);
            }
        });
        Ok(mapped?)
    }

    /// Returns whether the job has requested memory at an address that this process uses itself: the place must then be closed.
    pub fn has_collided(&self) -> bool {
        self.pinned.collided.load(Ordering::Acquire)
    }

    /// Returns whether there is mirrored host memory.
    pub fn has_apart(&self) -> bool {
        self.pinned.any_apart.load(Ordering::Acquire)
    }

    /// The changes of mirrored memory since the last scan.
    pub fn collect_changes(&self) -> PlaceChanges {
        let mut apart = lock(&self.pinned.apart);
        PlaceChanges { messages: apart.taken, blocks: apart.blocks, lines: apart.mirrored.changes() }
    }

    /// Adds a block of mirrored memory to a slab. Counted also if it fails, as the job has counted it.
    pub(super) fn host_block(&self, mut body: &[u8]) -> Result<(), Code> {
        let mut slabs = lock(&self.pinned.slabs);
        // A scan finds the block and the count of it, or neither.
        let mut apart = lock(&self.pinned.apart);
        apart.blocks += 1;
        self.add_block(&mut slabs, &mut apart, &HostPin::get(&mut body).map_err(short)?)
    }

    pub(super) fn host_unpin(&self, mut body: &[u8]) -> Result<(), Code> {
        self.unpin_host(u64::get(&mut body).map_err(short)?);
        Ok(())
    }

    /// As [`Executor::is_host`]; false also if the driver takes the memory for the device's.
    pub(super) fn is_host_for_driver(&self, address: u64, span: u64) -> Result<bool, Code> {
        Ok(self.is_host(address, span)? && !self.is_on_gpu(address))
    }

    /// Returns whether `span` bytes from an address in a call are pinned memory of the job; false if none of them are.
    ///
    /// # Errors
    /// `INVALID_VALUE` if only some of them are.
    pub(super) fn is_host(&self, address: u64, span: u64) -> Result<bool, Code> {
        let in_arena = (HOST..HOST_END).contains(&address);
        if !in_arena && !self.has_apart() {
            return Ok(false);
        }
        match inside(&lock(&self.pinned.parts), address, span) {
            Some(true) => Ok(true),
            None if !in_arena => Ok(false),
            _ => Err(code::ERROR_INVALID_VALUE),
        }
    }

    /// Registers everything again, with the driver's new context.
    pub(super) fn pin_again(&self) -> Result<(), Code> {
        let slabs: Vec<(u64, u64)> = lock(&self.pinned.slabs).iter().map(|(at, slab)| (*at, slab.bytes)).collect();
        slabs.into_iter().try_for_each(|(at, bytes)| self.gpu.register(at, bytes, 0))?;
        let parts = lock(&self.pinned.parts);
        let alone = parts.iter().filter(|(_, part)| !matches!(part.from, From::Slab(_)));
        alone.into_iter().try_for_each(|(at, part)| self.gpu.register(*at, part.bytes, part.flags))
    }

    /// Unregisters everything; the context is current.
    pub(super) fn unpin_all(&self) {
        let all: Vec<u64> = lock(&self.pinned.parts).keys().copied().collect();
        all.into_iter().for_each(|at| self.unpin_host(at));
    }
}
