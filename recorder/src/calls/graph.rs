//! Captures and graphs: the job's process keeps the graphs, and enforces the rules of captures for each of its threads; only instances
//! are at the place. So captures and graphs survive a move.

use crate::base::encoding::{encode, encoded};
use crate::base::log::lock;
use crate::calls::copy::checks::check_ends;
use crate::calls::copy::rect::{DEVICE, ends, plain};
use crate::calls::{host_function, launch};
use crate::device_memory::{regions, stream_ordered, supply};
use crate::enter::{CallContext, guard};
use crate::job::{Device, PutOff, contexts};
use crate::ledger::Keep;
use crate::objects::instances::{Changed, GraphNode, InstanceData};
use crate::order::captures::{forbid_on, number, seen};
use crate::order::{delay, host_waiting};
use cuda_api::arg::{Capture, Edges};
use cuda_api::array::ARRAY;
use cuda_api::calls::module::cuKernelGetFunction;
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::handle::Kind;
use cuda_api::ops::{self, FunctionInfo, GraphChange, GraphCondition, GraphMake, GraphSwitch, StreamWaitEvent};
use cuda_api::sys;
use cuda_api::wire::Wire;
use cuda_api::work::{At, Copy3, CopyEnd, Fill, HOST, Kernel, Spec, Work};
use cuda_model::graph::{Host, Shared, Stream, api};
use journal::Record;
use std::ffi::c_uint;
use std::sync::atomic::Ordering;

pub(crate) use cuda_model::graph::api::*;

pub(crate) fn cuStreamWaitEvent(
    cx: &mut CallContext,
    stream: sys::CUstream,
    event: sys::CUevent,
    flags: c_uint,
) -> Result<(), Code> {
    // `CU_EVENT_WAIT_EXTERNAL` is for captures only.
    if flags > 1 {
        return Err(code::ERROR_INVALID_VALUE);
    }
    let stream = cx.use_stream(stream as u64)?;
    let device = cx.device()?;
    let event = cx.use_handle(Kind::Event, Kind::Event, event as u64)?;
    let other = cx.device()?;
    let data = &cx.job.tables.events.get(event)?.data;
    if other.index != device.index {
        forbid_on(cx, device, stream)?;
        if data.captured.load(Ordering::Relaxed) {
            crate::base::log::missed("a capture that goes from GPU to GPU".to_owned());
            return Err(code::ERROR_NOT_SUPPORTED);
        }
        return crate::calls::cross_device::wait_event(cx, device, stream, event, other);
    }
    if cx.job.graphs.capturing() || data.captured.load(Ordering::Relaxed) {
        let recorded = data.epoch.load(Ordering::Relaxed) != 0;
        if cx.job.graphs.wait_event(event, &seen(cx, stream, device)?, flags == 1, recorded)? {
            return Ok(());
        }
    }
    if flags != 0 {
        return Err(code::ERROR_ILLEGAL_STATE);
    }
    let op = StreamWaitEvent { stream, event };
    if crate::device_memory::shared_handles::is_shared(data) {
        return crate::calls::ipc::wait_event(cx, device, &op);
    }
    crate::order::follow::follow_event(cx, device, &op)
}

/// Destroys the instances of a context, or all of a device.
pub(crate) fn end_of(cx: &mut CallContext, device: &'static Device, whose: Option<u64>) -> Result<(), Code> {
    for instance in api::instances_in(cx, number(device)) {
        if cx.job.tables.instances.get(instance).is_ok_and(|i| i.ends_with(whose)) {
            api::cuGraphExecDestroy(cx, instance)?;
        }
    }
    Ok(())
}

/// Adds an allocation in a capturing stream to the graph; `None`: the stream does not capture.
pub(crate) fn take_alloc(cx: &mut CallContext, device: &Device, stream: u64, bytes: u64) -> Result<Option<u64>, Code> {
    if !cx.job.graphs.capturing() {
        return Ok(None);
    }
    let stream = seen(cx, stream, device)?;
    api::capture_alloc(cx, &stream, bytes)
}

/// As [`take_alloc`], for a free.
pub(crate) fn take_free(cx: &mut CallContext, device: &Device, stream: u64, address: u64) -> Result<bool, Code> {
    if !cx.job.graphs.capturing() {
        return Ok(false);
    }
    let stream = seen(cx, stream, device)?;
    api::capture_free(cx, &stream, address)
}

/// Adds what a replay of this needs, by the journal's names: live handles, and the memory that is behind its addresses now. That memory
/// may be freed before the instance is destroyed, or other memory may be mapped there; a driver refuses a node for unmapped memory.
fn add_needs(cx: &CallContext, work: &Work<u32>, to: &mut Few) {
    let behind = |to: &mut Few, address: u64, bytes: u64| {
        regions::behind(cx.job, address, bytes).iter().for_each(|name| add_need(to, *name));
    };
    match work {
        Work::Kernel(k) => add_need(to, k.function),
        Work::EventWait(e) | Work::EventRecord(e) => add_need(to, *e),
        Work::Copy(c) => {
            [c.dst, c.src].into_iter().filter(|e| e.memory == ARRAY).for_each(|e| add_need(to, e.array));
            let spans = ends(c).into_iter().flatten().flatten().filter(|(e, _)| e.device);
            spans.for_each(|(e, span)| behind(to, e.address, span));
        }
        Work::Fill(f) => {
            let rows = f.rows.saturating_sub(1).saturating_mul(f.pitch);
            behind(to, f.dst, f.width.saturating_mul(f.element.into()).saturating_add(rows));
        }
        Work::MemOps(parts) => crate::calls::stream_memory::addresses(parts).for_each(|at| behind(to, at, 1)),
        _ => {}
    }
}

/// Adds a name, unless it was added lately: nodes of a graph often use the same functions and the same memory.
fn add_need(to: &mut Few, name: u64) {
    const LATELY: usize = 8;
    if !to.iter().rev().take(LATELY).any(|other| *other == name) {
        to.push(name);
    }
}

/// The instance that a journal record creates, changes or destroys.
pub(crate) fn instance_of(record: &Record) -> Option<u64> {
    match record.id {
        ops::id::GRAPH_MAKE => record.creates.first().copied(),
        ops::id::GRAPH_CHANGE | ops::id::GRAPH_SWITCH => record.uses.first().copied(),
        ops::id::GRAPH_END => record.ends,
        _ => None,
    }
}

/// Returns whether the nodes of such a record use memory that a target has only when the job is quiesced ([`regions::comes_late`]): an end
/// of a copy can be another device's memory by its address, or host memory that is used in place.
pub(crate) fn comes_late(device: &Device, record: &Record) -> bool {
    let of_another = |address: u64| regions::is_of_another(device, address);
    let late = |address: u64| regions::comes_late(device, address);
    let names_it = |work: &Work<u32>| match work {
        Work::Copy(c) => [c.dst, c.src].iter().any(|e| e.memory == DEVICE && of_another(e.device)),
        Work::Fill(f) => late(f.dst),
        Work::MemOps(parts) => crate::calls::stream_memory::addresses(parts).any(late),
        _ => false,
    };
    let body = &mut &record.body[..];
    match record.id {
        ops::id::GRAPH_MAKE => GraphMake::get(body).is_ok_and(|op| op.spec.graphs.iter().flatten().any(|n| names_it(&n.work))),
        ops::id::GRAPH_CHANGE => GraphChange::get(body).is_ok_and(|op| names_it(&op.work)),
        _ => false,
    }
}

/// The journal's name for a condition of a graph. The driver chooses its handle, and counts from 1 in each graph (docs/driver-facts.md,
/// 7.4): so the name has all 42 bits by which handles of graphs differ, and the last 14 bits of the condition's.
fn journal_name(home: u64, condition: u64) -> u64 {
    (0x5e << 56) | (((home >> 6) & ((1 << 42) - 1)) << 14) | (condition & ((1 << 14) - 1))
}

/// Notes that a node uses an event.
fn note_event(cx: &CallContext, work: &Work<u32>) {
    if let Work::EventRecord(event) | Work::EventWait(event) = work
        && let Ok(slot) = cx.job.tables.events.get(*event)
    {
        slot.data.in_graph.store(true, Ordering::Relaxed);
    }
}

/// Makes the kind of memory explicit at each end of a copy, so that it is valid for any place. Notes the host memory that a kernel
/// receives.
fn named(cx: &CallContext, work: &mut Work<u32>) -> Result<(), Code> {
    match work {
        Work::Kernel(kernel) => crate::host_memory::note_words(cx, &kernel.params)?,
        Work::Copy(c) => *c = plain(c),
        Work::Fill(f) => crate::host_memory::note_mapped(cx, f.dst)?,
        Work::MemOps(parts) => crate::calls::stream_memory::note_node(parts),
        _ => {}
    }
    Ok(())
}

/// Returns whether it is a kernel that may wait for the host. Its memory is noted already.
fn may_wait(work: &Work<u32>) -> bool {
    matches!(work, Work::Kernel(k) if host_waiting::may_wait(&k.params))
}

/// Checks that a node that calls this process is replaced by one that calls it alike; `known`: what it is now, if it calls.
fn check_call(known: Option<&GraphNode>, work: &Work<u32>) -> Result<(), Code> {
    let fits = known.map_or(!work.calls(), |c| c.work.calls() == work.calls() && sides(&c.work) == sides(work));
    // A copy stays between the same kinds of memory.
    if fits { Ok(()) } else { Err(code::ERROR_INVALID_VALUE) }
}

/// Maximum number of nodes of a [simple](cuda_api::work::Spec::is_simple) graph whose instantiation is not waited for,
const MAX_UNANSWERED_NODES: usize = 64;
/// and of bytes of its copies from and to host memory, for each of which a place in another process needs memory.
const MAX_UNANSWERED_BYTES: u64 = 64 << 10;

/// Which ends of a copy are host memory.
fn sides(work: &Work<u32>) -> Option<[bool; 2]> {
    if let Work::Copy(c) = work { Some([c.src.memory == HOST, c.dst.memory == HOST]) } else { None }
}

impl CallContext {
    /// Whether a driver that has memory builds an instance of this graph. Its nodes were checked when they were added; what they name may
    /// have ended since.
    fn needs_no_answer(&mut self, device: &'static Device, op: &GraphMake) -> bool {
        if op.home != 0 || op.flags != 0 || self.place(device).in_process().is_some() {
            return false;
        }
        let memory = |address, bytes| !regions::comes_late(device, address) && device.check_range(address, bytes) == Ok(true);
        let end = |end: &CopyEnd, bytes: u64| match end.memory {
            HOST => bytes <= MAX_UNANSWERED_BYTES,
            _ => memory(end.device, bytes),
        };
        // Its references and clusters are for the place to check.
        let plain = |info: &FunctionInfo| !info.references && !info.clusters;
        let mut node = |work: &Work<u32>| match work {
            Work::Kernel(k) => self.check_kernel(k).is_ok() && launch::info(self, k.function).is_ok_and(plain),
            Work::Copy(c) => end(&c.src, c.width) && end(&c.dst, c.width),
            Work::Fill(f) => f.width.checked_mul(f.element.into()).is_some_and(|bytes| memory(f.dst, bytes)),
            _ => true,
        };
        op.spec.is_simple(MAX_UNANSWERED_NODES) && op.spec.graphs.iter().flatten().all(|n| node(&n.work))
    }

    fn of(&self, context: u64) -> Result<&'static Device, Code> {
        let index = context.checked_sub(1).ok_or(code::ERROR_INVALID_CONTEXT)? as usize;
        self.job.devices.get(index).ok_or(code::ERROR_INVALID_CONTEXT)
    }

    /// The data of an instance, and its device.
    fn instance(&self, instance: u64) -> Result<(&'static InstanceData, &'static Device), Code> {
        let slot = self.job.tables.instances.get(instance).map_err(|_| code::ERROR_INVALID_VALUE)?;
        Ok((&slot.data, self.of(u64::from(slot.device()) + 1)?))
    }

    /// Sends a change of an instance and journals it, replacing an earlier one of the same; `uses`: what it names.
    fn changed(&mut self, instance: u64, what: Changed, op: u16, body: &[u8], uses: Few, plain: bool) -> Result<(), Code> {
        let (data, device) = self.instance(instance)?;
        device.check()?;
        let mut ledger = lock(&device.ledger);
        if plain {
            device.record_error(self.place(device).send(op, &[body]))?;
        } else {
            self.ask(device, op, &[body])?;
        }
        let mut changes = lock(&data.changes);
        let change = ledger.replace(changes.get(&what).copied(), op, (body, &[]), uses)?;
        changes.insert(what, change);
        Ok(())
    }
}

impl Host for CallContext {
    fn is_device(&mut self, ordinal: i32) -> bool {
        self.job.device(ordinal).is_ok()
    }

    fn shared(&self) -> &'static Shared {
        &self.job.graphs
    }

    fn stream(&mut self, stream: u64) -> Result<Stream, Code> {
        let stream = self.use_stream(stream)?;
        let device = self.device()?;
        seen(self, stream, device)
    }

    fn context(&mut self) -> Result<u64, Code> {
        contexts::current_device(self.job).map(number)
    }

    fn event(&mut self, event: u64) -> Result<u64, Code> {
        let index = self.job.tables.events.get(event)?.device();
        Ok(u64::from(index) + 1)
    }

    fn layout<T>(&mut self, function: u64, use_it: impl FnOnce(&[(u32, u32)]) -> Result<T, Code>) -> Result<T, Code> {
        let function = self.use_handle(Kind::Function, Kind::Kernel, function)?;
        use_it(&launch::info(self, function)?.params)
    }

    fn names(&mut self, function: u64) -> Result<(u64, u64), Code> {
        if cuda_api::handle::kind(function) != Some(Kind::Kernel) {
            let parent = self.job.tables.function(function)?.parent.load(Ordering::Relaxed);
            let kernel = if cuda_api::handle::kind(parent) == Some(Kind::Kernel) { parent } else { 0 };
            return Ok((function, kernel));
        }
        let mut sent = cuKernelGetFunction::Sent { pFunc: self.new_handle(Kind::Function)?, kernel: function };
        self.carry::<cuKernelGetFunction::Fn>(&mut sent)?;
        Ok((sent.pFunc, function))
    }

    fn check_kernel(&mut self, k: &Kernel) -> Result<u64, Code> {
        let function = self.use_handle(Kind::Function, Kind::Kernel, k.function)?;
        let info = launch::info(self, function)?;
        let device = self.device()?;
        let head = ops::Launch {
            function,
            stream: 0,
            grid: k.grid,
            block: k.block,
            shared: k.shared,
            attributes: k.attributes.len() as u16,
            cooperative: false,
        };
        launch::check(device, info, &head)?;
        let attributes = k.attributes.concat();
        launch::check_attributes(&attributes)?;
        launch::note_cooperative(device, info, &head, &attributes);
        Ok(number(device))
    }

    fn check_copy(&mut self, c: &Copy3) -> Result<u64, Code> {
        let device = contexts::current_device(self.job)?;
        check_ends(device, c)?;
        Ok(number(device))
    }

    fn check_fill(&mut self, f: &Fill) -> Result<u64, Code> {
        let device = contexts::current_device(self.job)?;
        let width = f.width.checked_mul(f.element.into()).ok_or(code::ERROR_INVALID_VALUE)?;
        let (size, pitched) = (u64::from(f.element), f.rows > 1);
        if !f.dst.is_multiple_of(size) || (pitched && (!f.pitch.is_multiple_of(size) || f.pitch < width)) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let span = (f.rows - 1).checked_mul(f.pitch).and_then(|n| n.checked_add(width)).ok_or(code::ERROR_INVALID_VALUE)?;
        device.check_range(f.dst, span)?;
        Ok(number(device))
    }

    fn check_words(&mut self, parts: &[[u64; 6]]) -> Result<u64, Code> {
        let device = contexts::current_device(self.job)?;
        crate::calls::stream_memory::check_node(self, device, parts)?;
        Ok(number(device))
    }

    fn allocate(&mut self, device: i32, bytes: u64) -> Result<(u64, u64), Code> {
        let device = self.job.device(device)?;
        Ok((supply::allocate(self, device, bytes)?, number(device)))
    }

    fn release(&mut self, address: u64) -> Result<(), Code> {
        stream_ordered::free_later(self, address)
    }

    fn ordinal(&mut self, context: u64) -> i32 {
        context as i32 - 1
    }

    fn condition(&mut self, home: u64, default: u32, flags: u32) -> Result<(u64, u64), Code> {
        let device = contexts::current_device(self.job)?;
        device.check()?;
        let mut ledger = lock(&device.ledger);
        let condition = GraphCondition { home, default, flags, wanted: 0 };
        let reply = self.ask(device, ops::id::GRAPH_CONDITION, &[&encode(&condition)])?;
        let handle = u64::get(&mut &reply[..]).map_err(|_| code::ERROR_UNKNOWN)?;
        // Kernels contain the handle: other places must not assign another one.
        let record = encode(&GraphCondition { wanted: handle, ..condition });
        let edges = Edges { creates: [journal_name(home, handle)].into(), ..Edges::default() };
        ledger.append(ops::id::GRAPH_CONDITION, &record, &reply, &edges, Keep::PLAIN)?;
        Ok((handle, number(device)))
    }

    fn end_conditions(&mut self, context: u64, home: u64, conditions: &[u64]) -> Result<(), Code> {
        let device = self.of(context)?;
        device.check()?;
        let mut ledger = lock(&device.ledger);
        let body = home.to_le_bytes();
        device.record_error(self.place(device).send(ops::id::GRAPH_CONDITIONS_END, &[&body]))?;
        for (n, handle) in conditions.iter().enumerate() {
            let edges = Edges { ends: Some(journal_name(home, *handle)), ..Edges::default() };
            // The first record frees them all; the others only concern the journal.
            let (op, body) =
                if n == 0 { (ops::id::GRAPH_CONDITIONS_END, body) } else { (ops::id::OVERTAKEN, handle.to_le_bytes()) };
            ledger.append(op, &body, &[], &edges, Keep::PLAIN)?;
        }
        Ok(())
    }

    fn instantiate(&mut self, context: u64, flags: u64, home: u64, mut spec: Spec) -> Result<u64, Code> {
        let device = self.of(context)?;
        device.check()?;
        self.on(device);
        let instance = self.new_handle(Kind::GraphExec)?;
        spec.graphs.iter_mut().flatten().try_for_each(|n| named(self, &mut n.work))?;
        let waits = spec.graphs.iter().flatten().any(|n| may_wait(&n.work));
        let node =
            |(at, work): (At, &Work<u32>)| GraphNode { at, work: work.clone(), on: true, unhindered: spec.is_unhindered(at) };
        let calls = spec.calls().map(node).collect();
        let direct = host_function::copies_are_direct(self, self.place(device));
        let op = GraphMake { instance, flags, home, direct, spec };
        let works = || op.spec.graphs.iter().flatten().map(|n| &n.work);
        let conditions =
            works().filter_map(|w| if let Work::Conditional(c) = w { Some(journal_name(home, c.handle)) } else { None });
        let mut edges = Edges { creates: [instance].into(), ..Edges::default() };
        works().for_each(|w| add_needs(self, w, &mut edges.uses));
        conditions.for_each(|c| edges.uses.push(c));
        let unanswered = self.needs_no_answer(device, &op);
        encoded(&op, |body| {
            let mut ledger = lock(&device.ledger);
            match self.place(device).in_process() {
                Some(exec) => device.record_error(exec.make_instance(&op))?,
                // Only a driver without memory refuses it, which a later call reports.
                None if unanswered => {
                    device.record_error(self.place(device).send(ops::id::GRAPH_MAKE, &[body]))?;
                }
                None => drop(self.ask(device, ops::id::GRAPH_MAKE, &[body])?),
            }
            ledger.append(ops::id::GRAPH_MAKE, body, &[], &edges, Keep::PLAIN)
        })?;
        works().for_each(|w| note_event(self, w));
        let records = works().filter_map(|w| if let Work::EventRecord(e) = w { Some(*e) } else { None }).collect();
        let data = &self.job.tables.instances.get(instance)?.data;
        *lock(&data.records) = records;
        *lock(&data.calls) = calls;
        data.may_wait.store(waits, Ordering::Relaxed);
        data.can_be_rebuilt.store(home == 0, Ordering::Relaxed);
        Ok(instance)
    }

    fn check_change(&mut self, instance: u64, at: At, work: &Work<u32>) -> Result<(), Code> {
        // Nothing but a copy can be one that calls before a change, and not behind it.
        let Work::Copy(c) = work else { return Ok(()) };
        let (data, _) = self.instance(instance)?;
        check_call(lock(&data.calls).iter().find(|c| c.at == at), &Work::Copy(plain(c)))
    }

    fn change(&mut self, instance: u64, at: At, mut work: Work<u32>, plain: bool) -> Result<(), Code> {
        named(self, &mut work)?;
        let (data, _) = self.instance(instance)?;
        note_event(self, &work);
        data.may_wait.fetch_or(may_wait(&work), Ordering::Relaxed);
        let mut calls = lock(&data.calls);
        let call = calls.iter_mut().find(|c| c.at == at);
        check_call(call.as_deref(), &work)?;
        let mut uses = Few::from([instance]);
        add_needs(self, &work, &mut uses);
        let op = GraphChange { instance, at, work };
        encoded(&op, |body| self.changed(instance, (at, false), ops::id::GRAPH_CHANGE, body, uses, plain))?;
        if let Work::EventRecord(event) = &op.work {
            lock(&data.records).push(*event);
        }
        if let Some(call) = call {
            call.work = op.work;
        }
        Ok(())
    }

    fn enable(&mut self, instance: u64, at: At, on: bool) -> Result<(), Code> {
        let body = encode(&GraphSwitch { instance, at, on });
        let (data, _) = self.instance(instance)?;
        let mut calls = lock(&data.calls);
        self.changed(instance, (at, true), ops::id::GRAPH_SWITCH, &body, [instance].into(), true)?;
        if let Some(call) = calls.iter_mut().find(|c| c.at == at) {
            call.on = on;
        }
        Ok(())
    }

    fn launch(&mut self, instance: u64, stream: u64) -> Result<(), Code> {
        let stream = self.use_stream(stream)?;
        let on = self.device()?;
        let (data, device) = self.instance(instance)?;
        if on.index != device.index {
            return Err(code::ERROR_INVALID_VALUE);
        }
        crate::host_memory::note_found(self)?;
        crate::order::landing::before_graph(self, device, stream)?;
        // A node may wait for an event.
        crate::order::host_waiting::follows_event(device, stream);
        let calls = lock(&data.calls);
        let records = lock(&data.records);
        let events = || records.iter().filter_map(|event| self.job.tables.events.get(*event).ok());
        events().for_each(|e| e.data.begin_record());
        let here = self.place(device).in_process().filter(|_| !calls.iter().any(|c| matches!(c.work, Work::Host(_))));
        let launched = if let Some(exec) = here {
            // The driver of this process makes the copies.
            device.check().and_then(|()| device.record_error(exec.launch_instance(instance, stream))).map(|()| None)
        } else if calls.is_empty() {
            let mut body = [0; 16];
            body[..8].copy_from_slice(&instance.to_le_bytes());
            body[8..].copy_from_slice(&stream.to_le_bytes());
            self.work_at(device, ops::id::GRAPH_LAUNCH, &[&body])
        } else {
            let alone = delay::is_no_delay(&data.launched, device, stream);
            let launched = host_function::launch_graph(self, device, instance, (stream, alone), data, &calls);
            delay::note_launch(&data.launched, device, stream, launched.as_ref().ok().and_then(Option::as_ref));
            launched
        };
        let epoch = launched.is_ok().then(|| device.epoch.load(Ordering::Relaxed));
        events().for_each(|e| e.data.end_record(epoch, None));
        let span = launched?;
        crate::order::last_launch::note(self, device, stream, instance);
        crate::order::delay::note_delay(self, device, stream, span.as_ref());
        if data.may_wait.load(Ordering::Relaxed) {
            host_waiting::note(device, stream, span.map(|s| s.end));
        }
        Ok(())
    }

    fn upload(&mut self, instance: u64, stream: u64) -> Result<(), Code> {
        let stream = self.use_stream(stream)?;
        let (_, device) = self.instance(instance)?;
        self.work(device, ops::id::GRAPH_UPLOAD, &[&encode(&(instance, stream))])
    }

    fn end_instance(&mut self, instance: u64) -> Result<(), Code> {
        let (data, device) = self.instance(instance)?;
        device.check()?;
        let mut ledger = lock(&device.ledger);
        let body = instance.to_le_bytes();
        device.record_error(self.place(device).send(ops::id::GRAPH_END, &[&body]))?;
        for (_, change) in lock(&data.changes).drain() {
            ledger.overtaken(change)?;
        }
        let edges = Edges { ends: Some(instance), ..Edges::default() };
        ledger.append(ops::id::GRAPH_END, &body, &[], &edges, Keep::PLAIN)?;
        drop(ledger);
        self.job.tables.end(instance);
        Ok(())
    }

    fn fence(&mut self, context: u64) -> Box<dyn FnOnce() + Send> {
        Box::new(move || {
            // An error means that nothing is running any more.
            guard("cuGraphExecDestroy", false, |cx| {
                let device = cx.of(context)?;
                // This must not return a pending error of the program.
                let _waits = PutOff::begin();
                cx.wait(device, ops::id::CONTEXT_SYNC, &[]).map(drop)
            });
        })
    }
}

#[cfg(test)]
mod tests;
