//! Nodes of graphs that copy from or to the job's memory, and what they do in a launch.

use super::buffers::Pinned;
use super::pinned::PinnedMemory;
use crate::gpu::graphs::NodeParams;
use cuda_api::code::{self, Code};
use cuda_api::flags::{MEM_OP_WAIT_32, MEM_OP_WRITE_32};
use cuda_api::lock::lock;
use cuda_api::work::{Copy3, CopyEnd, HOST};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

const WAIT: u64 = MEM_OP_WAIT_32 as u64;
const WRITE: u64 = MEM_OP_WRITE_32 as u64;

/// A node with a copy from or to the job.
#[derive(Debug, Default)]
pub(crate) struct CopyNode {
    /// Tokens of the coming launches, in their order; none for launches that skip the node.
    pub(crate) next: Mutex<VecDeque<u64>>,
    pub(crate) staging: Mutex<Staging>,
    /// Whether the bytes go from the GPU to the job.
    pub(crate) to_host: bool,
    pub(crate) words: OnceLock<Words>,
    /// The memory of the words, which nodes of one graph share.
    pub(crate) page: OnceLock<Arc<Pinned>>,
}

/// Words of page-locked memory, which the instance owns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// The GPU sets it to one when it reaches the node; the executor resets it to zero when it has seen this.
    pub(crate) reached: usize,
    /// The executor sets it to one when the node may continue; the GPU resets it to zero when it does.
    pub(crate) go: usize,
    /// Always zero: used by a node that is switched off.
    pub(crate) idle: usize,
}

/// Size of the three words in bytes.
pub(crate) const WORDS: usize = 3 * size_of::<u32>();

/// Memory for the packed bytes of a copy.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    pub(crate) now: Option<Pinned>,
    pub(crate) bytes: usize,
    /// The copy as described by the job.
    pub(crate) copy: Option<Copy3>,
    /// Buffers that became too small after a change; earlier launches may still use them.
    pub(crate) before: Vec<Pinned>,
}

/// The staging memory that a node will use once the driver has accepted its copy: a refused copy changes nothing.
#[derive(Debug)]
pub(crate) struct NewStaging {
    pub(crate) fresh: Option<Pinned>,
    pub(crate) bytes: usize,
    pub(crate) copy: Copy3,
}

/// What such a node does in one launch.
#[derive(Debug)]
pub(crate) struct CopyCall {
    pub(crate) node: Arc<CopyNode>,
    /// Page-locked memory for the bytes in this launch: address and size.
    pub(crate) room: Option<(usize, usize)>,
    /// The destination in host memory that this place shares, for later nodes of the graph that read the bytes there.
    pub(crate) lands: Option<Shared>,
    /// Where the bytes of a copy from the job come from.
    pub(crate) source: Source,
    /// Whether the node continues only when the job has confirmed that the bytes are in its memory, instead of when they were sent.
    pub(crate) acknowledged: bool,
}

/// Where the bytes of a copy from the job come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The job sends them when it learns that the node was reached.
    Job,
    /// They were sent with the call.
    Call(Vec<u8>),
    /// They are read here when the node is reached.
    Here(Box<Shared>),
}

/// The copy with its host end replaced by packed memory of the executor.
pub(crate) fn packed(c: &Copy3, at: u64) -> Copy3 {
    let end = CopyEnd { memory: HOST, host: at, pitch: c.width, height: c.rows, ..CopyEnd::default() };
    let mut c = *c;
    *(if c.src.memory == HOST { &mut c.src } else { &mut c.dst }) = end;
    c
}

/// Number of bytes from the first to the last byte of one end of a copy.
pub(crate) fn span(c: &Copy3, end: &CopyEnd) -> u64 {
    let rows = c.depth.saturating_sub(1).saturating_mul(end.height).saturating_add(c.rows.saturating_sub(1));
    rows.saturating_mul(end.pitch).saturating_add(c.width)
}

/// Host memory of the job that this place shares, at one end of a copy.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) copy: Copy3,
    pub(crate) end: CopyEnd,
    pub(crate) memory: Arc<PinnedMemory>,
}

impl Shared {
    /// Addresses of the rows.
    fn rows(&self) -> impl Iterator<Item = u64> {
        let (c, end) = (&self.copy, self.end);
        let rows = c.rows;
        (0..c.depth).flat_map(move |z| (0..rows).map(move |y| end.host + (z * end.height + y) * end.pitch))
    }

    /// Writes packed rows.
    fn write(&self, bytes: &[u8]) {
        for (row, bytes) in self.rows().zip(bytes.chunks_exact(self.copy.width.max(1) as usize)) {
            self.memory.write(row, bytes);
        }
    }

    /// Reads packed rows; returns false if not all of them are mapped.
    fn read(&self, bytes: &mut [u8]) -> bool {
        self.rows().zip(bytes.chunks_exact_mut(self.copy.width.max(1) as usize)).all(|(row, bytes)| self.memory.read(row, bytes))
    }
}

/// A word that is shared with the GPU.
fn word<'a>(at: usize) -> &'a AtomicU32 {
    // SAFETY: aligned words of page-locked memory of the instance's, which lives while a launch of it may be under way; only atomics
    // and the GPU touch it.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }
}

impl CopyNode {
    /// The memory operations around the copy: on the same words in each launch, or on an idle word while the node is switched off.
    pub(crate) fn params(&self, context: u64, on: bool) -> NodeParams<'static> {
        let Words { reached, go, idle } = self.words.get().copied().unwrap_or(Words { reached: 0, go: 0, idle: 0 });
        let value = u64::from(on);
        let (reached, go) = if on { (reached as u64, go as u64) } else { (idle as u64, idle as u64) };
        NodeParams::mem_ops(&[[WRITE, reached, value, 0, 0, 0], [WAIT, go, value, 0, 0, 0], [WRITE, go, 0, 0, 0, 0]], context)
    }

    /// Takes the staging memory for a copy that the driver has accepted.
    pub(crate) fn take(&self, new: NewStaging) {
        let mut s = lock(&self.staging);
        if let Some(fresh) = new.fresh {
            let old = s.now.replace(fresh);
            s.before.extend(old);
        }
        (s.bytes, s.copy) = (new.bytes, Some(new.copy));
    }

    /// Returns whether the call is all that the node does.
    pub(crate) fn is_all_call(&self) -> bool {
        lock(&self.staging).now.is_none()
    }

    /// Removes the launch with this token, which will not reach the node.
    pub(crate) fn passes_by(&self, token: u64) {
        lock(&self.next).retain(|t| *t != token);
    }

    /// Lets the node continue.
    fn let_go(&self) {
        self.words.get().into_iter().for_each(|w| word(w.go).store(1, Ordering::Release));
    }
}

impl CopyCall {
    /// Returns whether the bytes go from the GPU to the job.
    pub(crate) fn is_to_host(&self) -> bool {
        self.node.to_host
    }

    /// Returns, once, whether the GPU has reached the node in the launch with this token.
    pub(crate) fn has_come_to(&self, token: u64) -> bool {
        let node = &self.node;
        let (mut next, Some(words)) = (lock(&node.next), node.words.get()) else { return false };
        let here = next.front() == Some(&token) && word(words.reached).swap(0, Ordering::AcqRel) != 0;
        if here {
            next.pop_front();
        }
        here
    }

    /// Removes the launch with this token, which will not reach the node.
    pub(crate) fn passes_by(&self, token: u64) {
        self.node.passes_by(token);
    }

    /// Returns whether the node continues only when the job has confirmed it.
    pub(crate) fn awaits_job(&self) -> bool {
        if self.is_to_host() { self.acknowledged } else { matches!(self.source, Source::Job) }
    }

    /// Number of bytes that are stored until the node is reached.
    pub(crate) fn kept(&self) -> usize {
        if let Source::Call(bytes) = &self.source { bytes.len() } else { 0 }
    }

    /// Called when the node is reached: appends the bytes that the copy has brought, or takes those that it is to bring, and lets the
    /// node continue, unless that is up to the job.
    pub(crate) fn at_node(&self, reply: &mut Vec<u8>) -> Result<(), Code> {
        if self.is_to_host() {
            self.take_bytes(reply);
            return Ok(());
        }
        match &self.source {
            Source::Job => Ok(()),
            Source::Call(bytes) => self.put_bytes(bytes),
            Source::Here(memory) => {
                let (at, len) = self.room.unwrap_or((std::ptr::dangling::<u8>() as usize, 0));
                // SAFETY: the buffer is owned by this launch until its copy, which begins when the node continues.
                let read = memory.read(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) });
                self.let_go();
                if read { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
            }
        }
    }

    fn take_bytes(&self, reply: &mut Vec<u8>) {
        if let Some((at, len)) = self.room {
            // SAFETY: the driver's copy has filled the buffer; the next launch's copy fills it only after the node has continued.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
            if let Some(landing) = &self.lands {
                landing.write(bytes);
            }
            reply.extend_from_slice(bytes);
        }
        if !self.acknowledged {
            self.let_go();
        }
    }

    /// Takes the bytes that the copy is to bring, and lets the node continue.
    pub(crate) fn put_bytes(&self, bytes: &[u8]) -> Result<(), Code> {
        let (at, len) = self.room.filter(|_| !self.is_to_host()).unwrap_or_default();
        // SAFETY: the buffer is owned by this launch until its copy, which begins when the node continues.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, len.min(bytes.len())) };
        self.let_go();
        if bytes.len() == len { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
    }

    /// Lets the node continue.
    pub(crate) fn let_go(&self) {
        self.node.let_go();
    }
}
