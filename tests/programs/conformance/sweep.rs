//! Every row, called with arguments that only its types decide: nothing, buffers, the largest numbers.

use crate::never::{NEVER, NOT_AT_RANDOM};
use crate::tell::Tell;
use cuda_api::answer::*;
use cuda_api::arg::*;
use cuda_api::calls::Driver;
use cuda_api::code::Code;
use cuda_api::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::mem::MaybeUninit;

/// What arguments are filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Pointers, handles and numbers are zero.
    Zeros,
    /// Pointers point to zeros, the rest is zero.
    Buffers,
    /// Pointers point to zeros, handles are zero, numbers have all bits set.
    Ones,
}

/// Bytes behind a pointer.
const BUFFER: usize = 64 << 10;
/// Answers that are numbers of this process.
const NUMBERED: [&str; 4] = ["cuStreamGetId", "cuCtxGetId", "cuGreenCtxGetId", "cuStreamGetCaptureInfo"];

/// The beginnings of the kinds that are pointers.
const POINTERS: [&str; 12] =
    ["Raw<*", "Reads", "Writes", "Updates", "Kept", "ParamList", "ExtraList", "Out", "New<", "Str", "In", "HostAddress"];

/// Makes the arguments of one call.
struct Filler {
    fill: Fill,
    buffers: Vec<Vec<u64>>,
}

impl Filler {
    /// An argument of the type `T`; `kind` is the row's text for it.
    fn next<T: Copy>(&mut self, kind: &str) -> T {
        let kind = &kind.replace(' ', "");
        let pointer = POINTERS.iter().any(|start| kind.starts_with(start)) && kind != "StreamArg";
        let number = kind.contains("Enum<")
            || [
                "usize",
                "c_int",
                "c_uint",
                "c_ulonglong",
                "c_ushort",
                "c_uchar",
                "u64",
                "u32",
                "cuuint",
                "CUdevice>",
                "CUdeviceptr",
            ]
            .iter()
            .any(|name| kind.contains(name))
            || matches!(kind.as_str(), "DeviceArg" | "Address");
        let mut value = MaybeUninit::<T>::zeroed();
        let mut put = |bytes: &[u8]| {
            let n = bytes.len().min(size_of::<T>());
            // SAFETY: `n` bytes are inside the value.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast::<u8>(), n) };
        };
        match self.fill {
            Fill::Zeros => {}
            _ if pointer => {
                let mut buffer = vec![0u64; BUFFER / 8];
                put(&(buffer.as_mut_ptr() as u64).to_le_bytes());
                self.buffers.push(buffer);
            }
            Fill::Ones if number => put(&[0xff; 8]),
            _ => {}
        }
        // SAFETY: every C type of a row is an integer, a float, a pointer, an optional function or a struct of these: all-zero is
        // valid for each, all bits set is written to integers only.
        unsafe { value.assume_init() }
    }

    /// What the call has written, in the order of the buffers.
    fn written(&self, name: &str) -> String {
        let numbered = NUMBERED.iter().any(|n| name.starts_with(n));
        let one = |(index, buffer): (usize, &Vec<u64>)| match buffer {
            b if b.iter().all(|w| *w == 0) => None,
            // Small numbers are values; large ones are handles, addresses, texts.
            b if b[0] < 65536 && b[1..].iter().all(|w| *w == 0) && !numbered => Some(format!(" [{index}]={}", b[0])),
            _ => Some(format!(" [{index}] written")),
        };
        self.buffers.iter().enumerate().filter_map(one).collect()
    }
}

/// A row that can be called.
struct Case {
    name: &'static str,
    /// `None`: the driver lacks it.
    run: fn(&Driver, &mut Filler) -> Option<Code>,
}

/// Calls a function with arguments that the filler makes.
macro_rules! call_with {
    ($filler:ident $f:ident ($($p:ident : $kind:ty),* $(,)?)) => {{
        $(let $p = $filler.next::<<$kind as Param>::C>(stringify!($kind));)*
        // SAFETY: the driver is called with arguments that it must refuse; where it does not, the process of this section ends.
        unsafe { $f($($p),*) }
    }};
}

macro_rules! cases {
    ($family:ident $table:ident $(
        $(#[doc = $doc:literal])+
        $id:literal $class:ident $how:ident $($reason:literal)? fn $name:ident $params:tt $($form:ident)* $([$($checks:tt)*])?;
    )*) => {
        fn $family(to: &mut Vec<Case>) {
            $(to.push(Case { name: stringify!($name), run: |driver, filler| {
                let _ = &filler;
                let f = driver.$family.$name?;
                Some(call_with!(filler f $params))
            }});)*
        }
    };
}
cuda_api::for_each_call!(cases);

macro_rules! all {
    ($($family:ident)*) => {
        fn all() -> Vec<Case> {
            let mut to = Vec::new();
            $($family(&mut to);)*
            to
        }
    };
}
cuda_api::for_each_family!(all);

fn sweep(t: &Tell, fill: Fill, after: impl Fn()) {
    for case in all() {
        let listed = |list: &[(&str, &str)]| list.iter().any(|(start, _)| case.name.starts_with(start));
        if listed(&NEVER) || listed(&NOT_AT_RANDOM) {
            continue;
        }
        if !t.begin(case.name) {
            continue;
        }
        let mut filler = Filler { fill, buffers: Vec::new() };
        match (case.run)(&t.loaded.calls, &mut filler) {
            None => t.end("absent"),
            Some(0) => t.end(&format!("0{}", filler.written(case.name))),
            Some(code) => t.end(&code.to_string()),
        }
        after();
    }
}

/// Before `cuInit`.
pub fn before_start(t: &Tell) {
    sweep(t, Fill::Zeros, || {});
}

/// Without a context.
pub fn without_context(t: &Tell) {
    call!(t, device.cuInit(0));
    sweep(t, Fill::Zeros, || {
        call!(t, context.cuCtxSetCurrent(std::ptr::null_mut()));
    });
}

/// Without a context, outputs wanted.
pub fn without_context_with_buffers(t: &Tell) {
    call!(t, device.cuInit(0));
    sweep(t, Fill::Buffers, || {
        call!(t, context.cuCtxSetCurrent(std::ptr::null_mut()));
    });
}

fn with_context(t: &Tell, fill: Fill) {
    t.start();
    let mut context = std::ptr::null_mut();
    call!(t, context.cuCtxGetCurrent(&raw mut context));
    t.move_here();
    sweep(t, fill, || {
        call!(t, context.cuCtxSetCurrent(context));
        let late = call!(t, context.cuCtxSynchronize());
        if late != 0 {
            t.begin("after that the context");
            t.end(&late.to_string());
        }
    });
}

/// With a context, everything zero.
pub fn zeros(t: &Tell) {
    with_context(t, Fill::Zeros);
}

/// With a context, outputs wanted.
pub fn buffers(t: &Tell) {
    with_context(t, Fill::Buffers);
}

/// With a context, the largest numbers.
pub fn ones(t: &Tell) {
    with_context(t, Fill::Ones);
}
