//! Which profiles workers are being started for, to be kept warm.

use super::pool::Profile;
use crate::sync::lock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

/// For whom workers are kept warm on a GPU: the GPU, and the user that they run as, if it is their job's.
type Key = (u32, Option<u32>);

/// The starts of warm workers under way: one after the other for each GPU and user, so that clients that leave at the same time do not each
/// start theirs. A user can hold up own workers, which delays nobody else's.
#[derive(Debug, Default)]
pub(super) struct Warming {
    /// For each key with a start under way, the profile that was wanted last meanwhile.
    wanted: Mutex<HashMap<Key, Option<Profile>>>,
}

impl Warming {
    /// Calls `start` for a profile, and then for the one that was wanted last meanwhile, until there is none. If another thread does so for this
    /// GPU and user, it is left to that thread.
    pub(super) fn run(&self, profile: Profile, mut start: impl FnMut(Profile)) {
        let key = (profile.gpu, profile.user.as_ref().map(|user| user.uid()));
        let mut next = Some(profile);
        match lock(&self.wanted).entry(key) {
            Entry::Occupied(mut wanted) => {
                wanted.insert(next);
                return;
            }
            Entry::Vacant(wanted) => wanted.insert(None),
        };
        while let Some(profile) = next {
            start(profile);
            let mut wanted = lock(&self.wanted);
            next = wanted.get_mut(&key).and_then(Option::take);
            if next.is_none() {
                wanted.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::privileges::WorkerUser;
    use std::sync::Arc;

    fn profile(gpu: u32, virtual_device: u32, user: Option<&str>) -> Profile {
        Profile { gpu, virtual_device, env: Vec::new(), user: user.map(|name| Arc::new(WorkerUser::named(name).unwrap())) }
    }

    #[test]
    fn a_start_that_hangs_holds_up_those_for_the_same_gpu_and_user_alone() {
        let (warming, mut starts) = (Warming::default(), Vec::new());
        warming.run(profile(0, 0, Some("daemon")), |own| {
            starts.push(own.virtual_device);
            if own.virtual_device > 0 {
                return;
            }
            // As other threads would meanwhile.
            for (other, is_started) in [
                (profile(0, 7, Some("daemon")), false),
                (profile(0, 8, Some("daemon")), false),
                (profile(1, 9, Some("daemon")), true),
                (profile(0, 9, Some("bin")), true),
                (profile(0, 9, None), true),
            ] {
                let mut started = Vec::new();
                warming.run(other.clone(), |profile| started.push(profile));
                assert_eq!(started, if is_started { vec![other] } else { Vec::new() });
            }
        });
        assert_eq!(starts, [0, 8], "the one that was wanted last comes next");
        assert!(lock(&warming.wanted).is_empty());
        let mut again = 0;
        warming.run(profile(0, 0, Some("daemon")), |_| again += 1);
        assert_eq!(again, 1);
    }
}
