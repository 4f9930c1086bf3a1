//! The user of a client, as far as the client has proved it.

use crate::user_by::UserBy;
use crate::user_tokens::UserToken;
use std::sync::Arc;

/// A user whom a server can tell from others by what their client has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum User {
    /// Has a token of their own.
    OfToken(Arc<UserToken>),
    /// Has a credential of munge.
    OfMunge(Arc<Account>),
}

/// A user of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// The number, which all machines of the cluster have in common.
    pub(crate) uid: u32,
    /// The name on the server's machine; `uid N` if it knows none.
    pub(crate) name: String,
}

impl User {
    /// The user's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            User::OfToken(token) => &token.name,
            User::OfMunge(account) => &account.name,
        }
    }

    /// How the name is known.
    pub(crate) fn by(&self) -> UserBy {
        match self {
            User::OfToken(_) => UserBy::Token,
            User::OfMunge(_) => UserBy::Munge,
        }
    }

    /// The user's number, if it was shown.
    pub(crate) fn uid(&self) -> Option<u32> {
        match self {
            User::OfToken(_) => None,
            User::OfMunge(account) => Some(account.uid),
        }
    }
}
