//! libmunge, which is loaded when it is first used: most machines have none, and it is under another licence.

use super::error::MungeError;
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use nix::libc::{gid_t, uid_t};
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The name that every version with this interface has (munge.h, since 0.5).
const FILE: &str = "libmunge.so.2";

/// A `struct munge_ctx`.
#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

/// An option of a context: `munge_opt_t`.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
enum Opt {
    Cipher = 0,
    Mac = 1,
    Zip = 2,
    Socket = 8,
    UidRestriction = 9,
}

/// `MUNGE_CIPHER_AES128`, which every munged has.
const AES128: c_int = 4;
/// `MUNGE_MAC_SHA256`.
const SHA256: c_int = 5;
/// `MUNGE_ZIP_NONE`.
const NO_ZIP: c_int = 0;

/// Results: `munge_err_t`.
const SUCCESS: c_int = 0;
const SOCKET: c_int = 6;
const TIMEOUT: c_int = 7;
const EXPIRED: c_int = 15;
const REWOUND: c_int = 16;
const REPLAYED: c_int = 17;
const UNAUTHORIZED: c_int = 18;

/// The functions of libmunge.
pub(super) struct Library {
    create: unsafe extern "C" fn() -> *mut Opaque,
    destroy: unsafe extern "C" fn(*mut Opaque),
    strerror: unsafe extern "C" fn(*mut Opaque) -> *const c_char,
    set: unsafe extern "C" fn(*mut Opaque, c_int, ...) -> c_int,
    encode: unsafe extern "C" fn(*mut *mut c_char, *mut Opaque, *const c_void, c_int) -> c_int,
    decode: unsafe extern "C" fn(*const c_char, *mut Opaque, *mut *mut c_void, *mut c_int, *mut uid_t, *mut gid_t) -> c_int,
}

impl Library {
    fn load() -> Result<Library, MungeError> {
        let missing = |e: libloading::Error| {
            // The linker's error is the source; the outer text only names the call.
            MungeError::Library(std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string))
        };
        // SAFETY: loading runs the library's constructors; libmunge has none.
        let file = unsafe { Loaded::open(Some(OsStr::new(FILE)), RTLD_NOW | RTLD_LOCAL) }.map_err(missing)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: munge.h declares the function of this name with the type of the field; the library is never closed.
                unsafe { *file.get(concat!($name, "\0").as_bytes()).map_err(missing)? }
            };
        }
        let library = Library {
            create: function!("munge_ctx_create"),
            destroy: function!("munge_ctx_destroy"),
            strerror: function!("munge_ctx_strerror"),
            set: function!("munge_ctx_set"),
            encode: function!("munge_encode"),
            decode: function!("munge_decode"),
        };
        let _: *mut c_void = file.into_raw();
        Ok(library)
    }

    pub(super) fn get() -> Result<&'static Library, MungeError> {
        static LIBRARY: OnceLock<Result<Library, MungeError>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }
}

/// Memory that libmunge has allocated for its caller.
struct Allocated(*mut c_void);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: from malloc, or null; nothing else has it.
        unsafe { libc::free(self.0) };
    }
}

/// A context: the options of one credential, and the last error. For one use of one thread.
pub(super) struct Context {
    library: &'static Library,
    context: *mut Opaque,
}

impl Context {
    /// A context for the munged at a socket, otherwise for the one at the usual place.
    pub(super) fn new(socket: Option<&CStr>) -> Result<Context, MungeError> {
        let library = Library::get()?;
        // SAFETY: the function has no preconditions.
        let context = unsafe { (library.create)() };
        if context.is_null() {
            return Err(MungeError::Failed("out of memory".to_owned()));
        }
        let context = Context { library, context };
        if let Some(path) = socket {
            // SAFETY: the context is live; this option takes a string, which the library copies.
            context.check(unsafe { (library.set)(context.context, Opt::Socket as c_int, path.as_ptr()) })?;
        }
        Ok(context)
    }

    /// Makes a credential of this process with a payload, which only processes of the user `reader` can decode. It is encrypted whatever the
    /// cluster's default is: the payload is a secret.
    pub(super) fn encode(self, payload: &[u8], reader: u32) -> Result<CString, MungeError> {
        for (option, value) in [(Opt::Cipher, AES128), (Opt::Mac, SHA256), (Opt::Zip, NO_ZIP)] {
            // SAFETY: the context is live; these options take an int.
            self.check(unsafe { (self.library.set)(self.context, option as c_int, value) })?;
        }
        // SAFETY: as above; this option takes a uid_t.
        self.check(unsafe { (self.library.set)(self.context, Opt::UidRestriction as c_int, reader as uid_t) })?;
        let length = c_int::try_from(payload.len()).map_err(|_| MungeError::Failed("the payload is too long".to_owned()))?;
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the context is live; the payload has this length; the result is written to `text`.
        let result = unsafe { (self.library.encode)(&raw mut text, self.context, payload.as_ptr().cast(), length) };
        let kept = Allocated(text.cast());
        self.check(result)?;
        if kept.0.is_null() {
            return Err(MungeError::Failed("no credential".to_owned()));
        }
        // SAFETY: on success it is a string that ends with a zero; it lives until `kept` is dropped.
        Ok(unsafe { CStr::from_ptr(kept.0.cast_const().cast()) }.to_owned())
    }

    /// Has munged check a credential. Returns the user whose process it is, and its payload.
    pub(super) fn decode(self, credential: &CStr) -> Result<(u32, Vec<u8>), MungeError> {
        let (mut payload, mut length, mut uid, mut gid) = (ptr::null_mut::<c_void>(), 0, uid_t::MAX, gid_t::MAX);
        // SAFETY: the context is live, the credential is a string, and the results are written to these variables.
        let result = unsafe {
            (self.library.decode)(
                credential.as_ptr(),
                self.context,
                &raw mut payload,
                &raw mut length,
                &raw mut uid,
                &raw mut gid,
            )
        };
        // Some errors come with a payload, too.
        let payload = Allocated(payload);
        self.check(result)?;
        let bytes = match usize::try_from(length) {
            Ok(length) if length > 0 && !payload.0.is_null() => {
                // SAFETY: the library has allocated and filled so many bytes, which live until `payload` is dropped.
                unsafe { std::slice::from_raw_parts(payload.0.cast::<u8>(), length) }.to_vec()
            }
            _ => Vec::new(),
        };
        Ok((uid, bytes))
    }

    fn check(&self, result: c_int) -> Result<(), MungeError> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: the context is live.
        let text = unsafe { (self.library.strerror)(self.context) };
        let text = if text.is_null() {
            format!("error {result}")
        } else {
            // SAFETY: a string of the context, which is not changed meanwhile.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(match result {
            SOCKET | TIMEOUT => MungeError::Daemon(text),
            EXPIRED => MungeError::Expired,
            REWOUND => MungeError::Rewound,
            REPLAYED => MungeError::Replayed,
            UNAUTHORIZED => MungeError::Unauthorized,
            _ => MungeError::Failed(text),
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: from `create`; nothing else has it.
        unsafe { (self.library.destroy)(self.context) };
    }
}
