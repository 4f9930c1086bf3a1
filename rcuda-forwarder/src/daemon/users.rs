//! Users, by their tokens and on this machine.

use crate::user_by::UserBy;
use nix::unistd::{Uid, User};

/// The name of a user, if this machine knows it.
fn name(uid: u32) -> Option<String> {
    Some(User::from_uid(Uid::from_raw(uid)).ok()??.name)
}

/// The name of the user whose token a client has shown, otherwise that of the user as whom its process runs on this machine.
pub(super) fn known_as(token: Option<&str>, uid: Option<u32>) -> Option<(String, UserBy)> {
    let by_token = token.map(|name| (name.to_owned(), UserBy::Token));
    by_token.or_else(|| Some((name(uid?)?, UserBy::System)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_says_more_than_the_kernel() {
        assert_eq!(known_as(Some("ann"), Some(0)), Some(("ann".into(), UserBy::Token)));
        assert_eq!(known_as(None, Some(0)), Some(("root".into(), UserBy::System)));
        assert_eq!((known_as(None, None), known_as(None, Some(u32::MAX - 7))), (None, None));
    }
}
