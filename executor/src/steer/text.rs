//! Captures what the driver of this process writes to C's standard streams: text of device code and of failed assertions.
//!
//! The driver shows such text during its own calls, including those of the executor. A job must show it during the job's calls instead.
//! So libcuda gets other streams for `stdout` and `stderr`, through the same table as the functions of [`super::hook`]; the rest of the
//! process keeps its own.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Receives the text: 1 is standard output, 2 standard error.
pub type TextSink = fn(i32, &[u8]);

static SINK: OnceLock<TextSink> = OnceLock::new();
/// The streams that libcuda finds in its variables `stdout` and `stderr`.
static STREAMS: [AtomicPtr<libc::FILE>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// `cookie_io_functions_t` (`<stdio.h>`)
#[repr(C)]
struct CookieFunctions {
    read: *const c_void,
    write: extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: *const c_void,
    close: *const c_void,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut libc::FILE;
}

extern "C" fn write(to: *mut c_void, text: *const c_char, bytes: usize) -> isize {
    if let (Some(sink), false) = (SINK.get(), text.is_null()) {
        // SAFETY: the C library passes the text written to the stream, with its length.
        sink(to as usize as i32, unsafe { std::slice::from_raw_parts(text.cast(), bytes) });
    }
    bytes as isize
}

/// Passes what drivers that are loaded from now on write to the standard streams to `sink`. It is called inside the driver: it must not
/// call the driver, nor panic. Only the first call has an effect.
pub fn catch_text(sink: TextSink) -> io::Result<()> {
    if SINK.set(sink).is_err() {
        return Ok(());
    }
    for (to, stream) in (1usize..).zip(&STREAMS) {
        let functions = CookieFunctions { read: std::ptr::null(), write, seek: std::ptr::null(), close: std::ptr::null() };
        // SAFETY: the functions fit their types, and the cookie is only a number.
        let file = unsafe { fopencookie(std::ptr::without_provenance_mut(to), c"w".as_ptr(), functions) };
        if file.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new, unused stream; unbuffered, it passes text on at once.
        unsafe { libc::setvbuf(file, std::ptr::null_mut(), libc::_IONBF as c_int, 0) };
        stream.store(file, Ordering::Release);
    }
    Ok(())
}

/// Address of the replacement for libcuda's variable `name`, if text is captured.
pub(super) fn stand_in(name: &[u8]) -> Option<usize> {
    let stream = match name {
        b"stdout" => &STREAMS[0],
        b"stderr" => &STREAMS[1],
        _ => return None,
    };
    (!stream.load(Ordering::Acquire).is_null()).then_some(stream.as_ptr() as usize)
}
