//! The common path of every call: the gate, the arguments, the place, the journal. Every exported symbol uses it.

use crate::context;
use crate::function::FunctionData;
use crate::gate::{self, Pass};
use crate::graph;
use crate::internal_error;
use crate::job::{self, Device, Job, PutOff};
use crate::ledger::Keep;
use crate::log::{Watched, lock};
use crate::managed_variables;
use crate::output;
use crate::place::{Place, Waiting};
use crate::reference;
use crate::stream;
use crate::tables::EVERY_DEVICE;
use crate::thread::here;
use cuda_api::arg::{Capture, Edges, LEGACY};
use cuda_api::calls::Call;
use cuda_api::calls::module::{cuFuncIsLoaded, cuFuncSetAttribute, cuKernelSetAttribute, cuLibraryGetKernel, cuLibraryUnload};
use cuda_api::calls::stream::{cuEventCreate, cuEventDestroy_v2, cuStreamCreate, cuStreamCreateWithPriority, cuStreamDestroy_v2};
use cuda_api::class::Class;
use cuda_api::code::{self, Code};
use cuda_api::few::Few;
use cuda_api::handle::Kind;
use cuda_api::ops;
use cuda_api::wire::Wire;
use executor::{Direct, Executor};
use faults::Point;
use std::cell::Cell;
use std::ffi::c_int;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Libraries belong to no device: these rows are carried out on every device.
const EVERYWHERE: [u16; 2] = [cuLibraryGetKernel::Fn::ID, cuLibraryUnload::Fn::ID];

/// The only property of a function that changes without a call on the function.
const CHANGING: [u16; 1] = [cuFuncIsLoaded::Fn::ID];

/// Rows that give the GPU no work, so that there is no completion to wait for.
const LEAVES_NOTHING_TO_DO: [u16; 5] = [
    cuStreamCreate::Fn::ID,
    cuStreamCreateWithPriority::Fn::ID,
    cuStreamDestroy_v2::Fn::ID,
    cuEventCreate::Fn::ID,
    cuEventDestroy_v2::Fn::ID,
];

thread_local! {
    /// Reusable buffer for encoded calls.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes a value and passes the buffer to `use_it`, which may append to it. A call that is made meanwhile on this thread uses another
/// buffer.
pub(crate) fn encoded<T: Wire, R>(value: &T, use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // A thread that is ending has no thread-locals with destructors.
    let mut body = SCRATCH.try_with(Cell::take).unwrap_or_default();
    body.clear();
    value.put(&mut body);
    let result = use_it(&mut body);
    let _ = SCRATCH.try_with(|s| s.set(body));
    result
}

/// Attribute and value that a call sets on a function.
fn setting(call: u16, body: &[u8]) -> Option<(u32, i32)> {
    let at = match call {
        cuFuncSetAttribute::Fn::ID => size_of::<u64>(),
        cuKernelSetAttribute::Fn::ID => 0,
        _ => return None,
    };
    let mut rest = body.get(at..)?;
    Some((u32::get(&mut rest).ok()?, i32::get(&mut rest).ok()?))
}

/// One call of the program, inside the gate.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub(crate) job: &'static Job,
    pub(crate) pass: Pass,
    /// Whether the `_ptsz`/`_ptds` form was called: stream 0 means the thread's own.
    pub(crate) per_thread: bool,
    device: Option<u32>,
    made: Few,
}

/// See [`CallContext::inside`].
pub(crate) struct Inside {
    cx: CallContext,
    _later: PutOff,
}

impl Deref for Inside {
    type Target = CallContext;
    fn deref(&self) -> &CallContext {
        &self.cx
    }
}

/// Runs the body of an exported symbol: catches panics, so that nothing unwinds into C, and returns an error if there is no job.
pub(crate) fn guard(symbol: &'static str, per_thread: bool, body: impl FnOnce(&mut CallContext) -> Result<(), Code>) -> Code {
    let run = || -> Result<(), Code> {
        let (job, here) = (job::get()?, here());
        if here.in_host_function.get() {
            // The error that the driver's reference gives for calls in host functions and callbacks.
            return Err(code::ERROR_NOT_PERMITTED);
        }
        let mut cx = CallContext { job, pass: gate::enter(here), per_thread, device: None, made: Few::new() };
        let r = body(&mut cx);
        if r.is_err() {
            for h in &cx.made {
                cx.job.tables.end(*h);
            }
        }
        r
    };
    outermost(symbol, run)
}

unsafe extern "C" {
    /// Part of POSIX; the crate `libc` lacks it for Linux.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Disables cancellation (`pthread_cancel`) of the calling thread until dropped: cancellation unwinds the stack, which would abort the
/// process in Rust code that catches panics, and would leave shared state inconsistent.
struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    #[inline]
    fn begin() -> Uncancelled {
        /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: `before` is writable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above; the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

/// As [`guard`], for calls that need no job.
pub(crate) fn outermost(symbol: &'static str, body: impl FnOnce() -> Result<(), Code>) -> Code {
    let uncancelled = Uncancelled::begin();
    let result = catch_unwind(AssertUnwindSafe(body));
    drop(uncancelled);
    match result {
        Ok(Ok(())) => code::SUCCESS,
        Ok(Err(rc)) => rc,
        Err(_) => {
            internal_error::caught(symbol);
            code::ERROR_UNKNOWN
        }
    }
}

/// Logs the end of a call. The thread cannot be cancelled meanwhile: writing a line is a cancellation point.
#[cold]
pub(crate) fn end_watched(call: &Watched, arguments: &[(&str, u64)], rc: Code) {
    let _uncancelled = Uncancelled::begin();
    call.end(arguments, rc);
}

fn decode<C: Call>(mut bytes: &[u8]) -> Result<C::Reply, Code> {
    C::Reply::get(&mut bytes).map_err(|_| code::ERROR_UNKNOWN)
}

impl Capture for CallContext {
    fn new_handle(&mut self, kind: Kind) -> Result<u64, Code> {
        let device = match kind {
            Kind::Library | Kind::Kernel => EVERY_DEVICE,
            _ => self.device()?.index,
        };
        let h = self.job.tables.make(kind, device, context::current())?;
        self.made.push(h);
        Ok(h)
    }

    fn use_handle(&mut self, kind: Kind, also: Kind, number: u64) -> Result<u64, Code> {
        match cuda_api::handle::kind(number) {
            Some(k) if k == kind || k == also => {
                let device = self.job.tables.device(k, number)?;
                if device != EVERY_DEVICE {
                    self.device = Some(device);
                }
                Ok(number)
            }
            _ => Err(code::ERROR_INVALID_HANDLE),
        }
    }

    fn use_device(&mut self, ordinal: i32) -> Result<(), Code> {
        self.device = Some(self.job.device(ordinal)?.index);
        Ok(())
    }

    fn use_stream(&mut self, number: u64) -> Result<u64, Code> {
        match number {
            0 if !self.per_thread => Ok(LEGACY),
            LEGACY => Ok(LEGACY),
            0 | 2 => stream::of_thread(self),
            _ => {
                let stream = self.job.tables.streams.get(number)?;
                if stream.data.orphaned.load(Ordering::Relaxed) {
                    return Err(code::ERROR_CONTEXT_IS_DESTROYED);
                }
                self.device = Some(stream.device());
                Ok(number)
            }
        }
    }
}

impl CallContext {
    /// Passes the gate for the recorder's own calls, which leave pending errors to calls of the program.
    pub(crate) fn inside(job: &'static Job) -> Inside {
        let cx = CallContext { job, pass: gate::enter(here()), per_thread: false, device: None, made: Few::new() };
        Inside { cx, _later: PutOff::begin() }
    }

    /// The device of this call: that of its handles, otherwise of the thread's context.
    pub(crate) fn device(&self) -> Result<&'static Device, Code> {
        match self.device {
            Some(d) => self.job.devices.get(d as usize).ok_or(code::ERROR_INVALID_DEVICE),
            None => context::current_device(self.job),
        }
    }

    /// Sets the device of this call.
    pub(crate) fn on(&mut self, device: &Device) {
        self.device = Some(device.index);
    }

    /// The place of a device, valid while inside the gate.
    pub(crate) fn place(&self, device: &'static Device) -> &Place {
        device.place(&self.pass)
    }

    /// Carries out a row of class `send` or `wait`.
    pub(crate) fn carry<C: Call>(&mut self, sent: &mut C::Sent) -> Result<C::Reply, Code> {
        let edges = C::edges(sent);
        if managed_variables::ANSWERED.contains(&C::ID)
            && let Some(reply) = encoded(sent, |body| managed_variables::answer(self, C::ID, body))
        {
            return decode::<C>(&reply?);
        }
        let reply = if EVERYWHERE.contains(&C::ID) {
            // On all devices or on none: a pending error is returned before anything is done; an error that occurs meanwhile is returned
            // by a later call.
            self.job.devices.iter().try_for_each(Device::check)?;
            let _later = PutOff::begin();
            let mut last = Err(code::ERROR_NO_DEVICE);
            for device in &self.job.devices {
                last = Ok(self.carry_on::<C>(device, sent, &edges)?);
            }
            last
        } else {
            let device = self.device()?;
            self.carry_on::<C>(device, sent, &edges)
        }?;
        self.ended(&edges);
        Ok(reply)
    }

    fn ended(&self, edges: &Edges) {
        let Some(h) = edges.ends else { return };
        // Destroying a stream or an event destroys no other handle.
        if !matches!(cuda_api::handle::kind(h), Some(Kind::Stream | Kind::Event)) {
            for device in &self.job.devices {
                let children = lock(&device.ledger).forget_children(h);
                for c in children {
                    reference::ended(self, c);
                    self.job.tables.end(c);
                }
            }
        }
        graph::forget(self, h);
        reference::ended(self, h);
        self.job.tables.end(h);
        if matches!(cuda_api::handle::kind(h), Some(Kind::Module | Kind::Library)) {
            crate::variables::forget();
            self.show_text();
            managed_variables::ended(self, h);
        }
    }

    /// Writes the text that device code has printed; called where the driver does so.
    pub(crate) fn show_text(&self) {
        if output::waits() {
            self.pass.outside(output::show);
        }
    }

    fn carry_on<C: Call>(&mut self, device: &'static Device, sent: &mut C::Sent, edges: &Edges) -> Result<C::Reply, Code> {
        device.check()?;
        if C::CLASS.recorded() {
            return self.carry_recorded::<C>(device, sent, edges);
        }
        if let Some(exec) = self.place(device).in_process() {
            return device.record_error(exec.call::<C>(sent, edges));
        }
        encoded(sent, |body| {
            let about = edges.uses.first().filter(|_| C::CLASS == Class::Query && !CHANGING.contains(&C::ID));
            let bytes = match about.map(|h| self.job.tables.function(*h)) {
                Some(Ok(f)) => self.ask_about(f, device, C::ID, body)?,
                _ => self.submit::<C>(device, body)?,
            };
            decode::<C>(&bytes)
        })
    }

    /// Carries out a state-building call and records it in the journal, under one lock.
    fn carry_recorded<C: Call>(&mut self, device: &'static Device, sent: &mut C::Sent, edges: &Edges) -> Result<C::Reply, Code> {
        let mut known = None;
        let reply = encoded(sent, |body| {
            let creation = stream::creation(C::ID, body)?;
            let function = edges.uses.first().and_then(|h| self.job.tables.function(*h).ok());
            let setting = function.and_then(|f| setting(C::ID, body).map(|(attribute, value)| (f, attribute, value)));
            if let Some((f, attribute, value)) = setting
                && f.answers.is_set(device.index, attribute, value)
            {
                return decode::<C>(&[]);
            }
            let mut ledger = lock(&device.ledger);
            if ledger.is_set::<C>(body, edges) {
                return decode::<C>(&[]);
            }
            // A repeated request for the same kernel, module or variable is answered without a round trip.
            let key = (C::IS_CODE && edges.ends.is_none() && !edges.creates.is_empty()).then(|| (C::ID, body[8..].to_vec()));
            known = key.as_ref().and_then(|k| ledger.known(k));
            if let Some(known) = known {
                // An object that the program has destroyed itself is not found any more, as with the driver.
                let ended =
                    cuda_api::handle::kind(known) == Some(Kind::TextureRef) && self.job.tables.textures.get(known).is_err();
                return if ended { Err(code::ERROR_NOT_FOUND) } else { decode::<C>(&[]) };
            }
            let (reply, bytes) = match self.place(device).in_process() {
                Some(exec) => {
                    let reply = device.record_error(exec.call::<C>(sent, edges))?;
                    let mut bytes = Vec::new();
                    reply.put(&mut bytes);
                    (reply, bytes)
                }
                None => {
                    let bytes = self.submit::<C>(device, body)?;
                    (decode::<C>(&bytes)?, bytes)
                }
            };
            if let Some(keep) = ledger.keep::<C>(body, edges) {
                ledger.append(C::ID, body, &bytes, edges, keep)?;
            }
            if let Some(ended) = edges.ends.filter(|_| C::IS_CODE) {
                for hash in ledger.unloaded(ended) {
                    self.ask(device, ops::id::IMAGE_END, &[&hash])?;
                    ledger.end_image(&hash)?;
                }
            }
            if let Some(made) = creation {
                stream::note_creation(self, device, made)?;
            }
            if let Some((f, attribute, value)) = setting {
                f.answers.set(device.index, attribute, value);
                // The next launch queries again what it must check.
                f.forget_on(device.index);
                let aliases = edges.uses.first().map(|h| ledger.aliases(*h)).unwrap_or_default();
                for other in aliases.iter().filter_map(|h| self.job.tables.function(*h).ok()) {
                    other.answers.forget_setting(device.index, attribute);
                    other.forget_on(device.index);
                }
            }
            if let Some(k) = key {
                ledger.learn(k, edges);
            }
            if let Some(parent) = edges.uses.first() {
                for f in edges.creates.iter().filter_map(|h| self.job.tables.function(*h).ok()) {
                    f.parent.store(*parent, Ordering::Relaxed);
                }
            }
            Ok(reply)
        })?;
        if let Some(known) = known {
            C::rename(sent, known);
            for h in &edges.creates {
                self.job.tables.end(*h);
                self.made.retain(|m| m != h);
            }
        }
        Ok(reply)
    }

    /// Sends an encoded row to a worker; returns its answer if the caller must wait for one.
    fn submit<C: Call>(&self, device: &'static Device, body: &[u8]) -> Result<Vec<u8>, Code> {
        if C::WAITS {
            return self.ask(device, C::ID, &[body]);
        }
        let span = device.record_error(self.place(device).send(C::ID, &[body]))?;
        if LEAVES_NOTHING_TO_DO.contains(&C::ID) {
            device.still_quiet(span);
        }
        Ok(Vec::new())
    }

    /// Returns a property of a function, from the cache or from the place.
    pub(crate) fn ask_about(&self, f: &FunctionData, device: &'static Device, id: u16, body: &[u8]) -> Result<Vec<u8>, Code> {
        match f.answers.find(device.index, id, body) {
            Ok(known) => Ok(known),
            Err(version) => {
                let answer = self.ask(device, id, &[body])?;
                f.answers.keep(version, device.index, id, body, &answer);
                Ok(answer)
            }
        }
    }

    /// Sends a query and waits inside the gate: for answers that do not depend on the GPU's progress.
    pub(crate) fn ask(&self, device: &'static Device, id: u16, parts: &[&[u8]]) -> Result<Vec<u8>, Code> {
        self.answer(device, device.record_error(self.place(device).begin(id, parts))?)
    }

    /// Queries whether a stream or an event is complete; also returns the position of the query in the place's order, if it has one.
    pub(crate) fn query(&self, device: &'static Device, id: u16, handle: u64) -> Result<Option<Range<u64>>, Code> {
        if let Some(exec) = self.place(device).in_process() {
            return exec.is_done(id, handle).map(|()| None).map_err(|rc| self.failed(device, rc));
        }
        let waiting = device.record_error(self.place(device).begin(id, &[&handle.to_le_bytes()]))?;
        let span = waiting.span();
        // A query gives the GPU no work.
        device.still_quiet(span.clone());
        self.answer(device, waiting).map(|_| span)
    }

    /// Waits for an answer inside the gate.
    fn answer(&self, device: &'static Device, waiting: Waiting) -> Result<Vec<u8>, Code> {
        let (rc, bytes) = waiting.finish();
        if rc == code::SUCCESS {
            return Ok(bytes);
        }
        if !bytes.is_empty() {
            tracing::debug!(target: "place", "a call failed with {rc}: {}", String::from_utf8_lossy(&bytes));
        }
        Err(self.failed(device, rc))
    }

    /// Records an error code that the place has returned.
    fn failed(&self, device: &'static Device, rc: Code) -> Code {
        device.note(rc);
        if code::is_sticky(rc) {
            // The text of a failed assertion. Callers may hold the ledger, so the gate is not left here.
            output::show();
        }
        rc
    }

    /// Sends a call and waits for its answer outside the gate: for answers that depend on the GPU's progress.
    pub(crate) fn wait(&self, device: &'static Device, id: u16, body: &[u8]) -> Result<Vec<u8>, Code> {
        device.check()?;
        let epoch = device.epoch.load(Ordering::Relaxed);
        let waiting = device.record_error(self.place(device).begin(id, &[body]))?;
        let span = waiting.span();
        let answer = self.wait_for(device, waiting)?;
        if let Some(span) = span.filter(|_| id == ops::id::CONTEXT_SYNC) {
            device.quiet_until(epoch, span, None);
        }
        Ok(answer)
    }

    /// Waits until all work of a device is complete; makes no round trip if there can be none.
    pub(crate) fn settle(&self, device: &'static Device) -> Result<(), Code> {
        if device.is_quiet(self.place(device), None) {
            return device.check();
        }
        self.wait(device, ops::id::CONTEXT_SYNC, &[]).map(drop)
    }

    /// Waits until all work of a stream is complete; makes no round trip if there can be none.
    pub(crate) fn settle_stream(&self, device: &'static Device, stream: u64) -> Result<(), Code> {
        if device.is_quiet(self.place(device), Some(stream)) {
            device.check()?;
            // The text has arrived: the place sends it before the answer that showed the completion.
            self.show_text();
            return Ok(());
        }
        device.check()?;
        if let Some(exec) = self.place(device).in_process() {
            return self.wait_here(device, exec, |exec| exec.wait_for(ops::id::STREAM_SYNC, stream));
        }
        let epoch = device.epoch.load(Ordering::Relaxed);
        let waiting = device.record_error(self.place(device).begin(ops::id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
        self.wait_for_stream(device, waiting, epoch, stream)
    }

    /// Waits until the next work of a stream could begin. That work may also follow work of other streams (the default stream, for a
    /// stream that waits for it), which a wait for a stream without work of its own does not cover: so this submits work and waits for
    /// that.
    pub(crate) fn settle_turn(&self, device: &'static Device, stream: u64) -> Result<(), Code> {
        if self.place(device).in_process().is_none() {
            // A worker's wait always is for work of the stream.
            return self.settle_stream(device, stream);
        }
        self.wait(device, ops::id::STREAM_SYNC, &stream.to_le_bytes()).map(drop)
    }

    /// Waits for an answer that is sent when a stream has completed everything before it.
    pub(crate) fn wait_for_stream(&self, device: &'static Device, waiting: Waiting, epoch: u64, stream: u64) -> Result<(), Code> {
        let span = waiting.span();
        self.wait_for(device, waiting)?;
        if let Some(span) = span {
            device.quiet_until(epoch, span, Some(stream));
        }
        Ok(())
    }

    /// Waits outside the gate for an answer that is under way.
    pub(crate) fn wait_for(&self, device: &'static Device, waiting: Waiting) -> Result<Vec<u8>, Code> {
        let (rc, bytes) = self.waiting(device, || waiting.finish());
        device.note(rc);
        if rc != code::SUCCESS {
            return Err(rc);
        }
        // A failure of earlier work was reported before the answer: a caller that waited for that work must not get a success.
        device.check_late().map(|()| bytes)
    }

    /// Lets the driver of this process wait, outside the gate.
    pub(crate) fn wait_here(
        &self,
        device: &'static Device,
        exec: &Arc<Executor>,
        wait: impl FnOnce(&Executor) -> Result<(), Code>,
    ) -> Result<(), Code> {
        // A move may leave the place while a wait that is no longer counted still returns.
        let exec = exec.clone();
        device.record_error(self.waiting(device, move || wait(&exec)))?;
        device.check_late()
    }

    /// Steps outside the gate for a wait. The place stays open: a move waits for the counted waiters.
    fn waiting<T>(&self, device: &'static Device, wait: impl FnOnce() -> T) -> T {
        // Counted while still inside: a mover that finds the gate empty finds the waiter counted.
        device.waiters.fetch_add(1, Ordering::AcqRel);
        self.pass.outside(|| {
            faults::at(Point::Wait);
            let answer = wait();
            device.waiters.fetch_sub(1, Ordering::AcqRel);
            output::show();
            answer
        })
    }

    /// Carries out a state-building operation: waits for the answer, and records it in the journal on success.
    pub(crate) fn build(
        &self,
        device: &'static Device,
        op: u16,
        body: &[u8],
        edges: &Edges,
        keep: Keep,
    ) -> Result<Vec<u8>, Code> {
        device.check()?;
        let mut ledger = lock(&device.ledger);
        let bytes = self.ask(device, op, &[body])?;
        ledger.append(op, body, &bytes, edges, keep)?;
        Ok(bytes)
    }

    /// Sends an operation, which needs no encoding in this process; returns its position in the place's order, if it has one.
    pub(crate) fn operate<O: Direct>(&self, device: &'static Device, op: &O) -> Result<Option<Range<u64>>, Code> {
        device.check()?;
        match self.place(device) {
            Place::Local { exec, .. } => device.record_error(exec.carry_out(op)).map(|()| None),
            remote => encoded(op, |body| device.record_error(remote.send(O::ID, &[body]))),
        }
    }

    /// Sends work, which has no answer and no journal record.
    pub(crate) fn work(&self, device: &'static Device, op: u16, parts: &[&[u8]]) -> Result<(), Code> {
        self.work_at(device, op, parts).map(drop)
    }

    /// As [`CallContext::work`]; also returns its position in the place's order, if it has one.
    pub(crate) fn work_at(&self, device: &'static Device, op: u16, parts: &[&[u8]]) -> Result<Option<Range<u64>>, Code> {
        device.check()?;
        device.record_error(self.place(device).send(op, parts))
    }

    /// Keeps a handle that this call has created even if the rest of the call fails.
    pub(crate) fn keep(&mut self, h: u64) {
        self.made.retain(|m| *m != h);
    }
}
/// Functions of CUDA's first versions that some libraries look up by name; those whose parameters have not changed since use today's
/// implementation.
macro_rules! older {
    ($($old:ident = $new:ident($($p:ident : $t:ty),*);)*) => {$(

        pub(crate) fn $old(cx: &mut $crate::enter::CallContext, $($p: $t),*) -> Result<(), cuda_api::code::Code> {
            $new(cx, $($p),*)
        }
    )*};
}
pub(crate) use older;
