//! Rows of the job's memory that copies and fills read and write.
//!
//! Unlike what the pointers of a call point to ([`cuda_api::pointer`]), such memory is used until the copy is complete, which
//! may be long after the call, and by other threads.

use cuda_api::address_map::PAGE;

/// Rows of `width` bytes whose beginnings are `pitch` bytes apart, in memory of the program.
#[derive(Debug, Clone, Copy)]
pub struct HostRows {
    at: u64,
    pitch: u64,
    width: u64,
    rows: u64,
}

impl HostRows {
    /// The rows that a program has passed for a copy or a fill.
    ///
    /// # Safety
    /// They are valid for what the copy or the fill does with them until it is complete: CUDA's contract.
    #[inline]
    pub unsafe fn new(at: u64, pitch: u64, width: u64, rows: u64) -> HostRows {
        HostRows { at, pitch, width, rows }
    }

    /// The address of the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Bytes from the beginning of a row to that of the next one.
    #[inline]
    pub fn pitch(&self) -> u64 {
        self.pitch
    }

    /// Bytes of a row.
    #[inline]
    pub fn width(&self) -> u64 {
        self.width
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns whether it is one row.
    #[inline]
    pub fn is_one(&self) -> bool {
        self.rows == 1
    }

    /// Bytes of its one row, from this one on.
    ///
    /// # Panics
    /// If they are not in the row, or there are several rows.
    #[inline]
    pub fn part(&self, from: u64, bytes: u64) -> HostRows {
        assert!(self.is_one() && from <= self.width && bytes <= self.width - from, "{from} + {bytes} of {self:?}");
        HostRows { at: self.at + from, width: bytes, ..*self }
    }

    #[inline]
    fn row(&self, row: u64) -> u64 {
        self.at + row * self.pitch
    }

    /// Passes the bytes, rows packed, to `use_them`; without a copy if they are contiguous.
    #[inline]
    pub fn with_bytes<T>(&self, use_them: impl FnOnce(&[u8]) -> T) -> T {
        if self.is_one() || self.pitch == self.width {
            // SAFETY: as for `new`.
            return use_them(unsafe { std::slice::from_raw_parts(self.at as *const u8, (self.width * self.rows) as usize) });
        }
        use_them(&self.read())
    }

    /// The bytes, rows packed.
    pub fn read(&self) -> Vec<u8> {
        let mut packed = Vec::with_capacity((self.width * self.rows) as usize);
        self.read_to(&mut packed);
        packed
    }

    /// Appends the bytes, rows packed.
    pub fn read_to(&self, packed: &mut Vec<u8>) {
        for row in 0..self.rows {
            // SAFETY: as for `new`.
            packed.extend_from_slice(unsafe { std::slice::from_raw_parts(self.row(row) as *const u8, self.width as usize) });
        }
    }

    /// Writes packed rows, as many as there are.
    pub fn write(&self, packed: &[u8]) {
        for (row, bytes) in (0..self.rows).zip(packed.chunks_exact(self.width as usize)) {
            // SAFETY: as for `new`; the bytes are one row.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.row(row) as *mut u8, bytes.len()) };
        }
    }

    /// Copies the rows to as many others of the same width, which may overlap.
    pub fn copy_to(&self, to: &HostRows) {
        let width = self.width.min(to.width) as usize;
        for row in 0..self.rows.min(to.rows) {
            // SAFETY: as for `new`, of both.
            unsafe { std::ptr::copy(self.row(row) as *const u8, to.row(row) as *mut u8, width) };
        }
    }

    /// Writes a pattern over and over.
    pub fn fill(&self, pattern: &[u8]) {
        for row in 0..self.rows {
            // SAFETY: as for `new`.
            let row = unsafe { std::slice::from_raw_parts_mut(self.row(row) as *mut u8, self.width as usize) };
            row.chunks_exact_mut(pattern.len()).for_each(|one| one.copy_from_slice(pattern));
        }
    }

    /// Uses each page as the copy will: a bad pointer of the program faults here, on the program's own thread.
    #[inline]
    pub fn touch(&self, write: bool) {
        // SAFETY: as for `new`.
        (0..self.rows).for_each(|row| unsafe { touch(self.row(row), self.width as usize, write) });
    }
}

/// Uses a byte of each page of a range as a copy will. A bad pointer of the program faults here, on the program's own thread and before
/// anything has begun: a signal handler may leave the call for good.
///
/// # Safety
/// The program says that the range is its memory, which it keeps meanwhile.
#[inline]
pub unsafe fn touch(address: u64, bytes: usize, write: bool) {
    // There are no smaller pages.
    for at in (0..bytes).step_by(PAGE as usize).chain(bytes.checked_sub(1)) {
        let byte = (address + at as u64) as *mut u8;
        // SAFETY: as the caller says. The write changes nothing, whatever other threads write there; in the form of an atomic operation
        // of the language the compiler would leave it out.
        unsafe {
            if write {
                write_what_is_there(byte);
            } else {
                byte.read_volatile();
            }
        }
    }
}

/// Writes a byte that is there already, atomically.
///
/// # Safety
/// The byte may be written to.
#[cfg(target_arch = "x86_64")]
unsafe fn write_what_is_there(byte: *mut u8) {
    // SAFETY: as the caller says.
    unsafe { std::arch::asm!("lock or byte ptr [{}], 0", in(reg) byte, options(nostack)) };
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn write_what_is_there(byte: *mut u8) {
    // SAFETY: as the caller says.
    unsafe {
        std::arch::asm!(
            "2: ldxrb {now:w}, [{byte}]",
            "stxrb {failed:w}, {now:w}, [{byte}]",
            "cbnz {failed:w}, 2b",
            byte = in(reg) byte,
            now = out(reg) _,
            failed = out(reg) _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests;
