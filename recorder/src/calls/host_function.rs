//! Host functions: functions of the program that a stream calls, and copies whose bytes must be read when the stream gets there.
//!
//! The place reports when a stream has got there; the program's function then runs here, on a recorder thread, and the place is notified when
//! it has returned (docs/execution.md, "Host functions"). Host functions run outside the gate, also while it is closed.

use crate::base::log::lock;
use crate::calls::copy::rect::{self, HostCopy, HostFill};
use crate::calls::{cross_device, host_function, stream_memory};
use crate::device_memory::shared_handles;
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::instances::{GraphNode, InstanceData};
use crate::order::{captures, concerned, landing};
use crate::pinned::blocks;
use crate::place::{Place, Waiting, lost};
use crate::thread::here;
use cuda_api::address_map::DEVICES;
use cuda_api::arg::Capture;
use cuda_api::code::{self, Code};
use cuda_api::ops::{DIRECT_COPY, GraphCall, HostCall, id};
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_api::work::{self, Copy3, HOST, Work};
use executor::host_rows::HostRows;
use rcuda_forwarder::Lost;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// The action when a stream gets there.
enum Task {
    /// `cuLaunchHostFunc`: not called in a failed context.
    Function { function: unsafe extern "C" fn(*mut c_void), data: usize },
    /// `cuStreamAddCallback`: called once in any case; with the stream as the program passed it.
    Callback { callback: unsafe extern "C" fn(sys::CUstream, Code, *mut c_void), stream: u64, data: usize },
    /// A copy inside pinned memory.
    Copy(HostCopy),
    /// A fill of pinned memory.
    Fill(HostFill),
    /// Read these rows of pinned memory and send them.
    Read(HostRows),
    /// A graph's copy that reads memory of this process, writes it, or both.
    Graph(Copy3),
    /// A graph's copy to host memory that the place shares, so that the place writes it.
    Written,
    /// The bytes that a graph's copy has read from pageable memory at the launch.
    Bytes(Vec<u8>),
    /// A graph's copy whose bytes were sent with the launch, or which reads host memory that the place shares, so that the place reads
    /// it.
    Given {
        /// The bytes that were sent.
        _bytes: Sent,
    },
}

/// Number of bytes that were sent with launches of graphs and that their nodes have not taken yet: the places store them meanwhile.
static SENT: AtomicUsize = AtomicUsize::new(0);
/// Maximum of this number.
const MAX_SENT: usize = 8 << 20;
/// The longest copy whose bytes are sent with its launch: more would delay the launch.
const SHORT: u64 = 64 << 10;

/// A number of these bytes.
struct Sent(usize);

impl Sent {
    fn note(bytes: usize) -> Sent {
        SENT.fetch_add(bytes, Ordering::Relaxed);
        Sent(bytes)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        SENT.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Task {
    /// The function of a graph's node.
    #[expect(unsafe_code, reason = "a node has a function of the program as a number")]
    fn of_node(call: &work::HostCall) -> Task {
        // SAFETY: the program passed this function and its argument, to be called when the node runs.
        let function = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(call.function as usize) };
        Task::Function { function, data: call.data as usize }
    }

    /// Returns whether it is a function of the program. Other tasks wait for nothing but the stream, and must not wait for such a
    /// function.
    fn is_functions(&self) -> bool {
        matches!(self, Task::Function { .. } | Task::Callback { .. })
    }

    /// Returns whether the task only reads, or its writes are [noted](landing::note): no other memory changes until it is over.
    fn only_reads(&self) -> bool {
        matches!(self, Task::Read(_) | Task::Bytes(_) | Task::Given { .. })
            || matches!(self, Task::Graph(c) if c.dst.memory != HOST || c.src.memory != HOST)
    }
}

/// A task that a place identifies by its token.
struct Call {
    task: Task,
    /// The stream in whose order it is.
    stream: u64,
    /// The worker to inform; `None` in this process.
    worker: Option<Place>,
}

/// A stream's arrival at a task: the token and the result.
type Arrival = (u64, Result<Code, Code>);

static CALLS: Mutex<Option<FxHashMap<u64, Call>>> = Mutex::new(None);
static TOKENS: AtomicU64 = AtomicU64::new(1);
/// Outstanding host functions and other tasks that change memory: their number,
static OUTSTANDING: AtomicUsize = AtomicUsize::new(0);
/// and the streams in whose order they are.
static STREAMS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// Number of the program's functions that were called, and that have returned.
static CALLED: AtomicUsize = AtomicUsize::new(0);
static RETURNED: AtomicUsize = AtomicUsize::new(0);

/// The running host function, if there is one, identified by the number of those that have returned: as long as it is the same number, it
/// is the same function.
pub(crate) fn running() -> Option<usize> {
    let returned = RETURNED.load(Ordering::Acquire);
    (CALLED.load(Ordering::Acquire) != returned).then_some(returned)
}

/// Returns whether host functions of the program, or other tasks of this process, are outstanding.
pub(crate) fn any_outstanding() -> bool {
    OUTSTANDING.load(Ordering::Acquire) > 0
}

/// Returns whether a host function of the program that may still run, or another task of this process, may come before the next work of a
/// stream. Not if it is another stream's, and this stream has no work behind which it could have to wait: natively its next work could
/// then begin at once. For a stream of this process's driver this is not known.
pub(crate) fn may_come_before(cx: &CallContext, device: &'static Device, stream: u64) -> bool {
    let is_free = || !lock(&STREAMS).contains_key(&stream) && crate::order::delay::is_undelayed(cx, device, stream);
    OUTSTANDING.load(Ordering::Acquire) > 0 && (cx.place(device).in_process().is_some() || !is_free())
}

/// Adds a task to the list; its stream is held for it, or calls a function.
fn add(call: Call, held: bool) -> u64 {
    let token = if held { cross_device::token() } else { TOKENS.fetch_add(1, Ordering::Relaxed) };
    if !call.task.only_reads() {
        *lock(&STREAMS).entry(call.stream).or_default() += 1;
        OUTSTANDING.fetch_add(1, Ordering::AcqRel);
    }
    lock(&CALLS).get_or_insert_default().insert(token, call);
    token
}

/// Removes a task from the list: it is complete, or will not be carried out.
fn take(token: u64) -> Option<Call> {
    lock(&CALLS).as_mut()?.remove(&token)
}

fn over(call: &Call) {
    if call.task.only_reads() {
        return;
    }
    let mut streams = lock(&STREAMS);
    if let Some(left) = streams.get_mut(&call.stream) {
        *left -= 1;
        if *left == 0 {
            streams.remove(&call.stream);
        }
    }
    OUTSTANDING.fetch_sub(1, Ordering::AcqRel);
}

/// Carries out a task; a callback is called in any case.
#[expect(unsafe_code, reason = "it calls a function of the program")]
fn run(task: &Task, arrived: Result<Code, Code>) {
    match (task, arrived) {
        (Task::Copy(copy), Ok(_)) => copy.carry_out(),
        (Task::Fill(fill), Ok(_)) => fill.carry_out(),
        _ => {}
    }
    if let (Task::Graph(copy), Ok(_)) = (task, arrived)
        && copy.src.memory == HOST
        && copy.dst.memory == HOST
    {
        rect::write_plain(copy, &rect::read_plain(copy));
    }
    if !task.is_functions() {
        return;
    }
    // Text of earlier kernels is shown before the function runs (docs/measurements.md).
    crate::base::output::show();
    // CUDA calls are not permitted in host functions.
    here().in_host_function.set(true);
    CALLED.fetch_add(1, Ordering::AcqRel);
    match (task, arrived) {
        // SAFETY: the program passed function and data to be called like this, once.
        (Task::Function { function, data }, Ok(_)) => unsafe { function(*data as *mut c_void) },
        (Task::Callback { callback, stream, data }, Ok(status) | Err(status)) => {
            // SAFETY: as above.
            unsafe { callback(*stream as sys::CUstream, status, *data as *mut c_void) }
        }
        _ => {}
    }
    RETURNED.fetch_add(1, Ordering::AcqRel);
    here().in_host_function.set(false);
}

/// Runs a host function for the driver of this process, on the driver's thread.
pub(crate) fn run_here(token: u64, status: Code) {
    let Some(call) = take(token) else { return };
    run(&call.task, Ok(status));
    over(&call);
}

/// Carries out a task that a worker's stream has reached, and informs the worker.
fn perform((token, arrived): Arrival) {
    let Some(call) = take(token) else { return };
    run(&call.task, arrived);
    over(&call);
    let (Some(place), Ok(_)) = (&call.worker, arrived) else { return };
    let token = token.to_le_bytes();
    let send = |bytes: &[u8]| {
        // The bytes may contain addresses of memory that the worker does not have yet.
        place.pin_named(bytes);
        place.send(id::HOST_DONE, &[&token, bytes]).map(drop)
    };
    // A lost worker waits for nothing.
    let _ = match &call.task {
        // The program may have unmapped its own memory meanwhile.
        Task::Read(rows) if rows.is_one() && blocks::is_registered(rows.address()) => {
            let (bytes, whole) = rcuda_forwarder::read_registered(rows.address(), rows.width() as usize);
            if !whole {
                // The call has returned. Natively the pages would still be there.
                tracing::warn!(target: "memory", "registered memory at {:#x} was unmapped before a copy of it: the GPU gets zeros", rows.address());
            }
            send(&bytes)
        }
        Task::Read(rows) => send(&rows.read()),
        Task::Graph(copy) if copy.dst.memory != HOST => send(&rect::read_plain(copy)),
        Task::Bytes(bytes) => send(bytes),
        _ => place.send(id::HOST_DONE, &[&token]).map(drop),
    };
}

/// The thread that carries out a device's host functions, one after the other as the driver does, or the thread for other tasks.
fn thread(device: &Device, functions: bool) -> Option<&'static Sender<Arrival>> {
    static THREADS: [[OnceLock<Option<Sender<Arrival>>>; DEVICES as usize]; 2] =
        [const { [const { OnceLock::new() }; DEVICES as usize] }; 2];
    let name = if functions { "mrcuda-host" } else { "mrcuda-copies" };
    let start = || {
        let (sender, arrivals) = channel();
        crate::base::spawn::spawn(name, move || std::iter::from_fn(|| next(&arrivals)).for_each(perform)).map(|()| sender)
    };
    let sender = THREADS[usize::from(functions)][device.index as usize].get_or_init(|| {
        start().inspect_err(|e| tracing::warn!(target: "job", "cannot start a thread for host functions: {e}")).ok()
    });
    sender.as_ref()
}

/// The next function that a stream has reached. A program that has used one mostly has others that follow soon.
fn next(arrivals: &Receiver<Arrival>) -> Option<Arrival> {
    let mut found = None;
    cuda_api::spin::spin_until(|| {
        found = arrivals.try_recv().ok();
        found.is_some()
    });
    found.or_else(|| arrivals.recv().ok())
}

/// Evaluates the place's answer to a call: the status for callbacks, or the error why the stream will not get there. Bytes for this
/// process are written at once, so that they are there before a later answer is seen.
fn arrival(answer: Result<(Code, Vec<u8>), Lost>, landing: Option<Copy3>) -> Result<Code, Code> {
    match answer {
        Ok((code::SUCCESS, body)) => {
            let mut rest = &body[..];
            let status = Code::get(&mut rest).unwrap_or(code::ERROR_UNKNOWN);
            if landing.is_none_or(|copy| rect::write_plain(&copy, rest)) { Ok(status) } else { Err(code::ERROR_UNKNOWN) }
        }
        Ok((rc, _)) => Err(rc),
        Err(why) => Err(lost(why)),
    }
}

/// What to do when the bytes of a graph's copy have landed.
struct Landed {
    here: Arc<AtomicBool>,
    /// Whether the place waits for a confirmation.
    acknowledged: bool,
}

/// Sends a task to a worker; `body` encodes the operation with its token.
fn write_out(
    (device, stream): (&'static Device, u64),
    place: &Place,
    op: u16,
    task: Task,
    landed: Option<Landed>,
    body: impl FnOnce(u64) -> Vec<u8>,
) -> Result<u64, Code> {
    let Place::Remote { link, .. } = place else { return Err(code::ERROR_NOT_SUPPORTED) };
    let thread = thread(device, task.is_functions()).ok_or(code::ERROR_OPERATING_SYSTEM)?;
    let lands = match &task {
        Task::Graph(copy) if copy.src.memory != HOST => Some(Some(*copy)),
        Task::Written | Task::Given { .. } => Some(None),
        _ => None,
    };
    let held = matches!(task, Task::Copy(_) | Task::Fill(_) | Task::Read(_));
    let token = add(Call { task, stream, worker: Some(place.clone()) }, held);
    let to = link.clone();
    let then = move |answer: Result<(Code, Vec<u8>), Lost>| {
        // After an error the place waits for nothing.
        let waits = matches!(answer, Ok((code::SUCCESS, _)));
        let arrived = arrival(answer, lands.flatten());
        if let Err(rc) = arrived {
            device.failed_late(op, rc);
        }
        if lands.is_some() {
            // The place continues by itself, or when it is notified that the bytes have arrived.
            take(token).inspect(over);
            if let Some(landed) = landed {
                landed.here.store(true, Ordering::Release);
                if landed.acknowledged && waits {
                    landing::let_go(to, token);
                }
            }
            return;
        }
        // The thread lives as long as the process.
        let _ = thread.send((token, arrived));
    };
    link.request_then(op, &[&body(token)], then).map(|()| token).map_err(|why| {
        take(token).inspect(over);
        lost(why)
    })
}

/// Returns whether the bytes of a copy from pinned memory may be read when its graph is launched: natively the copy could begin at once,
/// and neither earlier work nor the graph's own copies change them. Such a copy is short, and from memory that no GPU uses by its
/// address: the place reads other memory itself.
fn is_fixed(cx: &CallContext, device: &'static Device, stream: u64, node: &GraphNode, copy: &Copy3, nodes: &[GraphNode]) -> bool {
    if !node.unhindered || copy.src.memory != HOST || copy.dst.memory == HOST || copy.bytes().is_none_or(|n| n > SHORT) {
        return false;
    }
    let source = rect::source(copy);
    let overlaps = |to: Range<u64>| to.start < source.end && source.start < to.end;
    let writes = |n: &GraphNode| matches!(&n.work, Work::Copy(c) if c.dst.memory == HOST && overlaps(rect::destination(c)));
    !rect::is_read_there(cx.place(device), copy)
        && !nodes.iter().any(writes)
        && crate::order::delay::is_undelayed(cx, device, stream)
        && !crate::calls::host_function::changes_later(cx, device, stream, source.start, source.end - source.start)
}

/// What a node of an instance does in one launch.
enum Action {
    /// Nothing that concerns this process.
    Nothing,
    /// The place's GPU makes its copy.
    Direct,
    /// It calls this process, or the place for it.
    Call(Box<NodeTask>),
}

/// A node's call in one launch.
struct NodeTask {
    task: Task,
    /// Whether the place itself reads what the copy needs.
    own: bool,
    /// Bytes that are sent with the launch.
    sent: Vec<u8>,
}

impl NodeTask {
    fn of(task: Task) -> NodeTask {
        NodeTask { task, own: false, sent: Vec::new() }
    }
}

/// A copy whose bytes are read when its graph is launched.
fn copy_of_launch(cx: &CallContext, copy: &Copy3) -> Result<NodeTask, Code> {
    let bytes = rect::read_plain(copy);
    crate::host_memory::note_copied(cx, 0, &bytes)?;
    if bytes.len() as u64 > SHORT || SENT.load(Ordering::Relaxed) + bytes.len() > MAX_SENT {
        return Ok(NodeTask::of(Task::Bytes(bytes)));
    }
    Ok(NodeTask { task: Task::Given { _bytes: Sent::note(bytes.len()) }, own: false, sent: bytes })
}

/// Returns whether the GPU can make a graph's copies of memory that the place shares with this process by itself: their bytes can refer to
/// no memory that a place lacks.
pub(crate) fn copies_are_direct(cx: &CallContext, place: &Place) -> bool {
    place.maps_file() && crate::host_memory::all_have_all(cx)
}

/// Returns whether the GPU can make a node's copy by itself.
fn is_direct(cx: &CallContext, place: &Place, copy: &Copy3) -> bool {
    copies_are_direct(cx, place) && (rect::is_written_there(place, copy) || rect::is_read_there(place, copy))
}

/// A copy that is made when its node is reached.
fn copy_of_node(cx: &CallContext, place: &Place, copy: &Copy3) -> Result<NodeTask, Code> {
    if rect::is_written_there(place, copy) {
        return Ok(NodeTask::of(Task::Written));
    }
    // Bytes that the place itself reads can refer to no memory that a place lacks; the addresses in them now are noted for later places.
    // Other bytes are searched again when they are read: the memory that the worker already has then needs no further round trip.
    let own = rect::is_read_there(place, copy) && crate::host_memory::all_have_all(cx);
    rect::note_node(cx, copy)?;
    let task = if own { Task::Given { _bytes: Sent::note(0) } } else { Task::Graph(*copy) };
    Ok(NodeTask { task, own, sent: Vec::new() })
}

/// Launches an instance with such nodes. All launches of one instance are in order: `alone` if no launch in another stream precedes this
/// one. Returns its position in the place's order.
pub(crate) fn launch_graph(
    cx: &CallContext,
    device: &'static Device,
    instance: u64,
    (stream, alone): (u64, bool),
    data: &InstanceData,
    nodes: &[GraphNode],
) -> Result<Option<Range<u64>>, Code> {
    device.check()?;
    let place = cx.place(device);
    let mut body = Vec::with_capacity(16 + 8 * nodes.len());
    instance.put(&mut body);
    stream.put(&mut body);
    let (mut given, mut landings, mut tasks) = (Vec::new(), Vec::new(), Vec::with_capacity(nodes.len()));
    // Everything that can fail is done before anything is sent: the launch completes what was sent.
    for node in nodes {
        tasks.push(match (&node.work, place) {
            (Work::Host(call), _) => Action::Call(Box::new(NodeTask::of(Task::of_node(call)))),
            (Work::Copy(copy), Place::Remote { .. })
                if node.on && data.can_be_rebuilt.load(Ordering::Relaxed) && is_direct(cx, place, copy) =>
            {
                rect::note_node(cx, copy)?;
                Action::Direct
            }
            (Work::Copy(copy), Place::Remote { .. }) if node.on => {
                let now = alone && is_fixed(cx, device, stream, node, copy, nodes) || rect::pageable(copy);
                Action::Call(Box::new(if now { copy_of_launch(cx, copy)? } else { copy_of_node(cx, place, copy)? }))
            }
            _ => Action::Nothing,
        });
    }
    for (node, task) in nodes.iter().zip(tasks) {
        let token = match (task, place) {
            (Action::Nothing, _) => 0,
            (Action::Direct, _) => DIRECT_COPY,
            (Action::Call(call), Place::Remote { .. }) => {
                let NodeTask { task, own, sent } = *call;
                let landed = match &task {
                    Task::Graph(copy) if copy.src.memory != HOST => {
                        let here = Arc::new(AtomicBool::new(false));
                        landings.push((rect::destination(copy), here.clone()));
                        Some(Landed { here, acknowledged: landing::is_seen(place) })
                    }
                    _ => None,
                };
                let acknowledged = landed.as_ref().is_some_and(|l| l.acknowledged);
                let body = |token| {
                    let mut body =
                        crate::base::encoding::encode(&GraphCall { token, stream, instance, at: node.at, acknowledged, own });
                    body.extend_from_slice(&sent);
                    body
                };
                device.record_error(write_out((device, stream), place, id::GRAPH_CALL, task, landed, body))?
            }
            (Action::Call(call), Place::Local { .. }) => {
                let token = add(Call { task: call.task, stream, worker: None }, false);
                given.push(token);
                token
            }
        };
        token.put(&mut body);
    }
    let sent = device.record_error(place.send(id::GRAPH_LAUNCH, &[&body])).inspect_err(|_| {
        given.into_iter().filter_map(take).for_each(|c| over(&c));
    });
    for (to, here) in landings {
        landing::note(device, stream, to, landing::Arrival::Flag(here));
    }
    sent
}

/// Enqueues a task in a stream.
fn enqueue_on(cx: &CallContext, device: &'static Device, stream: u64, task: Task) -> Result<(), Code> {
    let callback = matches!(task, Task::Callback { .. });
    let body = |token| {
        let mut body = Vec::with_capacity(24);
        HostCall { token, stream, callback }.put(&mut body);
        body
    };
    let place = cx.place(device);
    if let Place::Remote { .. } = place {
        return device.record_error(write_out((device, stream), place, id::HOST_CALL, task, None, body)).map(drop);
    }
    if !task.is_functions() {
        let token = add(Call { task, stream, worker: None }, true);
        let begun = |place: &Place| place.begin(id::HOST_CALL, &[&body(token)]);
        let then = move |arrived: Result<(), Code>| perform((token, arrived.map(|()| code::SUCCESS)));
        return cross_device::in_order(cx, device, begun, token, Box::new(then)).inspect_err(|_| {
            take(token).inspect(over);
        });
    }
    let token = add(Call { task, stream, worker: None }, false);
    match device.record_error(place.begin(id::HOST_CALL, &[&body(token)])) {
        Ok(Waiting::Done(code::SUCCESS, _) | Waiting::Pending(..) | Waiting::Reply(_)) => Ok(()),
        Ok(Waiting::Done(rc, _)) | Err(rc) => {
            take(token).inspect(over);
            device.note(rc);
            Err(rc)
        }
    }
}

fn enqueue(cx: &mut CallContext, stream: u64, task: Task) -> Result<(), Code> {
    let stream = cx.use_stream(stream)?;
    let device = cx.device()?;
    device.check()?;
    if cx.job.graphs.capturing() {
        match task {
            Task::Function { function, data } => {
                let node = || Ok(Work::Host(work::HostCall { function: function as usize as u64, data: data as u64 }));
                if captures::take(cx, device, stream, false, node)? {
                    return Ok(());
                }
            }
            // A capture cannot record a callback.
            _ => captures::forbid_on(cx, device, stream)?,
        }
    }
    enqueue_on(cx, device, stream, task)
}

/// Copies inside pinned memory in stream order.
pub(crate) fn copy_in_order(cx: &CallContext, device: &'static Device, stream: u64, copy: HostCopy) -> Result<(), Code> {
    enqueue_on(cx, device, stream, Task::Copy(copy))
}

/// Fills pinned memory in stream order.
pub(crate) fn fill_in_order(cx: &CallContext, device: &'static Device, stream: u64, fill: HostFill) -> Result<(), Code> {
    enqueue_on(cx, device, stream, Task::Fill(fill))
}

/// Copies to the device, at a worker, the contents of a rectangle of pinned memory at the time when the stream gets there; `body` encodes
/// the operation.
pub(crate) fn copy_late(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    op: u16,
    from: HostRows,
    body: impl FnOnce(u64) -> Vec<u8>,
) -> Result<(), Code> {
    device.check()?;
    device.record_error(write_out((device, stream), cx.place(device), op, Task::Read(from), None, body)).map(drop)
}

pub(crate) fn cuLaunchHostFunc(
    cx: &mut CallContext,
    stream: sys::CUstream,
    function: sys::CUhostFn,
    data: *mut c_void,
) -> Result<(), Code> {
    let function = function.ok_or(code::ERROR_INVALID_VALUE)?;
    enqueue(cx, stream as u64, Task::Function { function, data: data as usize })
}

#[expect(unsafe_code, reason = "a function of the program is called with numbers in place of enums")]
pub(crate) fn cuStreamAddCallback(
    cx: &mut CallContext,
    stream: sys::CUstream,
    callback: sys::CUstreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> Result<(), Code> {
    let callback = callback.filter(|_| flags == 0).ok_or(code::ERROR_INVALID_VALUE)?;
    // SAFETY: the same function type in C, where the code is an int: a driver may pass a code that the header's enum lacks.
    let callback = unsafe {
        std::mem::transmute::<
            unsafe extern "C" fn(sys::CUstream, sys::CUresult, *mut c_void),
            unsafe extern "C" fn(sys::CUstream, Code, *mut c_void),
        >(callback)
    };
    enqueue(cx, stream as u64, Task::Callback { callback, stream: stream as u64, data: data as usize })
}

/// Returns whether earlier work that the next work of a stream may follow may still change these bytes of host memory: a host function
/// that has not run, a copy that has not landed, a stream that waits for another GPU, another process, or a word of memory (after which
/// the program itself may write them).
pub(crate) fn changes_later(cx: &CallContext, device: &'static Device, stream: u64, address: u64, bytes: u64) -> bool {
    host_function::may_come_before(cx, device, stream)
        || stream_memory::any_waiting()
        || concerned::any()
        || shared_handles::any_waiting()
        || landing::any_to(address, bytes)
}
