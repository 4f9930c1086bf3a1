//! What a program passes for a launch through pointers: the kernel's parameters and the launch configuration.

use crate::code::{self, Code};
use crate::ops::ATTRIBUTE_BYTES;
use crate::pointer::InPtr;
use crate::sys;
use std::ffi::c_void;
use std::marker::PhantomData;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// The array that has a pointer to each parameter of the kernel that is launched.
#[derive(Debug, Clone, Copy)]
pub struct KernelParams<'a>(*mut *mut c_void, PhantomData<&'a ()>);

/// The array `extra`: pairs of keys and values, which name one buffer with all parameters.
#[derive(Debug, Clone, Copy)]
pub struct ExtraParams<'a> {
    list: *const usize,
    /// A buffer of our own instead.
    own: Option<&'a [u8]>,
}

impl<'a> KernelParams<'a> {
    /// The array that a program has passed.
    ///
    /// # Safety
    /// It is null, or as CUDA's contract for a launch says, during the lifetime.
    #[inline]
    pub const unsafe fn new(list: *mut *mut c_void) -> KernelParams<'a> {
        KernelParams(list, PhantomData)
    }

    /// No array.
    pub const fn none() -> KernelParams<'a> {
        KernelParams(std::ptr::null_mut(), PhantomData)
    }

    /// Returns whether there is no array.
    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The array, for a driver.
    #[inline]
    pub fn as_ptr(self) -> *mut *mut c_void {
        self.0
    }

    /// The bytes of each parameter of the launched kernel, whose layout (offset and size of each) this is; none if there is no
    /// array.
    #[inline]
    pub fn values<'l>(self, layout: &'l [(u32, u32)]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'l> {
        let layout = if self.is_null() { &[] } else { layout };
        layout.iter().enumerate().map(move |(i, (_, bytes))| {
            // SAFETY: by CUDA's contract the array has a pointer for each parameter of the kernel, and each points at the
            // parameter's bytes, which the program leaves alone during the call.
            unsafe { std::slice::from_raw_parts(self.0.add(i).read().cast_const().cast::<u8>(), *bytes as usize) }
        })
    }
}

impl<'a> ExtraParams<'a> {
    /// The array that a program has passed.
    ///
    /// # Safety
    /// It is null, or as CUDA's contract for a launch says, during the lifetime.
    #[inline]
    pub const unsafe fn new(list: *mut *mut c_void) -> ExtraParams<'a> {
        ExtraParams { list: list.cast_const().cast(), own: None }
    }

    /// No array.
    pub const fn none() -> ExtraParams<'a> {
        ExtraParams { list: std::ptr::null(), own: None }
    }

    /// As an array that names these bytes.
    pub const fn of(bytes: &'a [u8]) -> ExtraParams<'a> {
        ExtraParams { list: std::ptr::null(), own: Some(bytes) }
    }

    /// Returns whether there is no array.
    #[inline]
    pub fn is_null(self) -> bool {
        self.list.is_null() && self.own.is_none()
    }

    /// The buffer that the array names, and its size.
    ///
    /// # Errors
    /// `INVALID_VALUE` for keys that do not exist, and if one of the two is missing.
    pub fn buffer(self) -> Result<(InPtr<'a, u8>, usize), Code> {
        /// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`: keys of the array.
        const END: usize = 0;
        const POINTER: usize = 1;
        const SIZE: usize = 2;
        if let Some(own) = self.own {
            return Ok((InPtr::of_list(own), own.len()));
        }
        if self.list.is_null() {
            return Err(INVALID);
        }
        let (mut buffer, mut size, mut at) = (std::ptr::null::<u8>(), std::ptr::null::<usize>(), self.list);
        loop {
            // SAFETY: by CUDA's contract keys and values alternate until the key that ends them.
            let key = unsafe { at.read() };
            if key == END {
                break;
            }
            // SAFETY: as above.
            let value = unsafe { at.add(1).read() };
            match key {
                POINTER => buffer = std::ptr::with_exposed_provenance(value),
                SIZE => size = std::ptr::with_exposed_provenance(value),
                _ => return Err(INVALID),
            }
            // SAFETY: as above.
            at = unsafe { at.add(2) };
        }
        // SAFETY: the values of these keys point to the buffer and to its size (CUDA's contract), or there are none.
        let (buffer, size) = unsafe { (InPtr::new(buffer), InPtr::new(size)) };
        Ok((buffer, size.read()?))
    }
}

/// A launch configuration.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// The stream.
    pub stream: u64,
    /// The attributes, [`ATTRIBUTE_BYTES`] each.
    pub attributes: &'a [u8],
}

impl<'a> Config<'a> {
    /// Reads a launch configuration with at most `most` attributes.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, more attributes, and attributes that are null.
    #[inline]
    pub fn read(from: InPtr<'a, sys::CUlaunchConfig>, most: usize) -> Result<Config<'a>, Code> {
        let c = from.read()?;
        let count = c.numAttrs as usize;
        if count > most {
            return Err(INVALID);
        }
        // SAFETY: by CUDA's contract the configuration points to so many attributes, during the call.
        let attributes = unsafe { InPtr::new(c.attrs.cast_const().cast::<u8>()) };
        Ok(Config {
            grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
            block: [c.blockDimX, c.blockDimY, c.blockDimZ],
            shared: c.sharedMemBytes,
            stream: c.hStream as u64,
            attributes: attributes.bytes(count * ATTRIBUTE_BYTES)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The array that a program would pass.
    fn extra(list: &[usize]) -> ExtraParams<'_> {
        ExtraParams { list: list.as_ptr(), own: None }
    }

    #[test]
    fn the_array_names_a_buffer() {
        let (bytes, size) = ([1u8, 2, 3], 3usize);
        let named = |list: &[usize]| extra(list).buffer().and_then(|(at, n)| at.read_list(n));
        let (at, n) = (bytes.as_ptr().expose_provenance(), (&raw const size).expose_provenance());
        assert_eq!(named(&[1, at, 2, n, 0]), Ok(bytes.to_vec()));
        assert_eq!(named(&[2, n, 1, at, 0]), Ok(bytes.to_vec()));
        for list in [&[0][..], &[1, at, 0], &[2, n, 0], &[3, 0, 0]] {
            assert_eq!(named(list), Err(INVALID));
        }
        assert_eq!(ExtraParams::of(&bytes).buffer().and_then(|(at, n)| at.bytes(n)), Ok(&bytes[..]));
        assert!(ExtraParams::none().is_null() && !ExtraParams::of(&[]).is_null() && !extra(&[0]).is_null());
    }

    #[test]
    fn parameters_are_as_long_as_their_layout_says() {
        let (mut a, mut b) = (0x0102_0304u32, 5u8);
        let mut list = [(&raw mut a).cast::<c_void>(), (&raw mut b).cast::<c_void>()];
        let params = KernelParams(list.as_mut_ptr(), PhantomData);
        let values: Vec<&[u8]> = params.values(&[(0, 4), (4, 1)]).collect();
        assert_eq!(values, [&[4, 3, 2, 1][..], &[5]]);
        assert_eq!(KernelParams::none().values(&[(0, 4)]).count(), 0);
    }
}
