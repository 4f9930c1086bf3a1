//! A driver that does nothing and records its calls.

use cuda_api::answer::*;
use cuda_api::arg::*;
use cuda_api::calls::{self, Driver};
use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::sync::Mutex;

/// A call: the function, and all numbers in its arguments and in the structures that they point to.
type Call = (&'static str, Vec<u64>);

static SEEN: Mutex<Vec<Call>> = Mutex::new(Vec::new());

/// The calls since the last query.
pub(in crate::executor) fn seen() -> Vec<Call> {
    std::mem::take(&mut *lock(&SEEN))
}

fn saw(name: &'static str, words: Vec<u64>) -> Code {
    lock(&SEEN).push((name, words));
    code::SUCCESS
}

/// The numbers in an argument.
trait Words {
    fn words(&self, _: &mut Vec<u64>) {}
}

macro_rules! numbers {
    ($($t:ty)*) => {$(impl Words for $t { fn words(&self, out: &mut Vec<u64>) { out.push(*self as u64) } })*};
}
numbers! { u8 u16 u32 u64 usize i32 i64 f32 }
impl<F> Words for Option<F> {}
impl Words for sys::CUipcMemHandle {}
impl Words for sys::CUipcEventHandle {}

impl<T> Words for *const T {
    fn words(&self, out: &mut Vec<u64>) {
        out.push(*self as u64);
        // Null, or an empty list with a dangling pointer.
        if (*self as u64) < 4096 {
            return;
        }
        // Handles point to types without a size; bytes and texts are smaller than a number.
        for i in 0..size_of::<T>() / 8 {
            // SAFETY: the executor's arguments are structures of the type that the row says, of which these are whole words; padding
            // is read as whatever it is.
            out.push(unsafe { self.cast::<u64>().add(i).read_unaligned() });
        }
    }
}

impl<T> Words for *mut T {
    fn words(&self, out: &mut Vec<u64>) {
        self.cast_const().words(out);
    }
}

macro_rules! function {
    ($name:ident ($($p:ident : $kind:ty),* $(,)?)) => {
        #[allow(non_snake_case)]
        unsafe extern "C" fn $name($($p: <$kind as Param>::C),*) -> Code {
            #[allow(unused_mut)]
            let mut words = Vec::new();
            $(Words::words(&$p, &mut words);)*
            saw(stringify!($name), words)
        }
    };
}

macro_rules! stand_in {
    ($family:ident $table:ident $(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident $($reason:literal)? fn $name:ident $params:tt $($form:ident)* $([$($checks:tt)*])?;
    )*) => {
        mod $family {
            #[allow(unused_imports)]
            use super::*;
            $(function! { $name $params })*
            pub(super) fn replace(d: &mut calls::$family::$table) {
                $(d.$name = Some($name);)*
            }
        }
    };
}
cuda_api::for_each_call!(stand_in);

macro_rules! replace {
    ($($family:ident)*) => {
        /// Replaces all functions of a driver by the stand-in's.
        pub(in crate::executor) fn replace(d: &mut Driver) {
            $($family::replace(&mut d.$family);)*
        }
    };
}
cuda_api::for_each_family!(replace);
