//! Who may use a server, of the users whom it knows by their numbers: `mrcuda serve --munge` and `--unix-users`.

use super::error::ServeError;
use super::users;
use crate::greet::GreetError;
use crate::munge::UNKNOWN_USER;
use nix::unistd::{self, Gid, Group, Uid, getgrouplist};
use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

/// Users, as given to `mrcuda serve --munge` and `--unix-users`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserSpec {
    /// All.
    Any,
    /// The user of this name or number.
    Named(String),
    /// The members of the group of this name or number.
    Group(String),
}

/// Why a text does not name users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("who may use a server is any, a user (name or number), or @GROUP")]
pub struct UserSpecError;

impl FromStr for UserSpec {
    type Err = UserSpecError;

    fn from_str(text: &str) -> Result<UserSpec, UserSpecError> {
        let (name, is_group) = text.strip_prefix('@').map_or((text, false), |name| (name, true));
        if name.is_empty() || name.contains(|c: char| c == '@' || c.is_whitespace() || c.is_control()) {
            return Err(UserSpecError);
        }
        Ok(match (name, is_group) {
            ("any", false) => UserSpec::Any,
            (_, false) => UserSpec::Named(name.to_owned()),
            (_, true) => UserSpec::Group(name.to_owned()),
        })
    }
}

impl fmt::Display for UserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserSpec::Any => f.write_str("any"),
            UserSpec::Named(name) => f.write_str(name),
            UserSpec::Group(name) => write!(f, "@{name}"),
        }
    }
}

/// Those whom an option names.
#[derive(Debug)]
pub(super) struct Permitted {
    option: &'static str,
    any: bool,
    users: Vec<u32>,
    groups: Vec<Gid>,
}

impl Permitted {
    /// Finds users and groups; one that does not exist is an error.
    pub(super) fn find(option: &'static str, users: &[UserSpec]) -> Result<Permitted, ServeError> {
        let mut permitted = Permitted { option, any: false, users: Vec::new(), groups: Vec::new() };
        let unknown = |what: String| ServeError::NoSuchUser { what, option };
        for user in users {
            match user {
                UserSpec::Any => permitted.any = true,
                UserSpec::Named(name) => {
                    let found = || Some(unistd::User::from_name(name).ok()??.uid.as_raw());
                    let uid = name.parse().ok().or_else(found);
                    permitted.users.push(uid.ok_or_else(|| unknown(format!("user `{name}`")))?);
                }
                UserSpec::Group(name) => {
                    let found = || Some(Group::from_name(name).ok()??.gid);
                    let gid = name.parse().ok().map(Gid::from_raw).or_else(found);
                    permitted.groups.push(gid.ok_or_else(|| unknown(format!("group `{name}`")))?);
                }
            }
        }
        Ok(permitted)
    }

    /// Whether a user may use a server of the user `own`, or is this user or root. Root can act as every other user, so nothing would be
    /// gained by refusing it.
    pub(super) fn has(&self, uid: u32, own: u32) -> bool {
        // The number stands for those whom munged, or the kernel in a container, does not know.
        uid != UNKNOWN_USER && (uid == own || uid == 0 || self.any || self.users.contains(&uid) || self.has_group_of(uid))
    }

    /// The error for a user who may not.
    pub(super) fn refusal(&self, uid: u32) -> GreetError {
        let who = users::name(uid).map_or_else(|| format!("uid {uid}"), |name| format!("{name} (uid {uid})"));
        GreetError::NotPermitted { who, option: self.option }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<UserSpec, UserSpecError> {
        text.parse()
    }

    #[test]
    fn users_and_groups_are_read() {
        assert_eq!(read("any"), Ok(UserSpec::Any));
        assert_eq!((read("ann"), read("1000")), (Ok(UserSpec::Named("ann".into())), Ok(UserSpec::Named("1000".into()))));
        assert_eq!(read("@gpu"), Ok(UserSpec::Group("gpu".into())));
        // A group may have this name.
        assert_eq!(read("@any"), Ok(UserSpec::Group("any".into())));
        for text in ["any", "ann", "1000", "@gpu", "@any"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        for bad in ["", "@", "@@a", "a b", "a\n", "a@b"] {
            assert_eq!(read(bad), Err(UserSpecError), "{bad:?}");
        }
    }

    #[test]
    fn only_those_who_are_named_and_the_servers_user_and_root() {
        let find =
            |users: &[&str]| Permitted::find("--munge", &users.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>());
        let (own, ann, bob) = (990, 4_000_001, 4_000_002);
        let may = |permitted: &Permitted| [ann, bob, own, 0, UNKNOWN_USER].map(|uid| permitted.has(uid, own));
        assert_eq!(may(&find(&["4000001"]).unwrap()), [true, false, true, true, false]);
        assert_eq!(may(&find(&["any"]).unwrap()), [true, true, true, true, false]);
        assert!(!find(&["any"]).unwrap().has(UNKNOWN_USER, UNKNOWN_USER), "it is nobody's own user");
        // Every system has root with its group.
        let of_root = find(&["root", "@root"]).unwrap();
        assert_eq!((&of_root.users[..], &of_root.groups[..]), (&[0][..], &[Gid::from_raw(0)][..]));
        assert!(of_root.has_group_of(0) && !of_root.has_group_of(ann));
        let refusals = [ann, 0].map(|uid| find(&[]).unwrap().refusal(uid).to_string());
        assert_eq!(
            refusals,
            ["uid 4000001", "root (uid 0)"].map(|who| format!("{who} may not use this server (mrcuda serve --munge)"))
        );
        for (unknown, words) in [("no-such-user", "user `no-such-user`"), ("@no-such-group", "group `no-such-group`")] {
            let failed = find(&["any", unknown]).unwrap_err().to_string();
            assert_eq!(failed, format!("this machine has no {words} (mrcuda serve --munge)"));
        }
    }
}
