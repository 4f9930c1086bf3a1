//! The user of a client, as far as the client has proved it.

use crate::user_by::UserBy;
use crate::user_tokens::UserToken;
use std::sync::Arc;

/// A user whom a server can tell from others by what their client has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum User {
    /// Has a token of their own.
    Token(Arc<UserToken>),
    /// Has a credential of munge.
    Munge(Arc<Account>),
    /// Is another user of this machine than the server's, at its Unix socket.
    System(Arc<Account>),
}

/// A user by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// The number; all machines of a cluster have it in common.
    pub(crate) uid: u32,
    /// The name on the server's machine; `uid N` if it knows none.
    pub(crate) name: String,
}

impl User {
    /// The user's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            User::Token(token) => &token.name,
            User::Munge(account) | User::System(account) => &account.name,
        }
    }

    /// How the name is known.
    pub(crate) fn by(&self) -> UserBy {
        match self {
            User::Token(_) => UserBy::Token,
            User::Munge(_) => UserBy::Munge,
            User::System(_) => UserBy::System,
        }
    }

    /// The user's number, if it was shown.
    pub(crate) fn uid(&self) -> Option<u32> {
        match self {
            User::Token(_) => None,
            User::Munge(account) | User::System(account) => Some(account.uid),
        }
    }
}
