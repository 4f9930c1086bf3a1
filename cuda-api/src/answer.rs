//! `answer` rows: what their argument kinds mean.
//!
//! The recorder answers such a function by a Rust function of the same name that sees no pointer: the kinds read its inputs
//! from the program's arguments ([`Input`]), and write what it returns to the program ([`Output`]). The order is always the
//! same: the inputs are read in the row's order; then outputs that must not be null are checked; then the function runs; its
//! results are written if it succeeds. Where the driver checks in another order, the row says so
//! ([`crate::precedence`]).

use crate::arg::{Capture, DeviceArg, Enum, Handle, Out, OutEnum, Pair, Param, Str, StreamArg, Use, Val};
use crate::code::{self, Code};
use crate::pointer::{InPtr, OutPtr, Plain};
use crate::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// An input of an `answer` row. `R` is the call of the library that answers.
pub trait Input<R: ?Sized>: Param {
    /// What the function receives.
    type Value;
    /// Reads the program's argument.
    ///
    /// # Errors
    /// Those of an argument that is not valid.
    ///
    /// # Safety
    /// `c` is the program's argument for this parameter, and `all` are all its arguments as numbers.
    unsafe fn read(c: Self::C, all: &[u64], cx: &mut R) -> Result<Self::Value, Code>;
}

/// An output of an `answer` row.
pub trait Output: Param {
    /// What the function returns.
    type Value;
    /// Checks the pointer before the function runs.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the function cannot write to it.
    ///
    /// # Safety
    /// As for [`Input::read`].
    unsafe fn check(c: Self::C, all: &[u64]) -> Result<(), Code>;
    /// Writes the result.
    ///
    /// # Safety
    /// As for [`Input::read`], and `check` has succeeded.
    unsafe fn write(c: Self::C, all: &[u64], value: Self::Value);
}

macro_rules! kinds { ($($(#[$m:meta])* $n:ident)*) => {$( $(#[$m])* #[derive(Debug)] pub struct $n<T>(PhantomData<T>); )*}; }
kinds! {
    /// A handle or another number that identifies something: the function looks it up.
    HandleArg
    /// The length of an array, which the array's kind uses.
    Len
    /// A structure of cuda.h that must not be null.
    In
    /// As [`In`], behind a pointer that is not `const`.
    InMut
    /// As [`In`]; null means none.
    InOpt
    /// A value behind a pointer to `void`.
    InVoid
    /// A structure of cuda.h that is read and then written.
    InOut
    /// A handle or another number that identifies something.
    OutHandle
    /// As [`OutHandle`]; a call that fails writes null.
    OutHandleOrNull
    /// A structure of cuda.h.
    OutStruct
    /// An output behind a pointer to `void`.
    OutVoid
    /// As [`Out`]; the pointer may be null.
    OutOpt
    /// As [`OutEnum`]; the pointer may be null.
    OutEnumOpt
    /// As [`OutHandle`]; the pointer may be null.
    OutHandleOpt
}

/// A device address.
#[derive(Debug)]
pub struct Address;
/// An address in the program's memory, which the function does not access.
#[derive(Debug)]
pub struct HostAddress;
/// An array of which the parameter `LEN` is the length.
#[derive(Debug)]
pub struct InSlice<T, const LEN: usize>(PhantomData<T>);
/// As [`InSlice`]; null means none.
#[derive(Debug)]
pub struct InSliceOpt<T, const LEN: usize>(PhantomData<T>);
/// An array of `N` elements.
#[derive(Debug)]
pub struct InArray<T, const N: usize>(PhantomData<T>);
/// An array of `N` elements.
#[derive(Debug)]
pub struct OutArray<T, const N: usize>(PhantomData<T>);
/// A NUL-terminated text that is not freed.
#[derive(Debug)]
pub struct OutStr;
/// A buffer for a NUL-terminated text, which is cut to fit; the parameter `LEN` is its size.
#[derive(Debug)]
pub struct OutText<const LEN: usize>;

/// A structure of cuda.h, or an element of an array, that the program passes.
pub trait ReadStruct: Copy {
    /// What the function receives: plain values, with enums as numbers, since a C program can store any value.
    type Value;
    /// Reads it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null and for contents that are not valid.
    fn read(p: InPtr<Self>) -> Result<Self::Value, Code>;
}

/// A structure of cuda.h that the program receives.
pub trait WriteStruct: Copy {
    /// What the function returns.
    type Value;
    /// Writes it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    fn write(to: OutPtr<Self>, value: &Self::Value) -> Result<(), Code>;
}

/// Structures of cuda.h by the functions that read or write them.
macro_rules! structs {
    (read $($c:ident as $value:ty = $read:expr;)*) => {$(
        impl $crate::answer::ReadStruct for $crate::sys::$c {
            type Value = $value;
            fn read(p: $crate::pointer::InPtr<Self>) -> Result<$value, $crate::code::Code> {
                $read(p)
            }
        }
    )*};
    (write $($c:ident as $value:ty = $write:expr;)*) => {$(
        impl $crate::answer::WriteStruct for $crate::sys::$c {
            type Value = $value;
            fn write(to: $crate::pointer::OutPtr<Self>, value: &$value) -> Result<(), $crate::code::Code> {
                $write(to, value)
            }
        }
    )*};
}
pub(crate) use structs;

macro_rules! plain {
    ($($t:ty)*) => {$(
        impl ReadStruct for $t {
            type Value = $t;
            fn read(p: InPtr<$t>) -> Result<$t, Code> {
                p.read()
            }
        }
    )*};
}
plain! { u32 i32 u64 f32 usize }

impl ReadStruct for sys::CUgraphNode {
    type Value = u64;
    fn read(p: InPtr<Self>) -> Result<u64, Code> {
        p.cast().read()
    }
}

macro_rules! inputs {
    ($([$($g:tt)*] $kind:ty, $r:ty, $c:ty, $check:ty => $value:ty, |$p:ident, $all:ident, $cx:ident| $read:expr;)*) => {$(
        impl<$($g)*> Param for $kind {
            type C = $c;
            type Check = $check;
        }
        inputs! { @ [R: ?Sized, $($g)*] $kind, R => $value, |$p, $all, $cx| $read }
    )*};
    (pointers $([$($g:tt)*] $kind:ty, $r:ty, $c:ty, $check:ty => $value:ty, |$p:ident, $all:ident, $cx:ident| $read:expr;)*) => {$(
        impl<$($g)*> Param for $kind {
            type C = $c;
            type Check = $check;
        }
        inputs! { @pointer [R: ?Sized, $($g)*] $kind, R => $value, |$p, $all, $cx| $read }
    )*};
    (@pointer [$($g:tt)*] $kind:ty, $r:ty => $value:ty, |$p:ident, $all:ident, $cx:ident| $read:expr) => {
        inputs! { @ [$($g)*] $kind, $r => $value, |$p, $all, $cx| {
            // SAFETY: the program's argument, which is valid during the call (contract of `read`).
            let $p = unsafe { InPtr::new($p) };
            $read
        } }
    };
    (@ [$($g:tt)*] $kind:ty, $r:ty => $value:ty, |$p:ident, $all:ident, $cx:ident| $read:expr) => {
        impl<$($g)*> Input<$r> for $kind {
            type Value = $value;
            #[inline]
            unsafe fn read($p: Self::C, $all: &[u64], $cx: &mut $r) -> Result<$value, Code> {
                let _ = ($all, &$cx);
                $read
            }
        }
    };
}
inputs! { @ [R: ?Sized, T: Copy] Val<T>, R => T, |c, _all, _cx| Ok(c) }
inputs! { @ [R: ?Sized, E] Enum<E>, R => u32, |c, _all, _cx| Ok(c) }
inputs! { @ [R: ?Sized, E] Pair<E>, R => u64, |c, _all, _cx| Ok(c) }
inputs! { @pointer [R: ?Sized] Str, R => String, |c, _all, _cx| c.text() }
inputs! { @ [R: Capture] StreamArg, R => u64, |c, _all, cx| cx.use_stream(c as u64) }
inputs! { @ [R: Capture] DeviceArg, R => R::Device, |c, _all, cx| cx.find_device(c) }
inputs! { @ [R: Capture, H: Handle] Use<H>, R => u64, |c, _all, cx| cx.use_handle(H::KIND, H::ALSO, H::number(c)) }
inputs! {
    [T: Copy] HandleArg<T>, R, T, T => u64, |c, _all, _cx| Ok(number(c));
    [] Address, R, sys::CUdeviceptr, sys::CUdeviceptr => u64, |c, _all, _cx| Ok(c);
    [] HostAddress, R, *mut c_void, *mut c_void => u64, |c, _all, _cx| Ok(c as u64);
}
inputs! { pointers
    [T: ReadStruct] In<T>, R, *const T, *const T => T::Value, |c, _all, _cx| T::read(c);
    [T: ReadStruct] InMut<T>, R, *mut T, *mut T => T::Value, |c, _all, _cx| T::read(c);
    [T: ReadStruct] InOpt<T>, R, *const T, *const T => Option<T::Value>, |c, _all, _cx| {
        if c.is_null() { Ok(None) } else { T::read(c).map(Some) }
    };
    [T: ReadStruct] InVoid<T>, R, *mut c_void, *mut c_void => T::Value, |c, _all, _cx| T::read(c.typed());
    [T: ReadStruct + WriteStruct] InOut<T>, R, *mut T, *mut T => <T as ReadStruct>::Value, |c, _all, _cx| T::read(c);
    [T: ReadStruct, const LEN: usize] InSlice<T, LEN>, R, *const T, *const T => Vec<T::Value>, |c, all, _cx| {
        elements(c, all[LEN])
    };
    [T: ReadStruct, const LEN: usize] InSliceOpt<T, LEN>, R, *const T, *const T => Option<Vec<T::Value>>, |c, all, _cx| {
        if c.is_null() { Ok(None) } else { elements(c, all[LEN]).map(Some) }
    };
    [T: Plain, const N: usize] InArray<T, N>, R, *mut T, *mut T => [T; N], |c, _all, _cx| c.array().read();
}
impl<T: Copy> Param for Len<T> {
    type C = T;
    type Check = T;
}

/// An array, element by element.
fn elements<T: ReadStruct>(from: InPtr<T>, count: u64) -> Result<Vec<T::Value>, Code> {
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    // Before any element is read.
    if count > 0 && (from.is_null() || count > isize::MAX as usize / size_of::<T>().max(1)) {
        return Err(INVALID);
    }
    (0..count).map(|i| T::read(from.element(i))).collect()
}

macro_rules! outputs {
    ($([$($g:tt)*] $kind:ty, $c:ty, $check:ty;)*) => {$(
        impl<$($g)*> Param for $kind {
            type C = $c;
            type Check = $check;
        }
    )*};
    ($([$($g:tt)*] $kind:ty => $value:ty, |$p:ident, $all:ident| $check:expr, |$v:ident| $write:expr;)*) => {$(
        impl<$($g)*> Output for $kind {
            type Value = $value;
            #[inline]
            unsafe fn check($p: Self::C, $all: &[u64]) -> Result<(), Code> {
                // SAFETY: the program's argument, which is valid during the call (contract).
                let $p = unsafe { OutPtr::new($p) };
                let _ = ($all, $p);
                $check
            }
            #[inline]
            unsafe fn write($p: Self::C, $all: &[u64], $v: $value) {
                // SAFETY: as above.
                let $p = unsafe { OutPtr::new($p) };
                let _ = $all;
                // `check` has refused a null pointer where it is an error.
                let _ = $write;
            }
        }
    )*};
}
outputs! {
    [T: Copy] OutHandle<T>, *mut T, *mut T;
    [T: Copy] OutHandleOrNull<T>, *mut T, *mut T;
    [T: WriteStruct] OutStruct<T>, *mut T, *mut T;
    [T: Copy] OutVoid<T>, *mut c_void, *mut c_void;
    [T: Copy] OutOpt<T>, *mut T, *mut T;
    [E] OutEnumOpt<E>, *mut u32, *mut E;
    [T: Copy] OutHandleOpt<T>, *mut T, *mut T;
    [T: Copy, const N: usize] OutArray<T, N>, *mut T, *mut T;
    [] OutStr, *mut *const c_char, *mut *const c_char;
    [const LEN: usize] OutText<LEN>, *mut c_char, *mut c_char;
}
outputs! {
    [T: Copy] Out<T> => T, |c, _all| c.not_null().map(drop), |v| c.write(v);
    [E] OutEnum<E> => u32, |c, _all| c.not_null().map(drop), |v| c.write(v);
    [T: Copy] OutHandle<T> => u64, |c, _all| c.not_null().map(drop), |v| write_handle(c, v);
    [T: Copy] OutHandleOrNull<T> => u64, |c, _all| c.not_null().map(|c| write_handle(c, 0)), |v| write_handle(c, v);
    [T: WriteStruct] OutStruct<T> => T::Value, |c, _all| c.not_null().map(drop), |v| T::write(c, &v);
    [T: ReadStruct + WriteStruct] InOut<T> => <T as WriteStruct>::Value, |c, _all| Ok(()), |v| T::write(c, &v);
    [T: Copy] OutVoid<T> => T, |c, _all| c.not_null().map(drop), |v| c.typed().write(v);
    [T: Copy] OutOpt<T> => T, |c, _all| Ok(()), |v| c.write_if_wanted(v);
    [E] OutEnumOpt<E> => u32, |c, _all| Ok(()), |v| c.write_if_wanted(v);
    [T: Copy] OutHandleOpt<T> => u64, |c, _all| Ok(()), |v| write_handle(c, v);
    [T: Copy, const N: usize] OutArray<T, N> => [T; N], |c, _all| c.not_null().map(drop), |v| c.array().write(v);
    [] OutStr => &'static CStr, |c, _all| c.not_null().map(drop), |v| c.write(v.as_ptr());
    [const LEN: usize] OutText<LEN> => String, |c, all| c.not_null().and(room::<LEN>(all).map(drop)), |v| {
        room::<LEN>(all).and_then(|room| write_text(c, room, &v))
    };
}

/// Writes a handle, which is a number of the type's size, unless it is not wanted.
fn write_handle<T: Copy>(to: OutPtr<T>, handle: u64) {
    const { assert!(size_of::<T>() == size_of::<u64>()) };
    to.cast::<u64>().write_if_wanted(handle);
}

/// Bytes of a text's buffer, at least one.
fn room<const LEN: usize>(all: &[u64]) -> Result<usize, Code> {
    // The parameter is a C integer.
    usize::try_from(all[LEN] as c_int).ok().filter(|n| *n > 0).ok_or(INVALID)
}

/// Writes what fits of a text, and its NUL.
fn write_text(to: OutPtr<c_char>, room: usize, value: &str) -> Result<(), Code> {
    let n = value.len().min(room - 1);
    to.cast::<u8>().write_list(&value.as_bytes()[..n])?;
    to.element(n).write(0)
}

/// An argument as a number; one that is larger than a number counts as not zero.
#[inline]
pub fn number<T: Copy>(value: T) -> u64 {
    if size_of::<T>() > size_of::<u64>() {
        return u64::MAX;
    }
    let mut bytes = [0; 8];
    // SAFETY: a C argument of this size is an integer, a pointer or a pair of integers, which have no padding; it fits.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), size_of::<T>()) };
    u64::from_ne_bytes(bytes)
}

/// The program's pointer for an output.
#[derive(Debug)]
pub struct Slot<'a, K: Output> {
    c: K::C,
    all: &'a [u64],
}

impl<'a, K: Output> Slot<'a, K> {
    /// The pointer for an output of the row.
    ///
    /// # Safety
    /// `c` is the program's argument for this parameter, and `all` are all its arguments as numbers.
    #[inline]
    pub unsafe fn new(c: K::C, all: &'a [u64]) -> Self {
        Slot { c, all }
    }
}

/// The program's pointers for all outputs of a row.
pub trait Slots {
    /// What the function returns: nothing, a value, or a tuple of them.
    type Values;
    /// Checks the pointers.
    ///
    /// # Errors
    /// `INVALID_VALUE`
    fn check(&self) -> Result<(), Code>;
    /// Writes the results.
    fn write(self, values: Self::Values);
}

macro_rules! slots {
    ($($pattern:pat => $values:ty, ($($k:ident $slot:ident $value:ident),*);)*) => {$(
        #[allow(unused_parens)]
        impl<'a, $($k: Output),*> Slots for ($(Slot<'a, $k>,)*) {
            type Values = $values;
            #[inline]
            fn check(&self) -> Result<(), Code> {
                let ($($slot,)*) = self;
                // SAFETY: as the slots were made.
                $(unsafe { $k::check($slot.c, $slot.all) }?;)*
                Ok(())
            }
            #[inline]
            fn write(self, $pattern: $values) {
                let ($($slot,)*) = self;
                // SAFETY: as the slots were made; `check` has succeeded, or the outputs may be null.
                $(unsafe { $k::write($slot.c, $slot.all, $value) };)*
            }
        }
    )*};
}
impl Slots for () {
    type Values = ();
    #[inline]
    fn check(&self) -> Result<(), Code> {
        Ok(())
    }
    #[inline]
    fn write(self, (): ()) {}
}
slots! {
    v => A::Value, (A a v);
    (v, w) => (A::Value, B::Value), (A a v, B b w);
    (v, w, x) => (A::Value, B::Value, C::Value), (A a v, B b w, C c x);
}

/// Answers a call of an `answer` row by the function `$f`: reads its inputs, checks its outputs, writes its results.
/// Outputs are the kinds whose names begin with `Out`, and `InOut`.
#[macro_export]
macro_rules! answer {
    ($cx:ident $f:path, ($($params:tt)*)) => {
        $crate::answer!(@ $cx $f, [] [] [] $($params)*)
    };
    // An output.
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : Out<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::arg::Out<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutEnum<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::arg::OutEnum<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutHandle<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutHandle<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutHandleOrNull<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutHandleOrNull<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutStruct<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutStruct<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutVoid<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutVoid<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutOpt<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutOpt<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutEnumOpt<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutEnumOpt<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutHandleOpt<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutHandleOpt<$t>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutArray<$t:ty, $n:literal> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutArray<$t, $n>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutStr $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutStr)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : OutText<$n:literal> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)* ($p $crate::answer::OutText<$n>)] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : InOut<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)* ($p $crate::answer::InOut<$t>)] [$($o)* ($p $crate::answer::InOut<$t>)] $($($rest)*)?)
    };
    // A length is only for the arrays.
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : Len<$t:ty> $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)*] [$($o)*] $($($rest)*)?)
    };
    // An input.
    (@ $cx:ident $f:path, [$($a:ident)*] [$($i:tt)*] [$($o:tt)*] $p:ident : $kind:ty $(, $($rest:tt)*)?) => {
        $crate::answer!(@ $cx $f, [$($a)* $p] [$($i)* ($p $kind)] [$($o)*] $($($rest)*)?)
    };
    (@ $cx:ident $f:path, [$($a:ident)*] [$(($i:ident $input:ty))*] [$(($o:ident $output:ty))*]) => {{
        let all: &[u64] = &[$($crate::answer::number($a)),*];
        // SAFETY: the program's own arguments.
        let to = ($(unsafe { $crate::answer::Slot::<$output>::new($o, all) },)*);
        // SAFETY: the program's own arguments.
        $(let $i = unsafe { <$input as $crate::answer::Input<_>>::read($i, all, &mut *$cx) }?;)*
        $crate::answer::Slots::check(&to)?;
        let values = $f($cx, $($i),*)?;
        $crate::answer::Slots::write(to, values);
        let _ = all;
        Ok(())
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    type Got = Result<(), Code>;

    fn sum(_: &mut (), base: u32, parts: Vec<u32>) -> Result<(u64, u32), Code> {
        if parts.is_empty() { Err(code::ERROR_NOT_READY) } else { Ok((u64::from(base + parts.iter().sum::<u32>()), base)) }
    }

    fn name(_: &mut (), room: c_int) -> Result<String, Code> {
        Ok(format!("a buffer of {room}"))
    }

    fn doubled(_: &mut (), number: u64) -> Result<u64, Code> {
        Ok(2 * number)
    }

    fn call_sum(to: *mut u64, base: *mut u32, from: u32, parts: *const u32, count: usize) -> Got {
        let cx = &mut ();
        answer!(cx sum, (to: Out<u64>, base: OutOpt<u32>, from: Val<u32>, parts: InSlice<u32, 4>, count: Len<usize>))
    }

    #[test]
    fn inputs_are_read_and_results_are_written() {
        let (mut total, mut base, parts) = (0, 0, [1, 2, 3]);
        assert_eq!(call_sum(&raw mut total, &raw mut base, 10, parts.as_ptr(), 3), Ok(()));
        assert_eq!((total, base), (16, 10));
        assert_eq!(call_sum(&raw mut total, std::ptr::null_mut(), 1, parts.as_ptr(), 2), Ok(()), "an optional output");
        assert_eq!(total, 4);
    }

    #[test]
    fn errors_come_in_order_and_nothing_is_written() {
        let (mut total, null) = (7, std::ptr::null());
        assert_eq!(call_sum(&raw mut total, std::ptr::null_mut(), 1, null, 1), Err(INVALID), "an array that is null");
        assert_eq!(call_sum(std::ptr::null_mut(), std::ptr::null_mut(), 1, null, 0), Err(INVALID), "before the function runs");
        assert_eq!(call_sum(&raw mut total, std::ptr::null_mut(), 1, null, 0), Err(code::ERROR_NOT_READY));
        assert_eq!(total, 7);
    }

    #[test]
    fn texts_are_cut_to_fit() {
        let cx = &mut ();
        let mut call = |to: *mut c_char, len: c_int| -> Got { answer!(cx name, (to: OutText<1>, len: Val<c_int>)) };
        let mut buffer = [1; 6];
        assert_eq!(call(buffer.as_mut_ptr(), 5), Ok(()));
        assert_eq!(buffer, [b'a' as c_char, b' ' as c_char, b'b' as c_char, b'u' as c_char, 0, 1]);
        for len in [0, -1, c_int::MIN] {
            assert_eq!(call(buffer.as_mut_ptr(), len), Err(INVALID));
        }
        assert_eq!(call(std::ptr::null_mut(), 5), Err(INVALID));
    }

    #[test]
    fn values_behind_void_pointers_have_their_type() {
        let cx = &mut ();
        let mut call = |from: *mut c_void, to: *mut c_void| -> Got { answer!(cx doubled, (from: InVoid<u64>, to: OutVoid<u64>)) };
        let (mut from, mut to) = (1u64 << 40, 0u64);
        assert_eq!(call((&raw mut from).cast(), (&raw mut to).cast()), Ok(()));
        assert_eq!(to, 1 << 41);
        assert_eq!(call(std::ptr::null_mut(), (&raw mut to).cast()), Err(INVALID));
        assert_eq!(call((&raw mut from).cast(), std::ptr::null_mut()), Err(INVALID));
    }
}
