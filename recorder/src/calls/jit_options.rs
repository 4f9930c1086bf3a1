//! The options of the compiler and the linker: numbers, which go to the place, and buffers of the program for messages.

use cuda_api::code::{self, Code};
use std::ffi::{c_uint, c_void};

/// `CU_JIT_WALL_TIME` to `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`: options that are outputs.
const OUTPUTS: std::ops::RangeInclusive<u32> = 2..=6;
const INFO: u32 = 3;
const INFO_SIZE: u32 = 4;
const ERRORS: u32 = 5;
const ERRORS_SIZE: u32 = 6;
/// Higher counts than there are options indicate a damaged count.
const MOST_OPTIONS: c_uint = 64;

/// A buffer of the program for messages, and the slot in its array of values for the length written. Plain addresses rather than
/// references, since the program may change both at any time.
#[derive(Debug, Clone, Copy, Default)]
struct Log {
    buffer: u64,
    room: usize,
    slot: u64,
}

impl Log {
    /// Writes what fits, and its length, if there is a buffer.
    ///
    /// # Safety
    ///
    /// Buffer and slot are still valid.
    unsafe fn write(&self, text: &[u8]) {
        if self.buffer == 0 || self.room == 0 {
            return;
        }
        let n = text.len().min(self.room - 1);
        // SAFETY: by the caller's promise; the buffer has this room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.buffer as *mut u8, n);
            (self.buffer as *mut u8).add(n).write(0);
            if self.slot != 0 {
                (self.slot as *mut usize).write_unaligned(n);
            }
        }
    }
}

/// The options of a load or a link.
#[derive(Debug, Default)]
pub(crate) struct JitOptions {
    /// Those that are numbers, by their keys.
    pub(crate) plain: Vec<(u32, u64)>,
    info: Log,
    errors: Log,
}

impl JitOptions {
    /// Reads the options of the program.
    pub(crate) fn read(count: c_uint, keys: *const u32, values: *mut *mut c_void) -> Result<JitOptions, Code> {
        let mut all = JitOptions::default();
        if count > MOST_OPTIONS || (count > 0 && (keys.is_null() || values.is_null())) {
            return Err(code::ERROR_INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: the program guarantees that both arrays have `count` elements.
            let (key, slot) = unsafe { (keys.add(i).read(), values.add(i)) };
            // SAFETY: as above.
            let value = unsafe { slot.read() } as u64;
            match key {
                INFO => all.info.buffer = value,
                ERRORS => all.errors.buffer = value,
                // The value itself is the size.
                INFO_SIZE => (all.info.room, all.info.slot) = (value as u32 as usize, slot as u64),
                ERRORS_SIZE => (all.errors.room, all.errors.slot) = (value as u32 as usize, slot as u64),
                key if OUTPUTS.contains(&key) => {}
                key => all.plain.push((key, value)),
            }
        }
        Ok(all)
    }

    /// Writes messages to the program's buffers, and their lengths.
    ///
    /// # Safety
    ///
    /// The program still keeps its buffers and its array of values: until a load has returned, or the link is destroyed.
    pub(crate) unsafe fn write(&self, info: &[u8], errors: &[u8]) {
        // SAFETY: by the caller's promise.
        unsafe {
            self.info.write(info);
            self.errors.write(errors);
        }
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
            let options = JitOptions::read(5, keys.as_ptr(), values.as_mut_ptr()).unwrap();
            assert_eq!(options.plain, [(9, 5)]);
            // SAFETY: buffer and values are above.
            unsafe { options.write(b"info", b"ptxas") };
            assert_eq!(log, want);
            let length = 5.min(room as usize - usize::from(room > 0));
            assert_eq!((values[1] as usize, values[2] as usize), (length, 7), "the second one has no buffer");
        }
    }

    #[test]
    fn damaged_counts_are_refused() {
        let none = std::ptr::null_mut();
        assert!(JitOptions::read(0, std::ptr::null(), none).is_ok_and(|o| o.plain.is_empty()));
        assert_eq!(JitOptions::read(1, std::ptr::null(), none).err(), Some(code::ERROR_INVALID_VALUE));
        assert_eq!(JitOptions::read(MOST_OPTIONS + 1, [0].as_ptr(), none).err(), Some(code::ERROR_INVALID_VALUE));
    }
}
