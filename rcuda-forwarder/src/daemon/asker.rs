//! Who asks a server for something about its jobs, and what they may ask (docs/security.md, "Requests about jobs").

use super::client::Client;
use crate::secret::Secret;
use crate::user::User;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asker {
    /// Whoever has the server's own token; on its machine its user and root; of a cluster's users these two.
    Administrator,
    /// A user with a token of their own, of a cluster, or of the server's machine.
    User(User),
}

impl Asker {
    /// Whoever has proved this.
    pub(super) fn of(secret: &Secret) -> Asker {
        let server = nix::unistd::geteuid().as_raw();
        match &secret.user {
            None => Asker::Administrator,
            Some(user) if user.uid().is_some_and(|uid| uid == 0 || uid == server) => Asker::Administrator,
            Some(user) => Asker::User(user.clone()),
        }
    }

    /// Whether they may have the job of this client moved, and see where it was asked to move.
    pub(super) fn may_move(&self, client: &Client) -> bool {
        match (self, client.user()) {
            (Asker::Administrator, _) => true,
            // The token itself, not only its name: a revoked one may have been of another person.
            (Asker::User(User::Token(asking)), Some(User::Token(owner))) => asking == owner,
            // The machines of a cluster have these numbers in common.
            (Asker::User(asking), Some(owner)) => asking.uid().is_some() && asking.uid() == owner.uid(),
            (Asker::User(_), None) => false,
        }
    }

    /// For the log.
    pub(super) fn words(&self) -> String {
        match self {
            Asker::Administrator => "an administrator".to_owned(),
            Asker::User(user) => user.name().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Conn;
    use crate::greet::JobHello;
    use crate::token::Token;
    use crate::user::Account;
    use crate::user_tokens::UserToken;
    use std::sync::Arc;

    fn token(name: &str, key: u8) -> User {
        User::Token(Arc::new(UserToken { name: name.to_owned(), token: Token([key; 32]), added_unix_ms: 5 }))
    }

    fn munge(uid: u32, name: &str) -> User {
        User::Munge(Arc::new(Account { uid, name: name.to_owned() }))
    }

    fn local(uid: u32, name: &str) -> User {
        User::System(Arc::new(Account { uid, name: name.to_owned() }))
    }

    fn may(asking: Option<User>, owner: Option<User>) -> bool {
        let (conn, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let hello = JobHello { virtual_device: 0, pid: 7, env: Vec::new(), name: String::new() };
        let client = Client::of(&Conn::new(conn.into()), &hello, owner, 0);
        Asker::of(&Secret { key: [0; 32], user: asking }).may_move(&client)
    }

    #[test]
    fn users_move_their_own_jobs_and_administrators_all() {
        let nobody_is = nix::unistd::geteuid().as_raw().wrapping_add(1000);
        let ann = || munge(nobody_is, "ann");
        for owner in [None, Some(token("ann", 1)), Some(ann())] {
            assert!(may(None, owner.clone()), "the server's own token: {owner:?}");
            assert!(may(Some(munge(0, "root")), owner.clone()), "root of the cluster: {owner:?}");
            let server = munge(nix::unistd::geteuid().as_raw(), "the server");
            assert!(may(Some(server), owner.clone()), "the server's user: {owner:?}");
        }
        assert!(may(Some(token("ann", 1)), Some(token("ann", 1))));
        assert!(may(Some(ann()), Some(munge(nobody_is, "ann, renamed"))));
        assert!(may(Some(local(nobody_is, "ann")), Some(local(nobody_is, "ann"))), "at the server's Unix socket");
        assert!(
            may(Some(local(nobody_is, "ann")), Some(ann())),
            "a number is of one user in a cluster and on the server's machine"
        );
        for (asking, owner) in [
            (local(nobody_is + 1, "ann"), Some(local(nobody_is, "ann"))),
            (local(nobody_is, "ann"), Some(token("ann", 1))),
            (local(nobody_is, "ann"), None),
            (token("ann", 1), None),
            (token("ann", 1), Some(token("bob", 2))),
            (token("ann", 3), Some(token("ann", 1))),
            (token("ann", 1), Some(ann())),
            (ann(), Some(token("ann", 1))),
            (ann(), Some(munge(nobody_is + 1, "ann"))),
            (ann(), None),
        ] {
            assert!(!may(Some(asking.clone()), owner.clone()), "{asking:?} {owner:?}");
        }
    }
}
