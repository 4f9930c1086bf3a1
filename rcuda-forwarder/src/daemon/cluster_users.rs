//! The users of a cluster, whom a daemon knows by credentials of munge, and which of them may use it.

use super::admission::{Budget, Source};
use super::error::ServeError;
use super::seats::Seats;
use super::users;
use crate::greet::{GreetError, Shown};
use crate::munge::{self, Bound, Credential, MungeError, UNKNOWN_USER};
use crate::secret::Secret;
use crate::token::random;
use crate::user::{Account, User};
use nix::unistd::{self, Gid, Group, Uid, geteuid, getgrouplist};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Credentials that are checked at a time. Who has more under way is told that the server is busy: a munged that has stopped holds up a thread for
/// some seconds for each, and a client that has proved nothing can send as many as it likes.
pub(super) const CHECKED_AT_ONCE: Budget = Budget { all: 64, of_one: 16 };
/// How clients may use munge: `mrcuda serve --munge`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MungeOptions {
    /// Who may use the server, besides its own user and root.
    pub users: Vec<ClusterUser>,
    /// munged's socket; `None`: the usual one.
    pub socket: Option<PathBuf>,
}

/// Users of the cluster, as given to `mrcuda serve --munge`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterUser {
    /// All.
    Any,
    /// The user of this name or number.
    Named(String),
    /// The members of the group of this name or number.
    Group(String),
}

/// Why a text is not a user of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("who may use a server by munge is any, a user (name or number), or @GROUP")]
pub struct ClusterUserError;

impl FromStr for ClusterUser {
    type Err = ClusterUserError;

    fn from_str(text: &str) -> Result<ClusterUser, ClusterUserError> {
        let (name, is_group) = text.strip_prefix('@').map_or((text, false), |name| (name, true));
        if name.is_empty() || name.contains(|c: char| c == '@' || c.is_whitespace() || c.is_control()) {
            return Err(ClusterUserError);
        }
        Ok(match (name, is_group) {
            ("any", false) => ClusterUser::Any,
            (_, false) => ClusterUser::Named(name.to_owned()),
            (_, true) => ClusterUser::Group(name.to_owned()),
        })
    }
}

/// Who may use a server.
#[derive(Debug, Default)]
struct Permitted {
    any: bool,
    users: Vec<u32>,
    groups: Vec<Gid>,
}

impl Permitted {
    /// Finds users and groups; one that does not exist is an error.
    fn find(users: &[ClusterUser]) -> Result<Permitted, ServeError> {
        let mut permitted = Permitted::default();
        for user in users {
            match user {
                ClusterUser::Any => permitted.any = true,
                ClusterUser::Named(name) => {
                    let found = || Some(unistd::User::from_name(name).ok()??.uid.as_raw());
                    let uid = name.parse().ok().or_else(found);
                    permitted.users.push(uid.ok_or_else(|| ServeError::ClusterUser(format!("user `{name}`")))?);
                }
                ClusterUser::Group(name) => {
                    let found = || Some(Group::from_name(name).ok()??.gid);
                    let gid = name.parse().ok().map(Gid::from_raw).or_else(found);
                    permitted.groups.push(gid.ok_or_else(|| ServeError::ClusterUser(format!("group `{name}`")))?);
                }
            }
        }
        Ok(permitted)
    }

    /// Whether a user may use a server of the user `own`. Root of the cluster can make credentials of any user, so nothing would be gained by refusing it.
    fn has(&self, uid: u32, own: u32) -> bool {
        uid != UNKNOWN_USER && (uid == own || uid == 0 || self.any || self.users.contains(&uid) || self.has_group_of(uid))
    }

    /// Groups are asked for each time: they may change.
    fn has_group_of(&self, uid: u32) -> bool {
        if self.groups.is_empty() {
            return false;
        }
        let groups = || {
            let user = unistd::User::from_uid(Uid::from_raw(uid)).ok()??;
            getgrouplist(&CString::new(user.name).ok()?, user.gid).ok()
        };
        groups().is_some_and(|groups| groups.iter().any(|group| self.groups.contains(group)))
    }
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
        let permitted = Permitted::find(&options.users)?;
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
        let name = users::name(uid);
        if !self.permits(uid) {
            return Err(GreetError::NotPermitted(
                name.map_or_else(|| format!("uid {uid}"), |name| format!("{name} (uid {uid})")),
            ));
        }
        let name = name.unwrap_or_else(|| format!("uid {uid}"));
        Ok(Secret { key: bound.key, user: Some(User::OfMunge(Arc::new(Account { uid, name }))) })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ClusterUser, ClusterUserError> {
        text.parse()
    }

    #[test]
    fn users_and_groups_are_read() {
        assert_eq!(read("any"), Ok(ClusterUser::Any));
        assert_eq!((read("ann"), read("1000")), (Ok(ClusterUser::Named("ann".into())), Ok(ClusterUser::Named("1000".into()))));
        assert_eq!(read("@gpu"), Ok(ClusterUser::Group("gpu".into())));
        // A group may have this name.
        assert_eq!(read("@any"), Ok(ClusterUser::Group("any".into())));
        for bad in ["", "@", "@@a", "a b", "a\n", "a@b"] {
            assert_eq!(read(bad), Err(ClusterUserError), "{bad:?}");
        }
    }

    #[test]
    fn only_those_who_are_named_and_the_servers_user_and_root() {
        let find = |users: &[&str]| Permitted::find(&users.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        let (own, ann, bob) = (990, 4_000_001, 4_000_002);
        let may = |permitted: &Permitted| [ann, bob, own, 0, UNKNOWN_USER].map(|uid| permitted.has(uid, own));
        assert_eq!(may(&find(&["4000001"]).unwrap()), [true, false, true, true, false]);
        assert_eq!(may(&find(&["any"]).unwrap()), [true, true, true, true, false]);
        assert!(!find(&["any"]).unwrap().has(UNKNOWN_USER, UNKNOWN_USER), "it is nobody's own user");
        // Every system has root with its group.
        let of_root = find(&["root", "@root"]).unwrap();
        assert_eq!((&of_root.users[..], &of_root.groups[..]), (&[0][..], &[Gid::from_raw(0)][..]));
        assert!(of_root.has_group_of(0) && !of_root.has_group_of(ann));
        for (unknown, words) in [("no-such-user", "user `no-such-user`"), ("@no-such-group", "group `no-such-group`")] {
            let failed = find(&["any", unknown]).unwrap_err().to_string();
            assert_eq!(failed, format!("this machine has no {words} (mrcuda serve --munge)"));
        }
    }
}
