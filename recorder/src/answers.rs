//! What the place has said of a function: libraries ask the same of the same kernel before each launch.

use crate::log::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// More different questions than any library asks of one kernel: then it starts afresh.
const MOST: usize = 4096;

/// Answers and settings of one function or kernel. They hold until a setting changes.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Counts changes: an answer that was on its way during one is not kept.
    version: u64,
    /// By device, call and encoded arguments.
    answers: HashMap<(u32, u16, Vec<u8>), Vec<u8>>,
    /// Value in effect by device and attribute.
    settings: HashMap<(u32, u32), i32>,
}

impl Answers {
    /// The answer if it is known, else the version to keep it with.
    pub(crate) fn find(&self, device: u32, call: u16, body: &[u8]) -> Result<Vec<u8>, u64> {
        let known = lock(&self.0);
        known.answers.get(&(device, call, body.to_vec())).cloned().ok_or(known.version)
    }

    /// Keeps an answer.
    pub(crate) fn keep(&self, version: u64, device: u32, call: u16, body: &[u8], answer: &[u8]) {
        let mut known = lock(&self.0);
        if known.version != version {
            return;
        }
        if known.answers.len() >= MOST {
            known.answers.clear();
        }
        known.answers.insert((device, call, body.to_vec()), answer.to_vec());
    }

    /// Whether the attribute has this value already by an earlier call.
    pub(crate) fn is_set(&self, device: u32, attribute: u32, value: i32) -> bool {
        lock(&self.0).settings.get(&(device, attribute)) == Some(&value)
    }

    /// An attribute has been changed: whatever was said before may be wrong.
    pub(crate) fn set(&self, device: u32, attribute: u32, value: i32) {
        let mut known = lock(&self.0);
        known.version += 1;
        known.answers.clear();
        known.settings.insert((device, attribute), value);
    }

    /// An attribute may have been changed by another name of the function.
    pub(crate) fn forget_setting(&self, device: u32, attribute: u32) {
        let mut known = lock(&self.0);
        known.version += 1;
        known.answers.clear();
        known.settings.remove(&(device, attribute));
    }

    /// Forgets everything.
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
