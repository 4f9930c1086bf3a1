//! A device's journal with its associated state. It sends nothing and has no lock: it says what is to be done for a call ([`call`]), and
//! is told what has succeeded. Whoever carries that out has the ledger locked from before the call until it is recorded
//! ([`crate::job::Device::ledger`]), so that the journal has the order in which the calls took effect. `ledger/model.rs` checks that a replay
//! then builds the same state, whatever fails.

use crate::move_error::MoveError;
use cuda_api::arg::Edges;
use cuda_api::calls::Call;
use cuda_api::calls::context::cuCtxSetLimit;
use cuda_api::calls::module::{
    cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig, cuKernelSetAttribute, cuKernelSetCacheConfig,
};
use cuda_api::code::Code;
use cuda_api::handle::{Kind, kind};
use cuda_api::ops;
use cuda_api::sys::CUlimit_enum as Limit;
use cuda_api::wire::Wire;
use journal::{JournalError, Record, RecordBuffer, Role, Writer};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) mod call;
mod error;
mod known_code;
pub(crate) mod open;
pub(crate) mod tail;
pub(crate) use error::NoJournal;
use known_code::KnownCode;
use tail::{Tail, Weight};

/// Identifies a request: call id and encoded arguments, without the handle that the call creates.
pub(crate) type Key = (u16, Vec<u8>);

/// Rows that set preferences of a function: through another handle of the function, too.
pub(crate) const PREFERENCES: [u16; 3] =
    [cuFuncSetCacheConfig::Fn::ID, cuFuncSetSharedMemConfig::Fn::ID, cuKernelSetCacheConfig::Fn::ID];

/// Maximum number of array records that are kept because of code that was loaded while the arrays existed; more would make the journal
/// grow.
const MAX_ARRAYS: usize = 1000;

/// Maximum number of images without loaded modules that a device keeps, and of their bytes: programs load the same code again.
const IDLE_IMAGES: usize = 32;
const IDLE_IMAGE_BYTES: usize = 64 << 20;
/// Maximum capacity of [`Ledger::image_body`].
const KEPT_IMAGE_BODY: usize = 4 << 20;

/// How long a record stays live, besides what its handles determine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) role: Role,
    pub(crate) setting: Option<[u64; 2]>,
}

impl Keep {
    /// As long as its handles exist.
    pub(crate) const PLAIN: Keep = Keep { role: Role::Plain, setting: None };

    /// Until the same setting of the same object (0: the context) is set again.
    pub(crate) fn setting(of: u64, call: u16, which: u32) -> Keep {
        Keep { role: Role::Plain, setting: Some([of, u64::from(call) << 32 | u64::from(which)]) }
    }

    /// Until the same call is made again, whatever is unloaded: it changed where code is placed.
    pub(crate) fn stays(call: u16, which: u32) -> Keep {
        Keep { role: Role::Stays, ..Keep::setting(0, call, which) }
    }

    /// The retention of a row's record. `first` is the first handle that it uses.
    fn of_row<C: Call>(mut body: &[u8], first: Option<u64>, edges: &Edges) -> Keep {
        if C::IS_SETTING {
            return Keep::setting(first.unwrap_or(0), C::ID, C::Sent::get(&mut body).map_or(0, |sent| C::key(&sent)));
        }
        match C::IS_CODE && !edges.creates.is_empty() {
            true => Keep { role: Role::Child, setting: None },
            false => Keep::PLAIN,
        }
    }
}

/// An image that was sent to the device.
#[derive(Debug)]
struct Sent {
    /// Its name in the journal.
    name: u64,
    bytes: usize,
    /// Modules and libraries that are loaded from it.
    loaded: usize,
}

/// Journal and related state of one device's state-building calls.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Without a writer (for example because the disk is full) the job runs but cannot move.
    writer: Result<Writer, Arc<NoJournal>>,
    device: u32,
    seq: u64,
    /// Records since the move in progress took the live set.
    tail: Option<Tail>,
    /// Images that were sent to the device, by content hash.
    images: FxHashMap<[u8; 32], Sent>,
    /// Images without loaded modules, in the order in which they became idle.
    idle: VecDeque<[u8; 32]>,
    /// The image from which each module and library was loaded.
    loaded: FxHashMap<u64, [u8; 32]>,
    /// Current values of settings without a record of their own (attributes of functions have one).
    values: BTreeMap<[u64; 2], Vec<u8>>,
    /// The highest values of the limits that determine where memory is placed.
    limits: FxHashMap<u32, u64>,
    /// Handles that a repeated request must return again.
    known: FxHashMap<Key, u64>,
    /// Handles that are destroyed with another: functions with their module, kernels with their library.
    children: FxHashMap<u64, Vec<(u64, Key)>>,
    /// The inverse of `children`.
    parents: FxHashMap<u64, u64>,
    /// Live arrays, and memory for tiles, which contains arrays: they determine where code that is loaded beside them is placed
    /// (docs/migration.md, "What the journal keeps").
    arrays: BTreeSet<u64>,
    /// A buffer for the records of images, which are large: new memory would cost more than the copy.
    image_body: Vec<u8>,
    /// What the place has said ahead about loaded code.
    pub(crate) code: KnownCode,
}

/// A new name for a record that a later one will supersede; used only inside the journal.
pub(crate) fn change() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    0x5d << 56 | NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Ledger {
    /// An empty ledger for a device with its journal. Without one, the job runs but cannot move.
    pub(crate) fn new(device: u32, writer: Result<Writer, NoJournal>) -> Ledger {
        Ledger {
            writer: writer.map_err(Arc::new),
            device,
            seq: 0,
            tail: None,
            images: FxHashMap::default(),
            idle: VecDeque::new(),
            loaded: FxHashMap::default(),
            values: BTreeMap::new(),
            limits: FxHashMap::default(),
            known: FxHashMap::default(),
            children: FxHashMap::default(),
            parents: FxHashMap::default(),
            arrays: BTreeSet::new(),
            image_body: Vec::new(),
            code: KnownCode::default(),
        }
    }

    /// Marks the record with this name ([`change`]) as superseded: it need not be replayed.
    pub(crate) fn overtaken(&mut self, change: u64) -> Result<(), Code> {
        let edges = Edges { ends: Some(change), ..Edges::default() };
        self.append(ops::id::OVERTAKEN, &change.to_le_bytes(), &[], &edges, Keep::PLAIN)
    }

    /// The retention of a row's record; `None` if the call changes nothing.
    pub(crate) fn keep<C: Call>(&mut self, body: &[u8], edges: &Edges) -> Option<Keep> {
        let first = edges.uses.first().copied();
        let keep = Keep::of_row::<C>(body, first, edges);
        let Some(setting) = keep.setting.filter(|_| ![cuFuncSetAttribute::Fn::ID, cuKernelSetAttribute::Fn::ID].contains(&C::ID))
        else {
            return Some(keep);
        };
        if self.values.get(&setting).is_some_and(|value| value == body) {
            return None;
        }
        self.values.insert(setting, body.to_vec());
        for alias in first.filter(|_| PREFERENCES.contains(&C::ID)).map(|f| self.aliases(f)).unwrap_or_default() {
            self.forget_values(alias);
        }
        // Memory for a stack or heap was placed while its limit was the highest so far.
        let (limit, value) = (body.get(..4), body.get(4..12));
        if let (cuCtxSetLimit::Fn::ID, Some(limit), Some(value)) = (C::ID, limit, value) {
            let limit = u32::from_le_bytes([limit[0], limit[1], limit[2], limit[3]]);
            let value = value.try_into().map_or(0, u64::from_le_bytes);
            let places = [Limit::CU_LIMIT_STACK_SIZE as u32, Limit::CU_LIMIT_MALLOC_HEAP_SIZE as u32].contains(&limit);
            let highest = self.limits.entry(limit).or_default();
            if places && value > *highest {
                *highest = value;
                return Some(Keep::PLAIN);
            }
        }
        Some(keep)
    }

    /// Returns whether a setting of a function or kernel already has this value from an earlier call.
    pub(crate) fn is_set<C: Call>(&self, body: &[u8], edges: &Edges) -> bool {
        let Some(first) = edges.uses.first().copied().filter(|_| C::IS_CODE) else { return false };
        let known = Keep::of_row::<C>(body, Some(first), edges).setting.and_then(|setting| self.values.get(&setting));
        known.is_some_and(|value| value == body)
    }

    /// Appends the record of a call that has succeeded. If the file cannot grow, the job continues and moves are refused.
    pub(crate) fn append(&mut self, id: u16, body: &[u8], reply: &[u8], edges: &Edges, keep: Keep) -> Result<(), Code> {
        crate::base::log::recorded(id);
        self.seq += 1;
        match (id, edges.creates.first(), edges.ends) {
            (ops::id::ARRAY_MAKE | ops::id::TILE_POOL_MAKE, Some(made), _) => drop(self.arrays.insert(*made)),
            (ops::id::ARRAY_END | ops::id::TILE_POOL_END, _, Some(ended)) => drop(self.arrays.remove(&ended)),
            _ => {}
        }
        // What determines where code and variables are placed depends on the arrays that exist then.
        let places = matches!(keep.role, Role::Load | Role::LightLoad | Role::Stays);
        let uses: Cow<'_, [u64]> = if places && !self.arrays.is_empty() {
            edges.uses.iter().chain(self.arrays.iter().take(MAX_ARRAYS)).copied().collect()
        } else {
            Cow::Borrowed(&edges.uses)
        };
        let record = Record {
            seq: self.seq,
            id,
            role: keep.role,
            setting: keep.setting,
            device: self.device,
            creates: &edges.creates,
            ends: edges.ends,
            uses: &uses,
            body,
            reply,
        };
        let Ok(writer) = &mut self.writer else { return Ok(()) };
        let was_complete = writer.is_complete();
        let tail = self.tail.as_mut();
        // What the journal takes, the tail takes as well.
        let appended = writer.append(&record).and_then(|()| tail.map_or(Ok(()), |tail| tail.push(&record)));
        if let (Err(e), true) = (appended, was_complete) {
            tracing::warn!(target: "migrate", "the journal of GPU {} cannot grow ({e}); this job can no longer move", self.device);
        }
        Ok(())
    }

    /// Closes the journal at an orderly end of the process.
    pub(crate) fn end(&mut self) {
        if let Ok(writer) = &mut self.writer {
            writer.mark_end();
        }
    }

    fn writer(&self) -> Result<&Writer, MoveError> {
        self.writer.as_ref().map_err(|why| MoveError::NoJournal(why.clone()))
    }

    /// The live set: the records that a fresh place must replay, viewed in the journal.
    pub(crate) fn live(&self) -> Result<impl Iterator<Item = Result<Record<'_>, JournalError>>, MoveError> {
        Ok(self.writer()?.live())
    }

    /// Returns a copy of the live set, since the job appends while it is replayed.
    pub(crate) fn copy_live(&self) -> Result<RecordBuffer, MoveError> {
        Ok(self.writer()?.copy_live()?)
    }

    /// As [`Ledger::copy_live`], and starts collecting the tail.
    pub(crate) fn begin_move(&mut self) -> Result<RecordBuffer, MoveError> {
        let live = self.copy_live()?;
        self.tail = Some(Tail::default());
        Ok(live)
    }

    /// Takes the tail: the records since the last call of this function or of [`Ledger::begin_move`]. Returns an error if the journal
    /// could not record all of them.
    pub(crate) fn take_tail(&mut self) -> Result<RecordBuffer, MoveError> {
        if !self.writer()?.is_complete() {
            return Err(JournalError::Incomplete.into());
        }
        Ok(self.tail.as_mut().map(std::mem::take).unwrap_or_default().records)
    }

    /// What the records since the last call of [`Ledger::take_tail`] cost to replay.
    pub(crate) fn tail_weight(&self) -> Weight {
        self.tail.as_ref().map(|tail| tail.weight).unwrap_or_default()
    }

    /// Whether the records since the last call of [`Ledger::take_tail`] end the chunk at an address.
    pub(crate) fn tail_ends(&self) -> impl Fn(u64) -> bool + use<> {
        let records = self.tail.iter().flat_map(|tail| tail.records.iter());
        let (mut resets, mut chunks) = (false, HashSet::new());
        for record in records {
            match record.id {
                ops::id::CONTEXT_RESET => resets = true,
                ops::id::CHUNK_UNMAP => chunks.extend(ops::Chunk::get(&mut &*record.body).map(|chunk| chunk.address).ok()),
                _ => {}
            }
        }
        move |address| resets || chunks.contains(&address)
    }

    /// Ends a move, whether it succeeded or not.
    pub(crate) fn end_move(&mut self) {
        self.tail = None;
    }

    /// The number of records in the live set, and the size of the whole journal in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.writer.as_ref().map_or((0, 0), |w| (w.live_count() as u64, w.bytes()))
    }

    /// The journal's name of an image that the device has.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Option<u64> {
        self.images.get(hash).map(|sent| sent.name)
    }

    /// Notes that the device now has an image; `head` and `image` are its body as sent.
    pub(crate) fn put_image(&mut self, hash: [u8; 32], head: &[u8], image: &[u8]) -> Result<u64, Code> {
        let name = change();
        let mut body = std::mem::take(&mut self.image_body);
        body.extend_from_slice(head);
        body.extend_from_slice(image);
        let bytes = body.len();
        let appended =
            self.append(ops::id::IMAGE_PUT, &body, &[], &Edges { creates: [name].into(), ..Edges::default() }, Keep::PLAIN);
        if body.capacity() <= KEPT_IMAGE_BODY {
            body.clear();
            self.image_body = body;
        }
        appended?;
        self.images.insert(hash, Sent { name, bytes, loaded: 0 });
        self.idle.push_back(hash);
        Ok(name)
    }

    /// Notes that a module or library was loaded from an image.
    pub(crate) fn loaded(&mut self, handle: u64, hash: [u8; 32]) {
        let Some(sent) = self.images.get_mut(&hash) else { return };
        sent.loaded += 1;
        self.loaded.insert(handle, hash);
        self.idle.retain(|idle| *idle != hash);
    }

    /// Notes that a module or library was unloaded. Returns the images to evict from the device.
    pub(crate) fn unloaded(&mut self, handle: u64) -> Vec<[u8; 32]> {
        self.code.forget(handle);
        if let Some(hash) = self.loaded.remove(&handle)
            && let Some(sent) = self.images.get_mut(&hash)
        {
            sent.loaded -= 1;
            if sent.loaded == 0 {
                self.idle.push_back(hash);
            }
        }
        let bytes = |hash: &[u8; 32]| self.images.get(hash).map_or(0, |sent| sent.bytes);
        let mut idle_bytes: usize = self.idle.iter().map(bytes).sum();
        let mut gone = Vec::new();
        while self.idle.len() > IDLE_IMAGES || idle_bytes > IDLE_IMAGE_BYTES {
            let Some(hash) = self.idle.pop_front() else { break };
            idle_bytes -= bytes(&hash);
            gone.push(hash);
        }
        gone
    }

    /// Notes that the device has evicted an image.
    pub(crate) fn end_image(&mut self, hash: &[u8; 32]) -> Result<(), Code> {
        let Some(sent) = self.images.remove(hash) else { return Ok(()) };
        let edges = Edges { ends: Some(sent.name), ..Edges::default() };
        self.append(ops::id::IMAGE_END, hash, &[], &edges, Keep::PLAIN)
    }

    /// The handle that was returned for the same request.
    pub(crate) fn known(&self, key: &Key) -> Option<u64> {
        self.known.get(key).copied()
    }

    /// Stores the handle that was returned, as a child of the first handle that the request used.
    pub(crate) fn learn(&mut self, key: Key, edges: &Edges) {
        let Some(made) = edges.creates.first() else { return };
        self.known.insert(key.clone(), *made);
        if let Some(parent) = edges.uses.first() {
            self.children.entry(*parent).or_default().push((*made, key));
            self.parents.insert(*made, *parent);
        }
    }

    /// The encoded `FunctionInfo` of a function or kernel, if the place has said it ahead and nothing has changed since.
    pub(crate) fn function_info(&self, handle: u64) -> Option<Vec<u8>> {
        let parent = self.parent(handle)?;
        if kind(parent) == Some(Kind::Kernel) {
            return self.function_info(parent);
        }
        let (_, (_, request)) = self.children.get(&parent)?.iter().find(|(made, _)| *made == handle)?;
        let (_, name) = <(u64, Vec<u8>)>::get(&mut &request[..]).ok()?;
        self.code.function(parent, &name).map(<[u8]>::to_vec)
    }

    /// Returns whether a handle was obtained from another handle, which owns it (as the module of a library).
    pub(crate) fn is_child(&self, handle: u64) -> bool {
        self.parent(handle).is_some()
    }

    /// The handle that owns this one.
    pub(crate) fn parent(&self, handle: u64) -> Option<u64> {
        self.parents.get(&handle).copied()
    }

    /// Other handles that refer or may refer to the same function as this one: a kernel of a library, its function, and functions of the
    /// library's module, which only names tell apart.
    pub(crate) fn aliases(&self, handle: u64) -> Vec<u64> {
        let of = |parent: u64| self.children.get(&parent).into_iter().flatten().map(|(lent, _)| *lent);
        let kernel = match self.parent(handle) {
            _ if kind(handle) == Some(Kind::Kernel) => Some(handle),
            lender => lender.filter(|lender| kind(*lender) == Some(Kind::Kernel)),
        };
        let lender = kernel.or_else(|| self.parent(handle));
        let Some(library) = lender.and_then(|lender| self.parent(lender)) else { return Vec::new() };
        let of_modules = of(library).filter(|lent| kind(*lent) == Some(Kind::Module)).flat_map(of);
        let kernels = of(library).filter(|lent| kind(*lent) == Some(Kind::Kernel) && kernel.is_none_or(|kernel| kernel == *lent));
        kernels.flat_map(|kernel| of(kernel).chain([kernel])).chain(of_modules).filter(|alias| *alias != handle).collect()
    }

    /// Removes the handles that were destroyed with `parent`, and returns them.
    pub(crate) fn forget_children(&mut self, parent: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        let mut from = vec![parent];
        while let Some(p) = from.pop() {
            for (handle, key) in self.children.remove(&p).unwrap_or_default() {
                self.known.remove(&key);
                self.parents.remove(&handle);
                self.forget_values(handle);
                gone.push(handle);
                from.push(handle);
            }
        }
        gone
    }

    fn forget_values(&mut self, of: u64) {
        while let Some(setting) = self.values.range([of, 0]..=[of, u64::MAX]).next().map(|(setting, _)| *setting) {
            self.values.remove(&setting);
        }
    }

    /// Notes that the context was reset, after its modules were unloaded: the handles obtained from libraries and kernels, and all
    /// settings, are gone too. Returns the handles that were destroyed.
    pub(crate) fn context_ended(&mut self) -> Result<Vec<u64>, Code> {
        self.values.clear();
        self.limits.clear();
        self.code.clear();
        let mut gone = Vec::new();
        for lent in self.children.values_mut() {
            // Kernels belong to no context.
            for (handle, key) in lent.extract_if(.., |(handle, _)| kind(*handle) != Some(Kind::Kernel)) {
                self.known.remove(&key);
                self.parents.remove(&handle);
                gone.push(handle);
            }
        }
        self.children.retain(|parent, lent| !lent.is_empty() && !gone.contains(parent));
        for handle in &gone {
            self.overtaken(*handle)?;
        }
        Ok(gone)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod tests;
