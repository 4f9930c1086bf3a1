//! Adoption: the memory of another place of the same GPU becomes this place's own, without a copy.
//!
//! The source of a move and its target are processes of one machine that use one GPU. The target imports the physical memory of the source's
//! chunks ([`Executor::adopt_from`]), and maps it where a replay asks for a chunk. Until the commit it is the source's: this place executes
//! nothing for the job, a replay writes to no chunk, and rounds leave out what was [adopted](Executor::adopted), so that nothing is written
//! to it. Afterwards the source unmaps it, and this place's mapping keeps it alive.
//!
//! Memory is identified by its number at the source. What the job has unmapped there is not offered any more, and what it has mapped
//! instead has another number; a chunk that a replay asks for a second time gets memory of its own. The source is asked after the records
//! of a replay are known: then its memory at an address is that of the record, or newer, and a later record says so.

use super::Executor;
use super::state::mappings::{Descriptor, Imported, Mapped, Shown};
use super::view::{SourceMemoryError, failed, request};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::Offer;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Most chunks that are adopted, whatever the limit: forked children have to be kept from so many descriptors.
const MAX_CHUNKS: usize = 12 << 10;

/// The limit of this process for the numbers of its descriptors.
fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable. If it fails, the limit is zero, and nothing is adopted.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// How many chunks a process may adopt, and the lowest number of the descriptors that it keeps of them. It may be the program's process,
/// which finds its own descriptors among low numbers: most room is above the limit in force, where the program opens none.
fn room(limit: &libc::rlimit) -> (usize, RawFd) {
    let number = |n: libc::rlim_t| RawFd::try_from(n).unwrap_or(RawFd::MAX);
    let (now, most) = (number(limit.rlim_cur), number(limit.rlim_max));
    let (chunks, lowest) = if most - now > now / 4 { (most - now, now) } else { (now / 4, now / 2) };
    (MAX_CHUNKS.min(chunks as usize), lowest)
}

/// A descriptor with at least this number instead of another one.
fn moved_to(lowest: RawFd, fd: &OwnedFd) -> Option<OwnedFd> {
    /// Another GPU's move must not take a raised limit for the one to restore.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    // SAFETY: `fd` is open.
    let duplicate = || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
    let limit = limit();
    let high = if lowest as libc::rlim_t >= limit.rlim_cur { with_limit(limit, duplicate) } else { duplicate() };
    // SAFETY: a new descriptor that nothing else owns.
    (high >= 0).then(|| unsafe { OwnedFd::from_raw_fd(high) })
}

/// Runs `open` with as high a limit as the system allows. What is opened above the former limit stays open. The limit is raised only that
/// long, since programs derive sizes from it, and since what they start inherits it.
fn with_limit<T>(before: libc::rlimit, open: impl FnOnce() -> T) -> T {
    let raised = libc::rlimit { rlim_cur: before.rlim_max, ..before };
    // SAFETY: both structs are readable. If the first call fails, `open` finds no number.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    let opened = open();
    // SAFETY: as above. A limit can always be lowered.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) };
    opened
}

impl Executor {
    /// Tests whether chunks that a place of the same GPU [shows](Executor::show) could be adopted, and returns the bytes of those for which
    /// there is room. Nothing is kept.
    ///
    /// # Errors
    /// The place is not on this machine, or of another user; the driver cannot import its memory.
    pub fn could_adopt(&self, offer: &Offer, shown: &[Shown]) -> Result<u64, SourceMemoryError> {
        self.make_current().map_err(failed("using the GPU"))?;
        let mut one = Ok(());
        // The others of them: chunks may go at any time.
        let names: Vec<(u64, u64)> = shown.iter().map(|s| (s.address, s.number)).take(16).collect();
        request(offer, &names, |fd| {
            if let (Some(fd), Ok(())) = (fd, &one) {
                one = self.gpu.import(fd.as_raw_fd()).and_then(|memory| self.gpu.release_memory(memory));
            }
            Ok(())
        })?;
        one.map_err(failed("importing memory of the source"))?;
        Ok(shown.iter().take(room(&limit()).0).map(|s| s.bytes).sum())
    }

    /// Imports the memory of chunks that a place of the same GPU [shows](Executor::show), as far as it is still there. Chunks that are
    /// mapped from now on get it. What was imported before and is not in the list is given up.
    ///
    /// # Errors
    /// As for [`Executor::could_adopt`]; nothing is imported then.
    pub fn adopt_from(&self, offer: &Offer, shown: &[Shown]) -> Result<(), SourceMemoryError> {
        self.make_current().map_err(failed("using the GPU"))?;
        // Held during the requests: chunks are mapped before or after.
        let mut imported = lock(&self.views.to_adopt);
        self.give_up(std::mem::take(&mut *imported).into_values());
        let (most, lowest) = room(&limit());
        let kept = lock(&self.chunks).values().filter(|c| c.descriptor.is_some()).count();
        let wanted = &shown[..shown.len().min(most.saturating_sub(kept))];
        if wanted.is_empty() {
            return Ok(());
        }
        let (names, mut next) = (wanted.iter().map(|s| (s.address, s.number)).collect::<Vec<_>>(), wanted.iter());
        let had = request(offer, &names, |fd| {
            let Some((s, fd)) = next.next().zip(fd.and_then(|fd| moved_to(lowest, &fd))) else { return Ok(()) };
            let memory = self.gpu.import(fd.as_raw_fd()).map_err(failed("importing memory of the source"))?;
            let memory = Imported { bytes: s.bytes, memory, descriptor: Descriptor::new(fd), number: s.number };
            self.give_up(imported.insert(s.address, memory).into_iter());
            Ok(())
        });
        if had.is_err() {
            self.give_up(std::mem::take(&mut *imported).into_values());
        } else {
            faults::at(faults::Point::Adopt);
        }
        had
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
        if lock(&self.chunks).values().any(|c| c.at_source.is_some()) {
            faults::at(faults::Point::Adopted);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn limits(rlim_cur: u64, rlim_max: u64) -> libc::rlimit {
        libc::rlimit { rlim_cur, rlim_max }
    }

    #[test]
    fn descriptors_are_kept_above_the_limit_where_the_system_allows_more() {
        assert_eq!(room(&limits(1024, 1 << 20)), (MAX_CHUNKS, 1024));
        assert_eq!(room(&limits(1024, libc::RLIM_INFINITY)), (MAX_CHUNKS, 1024));
        assert_eq!(room(&limits(1024, 4096)), (3072, 1024));
        // A worker has raised its own.
        assert_eq!(room(&limits(1 << 20, 1 << 20)), (MAX_CHUNKS, 1 << 19));
        assert_eq!(room(&limits(1024, 1024)), (256, 512));
        assert_eq!(room(&limits(libc::RLIM_INFINITY, libc::RLIM_INFINITY)).0, MAX_CHUNKS);
        assert_eq!(room(&limits(0, 0)).0, 0);
    }

    #[test]
    fn a_descriptor_above_the_limit_stays_open_and_the_limit_as_it_was() {
        let most = limit().rlim_max;
        let now = (most / 2).min(1 << 16);
        let lower = limits(now, most);
        // SAFETY: the struct is readable. The other tests of this process need less.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lower) };
        let lowest = RawFd::try_from(now).unwrap();
        let fd = moved_to(lowest, &File::open("/proc/self/exe").unwrap().into()).expect("the system gives one");
        assert!(fd.as_raw_fd() >= lowest);
        assert!(File::from(fd).metadata().unwrap().len() > 0);
        assert_eq!((limit().rlim_cur, limit().rlim_max), (now, most));
    }
}
