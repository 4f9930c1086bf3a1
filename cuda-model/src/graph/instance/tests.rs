//! What instances and the graphs that they were instantiated from share, and what they do not.

use super::*;
use crate::graph::model::Owner;
use crate::graph::tables::Destructor;
use cuda_api::work::{Edge, Kernel, MemAlloc, Params};

fn after(nodes: &[u64]) -> After<u64> {
    nodes.iter().map(|n| (*n, Edge::default())).collect()
}

/// A kernel with a parameter, which is larger than a node has room for if `is_large`.
fn kernel(value: u8, is_large: bool) -> Work<u64> {
    let params = Params::from_elem(value, if is_large { 200 } else { 8 });
    Work::Kernel(Kernel { function: 7, grid: [1; 3], block: [1; 3], shared: 0, attributes: Vec::new(), params })
}

fn instantiate(g: &mut Graphs, graph: u64, handle: u64) -> Spec {
    let mut prepared = g.prepare(graph, 0, 1).unwrap();
    let spec = std::mem::take(&mut prepared.spec);
    g.made(handle, prepared);
    spec
}

/// Makes changes of an instance as the host does; returns how many.
fn apply(g: &mut Graphs, instance: u64, changes: impl IntoIterator<Item = Change>) -> usize {
    changes.into_iter().filter_map(|change| g.changed(instance, change)).count()
}

/// As [`apply`], of an update.
fn update(g: &mut Graphs, instance: u64, mut update: Update) -> usize {
    let made = apply(g, instance, std::mem::take(&mut update.changes));
    assert_eq!(g.updated(instance, update), []);
    made
}

fn value(work: &Work<impl Copy>) -> u8 {
    if let Work::Kernel(k) = work { k.params[0] } else { 0 }
}

#[test]
fn an_instance_and_its_graph_change_apart() {
    for is_large in [false, true] {
        let mut g = Graphs::new(0);
        let graph = g.store.create(Owner::Program);
        let a = g.store.add(graph, after(&[]), kernel(1, is_large), 1).unwrap();
        let b = g.store.add(graph, after(&[a]), kernel(2, is_large), 1).unwrap();
        let spec = instantiate(&mut g, graph, 100);
        instantiate(&mut g, graph, 200);
        assert_eq!(spec.graphs[0].iter().map(|n| value(&n.work)).collect::<Vec<_>>(), [1, 2]);

        // The graph's node: no instance sees it before an update.
        g.store.node_mut(a).unwrap().work = kernel(3, is_large);
        assert_eq!([100, 200].map(|i| value(g.work_of(i, a).unwrap())), [1, 1]);
        // The node of one instance: neither the graph nor the other one sees it.
        let change = g.change_one(100, b, &kernel(4, is_large), 1).unwrap();
        assert!(change.as_ref().is_some_and(|c| c.plain && c.at == At { graph: 0, node: 1 }));
        assert_eq!(apply(&mut g, 100, change), 1);
        assert_eq!([100, 200].map(|i| value(g.work_of(i, b).unwrap())), [4, 2]);
        assert_eq!(value(&g.store.node(b).unwrap().work), 2);
        assert_eq!(g.change_one(100, b, &kernel(4, is_large), 1).unwrap().map(|c| c.at), None, "it is so already");
        assert_eq!(instantiate(&mut g, graph, 300).graphs[0].iter().map(|n| value(&n.work)).collect::<Vec<_>>(), [3, 2]);

        // An update makes the instance what the graph is now, and finds only what differs.
        let changes = g.change_all(100, graph).unwrap();
        assert_eq!(update(&mut g, 100, changes), 2);
        let changes = g.change_all(200, graph).unwrap();
        assert_eq!(update(&mut g, 200, changes), 1);
        assert!([100, 200].into_iter().all(|i| g.change_all(i, graph).unwrap().changes.is_empty()));

        // Switches are the instance's.
        g.switched(100, At { graph: 0, node: 0 }, false);
        assert_eq!([100, 200].map(|i| g.switch(i, a).unwrap().1), [false, true]);
        g.switched(100, At { graph: 0, node: 0 }, true);
        assert_eq!(g.switch(100, a).unwrap(), (At { graph: 0, node: 0 }, true));

        // Nodes are named by those of the graph, as long as they exist; what the instance runs stays.
        g.store.remove_node(a).unwrap();
        assert!(g.work_of(100, a).is_err());
        assert_eq!(value(g.work_of(100, b).unwrap()), 2);
        g.drop_graph(graph);
        assert!(g.work_of(100, b).is_err());
        let copy = g.copy_instance(100).unwrap();
        let nodes = &g.store.graph(copy).unwrap().nodes;
        assert_eq!(nodes.iter().map(|n| value(&g.store.node(*n).unwrap().work)).collect::<Vec<_>>(), [3, 2]);
    }
}

#[test]
fn a_copy_of_a_graph_updates_an_instance_but_does_not_name_its_nodes() {
    let mut g = Graphs::new(0);
    let graph = g.store.create(Owner::Program);
    let a = g.store.add(graph, after(&[]), kernel(1, false), 1).unwrap();
    let clone = g.copy_graph(graph, Owner::Program).unwrap();
    let own = g.store.graph(clone).unwrap().nodes[0];
    instantiate(&mut g, graph, 100);
    assert!(g.work_of(100, own).is_err());
    g.store.node_mut(own).unwrap().work = kernel(9, false);
    assert_eq!(value(&g.store.node(a).unwrap().work), 1);
    let changes = g.change_all(100, clone).unwrap();
    assert_eq!(update(&mut g, 100, changes), 1);
    assert_eq!(value(g.work_of(100, a).unwrap()), 9);
}

#[test]
fn embedded_graphs_change_apart() {
    let mut g = Graphs::new(0);
    let (graph, inside) = (g.store.create(Owner::Program), g.store.create(Owner::Program));
    let deep = g.store.add(inside, after(&[]), kernel(1, false), 1).unwrap();
    let other = g.copy_graph(inside, Owner::Program).unwrap();
    let first = g.store.add(graph, after(&[]), Work::Empty, 0).unwrap();
    let child = g.store.add(graph, after(&[first]), Work::Child(inside), 0).unwrap();
    instantiate(&mut g, graph, 100);
    assert_eq!(g.node_of(100, deep).unwrap().0, At { graph: 1, node: 0 });
    let outer = g.store.graph(other).unwrap().nodes[0];
    g.store.node_mut(outer).unwrap().work = kernel(5, false);
    let changes = g.change_child(100, child, other).unwrap();
    assert_eq!(changes.changes.iter().map(|c| c.at).collect::<Vec<_>>(), [At { graph: 1, node: 0 }]);
    update(&mut g, 100, changes);
    assert_eq!((value(g.work_of(100, deep).unwrap()), value(&g.store.node(deep).unwrap().work)), (5, 1));
    assert!(g.change_child(100, first, other).is_err(), "no child");
    let changes = g.change_all(100, graph).unwrap();
    assert_eq!(update(&mut g, 100, changes), 1);
    assert_eq!(value(g.work_of(100, deep).unwrap()), 1);
}

#[test]
fn updates_compare_shapes() {
    let mut g = Graphs::new(0);
    let make = |g: &mut Graphs, edges: [&[usize]; 3], works: [Work<u64>; 3]| {
        let graph = g.store.create(Owner::Program);
        let mut nodes: Vec<u64> = Vec::new();
        for (edges, work) in edges.into_iter().zip(works) {
            let before: Vec<u64> = edges.iter().map(|n| nodes[*n]).collect();
            nodes.push(g.store.add(graph, after(&before), work, 1).unwrap());
        }
        (graph, nodes)
    };
    let works = || [kernel(1, false), kernel(2, false), kernel(3, false)];
    let (graph, _) = make(&mut g, [&[], &[], &[0, 1]], works());
    instantiate(&mut g, graph, 100);
    let (same, _) = make(&mut g, [&[], &[], &[1, 0]], works());
    assert!(g.change_all(100, same).unwrap().changes.is_empty(), "the order of predecessors does not matter");
    let (fewer, nodes) = make(&mut g, [&[], &[], &[0]], works());
    assert_eq!(g.change_all(100, fewer).unwrap_err(), refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, 2, nodes[2]));
    let (others, nodes) = make(&mut g, [&[], &[0], &[0, 1]], works());
    assert_eq!(g.change_all(100, others).unwrap_err(), refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, 2, nodes[1]));
    let (types, nodes) = make(&mut g, [&[], &[], &[0, 1]], [kernel(1, false), Work::Empty, kernel(3, false)]);
    assert_eq!(g.change_all(100, types).unwrap_err(), refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, 3, nodes[1]));
    g.store.add(same, after(&[]), Work::Empty, 0).unwrap();
    assert_eq!(g.change_all(100, same).unwrap_err(), refuse(code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, 2, 0));
}

#[test]
fn an_instance_keeps_memory_and_objects_of_its_graph() {
    unsafe extern "C" fn end(_: *mut std::ffi::c_void) {}
    let mut g = Graphs::new(0);
    let graph = g.store.create(Owner::Program);
    g.memories.made(MemAlloc { address: 1, bytes: 64, device: 0 }, 1);
    g.store.add(graph, after(&[]), Work::MemAlloc(MemAlloc { address: 1, bytes: 64, device: 0 }), 1).unwrap();
    g.store.add(graph, after(&[]), Work::MemFree(1), 1).unwrap();
    g.memories.arrived(1);
    let object = g.new_object(Destructor { function: end, data: 0 }, 1).unwrap();
    g.graph_retains(graph, object, 1, true).unwrap();
    let spec = instantiate(&mut g, graph, 100);
    assert!(spec.graphs[0].iter().all(|n| n.work == Work::Empty), "places do nothing for them");
    let again = g.prepare(graph, 0, 1).unwrap_err();
    assert_eq!(again.code, code::ERROR_NOT_SUPPORTED, "memory belongs to one instance");
    g.drop_graph(graph);
    assert!(g.due.is_empty() && g.memories.unused(&g.store).is_empty());
    let held = g.drop_instance(100);
    g.release_objects(held);
    assert_eq!((g.due.len(), g.memories.unused(&g.store)), (1, vec![1]));

    // An instance that the host could not create leaves nothing.
    let graph = g.store.create(Owner::Program);
    g.memories.made(MemAlloc { address: 2, bytes: 64, device: 0 }, 1);
    g.store.add(graph, after(&[]), Work::MemAlloc(MemAlloc { address: 2, bytes: 64, device: 0 }), 1).unwrap();
    g.memories.arrived(2);
    let object = g.new_object(Destructor { function: end, data: 0 }, 1).unwrap();
    g.graph_retains(graph, object, 1, true).unwrap();
    let prepared = g.prepare(graph, 0, 1).unwrap();
    g.drop_graph(graph);
    assert!(g.memories.unused(&g.store).is_empty() && g.due.len() == 1);
    g.not_made(prepared);
    assert_eq!((g.due.len(), g.memories.unused(&g.store)), (2, vec![2]));
}
