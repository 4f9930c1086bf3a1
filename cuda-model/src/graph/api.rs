//! The functions of cuda.h about captures and graphs, over any [`Host`]. Arguments are those of the program, with
//! enums as integers; every function follows the CUDA driver API reference.

mod build;
mod condition;
mod instance;
mod memory;
mod objects;
mod params;
mod streams;

pub use build::*;
pub use condition::*;
pub use instance::*;
pub use memory::*;
pub use objects::*;
pub use params::*;
pub use streams::*;

use super::model::Node;
use super::{Graphs, Host};
use cuda_api::code::{self, Code};
use cuda_api::graph::{AnyParams, KernelArgs};
use cuda_api::work::{After, Attribute, Work};

const INVALID: Code = code::ERROR_INVALID_VALUE;

type Done = Result<(), Code>;

/// Work and its context, checked by the host.
fn checked<H: Host>(h: &mut H, work: Work<u64>) -> Result<(Work<u64>, u64), Code> {
    let context = match &work {
        Work::Kernel(k) => h.check_kernel(k)?,
        Work::Copy(c) => h.check_copy(c)?,
        Work::Fill(f) => h.check_fill(f)?,
        Work::EventWait(e) | Work::EventRecord(e) => h.event(*e)?,
        Work::MemOps(m) => h.check_words(m)?,
        // Memory is checked where it is allocated.
        Work::Host(_) | Work::Child(_) | Work::Empty | Work::Conditional(_) | Work::MemAlloc(_) | Work::MemFree(_) => 0,
    };
    Ok((work, context))
}

fn kernel<H: Host>(h: &mut H, args: KernelArgs, attributes: Vec<Attribute>) -> Result<(Work<u64>, u64), Code> {
    let kernel = h.layout(args.function, |layout| args.kernel(layout, attributes))?;
    checked(h, Work::Kernel(kernel))
}

/// The work of a node, if it is of the kind that `pick` selects.
fn work_of<H: Host, T>(h: &H, node: u64, pick: impl Fn(&Work<u64>) -> Option<T>) -> Result<T, Code> {
    h.shared().with(|g| pick(&g.store.node(node)?.work).ok_or(INVALID))
}

/// Changes the work of a node without changing its kind.
fn set_work<H: Host>(h: &H, node: u64, (work, context): (Work<u64>, u64)) -> Done {
    h.shared().with(|g| {
        let n = g.store.node_mut(node)?;
        if n.work.node_type() != work.node_type() {
            return Err(INVALID);
        }
        (n.work, n.context) = (work, context);
        Ok(())
    })
}

/// The launch attributes of a kernel node.
fn attributes_of<H: Host>(h: &H, node: u64) -> Result<Vec<Attribute>, Code> {
    work_of(h, node, |w| if let Work::Kernel(k) = w { Some(k.attributes.clone()) } else { None })
}

/// Parameters of any kind for an existing node; embedded graphs cannot be changed this way.
fn any_work<H: Host>(h: &mut H, node: u64, params: AnyParams) -> Result<(Work<u64>, u64), Code> {
    match params {
        AnyParams::Kernel(args) => {
            let attributes = attributes_of(h, node)?;
            kernel(h, args, attributes)
        }
        AnyParams::Ready(work) => checked(h, work),
        AnyParams::Child { .. } | AnyParams::Alloc | AnyParams::Free(_) | AnyParams::Conditional => {
            Err(code::ERROR_NOT_SUPPORTED)
        }
    }
}

/// Adds a node and returns its handle.
fn add<H: Host>(h: &H, graph: u64, after: After<u64>, (work, context): (Work<u64>, u64)) -> Result<u64, Code> {
    h.shared().with(|g| {
        g.store.graph(graph)?;
        g.store.add(graph, after, work, context)
    })
}

fn is_conditional(n: &Node) -> bool {
    matches!(n.work, Work::Conditional(_))
}

/// Whether a graph with this node cannot be copied.
fn is_single(n: &Node) -> bool {
    is_conditional(n) || matches!(n.work, Work::MemAlloc(_) | Work::MemFree(_))
}

/// Checks that something may be removed from a graph.
fn check_removal(g: &Graphs, graph: u64) -> Done {
    if g.store.is_captured_into(graph) {
        return Err(INVALID);
    }
    if g.store.has_memory(graph) { Err(code::ERROR_NOT_SUPPORTED) } else { Ok(()) }
}

impl Graphs {
    /// A copy of a graph for a child node of another one.
    fn copy_for_child(&mut self, child: u64, parent: u64) -> Result<u64, Code> {
        self.store.graph(parent)?;
        self.store.graph(child)?;
        if child == parent || self.store.is_captured_into(child) {
            return Err(INVALID);
        }
        if self.store.has_memory(child) {
            // docs/driver-facts.md, 7.3
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        if self.store.any(child, &is_conditional) {
            return Err(INVALID);
        }
        self.copy_graph(child, super::model::Owner::Program)
    }
}

#[cfg(test)]
mod tests;
