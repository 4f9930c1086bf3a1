//! Captures and graphs: the rows of the driver API on top of `cuda_model`'s graphs.

use super::Export;
use crate::abi::Res;
use crate::gpu::capture::seen;
use crate::gpu::graph::{self, INSTANCES, resolve};
use crate::gpu::graph_table::{GRAPHS, error};
use crate::gpu::memory_op::Part;
use crate::gpu::stream::{self, Default, Target};
use crate::gpu::{allocation, condition, context, copy, event, launch, module, process, sched, wait};
use cuda_api::answer::*;
use cuda_api::arg::*;
use cuda_api::code::{self, Code};
use cuda_api::sys::{self, CUresult};
use cuda_api::work::{At, Copy3, Fill, Kernel, Spec, Work};
use cuda_api::{answer, calls};
use cuda_model::error_precedence;
use cuda_model::graph::{Host, Shared, Stream, api};
use std::ffi::{c_char, c_uint, c_ulonglong};

/// A call in one of its two forms.
struct Soft {
    default: Default,
}

fn code(e: CUresult) -> Code {
    e as Code
}

fn coded<T>(r: Res<T>) -> Result<T, Code> {
    r.map_err(code)
}

impl Host for Soft {
    fn is_device(&mut self, ordinal: i32) -> bool {
        crate::gpu::device::get(ordinal).is_ok()
    }

    fn shared(&self) -> &'static Shared {
        &GRAPHS
    }

    fn stream(&mut self, stream: u64) -> Result<Stream, Code> {
        coded(stream::resolve(stream as sys::CUstream, self.default)).map(|t| seen(&t))
    }

    fn context(&mut self) -> Result<u64, Code> {
        coded(context::current()).map(|live| live.number)
    }

    fn event(&mut self, event: u64) -> Result<u64, Code> {
        coded(event::resolve(event as sys::CUevent)).map(|e| e.context())
    }

    fn layout<T>(&mut self, function: u64, use_it: impl FnOnce(&[(u32, u32)]) -> Result<T, Code>) -> Result<T, Code> {
        let (function, _) = coded(module::resolve_function(function as sys::CUfunction))?;
        let layout: Vec<(u32, u32)> = function.info().params.iter().map(|p| (p.offset, p.size)).collect();
        use_it(&layout)
    }

    fn names(&mut self, function: u64) -> Result<(u64, u64), Code> {
        let (found, _) = coded(module::resolve_function(function as sys::CUfunction))?;
        Ok((found.handle as u64, found.kernel().map_or(0, |k| k as u64)))
    }

    fn check_kernel(&mut self, kernel: &Kernel) -> Result<u64, Code> {
        let (function, live) = coded(module::resolve_function(kernel.function as sys::CUfunction))?;
        coded(graph::shape(kernel).and_then(|shape| launch::check(&function, &shape)))?;
        Ok(live.number)
    }

    fn check_copy(&mut self, c: &Copy3) -> Result<u64, Code> {
        coded(copy::check(c))?;
        self.context()
    }

    fn check_fill(&mut self, f: &Fill) -> Result<u64, Code> {
        coded(copy::check_fill(&f.into()))?;
        self.context()
    }

    fn check_words(&mut self, parts: &[[u64; 6]]) -> Result<u64, Code> {
        coded(parts.iter().try_for_each(|p| Part::of(p).map(drop)))?;
        self.context()
    }

    fn allocate(&mut self, device: i32, bytes: u64) -> Result<(u64, u64), Code> {
        let live = coded(context::current())?;
        if live.device.ordinal != device {
            let known = usize::try_from(device).is_ok_and(|n| n < crate::gpu::device::all().len());
            // The context of another one may not exist yet.
            return Err(if known { code::ERROR_NOT_SUPPORTED } else { code::ERROR_INVALID_DEVICE });
        }
        coded(allocation::allocate(&live, bytes)).map(|address| (address, live.number))
    }

    fn release(&mut self, address: u64) -> Result<(), Code> {
        coded(context::current().and_then(|live| graph::release(&live, address)))
    }

    fn ordinal(&mut self, _context: u64) -> i32 {
        // Captures take calls of their own context only.
        context::current().map_or(0, |live| live.device.ordinal)
    }

    fn condition(&mut self, _home: u64, default: u32, flags: u32) -> Result<(u64, u64), Code> {
        let context = self.context()?;
        Ok((condition::create(default, flags), context))
    }

    fn end_conditions(&mut self, _context: u64, _home: u64, conditions: &[u64]) -> Result<(), Code> {
        conditions.iter().for_each(|c| condition::end(*c));
        Ok(())
    }

    fn instantiate(&mut self, context: u64, _flags: u64, _home: u64, spec: Spec) -> Result<u64, Code> {
        let live = coded(context::current())?;
        if live.number != context {
            return Err(code::ERROR_INVALID_CONTEXT);
        }
        coded(graph::instantiate(&live, &spec)).map(|i| i.handle as u64)
    }

    fn change(&mut self, instance: u64, at: At, work: Work<u32>, _plain: bool) -> Result<(), Code> {
        coded(resolve(instance).and_then(|i| i.change(at, &work)))
    }

    fn enable(&mut self, instance: u64, at: At, on: bool) -> Result<(), Code> {
        coded(resolve(instance).and_then(|i| i.enable(at, on)))
    }

    fn launch(&mut self, instance: u64, stream: u64) -> Result<(), Code> {
        let target = coded(stream::resolve(stream as sys::CUstream, self.default))?;
        coded(resolve(instance).and_then(|i| i.launch(&target)))
    }

    fn upload(&mut self, instance: u64, stream: u64) -> Result<(), Code> {
        coded(stream::resolve(stream as sys::CUstream, self.default))?;
        coded(resolve(instance)).map(drop)
    }

    fn end_instance(&mut self, instance: u64) -> Result<(), Code> {
        INSTANCES.remove(instance as usize).map(drop).ok_or(code::ERROR_INVALID_VALUE)
    }

    fn fence(&mut self, context: u64) -> Box<dyn FnOnce() + Send> {
        let marks = context::current().ok().filter(|live| live.number == context).map(|live| wait::outstanding(&live));
        Box::new(move || sched::wait(&marks.unwrap_or_default()))
    }
}

/// An allocation in a stream that is being captured becomes a graph node; `None`: the stream is not being
/// captured.
pub(super) fn capture_alloc(target: &Target, bytes: u64) -> Res<Option<u64>> {
    if !GRAPHS.capturing() {
        return Ok(None);
    }
    api::capture_alloc(&mut Soft { default: Default::Legacy }, &seen(target), bytes).map_err(error)
}

/// As [`capture_alloc`] for a free.
pub(super) fn capture_free(target: &Target, address: u64) -> Res<bool> {
    if !GRAPHS.capturing() {
        return Ok(false);
    }
    api::capture_free(&mut Soft { default: Default::Legacy }, &seen(target), address).map_err(error)
}

/// Frees an address outside of graphs; false: it was not allocated by a graph.
pub(super) fn free_of_graph(address: u64) -> Res<bool> {
    api::free_of_graph(&mut Soft { default: Default::Legacy }, address).map_err(error)
}

fn run(default: Default, body: impl FnOnce(&mut Soft) -> Result<(), Code>) -> Code {
    let mut outcome = code::SUCCESS;
    let guarded = super::guard::enter(|| {
        body(&mut Soft { default }).map_err(|rc| {
            outcome = rc;
            error(rc)
        })
    });
    if guarded == CUresult::CUDA_SUCCESS || outcome == code::SUCCESS { code(guarded) } else { outcome }
}

/// Runs a call; a failure returns the error that has precedence in the driver.
macro_rules! with_precedence {
    ($name:ident ($($p:ident : $kind:ty),* $(,)?) $run:expr) => {{
        let rc = $run;
        if rc == code::SUCCESS {
            rc
        } else {
            let checks = const { calls::checks(stringify!($name)) };
            let context = || coded(context::current()).map(drop);
            error_precedence::choose(checks, &[$(number($p)),*], rc, |rc| rc, || coded(process::ready()), context)
        }
    }};
}

/// What a function does, by how its row is executed.
macro_rules! body {
    (answer $h:ident $name:ident $params:tt) => {
        answer!($h api::$name, $params)
    };
    (irregular $h:ident $name:ident ($($p:ident : $kind:ty),* $(,)?)) => {{
        let call = DuringCall;
        // SAFETY: the program's own arguments.
        api::$name($h, $(unsafe { <$kind as Receive<'_>>::receive($p, &call) }),*)
    }};
}

/// An exported function. The parameters are given twice: once for their types.
macro_rules! symbol {
    ([$($attribute:tt)*] $function:ident $how:ident $name:ident $default:ident $params:tt ($($p:ident : $kind:ty),* $(,)?)) => {
        $($attribute)*
        pub(super) extern "C" fn $function($($p: <$kind as Param>::C),*) -> Code {
            with_precedence!($name $params run(Default::$default, |h| body!($how h $name $params)))
        }
    };
}

macro_rules! per_thread {
    ([] $($rest:tt)*) => {
        /// No such form.
        pub(super) const FORM: &[super::Export] = &[];
    };
    ([older $($form:ident)*] $($rest:tt)*) => { per_thread! { [$($form)*] $($rest)* } };
    ([ptsz] $how:ident $name:ident $params:tt) => {
        symbol! { [#[unsafe(export_name = concat!(stringify!($name), "_ptsz"))]] per_thread $how $name PerThread $params $params }
        /// The form whose default stream is that of the thread.
        pub(super) const FORM: &[super::Export] =
            &[super::Export { name: concat!(stringify!($name), "_ptsz"), address: per_thread as *const () }];
    };
}

macro_rules! export {
    ($(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident $($reason:literal)? fn $name:ident $params:tt $($form:ident)* $([$($checks:tt)*])?;
    )*) => {
        $(mod $name {
            use super::*;
            symbol! { [#[unsafe(export_name = stringify!($name))]] entry $how $name Legacy $params $params }
            per_thread! { [$($form)*] $how $name $params }
        })*
        /// The symbols of this subject.
        pub(super) static EXPORTS: &[Export] = &[$(Export { name: stringify!($name), address: $name::entry as *const () }),*];
        /// Their forms for threads' default streams.
        pub(super) static FORMS: &[&[Export]] = &[$($name::FORM),*];
    };
}
cuda_api::for_each_graph_call!(export);
