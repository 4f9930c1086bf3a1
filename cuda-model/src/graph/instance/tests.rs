//! What instances and the graphs that they were instantiated from share, and what they do not.

use super::*;
use crate::graph::model::Owner;
use crate::graph::tables::Destructor;
use cuda_api::work::{After, Kernel, MemAlloc, Params};

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

/// A graph of nodes, each behind those of these numbers, which may be larger than its own.
fn shape(g: &mut Graphs, nodes: &[(&[usize], Work<u64>)]) -> (u64, Vec<u64>) {
    let graph = g.store.create(Owner::Program);
    let made: Vec<u64> = nodes.iter().map(|(_, work)| g.store.add(graph, after(&[]), work.clone(), 1).unwrap()).collect();
    for ((edges, _), node) in nodes.iter().zip(&made) {
        let edges: Vec<_> = edges.iter().map(|before| (made[*before], *node, Edge::default())).collect();
        g.store.connect(graph, &edges).unwrap();
    }
    (graph, made)
}

/// What each node of an instance would do after an update, by the numbers of its nodes.
fn values_after(g: &mut Graphs, instance: u64, nodes: &[u64], graph: u64) -> Result<Vec<u8>, Refusal> {
    let changes = g.change_all(instance, graph)?;
    update(g, instance, changes);
    Ok(nodes.iter().map(|n| value(g.work_of(instance, *n).unwrap())).collect())
}

/// docs/driver-facts.md, 7.11
#[test]
fn nodes_are_paired_along_the_edges() {
    let k = |n| kernel(n, false);
    let mut g = Graphs::new(0);
    let (graph, own) = shape(&mut g, &[(&[], k(1)), (&[], k(2)), (&[0, 1], k(3))]);
    instantiate(&mut g, graph, 100);
    let (as_it_was, theirs) = shape(&mut g, &[(&[], k(11)), (&[], k(12)), (&[0, 1], k(13))]);
    assert_eq!(values_after(&mut g, 100, &own, as_it_was), Ok(vec![11, 12, 13]));
    let (edges, _) = shape(&mut g, &[(&[], k(21)), (&[], k(22)), (&[1, 0], k(23))]);
    assert_eq!(values_after(&mut g, 100, &own, edges), Ok(vec![22, 21, 23]));
    let (nodes, _) = shape(&mut g, &[(&[], k(32)), (&[], k(31)), (&[1, 0], k(33))]);
    assert_eq!(values_after(&mut g, 100, &own, nodes), Ok(vec![31, 32, 33]));
    let (both, _) = shape(&mut g, &[(&[], k(42)), (&[], k(41)), (&[0, 1], k(43))]);
    assert_eq!(values_after(&mut g, 100, &own, both), Ok(vec![42, 41, 43]));
    let (backwards, _) = shape(&mut g, &[(&[2, 1], k(53)), (&[], k(52)), (&[], k(51))]);
    assert_eq!(values_after(&mut g, 100, &own, backwards), Ok(vec![51, 52, 53]));
    // The handles are those of the first graph.
    assert!(theirs.iter().all(|n| g.work_of(100, *n).is_err()));
    // Changes concern the partners, and name them.
    let (bad, theirs) = shape(&mut g, &[(&[], k(62)), (&[], Work::Empty), (&[1, 0], k(63))]);
    assert_eq!(g.change_all(100, bad).unwrap_err(), differs(TYPE, theirs[1]));
    let change = g.change_all(100, edges).unwrap().changes.remove(0);
    let of_node = g.store.graph(edges).unwrap().nodes[1];
    assert_eq!((change.at, change.node), (At { graph: 0, node: 0 }, of_node));
}

#[test]
fn a_node_that_is_reached_twice_is_paired_once() {
    let k = |n| kernel(n, false);
    let mut g = Graphs::new(0);
    // Two ends, the first of which is behind both inner nodes.
    let (graph, own) = shape(&mut g, &[(&[], k(1)), (&[0], k(2)), (&[0], k(3)), (&[1, 2], k(4)), (&[2], k(5))]);
    instantiate(&mut g, graph, 100);
    let (moved, _) = shape(&mut g, &[(&[2], k(13)), (&[2], k(12)), (&[], k(11)), (&[1, 0], k(14)), (&[0], k(15))]);
    assert_eq!(values_after(&mut g, 100, &own, moved), Ok(vec![11, 12, 13, 14, 15]));
    // The second end is behind the node that is the partner of another one.
    let (others, theirs) = shape(&mut g, &[(&[2], k(13)), (&[2], k(12)), (&[], k(11)), (&[1, 0], k(14)), (&[1], k(15))]);
    let why = g.change_all(100, others).unwrap_err();
    assert_eq!((why.code, why.result), (code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, TOPOLOGY));
    assert!([3, 4].map(|n| theirs[n]).contains(&why.node) && [0, 1].map(|n| theirs[n]).contains(&why.from));
    // Two beginnings instead of one.
    let (split, theirs) = shape(&mut g, &[(&[], k(1)), (&[], k(2)), (&[0], k(3)), (&[1, 2], k(4)), (&[2], k(5))]);
    assert_eq!(g.change_all(100, split).unwrap_err(), differs(TOPOLOGY, theirs[1]));
}

#[test]
fn deep_graphs_are_paired() {
    const MANY: usize = 100_000;
    let mut g = Graphs::new(0);
    let mut chain = |is_backwards: bool| {
        let graph = g.store.create(Owner::Program);
        let nodes: Vec<u64> = (0..MANY).map(|_| g.store.add(graph, after(&[]), Work::Empty, 1).unwrap()).collect();
        for pair in nodes.windows(2) {
            let (first, second) = if is_backwards { (pair[1], pair[0]) } else { (pair[0], pair[1]) };
            g.store.node_mut(second).unwrap().after = after(&[first]);
        }
        (graph, nodes)
    };
    let ((graph, _), (other, nodes)) = (chain(false), chain(true));
    g.store.node_mut(nodes[0]).unwrap().work = Work::EventWait(1);
    instantiate(&mut g, graph, 100);
    assert_eq!(g.change_all(100, other).unwrap_err(), differs(TYPE, nodes[0]));
    g.store.node_mut(nodes[0]).unwrap().work = Work::Empty;
    assert!(g.change_all(100, other).unwrap().changes.is_empty());
}

/// docs/driver-facts.md, 7.12
#[test]
fn refusals_name_nodes() {
    let k = |n| kernel(n, false);
    let mut g = Graphs::new(0);
    let chain: [(&[usize], Work<u64>); 4] = [(&[], k(0)), (&[0], k(1)), (&[1], k(2)), (&[2], k(3))];
    let (graph, _) = shape(&mut g, &chain[..3]);
    instantiate(&mut g, graph, 100);
    for n in [0, 2, 4] {
        let (other, _) = shape(&mut g, &chain[..n]);
        assert_eq!(g.change_all(100, other).unwrap_err(), differs(TOPOLOGY, 0));
    }
    let (types, nodes) = shape(&mut g, &[(&[], k(0)), (&[0], Work::Empty), (&[1], k(2))]);
    assert_eq!(g.change_all(100, types).unwrap_err(), differs(TYPE, nodes[1]));
    let (fewer, nodes) = shape(&mut g, &[(&[], k(0)), (&[0], k(1)), (&[], k(2))]);
    assert_eq!(g.change_all(100, fewer).unwrap_err(), differs(TOPOLOGY, nodes[1]));
    let (more, nodes) = shape(&mut g, &[(&[], k(0)), (&[0], k(1)), (&[0, 1], k(2))]);
    assert_eq!(g.change_all(100, more).unwrap_err(), differs(TOPOLOGY, nodes[2]));
    let (round, _) = shape(&mut g, &[(&[1], k(0)), (&[2], k(1)), (&[0], k(2))]);
    assert_eq!(g.change_all(100, round).unwrap_err(), differs(TOPOLOGY, 0), "a circle");

    // Fewer ends than the instance has.
    let (wide, _) = shape(&mut g, &[(&[], k(0)), (&[0], k(1)), (&[0], k(2))]);
    instantiate(&mut g, wide, 200);
    let why = g.change_all(200, graph).unwrap_err();
    assert_eq!((why.code, why.result), (code::ERROR_GRAPH_EXEC_UPDATE_FAILURE, TOPOLOGY));

    // Inside a graph.
    let add = |g: &mut Graphs, inner: &[(&[usize], Work<u64>)]| {
        let (outer, (inner, _)) = (g.store.create(Owner::Program), shape(g, inner));
        (outer, g.store.add(outer, after(&[]), Work::Child(inner), 0).unwrap())
    };
    let ((outer, child), (other, _)) = (add(&mut g, &chain[..3]), add(&mut g, &chain));
    instantiate(&mut g, outer, 300);
    assert_eq!(g.change_all(300, other).unwrap_err(), differs(TOPOLOGY, 0));
    let (more, _) = shape(&mut g, &chain);
    assert_eq!(g.change_child(300, child, more).unwrap_err(), code::ERROR_GRAPH_EXEC_UPDATE_FAILURE);
}

/// docs/driver-facts.md, 7.10
#[test]
fn what_may_change_of_a_fill() {
    let fill = |dst, value, pitch, element, width, rows| Fill { dst, value, pitch, element, width, rows };
    let several = fill(0x1000, 1, 64, 1, 32, 4);
    let others = |f: Fill| {
        [
            f,
            Fill { value: 2, ..f },
            Fill { dst: 0x2000, ..f },
            Fill { width: 16, ..f },
            Fill { rows: f.rows + 1, ..f },
            Fill { pitch: 128, ..f },
            Fill { element: 2, width: 16, ..f },
            Fill { rows: 1, ..f },
        ]
    };
    for (first, accepted) in [
        (several, [true, true, true, false, false, false, false, false]),
        (Fill { rows: 1, ..several }, [true, true, true, true, false, true, true, true]),
    ] {
        let mut g = Graphs::new(0);
        let (graph, own) = shape(&mut g, &[(&[], Work::Fill(first))]);
        instantiate(&mut g, graph, 100);
        for (other, is_accepted) in others(first).into_iter().zip(accepted) {
            let (updated, theirs) = shape(&mut g, &[(&[], Work::Fill(other))]);
            let update = g.change_all(100, updated).map(|u| u.changes.len());
            let set = g.change_one(100, own[0], &Work::Fill(other), 1).map(|c| usize::from(c.is_some()));
            let changes = usize::from(other != first);
            assert_eq!(update, if is_accepted { Ok(changes) } else { Err(differs(PARAMETERS, theirs[0])) }, "{other:?}");
            assert_eq!(set, if is_accepted { Ok(changes) } else { Err(INVALID) }, "{other:?}");
        }
    }
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
