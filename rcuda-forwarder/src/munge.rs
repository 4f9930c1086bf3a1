//! munge: on a cluster a daemon on each machine, munged, certifies as which user a process runs, with a key that all these machines have.
//!
//! A client that shows a credential of munge has no token. It draws a secret for this one greeting and sends it in the credential, which only
//! processes of the server's user can decode: by this secret both then prove, as by a token, that they have seen the same greeting. So a
//! program of another user that answers in the server's place learns nothing and is refused. The credential also contains a digest of
//! the greeting ([`Bound`]): one of the server's user cannot pass it on to another server.

use crate::config_file;
use crate::threads;
use library::{Context, Library};
use nix::unistd::User;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

mod error;
mod library;

pub use error::MungeError;

/// Maximum length of a credential. Those of this program have about 250 bytes.
pub(crate) const LONGEST: usize = 512;
/// Credentials of this program begin so: after munge's own head, version 3, AES-128, SHA-256 and no compression, in base64. munged sees no others
/// of a client that has proved nothing: so none that is not encrypted, and of its code only what reads these.
const HEAD: &[u8] = b"MUNGE:AwQFA";

/// The user that the kernel reports for those who do not exist in the user namespace of munged.
pub(crate) const UNKNOWN_USER: u32 = 65534;

/// How a client uses munge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Munge {
    /// The user that servers run as: a name, or a number.
    pub server: String,
    /// munged's socket; `None`: the usual one.
    pub socket: Option<PathBuf>,
}

impl Munge {
    /// As the environment says: `MRCUDA_MUNGE` and `MRCUDA_MUNGE_SOCKET`; `None` without the former.
    pub fn from_environment() -> Option<Munge> {
        let server = config_file::variable("MRCUDA_MUNGE")?.to_string_lossy().into_owned();
        Some(Munge { server, socket: config_file::variable("MRCUDA_MUNGE_SOCKET") })
    }

    /// Makes a credential of this process.
    pub(crate) fn encode(&self, bound: &Bound) -> Result<Credential, MungeError> {
        encode(self.socket.as_deref(), bound, self.server_uid()?)
    }

    /// Asks munged for a credential, which nobody gets.
    pub fn check(&self) -> Result<(), MungeError> {
        self.encode(&Bound { greeting: [0; 32], key: [0; 32] }).map(drop)
    }

    fn server_uid(&self) -> Result<u32, MungeError> {
        let unknown = || MungeError::ServerUser(self.server.clone());
        let number = self.server.parse().ok().or_else(|| Some(User::from_name(&self.server).ok()??.uid.as_raw()));
        // To munge, the one number is any user, and the other one all whom munged does not know.
        number.filter(|uid| ![u32::MAX, UNKNOWN_USER].contains(uid)).ok_or_else(unknown)
    }
}

/// What a credential contains.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Identifies the greeting.
    pub(crate) greeting: [u8; 32],
    /// The secret of this greeting.
    pub(crate) key: [u8; 32],
}

impl Bound {
    fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.greeting);
        bytes[32..].copy_from_slice(&self.key);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Bound> {
        let (greeting, key) = bytes.split_at_checked(32)?;
        Some(Bound { greeting: greeting.try_into().ok()?, key: key.try_into().ok()? })
    }
}

/// A credential that has the form of one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credential(CString);

impl Credential {
    /// Reads what a client has sent.
    pub(crate) fn read(bytes: Vec<u8>) -> Option<Credential> {
        let is_base64 = |inside: &[u8]| inside.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(b));
        let inside = bytes.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix(b":"));
        let has_form = bytes.len() <= LONGEST && inside.is_some_and(is_base64);
        CString::new(bytes).ok().filter(|_| has_form).map(Credential)
    }

    /// What is sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Has munged check a credential. Returns the user whose process has made it, and what it contains.
pub(crate) fn decode(socket: Option<&Path>, credential: &Credential) -> Result<(u32, Bound), MungeError> {
    let decoded = with_context(socket, |context| context.decode(&credential.0));
    let (uid, payload) = decoded.map_err(|why| match why {
        MungeError::Library(why) | MungeError::Daemon(why) | MungeError::Failed(why) => MungeError::AtServer(why),
        why => why,
    })?;
    // Others make credentials, too: for other programs.
    Bound::read(&payload).map(|bound| (uid, bound)).ok_or(MungeError::OtherConnection)
}

/// Makes a credential of this process for processes of the user `reader`.
pub(crate) fn encode(socket: Option<&Path>, bound: &Bound, reader: u32) -> Result<Credential, MungeError> {
    let made = with_context(socket, |context| context.encode(&bound.bytes(), reader))?;
    Credential::read(made.into_bytes()).ok_or_else(|| MungeError::Failed("a credential of an unknown form".to_owned()))
}

/// Uses libmunge in a thread with all signals blocked: it writes to a socket, and if munged ends meanwhile, the signal for that must not reach the
/// program. It waits some seconds at most for a munged that does not answer.
fn with_context<T: Send>(
    socket: Option<&Path>,
    body: impl FnOnce(Context) -> Result<T, MungeError> + Send,
) -> Result<T, MungeError> {
    let socket = socket.map(|path| CString::new(path.as_os_str().as_bytes())).transpose();
    let socket = socket.map_err(|_| MungeError::Failed("the socket's path has a zero byte".to_owned()))?;
    let socket: Option<&CStr> = socket.as_deref();
    // By this thread: it may hold the loader's lock, for example in a constructor of the program.
    Library::get()?;
    std::thread::scope(|scope| {
        let thread = threads::spawn_scoped(scope, "munge", || body(Context::new(socket)?));
        let thread = thread.map_err(|e| MungeError::Failed(format!("no thread: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(MungeError::Failed("its thread has panicked".to_owned())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use munged::Munged;
    use nix::unistd::geteuid;
    use std::process::Command;
    use std::time::Duration;

    const BOUND: Bound = Bound { greeting: [1; 32], key: [2; 32] };

    fn read(text: &[u8]) -> Option<Credential> {
        Credential::read(text.to_vec())
    }

    #[test]
    fn only_what_looks_like_a_credential_reaches_munged() {
        assert_eq!(read(b"MUNGE:AwQFAAA/+=:").unwrap().bytes(), b"MUNGE:AwQFAAA/+=:");
        let long = |n: usize| [HEAD, &vec![b'A'; n - HEAD.len() - 1], b":"].concat();
        assert!(read(&long(LONGEST)).is_some() && read(&long(LONGEST + 1)).is_none());
        for bad in [
            &b""[..],
            b"munge:AwQFAA:",
            b"MUNGE:AwQFAA",
            b"MUNGE:AwQFA:A:",
            b"MUNGE:AwQFAA:\0",
            b"MUNGE:AwQFA\n:",
            b"MUNGE:AwQFA :",
            b"MUNGE:AwQFA\xff:",
            // Not encrypted, or by another cipher.
            b"MUNGE:AwAFAA:",
            b"MUNGE:AwMFAA:",
        ] {
            assert!(read(bad).is_none(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn the_user_of_servers_has_a_name_or_a_number() {
        let uid = |server: &str| Munge { server: server.into(), socket: None }.server_uid();
        assert_eq!((uid("root"), uid("1234")), (Ok(0), Ok(1234)));
        // To munge, the greatest number is any user.
        for bad in ["no-such-user", "-1", "4294967295", "4294967296", "65534", ""] {
            let why = uid(bad).unwrap_err().to_string();
            assert!(why.ends_with(&format!("there is no user `{bad}` here")), "{why}");
        }
    }

    #[test]
    fn a_credential_is_for_the_servers_user_and_decoded_once() {
        let Some(munged) = Munged::start("credentials of munge") else { return };
        let (socket, own) = (munged.socket(), geteuid().as_raw());
        let made = encode(Some(&socket), &BOUND, own).unwrap();
        assert!(made.bytes().len() < 400, "{}", made.bytes().len());
        let (uid, bound) = decode(Some(&socket), &made).unwrap();
        assert!(uid == own && bound == BOUND);
        assert_eq!(decode(Some(&socket), &made).err(), Some(MungeError::Replayed));
        // Another machine of the cluster does not know that, so the server compares the greeting; one of another cluster cannot decode it.
        assert!(decode(Some(&munged.elsewhere().socket()), &made).is_ok_and(|(_, bound)| bound == BOUND));
        let stranger = Munged::start("the same").unwrap();
        let why = decode(Some(&stranger.socket()), &made).err();
        assert!(matches!(&why, Some(MungeError::AtServer(why)) if why == "Invalid credential"), "{why:?}");
        let other = encode(Some(&socket), &BOUND, own + 1).unwrap();
        assert_eq!(decode(Some(&socket), &other).err(), Some(MungeError::Unauthorized));
    }

    /// As munge's own program makes them.
    fn made_by_program(socket: &Path, arguments: &[&str]) -> Credential {
        let socket = format!("--socket={}", socket.display());
        let made = Command::new("munge").arg(socket).args(arguments).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        read(made.stdout.trim_ascii()).unwrap()
    }

    #[test]
    fn credentials_that_are_old_or_of_other_programs_are_refused() {
        let Some(munged) = Munged::start("credentials of munge that have expired") else { return };
        let socket = munged.socket();
        let old = made_by_program(&socket, &["--no-input", "--ttl=1"]);
        for arguments in [&["--no-input"][..], &["--string=for another program"], &["--string=0123456789012345678901234567890"]] {
            let other = made_by_program(&socket, arguments);
            assert_eq!(decode(Some(&socket), &other).err(), Some(MungeError::OtherConnection), "{arguments:?}");
        }
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(decode(Some(&socket), &old).err(), Some(MungeError::Expired));
        let damaged = read(b"MUNGE:AwQFAAAAAAAA:").unwrap();
        assert!(matches!(decode(Some(&socket), &damaged), Err(MungeError::AtServer(_))));
    }

    #[test]
    fn without_munged_there_is_one_clear_line() {
        let Some(mut munged) = Munged::start("munge without munged") else { return };
        let socket = munged.socket();
        munged.end();
        let client = Munge { server: "root".into(), socket: Some(socket.clone()) };
        let why = client.check().unwrap_err().to_string();
        assert!(
            why.starts_with("munge: munged does not answer on this machine: Failed to connect to") && !why.contains('\n'),
            "{why}"
        );
        drop(munged);
        let why = client.check().unwrap_err().to_string();
        let wanted = format!(
            "munge: munged does not answer on this machine: Failed to access \"{}\": No such file or directory",
            socket.display()
        );
        assert!(why.starts_with(&wanted) && !why.contains('\n'), "{why}");
    }
}
