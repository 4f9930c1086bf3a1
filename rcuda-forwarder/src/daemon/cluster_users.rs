//! The users of a cluster, whom a daemon knows by credentials of munge, and which of them may use it.

use super::admission::{Budget, Source};
use super::error::ServeError;
use super::permitted::{Permitted, UserSpec};
use super::seats::Seats;
use super::users;
use crate::greet::{GreetError, Shown};
use crate::munge::{self, Bound, Credential, MungeError, UNKNOWN_USER};
use crate::secret::Secret;
use crate::token::random;
use crate::user::User;
use nix::unistd::geteuid;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Credentials that are checked at a time. Who has more under way is told that the server is busy: a munged that has stopped holds up a thread for
/// some seconds for each, and a client that has proved nothing can send as many as it likes.
pub(super) const CHECKED_AT_ONCE: Budget = Budget { all: 64, of_one: 16 };

/// How clients may use munge: `mrcuda serve --munge`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MungeOptions {
    /// Who may use the server, besides its own user and root.
    pub users: Vec<UserSpec>,
    /// munged's socket; `None`: the usual one.
    pub socket: Option<PathBuf>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ClusterUsers {
    socket: Option<PathBuf>,
    permitted: Permitted,
    /// A seat for each credential that is being checked.
    pub(super) checked: Seats<Source>,
}

impl ClusterUsers {
    /// Makes sure that munge can be used, so that a server does not start which would refuse everybody.
    pub(super) fn open(options: &MungeOptions) -> Result<ClusterUsers, ServeError> {
        let socket = options.socket.as_deref();
        let permitted = Permitted::find("--munge", &options.users)?;
        let own = geteuid().as_raw();
        let said = own_user(socket, own)?;
        if said != own || own == UNKNOWN_USER {
            return Err(ServeError::MungeUser { said, own });
        }
        Ok(ClusterUsers { socket: options.socket.clone(), permitted, checked: Seats::default() })
    }

    /// The secret of a client that has shown a credential, which is its user's.
    pub(super) fn secret(&self, source: Source, credential: &Credential, shown: &Shown) -> Result<Secret, GreetError> {
        let _seat = self.checked.take(source, CHECKED_AT_ONCE).map_err(|_| GreetError::Busy)?;
        let (uid, bound) = munge::decode(self.socket.as_deref(), credential)?;
        if !shown.is_bound_by(&bound) {
            return Err(MungeError::OtherConnection.into());
        }
        if !self.permits(uid) {
            return Err(self.permitted.refusal(uid));
        }
        Ok(Secret { key: bound.key, user: Some(User::Munge(Arc::new(users::account(uid)))) })
    }

    /// Whether a user may use this server now.
    pub(super) fn permits(&self, uid: u32) -> bool {
        self.permitted.has(uid, geteuid().as_raw())
    }
}

/// The user of this process by munged's word, `own` by the kernel's.
fn own_user(socket: Option<&Path>, own: u32) -> Result<u32, ServeError> {
    let bound = Bound { greeting: random().map_err(ServeError::Start)?, key: random().map_err(ServeError::Start)? };
    let made = munge::encode(socket, &bound, own)?;
    match munge::decode(socket, &made) {
        Ok((uid, read)) if read == bound => Ok(uid),
        Ok(_) => Err(MungeError::OtherConnection.into()),
        Err(why) => Err(why.into()),
    }
}
