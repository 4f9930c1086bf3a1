//! Adoption: the memory of another place of the same GPU becomes this place's own, without a copy.
//!
//! The source of a move and its target are processes of one machine that use one GPU. The target imports the physical memory of the source's
//! chunks ([`Executor::adopt_from`]), and maps it where a replay asks for a chunk. Until the commit it is the source's: this place executes
//! nothing for the job, a replay writes to no chunk, and rounds leave out what was [adopted](Executor::adopted), so that nothing is written
//! to it. Afterwards the source unmaps it, and this place's mapping keeps it alive.
//!
//! Memory is identified by its number at the source. What the job has unmapped there is not offered any more, and what it has mapped
//! instead has another number; a chunk that a replay asks for a second time gets memory of its own.

use super::Executor;
use super::state::mappings::{Descriptor, Imported, Mapped};
use super::view::{Shown, request};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::Offer;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Descriptors with higher numbers are not kept: half of those that this process may have.
fn highest_descriptor() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if rc == 0 { RawFd::try_from(limit.rlim_cur / 2).unwrap_or(RawFd::MAX) } else { 0 }
}

impl Executor {
    /// Imports the memory of chunks that a place of the same GPU [shows](Executor::show), as far as it is still there. Chunks that are
    /// mapped from now on get it. Memory that was imported before and is not in the list is given up. Returns the bytes that are adopted or
    /// can be.
    ///
    /// # Errors
    /// The place is not on this machine, or of another user; the driver cannot import its memory.
    pub fn adopt_from(&self, offer: &Offer, shown: &[Shown]) -> Result<u64, String> {
        let failed = |what: &'static str| move |rc: Code| format!("{what} failed with error {rc}");
        self.make_current().map_err(failed("using the GPU"))?;
        // Held during the requests: chunks are mapped before or after.
        let mut imported = lock(&self.views.to_adopt);
        let mut before = std::mem::take(&mut *imported);
        let wanted: Vec<&Shown> = {
            let chunks = lock(&self.chunks);
            let adopted = |s: &Shown| chunks.get(&s.address).is_some_and(|c| c.at_source == Some(s.number));
            shown.iter().filter(|s| !adopted(s)).collect()
        };
        let mut missing = Vec::new();
        for s in wanted {
            match before.remove(&s.address) {
                Some(known) if known.number == s.number && known.bytes == s.bytes => {
                    imported.insert(s.address, known);
                }
                other => {
                    self.give_up(other.into_iter());
                    missing.push(*s);
                }
            }
        }
        self.give_up(before.into_values());
        let (names, mut next) = (missing.iter().map(|s| (s.address, s.number)).collect::<Vec<_>>(), missing.iter());
        let highest = highest_descriptor();
        if !names.is_empty() {
            let had = request(offer, &names, |fd| {
                let Some((s, fd)) = next.next().zip(fd) else { return Ok(()) };
                if fd.as_raw_fd() < highest {
                    let memory = self.gpu.import(fd.as_raw_fd()).map_err(failed("importing memory of the source"))?;
                    let memory = Imported { bytes: s.bytes, memory, descriptor: Descriptor::new(fd), number: s.number };
                    imported.insert(s.address, memory);
                }
                Ok(())
            });
            if let Err(why) = had {
                self.give_up(std::mem::take(&mut *imported).into_values());
                return Err(why);
            }
        }
        let mapped: u64 = lock(&self.chunks).values().filter(|c| c.at_source.is_some()).map(|c| c.bytes).sum();
        Ok(mapped + imported.values().map(|i| i.bytes).sum::<u64>())
    }

    pub(super) fn give_up(&self, memory: impl Iterator<Item = Imported>) {
        // Fails only if the driver has already released the memory.
        memory.for_each(|i| {
            let _ = self.gpu.release_memory(i.memory);
        });
    }

    /// Takes the memory that was imported for a chunk.
    pub(super) fn take_imported(&self, address: u64, bytes: u64) -> Option<Imported> {
        let mut imported = lock(&self.views.to_adopt);
        let found = imported.remove(&address)?;
        if found.bytes == bytes {
            return Some(found);
        }
        self.give_up(std::iter::once(found));
        None
    }

    /// The chunks of which the memory is still the source's, with its numbers there.
    pub fn adopted(&self) -> Vec<Shown> {
        let chunks = lock(&self.chunks);
        chunks.iter().filter_map(|(at, c)| Some(Shown { address: *at, bytes: c.bytes, number: c.at_source? })).collect()
    }

    /// From now on adopted memory is this place's own; what was imported and not mapped is given up.
    pub(super) fn end_adoption(&self) {
        self.give_up(std::mem::take(&mut *lock(&self.views.to_adopt)).into_values());
        lock(&self.chunks).values_mut().for_each(|c| c.at_source = None);
    }

    /// Exports the memory of a chunk as a descriptor.
    pub(super) fn export(&self, chunk: &Mapped) -> Result<OwnedFd, Code> {
        match &chunk.descriptor {
            Some(descriptor) => descriptor.fd.try_clone().map_err(|_| code::ERROR_OPERATING_SYSTEM),
            None => self.gpu.export(chunk.memory),
        }
    }
}
