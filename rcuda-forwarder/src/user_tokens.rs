//! The file with the tokens of a server's users.
//!
//! Each line is `NAME TOKEN ADDED`: the user, 64 hexadecimal digits, and when the token was made, in milliseconds since 1970. Empty lines
//! and lines that begin with `#` are ignored. The file holds the tokens themselves, because the proofs of a greeting are hashes with the
//! token as key, which the server must calculate as well.

use crate::config_file;
use crate::token::{self, Token};
use cuda_api::clock::unix_ms;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of users of a server: it compares the proof of a greeting with one for each.
const USERS: usize = 1024;
/// Maximum size of the file.
const FILE: u64 = 1 << 20;
/// Maximum length of a user's name.
const LONGEST_NAME: usize = 64;
/// The first line of a new file.
const HEAD: &str = "# The tokens of this server's users: name, token, ms since 1970. Change it with `mrcuda token`.\n";

/// A user of a server, and the token by which the server recognizes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserToken {
    /// The user's name.
    pub name: String,
    /// The token.
    pub token: Token,
    /// When it was made, in milliseconds since 1970.
    pub added_unix_ms: u64,
}

/// Why the tokens of users cannot be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    /// The file could not be read.
    #[error("cannot read the tokens file {path}: {why}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// The file could not be written.
    #[error("cannot write the tokens file {path}: {why}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// Other users of the machine can read the file.
    #[error("the tokens file {path} can be read by others; run: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file is too long.
    #[error("the tokens file {path} has more than {} KiB", FILE >> 10)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line of the file makes no sense.
    #[error("the tokens file {path} has an error in line {line}: {why}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        why: LineError,
    },
    /// No user can have this name.
    #[error("`{}` cannot be the name of a user: a name has 1 to {LONGEST_NAME} letters, digits, dots, dashes or underscores", shown(.0))]
    Name(String),
    /// The user has a token.
    #[error("{name} has a token in {path} already (mrcuda token revoke {name} removes it)")]
    Taken {
        /// The user.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// The user has no token.
    #[error("{path} has no token of a user {name} (mrcuda token list shows the users)")]
    Unknown {
        /// The user.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// There are as many users as there may be.
    #[error("{path} has the tokens of {USERS} users, and a server has no more")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// No token could be drawn.
    #[error("cannot draw a token: {0}")]
    Draw(String),
}

/// What is wrong with a line. The text names no part of the line, which may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is not text.
    #[error("it is not UTF-8")]
    Text,
    /// It has other fields.
    #[error("a line is NAME TOKEN ADDED, with spaces between them")]
    Fields,
    /// The name is invalid.
    #[error("a name has 1 to {LONGEST_NAME} letters, digits, dots, dashes or underscores")]
    Name,
    /// The token is invalid.
    #[error("a token has 64 hexadecimal digits")]
    Token,
    /// The time is invalid.
    #[error("the third field must be the time in ms since 1970 at which the token was made")]
    Added,
    /// Another line has the same name.
    #[error("another line has the same name")]
    SameName,
    /// Another line has the same token.
    #[error("another line has the same token")]
    SameToken,
    /// There are too many users.
    #[error("a server has no more than {USERS} users")]
    TooMany,
}

/// Whether a user can have this name.
fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The beginning of what was given as a name, for a message.
fn shown(name: &str) -> String {
    name.chars().take(LONGEST_NAME).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The user of a line; `None` if the line is empty or a comment.
fn read_line(line: &str) -> Result<Option<UserToken>, LineError> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, token, added] = fields[..] else { return Err(LineError::Fields) };
    if !is_name(name) {
        return Err(LineError::Name);
    }
    let token = token::parse(token).ok_or(LineError::Token)?;
    let added_unix_ms = added.parse().map_err(|_| LineError::Added)?;
    Ok(Some(UserToken { name: name.to_owned(), token, added_unix_ms }))
}

/// The users of a file's lines, in their order; an error has the number of its line, from 1.
pub(crate) fn read_lines(content: &[u8]) -> Result<Vec<UserToken>, (usize, LineError)> {
    let (mut names, mut tokens, mut users) = (HashSet::new(), HashSet::new(), Vec::new());
    for (line, n) in content.split(|b| *b == b'\n').zip(1..) {
        let text = std::str::from_utf8(line).map_err(|_| (n, LineError::Text))?;
        let Some(user) = read_line(text).map_err(|why| (n, why))? else { continue };
        if !names.insert(user.name.clone()) {
            return Err((n, LineError::SameName));
        }
        if !tokens.insert(user.token.0) {
            return Err((n, LineError::SameToken));
        }
        if users.len() == USERS {
            return Err((n, LineError::TooMany));
        }
        users.push(user);
    }
    Ok(users)
}

/// The file. One that does not exist has no users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokensFile {
    path: PathBuf,
}

impl TokensFile {
    /// The file at this path.
    pub fn new(path: PathBuf) -> TokensFile {
        TokensFile { path }
    }

    /// The usual one: `tokens`, beside the server's own token.
    pub fn beside(token: &Path) -> TokensFile {
        TokensFile::new(config_file::parent(token).join("tokens"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The users, in the order in which they were added.
    pub fn users(&self) -> Result<Vec<UserToken>, TokensError> {
        Ok(self.read()?.1)
    }

    /// Makes a token for a new user. Processes that do this at the same time take turns.
    pub fn add(&self, name: &str) -> Result<UserToken, TokensError> {
        if !is_name(name) {
            return Err(TokensError::Name(name.to_owned()));
        }
        let _turn = config_file::lock(&self.path).map_err(|e| self.not_written(&e))?;
        let (mut content, users) = self.read()?;
        if users.iter().any(|user| user.name == name) {
            return Err(TokensError::Taken { name: name.to_owned(), path: self.path.clone() });
        }
        if users.len() >= USERS {
            return Err(TokensError::Full { path: self.path.clone() });
        }
        let token = Token::draw().map_err(|e| TokensError::Draw(e.to_string()))?;
        let user = UserToken { name: name.to_owned(), token, added_unix_ms: unix_ms() };
        if content.is_empty() {
            content.extend(HEAD.as_bytes());
        } else if content.last() != Some(&b'\n') {
            content.push(b'\n');
        }
        content.extend(format!("{name} {} {}\n", user.token.digits(), user.added_unix_ms).as_bytes());
        if content.len() as u64 > FILE {
            return Err(TokensError::TooLong { path: self.path.clone() });
        }
        self.write(&content)?;
        Ok(user)
    }

    /// Removes a user's token. Processes that do this at the same time take turns.
    pub fn revoke(&self, name: &str) -> Result<UserToken, TokensError> {
        let unknown = || TokensError::Unknown { name: shown(name), path: self.path.clone() };
        if !self.path.exists() {
            return Err(unknown());
        }
        let _turn = config_file::lock(&self.path).map_err(|e| self.not_written(&e))?;
        let (content, users) = self.read()?;
        let user = users.into_iter().find(|user| user.name == name).ok_or_else(unknown)?;
        // Other lines stay as they are, comments too.
        let is_of_user = |line: &[u8]| {
            let line = std::str::from_utf8(line).ok().and_then(|line| read_line(line).ok()?);
            line.is_some_and(|of_line| of_line.name == name)
        };
        let kept: Vec<&[u8]> = content.split_inclusive(|b| *b == b'\n').filter(|line| !is_of_user(line)).collect();
        self.write(&kept.concat())?;
        Ok(user)
    }

    /// The content of the file, and its users.
    fn read(&self) -> Result<(Vec<u8>, Vec<UserToken>), TokensError> {
        let path = || self.path.clone();
        let (content, is_open) = match config_file::read(&self.path, FILE + 1) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            read => read.map_err(|e| TokensError::Read { path: path(), why: e.to_string() })?,
        };
        if content.len() as u64 > FILE {
            return Err(TokensError::TooLong { path: path() });
        }
        let users = read_lines(&content).map_err(|(line, why)| TokensError::Line { path: path(), line, why })?;
        if is_open { Err(TokensError::Open { path: path() }) } else { Ok((content, users)) }
    }

    fn write(&self, content: &[u8]) -> Result<(), TokensError> {
        config_file::replace(&self.path, content).map_err(|e| self.not_written(&e))
    }

    fn not_written(&self, e: &io::Error) -> TokensError {
        TokensError::Write { path: self.path.clone(), why: e.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A file in a directory of its own, which is removed at the end.
    struct Scene(TokensFile);

    impl Scene {
        fn new(name: &str) -> Scene {
            let dir = std::env::temp_dir().join(format!("mrcuda-tokens-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            Scene(TokensFile::beside(&dir.join("token")))
        }

        /// Writes the file as an editor would, readable by its owner only.
        fn write(&self, content: &[u8]) {
            fs::create_dir_all(self.0.path().parent().unwrap()).unwrap();
            fs::write(self.0.path(), content).unwrap();
            fs::set_permissions(self.0.path(), fs::Permissions::from_mode(0o600)).unwrap();
        }

        fn names(&self) -> Vec<String> {
            self.0.users().unwrap().into_iter().map(|user| user.name).collect()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path().parent().unwrap());
        }
    }

    fn line(name: &str, digit: &str) -> String {
        format!("{name} {} 5\n", digit.repeat(64))
    }

    #[test]
    fn users_are_added_and_revoked() {
        let s = Scene::new("change");
        let file = &s.0;
        assert_eq!(file.users().unwrap(), []);
        let before = unix_ms();
        let [ann, bob] = ["ann", "bob.smith-2_x"].map(|name| file.add(name).unwrap());
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(file.users().unwrap(), [ann.clone(), bob.clone()]);
        assert!(ann.token != bob.token && (before..=unix_ms()).contains(&ann.added_unix_ms));
        assert!(ann.token.fingerprint() != bob.token.fingerprint() && ann.token.fingerprint().len() == 16);
        assert!(!ann.token.digits().contains(&ann.token.fingerprint()));
        assert!(matches!(file.add("ann"), Err(TokensError::Taken { .. })));
        assert_eq!(file.revoke("ann").unwrap(), ann);
        assert!(matches!(file.revoke("ann"), Err(TokensError::Unknown { .. })));
        assert_eq!(file.users().unwrap(), [bob]);
        assert_ne!(file.add("ann").unwrap().token, ann.token, "a new token, not the old one");
        assert_eq!(s.names(), ["bob.smith-2_x", "ann"]);
        let beside = |name: &str| !["tokens", "tokens.lock"].contains(&name);
        let files = fs::read_dir(file.path().parent().unwrap()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(files.filter(|name| beside(name)).count(), 0, "no half-made file stays");
    }

    #[test]
    fn a_file_that_is_not_there_is_not_made_to_revoke_a_token() {
        let s = Scene::new("absent");
        assert!(matches!(s.0.revoke("ann"), Err(TokensError::Unknown { .. })));
        assert!(!s.0.path().parent().unwrap().exists());
    }

    #[test]
    fn lines_of_people_stay_as_they_are() {
        let s = Scene::new("kept");
        // The last line is not complete.
        let text = format!("# the lab\n\n  {}# guests\r\n{}", line("ann", "a"), line("bob", "B").trim_end());
        s.write(text.as_bytes());
        assert_eq!(s.names(), ["ann", "bob"]);
        s.0.add("eve").unwrap();
        s.0.revoke("ann").unwrap();
        let now = fs::read_to_string(s.0.path()).unwrap();
        let eve = s.0.users().unwrap()[1].token.digits();
        assert!(now.starts_with(&format!("# the lab\n\n# guests\r\n{}eve {eve} ", line("bob", "B"))), "{now}");
    }

    #[test]
    fn names_are_bounded() {
        let s = Scene::new("names");
        let long = "x".repeat(LONGEST_NAME + 1);
        for bad in ["", " ", "a b", "a\n", "a\tb", "é", "a/b", "a:b", "#a", "\u{1b}[31m", &long] {
            let why = s.0.add(bad).unwrap_err();
            assert!(matches!(why, TokensError::Name(_)) && !why.to_string().contains('\u{1b}'), "{bad}");
        }
        assert!(!s.0.path().exists());
        for good in ["a", ".", "-", "A.b_c-9", &long[1..]] {
            s.0.add(good).unwrap();
        }
        assert_eq!(s.names().len(), 5);
    }

    #[test]
    fn a_broken_file_is_named_by_its_line_and_is_not_changed() {
        let s = Scene::new("broken");
        let (ann, bob) = (line("ann", "a"), line("bob", "b"));
        let bad = |n: usize, text: String, why: LineError| (n, text.into_bytes(), why);
        let cases = [
            bad(2, format!("{ann}bob\n"), LineError::Fields),
            bad(1, ann.replace(" 5", " 5 6"), LineError::Fields),
            bad(3, format!("{ann}\n{}", line("a/b", "b")), LineError::Name),
            bad(1, line(&"x".repeat(LONGEST_NAME + 1), "b"), LineError::Name),
            bad(1, line("ann", "g"), LineError::Token),
            bad(1, line("ann", "aa"), LineError::Token),
            bad(1, ann.replace(" 5", " x"), LineError::Added),
            bad(1, ann.replace(" 5", " 99999999999999999999"), LineError::Added),
            bad(2, format!("{ann}{}", line("ann", "c")), LineError::SameName),
            bad(2, format!("{ann}{}", line("bob", "A")), LineError::SameToken),
            (2, [ann.as_bytes(), &[0xff, 0xfe], bob.as_bytes()].concat(), LineError::Text),
        ];
        for (line, content, why) in cases {
            s.write(&content);
            let wanted = TokensError::Line { path: s.0.path().to_owned(), line, why };
            assert_eq!(s.0.users().unwrap_err(), wanted);
            assert_eq!((s.0.add("new").unwrap_err(), s.0.revoke("ann").unwrap_err()), (wanted.clone(), wanted.clone()));
            assert_eq!(fs::read(s.0.path()).unwrap(), content);
            assert!(!wanted.to_string().contains("aaaa"), "no secret is printed: {wanted}");
        }
    }

    #[test]
    fn files_of_others_and_those_that_are_too_long_are_refused() {
        let s = Scene::new("open");
        s.write(line("ann", "a").as_bytes());
        fs::set_permissions(s.0.path(), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(s.0.users(), Err(TokensError::Open { .. })) && matches!(s.0.add("b"), Err(TokensError::Open { .. })));
        s.write(&vec![b'\n'; FILE as usize]);
        assert!(s.0.users().is_ok() && matches!(s.0.add("ann"), Err(TokensError::TooLong { .. })));
        s.write(&vec![b'\n'; FILE as usize + 1]);
        assert!(matches!(s.0.users(), Err(TokensError::TooLong { .. })));
        fs::remove_file(s.0.path()).unwrap();
        nix::unistd::mkfifo(s.0.path(), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(s.0.users(), Err(TokensError::Read { .. })), "nobody waits for a writer");
    }

    #[test]
    fn the_number_of_users_is_bounded() {
        let s = Scene::new("many");
        let all = |n: usize| (0..n).map(|n| format!("u{n} {n:064x} 5\n")).collect::<String>();
        s.write(all(USERS).as_bytes());
        assert_eq!(s.names().len(), USERS);
        assert!(matches!(s.0.add("ann"), Err(TokensError::Full { .. })));
        s.write(all(USERS + 1).as_bytes());
        let why = s.0.users().unwrap_err();
        assert!(matches!(why, TokensError::Line { line, why: LineError::TooMany, .. } if line == USERS + 1), "{why}");
    }

    #[test]
    fn changes_at_the_same_time_lose_no_line_and_readers_see_whole_files() {
        let s = Scene::new("concurrent");
        (0..8).for_each(|n| drop(s.0.add(&format!("old-{n}")).unwrap()));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Each line is whole, and those that nobody removes are there.
                    assert!((8..=40).contains(&s.0.users().unwrap().len()));
                }
            });
            let changes: Vec<_> = (0..8)
                .map(|n| {
                    let file = &s.0;
                    threads.spawn(move || {
                        (0..4).for_each(|k| drop(file.add(&format!("new-{n}-{k}")).unwrap()));
                        file.revoke(&format!("old-{n}")).unwrap();
                    })
                })
                .collect();
            changes.into_iter().for_each(|change| change.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        let names = s.names();
        assert_eq!(names.len(), 32, "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("new-")), "{names:?}");
    }
}
