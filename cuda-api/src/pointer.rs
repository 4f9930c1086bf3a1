//! The program's pointers, which are read and written without `unsafe`.
//!
//! CUDA's header says of each pointer of a function what it points to. The rows repeat it by their kinds
//! ([`Reads`](crate::arg::Reads), [`Writes`](crate::arg::Writes), …), and the exported symbol makes one of these types of
//! each pointer ([`Receive`](crate::arg::Receive)). That is where everything relies on CUDA's contract: a pointer that is
//! not null is valid, until the call returns, for what the header says. The lifetime of the types is the call. How many
//! elements an array has, and of which type a value behind a pointer to `void` is, the other arguments of the call say:
//! the methods that take these trust their callers.
//!
//! Values need not be aligned, and are copied.

use crate::code::{self, Code};
use crate::sys;
use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// A type of which any bits are a value. C programs can store any number in an enum, so Rust enums are not.
///
/// # Safety
/// Any bits are a value.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($t:ty)*) => {$(
        // SAFETY: a number, or a structure of cuda.h that consists of numbers and pointers.
        unsafe impl Plain for $t {}
    )*};
}
plain! { i8 i32 u8 u16 u32 u64 usize f32 }
plain! { sys::CUctxCreateParams sys::CUlaunchConfig sys::CUgraphEdgeData sys::CUDA_EXTERNAL_MEMORY_BUFFER_DESC }
// SAFETY: any bits are an address; using it is another matter.
unsafe impl<T> Plain for *const T {}
// SAFETY: as above.
unsafe impl<T> Plain for *mut T {}
// SAFETY: as its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A pointer of the program from which is read: null, or valid for reads of a `T`.
#[repr(transparent)]
#[derive(Debug)]
pub struct InPtr<'a, T>(*const T, PhantomData<&'a ()>);

/// A pointer of the program to which is written: null, or valid for writes of a `T`.
#[repr(transparent)]
#[derive(Debug)]
pub struct OutPtr<'a, T>(*mut T, PhantomData<&'a ()>);

/// A pointer of the program for an input that is also an output.
#[repr(transparent)]
#[derive(Debug)]
pub struct InOutPtr<'a, T>(*mut T, PhantomData<&'a ()>);

macro_rules! pointers {
    ($($name:ident $raw:ty;)*) => {$(
        impl<T> Clone for $name<'_, T> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $name<'_, T> {}
        // SAFETY: an address, which means the same in every thread.
        unsafe impl<T> Send for $name<'_, T> {}

        impl<'a, T> $name<'a, T> {
            /// The pointer that a program has passed.
            ///
            /// # Safety
            /// It is null, or by CUDA's contract valid as the type says, during the lifetime.
            #[inline]
            pub const unsafe fn new(pointer: $raw) -> Self {
                Self(pointer, PhantomData)
            }

            /// The pointer that a program passes for nothing.
            #[inline]
            pub const fn null() -> Self {
                Self(std::ptr::null::<T>() as $raw, PhantomData)
            }

            /// Returns whether it is null.
            #[inline]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }

            /// Itself; null is an error.
            ///
            /// # Errors
            /// `INVALID_VALUE`
            #[inline]
            pub fn not_null(self) -> Result<Self, Code> {
                if self.0.is_null() { Err(INVALID) } else { Ok(self) }
            }

            /// A pointer to the beginning of what it points to.
            #[inline]
            pub fn cast<U>(self) -> $name<'a, U> {
                const { assert!(size_of::<U>() <= size_of::<T>()) };
                $name(self.0.cast(), PhantomData)
            }

            /// A pointer to `void`.
            #[inline]
            pub fn untyped(self) -> $name<'a, c_void> {
                $name(self.0.cast(), PhantomData)
            }

            /// A pointer to the part at `AT` of what it points to; null stays null.
            #[inline]
            pub fn part<U, const AT: usize>(self) -> $name<'a, U> {
                const { assert!(AT + size_of::<U>() <= size_of::<T>()) };
                $name(if self.0.is_null() { self.0.cast() } else { self.0.wrapping_byte_add(AT).cast() }, PhantomData)
            }

            /// A pointer to an element of the array to which it points; null stays null. The array is as long as the other
            /// arguments of the call say.
            #[inline]
            pub fn element(self, index: usize) -> Self {
                if self.0.is_null() { self } else { Self(self.0.wrapping_add(index), PhantomData) }
            }

            /// A pointer to the array of `N` elements at whose first one the header has it point.
            #[inline]
            pub fn array<const N: usize>(self) -> $name<'a, [T; N]> {
                $name(self.0.cast(), PhantomData)
            }
        }

        impl<'a> $name<'a, c_void> {
            /// The pointer to a value of the type that the other arguments of the call say.
            #[inline]
            pub fn typed<U>(self) -> $name<'a, U> {
                $name(self.0.cast(), PhantomData)
            }
        }
    )*};
}
pointers! {
    InPtr *const T;
    OutPtr *mut T;
    InOutPtr *mut T;
}

impl<'a, T: Plain> InPtr<'a, T> {
    /// The pointer that a program would pass for a value.
    pub fn of(value: &'a T) -> Self {
        Self(value, PhantomData)
    }

    /// The pointer that a program would pass for an array.
    pub fn of_list(list: &'a [T]) -> Self {
        Self(list.as_ptr(), PhantomData)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    #[inline]
    pub fn read(self) -> Result<T, Code> {
        self.not_null()?;
        // SAFETY: not null, so readable by CUDA's contract; any bits are a value.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The elements of an array that is as long as the other arguments of the call say.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, unless the array is empty, and for more elements than there can be.
    #[inline]
    pub fn elements(self, count: usize) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>, Code> {
        if count > 0 && (self.is_null() || count > isize::MAX as usize / size_of::<T>().max(1)) {
            return Err(INVALID);
        }
        // SAFETY: not null if there are elements, and the program says that there are so many.
        Ok((0..count).map(move |i| unsafe { self.0.add(i).read_unaligned() }))
    }

    /// As [`Self::elements`], all of them.
    ///
    /// # Errors
    /// As for [`Self::elements`].
    #[inline]
    pub fn read_list(self, count: usize) -> Result<Vec<T>, Code> {
        self.elements(count).map(Iterator::collect)
    }
}

impl<'a, T> InPtr<'a, T> {
    /// The address.
    #[inline]
    pub fn as_ptr(self) -> *const T {
        self.0
    }
}

impl<'a> InPtr<'a, u8> {
    /// So many bytes, as the other arguments of the call say.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, unless there are none, and for more than there can be.
    #[inline]
    pub fn bytes(self, count: usize) -> Result<&'a [u8], Code> {
        if count == 0 {
            return Ok(&[]);
        }
        if self.is_null() || count > isize::MAX as usize {
            return Err(INVALID);
        }
        // SAFETY: not null, and the program says that there are so many bytes, which it leaves alone during the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

impl<'a> InPtr<'a, c_char> {
    /// A NUL-terminated string.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    pub fn c_str(self) -> Result<&'a CStr, Code> {
        self.not_null()?;
        // SAFETY: the program's strings are NUL-terminated, and it leaves them alone during the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }

    /// As [`Self::c_str`], as text.
    ///
    /// # Errors
    /// As for [`Self::c_str`].
    pub fn text(self) -> Result<String, Code> {
        Ok(self.c_str()?.to_string_lossy().into_owned())
    }
}

impl<'a, T> InPtr<'a, *mut T> {
    /// An output that is named by an element of an array; which elements name outputs, the other arguments of the call say.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the array is null.
    #[inline]
    pub fn output(self, index: usize) -> Result<OutPtr<'a, T>, Code> {
        Ok(OutPtr(self.element(index).read()?, PhantomData))
    }

    /// The outputs that an array names, which is as long as the other arguments of the call say.
    ///
    /// # Errors
    /// As for [`Self::elements`].
    #[inline]
    pub fn outputs(self, count: usize) -> Result<impl Iterator<Item = OutPtr<'a, T>>, Code> {
        Ok(self.elements(count)?.map(|pointer| OutPtr(pointer, PhantomData)))
    }
}

impl<'a, T> OutPtr<'a, T> {
    /// The pointer that a program would pass for a value.
    pub fn of(value: &'a mut T) -> Self {
        Self(value, PhantomData)
    }

    /// The pointer that a program would pass for an array.
    pub fn of_list(list: &'a mut [T]) -> Self {
        Self(list.as_mut_ptr(), PhantomData)
    }

    /// The pointer that a program would pass for a value that it has not set.
    pub fn of_room(room: &'a mut MaybeUninit<T>) -> Self {
        Self(room.as_mut_ptr(), PhantomData)
    }

    /// Writes an output that must not be null.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    #[inline]
    pub fn write(self, value: T) -> Result<(), Code> {
        self.not_null()?;
        // SAFETY: not null, so writable by CUDA's contract.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes an output unless it is null.
    #[inline]
    pub fn write_if_wanted(self, value: T) {
        if !self.is_null() {
            // SAFETY: not null, so writable by CUDA's contract.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes an array, for which there is room as the other arguments of the call say.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    #[inline]
    pub fn write_list(self, values: &[T]) -> Result<(), Code>
    where
        T: Copy,
    {
        self.not_null()?;
        // SAFETY: not null, and the program says that there is room; bytes are copied, so alignment does not matter.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), self.0.cast::<u8>(), size_of_val(values)) };
        Ok(())
    }
}

impl<'a, T> InOutPtr<'a, T> {
    /// The pointer that a program would pass for a value.
    pub fn of(value: &'a mut T) -> Self {
        Self(value, PhantomData)
    }

    /// The pointer that a program would pass for an array.
    pub fn of_list(list: &'a mut [T]) -> Self {
        Self(list.as_mut_ptr(), PhantomData)
    }

    /// As an input.
    #[inline]
    pub fn input(self) -> InPtr<'a, T> {
        InPtr(self.0, PhantomData)
    }

    /// As an output.
    #[inline]
    pub fn output(self) -> OutPtr<'a, T> {
        OutPtr(self.0, PhantomData)
    }

    /// Reads the value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    #[inline]
    pub fn read(self) -> Result<T, Code>
    where
        T: Plain,
    {
        self.input().read()
    }

    /// Writes the value.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    #[inline]
    pub fn write(self, value: T) -> Result<(), Code> {
        self.output().write(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_where_something_must_be_there() {
        let (from, to) = (InPtr::<u32>::null(), OutPtr::<u32>::null());
        assert_eq!((from.read(), to.write(1)), (Err(INVALID), Err(INVALID)));
        assert_eq!((from.read_list(1), from.read_list(0)), (Err(INVALID), Ok(Vec::new())));
        assert!(from.element(3).is_null() && from.part::<u8, 2>().is_null() && to.element(3).is_null());
        to.write_if_wanted(1);
        assert_eq!(InPtr::<u8>::null().bytes(0), Ok(&[][..]));
        assert_eq!(InPtr::<c_char>::null().text(), Err(INVALID));
    }

    #[test]
    fn values_need_not_be_aligned() {
        let mut bytes = [0u8, 1, 0, 0, 0, 2, 0, 0, 0];
        let list = InPtr::of(&bytes).part::<[u32; 2], 1>();
        assert_eq!((list.read(), list.cast::<u32>().read_list(2)), (Ok([1, 2]), Ok(vec![1, 2])));
        OutPtr::of(&mut bytes).part::<u32, 5>().write(7).unwrap();
        assert_eq!(bytes[5], 7);
        OutPtr::of(&mut bytes).part::<[u32; 2], 1>().cast::<u32>().write_list(&[8, 9]).unwrap();
        assert_eq!((bytes[1], bytes[5]), (8, 9));
    }

    #[test]
    fn more_elements_than_there_can_be_are_refused() {
        assert_eq!(InPtr::of(&1u64).read_list(usize::MAX), Err(INVALID));
        assert_eq!(InPtr::of(&1u8).bytes(usize::MAX), Err(INVALID));
    }

    #[test]
    fn arrays_name_outputs() {
        let (mut a, mut b) = (0u32, 0u32);
        let list = [&raw mut a, &raw mut b];
        InPtr::of_list(&list).output(1).unwrap().write(5).unwrap();
        assert_eq!((a, b), (0, 5));
    }
}
