//! What a client proves to a server, and whose it is.

use crate::user::User;
use crate::user_tokens::UserToken;
use std::fmt;
use std::sync::Arc;

/// A secret by which a server recognizes clients.
#[derive(Clone)]
pub(crate) struct Secret {
    /// The key of the proofs.
    pub(crate) key: [u8; 32],
    /// The user of a client that has proved it; `None`: it is no user's.
    pub(crate) user: Option<User>,
}

impl Secret {
    /// One that is no user's.
    pub(crate) fn of_nobody(key: [u8; 32]) -> Secret {
        Secret { key, user: None }
    }

    /// The token of a user.
    pub(crate) fn of_user(user: UserToken) -> Secret {
        Secret { key: user.token.0, user: Some(User::Token(Arc::new(user))) }
    }

    /// The name of the user.
    pub(crate) fn user_name(&self) -> Option<Arc<str>> {
        self.user.as_ref().map(|user| user.name().into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    #[test]
    fn secrets_are_not_printed() {
        let ann = UserToken { name: "ann".to_owned(), token: Token([7; 32]), added_unix_ms: 5 };
        let text = format!("{:?}", [Secret::of_nobody([7; 32]), Secret::of_user(ann)]);
        assert!(text.contains("ann") && text.contains("Token(secret)") && !text.contains('7'), "{text}");
    }
}
