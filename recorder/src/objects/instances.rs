//! The recorder's data about graph instances.

use crate::base::log::lock;
use crate::objects::table::Known;
use cuda_api::work::{At, Work};
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a change of a node concerns: a later change of the same supersedes it.
pub(crate) type Changed = (At, bool);

/// A node of a graph instance that calls this process.
#[derive(Debug, Clone)]
pub(crate) struct GraphNode {
    /// Its position in the graph.
    pub(crate) at: At,
    /// A host function, or a [plain](crate::calls::copy::rect::plain) copy.
    pub(crate) work: Work<u32>,
    /// Whether launches run it.
    pub(crate) on: bool,
    /// Whether nothing in the graph [holds it up](cuda_api::work::Spec::is_unhindered).
    pub(crate) unhindered: bool,
}

/// The last launch of a graph instance, behind which its next one is ordered whatever its stream.
#[derive(Debug, Default)]
pub(crate) struct LastLaunch(Mutex<Option<(u64, u64)>>);

impl LastLaunch {
    /// Notes a launch in a stream, with the moment of its end.
    pub(crate) fn set(&self, stream: u64, then: u64) {
        *lock(&self.0) = Some((stream, then));
    }

    /// The stream of the last launch, and the moment of its end.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        *lock(&self.0)
    }

    /// Resets it for another instance.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = None;
    }
}

/// The recorder's data about a graph instance, besides the graph itself.
#[derive(Debug, Default)]
pub(crate) struct InstanceData {
    /// The journal's handle of the last change of each node.
    pub(crate) changes: Mutex<FxHashMap<Changed, u64>>,
    /// The events that its launches record.
    pub(crate) records: Mutex<Vec<u64>>,
    /// Its nodes that call this process, in the order in which launches list them; locked during a launch.
    pub(crate) calls: Mutex<Vec<GraphNode>>,
    /// Whether it has had a kernel that may wait for the host.
    pub(crate) may_wait: AtomicBool,
    /// Whether a place can build it again for another choice of the copies that its GPU makes by itself: it has no conditions.
    pub(crate) can_be_rebuilt: AtomicBool,
    /// Its last launch, if any of its nodes call this process.
    pub(crate) launched: LastLaunch,
}

impl Known for InstanceData {
    fn forget(&self) {
        lock(&self.changes).clear();
        lock(&self.records).clear();
        lock(&self.calls).clear();
        self.launched.forget();
        self.may_wait.store(false, Ordering::Relaxed);
    }
}
