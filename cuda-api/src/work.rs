//! The work of graph nodes as plain values: stored in a graph, and sent to the place that executes it.

use crate::sys;
use crate::wire::{Short, Wire};
use crate::wire_struct;
use smallvec::SmallVec;

/// Maximum nesting depth of graphs; a longer chain of embedded graphs is damaged or malicious.
pub const MAX_DEPTH: usize = 64;

wire_struct! {
    /// `CUgraphEdgeData` without its reserved bytes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct Edge {
        /// Which part of the earlier node is waited for: 0 is its end.
        pub from_port: u8,
        /// Which part of the later node waits: 0 is all of it.
        pub to_port: u8,
        /// `CUgraphDependencyType`
        pub kind: u8,
    }
}

impl From<Edge> for sys::CUgraphEdgeData {
    fn from(e: Edge) -> Self {
        sys::CUgraphEdgeData { from_port: e.from_port, to_port: e.to_port, type_: e.kind, reserved: [0; 5] }
    }
}

/// The edge that `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION` creates: from the kernel's own trigger.
pub const PROGRAMMATIC: Edge = Edge { from_port: 1, to_port: 0, kind: 1 };

/// Size of a `CUlaunchAttribute`.
pub const ATTRIBUTE_BYTES: usize = size_of::<sys::CUlaunchAttribute>();
/// Bytes of a `CUlaunchAttributeValue`.
pub const STREAM_ATTRIBUTE_BYTES: usize = 64;

/// A `CUlaunchAttribute`: its number, padding, and the value.
pub type Attribute = [u8; ATTRIBUTE_BYTES];

/// Number of an attribute.
pub fn attribute_id(a: &Attribute) -> u32 {
    u32::from_le_bytes([a[0], a[1], a[2], a[3]])
}

/// Adds the attributes of its stream to a captured kernel, except those that its launch has set, and the
/// synchronization policy, which is not a kernel attribute.
pub fn inherit(kernel: &mut Vec<Attribute>, of_stream: impl IntoIterator<Item = (u32, [u8; STREAM_ATTRIBUTE_BYTES])>) {
    for (id, value) in of_stream {
        let set = kernel.iter().any(|a| attribute_id(a) == id);
        if !set && id != sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as u32 {
            let mut own: Attribute = [0; ATTRIBUTE_BYTES];
            own[..4].copy_from_slice(&id.to_le_bytes());
            own[ATTRIBUTE_BYTES - STREAM_ATTRIBUTE_BYTES..].copy_from_slice(&value);
            kernel.push(own);
        }
    }
}

/// The parameters of a kernel; most kernels' are stored inside.
pub type Params = SmallVec<[u8; 96]>;

/// The predecessors of a node, each with its edge; nearly all nodes have one or two.
pub type After<N> = SmallVec<[(N, Edge); 2]>;

wire_struct! {
    /// A kernel with its parameters by value.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Kernel {
        /// Function or kernel handle.
        pub function: u64,
        /// Blocks.
        pub grid: [u32; 3],
        /// Threads of a block.
        pub block: [u32; 3],
        /// Dynamic shared memory in bytes.
        pub shared: u32,
        /// Launch attributes by number; for an attribute set twice, the last value.
        pub attributes: Vec<Attribute>,
        /// Parameters, each at its offset.
        pub params: Params,
    }
}

impl Clone for Kernel {
    fn clone(&self) -> Kernel {
        let Kernel { function, grid, block, shared, ref attributes, ref params } = *self;
        // A clone of the list would be made byte by byte.
        Kernel { function, grid, block, shared, attributes: attributes.clone(), params: Params::from_slice(params) }
    }
}

wire_struct! {
    /// One end of a copy: its fields of `CUDA_MEMCPY3D`, enums as numbers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct CopyEnd {
        /// Bytes from the start of a row.
        pub x: u64,
        /// Rows from the start of a slice.
        pub y: u64,
        /// Slices.
        pub z: u64,
        /// Level of a mipmap.
        pub lod: u64,
        /// `CUmemorytype`
        pub memory: u32,
        /// Address in the job's process.
        pub host: u64,
        /// Address on the device.
        pub device: u64,
        /// Array handle.
        pub array: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// Rows of a slice.
        pub height: u64,
    }
}

wire_struct! {
    /// `CUDA_MEMCPY3D`
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Copy3 {
        /// Where the bytes come from.
        pub src: CopyEnd,
        /// Where they go.
        pub dst: CopyEnd,
        /// Bytes of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
        /// Slices.
        pub depth: u64,
    }
}

impl Copy3 {
    /// Whether it accesses memory of the job's process, if memory is specified by its type.
    pub fn calls(&self) -> bool {
        self.src.memory == HOST || self.dst.memory == HOST
    }

    /// Bytes that it copies.
    pub fn bytes(&self) -> Option<u64> {
        self.width.checked_mul(self.rows)?.checked_mul(self.depth)
    }
}

/// `CU_MEMORYTYPE_HOST`
pub const HOST: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`
pub const DEVICE: u32 = 2;

wire_struct! {
    /// `CUDA_MEMSET_NODE_PARAMS`
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Fill {
        /// First byte.
        pub dst: u64,
        /// Bytes from row to row.
        pub pitch: u64,
        /// The value.
        pub value: u32,
        /// Its bytes: 1, 2 or 4.
        pub element: u32,
        /// Elements of a row.
        pub width: u64,
        /// Rows.
        pub rows: u64,
    }
}

wire_struct! {
    /// A host function: two addresses of the job's process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HostCall {
        /// The function.
        pub function: u64,
        /// Its argument.
        pub data: u64,
    }
}

wire_struct! {
    /// Memory that a graph allocates, at an address fixed when the node is created.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MemAlloc {
        /// First byte.
        pub address: u64,
        /// Bytes.
        pub bytes: u64,
        /// Ordinal of the device in the program's numbering.
        pub device: i32,
    }
}

/// A conditional node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditional<G> {
    /// The driver's handle, which device code uses.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`
    pub kind: u32,
    /// The graphs to select from.
    pub bodies: Vec<G>,
}

impl Wire for Conditional<u32> {
    fn put(&self, out: &mut Vec<u8>) {
        self.handle.put(out);
        self.kind.put(out);
        self.bodies.put(out);
    }
    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        Ok(Conditional { handle: Wire::get(src)?, kind: Wire::get(src)?, bodies: Wire::get(src)? })
    }
}

/// The work of a node. `G` identifies an embedded graph: a handle inside a model, a number inside a [`Spec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work<G> {
    /// Runs a kernel.
    Kernel(Kernel),
    /// Copies.
    Copy(Copy3),
    /// Fills.
    Fill(Fill),
    /// Calls a function of the job's process.
    Host(HostCall),
    /// Runs an embedded graph.
    Child(G),
    /// Nothing; joins edges.
    Empty,
    /// Waits for an event.
    EventWait(u64),
    /// Records an event.
    EventRecord(u64),
    /// Allocates memory, which exists all the time, so that places do nothing.
    MemAlloc(MemAlloc),
    /// Frees memory that a graph has allocated.
    MemFree(u64),
    /// Writes to memory and waits for values in memory: `CUstreamBatchMemOpParams` each.
    MemOps(Vec<[u64; 6]>),
    /// Runs one of its graphs, or none.
    Conditional(Conditional<G>),
}

impl<G> Work<G> {
    /// `CUgraphNodeType`
    pub fn node_type(&self) -> u32 {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Host(_) => 3,
            Work::Child(_) => 4,
            Work::Empty => 5,
            Work::EventWait(_) => 6,
            Work::EventRecord(_) => 7,
            Work::MemAlloc(_) => 10,
            Work::MemFree(_) => 11,
            Work::MemOps(_) => 12,
            Work::Conditional(_) => 13,
        }
    }

    /// Whether a place in another process must call the job when it reaches this node.
    pub fn calls(&self) -> bool {
        matches!(self, Work::Host(_)) || matches!(self, Work::Copy(c) if c.calls())
    }

    /// The embedded graphs.
    pub fn inner(&self) -> &[G] {
        match self {
            Work::Child(g) => std::slice::from_ref(g),
            Work::Conditional(c) => &c.bodies,
            _ => &[],
        }
    }

    /// The same work with other names of the embedded graphs.
    pub fn renamed<H>(&self, mut name: impl FnMut(&G) -> H) -> Work<H> {
        match self {
            Work::Kernel(k) => Work::Kernel(k.clone()),
            Work::Copy(c) => Work::Copy(*c),
            Work::Fill(f) => Work::Fill(*f),
            Work::Host(h) => Work::Host(*h),
            Work::Child(g) => Work::Child(name(g)),
            Work::Empty => Work::Empty,
            Work::EventWait(e) => Work::EventWait(*e),
            Work::EventRecord(e) => Work::EventRecord(*e),
            Work::MemAlloc(m) => Work::MemAlloc(*m),
            Work::MemFree(a) => Work::MemFree(*a),
            Work::MemOps(m) => Work::MemOps(m.clone()),
            Work::Conditional(c) => {
                Work::Conditional(Conditional { handle: c.handle, kind: c.kind, bodies: c.bodies.iter().map(name).collect() })
            }
        }
    }
}

impl Wire for Work<u32> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.node_type() as u8).put(out);
        match self {
            Work::Kernel(k) => k.put(out),
            Work::Copy(c) => c.put(out),
            Work::Fill(f) => f.put(out),
            Work::Host(h) => h.put(out),
            Work::Child(g) => g.put(out),
            Work::Empty => {}
            Work::EventWait(e) | Work::EventRecord(e) => e.put(out),
            Work::MemAlloc(m) => m.put(out),
            Work::MemFree(a) => a.put(out),
            Work::MemOps(m) => m.put(out),
            Work::Conditional(c) => c.put(out),
        }
    }

    fn get(src: &mut &[u8]) -> Result<Self, Short> {
        Ok(match u8::get(src)? {
            0 => Work::Kernel(Wire::get(src)?),
            1 => Work::Copy(Wire::get(src)?),
            2 => Work::Fill(Wire::get(src)?),
            3 => Work::Host(Wire::get(src)?),
            4 => Work::Child(Wire::get(src)?),
            5 => Work::Empty,
            6 => Work::EventWait(Wire::get(src)?),
            7 => Work::EventRecord(Wire::get(src)?),
            10 => Work::MemAlloc(Wire::get(src)?),
            11 => Work::MemFree(Wire::get(src)?),
            12 => Work::MemOps(Wire::get(src)?),
            13 => Work::Conditional(Wire::get(src)?),
            _ => return Err(Short),
        })
    }
}

wire_struct! {
    /// A node of a [`Spec`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SpecNode {
        /// Its work.
        pub work: Work<u32>,
        /// Its predecessors in the graph, in the order in which the program named them.
        pub after: After<u32>,
    }
}

wire_struct! {
    /// A graph with its embedded graphs, encoded. Graph 0 is the outermost; every other one is embedded in a node of a
    /// graph with a smaller number.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Spec {
        /// The nodes of each graph, in creation order.
        pub graphs: Vec<Vec<SpecNode>>,
    }
}

wire_struct! {
    /// Identifies a node of a [`Spec`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct At {
        /// Number of the graph.
        pub graph: u32,
        /// Number of the node in it.
        pub node: u32,
    }
}

impl Spec {
    /// The nodes that call the job, in the order of the tokens of a launch.
    pub fn calls(&self) -> impl Iterator<Item = (At, &Work<u32>)> {
        self.graphs.iter().zip(0..).flat_map(|(nodes, graph)| {
            nodes.iter().zip(0..).filter(|(n, _)| n.work.calls()).map(move |(n, node)| (At { graph, node }, &n.work))
        })
    }

    /// Whether it is one graph of at most `limit` nodes, all of them kernels without attributes, copies and fills of one row, and empty ones,
    /// with plain edges.
    pub fn is_simple(&self, limit: usize) -> bool {
        let in_memory = |end: &CopyEnd| matches!(end.memory, HOST | DEVICE);
        let one = |node: &SpecNode| {
            let work = match &node.work {
                Work::Kernel(k) => k.attributes.is_empty(),
                Work::Copy(c) => c.rows == 1 && c.depth == 1 && in_memory(&c.src) && in_memory(&c.dst),
                Work::Fill(f) => f.rows == 1,
                Work::Empty => true,
                _ => false,
            };
            work && node.after.iter().all(|(_, edge)| *edge == Edge::default())
        };
        matches!(&self.graphs[..], [nodes] if (1..=limit).contains(&nodes.len()) && nodes.iter().all(one))
    }

    /// Whether only a few copies and fills precede a node of the outermost graph, so that nothing delays it.
    pub fn is_unhindered(&self, at: At) -> bool {
        /// Maximum number of nodes that are examined.
        const FEW: usize = 64;
        let Some(nodes) = self.graphs.first().filter(|_| at.graph == 0) else { return false };
        let mut found = vec![at.node];
        let mut next = 0;
        while let Some(node) = found.get(next).and_then(|n| nodes.get(*n as usize)) {
            next += 1;
            for (before, _) in node.after.iter().filter(|(before, _)| !found.contains(before)).collect::<Vec<_>>() {
                let work = nodes.get(*before as usize).map(|n| &n.work);
                if found.len() == FEW || !matches!(work, Some(Work::Copy(_) | Work::Fill(_) | Work::Empty)) {
                    return false;
                }
                found.push(*before);
            }
        }
        next == found.len()
    }

    /// For each graph, whether a launch may run it any number of times, as those inside conditional nodes.
    pub fn conditional(&self) -> Vec<bool> {
        let mut inside = vec![false; self.graphs.len()];
        for (number, nodes) in self.graphs.iter().enumerate() {
            for node in nodes {
                let own = inside[number] || matches!(node.work, Work::Conditional(_));
                for inner in node.work.inner() {
                    if let Some(slot) = inside.get_mut(*inner as usize) {
                        *slot |= own;
                    }
                }
            }
        }
        inside
    }

    /// Checks that the graphs form a tree and that edges stay inside their graphs without a cycle. Graphs from another
    /// process are used only after this check.
    ///
    /// # Errors
    /// [`Short`]: the graph is damaged.
    pub fn check(&self) -> Result<(), Short> {
        let mut depth: SmallVec<[usize; 8]> = SmallVec::from_elem(0, self.graphs.len());
        for (number, nodes) in self.graphs.iter().enumerate() {
            let own = *depth.get(number).ok_or(Short)?;
            if number > 0 && own == 0 || own > MAX_DEPTH {
                return Err(Short);
            }
            for node in nodes {
                for inner in node.work.inner() {
                    let slot = depth.get_mut(*inner as usize).filter(|d| **d == 0).ok_or(Short)?;
                    if *inner as usize <= number {
                        return Err(Short);
                    }
                    *slot = own + 1;
                }
            }
            // Programs nearly always name predecessors that they have made before.
            let is_forward = nodes.iter().zip(0..).all(|(n, number)| n.after.iter().all(|(before, _)| *before < number));
            if !is_forward {
                order(nodes).ok_or(Short)?;
            }
        }
        if self.graphs.is_empty() { Err(Short) } else { Ok(()) }
    }
}

/// The nodes of a graph in topological order; `None` if there is a cycle or an edge leads to a node that does not
/// exist.
pub fn order(nodes: &[SpecNode]) -> Option<Vec<u32>> {
    let mut missing: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
    let mut later: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
    for (number, node) in nodes.iter().enumerate() {
        for (before, _) in &node.after {
            later.get_mut(*before as usize)?.push(number as u32);
        }
    }
    let mut order: Vec<u32> = (0..nodes.len() as u32).filter(|n| missing[*n as usize] == 0).collect();
    let mut next = 0;
    while let Some(done) = order.get(next).copied() {
        next += 1;
        for after in &later[done as usize] {
            missing[*after as usize] -= 1;
            if missing[*after as usize] == 0 {
                order.push(*after);
            }
        }
    }
    (order.len() == nodes.len()).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(work: Work<u32>, after: &[u32]) -> SpecNode {
        SpecNode { work, after: after.iter().map(|n| (*n, Edge::default())).collect() }
    }

    #[test]
    fn specs_travel() {
        let kernel = Kernel {
            function: 7,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared: 8,
            attributes: vec![[9; ATTRIBUTE_BYTES]],
            params: Params::from_slice(&[1, 2, 3]),
        };
        let conditional = Conditional { handle: 5, kind: 1, bodies: vec![1] };
        let spec = Spec {
            graphs: vec![
                vec![node(Work::Kernel(kernel), &[]), node(Work::Conditional(conditional), &[0]), node(Work::Child(2), &[1])],
                vec![node(Work::Copy(Copy3::default()), &[])],
                vec![node(Work::MemOps(vec![[1; 6]]), &[]), node(Work::EventRecord(3), &[0])],
            ],
        };
        let mut bytes = Vec::new();
        spec.put(&mut bytes);
        let back = Spec::get(&mut &bytes[..]).unwrap();
        assert_eq!(back, spec);
        assert_eq!(back.check(), Ok(()));
        for cut in 0..bytes.len() {
            assert!(Spec::get(&mut &bytes[..cut]).is_err());
        }
    }

    #[test]
    fn what_may_hold_a_copy_up_is_found() {
        let copy = || Work::Copy(Copy3::default());
        let kernel = Work::EventWait(3);
        let spec = Spec {
            graphs: vec![
                vec![
                    node(copy(), &[]),
                    node(copy(), &[0, 4]),
                    node(kernel, &[0]),
                    node(copy(), &[1, 2]),
                    // Created later, but precedes.
                    node(Work::Empty, &[0]),
                    node(copy(), &[3]),
                    node(Work::Child(1), &[]),
                ],
                vec![node(copy(), &[])],
            ],
        };
        let unhindered = |graph, node| spec.is_unhindered(At { graph, node });
        assert!(unhindered(0, 0) && unhindered(0, 1) && unhindered(0, 2));
        assert!(!unhindered(0, 3) && !unhindered(0, 5), "behind the wait for an event, at once and further away");
        assert!(!unhindered(1, 0) && !unhindered(0, 7) && !unhindered(2, 0));
        let before = |n: u32| n.checked_sub(1).into_iter().collect::<Vec<u32>>();
        let spec = Spec { graphs: vec![(0..100).map(|n| node(copy(), &before(n))).collect()] };
        assert!(spec.is_unhindered(At { graph: 0, node: 50 }) && !spec.is_unhindered(At { graph: 0, node: 99 }));
    }

    #[test]
    fn damaged_specs_are_refused() {
        let bad = [
            vec![],
            vec![vec![node(Work::Empty, &[1])]],
            vec![vec![node(Work::Empty, &[1]), node(Work::Empty, &[0])]],
            vec![vec![node(Work::Child(0), &[])]],
            vec![vec![node(Work::Child(1), &[]), node(Work::Child(1), &[])], vec![]],
            vec![vec![node(Work::Child(7), &[])]],
            vec![vec![], vec![]],
            (0..100).map(|n| vec![node(if n == 99 { Work::Empty } else { Work::Child(n + 1) }, &[])]).collect(),
        ];
        for graphs in bad {
            assert_eq!(Spec { graphs: graphs.clone() }.check(), Err(Short), "{graphs:?}");
        }
    }
}
