//! Faults on purpose, so that tests can prove that they are caught.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which faults to make.
#[derive(Debug, Default)]
pub struct Faults {
    /// `MRCUDA_FAULT_CORRUPT_BYTE=N`: one byte of the Nth page (from 1) that this process sends in verifying rounds is flipped.
    corrupt: Option<u64>,
    sent: AtomicU64,
}

impl Faults {
    /// None.
    pub fn none() -> Faults {
        Faults::default()
    }

    /// The Nth page sent in verifying rounds gets a flipped byte.
    pub fn corrupt_page(n: u64) -> Faults {
        Faults { corrupt: Some(n), sent: AtomicU64::new(0) }
    }

    /// What the environment asks for, read once.
    pub fn from_env() -> &'static Faults {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        FAULTS.get_or_init(|| {
            let corrupt = std::env::var("MRCUDA_FAULT_CORRUPT_BYTE").ok().and_then(|n| n.parse().ok());
            Faults { corrupt, sent: AtomicU64::new(0) }
        })
    }

    /// Flips a byte of `page` if it is its turn.
    pub(crate) fn page(&self, page: &mut [u8]) {
        if self.corrupt.is_some_and(|n| n == self.sent.fetch_add(1, Ordering::Relaxed) + 1)
            && let Some(byte) = page.first_mut()
        {
            *byte ^= 1;
        }
    }
}
