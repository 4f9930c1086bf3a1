//! A cache of the place's answers about functions and tensors: libraries repeat the same queries before each launch.

use crate::base::log::lock;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// Maximum number of cached answers, more than the different queries that any library makes of one kernel; then the cache is cleared.
const MAX_ANSWERS: usize = 4096;

/// Answers and settings of one function or kernel, descriptors of tensors, or limits of a context. They are valid until a setting changes.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Counts changes: an answer that was under way during a change is not cached.
    version: u64,
    /// By device, call and encoded arguments.
    answers: FxHashMap<(u32, u16, Vec<u8>), Vec<u8>>,
    /// Values in effect, by device and attribute.
    settings: FxHashMap<(u32, u32), i32>,
}

impl Answers {
    /// The cached answer, or the version with which to store it.
    pub(crate) fn find(&self, device: u32, call: u16, body: &[u8]) -> Result<Vec<u8>, u64> {
        let known = lock(&self.0);
        known.answers.get(&(device, call, body.to_vec())).cloned().ok_or(known.version)
    }

    /// Stores an answer.
    pub(crate) fn keep(&self, version: u64, device: u32, call: u16, body: &[u8], answer: &[u8]) {
        let mut known = lock(&self.0);
        if known.version != version {
            return;
        }
        if known.answers.len() >= MAX_ANSWERS {
            known.answers.clear();
        }
        known.answers.insert((device, call, body.to_vec()), answer.to_vec());
    }

    /// Returns whether the attribute already has this value from an earlier call.
    pub(crate) fn is_set(&self, device: u32, attribute: u32, value: i32) -> bool {
        lock(&self.0).settings.get(&(device, attribute)) == Some(&value)
    }

    /// Notes that an attribute was changed: this invalidates the cached answers.
    pub(crate) fn set(&self, device: u32, attribute: u32, value: i32) {
        let mut known = lock(&self.0);
        known.version += 1;
        known.answers.clear();
        known.settings.insert((device, attribute), value);
    }

    /// Invalidates the setting of an attribute that may have been changed through another handle of the function.
    pub(crate) fn forget_setting(&self, device: u32, attribute: u32) {
        let mut known = lock(&self.0);
        known.version += 1;
        known.answers.clear();
        known.settings.remove(&(device, attribute));
    }

    /// Clears the cache.
    pub(crate) fn forget(&self) {
        let mut known = lock(&self.0);
        *known = Known { version: known.version + 1, ..Known::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_until_a_setting_changes() {
        let a = Answers::default();
        let version = a.find(0, 7, b"x").unwrap_err();
        a.keep(version, 0, 7, b"x", b"yes");
        assert_eq!(a.find(0, 7, b"x"), Ok(b"yes".to_vec()));
        assert!(a.find(1, 7, b"x").is_err() && a.find(0, 8, b"x").is_err() && a.find(0, 7, b"y").is_err());
        assert!(!a.is_set(0, 8, 100));
        a.set(0, 8, 100);
        assert!(a.is_set(0, 8, 100) && !a.is_set(1, 8, 100) && !a.is_set(0, 8, 101));
        assert!(a.find(0, 7, b"x").is_err());
        a.keep(version, 0, 7, b"x", b"old");
        assert!(a.find(0, 7, b"x").is_err(), "it was on its way while the setting changed");
        a.set(1, 8, 100);
        let version = a.find(0, 7, b"x").unwrap_err();
        a.forget_setting(0, 8);
        a.keep(version, 0, 7, b"x", b"old");
        assert!(
            !a.is_set(0, 8, 100) && a.is_set(1, 8, 100) && a.find(0, 7, b"x").is_err(),
            "changed by another name on one device"
        );
        a.forget();
        assert!(!a.is_set(1, 8, 100));
    }
}
