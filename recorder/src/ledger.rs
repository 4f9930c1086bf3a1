//! A device's journal and what goes with it: held locked over a state-building call and its record, so that the journal is the
//! order of those calls.

use cuda_api::arg::Edges;
use cuda_api::code::Code;
use cuda_api::ops;
use journal::{Meta, OwnedRecord, Record, Writer};
use replayer::DeviceInfo;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What was asked: id and encoded arguments without the handle that the call makes.
pub(crate) type Key = (u16, Vec<u8>);

/// So many arrays are kept for the sake of what is loaded beside them; more would make the journal grow.
const MOST_ARRAYS: usize = 1000;

/// Journal and memory of one device's state-building calls.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Without one (the disk is full, say) the job runs and cannot move.
    writer: Result<Writer, String>,
    device: u32,
    seq: u64,
    /// Records since the move in progress took its copy.
    tail: Option<Vec<OwnedRecord>>,
    /// Images that the device has been sent.
    images: HashSet<[u8; 32]>,
    /// Handles that asking again must give again.
    known: HashMap<Key, u64>,
    /// Handles that end with another: functions with their module, kernels with their library.
    children: HashMap<u64, Vec<(u64, Key)>>,
    /// Arrays that are alive, and memory for tiles, which has some: what is loaded beside them lies where they leave room
    /// (docs/placement.md).
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
        let writer = Ledger::open(device, info);
        if let Err(why) = &writer {
            crate::log::tell(&format!("GPU {device} has no journal, so it cannot move: {why}"));
        }
        Ledger {
            writer,
            device,
            seq: 0,
            tail: None,
            images: HashSet::new(),
            known: HashMap::new(),
            children: HashMap::new(),
            arrays: BTreeSet::new(),
        }
    }

    /// Unless it is to be kept there is no file: it is gone when the job is, however that ends.
    fn open(device: u32, info: &DeviceInfo) -> Result<Writer, String> {
        let Some(folder) = &crate::config::get()?.keep_journal else {
            return Writer::in_memory().map_err(|e| e.to_string());
        };
        let path = folder.join(format!("{}.d{device}.journal", std::process::id()));
        let meta = Meta {
            build: rcuda_forwarder::build_digest(),
            pid: std::process::id(),
            created_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            driver_version: info.driver_version,
            about: serde_json::json!({ "device": device, "name": info.name, "capability": info.capability }).to_string(),
        };
        Writer::create(&path, &meta).map_err(|e| format!("cannot write the journal {}: {e}", path.display()))
    }

    /// A record with such a name ([`change`]) need not be replayed any more.
    pub(crate) fn overtaken(&mut self, change: u64) -> Result<(), Code> {
        let edges = Edges { ends: Some(change), ..Edges::default() };
        self.append(ops::id::OVERTAKEN, &change.to_le_bytes(), &[], &edges, false)
    }

    /// Appends the record of a call that has succeeded. If the file cannot grow the job goes on and moves are refused.
    pub(crate) fn append(&mut self, id: u16, body: &[u8], reply: &[u8], edges: &Edges, ordered: bool) -> Result<(), Code> {
        self.seq += 1;
        match (id, edges.creates.first(), edges.ends) {
            (ops::id::ARRAY_MAKE | ops::id::TILE_POOL_MAKE, Some(made), _) => drop(self.arrays.insert(*made)),
            (ops::id::ARRAY_END | ops::id::TILE_POOL_END, _, Some(ended)) => drop(self.arrays.remove(&ended)),
            _ => {}
        }
        // What decides where code and variables lie is never dropped, and so are the arrays beside it.
        let uses: Cow<'_, [u64]> = if ordered && !self.arrays.is_empty() {
            edges.uses.iter().chain(self.arrays.iter().take(MOST_ARRAYS)).copied().collect()
        } else {
            Cow::Borrowed(&edges.uses)
        };
        let record = Record {
            seq: self.seq,
            id,
            ordered,
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
            tail.push(OwnedRecord {
                seq: record.seq,
                id,
                ordered,
                device: self.device,
                creates: edges.creates.to_vec(),
                ends: edges.ends,
                uses: uses.to_vec(),
                body: body.to_vec(),
                reply: reply.to_vec(),
            });
        }
        Ok(())
    }

    fn writer(&self) -> Result<&Writer, String> {
        self.writer.as_ref().map_err(|why| format!("there is no journal: {why}"))
    }

    /// What a fresh place must be told.
    pub(crate) fn live(&self) -> Result<Vec<OwnedRecord>, String> {
        self.writer()?.checked_live().map_err(|e| e.to_string())
    }

    /// Takes what a fresh place must be told, and collects what comes after it.
    pub(crate) fn begin_move(&mut self) -> Result<Vec<OwnedRecord>, String> {
        let live = self.live()?;
        self.tail = Some(Vec::new());
        Ok(live)
    }

    /// What came since the last call of this or [`Ledger::begin_move`]. An error if the journal could not take all of it.
    pub(crate) fn take_tail(&mut self) -> Result<Vec<OwnedRecord>, String> {
        if !self.writer()?.is_complete() {
            return Err("the journal could not grow".into());
        }
        Ok(self.tail.as_mut().map(std::mem::take).unwrap_or_default())
    }

    /// The move is over, one way or the other.
    pub(crate) fn end_move(&mut self) {
        self.tail = None;
    }

    /// Records appended so far.
    pub(crate) fn records(&self) -> u64 {
        self.writer.as_ref().map_or(0, Writer::records)
    }

    /// Whether the device has an image.
    pub(crate) fn has_image(&self, hash: &[u8; 32]) -> bool {
        self.images.contains(hash)
    }

    /// The device has an image now.
    pub(crate) fn put_image(&mut self, hash: [u8; 32]) {
        self.images.insert(hash);
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
        }
    }

    /// Whether a handle was lent by another (the module of a library).
    pub(crate) fn is_child(&self, handle: u64) -> bool {
        self.parent(handle).is_some()
    }

    /// Who has lent a handle.
    pub(crate) fn parent(&self, handle: u64) -> Option<u64> {
        self.children.iter().find(|(_, lent)| lent.iter().any(|(h, _)| *h == handle)).map(|(parent, _)| *parent)
    }

    /// Forgets what ended with `parent`, and gives it.
    pub(crate) fn forget_children(&mut self, parent: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        let mut from = vec![parent];
        while let Some(p) = from.pop() {
            for (handle, key) in self.children.remove(&p).unwrap_or_default() {
                self.known.remove(&key);
                gone.push(handle);
                from.push(handle);
            }
        }
        gone
    }
}
