//! Argument kinds, which define the meaning of C parameters. A row of [`crate::calls`] lists one kind per parameter.
//!
//! Every kind has a C type ([`Param`]). In a `send` or `wait` row, a kind also defines how a parameter is read from the
//! program ([`Arg::capture`]), what of it is sent ([`Arg::Sent`]), how it is laid out for the driver ([`Arg::stage`],
//! [`Arg::c`]), what comes back ([`Arg::finish`], [`Arg::Returned`]) and how that is written for the program
//! ([`Arg::deliver`]). What kinds mean in an `answer` row is in [`mod@crate::answer`]; what the functions of other rows
//! receive, [`Receive`] says.

use crate::code::{self, Code};
use crate::few::Few;
use crate::handle::{Bindings, Kind, kind};
use crate::launch_args::{ExtraParams, KernelParams};
use crate::pointer::{InOutPtr, InPtr, OutPtr};
use crate::sys;
use crate::wire::Wire;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

/// A type of handle.
pub trait Handle {
    /// Its C type.
    type C: Copy;
    /// The kind of object that it identifies.
    const KIND: Kind;
    /// Another kind that the driver accepts in its place (cudart passes a kernel where a function is wanted).
    const ALSO: Kind = Self::KIND;
    /// Whether it is loaded code or a part of it: handles obtained from code are destroyed with it, and asking for the
    /// same one again returns the same handle.
    const IS_CODE: bool = false;
    /// The handle's number.
    fn number(c: Self::C) -> u64;
    /// The C value of a number.
    fn c(number: u64) -> Self::C;
}

macro_rules! handles {
    ($($name:ident = $c:ty, $kind:ident $(also $also:ident)? $(code $code:literal)?;)*) => {$(
        #[doc = concat!("`", stringify!($c), "`")]
        #[derive(Debug)]
        pub struct $name;
        impl Handle for $name {
            type C = $c;
            const KIND: Kind = Kind::$kind;
            $(const ALSO: Kind = Kind::$also;)?
            $(const IS_CODE: bool = $code;)?
            fn number(c: $c) -> u64 { c as u64 }
            fn c(number: u64) -> $c { number as $c }
        }
    )*};
}
handles! {
    Event = sys::CUevent, Event;
    Stream = sys::CUstream, Stream;
    Module = sys::CUmodule, Module code true;
    Function = sys::CUfunction, Function also Kernel code true;
    Library = sys::CUlibrary, Library code true;
    Kernel = sys::CUkernel, Kernel code true;
    Array = sys::CUarray, Array;
    Mipmap = sys::CUmipmappedArray, Mipmap;
    TextureRef = sys::CUtexref, TextureRef;
    SurfaceRef = sys::CUsurfref, SurfaceRef;
}

/// The operations of the recorder that a kind needs while it reads the program's arguments.
pub trait Capture {
    /// A device.
    type Device;
    /// The device with an ordinal; it does not determine the device of the call.
    fn find_device(&mut self, ordinal: i32) -> Result<Self::Device, Code>;
    /// Creates a handle on the device of this call.
    fn new_handle(&mut self, kind: Kind) -> Result<u64, Code>;
    /// Checks that `number` is a live handle of one of two kinds; it determines the device of the call.
    fn use_handle(&mut self, kind: Kind, also: Kind, number: u64) -> Result<u64, Code>;
    /// Checks a device ordinal; it determines the device of the call.
    fn use_device(&mut self, ordinal: i32) -> Result<(), Code>;
    /// Resolves a stream argument: a live stream, or [`LEGACY`].
    fn use_stream(&mut self, number: u64) -> Result<u64, Code>;
}

/// The encoded legacy default stream, equal to `CU_STREAM_LEGACY`.
pub const LEGACY: u64 = 1;

/// What messages call a stream.
pub fn stream_name(stream: u64) -> String {
    if stream == LEGACY { "the default stream".to_owned() } else { format!("stream {stream:#x}") }
}

/// The handles that a call creates, destroys and uses, from which the journal computes its live set.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Edges {
    /// Handles that the call creates.
    pub creates: Few,
    /// The handle that the call destroys.
    pub ends: Option<u64>,
    /// Handles that the call affects.
    pub uses: Few,
}

/// One parameter.
pub trait Param {
    /// Type at the C boundary (enums as integers: a program may pass anything).
    type C: Copy;
    /// Type in CUDA's header, compared with the bindings at compile time.
    type Check;
}

/// A parameter of a `send` or `wait` row.
pub trait Arg: Param {
    /// The encoded form that is sent.
    type Sent: Wire;
    /// The form that is passed to the driver.
    type Staged;
    /// The encoded form that is returned.
    type Returned: Wire;
    /// True if the program reads a result that only the place knows.
    const WRITES_BACK: bool = false;
    /// See [`Handle::IS_CODE`].
    const IS_CODE: bool = false;
    /// True if the call creates or destroys this handle.
    const BINDS: bool = false;
    /// Reads the program's argument.
    ///
    /// # Safety
    /// `c` is the program's argument for this parameter.
    unsafe fn capture(c: Self::C, cx: &mut impl Capture) -> Result<Self::Sent, Code>;
    /// Lays the argument out for the driver of a place.
    fn stage(sent: &Self::Sent, h: &Bindings) -> Result<Self::Staged, Code>;
    /// The value for the driver; valid while `staged` is.
    fn c(staged: &mut Self::Staged) -> Self::C;
    /// Takes the driver's results after a call that returned `rc`.
    fn finish(staged: Self::Staged, sent: &Self::Sent, h: &Bindings, rc: Code) -> Self::Returned;
    /// Writes the results for the program.
    ///
    /// # Safety
    /// `c` is the program's argument, and the call has succeeded.
    unsafe fn deliver(sent: &Self::Sent, returned: &Self::Returned, c: Self::C);
    /// Adds the journal's edges of this argument.
    fn edges(_sent: &Self::Sent, _e: &mut Edges) {}
    /// Which of several settings the call makes, if this argument says so.
    fn key(_sent: &Self::Sent) -> Option<u32> {
        None
    }
    /// Replaces the handle that the call would have created by `handle`.
    fn rename(_sent: &mut Self::Sent, _handle: u64) {}
}

macro_rules! markers { ($($(#[$m:meta])* $n:ident)*) => {$( $(#[$m])* #[derive(Debug)] pub struct $n<T>(PhantomData<T>); )*}; }
markers! {
    /// A value other than an address.
    Val
    /// An enum by value.
    Enum
    /// As [`Enum`], where it says which of several settings the call makes: a later call replaces only that one.
    KeyEnum
    /// An output. In a `send` or `wait` row the driver decides what null means.
    Out
    /// An output enum, likewise.
    OutEnum
    /// A parameter of an irregular function, of which only the C type is known.
    Raw
    /// As [`Raw`], an enum by value.
    RawEnum
    /// A pointer through which an irregular function reads ([`InPtr`]).
    Reads
    /// As [`Reads`], if it is not `const`.
    ReadsMut
    /// A pointer through which an irregular function writes ([`OutPtr`]).
    Writes
    /// A pointer through which an irregular function reads and writes ([`InOutPtr`]).
    Updates
    /// A struct of two 32-bit words by value, in C's calling convention.
    Pair
    /// Creates a handle; its number is sent with the request, nothing is returned.
    New
    /// A live handle.
    Use
    /// Destroys a handle.
    End
}
/// A stream, or one of the default streams.
#[derive(Debug)]
pub struct StreamArg;
/// A NUL-terminated string.
#[derive(Debug)]
pub struct Str;
/// A device ordinal, which determines the device of the call; at the place every device is number 0 (one process, one
/// GPU).
#[derive(Debug)]
pub struct DeviceArg;

/// A number that is passed by value and cannot be an address: in CUDA's header, device addresses are 64-bit integers
/// (`CUdeviceptr`), and sizes have their own type. A row with an address by value therefore does not compile as
/// [`Val`]; its kind must make the place check the address (executor/src/executor/checker.rs).
pub trait Number: Copy + Wire {}
impl Number for c_int {}
impl Number for c_uint {}
impl Number for usize {}

impl<T: Copy> Param for Val<T> {
    type C = T;
    type Check = T;
}
impl<T: Number> Arg for Val<T> {
    type Sent = T;
    type Staged = T;
    type Returned = ();
    unsafe fn capture(c: T, _: &mut impl Capture) -> Result<T, Code> {
        Ok(c)
    }
    fn stage(sent: &T, _: &Bindings) -> Result<T, Code> {
        Ok(*sent)
    }
    fn c(staged: &mut T) -> T {
        *staged
    }
    fn finish(_: T, _: &T, _: &Bindings, _: Code) {}
    unsafe fn deliver(_: &T, (): &(), _: T) {}
}

macro_rules! enum_in {
    ($kind:ident, $key:expr) => {
        impl<E> Param for $kind<E> {
            type C = u32;
            type Check = E;
        }
        impl<E> Arg for $kind<E> {
            type Sent = u32;
            type Staged = u32;
            type Returned = ();
            unsafe fn capture(c: u32, _: &mut impl Capture) -> Result<u32, Code> {
                Ok(c)
            }
            fn stage(sent: &u32, _: &Bindings) -> Result<u32, Code> {
                Ok(*sent)
            }
            fn c(staged: &mut u32) -> u32 {
                *staged
            }
            fn finish(_: u32, _: &u32, _: &Bindings, _: Code) {}
            unsafe fn deliver(_: &u32, (): &(), _: u32) {}
            fn key(sent: &u32) -> Option<u32> {
                let f: fn(u32) -> Option<u32> = $key;
                f(*sent)
            }
        }
    };
}
enum_in!(Enum, |_| None);
enum_in!(KeyEnum, Some);

macro_rules! out_kind {
    ($kind:ident, $t:ident: $($bound:path),*; $c:ty) => {
        impl<$t $(: $bound)*> Arg for $kind<$t> {
            type Sent = bool;
            type Staged = Option<$c>;
            type Returned = Option<$c>;
            const WRITES_BACK: bool = true;
            unsafe fn capture(c: *mut $c, _: &mut impl Capture) -> Result<bool, Code> {
                Ok(!c.is_null())
            }
            fn stage(sent: &bool, _: &Bindings) -> Result<Option<$c>, Code> {
                Ok(sent.then(Default::default))
            }
            fn c(staged: &mut Option<$c>) -> *mut $c {
                staged.as_mut().map_or(std::ptr::null_mut(), |v| v)
            }
            fn finish(staged: Option<$c>, _: &bool, _: &Bindings, _: Code) -> Option<$c> {
                staged
            }
            unsafe fn deliver(_: &bool, returned: &Option<$c>, c: *mut $c) {
                if let (Some(v), false) = (returned, c.is_null()) {
                    // SAFETY: the program's non-null output pointers are writable (contract of `deliver`).
                    unsafe { c.write(*v) }
                }
            }
        }
    };
}
/// A plain value that outputs can hold.
pub trait Pod: Copy + Default + Wire {}
impl<T: Copy + Default + Wire> Pod for T {}
impl<T: Copy> Param for Out<T> {
    type C = *mut T;
    type Check = *mut T;
}
impl<E> Param for OutEnum<E> {
    type C = *mut u32;
    type Check = *mut E;
}
out_kind!(Out, T: Pod; T);
out_kind!(OutEnum, E: ; u32);

impl<T: Copy> Param for Raw<T> {
    type C = T;
    type Check = T;
}

impl<E> Param for RawEnum<E> {
    type C = u32;
    type Check = E;
}

impl<E> Param for Pair<E> {
    type C = u64;
    type Check = E;
}

/// A parameter of an irregular or bare function, which receives C's value of a number or a handle, and a pointer as a type
/// of [`crate::pointer`]. `'a` is the call.
pub trait Receive<'a>: Param {
    /// What the function receives.
    type Value;
    /// Converts the program's argument.
    ///
    /// # Safety
    /// `c` is the program's argument for this parameter.
    unsafe fn receive(c: Self::C, call: &'a DuringCall) -> Self::Value;
}

/// Lives as long as a call: what a function receives must not outlive it.
#[derive(Debug)]
pub struct DuringCall;

impl<T: Copy> Receive<'_> for Raw<T> {
    type Value = T;
    #[inline]
    unsafe fn receive(c: T, _: &DuringCall) -> T {
        c
    }
}

impl<E> Receive<'_> for RawEnum<E> {
    type Value = u32;
    #[inline]
    unsafe fn receive(c: u32, _: &DuringCall) -> u32 {
        c
    }
}

macro_rules! pointers {
    ($($kind:ident $c:ty, $value:ident;)*) => {$(
        impl<T> Param for $kind<T> {
            type C = $c;
            type Check = $c;
        }
        impl<'a, T: 'a> Receive<'a> for $kind<T> {
            type Value = $value<'a, T>;
            #[inline]
            unsafe fn receive(c: $c, _: &'a DuringCall) -> $value<'a, T> {
                // SAFETY: the program's argument, which is valid during the call as the row says: CUDA's contract.
                unsafe { $value::new(c) }
            }
        }
    )*};
}
pointers! {
    Reads *const T, InPtr;
    ReadsMut *mut T, InPtr;
    Writes *mut T, OutPtr;
    Updates *mut T, InOutPtr;
}

/// As the kind of pointer `K`, to memory that the program keeps valid until it destroys what the function creates.
#[derive(Debug)]
pub struct Kept<K>(PhantomData<K>);

impl<K: Param> Param for Kept<K> {
    type C = K::C;
    type Check = K::Check;
}
impl<K: Receive<'static>> Receive<'_> for Kept<K> {
    type Value = K::Value;
    #[inline]
    unsafe fn receive(c: K::C, _: &DuringCall) -> K::Value {
        // SAFETY: the program's argument, which CUDA's contract keeps valid as long as it is used.
        unsafe { K::receive(c, &DuringCall) }
    }
}

/// The array of pointers to a kernel's parameters.
#[derive(Debug)]
pub struct ParamList;
/// The array `extra` of a launch.
#[derive(Debug)]
pub struct ExtraList;

macro_rules! of_launches {
    ($($kind:ident $value:ident;)*) => {$(
        impl Param for $kind {
            type C = *mut *mut c_void;
            type Check = *mut *mut c_void;
        }
        impl<'a> Receive<'a> for $kind {
            type Value = $value<'a>;
            #[inline]
            unsafe fn receive(c: *mut *mut c_void, _: &'a DuringCall) -> $value<'a> {
                // SAFETY: the program's argument, which is valid during the call: CUDA's contract for a launch.
                unsafe { $value::new(c) }
            }
        }
    )*};
}
of_launches! {
    ParamList KernelParams;
    ExtraList ExtraParams;
}

impl<H: Handle> Param for New<H> {
    type C = *mut H::C;
    type Check = *mut H::C;
}
impl<H: Handle> Arg for New<H> {
    type Sent = u64;
    type Staged = H::C;
    type Returned = ();
    const IS_CODE: bool = H::IS_CODE;
    const BINDS: bool = true;
    unsafe fn capture(c: *mut H::C, cx: &mut impl Capture) -> Result<u64, Code> {
        if c.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        cx.new_handle(H::KIND)
    }
    fn stage(sent: &u64, _: &Bindings) -> Result<H::C, Code> {
        // Under a number of another kind, the driver's value would be interpreted as that kind.
        if kind(*sent) == Some(H::KIND) { Ok(H::c(0)) } else { Err(code::ERROR_INVALID_HANDLE) }
    }
    fn c(staged: &mut H::C) -> *mut H::C {
        staged
    }
    fn finish(staged: H::C, sent: &u64, h: &Bindings, rc: Code) {
        if rc == code::SUCCESS { h.bind(*sent, H::number(staged)) } else { h.bind_failed(*sent, rc) }
    }
    unsafe fn deliver(sent: &u64, (): &(), c: *mut H::C) {
        // SAFETY: not null (`capture`), and the program's output pointers are writable (contract).
        unsafe { c.write(H::c(*sent)) }
    }
    fn edges(sent: &u64, e: &mut Edges) {
        e.creates.push(*sent);
    }
    fn rename(sent: &mut u64, handle: u64) {
        *sent = handle;
    }
}

macro_rules! handle_in {
    ($kind:ident, $binds:literal, $finish:expr, $edges:expr) => {
        impl<H: Handle> Param for $kind<H> {
            type C = H::C;
            type Check = H::C;
        }
        impl<H: Handle> Arg for $kind<H> {
            type Sent = u64;
            type Staged = H::C;
            type Returned = ();
            const IS_CODE: bool = H::IS_CODE;
            const BINDS: bool = $binds;
            unsafe fn capture(c: H::C, cx: &mut impl Capture) -> Result<u64, Code> {
                cx.use_handle(H::KIND, H::ALSO, H::number(c))
            }
            fn stage(sent: &u64, h: &Bindings) -> Result<H::C, Code> {
                let wanted = if kind(*sent) == Some(H::ALSO) { H::ALSO } else { H::KIND };
                h.live(wanted, *sent).map(H::c)
            }
            fn c(staged: &mut H::C) -> H::C {
                *staged
            }
            fn finish(_: H::C, sent: &u64, h: &Bindings, rc: Code) {
                let f: fn(u64, &Bindings, Code) = $finish;
                f(*sent, h, rc);
            }
            unsafe fn deliver(_: &u64, (): &(), _: H::C) {}
            fn edges(sent: &u64, e: &mut Edges) {
                let f: fn(u64, &mut Edges) = $edges;
                f(*sent, e);
            }
        }
    };
}
handle_in!(Use, false, |_, _, _| {}, |n, e| e.uses.push(n));
handle_in!(
    End,
    true,
    |n, h, rc| if rc == code::SUCCESS {
        h.unbind(n)
    },
    |n, e| e.ends = Some(n)
);

impl Param for StreamArg {
    type C = sys::CUstream;
    type Check = sys::CUstream;
}
impl Arg for StreamArg {
    type Sent = u64;
    type Staged = u64;
    type Returned = ();
    unsafe fn capture(c: sys::CUstream, cx: &mut impl Capture) -> Result<u64, Code> {
        cx.use_stream(c as u64)
    }
    fn stage(sent: &u64, h: &Bindings) -> Result<u64, Code> {
        stage_stream(*sent, h)
    }
    fn c(staged: &mut u64) -> sys::CUstream {
        *staged as sys::CUstream
    }
    fn finish(_: u64, _: &u64, _: &Bindings, _: Code) {}
    unsafe fn deliver(_: &u64, (): &(), _: sys::CUstream) {}
}

/// The encoded form of the driver's value of a stream.
#[inline]
pub fn stage_stream(sent: u64, h: &Bindings) -> Result<u64, Code> {
    if sent == LEGACY { Ok(LEGACY) } else { h.live(Kind::Stream, sent) }
}

impl Param for Str {
    type C = *const c_char;
    type Check = *const c_char;
}
impl Arg for Str {
    type Sent = Vec<u8>;
    type Staged = CString;
    type Returned = ();
    unsafe fn capture(c: *const c_char, _: &mut impl Capture) -> Result<Vec<u8>, Code> {
        if c.is_null() {
            return Err(code::ERROR_INVALID_VALUE);
        }
        // SAFETY: the program's strings are NUL-terminated by CUDA's contract.
        Ok(unsafe { CStr::from_ptr(c) }.to_bytes().to_vec())
    }
    fn stage(sent: &Vec<u8>, _: &Bindings) -> Result<CString, Code> {
        CString::new(sent.clone()).map_err(|_| code::ERROR_INVALID_VALUE)
    }
    fn c(staged: &mut CString) -> *const c_char {
        staged.as_ptr()
    }
    fn finish(_: CString, _: &Vec<u8>, _: &Bindings, _: Code) {}
    unsafe fn deliver(_: &Vec<u8>, (): &(), _: *const c_char) {}
}

impl Param for DeviceArg {
    type C = sys::CUdevice;
    type Check = sys::CUdevice;
}
impl Arg for DeviceArg {
    type Sent = ();
    type Staged = ();
    type Returned = ();
    unsafe fn capture(c: sys::CUdevice, cx: &mut impl Capture) -> Result<(), Code> {
        cx.use_device(c)
    }
    fn stage((): &(), _: &Bindings) -> Result<(), Code> {
        Ok(())
    }
    fn c((): &mut ()) -> sys::CUdevice {
        0
    }
    fn finish((): (), (): &(), _: &Bindings, _: Code) {}
    unsafe fn deliver((): &(), (): &(), _: sys::CUdevice) {}
}
