//! Instances of graphs: nodes run as their edges allow, each in a separate queue, so that independent ones run in random
//! order.

use super::event::{self, Event};
use super::graph_table::GRAPHS;
use super::launch::{self, Shape};
use super::live::Live;
use super::mark::Mark;
use super::memory_op::Part;
use super::module::{self, Function};
use super::sched::{self, Work};
use super::stream::Target;
use super::table::Table;
use super::{allocation, condition, copy, lock, memory, wait};
use crate::result::Res;
use cuda_api::sys::{CUfunction, CUresult};
use cuda_api::work::{At, Copy3, HostCall, Kernel, Spec, SpecNode, Work as NodeWork, attribute_id, order};
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};

/// Instances by handle.
pub(crate) static INSTANCES: LazyLock<Table<Instance>> = LazyLock::new(|| Table::new(8));

/// The work of a node, with resolved handles.
#[derive(Clone)]
enum Op {
    Nothing,
    Kernel(Arc<Function>, Shape, Arc<[u8]>),
    Copy(Copy3),
    Fill(copy::Fill),
    Host(HostCall),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Child(u32),
    Conditional { handle: u64, kind: u32, bodies: Vec<u32> },
    Words(Vec<Part>),
}

#[derive(Clone)]
struct Node {
    op: Op,
    after: Vec<u32>,
    on: bool,
}

/// An instance of a graph.
pub(crate) struct Instance {
    /// Its handle.
    pub handle: usize,
    live: Weak<Live>,
    graphs: Mutex<Vec<Vec<Node>>>,
    /// Order in which each graph's nodes are submitted.
    orders: Arc<Vec<Vec<u32>>>,
    /// End of the last launch: launches of one instance follow each other.
    last: Mutex<Option<Arc<Mark>>>,
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The shape of a kernel; attributes that would change results are refused.
pub(crate) fn shape(k: &Kernel) -> Res<Shape> {
    let mut shape = Shape { grid: k.grid, block: k.block, shared: k.shared, cooperative: false };
    for a in &k.attributes {
        let words: Vec<u32> = a[8..20].chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        match attribute_id(a) {
            2 => shape.cooperative = words[0] != 0,
            0 | 1 | 3 | 6 | 8 | 9 | 10 | 14 => {}
            4 | 11 if words == [1, 1, 1] => {}
            5 if words[0] == 0 => {}
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }
    Ok(shape)
}

fn op(work: &NodeWork<u32>) -> Res<Op> {
    Ok(match work {
        NodeWork::Kernel(k) => {
            let (function, _) = module::resolve_function(k.function as CUfunction)?;
            let shape = shape(k)?;
            launch::check(&function, &shape)?;
            Op::Kernel(function, shape, k.params.as_slice().into())
        }
        NodeWork::Copy(c) => {
            copy::check(c)?;
            Op::Copy(*c)
        }
        NodeWork::Fill(f) => {
            copy::check_fill(&f.into())?;
            Op::Fill(f.into())
        }
        NodeWork::Host(h) => Op::Host(*h),
        NodeWork::Child(g) => Op::Child(*g),
        NodeWork::Empty | NodeWork::MemAlloc(_) | NodeWork::MemFree(_) => Op::Nothing,
        NodeWork::EventWait(e) => Op::Wait(event::resolve(*e as _)?),
        NodeWork::EventRecord(e) => Op::Record(event::resolve(*e as _)?),
        NodeWork::Conditional(c) => Op::Conditional { handle: c.handle, kind: c.kind, bodies: c.bodies.clone() },
        NodeWork::MemOps(parts) => Op::Words(parts.iter().map(Part::of).collect::<Res<_>>()?),
    })
}

fn node(n: &SpecNode) -> Res<Node> {
    Ok(Node { op: op(&n.work)?, after: n.after.iter().map(|(before, _)| *before).collect(), on: true })
}

/// Creates an instance in a context.
pub(crate) fn instantiate(live: &Arc<Live>, spec: &Spec) -> Res<Arc<Instance>> {
    spec.check().map_err(|_| INVALID)?;
    let orders = spec.graphs.iter().map(|g| order(g).ok_or(INVALID)).collect::<Res<Vec<_>>>()?;
    let graphs = spec.graphs.iter().map(|g| g.iter().map(node).collect()).collect::<Res<Vec<_>>>()?;
    let (live, orders) = (Arc::downgrade(live), Arc::new(orders));
    Ok(INSTANCES.insert_with(|handle| Instance { handle, live, graphs: Mutex::new(graphs), orders, last: Mutex::default() }))
}

/// The instance of a handle.
pub(crate) fn resolve(handle: u64) -> Res<Arc<Instance>> {
    INSTANCES.get(handle as usize).ok_or(INVALID)
}

/// A private queue.
fn fresh_queue() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Instance {
    /// Whether it is an instance of this context.
    pub fn belongs_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.live.as_ptr(), Arc::as_ptr(live))
    }

    fn with_node(&self, at: At, f: impl FnOnce(&mut Node)) -> Res {
        let mut graphs = lock(&self.graphs);
        f(graphs.get_mut(at.graph as usize).and_then(|g| g.get_mut(at.node as usize)).ok_or(INVALID)?);
        Ok(())
    }

    /// Changes a node for later launches.
    pub fn change(&self, at: At, work: &NodeWork<u32>) -> Res {
        let op = op(work)?;
        self.with_node(at, |n| n.op = op)
    }

    /// Enables or disables a node for later launches.
    pub fn enable(&self, at: At, on: bool) -> Res {
        self.with_node(at, |n| n.on = on)
    }

    /// Launches it in a stream of its context.
    pub fn launch(&self, target: &Target) -> Res {
        if !self.belongs_to(&target.live) {
            return Err(INVALID);
        }
        let all = All { graphs: Arc::new(lock(&self.graphs).clone()), orders: self.orders.clone() };
        // Locked over the submission, so that of two launches the later one in the queues is remembered.
        let mut last = lock(&self.last);
        let conditions = all.conditions();
        let begins = move |_: &Live| {
            conditions.into_iter().for_each(condition::begin);
            Ok(())
        };
        let begin = target.submit(Work::Run(Box::new(begins)), last.iter().cloned().collect());
        let ends = all.submit(0, &[begin], &target.live);
        *last = Some(target.submit(Work::Nothing, ends));
        Ok(())
    }
}

/// What a launch runs.
#[derive(Clone)]
struct All {
    graphs: Arc<Vec<Vec<Node>>>,
    orders: Arc<Vec<Vec<u32>>>,
}

impl All {
    fn conditions(&self) -> Vec<u64> {
        let handle = |n: &Node| if let Op::Conditional { handle, .. } = n.op { Some(handle) } else { None };
        self.graphs.iter().flatten().filter_map(handle).collect()
    }

    /// Runs one of a conditional node's graphs at once, none, or one repeatedly.
    fn choose(&self, handle: u64, kind: u32, bodies: &[u32], live: &Live) -> Res {
        const IF: u32 = 0;
        const WHILE: u32 = 1;
        loop {
            let value = condition::get(handle);
            let chosen = match kind {
                IF | WHILE if value != 0 => Some(0),
                IF => Some(1),
                WHILE => None,
                _ => Some(value as usize),
            };
            let Some(body) = chosen.and_then(|n| bodies.get(n)) else { return Ok(()) };
            self.run(*body, live)?;
            if kind != WHILE || live.cancelled() {
                return Ok(());
            }
        }
    }

    /// Runs a graph inside a conditional node at once.
    fn run(&self, number: u32, live: &Live) -> Res {
        let nodes = &self.graphs[number as usize];
        for node in self.orders[number as usize].iter().map(|n| &nodes[*n as usize]) {
            match &node.op {
                Op::Child(inner) => self.run(*inner, live)?,
                Op::Conditional { handle, kind, bodies } => self.choose(*handle, *kind, bodies, live)?,
                Op::Kernel(function, shape, params) if node.on => launch::run_node(live, function, shape, params)?,
                Op::Copy(c) if node.on => copy::perform(c)?,
                Op::Fill(f) if node.on => copy::perform_fill(f)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Submits a graph that starts after some marks; returns the marks at which it has completed.
    fn submit(&self, number: u32, start: &[Arc<Mark>], live: &Arc<Live>) -> Vec<Arc<Mark>> {
        let nodes = &self.graphs[number as usize];
        let mut marks: Vec<Vec<Arc<Mark>>> = vec![Vec::new(); nodes.len()];
        let mut inner: HashSet<u32> = HashSet::new();
        for n in &self.orders[number as usize] {
            let node = &nodes[*n as usize];
            inner.extend(&node.after);
            let mut after: Vec<_> = node.after.iter().flat_map(|before| marks[*before as usize].iter().cloned()).collect();
            if node.after.is_empty() {
                after = start.to_vec();
            }
            marks[*n as usize] = match &node.op {
                Op::Child(g) => self.submit(*g, &after, live),
                Op::Conditional { handle, kind, bodies } => {
                    let (all, handle, kind, bodies) = (self.clone(), *handle, *kind, bodies.clone());
                    let run = move |live: &Live| all.choose(handle, kind, &bodies, live);
                    vec![sched::submit().push(fresh_queue(), live, Work::Run(Box::new(run)), after)]
                }
                Op::Words(parts) => {
                    let (queue, mut submission) = (fresh_queue(), sched::submit());
                    let mut last = submission.push(queue, live, Work::Nothing, after);
                    for part in parts {
                        last = submission.push(queue, live, part.work(), Vec::new());
                    }
                    vec![last]
                }
                Op::Wait(event) => {
                    after.extend(event.mark());
                    vec![sched::submit().push(fresh_queue(), live, Work::Nothing, after)]
                }
                Op::Record(event) => {
                    let mark = sched::submit().push(fresh_queue(), live, Work::Nothing, after);
                    event.recorded_at(mark.clone());
                    vec![mark]
                }
                op => {
                    let work = if node.on { work(op.clone()) } else { Work::Nothing };
                    vec![sched::submit().push(fresh_queue(), live, work, after)]
                }
            };
        }
        let ends = marks.into_iter().zip(0..).filter(|(_, n)| !inner.contains(n)).flat_map(|(m, _)| m);
        let ends: Vec<_> = ends.collect();
        if ends.is_empty() { start.to_vec() } else { ends }
    }
}

/// Frees memory of a graph when the work submitted before has completed.
pub(crate) fn release(live: &Arc<Live>, address: u64) -> Res {
    allocation::mark_freed(address)?;
    let before = wait::outstanding(live);
    let work = move |_: &Live| {
        allocation::release_device(&mut memory::write(), address);
        Ok(())
    };
    sched::submit().push(fresh_queue(), live, Work::Always(Box::new(work)), before);
    Ok(())
}

/// Removes the instances of a context that was destroyed.
pub(crate) fn end_context(live: &Arc<Live>) {
    GRAPHS.forget_memory(live.number);
    INSTANCES.remove_if(|instance| instance.belongs_to(live));
}

fn work(op: Op) -> Work {
    match op {
        Op::Kernel(function, shape, params) => {
            Work::Kernel(Box::new(move |live| launch::run_node(live, &function, &shape, &params)))
        }
        Op::Copy(c) => match copy::at_launch(&c) {
            Some((own, bytes)) => Work::Run(Box::new(move |_| {
                let done = copy::perform(&own);
                drop(bytes);
                done
            })),
            None => Work::Run(Box::new(move |_| copy::perform(&c))),
        },
        Op::Fill(f) => Work::Run(Box::new(move |_| copy::perform_fill(&f))),
        Op::Host(h) => Work::Run(Box::new(move |live| {
            // Nothing is called after the context has been destroyed.
            if !live.cancelled() {
                // SAFETY: the program named this function and its argument, to be called when the node runs.
                let function = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(h.function as usize) };
                // SAFETY: as above.
                unsafe { function(h.data as *mut c_void) };
            }
            Ok(())
        })),
        Op::Nothing | Op::Record(_) | Op::Wait(_) | Op::Child(_) | Op::Conditional { .. } | Op::Words(_) => Work::Nothing,
    }
}
