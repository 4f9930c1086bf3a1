//! User objects, and Graphviz output of graphs.

use super::{Host, INVALID};
use crate::graph::tables::Destructor;
use cuda_api::code::{self, Code};
use cuda_api::sys::CUhostFn;
use cuda_api::work::Work;
use std::ffi::c_uint;
use std::fmt::Write;

/// Creates a user object.
pub fn cuUserObjectCreate<H: Host>(
    h: &mut H,
    data: u64,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Result<u64, Code> {
    /// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: required.
    const NO_SYNC: u32 = 1;
    let function = destroy.ok_or(INVALID)?;
    if flags != NO_SYNC {
        return Err(INVALID);
    }
    h.shared().with(|g| g.new_object(Destructor { function, data }, references))
}

/// Adds references to a user object.
pub fn cuUserObjectRetain<H: Host>(h: &mut H, object: u64, count: c_uint) -> Result<(), Code> {
    h.shared().with(|g| g.retain_object(object, count))
}

/// Releases references to a user object.
pub fn cuUserObjectRelease<H: Host>(h: &mut H, object: u64, count: c_uint) -> Result<(), Code> {
    h.shared().with(|g| g.release_object(object, count))
}

/// Makes a graph hold references to a user object.
pub fn cuGraphRetainUserObject<H: Host>(h: &mut H, graph: u64, object: u64, count: c_uint, flags: c_uint) -> Result<(), Code> {
    // `CU_GRAPH_USER_OBJECT_MOVE` is 1.
    if flags > 1 || count == 0 {
        return Err(INVALID);
    }
    h.shared().with(|g| g.graph_retains(graph, object, count, flags == 1))
}

/// Makes a graph release references to a user object.
pub fn cuGraphReleaseUserObject<H: Host>(h: &mut H, graph: u64, object: u64, count: c_uint) -> Result<(), Code> {
    h.shared().with(|g| g.graph_releases(graph, object, count))
}

/// Writes a graph to a file in the language of Graphviz. The text differs from the driver's, whose format is
/// not documented.
pub fn cuGraphDebugDotPrint<H: Host>(h: &mut H, graph: u64, path: String, _flags: c_uint) -> Result<(), Code> {
    let spec = h.shared().with(|g| {
        g.store.graph(graph)?;
        g.store.freeze(graph).map(|frozen| frozen.spec())
    })?;
    let mut dot = String::from("digraph dot {\n");
    for (number, nodes) in spec.graphs.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(dot, "subgraph cluster_{number} {{\nlabel=\"graph_{number}\";");
        for (n, node) in nodes.iter().enumerate() {
            let _ = writeln!(dot, "g{number}n{n} [label=\"{n}\\n{}\"];", label(&node.work));
            for (before, _) in &node.after {
                let _ = writeln!(dot, "g{number}n{before} -> g{number}n{n};");
            }
        }
        dot.push_str("}\n");
    }
    dot.push_str("}\n");
    std::fs::write(path, dot).map_err(|_| code::ERROR_OPERATING_SYSTEM)
}

fn label(work: &Work<u32>) -> String {
    match work {
        Work::Kernel(k) => format!("KERNEL {:?} x {:?}", k.grid, k.block),
        Work::Copy(c) => format!("MEMCPY {} x {} x {}", c.width, c.rows, c.depth),
        Work::Fill(f) => format!("MEMSET {} x {} = {}", f.width, f.rows, f.value),
        Work::Host(_) => "HOST".into(),
        Work::Child(g) => format!("GRAPH graph_{g}"),
        Work::Empty => "EMPTY".into(),
        Work::EventWait(_) => "WAIT_EVENT".into(),
        Work::EventRecord(_) => "EVENT_RECORD".into(),
        Work::MemAlloc(m) => format!("MEM_ALLOC {}", m.bytes),
        Work::MemFree(_) => "MEM_FREE".into(),
        Work::MemOps(m) => format!("BATCH_MEM_OP {}", m.len()),
        Work::Conditional(c) => format!("CONDITIONAL graphs {:?}", c.bodies),
    }
}
