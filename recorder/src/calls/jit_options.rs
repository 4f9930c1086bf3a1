//! The options of the compiler and the linker: numbers, which go to the place, and buffers of the program for messages.

use cuda_api::code::{self, Code};
use cuda_api::pointer::{InOutPtr, InPtr, OutPtr};
use cuda_api::sys;
use std::ffi::{c_uint, c_void};

/// `CU_JIT_WALL_TIME` to `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`: options that are outputs.
const OUTPUTS: std::ops::RangeInclusive<u32> = 2..=6;
const INFO: u32 = 3;
const INFO_SIZE: u32 = 4;
const ERRORS: u32 = 5;
const ERRORS_SIZE: u32 = 6;
/// Higher counts than there are options indicate a damaged count.
const MAX_OPTIONS: c_uint = 64;

/// A buffer of the program for messages, and the slot in its array of values for the length written.
#[derive(Debug, Clone, Copy)]
struct Log<'a> {
    buffer: OutPtr<'a, u8>,
    room: usize,
    slot: OutPtr<'a, usize>,
}

impl Log<'_> {
    /// No buffer.
    const NONE: Log<'static> = Log { buffer: OutPtr::null(), room: 0, slot: OutPtr::null() };

    /// Writes what fits, and its length, if there is a buffer.
    fn write(&self, text: &[u8]) {
        if self.room == 0 {
            return;
        }
        let n = text.len().min(self.room - 1);
        // Without a buffer nothing is written.
        let written = self.buffer.write_list(&text[..n]).and_then(|()| self.buffer.element(n).write(0));
        if written.is_ok() {
            self.slot.write_if_wanted(n);
        }
    }
}

/// The options of a load or a link. The lifetime is that of the program's buffers and its array of values.
#[derive(Debug)]
pub(crate) struct JitOptions<'a> {
    /// Those that are numbers, by their keys.
    pub(crate) plain: Vec<(u32, u64)>,
    info: Log<'a>,
    errors: Log<'a>,
}

impl JitOptions<'_> {
    /// No options.
    pub(crate) const NONE: JitOptions<'static> = JitOptions { plain: Vec::new(), info: Log::NONE, errors: Log::NONE };
}

impl<'a> JitOptions<'a> {
    /// Reads the options of the program.
    pub(crate) fn read(
        count: c_uint,
        keys: InPtr<sys::CUjit_option>,
        values: InOutPtr<'a, *mut c_void>,
    ) -> Result<JitOptions<'a>, Code> {
        let mut all = JitOptions::NONE;
        if count > MAX_OPTIONS || (count > 0 && (keys.is_null() || values.is_null())) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        for (i, key) in keys.cast::<u32>().elements(count as usize)?.enumerate() {
            let (value, slot) = (values.element(i).read()? as u64, values.element(i).output().cast());
            match key {
                INFO => all.info.buffer = values.input().output(i)?.typed(),
                ERRORS => all.errors.buffer = values.input().output(i)?.typed(),
                // The value itself is the size.
                INFO_SIZE => (all.info.room, all.info.slot) = (value as u32 as usize, slot),
                ERRORS_SIZE => (all.errors.room, all.errors.slot) = (value as u32 as usize, slot),
                key if OUTPUTS.contains(&key) => {}
                key => all.plain.push((key, value)),
            }
        }
        Ok(all)
    }

    /// Writes messages to the program's buffers, and their lengths.
    pub(crate) fn write(&self, info: &[u8], errors: &[u8]) {
        self.info.write(info);
        self.errors.write(errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_to_the_room_that_there_is() {
        let mut log = [b'?'; 8];
        let keys = [ERRORS, ERRORS_SIZE, INFO_SIZE, 2, 9];
        for (room, want) in [(8, &b"ptxas\0??"[..]), (4, b"ptx\0????"), (1, b"\0???????"), (0, b"????????")] {
            log.fill(b'?');
            let mut values = [log.as_mut_ptr().cast(), room as *mut c_void, 7 as *mut c_void, 3 as *mut c_void, 5 as *mut c_void];
            let options = JitOptions::read(5, InPtr::of_list(&keys).cast(), InOutPtr::of_list(&mut values)).unwrap();
            assert_eq!(options.plain, [(9, 5)]);
            options.write(b"info", b"ptxas");
            assert_eq!(log, want);
            let length = 5.min(room as usize - usize::from(room > 0));
            assert_eq!((values[1] as usize, values[2] as usize), (length, 7), "the second one has no buffer");
        }
    }

    #[test]
    fn damaged_counts_are_refused() {
        let (none, keys) = (InOutPtr::null(), [0]);
        assert!(JitOptions::read(0, InPtr::null(), none).is_ok_and(|o| o.plain.is_empty()));
        assert_eq!(JitOptions::read(1, InPtr::null(), none).err(), Some(code::ERROR_INVALID_VALUE));
        assert_eq!(JitOptions::read(MAX_OPTIONS + 1, InPtr::of_list(&keys).cast(), none).err(), Some(code::ERROR_INVALID_VALUE));
    }
}
