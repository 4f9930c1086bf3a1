//! Buffered output of kernels, until a call writes it.
//!
//! It is written by calls that wait, when code is loaded or unloaded and when the context is destroyed, but neither by
//! a query nor spontaneously. Not by a launch either: CUDA's documentation ("Formatted Output") says it is, but an
//! H200's driver does not (docs/measurements.md). The buffer is a ring of `CU_LIMIT_PRINTF_FIFO_SIZE` bytes: new text
//! overwrites the oldest.

use super::{lock, os};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Mutex;

/// Bytes of the buffer that a text takes beside itself. What the real one takes is not documented.
const HEAD: usize = 16;

/// Texts of one context that have not been written.
#[derive(Default)]
pub(crate) struct Output(Mutex<Buffers>);

#[derive(Default)]
struct Buffers {
    ring: VecDeque<Vec<u8>>,
    /// Bytes taken of the ring.
    taken: usize,
    /// Failed assertions.
    failed: String,
}

impl Output {
    /// Keeps the text of one `printf` in a ring of `size` bytes.
    pub fn print(&self, text: &[u8], size: usize) {
        let mut b = lock(&self.0);
        let needed = text.len() + HEAD;
        while b.taken + needed > size
            && let Some(old) = b.ring.pop_front()
        {
            b.taken -= old.len() + HEAD;
        }
        if needed <= size {
            b.taken += needed;
            b.ring.push_back(text.to_vec());
        }
    }

    /// Keeps the text of a failed assertion.
    pub fn assertion(&self, text: &str) {
        let mut b = lock(&self.0);
        b.failed.push_str(text.trim_end());
        b.failed.push('\n');
    }

    /// Writes all buffered text.
    pub fn show(&self) {
        let (ring, failed) = {
            let mut b = lock(&self.0);
            b.taken = 0;
            (std::mem::take(&mut b.ring), std::mem::take(&mut b.failed))
        };
        os::print(&Vec::from(ring).concat(), false);
        os::print(failed.as_bytes(), true);
    }
}

/// Text of assertions and faults goes to stderr, whose buffer is the system's.
pub(crate) fn complain(text: &str) {
    // A closed stderr cannot be reported.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_loses_what_is_oldest() {
        let output = Output::default();
        let held = |o: &Output| Vec::from(lock(&o.0).ring.clone()).concat();
        for n in 0..10 {
            output.print(format!("{n}...").as_bytes(), 3 * (4 + HEAD));
        }
        assert_eq!(held(&output), b"7...8...9...");
        output.print(&[b'x'; 24], 3 * (4 + HEAD));
        assert_eq!(held(&output), b"9...xxxxxxxxxxxxxxxxxxxxxxxx");
        output.print(&[b'y'; 100], 3 * (4 + HEAD));
        assert_eq!(held(&output), b"", "too long for the ring, and it went through all of it");
        assert_eq!(lock(&output.0).taken, 0);
    }
}
