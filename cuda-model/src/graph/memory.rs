//! Memory that is allocated by graphs. Its address and the memory behind it exist from the creation of its node until
//! it can no longer be used: by a graph or an instance that allocates it, or by the program after a launch that did not
//! free it. An allocation in a launch is therefore only bookkeeping, done when the launch is submitted.

use super::model::Store;
use cuda_api::code::{self, Code};
use cuda_api::work::{MemAlloc, Work};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// An allocation of a graph.
#[derive(Debug)]
struct Memory {
    alloc: MemAlloc,
    context: u64,
    /// A launch has allocated it, and it has not been freed since.
    live: bool,
    /// Its node has not been created yet.
    coming: bool,
}

/// Bytes in use and their high watermark, then bytes reserved and their high watermark, of a device:
/// `CUgraphMem_attribute`.
type Levels = [u64; 4];

/// All memory of graphs.
#[derive(Debug, Default)]
pub(super) struct Memories {
    known: FxHashMap<u64, Memory>,
    levels: FxHashMap<i32, Levels>,
}

/// The allocations and frees of an instance's launches.
#[derive(Debug, Default)]
pub(super) struct Effect {
    allocs: Vec<u64>,
    frees: Vec<u64>,
}

impl Effect {
    /// The addresses at which launches allocate.
    pub(super) fn allocs(&self) -> impl Iterator<Item = u64> {
        self.allocs.iter().copied()
    }

    /// Whether launches allocate or free.
    pub(super) fn is_memory(&self) -> bool {
        !self.allocs.is_empty() || !self.frees.is_empty()
    }
}

impl Store {
    /// The allocations and frees of a graph's launches, including embedded graphs.
    pub(super) fn effect(&self, graph: u64) -> Effect {
        let mut effect = Effect::default();
        let mut open: SmallVec<[u64; 4]> = SmallVec::from_slice(&[graph]);
        while let Some(g) = open.pop() {
            for node in self.graphs.get(g).into_iter().flat_map(|g| &g.nodes).filter_map(|n| self.nodes.get(*n)) {
                match &node.work {
                    Work::MemAlloc(m) => effect.allocs.push(m.address),
                    Work::MemFree(a) => effect.frees.push(*a),
                    work => open.extend_from_slice(work.inner()),
                }
            }
        }
        effect
    }

    /// Whether a graph allocates or frees: then it cannot be copied, and its nodes cannot be removed.
    pub(super) fn has_memory(&self, graph: u64) -> bool {
        self.any(graph, &|n| matches!(n.work, Work::MemAlloc(_) | Work::MemFree(_)))
    }
}

impl Memories {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn levels(&mut self, device: i32) -> &mut Levels {
        self.levels.entry(device).or_default()
    }

    fn use_more(&mut self, device: i32, more: u64, less: u64) {
        let [now, high, ..] = self.levels(device);
        *now = *now + more - less;
        *high = (*high).max(*now);
    }

    /// Records an allocation by the host for a node that is created next: until [`Memories::arrived`] it counts as
    /// used.
    pub(super) fn made(&mut self, alloc: MemAlloc, context: u64) {
        self.known.insert(alloc.address, Memory { alloc, context, live: false, coming: true });
        let [.., held, high] = self.levels(alloc.device);
        *held += alloc.bytes;
        *high = (*high).max(*held);
    }

    /// The node of an allocation has been created, or its creation has failed.
    pub(super) fn arrived(&mut self, address: u64) {
        if let Some(m) = self.known.get_mut(&address) {
            m.coming = false;
        }
    }

    pub(super) fn knows(&self, address: u64) -> bool {
        self.known.contains_key(&address)
    }

    fn set_live(&mut self, address: u64, live: bool) {
        let Some(m) = self.known.get_mut(&address).filter(|m| m.live != live) else { return };
        m.live = live;
        let (device, bytes) = (m.alloc.device, m.alloc.bytes);
        if live { self.use_more(device, bytes, 0) } else { self.use_more(device, 0, bytes) }
    }

    /// Checks whether a launch with this effect is allowed now; with `again`, memory left by an earlier launch is freed first.
    pub(super) fn check(&self, effect: &Effect, again: bool) -> Result<(), Code> {
        let live = |a: &u64| self.known.get(a).is_some_and(|m| m.live);
        let left = effect.allocs.iter().any(live) && !again;
        let nothing = effect.frees.iter().any(|a| !effect.allocs.contains(a) && !live(a));
        if left || nothing { Err(INVALID) } else { Ok(()) }
    }

    /// Records a launch.
    pub(super) fn launched(&mut self, effect: &Effect) {
        effect.allocs.iter().for_each(|a| self.set_live(*a, true));
        effect.frees.iter().for_each(|a| self.set_live(*a, false));
    }

    /// Frees an address for the program; false: it was not allocated by a graph.
    pub(super) fn free(&mut self, address: u64) -> Result<bool, Code> {
        let Some(m) = self.known.get(&address) else { return Ok(false) };
        if !m.live {
            return Err(INVALID);
        }
        self.set_live(address, false);
        Ok(true)
    }

    /// Removes all memory of a context that was destroyed.
    pub(super) fn forget_context(&mut self, context: u64) {
        let gone: Vec<u64> = self.known.iter().filter(|(_, m)| m.context == context).map(|(a, _)| *a).collect();
        gone.into_iter().for_each(|a| self.forget(a));
    }

    fn forget(&mut self, address: u64) {
        self.set_live(address, false);
        if let Some(m) = self.known.remove(&address) {
            self.levels(m.alloc.device)[2] -= m.alloc.bytes;
        }
    }

    pub(super) fn level(&mut self, device: i32, attribute: u32) -> Result<u64, Code> {
        self.levels(device).get(attribute as usize).copied().ok_or(INVALID)
    }

    /// Resets a high watermark to the current value.
    pub(super) fn reset(&mut self, device: i32, attribute: u32) -> Result<(), Code> {
        let levels = self.levels(device);
        match attribute {
            1 | 3 => levels[attribute as usize] = levels[attribute as usize - 1],
            _ => return Err(INVALID),
        }
        Ok(())
    }

    /// Removes and returns memory that can no longer be used, for the host to free.
    pub(super) fn unused(&mut self, store: &Store) -> Vec<u64> {
        let gone = |(a, m): (&u64, &Memory)| (!m.live && !m.coming && !store.allocates(*a)).then_some(*a);
        let gone: Vec<u64> = self.known.iter().filter_map(gone).collect();
        gone.iter().for_each(|a| self.forget(*a));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::model::Owner;
    use crate::graph::tables::Graphs;
    use cuda_api::work::After;

    #[test]
    fn memory_lives_as_long_as_something_can_use_it() {
        let mut g = Graphs::new(0);
        let alloc = |address| MemAlloc { address, bytes: 64, device: 0 };
        let graph = g.store.create(Owner::Program);
        for a in [1, 2] {
            g.memories.made(alloc(a), 1);
            assert!(g.memories.unused(&g.store).is_empty(), "its node is being made");
            g.store.add(graph, After::new(), Work::MemAlloc(alloc(a)), 1).unwrap();
            g.memories.arrived(a);
        }
        g.store.add(graph, After::new(), Work::MemFree(1), 1).unwrap();
        let effect = g.store.effect(graph);
        assert!(g.store.has_memory(graph) && g.memories.unused(&g.store).is_empty());
        assert_eq!(g.memories.free(2), Err(INVALID), "no launch has allocated it");
        assert_eq!(g.memories.free(3), Ok(false));
        g.memories.check(&effect, false).unwrap();
        g.memories.launched(&effect);
        assert_eq!(g.memories.check(&effect, false), Err(INVALID), "2 was not freed");
        g.memories.check(&effect, true).unwrap();
        assert_eq!([0, 1, 2, 3].map(|a| g.memories.level(0, a).unwrap()), [64, 128, 128, 128]);
        g.store.drop_graph(graph);
        assert_eq!(g.memories.unused(&g.store), [1], "2 is the program's now");
        assert_eq!(g.memories.free(2), Ok(true));
        assert_eq!(g.memories.unused(&g.store), [2]);
        assert!(g.memories.is_empty());
        assert_eq!([0, 1, 2, 3].map(|a| g.memories.level(0, a).unwrap()), [0, 128, 0, 128]);
        g.memories.reset(0, 1).unwrap();
        assert_eq!((g.memories.level(0, 1), g.memories.reset(0, 0), g.memories.level(0, 4)), (Ok(0), Err(INVALID), Err(INVALID)));
    }
}
