//! Users of this machine.

use nix::unistd::{Uid, User};

/// The name of a user, if this machine knows it.
pub(super) fn name(uid: u32) -> Option<String> {
    Some(User::from_uid(Uid::from_raw(uid)).ok()??.name)
}
