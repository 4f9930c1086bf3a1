//! Linking at run time: a complete link in one request.

use super::checker::check_options;
use super::modules::LOG;
use super::{Executor, short};
use cuda_api::code::{self, Code};
use cuda_api::ops::{Link, Linked};
use cuda_api::sys;
use cuda_api::wire::Wire;
use std::ffi::{CString, c_void};

/// `CU_JIT_INFO_LOG_BUFFER`, its size, `CU_JIT_ERROR_LOG_BUFFER`, its size.
const LOGS: [u32; 4] = [3, 4, 5, 6];
/// Higher counts of options or parts are errors of the sender.
const MAX_COUNT: usize = 4096;

/// Options as the driver takes them: keys, and values of the size of a pointer.
fn options(of: &[(u32, u64)]) -> Result<(Vec<u32>, Vec<*mut c_void>), Code> {
    if of.len() > MAX_COUNT {
        return Err(code::ERROR_INVALID_VALUE);
    }
    check_options(of)?;
    Ok(of.iter().map(|(key, value)| (*key, std::ptr::without_provenance_mut(*value as usize))).unzip())
}

fn until_zero(log: &[u8]) -> Vec<u8> {
    log.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

impl Executor {
    pub(super) fn link(&self, mut body: &[u8]) -> Result<Linked, Code> {
        let op = Link::get(&mut body).map_err(short)?;
        if op.inputs.len() > MAX_COUNT {
            return Err(code::ERROR_INVALID_VALUE);
        }
        let (mut info, mut errors) = (vec![0u8; LOG], vec![0u8; LOG]);
        let (mut keys, mut values) = options(&op.options)?;
        keys.extend(LOGS);
        let room = std::ptr::without_provenance_mut(LOG - 1);
        values.extend([info.as_mut_ptr().cast(), room, errors.as_mut_ptr().cast(), room]);
        let calls = &self.driver().module;
        let missing = code::ERROR_NOT_FOUND;
        let (create, destroy) = (calls.cuLinkCreate_v2.ok_or(missing)?, calls.cuLinkDestroy.ok_or(missing)?);
        let mut state: sys::CUlinkState = std::ptr::null_mut();
        // SAFETY: keys and values agree; the buffers that they refer to live until the link is destroyed, at the end of this function.
        let created = unsafe { create(keys.len() as u32, keys.as_mut_ptr().cast(), values.as_mut_ptr(), &raw mut state) };
        if created != code::SUCCESS {
            return Ok(Linked { code: created, image: Vec::new(), info: Vec::new(), errors: Vec::new() });
        }
        let linked = self.link_parts(&op, state);
        // SAFETY: the link that was created above.
        unsafe { destroy(state) };
        let (code, image) = match linked {
            Ok(image) => (code::SUCCESS, image),
            Err(code) => (code, Vec::new()),
        };
        Ok(Linked { code, image, info: until_zero(&info), errors: until_zero(&errors) })
    }

    fn link_parts(&self, op: &Link, state: sys::CUlinkState) -> Result<Vec<u8>, Code> {
        let calls = &self.driver().module;
        let missing = code::ERROR_NOT_FOUND;
        let (add, complete) = (calls.cuLinkAddData_v2.ok_or(missing)?, calls.cuLinkComplete.ok_or(missing)?);
        let checked = |rc: Code| if rc == code::SUCCESS { Ok(()) } else { Err(rc) };
        for part in &op.inputs {
            let (mut keys, mut values) = options(&part.options)?;
            let name = CString::new(part.name.clone()).map_err(|_| code::ERROR_INVALID_VALUE)?;
            // Machine code must be aligned to words; text without a terminating NUL gets one.
            let mut words = vec![0u128; part.data.len() / size_of::<u128>() + 1];
            let data: *mut c_void = words.as_mut_ptr().cast();
            // SAFETY: there is room for the bytes and one more.
            unsafe { std::ptr::copy_nonoverlapping(part.data.as_ptr(), data.cast::<u8>(), part.data.len()) };
            let (count, keys, values) = (keys.len() as u32, keys.as_mut_ptr().cast(), values.as_mut_ptr());
            // SAFETY: a live link; the bytes are as many as are said; keys and values agree and are numbers.
            checked(unsafe { add(state, part.kind, data, part.data.len(), name.as_ptr(), count, keys, values) })?;
        }
        if !op.complete {
            return Ok(Vec::new());
        }
        let (mut image, mut size) = (std::ptr::null_mut(), 0usize);
        // SAFETY: a live link, and places for its answers.
        checked(unsafe { complete(state, &raw mut image, &raw mut size) })?;
        if image.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: the driver's image, which lives as long as the link.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec())
    }
}
