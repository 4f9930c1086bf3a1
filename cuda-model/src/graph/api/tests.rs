//! The functions over a host that executes nothing.

use super::build::add_child;
use super::condition::add_conditional;
use super::*;
use crate::graph::{Shared, Stream};
use cuda_api::graph::RawConditional;
use cuda_api::lock::lock;
use cuda_api::pointer::{InOutPtr, OutPtr};
use cuda_api::work::{At, Copy3, Fill, Kernel, MemAlloc, Spec};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Opens when the launches of a host have ended.
type Gate = Arc<(Mutex<bool>, Condvar)>;

struct Fake {
    shared: &'static Shared,
    gate: Gate,
    /// What each fill of an instance does at the place.
    fills: BTreeMap<(u64, u32, u32), u64>,
    instances: u64,
    /// What the place answers to a fill of this address.
    refuses: Option<(u64, Code)>,
    /// The fills that are refused before anything is made.
    forbids: Option<u64>,
}

impl Fake {
    fn new() -> Fake {
        Fake {
            shared: Box::leak(Box::new(Shared::new(0))),
            gate: Gate::default(),
            fills: BTreeMap::new(),
            instances: 100,
            refuses: None,
            forbids: None,
        }
    }

    /// A graph of fills, each behind the one before.
    fn graph(&mut self, addresses: &[u64]) -> (u64, Vec<u64>) {
        let graph = cuGraphCreate(self, 0).unwrap();
        let mut nodes = Vec::new();
        for dst in addresses {
            let fill = Fill { dst: *dst, pitch: 0, value: 1, element: 1, width: 8, rows: 1 };
            let after = nodes.last().copied().into_iter().collect();
            nodes.push(cuGraphAddMemsetNode(self, graph, after, fill, 0).unwrap());
        }
        (graph, nodes)
    }

    /// Gives a graph an object that counts its end.
    fn object(&mut self, graph: u64) -> &'static AtomicU32 {
        unsafe extern "C" fn end(count: *mut c_void) {
            // SAFETY: the number below, which stays.
            unsafe { &*count.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
        }
        let count: &AtomicU32 = Box::leak(Box::default());
        let object = cuUserObjectCreate(self, std::ptr::from_ref(count) as u64, Some(end), 1, 1).unwrap();
        cuGraphRetainUserObject(self, graph, object, 1, 1).unwrap();
        count
    }

    /// An update: its code, `CUgraphExecUpdateResult`, the node.
    fn update(&mut self, instance: u64, graph: u64) -> (Code, u32, u64) {
        let (mut node, mut result) = (std::ptr::null_mut(), 9);
        let (to, why) = (OutPtr::of(&mut node), OutPtr::of(&mut result));
        let done = cuGraphExecUpdate(self, instance as _, graph as _, to, why);
        (done.err().unwrap_or_default(), result, node as u64)
    }

    /// The launches so far end.
    fn end_launches(&self) {
        *lock(&self.gate.0) = true;
        self.gate.1.notify_all();
    }
}

fn is_alive(object: &AtomicU32) -> bool {
    std::thread::sleep(Duration::from_millis(20));
    object.load(Ordering::SeqCst) == 0
}

fn await_end(object: &AtomicU32) {
    let begin = Instant::now();
    while object.load(Ordering::SeqCst) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is still held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const NONE: Code = code::ERROR_NOT_SUPPORTED;

impl Host for Fake {
    fn shared(&self) -> &'static Shared {
        self.shared
    }
    fn stream(&mut self, _stream: u64) -> Result<Stream, Code> {
        Err(NONE)
    }
    fn context(&mut self) -> Result<u64, Code> {
        Ok(1)
    }
    fn event(&mut self, _event: u64) -> Result<u64, Code> {
        Ok(1)
    }
    fn layout<T>(&mut self, _function: u64, use_it: impl FnOnce(&[(u32, u32)]) -> Result<T, Code>) -> Result<T, Code> {
        use_it(&[])
    }
    fn names(&mut self, function: u64) -> Result<(u64, u64), Code> {
        Ok((function, 0))
    }
    fn check_kernel(&mut self, _kernel: &Kernel) -> Result<u64, Code> {
        Ok(1)
    }
    fn check_copy(&mut self, _copy: &Copy3) -> Result<u64, Code> {
        Ok(1)
    }
    fn check_fill(&mut self, _fill: &Fill) -> Result<u64, Code> {
        Ok(1)
    }
    fn check_words(&mut self, _parts: &[[u64; 6]]) -> Result<u64, Code> {
        Ok(1)
    }
    fn allocate(&mut self, _device: i32, _bytes: u64) -> Result<(u64, u64), Code> {
        Err(NONE)
    }
    fn release(&mut self, _address: u64) -> Result<(), Code> {
        Ok(())
    }
    fn is_device(&mut self, ordinal: i32) -> bool {
        ordinal == 0
    }
    fn ordinal(&mut self, _context: u64) -> i32 {
        0
    }
    fn condition(&mut self, _home: u64, _default: u32, _flags: u32) -> Result<(u64, u64), Code> {
        Ok((1, 1))
    }
    fn end_conditions(&mut self, _context: u64, _home: u64, _conditions: &[u64]) -> Result<(), Code> {
        Ok(())
    }
    fn instantiate(&mut self, _context: u64, _flags: u64, _home: u64, spec: Spec) -> Result<u64, Code> {
        self.instances += 1;
        for (nodes, graph) in spec.graphs.iter().zip(0..) {
            for (n, node) in nodes.iter().zip(0..) {
                if let Work::Fill(f) = &n.work {
                    self.fills.insert((self.instances, graph, node), f.dst);
                }
            }
        }
        Ok(self.instances)
    }
    fn check_change(&mut self, _instance: u64, _at: At, work: &Work<u32>) -> Result<(), Code> {
        match work {
            Work::Fill(f) if Some(f.dst) == self.forbids => Err(INVALID),
            _ => Ok(()),
        }
    }
    fn change(&mut self, instance: u64, at: At, work: Work<u32>, _plain: bool) -> Result<(), Code> {
        let Work::Fill(f) = work else { return Ok(()) };
        if let Some((_, rc)) = self.refuses.filter(|(dst, _)| *dst == f.dst) {
            return Err(rc);
        }
        self.fills.insert((instance, at.graph, at.node), f.dst);
        Ok(())
    }
    fn enable(&mut self, _instance: u64, _at: At, _on: bool) -> Result<(), Code> {
        Ok(())
    }
    fn launch(&mut self, _instance: u64, _stream: u64) -> Result<(), Code> {
        Ok(())
    }
    fn upload(&mut self, _instance: u64, _stream: u64) -> Result<(), Code> {
        Ok(())
    }
    fn end_instance(&mut self, _instance: u64) -> Result<(), Code> {
        Ok(())
    }
    fn fence(&mut self, _context: u64) -> Box<dyn FnOnce() + Send> {
        let gate = self.gate.clone();
        Box::new(move || {
            let mut open = lock(&gate.0);
            while !*open {
                open = gate.1.wait(open).unwrap();
            }
        })
    }
}

#[test]
fn an_update_exchanges_the_user_objects() {
    let mut h = Fake::new();
    let (first, _) = h.graph(&[0x1000]);
    let (second, _) = h.graph(&[0x1000]);
    let (was, is) = (h.object(first), h.object(second));
    let instance = cuGraphInstantiateWithFlags(&mut h, first, 0).unwrap();
    cuGraphDestroy(&mut h, first).unwrap();
    assert_eq!(h.update(instance, second), (0, 0, 0));
    cuGraphDestroy(&mut h, second).unwrap();
    assert!(is_alive(is), "the instance holds it");
    assert!(is_alive(was), "a launch may use it");
    h.end_launches();
    await_end(was);
    assert!(is_alive(is));
    cuGraphExecDestroy(&mut h, instance).unwrap();
    await_end(is);
}

#[test]
fn a_refused_update_exchanges_no_user_objects() {
    let mut h = Fake::new();
    h.end_launches();
    let (first, _) = h.graph(&[0x1000]);
    let (second, _) = h.graph(&[0x2000]);
    let (was, is) = (h.object(first), h.object(second));
    let instance = cuGraphInstantiateWithFlags(&mut h, first, 0).unwrap();
    cuGraphDestroy(&mut h, first).unwrap();
    h.refuses = Some((0x2000, INVALID));
    assert_eq!(h.update(instance, second).0, code::ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    cuGraphDestroy(&mut h, second).unwrap();
    await_end(is);
    assert!(is_alive(was));
    cuGraphExecDestroy(&mut h, instance).unwrap();
    await_end(was);
}

/// Objects belong to the graph inside, so an update of it concerns these alone.
#[test]
fn a_child_graph_has_objects_of_its_own() {
    let mut h = Fake::new();
    h.end_launches();
    let (inside, _) = h.graph(&[0x1000]);
    let (other, _) = h.graph(&[0x1000]);
    let (outer, _) = h.graph(&[0x3000]);
    let (was, is, around) = (h.object(inside), h.object(other), h.object(outer));
    let child = cuGraphAddChildGraphNode(&mut h, outer, Vec::new(), inside).unwrap();
    let instance = cuGraphInstantiateWithFlags(&mut h, outer, 0).unwrap();
    cuGraphExecChildGraphNodeSetParams(&mut h, instance, child, other).unwrap();
    [inside, outer, other].into_iter().for_each(|graph| cuGraphDestroy(&mut h, graph).unwrap());
    await_end(was);
    assert!(is_alive(is) && is_alive(around));
    cuGraphExecDestroy(&mut h, instance).unwrap();
    await_end(is);
    await_end(around);
}

#[test]
fn a_refused_update_changes_nothing_and_names_the_node() {
    let mut h = Fake::new();
    let (graph, _) = h.graph(&[0x1000, 0x2000, 0x3000]);
    let instance = cuGraphInstantiateWithFlags(&mut h, graph, 0).unwrap();
    let before = h.fills.clone();
    let (other, nodes) = h.graph(&[0x1100, 0x2200, 0x3300]);
    let failure = code::ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    for (rc, answer) in [
        (INVALID, (failure, 5, nodes[1])),
        (code::ERROR_NOT_SUPPORTED, (failure, 6, nodes[1])),
        (code::ERROR_ILLEGAL_ADDRESS, (code::ERROR_ILLEGAL_ADDRESS, 1, 0)),
        (code::ERROR_OUT_OF_MEMORY, (code::ERROR_OUT_OF_MEMORY, 1, 0)),
    ] {
        h.refuses = Some((0x2200, rc));
        assert_eq!(h.update(instance, other), answer);
        assert_eq!(h.fills, before, "{rc}");
    }
    (h.refuses, h.forbids) = (None, Some(0x3300));
    assert_eq!(h.update(instance, other), (failure, 5, nodes[2]));
    assert_eq!(h.fills, before);
    h.forbids = None;
    assert_eq!(h.update(instance, other), (0, 0, 0));
    assert!(h.fills.into_values().eq([0x1100, 0x2200, 0x3300]));
}

#[test]
fn graphs_of_other_sizes_differ_at_no_node() {
    let mut h = Fake::new();
    let (graph, _) = h.graph(&[0x1000, 0x2000]);
    let instance = cuGraphInstantiateWithFlags(&mut h, graph, 0).unwrap();
    let (more, _) = h.graph(&[0x1000, 0x2000, 0x3000]);
    let (fewer, _) = h.graph(&[0x1000]);
    let failure = (code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, 2, 0);
    assert_eq!([more, fewer].map(|other| h.update(instance, other)), [failure; 2]);
}

/// docs/driver-facts.md, 7.14: a driver accepts other default values too, but they cannot be brought to a place.
#[test]
fn conditions_keep_their_default_values() {
    let mut h = Fake::new();
    let mut conditional = |default, flags| {
        let (graph, _) = h.graph(&[]);
        let condition = cuGraphConditionalHandleCreate(&mut h, graph, 0, default, flags).unwrap();
        let mut node = std::ptr::null_mut();
        let mut p = RawConditional { handle: condition, kind: 0, size: 1, graphs: std::ptr::null(), context: 0 };
        add_conditional(&mut h, OutPtr::of(&mut node), graph, After::new(), InOutPtr::of(&mut p)).unwrap();
        (graph, node as u64)
    };
    let [(graph, _), (same, _), (other, node), (without, last)] =
        [(0, 1), (0, 1), (1, 1), (0, 0)].map(|(value, flags)| conditional(value, flags));
    let instance = cuGraphInstantiateWithFlags(&mut h, graph, 0).unwrap();
    assert_eq!([graph, same].map(|g| h.update(instance, g)), [(0, 0, 0); 2]);
    let failure = code::ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    assert_eq!([other, without].map(|g| h.update(instance, g)), [(failure, 5, node), (failure, 5, last)]);
    cuGraphDestroy(&mut h, graph).unwrap();
    assert_eq!(h.update(instance, same), (0, 0, 0));
}

#[test]
fn a_graph_is_not_moved_into_itself() {
    let mut h = Fake::new();
    let (outer, middle, inner) = (h.graph(&[]).0, h.graph(&[]).0, h.graph(&[0x1000]).0);
    add_child(&h, middle, After::new(), inner, true).unwrap();
    add_child(&h, outer, After::new(), middle, true).unwrap();
    for inside in [outer, middle, inner] {
        assert_eq!(add_child(&h, inside, After::new(), outer, true), Err(INVALID));
    }
    cuGraphInstantiateWithFlags(&mut h, outer, 0).unwrap();
}

#[test]
fn a_graph_with_memory_has_one_instance_and_is_no_child() {
    let mut h = Fake::new();
    let (graph, parent) = (h.graph(&[]).0, h.graph(&[]).0);
    let memory = Work::MemAlloc(MemAlloc { address: 1, bytes: 64, device: 0 });
    add(&h, graph, After::new(), (memory, 1)).unwrap();
    cuGraphInstantiateWithFlags(&mut h, graph, 0).unwrap();
    assert_eq!(cuGraphInstantiateWithFlags(&mut h, graph, 0), Err(code::ERROR_NOT_SUPPORTED));
    assert_eq!(cuGraphAddChildGraphNode(&mut h, parent, Vec::new(), graph), Err(code::ERROR_NOT_SUPPORTED));
    assert_eq!(cuGraphClone(&mut h, graph), Err(code::ERROR_NOT_SUPPORTED));
}
