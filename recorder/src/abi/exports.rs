//! The exported C symbols: one short macro over the rows. Nothing else in this crate is called from outside.

use crate::base::log;
use crate::calls::spare_events;
use crate::enter::{end_watched, guard, outermost};
use crate::job;
use cuda_api::arg::*;
use cuda_api::code::{self, Code};
use cuda_api::{calls, sys};
use cuda_model::error_precedence;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::panic::catch_unwind;
use std::sync::OnceLock;

/// The hand-written functions, by the name of their row.
mod bodies {
    pub(super) use crate::abi::symbols::*;
    pub(super) use crate::calls::memory::{attributes::*, pools::*, shared_pools::*};
    pub(super) use crate::calls::vmm::share::*;
    pub(super) use crate::calls::{
        array::*, array_copy::*, context::*, copy::*, device::*, external::*, graph::*, green::*, host_function::*, ipc::*,
        launch::*, linker::*, logs_and_coredump::*, managed::*, memory::*, module::*, old_launch::*, reference::*, stream::*,
        stream_attributes::*, stream_memory::*, tensor_map::*, texture::*, tiles::*, vmm::*,
    };
    pub(super) use crate::device_memory::peer::*;
    pub(super) use crate::host_memory::*;
}

/// Runs a call; on failure returns the error that the driver would return.
macro_rules! told {
    ($name:ident ($($p:ident),*) $run:expr) => {{
        let rc = $run;
        if rc == code::SUCCESS {
            rc
        } else {
            let checks = const { error_precedence::checks(stringify!($name)) };
            error_precedence::choose(checks, &[$(error_precedence::number($p)),*], rc, |rc| rc, || job::get().map(drop), crate::job::contexts::check)
        }
    }};
}

macro_rules! body {
    (bare $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),*)) => {
        outermost(stringify!($name), || bodies::$name($($p),*))
    };
    (custom $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),*)) => {
        told!($name ($($p),*) guard(stringify!($name), $per_thread, |cx| bodies::$name(cx, $($p),*)))
    };
    (refused $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),*)) => {{
        // Other errors take precedence as in the driver.
        told!($name ($($p),*) {
            log::missed(concat!(stringify!($name), " (not supported)").to_owned());
            code::ERROR_NOT_SUPPORTED
        })
    }};
    (send stream cuEventCreate $per_thread:literal ($to:ident : $new:ty, $flags:ident : $value:ty)) => {
        told!(cuEventCreate ($to, $flags) guard("cuEventCreate", $per_thread, |cx| {
            if spare_events::make_again(cx, $to, $flags)? {
                return Ok(());
            }
            row! { cx stream cuEventCreate ($to : $new, $flags : $value) }
        }))
    };
    (send stream cuEventDestroy_v2 $per_thread:literal ($event:ident : $end:ty)) => {
        told!(cuEventDestroy_v2 ($event) guard("cuEventDestroy_v2", $per_thread, |cx| {
            if spare_events::keep(cx, $event)? {
                return Ok(());
            }
            row! { cx stream cuEventDestroy_v2 ($event : $end) }
        }))
    };
    ($how:ident $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),*)) => {
        told!($name ($($p),*) guard(stringify!($name), $per_thread, |cx| {
            row! { cx $family $name ($($p : $kind),*) }
        }))
    };
}

/// Carries out a row with the program's arguments.
macro_rules! row {
    ($cx:ident $family:ident $name:ident ($($p:ident : $kind:ty),*)) => {{
        let mut sent = calls::$family::$name::Sent {
            // SAFETY: the program's own arguments.
            $($p: unsafe { <$kind as Arg>::capture($p, $cx) }?),*
        };
        let reply = $cx.carry::<calls::$family::$name::Fn>(&mut sent)?;
        // SAFETY: the program's own arguments, and the call has succeeded.
        $(unsafe { <$kind as Arg>::deliver(&sent.$p, &reply.$p, $p) };)*
        let _ = reply;
        Ok(())
    }};
}

/// The body of an exported function; `MRCUDA_LOG` shows the call with its result.
macro_rules! logged {
    ($how:ident $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),*)) => {{
        let watched = log::begin(stringify!($name), stringify!($how));
        let rc = body! { $how $family $name $per_thread ($($p : $kind),*) };
        if let Some(watched) = watched {
            end_watched(&watched, &[$((stringify!($p), error_precedence::number($p))),*], rc);
        }
        rc
    }};
}

macro_rules! per_thread {
    ([] $($rest:tt)*) => {};
    ([older $($form:ident)*] $($rest:tt)*) => { per_thread! { [$($form)*] $($rest)* } };
    ([ptsz] $how:ident $family:ident $name:ident ($($p:ident : $kind:ty),*)) => {
        #[unsafe(export_name = concat!(stringify!($name), "_ptsz"))]
        pub(super) unsafe extern "C" fn per_thread($($p: <$kind as Arg>::C),*) -> Code {
            logged! { $how $family $name true ($($p : $kind),*) }
        }
    };
    ([ptds] $how:ident $family:ident $name:ident ($($p:ident : $kind:ty),*)) => {
        #[unsafe(export_name = concat!(stringify!($name), "_ptds"))]
        pub(super) unsafe extern "C" fn per_thread($($p: <$kind as Arg>::C),*) -> Code {
            logged! { $how $family $name true ($($p : $kind),*) }
        }
    };
}

macro_rules! enlist {
    ($to:ident $name:ident []) => {};
    ($to:ident $name:ident [older $($form:ident)*]) => { enlist! { $to $name [$($form)*] } };
    ($to:ident $name:ident [$form:ident]) => {
        $to.insert(concat!(stringify!($name), "_", stringify!($form)), $name::per_thread as *const c_void as usize);
    };
}

macro_rules! export {
    ($family:ident $($(#[doc = $doc:literal])+ $id:literal $class:ident $how:ident fn $name:ident ($($p:ident : $kind:ty),* $(,)?) $($form:ident)*;)*) => {
        mod $family {
            use super::*;
            $(mod $name {
                use super::*;
                #[unsafe(export_name = stringify!($name))]
                pub(super) unsafe extern "C" fn entry($($p: <$kind as Arg>::C),*) -> Code {
                    logged! { $how $family $name false ($($p : $kind),*) }
                }
                per_thread! { [$($form)*] $how $family $name ($($p : $kind),*) }
            })*
            pub(super) fn enlist(to: &mut HashMap<&'static str, usize>) {
                $(
                    to.insert(stringify!($name), $name::entry as *const c_void as usize);
                    enlist! { to $name [$($form)*] }
                )*
            }
        }
    };
}

macro_rules! export_device { ($($rows:tt)*) => { export! { device $($rows)* } }; }
macro_rules! export_context { ($($rows:tt)*) => { export! { context $($rows)* } }; }
macro_rules! export_memory { ($($rows:tt)*) => { export! { memory $($rows)* } }; }
macro_rules! export_stream { ($($rows:tt)*) => { export! { stream $($rows)* } }; }
macro_rules! export_module { ($($rows:tt)*) => { export! { module $($rows)* } }; }
macro_rules! export_launch { ($($rows:tt)*) => { export! { launch $($rows)* } }; }
macro_rules! export_vmm { ($($rows:tt)*) => { export! { vmm $($rows)* } }; }
macro_rules! export_graph { ($($rows:tt)*) => { export! { graph $($rows)* } }; }
macro_rules! export_refused { ($($rows:tt)*) => { export! { refused $($rows)* } }; }
macro_rules! export_array { ($($rows:tt)*) => { export! { array $($rows)* } }; }

cuda_api::for_each_device_call!(export_device);
cuda_api::for_each_context_call!(export_context);
cuda_api::for_each_memory_call!(export_memory);
cuda_api::for_each_stream_call!(export_stream);
cuda_api::for_each_module_call!(export_module);
cuda_api::for_each_launch_call!(export_launch);
cuda_api::for_each_vmm_call!(export_vmm);
cuda_api::for_each_graph_call!(export_graph);
cuda_api::for_each_refused_call!(export_refused);
cuda_api::for_each_array_call!(export_array);

/// Identifies this library: `mrcuda` distinguishes a recorder from a driver by this symbol, whatever its path.
#[unsafe(no_mangle)]
pub static mrcuda_shim_version: [u8; env!("CARGO_PKG_VERSION").len()] = {
    let mut text = [0; env!("CARGO_PKG_VERSION").len()];
    let mut i = 0;
    while i < text.len() {
        text[i] = env!("CARGO_PKG_VERSION").as_bytes()[i];
        i += 1;
    }
    text
};

/// Returns whether CUDA has been started in this process: until then the NVML library obtains its information by other means.
#[unsafe(no_mangle)]
pub extern "C" fn mrcuda_shim_started() -> c_int {
    c_int::from(job::get().is_ok())
}

/// Writes the version of the first GPU's driver, for example `580.159.03`, and returns its length; 0 if it is not known.
///
/// # Safety
/// `room` bytes can be written at `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrcuda_shim_driver(to: *mut c_char, room: usize) -> usize {
    let Some(device) = job::opened().and_then(|job| job.devices.first()) else { return 0 };
    let version = &device.info.driver_build;
    if version.len() > room {
        return 0;
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(version.as_ptr().cast(), to, version.len()) };
    version.len()
}

/// Writes the constant `which` (an index of `cuda_api::board::NAMES`) of a GPU to `value`; returns 0 if it is not known.
///
/// # Safety
/// `value` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrcuda_shim_board(ordinal: c_uint, which: c_uint, value: *mut c_uint) -> c_int {
    let known = catch_unwind(|| crate::calls::device::board_constant(ordinal, which)).ok().flatten();
    if let Some(known) = known {
        // SAFETY: as the caller says.
        unsafe { value.write(known) };
    }
    c_int::from(known.is_some())
}

/// The address of an exported symbol.
pub(crate) fn find(symbol: &str) -> Option<*mut c_void> {
    static ALL: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut m = HashMap::new();
        device::enlist(&mut m);
        context::enlist(&mut m);
        memory::enlist(&mut m);
        stream::enlist(&mut m);
        module::enlist(&mut m);
        launch::enlist(&mut m);
        vmm::enlist(&mut m);
        graph::enlist(&mut m);
        refused::enlist(&mut m);
        array::enlist(&mut m);
        m
    });
    all.get(symbol).map(|a| *a as *mut c_void)
}
