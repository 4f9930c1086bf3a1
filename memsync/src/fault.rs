//! Faults on demand, so that tests can show that they are noticed.

use std::sync::OnceLock;

/// Faults to inject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Flip one byte of the page with this number (from 1) among those sent in a verifying round.
    pub corrupt_page: Option<u64>,
}

impl Faults {
    /// What the environment asks for: `MRCUDA_FAULT_CORRUPT_BYTE=N` flips one byte of the N-th page sent in each verifying
    /// round. Read once in a process; anything but a number above 0 means no fault.
    pub fn from_env() -> &'static Faults {
        static READ: OnceLock<Faults> = OnceLock::new();
        READ.get_or_init(|| Faults { corrupt_page: parse(std::env::var("MRCUDA_FAULT_CORRUPT_BYTE").ok().as_deref()) })
    }
}

fn parse(value: Option<&str>) -> Option<u64> {
    value?.parse().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_above_zero_count() {
        assert_eq!(parse(Some("3")), Some(3));
        for none in [None, Some(""), Some("0"), Some("x"), Some("-1")] {
            assert_eq!(parse(none), None);
        }
    }
}
