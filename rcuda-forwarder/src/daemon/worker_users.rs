//! As whom workers run: `mrcuda serve --worker-user`.

use super::error::{AssignError, ServeError};
use super::privileges::WorkerUser;
use crate::user::User;
use std::fmt;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The word for the user of each job.
const CLIENT: &str = "client";

/// The user that workers run as, as given to `mrcuda serve --worker-user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerUserSpec {
    /// The user of this name or number.
    Named(String),
    /// The user whose job it is. Where that is not known, or root, a worker runs as the one of this name or number; `None`: such jobs are
    /// refused.
    Client(Option<String>),
}

/// Why a text does not say as whom workers run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("workers run as a user (name or number), as {CLIENT}, or as {CLIENT},USER")]
pub struct WorkerUserSpecError;

impl FromStr for WorkerUserSpec {
    type Err = WorkerUserSpecError;

    fn from_str(text: &str) -> Result<WorkerUserSpec, WorkerUserSpecError> {
        let (first, other) = text.split_once(',').map_or((text, None), |(first, other)| (first, Some(other)));
        let is_name = |name: &str| !name.is_empty() && name != CLIENT && !name.contains([',', ' ', '\t', '\n']);
        match (first, other) {
            (CLIENT, None) => Ok(WorkerUserSpec::Client(None)),
            (CLIENT, Some(other)) if is_name(other) => Ok(WorkerUserSpec::Client(Some(other.to_owned()))),
            (name, None) if is_name(name) => Ok(WorkerUserSpec::Named(name.to_owned())),
            _ => Err(WorkerUserSpecError),
        }
    }
}

impl fmt::Display for WorkerUserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerUserSpec::Named(name) => write!(f, "as user {name}"),
            WorkerUserSpec::Client(None) => f.write_str("each as the user of its job"),
            WorkerUserSpec::Client(Some(other)) => write!(f, "each as the user of its job, or as {other}"),
        }
    }
}

/// Finds the users that the workers of jobs run as, if each is to run as that of its job.
#[derive(Debug)]
pub(super) struct ClientUsers {
    /// For jobs whose user is not known, or root; workers that are started before there is a job run as this one, too.
    pub(super) other: Option<WorkerUser>,
    /// Where each user has a directory for compiled code.
    jit_cache: Option<PathBuf>,
}

impl ClientUsers {
    /// `other`: the user of jobs whose own is not known.
    pub(super) fn new(other: Option<WorkerUser>, jit_cache: Option<&Path>) -> Result<ClientUsers, ServeError> {
        let users = ClientUsers { other: None, jit_cache: jit_cache.map(Path::to_owned) };
        if let Some(directory) = jit_cache {
            let failed = |why: String| ServeError::JitCache { directory: directory.to_owned(), why };
            let about = std::fs::symlink_metadata(directory).map_err(|e| failed(e.to_string()))?;
            if !about.is_dir() || about.uid() != 0 || about.mode() & 0o022 != 0 {
                return Err(failed("with --worker-user client it must be a directory that root alone can write".to_owned()));
            }
            if about.mode() & 0o001 == 0 {
                return Err(failed("users must be able to enter it, for theirs in it (chmod 711)".to_owned()));
            }
        }
        let prepared = |user: WorkerUser| {
            let name = user.name.clone();
            users.prepared(user).map_err(|why| ServeError::WorkerUser { name, why: why.to_string() })
        };
        let other = other.map(prepared).transpose()?;
        Ok(ClientUsers { other, ..users })
    }

    /// The one for the job of a client, given what it has proved; `None`: the one for jobs without. An error is for the client.
    pub(super) fn of(&self, user: Option<&User>) -> Result<Option<Arc<WorkerUser>>, AssignError> {
        let found = match user {
            None => Err("whose job it is is not known by the server's own token, and root's jobs have no other user".to_owned()),
            Some(User::Token(token)) => WorkerUser::named(&token.name),
            Some(User::Munge(account) | User::System(account)) => WorkerUser::numbered(account.uid),
        };
        match (found, &self.other) {
            (Ok(user), _) => {
                let prepared = self.prepared(user).map(|user| Some(Arc::new(user)));
                prepared.map_err(|e| AssignError::WorkerUser(format!("its directory for compiled code cannot be used: {e}")))
            }
            (Err(_), Some(_)) => Ok(None),
            (Err(why), None) => Err(AssignError::WorkerUser(why)),
        }
    }

    /// Makes the user's own directory for compiled code.
    fn prepared(&self, mut user: WorkerUser) -> io::Result<WorkerUser> {
        let jit_cache = self.jit_cache.as_ref().map(|all| {
            let own = all.join(user.uid().to_string());
            make_private(&own, user.uid(), user.gid()).map(|()| own)
        });
        user.jit_cache = jit_cache.transpose()?;
        Ok(user)
    }
}

/// Makes a directory of a user, which nobody else may enter, in one that root alone can write.
fn make_private(directory: &Path, uid: u32, gid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(directory)?;
    // It was made just now, or by a server that has ended before the next line.
    if opened.metadata()?.uid() == 0 {
        opened.set_permissions(Permissions::from_mode(0o700))?;
        fchown(&opened, Some(uid), Some(gid))?;
    }
    let about = opened.metadata()?;
    if about.uid() != uid || about.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} is not the user's own, or others may enter it", directory.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;
    use crate::user::Account;
    use crate::user_tokens::UserToken;

    #[test]
    fn the_user_of_a_job_is_told_from_an_account() {
        let read = |text: &str| text.parse::<WorkerUserSpec>();
        assert_eq!(read("client"), Ok(WorkerUserSpec::Client(None)));
        assert_eq!(read("client,gpu"), Ok(WorkerUserSpec::Client(Some("gpu".into()))));
        // An account of that name is given by its number.
        assert_eq!(read("1001"), Ok(WorkerUserSpec::Named("1001".into())));
        assert_eq!(read("clients"), Ok(WorkerUserSpec::Named("clients".into())));
        for bad in ["", "client,", "client,client", "client,a,b", ",client", "gpu,client", "a b"] {
            assert_eq!(read(bad), Err(WorkerUserSpecError), "{bad}");
        }
        let words = ["gpu", "client", "client,gpu"].map(|text| read(text).unwrap().to_string());
        assert_eq!(words, ["as user gpu", "each as the user of its job", "each as the user of its job, or as gpu"]);
    }

    fn by_number(uid: u32) -> User {
        User::Munge(Arc::new(Account { uid, name: "of no importance".into() }))
    }

    fn by_token(name: &str) -> User {
        User::Token(Arc::new(UserToken { name: name.into(), token: Token([1; 32]), added_unix_ms: 0 }))
    }

    #[test]
    fn a_job_gets_its_own_user_and_never_root() {
        let daemon = WorkerUser::named("daemon").unwrap();
        let users = ClientUsers::new(None, None).unwrap();
        let of =
            |users: &ClientUsers, user: &User| users.of(Some(user)).map(|user| user.map(|user| (user.uid(), user.name.clone())));
        let whole = Some((daemon.uid(), "daemon".to_owned()));
        let system = User::System(Arc::new(Account { uid: daemon.uid(), name: "another name".into() }));
        for user in [by_number(daemon.uid()), system, by_token("daemon")] {
            assert_eq!(of(&users, &user).unwrap(), whole, "{user:?}");
        }
        let strangers = [by_number(0), by_token("root"), by_number(4_000_001), by_token("no-such-user"), by_token("0")];
        let whys: Vec<String> = strangers.iter().map(|user| of(&users, user).unwrap_err().to_string()).collect();
        assert!(whys.iter().all(|why| why.contains("(mrcuda serve --worker-user client)")), "{whys:?}");
        assert!(whys[..2].iter().all(|why| why.contains("root's jobs")), "{whys:?}");
        assert!(whys[2].contains("uid 4000001") && whys[3].contains("no-such-user"), "{whys:?}");
        assert!(users.of(None).unwrap_err().to_string().contains("the server's own token"));
        // With another one for these.
        let other = WorkerUser::named("nobody").unwrap();
        let users = ClientUsers::new(Some(other), None).unwrap();
        for user in &strangers {
            assert_eq!(of(&users, user).unwrap(), None);
        }
        assert_eq!((users.of(None).unwrap(), of(&users, &by_token("daemon")).unwrap()), (None, whole));
        assert_eq!(users.other.unwrap().name, "nobody");
    }

    #[test]
    fn each_user_has_compiled_code_where_no_other_can_write() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("only root can make directories of other users: nothing was tested");
            return;
        }
        let all = std::env::temp_dir().join(format!("mrcuda-worker-users-{}", std::process::id()));
        std::fs::create_dir_all(&all).unwrap();
        let allow = |mode| std::fs::set_permissions(&all, Permissions::from_mode(mode)).unwrap();
        for (mode, why) in [(0o1777, "root alone can write"), (0o775, "root alone can write"), (0o700, "chmod 711")] {
            allow(mode);
            let said = ClientUsers::new(None, Some(&all)).unwrap_err().to_string();
            assert!(said.contains(why), "{mode:o}: {said}");
        }
        allow(0o711);
        let users = ClientUsers::new(None, Some(&all)).unwrap();
        let of = |name: &str| users.of(Some(&by_token(name))).map(Option::unwrap);
        // The second time it is there already.
        for name in ["daemon", "nobody", "daemon"] {
            let user = of(name).unwrap();
            let own = user.jit_cache.clone().unwrap();
            let about = std::fs::symlink_metadata(&own).unwrap();
            assert_eq!((own.parent(), about.uid(), about.mode() & 0o777), (Some(&*all), user.uid(), 0o700));
        }
        let own = of("daemon").unwrap().jit_cache.clone().unwrap();
        std::fs::set_permissions(&own, Permissions::from_mode(0o750)).unwrap();
        assert!(of("daemon").unwrap_err().to_string().contains("is not the user's own, or others may enter it"));
        std::fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink(all.join("elsewhere"), &own).unwrap();
        assert!(of("daemon").is_err(), "a link is not followed");
        std::fs::remove_dir_all(&all).unwrap();
    }
}
