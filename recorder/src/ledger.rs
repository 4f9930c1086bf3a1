//! A device's journal and what goes with it: held locked over a state-building call and its record, so that the journal is the
//! order of those calls.

use crate::mover::error::MoveError;
use cuda_api::arg::Edges;
use cuda_api::calls::Call;
use cuda_api::calls::context::{cuCtxSetCacheConfig, cuCtxSetLimit, cuCtxSetSharedMemConfig};
use cuda_api::calls::module::{
    cuFuncLoad, cuFuncSetAttribute, cuFuncSetCacheConfig, cuFuncSetSharedMemConfig, cuKernelSetAttribute, cuKernelSetCacheConfig,
};
use cuda_api::code::Code;
use cuda_api::handle::{Kind, kind};
use cuda_api::ops;
use cuda_api::sys::CUlimit_enum as Limit;
use cuda_api::wire::Wire;
use executor::DeviceInfo;
use journal::{JournalError, Meta, OwnedRecord, Record, Role, Writer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

mod error;
pub(crate) use error::NoJournal;

/// What was asked: id and encoded arguments without the handle that the call makes.
pub(crate) type Key = (u16, Vec<u8>);

/// So many arrays are kept for the sake of what is loaded beside them; more would make the journal grow.
const MOST_ARRAYS: usize = 1000;

/// Images of which nothing is loaded any more that a device keeps, and their bytes: programs load the same code again.
const IDLE_IMAGES: usize = 32;
const IDLE_IMAGE_BYTES: usize = 64 << 20;

/// How long a record counts, beside what its handles say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) role: Role,
    pub(crate) setting: Option<[u64; 2]>,
}

impl Keep {
    /// As long as its handles.
    pub(crate) const PLAIN: Keep = Keep { role: Role::Plain, setting: None };

    /// Until the same is set again, of something (0: of the context).
    pub(crate) fn setting(of: u64, call: u16, which: u32) -> Keep {
        Keep { role: Role::Plain, setting: Some([of, u64::from(call) << 32 | u64::from(which)]) }
    }

    /// Whatever is unloaded, until the same happens again: it has changed where code lies.
    pub(crate) fn stays(call: u16, which: u32) -> Keep {
        Keep { role: Role::Stays, ..Keep::setting(0, call, which) }
    }

    /// A record of a row. `first` is the first handle that it uses.
    fn of_row<C: Call>(body: &[u8], first: Option<u64>, edges: &Edges) -> Keep {
        let which = |at: usize| body.get(at..).and_then(|mut rest| u32::get(&mut rest).ok()).unwrap_or(0);
        match (C::ID, first) {
            (cuFuncSetAttribute::Fn::ID, Some(f)) => Keep::setting(f, C::ID, which(size_of::<u64>())),
            (cuKernelSetAttribute::Fn::ID, Some(k)) => Keep::setting(k, C::ID, which(0)),
            (
                cuFuncLoad::Fn::ID
                | cuFuncSetCacheConfig::Fn::ID
                | cuFuncSetSharedMemConfig::Fn::ID
                | cuKernelSetCacheConfig::Fn::ID,
                Some(f),
            ) => Keep::setting(f, C::ID, 0),
            (cuCtxSetLimit::Fn::ID, _) => Keep::setting(0, C::ID, which(0)),
            (cuCtxSetCacheConfig::Fn::ID | cuCtxSetSharedMemConfig::Fn::ID, _) => Keep::setting(0, C::ID, 0),
            _ if C::IS_CODE && !edges.creates.is_empty() => Keep { role: Role::Child, setting: None },
            _ => Keep::PLAIN,
        }
    }
}

/// An image that the device has been sent.
#[derive(Debug)]
struct Sent {
    /// Its name in the journal.
    name: u64,
    bytes: usize,
    /// Modules and libraries that were loaded of it.
    loaded: usize,
}

/// Journal and memory of one device's state-building calls.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Without one (the disk is full, say) the job runs and cannot move.
    writer: Result<Writer, Arc<NoJournal>>,
    device: u32,
    seq: u64,
    /// Records since the move in progress took its copy.
    tail: Option<Vec<OwnedRecord>>,
    /// Images that the device has been sent, by content hash.
    images: HashMap<[u8; 32], Sent>,
    /// Those of which nothing is loaded, in the order in which that became so.
    idle: VecDeque<[u8; 32]>,
    /// Of which image each module and library was loaded.
    loaded: HashMap<u64, [u8; 32]>,
    /// What settings without a record of their own (attributes of functions have one) were last set to.
    values: BTreeMap<[u64; 2], Vec<u8>>,
    /// The highest values of the limits that decide what else is placed.
    limits: HashMap<u32, u64>,
    /// Handles that asking again must give again.
    known: HashMap<Key, u64>,
    /// Handles that end with another: functions with their module, kernels with their library.
    children: HashMap<u64, Vec<(u64, Key)>>,
    /// And with which.
    parents: HashMap<u64, u64>,
    /// Arrays that are alive, and memory for tiles, which has some: what is loaded beside them lies where they leave room
    /// (docs/migration.md, "What the journal keeps").
    arrays: BTreeSet<u64>,
}

/// A name for a record that a later one makes superfluous: only the journal knows it.
pub(crate) fn change() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    0x5d << 56 | NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Ledger {
    /// An empty journal for a device. If its file cannot be made the job runs without one.
    pub(crate) fn create(device: u32, info: &DeviceInfo) -> Ledger {
        let writer = Ledger::open(device, info).map_err(Arc::new);
        if let Err(why) = &writer {
            crate::log::tell(&format!("GPU {device} has no journal, so it cannot move: {why}"));
        }
        Ledger {
            writer,
            device,
            seq: 0,
            tail: None,
            images: HashMap::new(),
            idle: VecDeque::new(),
            loaded: HashMap::new(),
            values: BTreeMap::new(),
            limits: HashMap::new(),
            known: HashMap::new(),
            children: HashMap::new(),
            parents: HashMap::new(),
            arrays: BTreeSet::new(),
        }
    }

    /// Unless it is to be kept there is no file: it is gone when the job is, however that ends.
    fn open(device: u32, info: &DeviceInfo) -> Result<Writer, NoJournal> {
        let Some(folder) = &crate::config::get()?.keep_journal else {
            return Writer::in_memory().map_err(NoJournal::Memory);
        };
        let path = folder.join(format!("{}.d{device}.journal", std::process::id()));
        let meta = Meta {
            build: rcuda_forwarder::build_digest(),
            pid: std::process::id(),
            created_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            driver_version: info.driver_version,
            about: serde_json::json!({ "device": device, "name": info.name, "capability": info.capability }).to_string(),
        };
        Writer::create(&path, &meta).map_err(|source| NoJournal::File { path, source })
    }

    /// A record with such a name ([`change`]) need not be replayed any more.
    pub(crate) fn overtaken(&mut self, change: u64) -> Result<(), Code> {
        let edges = Edges { ends: Some(change), ..Edges::default() };
        self.append(ops::id::OVERTAKEN, &change.to_le_bytes(), &[], &edges, Keep::PLAIN)
    }

    /// How long the record of a row counts; none if it changes nothing.
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
        // Memory that a stack or a heap needed was placed while its limit was the highest so far.
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

    /// Whether a setting of a function or kernel has this value already by an earlier call.
    pub(crate) fn is_set<C: Call>(&self, body: &[u8], edges: &Edges) -> bool {
        let Some(first) = edges.uses.first().copied().filter(|_| C::IS_CODE) else { return false };
        let known = Keep::of_row::<C>(body, Some(first), edges).setting.and_then(|setting| self.values.get(&setting));
        known.is_some_and(|value| value == body)
    }

    /// Appends the record of a call that has succeeded. If the file cannot grow the job goes on and moves are refused.
    pub(crate) fn append(&mut self, id: u16, body: &[u8], reply: &[u8], edges: &Edges, keep: Keep) -> Result<(), Code> {
        self.seq += 1;
        match (id, edges.creates.first(), edges.ends) {
            (ops::id::ARRAY_MAKE | ops::id::TILE_POOL_MAKE, Some(made), _) => drop(self.arrays.insert(*made)),
            (ops::id::ARRAY_END | ops::id::TILE_POOL_END, _, Some(ended)) => drop(self.arrays.remove(&ended)),
            _ => {}
        }
        // What decides where code and variables lie needs the arrays beside it.
        let places = matches!(keep.role, Role::Load | Role::LightLoad | Role::Stays);
        let uses: Cow<'_, [u64]> = if places && !self.arrays.is_empty() {
            edges.uses.iter().chain(self.arrays.iter().take(MOST_ARRAYS)).copied().collect()
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
        if let Err(e) = writer.append(&record) {
            if was_complete {
                crate::log::tell(&format!("the journal of GPU {} cannot grow ({e}); this job can no longer move", self.device));
            }
            return Ok(());
        }
        if let Some(tail) = &mut self.tail {
            tail.push(record.into());
        }
        Ok(())
    }

    /// The process ends in an orderly way.
    pub(crate) fn end(&mut self) {
        if let Ok(writer) = &mut self.writer {
            writer.mark_end();
        }
    }

    fn writer(&self) -> Result<&Writer, MoveError> {
        self.writer.as_ref().map_err(|why| MoveError::NoJournal(why.clone()))
    }

    /// What a fresh place must be told.
    pub(crate) fn live(&self) -> Result<Vec<OwnedRecord>, MoveError> {
        Ok(self.writer()?.checked_live()?)
    }

    /// Takes what a fresh place must be told, and collects what comes after it.
    pub(crate) fn begin_move(&mut self) -> Result<Vec<OwnedRecord>, MoveError> {
        let live = self.live()?;
        self.tail = Some(Vec::new());
        Ok(live)
    }

    /// What came since the last call of this or [`Ledger::begin_move`]. An error if the journal could not take all of it.
    pub(crate) fn take_tail(&mut self) -> Result<Vec<OwnedRecord>, MoveError> {
        if !self.writer()?.is_complete() {
            return Err(JournalError::Incomplete.into());
        }
        Ok(self.tail.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Whether code was loaded since the last call of [`Ledger::take_tail`].
    pub(crate) fn has_new_code(&self) -> bool {
        self.tail.iter().flatten().any(|r| r.id == ops::id::IMAGE_LOAD)
    }

    /// The move is over, one way or the other.
    pub(crate) fn end_move(&mut self) {
        self.tail = None;
    }

    /// Records that a fresh place must be told, and the bytes of the whole journal.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.writer.as_ref().map_or((0, 0), |w| (w.live_count() as u64, w.bytes()))
    }

    /// The journal's name of an image that the device has.
    pub(crate) fn image(&self, hash: &[u8; 32]) -> Option<u64> {
        self.images.get(hash).map(|sent| sent.name)
    }

    /// The device has an image now: its body as it was sent.
    pub(crate) fn put_image(&mut self, hash: [u8; 32], body: &[u8]) -> Result<u64, Code> {
        let name = change();
        self.append(ops::id::IMAGE_PUT, body, &[], &Edges { creates: [name].into(), ..Edges::default() }, Keep::PLAIN)?;
        self.images.insert(hash, Sent { name, bytes: body.len(), loaded: 0 });
        self.idle.push_back(hash);
        Ok(name)
    }

    /// A module or library was loaded of an image.
    pub(crate) fn loaded(&mut self, handle: u64, hash: [u8; 32]) {
        let Some(sent) = self.images.get_mut(&hash) else { return };
        sent.loaded += 1;
        self.loaded.insert(handle, hash);
        self.idle.retain(|idle| *idle != hash);
    }

    /// A module or library was unloaded. The images that the device shall forget now.
    pub(crate) fn unloaded(&mut self, handle: u64) -> Vec<[u8; 32]> {
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

    /// The device has forgotten an image.
    pub(crate) fn end_image(&mut self, hash: &[u8; 32]) -> Result<(), Code> {
        let Some(sent) = self.images.remove(hash) else { return Ok(()) };
        let edges = Edges { ends: Some(sent.name), ..Edges::default() };
        self.append(ops::id::IMAGE_END, hash, &[], &edges, Keep::PLAIN)
    }

    /// The handle that was given for the same question.
    pub(crate) fn known(&self, key: &Key) -> Option<u64> {
        self.known.get(key).copied()
    }

    /// Remembers the handle that was given, as a child of the first handle that the question used.
    pub(crate) fn learn(&mut self, key: Key, edges: &Edges) {
        let Some(made) = edges.creates.first() else { return };
        self.known.insert(key.clone(), *made);
        if let Some(parent) = edges.uses.first() {
            self.children.entry(*parent).or_default().push((*made, key));
            self.parents.insert(*made, *parent);
        }
    }

    /// Whether a handle was lent by another (the module of a library).
    pub(crate) fn is_child(&self, handle: u64) -> bool {
        self.parent(handle).is_some()
    }

    /// Who has lent a handle.
    pub(crate) fn parent(&self, handle: u64) -> Option<u64> {
        self.parents.get(&handle).copied()
    }

    /// Other handles that mean the same function as this one, or may do so: a kernel of a library, its function, and functions of the
    /// library's module, which are only told apart by their names.
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

    /// Forgets what ended with `parent`, and gives it.
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

    /// The context has been reset, and its modules unloaded before: also what libraries and their kernels have lent ended with it, and
    /// what was set. Gives what ended.
    pub(crate) fn context_ended(&mut self) -> Result<Vec<u64>, Code> {
        self.values.clear();
        self.limits.clear();
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
