//! Graphs: nodes of all kinds are added and changed through the driver's one structure for all of them.

use super::{Code, Gpu, checked, code, sys};
use cuda_api::handle::{Kind, kind};
use cuda_api::ops::ATTRIBUTE_BYTES;
use cuda_api::pointer::OutPtr;
use cuda_api::work::{Conditional, Copy3, Edge, Fill, Kernel};
use smallvec::SmallVec;
use std::marker::PhantomData;

/// Words of a `CUgraphNodeParams`: type and three reserved half words, the union, a reserved word.
const WORDS: usize = size_of::<sys::CUgraphNodeParams>() / 8;
const UNION: usize = 2;
/// Where a kernel's word with the address of its list of parameters is in the union.
const LIST: usize = 5;

/// Parameters of a node in the driver's form. They point to memory that they have, and to the kernel.
pub(crate) struct NodeParams<'k> {
    words: [u64; WORDS],
    /// A pointer to each parameter of the kernel.
    list: SmallVec<[u64; 16]>,
    mem_ops: Vec<[u64; 6]>,
    _kernel: PhantomData<&'k Kernel>,
}

impl<'k> NodeParams<'k> {
    fn new(node_type: u32) -> NodeParams<'k> {
        let mut words = [0; WORDS];
        words[0] = u64::from(node_type);
        NodeParams { words, list: SmallVec::new(), mem_ops: Vec::new(), _kernel: PhantomData }
    }

    fn put(&mut self, at: usize, words: &[u64]) {
        self.words[UNION + at..UNION + at + words.len()].copy_from_slice(words);
    }

    /// A kernel; `live` is the driver's function or kernel, `layout` the offset and size of each parameter. The parameters are passed one
    /// by one: a node whose parameters are in one buffer cannot be made cooperative (a 580 driver refuses the attribute).
    pub(crate) fn kernel(k: &'k Kernel, live: u64, layout: &[(u32, u32)]) -> Result<NodeParams<'k>, Code> {
        let mut p = NodeParams::new(0);
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let ([gx, gy, gz], [bx, by, bz]) = (k.grid, k.block);
        for (offset, size) in layout {
            let (from, bytes) = (*offset as usize, *size as usize);
            let one = from.checked_add(bytes).and_then(|end| k.params.get(from..end)).ok_or(code::ERROR_INVALID_VALUE)?;
            p.list.push(one.as_ptr() as u64);
        }
        let (function, kernel) = if kind(k.function) == Some(Kind::Kernel) { (0, live) } else { (live, 0) };
        p.put(0, &[function, pair(gx, gy), pair(gz, bx), pair(by, bz), u64::from(k.shared), 0, 0, kernel, 0]);
        Ok(p)
    }

    /// A copy in a context.
    pub(crate) fn copy(c: &Copy3, context: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(1);
        p.put(1, &[context]);
        // Cannot fail: the pointer is not null.
        let _ = cuda_api::copy::write_copy_3d(OutPtr::of_list(&mut p.words[UNION + 2..]).untyped().typed(), c);
        p
    }

    /// A fill in a context.
    pub(crate) fn fill(f: &Fill, context: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(2);
        p.put(0, &[f.dst, f.pitch, u64::from(f.value) | u64::from(f.element) << 32, f.width, f.rows, context]);
        p
    }

    /// A host function.
    pub(crate) fn host(function: u64, data: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(3);
        p.put(0, &[function, data]);
        p
    }

    /// A child graph, which the driver copies.
    pub(crate) fn child(graph: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(4);
        p.put(0, &[graph]);
        p
    }

    /// A condition with a number of graphs, which the driver creates.
    fn conditional(handle: u64, kind: u32, graphs: u32, context: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(13);
        p.put(0, &[handle, u64::from(kind) | u64::from(graphs) << 32, 0, context]);
        p
    }

    /// An empty node.
    pub(crate) fn empty() -> NodeParams<'k> {
        NodeParams::new(5)
    }

    /// A wait for an event, or its recording.
    pub(crate) fn event(event: u64, record: bool) -> NodeParams<'k> {
        let mut p = NodeParams::new(if record { 7 } else { 6 });
        p.put(0, &[event]);
        p
    }

    /// Memory operations in a context.
    pub(crate) fn mem_ops(ops: &[[u64; 6]], context: u64) -> NodeParams<'k> {
        let mut p = NodeParams::new(12);
        p.mem_ops = ops.to_vec();
        p.put(0, &[context, ops.len() as u64, p.mem_ops.as_ptr() as u64, 0]);
        p
    }

    /// The structure, as long as these parameters are not moved.
    fn as_ptr(&mut self) -> *mut sys::CUgraphNodeParams {
        if !self.list.is_empty() {
            self.words[UNION + LIST] = self.list.as_ptr() as u64;
        }
        self.words.as_mut_ptr().cast()
    }
}

impl Gpu {
    pub(crate) fn new_graph(&self) -> Result<u64, Code> {
        let mut graph = std::ptr::null_mut();
        call!(self.graph.cuGraphCreate(&raw mut graph, 0)).map(|()| graph as u64)
    }

    pub(crate) fn destroy_graph(&self, graph: u64) -> Result<(), Code> {
        call!(self.graph.cuGraphDestroy(graph as sys::CUgraph))
    }

    pub(crate) fn destroy_node(&self, node: u64) -> Result<(), Code> {
        call!(self.graph.cuGraphDestroyNode(node as sys::CUgraphNode))
    }

    /// Adds a node behind others.
    pub(crate) fn add_node(&self, graph: u64, after: &[u64], params: &mut NodeParams) -> Result<u64, Code> {
        let (mut node, plain) = (std::ptr::null_mut(), std::ptr::null());
        let (graph, count) = (graph as sys::CUgraph, after.len());
        // The address of an empty list is none that a driver need see.
        let after = if after.is_empty() { std::ptr::null() } else { after.as_ptr().cast() };
        call!(self.graph.cuGraphAddNode_v2(&raw mut node, graph, after, plain, count, params.as_ptr()))?;
        Ok(node as u64)
    }

    /// Adds a conditional node; returns the graphs in it, to be filled.
    pub(crate) fn add_conditional(
        &self,
        graph: u64,
        after: &[u64],
        c: &Conditional<u32>,
        context: u64,
    ) -> Result<(u64, Vec<u64>), Code> {
        let count = u32::try_from(c.bodies.len()).map_err(|_| code::ERROR_INVALID_VALUE)?;
        let mut params = NodeParams::conditional(c.handle, c.kind, count, context);
        let node = self.add_node(graph, after, &mut params)?;
        let list = params.words[UNION + 2] as *const u64;
        if list.is_null() {
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the driver's array with this number of graphs, which lives as long as the node.
        Ok((node, (0..c.bodies.len()).map(|i| unsafe { list.add(i).read() }).collect()))
    }

    /// Creates a condition for a node of a graph; returns its handle.
    pub(crate) fn new_condition(&self, graph: u64, context: u64, default: u32, flags: u32) -> Result<u64, Code> {
        let mut handle = 0;
        let (graph, context) = (graph as sys::CUgraph, context as sys::CUcontext);
        call!(self.graph.cuGraphConditionalHandleCreate(&raw mut handle, graph, context, default, flags))?;
        Ok(handle)
    }

    pub(crate) fn add_edges(&self, graph: u64, edges: &[(u64, u64, Edge)]) -> Result<(), Code> {
        let from: Vec<_> = edges.iter().map(|(from, _, _)| *from as sys::CUgraphNode).collect();
        let to: Vec<_> = edges.iter().map(|(_, to, _)| *to as sys::CUgraphNode).collect();
        let data: Vec<sys::CUgraphEdgeData> = edges.iter().map(|(_, _, edge)| (*edge).into()).collect();
        let n = edges.len();
        call!(self.graph.cuGraphAddDependencies_v2(graph as sys::CUgraph, from.as_ptr(), to.as_ptr(), data.as_ptr(), n))
    }

    pub(crate) fn set_node_attribute(&self, node: u64, id: u32, value: &[u64; (ATTRIBUTE_BYTES - 8) / 8]) -> Result<(), Code> {
        call!(self.graph.cuGraphKernelNodeSetAttribute(node as sys::CUgraphNode, id, value.as_ptr().cast()))
    }

    pub(crate) fn child_graph(&self, node: u64) -> Result<u64, Code> {
        let mut graph = std::ptr::null_mut();
        call!(self.graph.cuGraphChildGraphNodeGetGraph(node as sys::CUgraphNode, &raw mut graph)).map(|()| graph as u64)
    }

    pub(crate) fn node_in_clone(&self, node: u64, clone: u64) -> Result<u64, Code> {
        let mut found = std::ptr::null_mut();
        let (node, clone) = (node as sys::CUgraphNode, clone as sys::CUgraph);
        call!(self.graph.cuGraphNodeFindInClone(&raw mut found, node, clone)).map(|()| found as u64)
    }

    pub(crate) fn instantiate(&self, graph: u64, flags: u64) -> Result<u64, Code> {
        let mut instance = std::ptr::null_mut();
        call!(self.graph.cuGraphInstantiateWithFlags(&raw mut instance, graph as sys::CUgraph, flags))?;
        Ok(instance as u64)
    }

    pub(crate) fn change_node(&self, instance: u64, node: u64, params: &mut NodeParams) -> Result<(), Code> {
        let (instance, node) = (instance as sys::CUgraphExec, node as sys::CUgraphNode);
        call!(self.graph.cuGraphExecNodeSetParams(instance, node, params.as_ptr()))
    }

    pub(crate) fn switch_node(&self, instance: u64, node: u64, on: bool) -> Result<(), Code> {
        let (instance, node) = (instance as sys::CUgraphExec, node as sys::CUgraphNode);
        call!(self.graph.cuGraphNodeSetEnabled(instance, node, u32::from(on)))
    }

    pub(crate) fn launch_graph(&self, instance: u64, stream: u64) -> Result<(), Code> {
        call!(self.graph.cuGraphLaunch(instance as sys::CUgraphExec, stream as sys::CUstream))
    }

    pub(crate) fn upload_graph(&self, instance: u64, stream: u64) -> Result<(), Code> {
        call!(self.graph.cuGraphUpload(instance as sys::CUgraphExec, stream as sys::CUstream))
    }

    pub(crate) fn destroy_instance(&self, instance: u64) -> Result<(), Code> {
        call!(self.graph.cuGraphExecDestroy(instance as sys::CUgraphExec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::work::Params;

    #[test]
    fn parameters_are_where_the_header_says() {
        let kernel = Kernel {
            function: 7,
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared: 8,
            attributes: vec![],
            params: Params::from_elem(9, 12),
        };
        let mut p = NodeParams::kernel(&kernel, 0x1234, &[(0, 8), (8, 4)]).expect("they are all there");
        // SAFETY: every field of this member is valid for any bits.
        let k = unsafe { (*p.as_ptr()).__bindgen_anon_1.kernel };
        assert_eq!((k.func as u64, k.gridDimX, k.gridDimY, k.gridDimZ), (0x1234, 1, 2, 3));
        assert_eq!((k.blockDimX, k.blockDimY, k.blockDimZ, k.sharedMemBytes), (4, 5, 6, 8));
        assert!(k.kernelParams as u64 == p.list.as_ptr() as u64 && k.extra.is_null() && k.kern.is_null());
        assert_eq!(p.list[..], [kernel.params.as_ptr() as u64, kernel.params.as_ptr() as u64 + 8]);
        let mut moved = Box::new(p);
        // SAFETY: as above.
        let k = unsafe { (*moved.as_ptr()).__bindgen_anon_1.kernel };
        assert_eq!(k.kernelParams as u64, moved.list.as_ptr() as u64);
        assert_eq!(NodeParams::kernel(&kernel, 0x1234, &[(0, 8), (8, 5)]).err(), Some(code::ERROR_INVALID_VALUE));
        let fill = Fill { dst: 1, pitch: 2, value: 3, element: 4, width: 5, rows: 6 };
        let mut p = NodeParams::fill(&fill, 7);
        // SAFETY: as above.
        let m = unsafe { (*p.as_ptr()).__bindgen_anon_1.memset };
        assert_eq!((m.dst, m.pitch, m.value, m.elementSize, m.width, m.height, m.ctx as u64), (1, 2, 3, 4, 5, 6, 7));
        let mut copy = Copy3 { width: 11, rows: 12, depth: 13, ..Copy3::default() };
        (copy.src.memory, copy.dst.memory, copy.dst.device) = (1, 2, 99);
        let mut p = NodeParams::copy(&copy, 7);
        // SAFETY: as above; both enums hold values that they have.
        let c = unsafe { (*p.as_ptr()).__bindgen_anon_1.memcpy };
        assert_eq!((c.copyCtx as u64, c.copyParams.dstDevice, c.copyParams.Depth), (7, 99, 13));
        let mut p = NodeParams::mem_ops(&[[5; 6]; 2], 7);
        // SAFETY: as above.
        let m = unsafe { (*p.as_ptr()).__bindgen_anon_1.memOp };
        assert_eq!((m.ctx as u64, m.count, m.flags), (7, 2, 0));
    }
}
