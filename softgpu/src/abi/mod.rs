//! The exported functions.
//!
//! [`abi!`] declares one subject's functions: it creates the ELF symbols, compares each signature with that of the CUDA
//! header at compile time, and lists the symbols for `cuGetProcAddress`. Bodies are ordinary Rust that returns [`Res`];
//! a panic never crosses the boundary. Nothing in this crate calls an exported symbol.

mod array;
mod context;
mod device;
mod edge;
mod event;
mod external;
mod function;
mod graph;
mod green;
mod guard;
mod launch;
mod library;
mod linker;
mod logs_and_coredump;
mod managed;
mod memcpy;
mod memory;
mod mempool;
mod memset;
mod module;
mod old_launch;
mod pointer;
mod procaddr;
mod reference;
mod stream;
mod stream_attribute;
mod stream_memory;
mod system;
mod tables;
mod texture;
mod vmm;

use crate::result::Res;
use cuda_api::code::{self, Code};
use cuda_api::sys::CUresult;
use edge::{In, Out, Text};

/// Converts an error of the shared crates (`cuda_model`, `cuda_image`) to this driver's result.
fn res<T>(outcome: Result<T, Code>) -> Res<T> {
    outcome.map_err(|rc| match rc {
        code::ERROR_INVALID_CONTEXT => CUresult::CUDA_ERROR_INVALID_CONTEXT,
        code::ERROR_INVALID_RESOURCE_TYPE => CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE,
        code::ERROR_INVALID_RESOURCE_CONFIGURATION => CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        code::ERROR_NOT_SUPPORTED => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    })
}

/// One exported symbol.
pub(crate) struct Export {
    /// Exact ELF name.
    pub name: &'static str,
    /// Entry point.
    pub address: *const (),
}

// SAFETY: the pointer is the address of a function and is never read through.
unsafe impl Sync for Export {}

/// Declares exported functions.
///
/// `early fn` may be called before `cuInit` and after the process began to exit; `call fn NAME` may not, and
/// `call fn NAME / ALIAS` exports the same body twice; `stream fn NAME / PER_THREAD |default|` exports the legacy and the
/// per-thread-default-stream form, and `default` says which one was called. `x: T as S` receives a `T` where the header
/// says `S` (an enum, which C may fill with anything, or a checked pointer of [`edge`]). `[NAME]` before the parameters is
/// explained at [`compare!`].
macro_rules! abi {
    ($($kind:ident fn $name:ident $(/ $second:ident)? $([$like:ident])? ($($arg:ident: $ty:ty $(as $sys:ty)?),* $(,)?) $(|$default:ident|)? $body:block)*) => {
        /// The symbols of this subject.
        pub(super) static EXPORTS: &[$crate::abi::Export] = &[
            $(
                $crate::abi::Export { name: stringify!($name), address: $name as *const () },
                $($crate::abi::Export { name: stringify!($second), address: $second as *const () },)?
            )*
        ];
        $(
            $crate::abi::compare!($name [$($like)?] ($($crate::abi::header_type!($ty $(, $sys)?)),*));
            $crate::abi::define!($kind $name $($second)? ($($arg: $ty),*) ($($default)?) $body);
        )*
    };
}

/// Compares a signature with that of the same name, or of the one in brackets for names that the header of 13.0 hides
/// behind a newer one; `[gone]` is for those without such a one.
macro_rules! compare {
    ($name:ident [] ($($ty:ty),*)) => {
        const _: unsafe fn($($ty),*) -> cuda_api::sys::CUresult = cuda_api::sys::$name;
    };
    ($name:ident [gone] ($($ty:ty),*)) => {};
    ($name:ident [$like:ident] ($($ty:ty),*)) => {
        const _: unsafe fn($($ty),*) -> cuda_api::sys::CUresult = cuda_api::sys::$like;
    };
}

/// The type of a parameter in the header.
macro_rules! header_type {
    ($ty:ty) => {
        $ty
    };
    ($ty:ty, $sys:ty) => {
        $sys
    };
}

/// Defines the symbols of one declaration of [`abi!`].
macro_rules! define {
    (early $name:ident ($($arg:ident: $ty:ty),*) () $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> cuda_api::sys::CUresult {
            $crate::abi::guard::guard(move || $body)
        }
    };
    (call $name:ident ($($arg:ident: $ty:ty),*) () $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> cuda_api::sys::CUresult {
            $crate::abi::run!($name ($($arg),*) $body)
        }
    };
    (call $name:ident $alias:ident ($($arg:ident: $ty:ty),*) () $body:block) => {
        $crate::abi::define!(call $name ($($arg: $ty),*) () $body);
        #[unsafe(no_mangle)]
        extern "C" fn $alias($($arg: $ty),*) -> cuda_api::sys::CUresult {
            $crate::abi::run!($name ($($arg),*) $body)
        }
    };
    (stream $name:ident $per_thread:ident ($($arg:ident: $ty:ty),*) ($default:ident) $body:block) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> cuda_api::sys::CUresult {
            let $default = $crate::gpu::stream::Default::Legacy;
            $crate::abi::run!($name ($($arg),*) $body)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $per_thread($($arg: $ty),*) -> cuda_api::sys::CUresult {
            let $default = $crate::gpu::stream::Default::PerThread;
            $crate::abi::run!($name ($($arg),*) $body)
        }
    };
}

/// Runs the body of a function that needs `cuInit`; a failure returns the error that has precedence in the driver.
macro_rules! run {
    ($name:ident ($($arg:ident),*) $body:block) => {{
        let result = $crate::abi::guard::enter(move || $body);
        if result == cuda_api::sys::CUresult::CUDA_SUCCESS {
            result
        } else {
            let checks = const { cuda_api::calls::checks(stringify!($name)) };
            $crate::abi::guard::preceding_error(checks, &[$(cuda_api::answer::number($arg)),*], result)
        }
    }};
}

use {abi, compare, define, header_type, run};
