//! A secret that a server and a client share.

use crate::config_file;
use cuda_api::hex::hex;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A secret of 256 bits, kept as 64 hexadecimal digits in a file that only its owner can read.
#[derive(Clone, Eq)]
pub struct Token(pub(crate) [u8; 32]);

impl PartialEq for Token {
    /// Takes the same time wherever the two differ.
    fn eq(&self, other: &Token) -> bool {
        blake3::Hash::from(self.0) == blake3::Hash::from(other.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file could not be read.
    #[error("cannot read the token file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be created.
    #[error("cannot make the token file {path}: {source}")]
    Make {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("the token file {path} can be read by others; run: chmod 600 {path}")]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file contains something else.
    #[error(
        "the token file {path} does not hold 64 hexadecimal digits: copy the server's, or remove it and let `mrcuda serve` make one"
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
}

/// Bytes from the system's source of randomness.
pub(crate) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Token {
    /// A new one, drawn at random.
    pub(crate) fn draw() -> io::Result<Token> {
        Ok(Token(random()?))
    }

    /// The secret itself, as its file has it.
    pub fn digits(&self) -> String {
        hex(&self.0)
    }

    /// 16 hexadecimal digits by which people compare tokens; they do not reveal the token.
    pub fn fingerprint(&self) -> String {
        hex(&blake3::derive_key("mrcuda 2026 token fingerprint", &self.0)[..8])
    }

    /// `$MRCUDA_TOKEN_FILE`, else `$XDG_CONFIG_HOME/mrcuda/token`, else `~/.config/mrcuda/token`.
    pub fn default_path() -> PathBuf {
        config_file::variable("MRCUDA_TOKEN_FILE").unwrap_or_else(|| config_file::directory().join("token"))
    }

    /// Reads the token; a file that other users can read is refused.
    pub fn load(path: &Path) -> Result<Token, TokenError> {
        // A token is 64 digits, so a file with more than some white space after them is not read completely.
        let read = config_file::read(path, 256).map_err(|source| TokenError::Read { path: path.into(), source });
        let (text, is_open) = read?;
        let token = std::str::from_utf8(&text).ok().and_then(|text| parse(text.trim()));
        // The permissions are only reported for a file that contains a token.
        let token = token.ok_or_else(|| TokenError::Content { path: path.into() })?;
        if is_open { Err(TokenError::Open { path: path.into() }) } else { Ok(token) }
    }

    /// Reads the token, or creates one: the file appears atomically, readable by its owner only.
    pub fn load_or_create(path: &Path) -> Result<Token, TokenError> {
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            _ => return Token::load(path),
        }
        match create(path) {
            // Another process was faster; its token is used.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Token::load(path),
            Err(source) => Err(TokenError::Make { path: path.into(), source }),
            Ok(token) => Ok(token),
        }
    }
}

fn create(path: &Path) -> io::Result<Token> {
    let token = Token::draw()?;
    config_file::create(path, format!("{}\n", token.digits()).as_bytes())?;
    Ok(token)
}

/// Reads 64 hexadecimal digits.
pub(crate) fn parse(text: &str) -> Option<Token> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(Token(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("mrcuda-token-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn made_once_for_its_owner_only() {
        let dir = directory("made");
        let path = dir.join("deep").join("token");
        let made = Token::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Token::load_or_create(&path).unwrap(), made);
        assert_eq!(Token::load(&path).unwrap(), made);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no half-made file stays");
        assert_eq!(format!("{made:?}"), "Token(secret)");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn open_files_and_wrong_content_are_refused() {
        let dir = directory("bad");
        let path = dir.join("token");
        Token::load_or_create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Token::load(&path), Err(TokenError::Open { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "abc", &"g".repeat(64), &"a".repeat(65), &"é".repeat(32)] {
            fs::write(&path, bad).unwrap();
            assert!(matches!(Token::load(&path), Err(TokenError::Content { .. })), "{bad}");
        }
        for none in [dir.clone(), dir.join("none")] {
            assert!(matches!(Token::load(&none), Err(TokenError::Read { .. })));
        }
        nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(Token::load(&dir.join("pipe")), Err(TokenError::Read { .. })), "nobody waits for a writer");
        fs::remove_dir_all(dir).unwrap();
    }
}
