//! Users, by their tokens and on this machine.

use crate::user::{Account, User};
use crate::user_by::UserBy;
use nix::unistd::{self, Uid};

/// The name of a user, if this machine knows it and it can be shown: a name service may answer anything.
pub(super) fn name(uid: u32) -> Option<String> {
    let name = unistd::User::from_uid(Uid::from_raw(uid)).ok()??.name;
    Some(name).filter(|name| !name.chars().any(|c| c.is_control() || c.is_whitespace()))
}

/// A user by number, with the name on this machine.
pub(super) fn account(uid: u32) -> Account {
    Account { uid, name: name(uid).unwrap_or_else(|| format!("uid {uid}")) }
}

/// The name of the user that a client has proved to be, otherwise that of the user as whom its process runs on this machine.
pub(super) fn known_as(user: Option<&User>, uid: Option<u32>) -> Option<(String, UserBy)> {
    let proved = user.map(|user| (user.name().to_owned(), user.by()));
    proved.or_else(|| Some((name(uid?)?, UserBy::System)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_was_shown_says_more_than_the_kernel() {
        let ann = User::Munge(Arc::new(Account { uid: 1000, name: "ann".into() }));
        assert_eq!(known_as(Some(&ann), Some(0)), Some(("ann".into(), UserBy::Munge)));
        assert_eq!(known_as(None, Some(0)), Some(("root".into(), UserBy::System)));
        assert_eq!((known_as(None, None), known_as(None, Some(u32::MAX - 7))), (None, None));
    }
}
