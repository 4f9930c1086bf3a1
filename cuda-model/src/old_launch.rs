//! Launches in the style of CUDA 3: the block, shared memory and parameters of a function are set before the launch.

use cuda_api::code::{self, Code};
use cuda_api::lock::lock;
use cuda_api::ops::MAX_PARAM_BYTES;
use std::collections::HashMap;
use std::sync::Mutex;

const INVALID: Code = code::ERROR_INVALID_VALUE;

/// The launch parameters of a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// Threads of a block; zero until set.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// The parameters, each at its offset; the length is the declared one.
    pub params: Vec<u8>,
}

#[derive(Debug, Default)]
struct Kept {
    shape: Shape,
    /// Declared bytes of parameters.
    size: usize,
}

/// By function handle.
static KEPT: Mutex<Option<HashMap<u64, Kept>>> = Mutex::new(None);

fn with<T>(function: u64, f: impl FnOnce(&mut Kept) -> T) -> T {
    let mut kept = lock(&KEPT);
    f(kept.get_or_insert_default().entry(function).or_default())
}

/// `cuFuncSetBlockShape`
///
/// # Errors
/// `INVALID_VALUE`: a size that is not positive.
pub fn set_block(function: u64, block: [i32; 3]) -> Result<(), Code> {
    if block.iter().any(|n| *n <= 0) {
        return Err(INVALID);
    }
    with(function, |k| k.shape.block = block.map(|n| n as u32));
    Ok(())
}

/// `cuFuncSetSharedSize`
pub fn set_shared(function: u64, bytes: u32) {
    with(function, |k| k.shape.shared = bytes);
}

/// `cuParamSetSize`
///
/// # Errors
/// `INVALID_VALUE`: more than the limit of a kernel.
pub fn set_size(function: u64, bytes: u32) -> Result<(), Code> {
    if bytes as usize > MAX_PARAM_BYTES {
        return Err(INVALID);
    }
    with(function, |k| k.size = bytes as usize);
    Ok(())
}

/// `cuParamSeti`, `cuParamSetf`, `cuParamSetv`
///
/// # Errors
/// `INVALID_VALUE`: beyond the limit of a kernel.
pub fn set_param(function: u64, offset: i32, value: &[u8]) -> Result<(), Code> {
    let offset = usize::try_from(offset).map_err(|_| INVALID)?;
    let end = offset.checked_add(value.len()).filter(|end| *end <= MAX_PARAM_BYTES).ok_or(INVALID)?;
    with(function, |k| {
        if k.shape.params.len() < end {
            k.shape.params.resize(end, 0);
        }
        k.shape.params[offset..end].copy_from_slice(value);
    });
    Ok(())
}

/// The current launch parameters of the function.
pub fn shape(function: u64) -> Shape {
    with(function, |k| {
        let mut shape = k.shape.clone();
        shape.params.resize(k.size, 0);
        shape
    })
}

/// The blocks of `cuLaunchGrid`.
///
/// # Errors
/// `INVALID_VALUE`: a size that is not positive.
pub fn grid(width: i32, height: i32) -> Result<[u32; 3], Code> {
    if width <= 0 || height <= 0 { Err(INVALID) } else { Ok([width as u32, height as u32, 1]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_keeps_what_was_set_last() {
        let f = 0x1234;
        assert_eq!(shape(f), Shape::default());
        assert_eq!(set_block(f, [4, 0, 1]), Err(INVALID));
        set_block(f, [4, 2, 1]).unwrap();
        set_shared(f, 64);
        set_param(f, 8, &[1, 2]).unwrap();
        set_param(f, 0, &[9]).unwrap();
        assert_eq!(set_param(f, -1, &[9]), Err(INVALID));
        assert_eq!(set_param(f, MAX_PARAM_BYTES as i32, &[9]), Err(INVALID));
        set_size(f, 10).unwrap();
        assert_eq!(shape(f), Shape { block: [4, 2, 1], shared: 64, params: vec![9, 0, 0, 0, 0, 0, 0, 0, 1, 2] });
        assert_eq!((grid(3, 2), grid(3, 0)), (Ok([3, 2, 1]), Err(INVALID)));
    }
}
