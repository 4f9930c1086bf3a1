//! The exported C symbols: one short macro over the rows. Nothing else in this crate is called from outside.

use crate::base::log;
use crate::calls::spare_events;
use crate::enter::{door, end_watched, guard, guard_with_room, outermost};
use crate::job;
use crate::when_full::make_room;
use cuda_api::answer::*;
use cuda_api::arg::*;
use cuda_api::code::{self, Code};
use cuda_api::{answer, calls, sys};
use cuda_model::error_precedence;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::panic::{UnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The functions of `answer`, `irregular` and `bare` rows, by the name of their row.
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
macro_rules! with_precedence {
    ($name:ident ($($p:ident : $kind:ty),* $(,)?) $run:expr) => {{
        let rc = $run;
        if rc == code::SUCCESS {
            rc
        } else {
            let checks = const { calls::checks(stringify!($name)) };
            error_precedence::choose(checks, &[$(number($p)),*], rc, |rc| rc, || job::get().map(drop), crate::job::contexts::check)
        }
    }};
}

/// What a function does, by how its row is executed.
macro_rules! body {
    (bare $family:ident $name:ident $per_thread:literal ($($p:ident : $kind:ty),* $(,)?)) => {
        outermost(stringify!($name), || {
            let _call = DuringCall;
            // SAFETY: the program's own arguments.
            bodies::$name($(unsafe { <$kind as Receive<'_>>::receive($p, &_call) }),*)
        })
    };
    (irregular $family:ident $name:ident $per_thread:literal $params:tt) => {
        with_precedence!($name $params guard_with_room(const { door(stringify!($name)) }, stringify!($name), $per_thread, make_room, |cx| irregular! { cx $name $params }))
    };
    (answer $family:ident $name:ident $per_thread:literal $params:tt) => {
        with_precedence!($name $params guard_with_room(const { door(stringify!($name)) }, stringify!($name), $per_thread, make_room, |cx| answer!(cx bodies::$name, $params)))
    };
    (refused $family:ident $name:ident $per_thread:literal $params:tt) => {{
        // Other errors take precedence as in the driver.
        with_precedence!($name $params {
            log::missed(concat!(stringify!($name), " (not supported)").to_owned());
            code::ERROR_NOT_SUPPORTED
        })
    }};
    (send stream cuEventCreate $per_thread:literal ($to:ident : $new:ty, $flags:ident : $value:ty)) => {
        with_precedence!(cuEventCreate ($to : $new, $flags : $value) guard("cuEventCreate", $per_thread, |cx| {
            let call = DuringCall;
            // SAFETY: the program's own argument.
            let to = unsafe { <Writes<sys::CUevent> as Receive<'_>>::receive($to, &call) };
            if spare_events::make_again(cx, to, $flags)? {
                return Ok(());
            }
            row! { cx stream cuEventCreate ($to : $new, $flags : $value) }
        }))
    };
    (send stream cuEventDestroy_v2 $per_thread:literal ($event:ident : $end:ty)) => {
        with_precedence!(cuEventDestroy_v2 ($event : $end) guard("cuEventDestroy_v2", $per_thread, |cx| {
            if spare_events::keep(cx, $event as u64)? {
                return Ok(());
            }
            row! { cx stream cuEventDestroy_v2 ($event : $end) }
        }))
    };
    ($how:ident $family:ident $name:ident $per_thread:literal $params:tt) => {
        with_precedence!($name $params guard(stringify!($name), $per_thread, |cx| row! { cx $family $name $params }))
    };
}

/// Passes the program's arguments to the function of an irregular row.
macro_rules! irregular {
    ($cx:ident $name:ident ($($p:ident : $kind:ty),* $(,)?)) => {{
        let call = DuringCall;
        // SAFETY: the program's own arguments.
        bodies::$name($cx, $(unsafe { <$kind as Receive<'_>>::receive($p, &call) }),*)
    }};
}

/// Carries out a row with the program's arguments.
macro_rules! row {
    ($cx:ident $family:ident $name:ident ($($p:ident : $kind:ty),* $(,)?)) => {{
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
    ($how:ident $family:ident $name:ident $per_thread:literal $params:tt ($($p:ident : $kind:ty),* $(,)?)) => {{
        let watched = log::begin(stringify!($name), stringify!($how));
        let rc = body! { $how $family $name $per_thread $params };
        if let Some(watched) = watched {
            end_watched(&watched, &[$((stringify!($p), number($p))),*], rc);
        }
        rc
    }};
}

/// An exported function. The parameters are given twice: once for their types.
macro_rules! symbol {
    ([$($attribute:tt)*] $function:ident $how:ident $family:ident $name:ident $per_thread:literal $params:tt ($($p:ident : $kind:ty),* $(,)?)) => {
        $($attribute)*
        pub(super) unsafe extern "C" fn $function($($p: <$kind as Param>::C),*) -> Code {
            logged! { $how $family $name $per_thread $params $params }
        }
    };
}

macro_rules! per_thread {
    ([] $($rest:tt)*) => {};
    ([older $($form:ident)*] $($rest:tt)*) => { per_thread! { [$($form)*] $($rest)* } };
    ([ptsz] $how:ident $family:ident $name:ident $params:tt) => {
        symbol! { [#[unsafe(export_name = concat!(stringify!($name), "_ptsz"))]] per_thread $how $family $name true $params $params }
    };
    ([ptds] $how:ident $family:ident $name:ident $params:tt) => {
        symbol! { [#[unsafe(export_name = concat!(stringify!($name), "_ptds"))]] per_thread $how $family $name true $params $params }
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
    ($family:ident $table:ident $(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident $($reason:literal)? fn $name:ident $params:tt $($form:ident)* $([$($checks:tt)*])?;
    )*) => {
        mod $family {
            use super::*;
            $(mod $name {
                use super::*;
                symbol! { [#[unsafe(export_name = stringify!($name))]] entry $how $family $name false $params $params }
                per_thread! { [$($form)*] $how $family $name $params }
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
cuda_api::for_each_call!(export);

macro_rules! enlist_all {
    ($($family:ident)*) => {
        /// Adds the addresses of all exported symbols.
        fn enlist_all(to: &mut HashMap<&'static str, usize>) {
            $($family::enlist(to);)*
        }
    };
}
cuda_api::for_each_family!(enlist_all);

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
    // SAFETY: as the caller says.
    unsafe { write_known(value, || crate::calls::device::board_constant(ordinal, which)) }
}

/// Writes what a GPU measures (a number of `cuda_api::board::Reading`) to `value`; returns 0 if it is not known.
///
/// # Safety
/// `value` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrcuda_shim_reading(ordinal: c_uint, which: c_uint, value: *mut c_uint) -> c_int {
    // SAFETY: as the caller says.
    unsafe { write_known(value, || crate::calls::device::reading(ordinal, which)) }
}

/// Writes what `ask` knows to `value`; returns 0 if it knows nothing.
///
/// # Safety
/// `value` can be written.
unsafe fn write_known(value: *mut c_uint, ask: impl FnOnce() -> Option<u32> + UnwindSafe) -> c_int {
    let known = catch_unwind(ask).ok().flatten();
    if let Some(known) = known {
        // SAFETY: as the caller says.
        unsafe { value.write(known) };
    }
    c_int::from(known.is_some())
}

/// Writes a GPU's free memory in bytes, and a bit for each GPU whose memory it can access; returns the code of an error, which changes neither.
///
/// # Safety
/// Both can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrcuda_shim_changing(ordinal: c_uint, free: *mut u64, peers: *mut u32) -> c_int {
    match catch_unwind(|| crate::calls::device::changing(ordinal)).unwrap_or(Err(code::ERROR_UNKNOWN)) {
        Ok(known) => {
            // SAFETY: as the caller says.
            unsafe {
                free.write(known.0);
                peers.write(known.1);
            }
            code::SUCCESS
        }
        Err(rc) => rc,
    }
}

/// The address of an exported symbol.
pub(crate) fn find(symbol: &str) -> Option<*mut c_void> {
    static ALL: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut m = HashMap::new();
        enlist_all(&mut m);
        m
    });
    all.get(symbol).map(|a| *a as *mut c_void)
}
