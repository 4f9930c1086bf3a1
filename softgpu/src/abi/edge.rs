//! Pointers from C, checked for NULL and used through safe methods.
//!
//! Only this module relies on the ABI's contract: a non-NULL pointer points to the type that the header names and stays
//! valid during the call.

use crate::result::Res;
use cuda_api::sys::CUresult;
use std::ffi::{CStr, c_char, c_void};

/// `T *`: an output.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Whether the pointer is NULL, so the result is not wanted.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// NULL is `INVALID_VALUE`: for mandatory outputs, checked before anything is done.
    pub fn check(self) -> Res {
        if self.0.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// Element `index` of an in-out array, which exists according to the caller; NULL is `INVALID_VALUE`.
    pub fn at(self, index: usize) -> Res<Out<T>> {
        self.check().map(|()| Out(self.0.wrapping_add(index)))
    }

    /// Stores `value`; NULL is `INVALID_VALUE`.
    pub fn set(self, value: T) -> Res {
        self.check()?;
        // SAFETY: not NULL, so by the ABI it is valid for a T; unaligned writes are harmless here.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores `value` unless the pointer is NULL.
    pub fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `set`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The current value, for in-out parameters; NULL is `INVALID_VALUE`.
    pub fn get(self) -> Res<T>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: as in `set`; an in-out parameter is initialised by the caller.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Stores `values` one after another; the caller has room for them.
    pub fn fill(self, values: &[T]) -> Res
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: the caller of the ABI function that uses this has given the room.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }
}

/// `const T *`: one value or an array.
#[repr(transparent)]
pub(super) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// A NULL pointer, for calls without this parameter.
    pub fn none() -> In<T> {
        In(std::ptr::null())
    }

    /// The same memory as values of another type of the same size.
    pub fn cast<U>(self) -> In<U> {
        const { assert!(size_of::<T>() == size_of::<U>()) };
        In(self.0.cast())
    }

    /// Whether the pointer is NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value; NULL is `INVALID_VALUE`.
    pub fn get(self) -> Res<T> {
        self.at(0)
    }

    /// Element `index`, which exists according to the caller; NULL is `INVALID_VALUE`.
    pub fn at(self, index: usize) -> Res<T> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so by the ABI it is valid for the elements that the call's counts announce.
        Ok(unsafe { self.0.wrapping_add(index).read_unaligned() })
    }
}

impl In<u64> {
    /// The value, if the caller provides only 4 bytes.
    pub fn narrow(self) -> Res<u32> {
        In(self.0.cast::<u32>()).get()
    }
}

impl In<usize> {
    /// Element `index` of a list of numbers and pointers, where it is a pointer.
    pub fn pointer_at<T>(self, index: usize) -> Res<In<T>> {
        Ok(In(self.at(index)? as *const T))
    }
}

/// `const char *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*const c_char);

impl Text {
    /// The text; NULL or invalid UTF-8 is `INVALID_VALUE`.
    pub fn get<'a>(self) -> Res<&'a str> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so by the ABI a NUL-terminated string that lives during the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Copies `bytes` to a caller's buffer whose size the ABI fixes (attribute values of 1 to 8 bytes); NULL is `INVALID_VALUE`.
pub(super) fn put_bytes(to: *mut c_void, bytes: &[u8]) -> Res {
    Out(to.cast::<u8>()).fill(bytes)
}

/// Copies a caller's value whose size the ABI fixes; NULL is `INVALID_VALUE`.
pub(super) fn get_bytes(from: *const c_void, to: &mut [u8]) -> Res {
    if from.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so by the ABI it is valid for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr(), to.len()) };
    Ok(())
}

/// Writes `text`, truncated to fit, with its NUL into a buffer of `len` bytes.
pub(super) fn put_text(to: Out<c_char>, len: i32, text: &str) -> Res {
    let room = usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if room == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut bytes: Vec<c_char> = text.bytes().take(room - 1).map(|b| b as c_char).collect();
    bytes.push(0);
    to.fill(&bytes)
}
