//! Carries out a row: the arguments as handles of the recorder, the place, the journal.

mod variable_queries;

use crate::base::encoding::encoded;
use crate::base::log::lock;
use crate::device_memory::variables;
use crate::enter::CallContext;
use crate::handle_end;
use crate::host_memory::managed_variables;
use crate::job::{Device, PutOff, contexts};
use crate::ledger::call::Begun;
use crate::ledger::{Ledger, PREFERENCES};
use crate::objects::table::EVERY_DEVICE;
use crate::order::concerned::WaitingCall;
use crate::order::{captures, creation, host_waiting};
use crate::thread;
use cuda_api::arg::{Capture, Edges, LEGACY};
use cuda_api::calls::Call;
use cuda_api::calls::context::{cuCtxGetLimit, cuCtxSetLimit};
use cuda_api::calls::module::{
    cuFuncIsLoaded, cuFuncSetAttribute, cuKernelSetAttribute, cuLibraryGetKernel, cuLibraryUnload, cuModuleGetFunction,
    cuModuleUnload,
};
use cuda_api::calls::stream::{cuEventCreate, cuEventDestroy_v2, cuStreamCreate, cuStreamCreateWithPriority, cuStreamDestroy_v2};
use cuda_api::class::Class;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;
use cuda_api::ops;
use cuda_api::sys::CUlimit_enum as Limit;
use cuda_api::wire::Wire;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Libraries belong to no device: these rows are carried out on every device.
const EVERYWHERE: [u16; 2] = [cuLibraryGetKernel::Fn::ID, cuLibraryUnload::Fn::ID];

/// The only property of a function that changes without a call on the function.
pub(crate) const CHANGING: [u16; 1] = [cuFuncIsLoaded::Fn::ID];

/// Whether a call asks for a limit that only `cuCtxSetLimit` changes: XLA asks for such a one at each step. What code needs may change the
/// others: stack, heap, and buffers of the device's runtime.
fn is_constant_limit(call: u16, body: &[u8]) -> bool {
    let limit = || body.first_chunk().map(|limit| u32::from_le_bytes(*limit));
    call == cuCtxGetLimit::Fn::ID && limit().is_some_and(|limit| limit >= Limit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY as u32)
}

/// Rows that give the GPU no work, so that there is no completion to wait for.
const LEAVES_NOTHING_TO_DO: [u16; 5] = [
    cuStreamCreate::Fn::ID,
    cuStreamCreateWithPriority::Fn::ID,
    cuStreamDestroy_v2::Fn::ID,
    cuEventCreate::Fn::ID,
    cuEventDestroy_v2::Fn::ID,
];

/// Attribute and value that a call sets on a function.
pub(crate) fn setting(call: u16, body: &[u8]) -> Option<(u32, i32)> {
    let at = match call {
        cuFuncSetAttribute::Fn::ID => size_of::<u64>(),
        cuKernelSetAttribute::Fn::ID => 0,
        _ => return None,
    };
    let mut rest = body.get(at..)?;
    Some((u32::get(&mut rest).ok()?, i32::get(&mut rest).ok()?))
}

fn decode<C: Call>(mut bytes: &[u8]) -> Result<C::Reply, Code> {
    C::Reply::get(&mut bytes).map_err(|_| code::ERROR_UNKNOWN)
}

impl Capture for CallContext {
    type Device = &'static Device;

    fn find_device(&mut self, ordinal: i32) -> Result<&'static Device, Code> {
        self.job.device(ordinal)
    }

    fn new_handle(&mut self, kind: Kind) -> Result<u64, Code> {
        let device = match kind {
            Kind::Library | Kind::Kernel => EVERY_DEVICE,
            _ => self.device()?.index,
        };
        let h = self.job.tables.make(kind, device, contexts::current())?;
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
            0 | 2 => of_thread(self),
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
    /// Carries out a row of class `send` or `wait`.
    pub(crate) fn carry<C: Call>(&mut self, sent: &mut C::Sent) -> Result<C::Reply, Code> {
        let edges = C::edges(sent);
        if variable_queries::ANSWERED.contains(&C::ID)
            && let Some(reply) = encoded(sent, |body| variable_queries::answer(self, C::ID, body))
        {
            return decode::<C>(&reply?);
        }
        let reply = if EVERYWHERE.contains(&C::ID) {
            self.carry_everywhere::<C>(sent)
        } else {
            let device = self.device()?;
            self.carry_on::<C>(device, sent, &edges)
        }?;
        self.ended(&edges);
        Ok(reply)
    }

    /// Carries out a row on all devices or on none: a pending error is returned before anything is done; an error that occurs meanwhile is
    /// returned by a later call.
    fn carry_everywhere<C: Call>(&mut self, sent: &mut C::Sent) -> Result<C::Reply, Code> {
        /// Held before the ledgers: of two threads with the same request, all devices must give the one the handle of the other.
        static EVERY_LEDGER: Mutex<()> = Mutex::new(());
        // The driver may wait for the GPU. Before that lock, which threads need that a copy may wait for.
        let waits = C::ID == cuLibraryUnload::Fn::ID;
        let _waits: Vec<WaitingCall> = self.job.devices.iter().filter(|_| waits).map(WaitingCall::begin).collect();
        let _alone = lock(&EVERY_LEDGER);
        self.job.devices.iter().try_for_each(Device::check)?;
        let _later = PutOff::begin();
        let mut last = Err(code::ERROR_NO_DEVICE);
        for device in &self.job.devices {
            // A device that knows the request has replaced the handle in it.
            let edges = C::edges(sent);
            last = Ok(self.carry_on::<C>(device, sent, &edges)?);
            // If the next device fails, this one gives the handle to the next such request, which must find it alive.
            C::edges(sent).creates.iter().for_each(|h| self.keep(*h));
        }
        last
    }

    pub(crate) fn ended(&self, edges: &Edges) {
        let Some(h) = edges.ends else { return };
        // Destroying a stream or an event destroys no other handle.
        if !matches!(cuda_api::handle::kind(h), Some(Kind::Stream | Kind::Event)) {
            for device in &self.job.devices {
                let children = lock(&device.ledger).forget_children(h);
                for c in children {
                    handle_end::reference_ended(self, c);
                    self.job.tables.end(c);
                }
            }
        }
        captures::forget(self, h);
        handle_end::reference_ended(self, h);
        self.job.tables.end(h);
        if matches!(cuda_api::handle::kind(h), Some(Kind::Module | Kind::Library)) {
            self.show_text();
            managed_variables::ended(self, h);
        }
    }

    pub(crate) fn carry_on<C: Call>(
        &mut self,
        device: &'static Device,
        sent: &mut C::Sent,
        edges: &Edges,
    ) -> Result<C::Reply, Code> {
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
                Some(Ok(f)) => self.ask_about(&f.answers, device, C::ID, body)?,
                _ if is_constant_limit(C::ID, body) => self.ask_about(&device.limit_answers, device, C::ID, body)?,
                _ => self.submit::<C>(device, body)?,
            };
            decode::<C>(&bytes)
        })
    }

    /// Carries out a state-building call and records it in the journal, under one lock.
    pub(crate) fn carry_recorded<C: Call>(
        &mut self,
        device: &'static Device,
        sent: &mut C::Sent,
        edges: &Edges,
    ) -> Result<C::Reply, Code> {
        let mut known = None;
        let reply = encoded(sent, |body| {
            let creation = creation::creation(C::ID, body)?;
            let function = edges.uses.first().and_then(|h| self.job.tables.function(*h).ok());
            let setting = function.and_then(|f| setting(C::ID, body).map(|(attribute, value)| (f, attribute, value)));
            if let Some((f, attribute, value)) = setting
                && f.answers.is_set(device.index, attribute, value)
            {
                return decode::<C>(&[]);
            }
            // As for a library.
            let _waits = (C::ID == cuModuleUnload::Fn::ID).then(|| WaitingCall::begin(device));
            let mut ledger = lock(&device.ledger);
            let call = match ledger.begin::<C>(body, edges) {
                Begun::IsSet => return decode::<C>(&[]),
                Begun::Known(handle) => {
                    known = Some(handle);
                    // An object that the program has destroyed itself is not found any more, as with the driver.
                    let ended =
                        cuda_api::handle::kind(handle) == Some(Kind::TextureRef) && self.job.tables.textures.get(handle).is_err();
                    return if ended { Err(code::ERROR_NOT_FOUND) } else { decode::<C>(&[]) };
                }
                Begun::Send(call) => call,
            };
            let (reply, bytes) = match self.place(device).in_process() {
                Some(exec) => {
                    let reply = device.record_error(exec.call::<C>(sent, edges))?;
                    let mut bytes = Vec::new();
                    reply.put(&mut bytes);
                    (reply, bytes)
                }
                None => {
                    let bytes = match self.is_certain::<C>(device, &ledger, body) {
                        true => self.send_quietly(device, C::ID, body)?,
                        false => self.submit::<C>(device, body)?,
                    };
                    (decode::<C>(&bytes)?, bytes)
                }
            };
            if C::ID == cuCtxSetLimit::Fn::ID {
                device.limit_answers.forget();
            }
            if let Some(ended) = edges.ends.filter(|h| matches!(cuda_api::handle::kind(*h), Some(Kind::Module | Kind::Library))) {
                // Under the ledger: code that is loaded next may have its variables there.
                variables::unloaded(ended);
            }
            for hash in ledger.succeeded::<C>(call, body, &bytes, edges)? {
                self.send_quietly(device, ops::id::IMAGE_END, &hash)?;
                ledger.end_image(&hash)?;
            }
            if let Some(made) = creation {
                creation::note_creation(self, device, made)?;
            }
            if let Some((f, attribute, value)) = setting {
                f.answers.set(device.index, attribute, value);
                ledger.code.attribute_set();
                // The next launch queries again what it must check.
                f.forget_on(device.index);
                let aliases = edges.uses.first().map(|h| ledger.aliases(*h)).unwrap_or_default();
                for other in aliases.iter().filter_map(|h| self.job.tables.function(*h).ok()) {
                    other.answers.forget_setting(device.index, attribute);
                    other.forget_on(device.index);
                }
            }
            if let Some(first) = edges.uses.first().filter(|_| PREFERENCES.contains(&C::ID)) {
                for h in ledger.aliases(*first).iter().chain([first]) {
                    self.job.tables.function(*h).into_iter().for_each(|f| f.answers.forget());
                }
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
            for h in edges.creates.iter().filter(|h| **h != known) {
                self.job.tables.end(*h);
                self.made.retain(|m| m != h);
            }
        }
        Ok(reply)
    }

    /// Returns whether it is certain that a worker carries out a row, with an empty answer: a function that it has said it finds, and the
    /// end of code while nothing can use it.
    fn is_certain<C: Call>(&self, device: &'static Device, ledger: &Ledger, body: &[u8]) -> bool {
        match C::ID {
            cuModuleGetFunction::Fn::ID | cuLibraryGetKernel::Fn::ID => {
                // Behind the handle that the call creates.
                let asked = body.get(size_of::<u64>()..).and_then(|mut rest| <(u64, Vec<u8>)>::get(&mut rest).ok());
                asked.is_some_and(|(unit, name)| ledger.code.has_function(unit, &name))
            }
            cuModuleUnload::Fn::ID | cuLibraryUnload::Fn::ID => {
                // The driver refuses to unload the module of a library.
                let unit = u64::get(&mut &body[..]);
                unit.is_ok_and(|unit| !ledger.is_child(unit)) && device.is_quiet(self.place(device), None)
            }
            _ => false,
        }
    }

    /// Sends a call that gives the GPU no work and has no answer.
    fn send_quietly(&self, device: &'static Device, id: u16, body: &[u8]) -> Result<Vec<u8>, Code> {
        let span = device.record_error(self.place(device).send(id, &[body]))?;
        device.still_quiet(span);
        Ok(Vec::new())
    }

    /// Sends an encoded row to a worker; returns its answer if the caller must wait for one.
    pub(crate) fn submit<C: Call>(&self, device: &'static Device, body: &[u8]) -> Result<Vec<u8>, Code> {
        if C::WAITS {
            return self.ask(device, C::ID, &[body]);
        }
        let span = device.record_error(self.place(device).send(C::ID, &[body]))?;
        if LEAVES_NOTHING_TO_DO.contains(&C::ID) {
            device.still_quiet(span);
        }
        Ok(Vec::new())
    }
}

/// Destroys a stream.
pub(crate) fn end_stream(cx: &mut CallContext, device: &'static Device, hStream: u64) -> Result<(), Code> {
    host_waiting::stream_ends(cx, device, hStream);
    cx.carry::<cuStreamDestroy_v2::Fn>(&mut cuStreamDestroy_v2::Sent { hStream }).map(drop)
}

/// The calling thread's default stream on the device of its context.
pub(crate) fn of_thread(cx: &mut CallContext) -> Result<u64, Code> {
    let device = cx.device()?;
    let known = thread::read(|own| own.streams.iter().find(|(d, _)| *d == device.index).map(|(_, s)| *s));
    // It ends with its context, which any thread can destroy.
    if let Some(stream) = known.filter(|s| cx.job.tables.streams.get(*s).is_ok()) {
        return Ok(stream);
    }
    // No thread can use these any more. The thread does not get one of them: it may have work, a capture or attributes.
    for stream in thread::take_ended_streams(device.index) {
        if cx.job.tables.streams.get(stream).is_ok() {
            end_stream(cx, device, stream)?;
        }
    }
    let mut sent = cuStreamCreateWithPriority::Sent { phStream: cx.new_handle(Kind::Stream)?, flags: 0, priority: 0 };
    cx.carry::<cuStreamCreateWithPriority::Fn>(&mut sent)?;
    let stream = sent.phStream;
    cx.keep(stream);
    let made = cx.job.tables.streams.get(stream)?;
    made.data.per_thread.store(true, Ordering::Relaxed);
    made.set_context(0);
    thread::change(|own| {
        own.streams.retain(|(d, _)| *d != device.index);
        own.streams.push((device.index, stream));
    });
    Ok(stream)
}
