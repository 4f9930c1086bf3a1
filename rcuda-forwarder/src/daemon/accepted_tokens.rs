//! The tokens that a daemon accepts: its own, and those of its users, whose file may change while it serves.
//!
//! There is no thread that watches the file. Whoever needs the tokens looks at the file's metadata first, and reads it again if they have
//! changed.

use super::log::{Log, LogLine};
use crate::secret::Secret;
use crate::sync::lock;
use crate::token::Token;
use crate::user::User;
use crate::user_tokens::{TokensError, TokensFile, UserToken};
use cuda_api::clock::unix_ms;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

/// A file that has changed within so many seconds is read again even if its metadata are the same: their time has steps of some
/// milliseconds, within which it may change twice.
const RECENT: i64 = 2;

/// By what a change of the file is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    /// Device and inode: a replaced file is another one.
    file: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds of the last change, also of its mode.
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp { file: (meta.dev(), meta.ino()), size: meta.size(), changed: (meta.ctime(), meta.ctime_nsec()) }
    }

    /// Whether the file has changed so recently that another change might have the same time. `now`: seconds since 1970.
    fn is_recent(&self, now: i64) -> bool {
        // Also if the time is in the future, because clocks differ.
        now.saturating_sub(self.changed.0) <= RECENT
    }
}

/// What was found at the last look.
#[derive(Debug)]
struct Seen {
    /// `None`: the file must be read at the next look.
    stamp: Option<Option<Stamp>>,
    /// The server's own token, and those of its users.
    secrets: Arc<[Secret]>,
    /// Why the file could not be read, if the log says so already.
    failure: Option<TokensError>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct AcceptedTokens {
    own: Token,
    file: TokensFile,
    seen: Mutex<Seen>,
    log: Log,
}

impl AcceptedTokens {
    /// Reads the file. While a server starts, a file that cannot be read is an error.
    pub(super) fn open(own: Token, file: TokensFile, log: Log) -> Result<AcceptedTokens, TokensError> {
        let secrets = secrets(&own, file.users()?);
        Ok(AcceptedTokens { own, file, seen: Mutex::new(Seen { stamp: None, secrets, failure: None }), log })
    }

    /// The file with the tokens of users.
    pub(super) fn file(&self) -> &TokensFile {
        &self.file
    }

    /// The tokens now.
    pub(super) fn current(&self) -> Arc<[Secret]> {
        let mut seen = lock(&self.seen);
        let stamp = match fs::metadata(self.file.path()) {
            Ok(meta) => Ok(Some(Stamp::of(&meta))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(TokensError::Read { path: self.file.path().to_owned(), why: e.to_string() }),
        };
        match stamp {
            Ok(stamp) if seen.stamp == Some(stamp) => {}
            stamp => self.read(&mut seen, stamp),
        }
        seen.secrets.clone()
    }

    /// Whether the token that a user has shown is still accepted.
    pub(super) fn accepts(&self, user: &User) -> bool {
        self.current().iter().any(|known| known.user.as_ref() == Some(user))
    }

    /// Number of users.
    pub(super) fn users(&self) -> usize {
        self.current().len() - 1
    }

    fn read(&self, seen: &mut Seen, stamp: Result<Option<Stamp>, TokensError>) {
        // The stamp is from before: if the file changes meanwhile, the next look finds another one.
        let read = stamp.and_then(|stamp| Ok((stamp, self.file.users()?)));
        let (stamp, users) = match read {
            Ok(read) => read,
            Err(why) => {
                // Read again at each look, since a file can become readable without a change of its own; logged once.
                seen.stamp = None;
                if seen.failure.as_ref() != Some(&why) {
                    let text = format!("{why}; the server keeps the tokens that it read before");
                    (self.log)(&LogLine::warning(text));
                    seen.failure = Some(why);
                }
                return;
            }
        };
        let now = i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX);
        let is_recent = stamp.is_some_and(|stamp| stamp.is_recent(now));
        seen.stamp = (!is_recent).then_some(stamp);
        let secrets = secrets(&self.own, users);
        let change = changes(&seen.secrets, &secrets);
        if seen.failure.take().is_some() || !change.is_empty() {
            let text = format!("the tokens file {} was read: {}", self.file.path().display(), words(&change, secrets.len() - 1));
            (self.log)(&LogLine::info(text));
        }
        seen.secrets = secrets;
    }
}

/// The server's own token, and then those of its users. A user who has the server's own would keep it when revoked, so such a line counts
/// for nothing.
fn secrets(own: &Token, users: Vec<UserToken>) -> Arc<[Secret]> {
    let others = users.into_iter().filter(|user| user.token != *own).map(Secret::of_user);
    [Secret::of_nobody(own.0)].into_iter().chain(others).collect()
}

/// Maximum number of users that one line of the log names.
const NAMED: usize = 10;

/// What has happened to the tokens of users, with their names.
fn changes(before: &[Secret], after: &[Secret]) -> Vec<(&'static str, Arc<str>)> {
    let names = |of: &[Secret], others: &[Secret]| -> BTreeSet<Arc<str>> {
        let others: HashSet<([u8; 32], Option<Arc<str>>)> = others.iter().map(|other| (other.key, other.user_name())).collect();
        of.iter().filter(|secret| !others.contains(&(secret.key, secret.user_name()))).filter_map(Secret::user_name).collect()
    };
    let (gone, new) = (names(before, after), names(after, before));
    let word = |name: &Arc<str>| match (gone.contains(name), new.contains(name)) {
        (true, true) => "has another token",
        (true, false) => "was revoked",
        _ => "was added",
    };
    gone.union(&new).map(|name| (word(name), name.clone())).collect()
}

fn words(change: &[(&'static str, Arc<str>)], users: usize) -> String {
    let named = change.iter().take(NAMED).map(|(what, name)| format!("{name} {what}; "));
    let others = if change.len() > NAMED { format!("{} more have changed; ", change.len() - NAMED) } else { String::new() };
    let users = if users == 1 { "1 user".to_owned() } else { format!("{users} users") };
    format!("{}{others}it has {users}", named.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn log(line: &LogLine) {
        lock(&LOG).push(line.words());
    }

    /// The lines of the log about a file.
    fn logged(file: &TokensFile) -> Vec<String> {
        lock(&LOG).iter().filter(|line| line.contains(&file.path().display().to_string())).cloned().collect()
    }

    struct Scene(PathBuf, AcceptedTokens);

    impl Scene {
        fn new(name: &str) -> Scene {
            let dir = std::env::temp_dir().join(format!("mrcuda-accepted-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            let tokens = AcceptedTokens::open(Token([1; 32]), TokensFile::beside(&dir.join("token")), log).unwrap();
            Scene(dir, tokens)
        }

        fn names(&self) -> Vec<Option<String>> {
            self.1.current().iter().map(|secret| secret.user_name().map(|name| name.to_string())).collect()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn changes_are_noticed_at_the_next_look_however_fast_they_come() {
        let s = Scene::new("changes");
        let tokens = &s.1;
        assert_eq!((s.names(), tokens.users()), (vec![None], 0));
        let ann = tokens.file().add("ann").unwrap();
        let user = User::Token(Arc::new(ann.clone()));
        assert_eq!(s.names(), [None, Some("ann".into())]);
        assert!(tokens.accepts(&user));
        // The name alone does not count: the new token is another one.
        for _ in 0..50 {
            tokens.file().revoke("ann").unwrap();
            tokens.file().add("ann").unwrap();
            assert!(!tokens.accepts(&user) && tokens.users() == 1);
        }
        tokens.file().revoke("ann").unwrap();
        assert_eq!(s.names(), [None]);
        let log = logged(tokens.file());
        assert!(log[0].ends_with("was read: ann was added; it has 1 user"), "{log:?}");
        assert!(log[1].ends_with("ann has another token; it has 1 user"), "{log:?}");
        assert!(log.last().unwrap().ends_with("ann was revoked; it has 0 users"), "{log:?}");
        assert!(!log.iter().any(|line| line.contains(&ann.token.digits())));
    }

    #[test]
    fn a_broken_file_is_logged_once_and_leaves_what_was() {
        let s = Scene::new("broken");
        let (tokens, path) = (&s.1, s.1.file().path().to_owned());
        tokens.file().add("ann").unwrap();
        assert_eq!(tokens.users(), 1);
        let good = fs::read(&path).unwrap();
        let write = |content: &[u8], mode: u32| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (content, mode, wanted) in [
            (
                &b"ann\n"[..],
                0o600,
                "has an error in line 1: a line is NAME TOKEN ADDED, with spaces between them; the server keeps",
            ),
            (&good, 0o644, "can be read by others"),
        ] {
            write(content, mode);
            let before = logged(tokens.file()).len();
            for _ in 0..3 {
                assert_eq!(s.names(), [None, Some("ann".into())]);
            }
            let log = logged(tokens.file()).split_off(before);
            assert!(matches!(&log[..], [line] if line.contains(wanted)), "{log:?}");
        }
        write(&good, 0o600);
        assert_eq!(tokens.users(), 1);
        assert!(logged(tokens.file()).last().unwrap().ends_with("was read: it has 1 user"));
        // A file that was removed shuts everybody out but the server's own token.
        fs::remove_file(&path).unwrap();
        assert_eq!(s.names(), [None]);
        // A server does not start with a broken one.
        write(b"ann\n", 0o600);
        let started = AcceptedTokens::open(Token([1; 32]), tokens.file().clone(), log);
        assert!(matches!(started, Err(TokensError::Line { line: 1, .. })));
    }

    #[test]
    fn a_file_that_changed_long_ago_is_not_read_again() {
        let s = Scene::new("old");
        s.1.file().add("ann").unwrap();
        assert_eq!(s.1.users(), 1);
        assert_eq!(lock(&s.1.seen).stamp, None, "it has just changed");
        let long_ago = Stamp { file: (0, 0), size: 0, changed: (5, 0) };
        assert!(!long_ago.is_recent(9) && long_ago.is_recent(6) && long_ago.is_recent(3));
        assert!(Stamp { changed: (i64::MAX, 0), ..long_ago }.is_recent(9), "in the future");
        // Without a file there is nothing to read again.
        s.1.file().revoke("ann").unwrap();
        fs::remove_file(s.1.file().path()).unwrap();
        assert_eq!((s.1.users(), lock(&s.1.seen).stamp), (0, Some(None)));
    }

    #[test]
    fn long_lists_of_changes_are_cut() {
        let user = |n: usize| UserToken { name: format!("u{n:02}"), token: Token([n as u8; 32]), added_unix_ms: 5 };
        let users = |n: usize| (0..n).map(|n| Secret::of_user(user(n))).collect::<Vec<_>>();
        let text = words(&changes(&[], &users(12)), 12);
        assert!(
            text.starts_with("u00 was added; u01") && text.ends_with("u09 was added; 2 more have changed; it has 12 users"),
            "{text}"
        );
    }
}
