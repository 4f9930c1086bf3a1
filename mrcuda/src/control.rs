//! The control sockets of running jobs: where they are, and how one asks them.
//!
//! A job that runs under mrcuda listens on a Unix socket named after its process id, in a folder of its user: the path rule
//! is [`folder`]. A request is one line of JSON, the answer is one line of JSON, then the connection may be used again.
//! Both sides check that the other one is the same user.
//!
//! | request | answer |
//! |---|---|
//! | `{"v":1,"op":"status"}` | `{"v":1,"ok":true,"pid":…,"program":"…","devices":[…]}` |
//! | `{"v":1,"op":"migrate","to":"PLACE","gpu":0\|null,"dry_run":false}` | the report of the move; `gpu` null is all GPUs |
//! | `{"v":1,"op":"moves"}` | `{"v":1,"ok":true,"moves":[…]}`, the reports of all moves so far |

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the protocol.
pub(crate) const VERSION: u64 = 1;

/// The longest answer that is read: a job with many moves has long reports, but not longer ones than this.
const LONGEST_ANSWER: u64 = 16 << 20;

/// The folder of a user's control sockets: `$XDG_RUNTIME_DIR/mrcuda`, or `/tmp/mrcuda-UID` where there is no such variable.
pub(crate) fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("mrcuda"),
        _ => PathBuf::from(format!("/tmp/mrcuda-{}", nix::unistd::Uid::effective())),
    }
}

/// The folder, made if it is not there, after the checks of [`check_folder`].
pub(crate) fn make_folder() -> io::Result<PathBuf> {
    let path = folder();
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    check_folder(&path)?;
    Ok(path)
}

/// Refuses a folder that another user could have prepared: it must be a real folder, ours, and closed to others.
pub(crate) fn check_folder(path: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    let refuse = |why: &str| Err(io::Error::other(format!("{} {why}", path.display())));
    if !meta.is_dir() {
        return refuse("is not a folder");
    }
    if meta.uid() != nix::unistd::Uid::effective().as_raw() {
        return refuse("belongs to another user");
    }
    if meta.mode() & 0o077 != 0 {
        return refuse("is open to other users (its mode must be 0700)");
    }
    Ok(())
}

/// Why a job could not be asked.
#[derive(Debug)]
pub(crate) enum ControlError {
    /// Nobody listens: the job has ended, or the process never was a job.
    NoJob,
    /// Something else, in words.
    Failed(String),
}

impl std::fmt::Display for ControlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ControlError::NoJob => f.write_str("it does not run under mrcuda, or has not made its first CUDA call yet"),
            ControlError::Failed(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for ControlError {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::NoJob,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Failed("the job does not answer".to_owned()),
            _ => ControlError::Failed(e.to_string()),
        }
    }
}

/// Sends one request to the job with this process id. `patience`: how long the answer may take (`None`: as long as it takes;
/// a move of much memory is slow).
pub(crate) fn ask(pid: u32, request: &Value, patience: Option<Duration>) -> Result<Value, ControlError> {
    let folder = folder();
    check_folder(&folder)?;
    ask_at(&folder.join(pid.to_string()), request, patience)
}

/// The same for a socket by path.
fn ask_at(path: &Path, request: &Value, patience: Option<Duration>) -> Result<Value, ControlError> {
    let mut stream = UnixStream::connect(path)?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
    if peer.uid() != nix::unistd::Uid::effective().as_raw() {
        return Err(ControlError::Failed(format!("{} belongs to user {}", path.display(), peer.uid())));
    }
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        let why = if line.is_empty() { "the job closed the connection" } else { "the job's answer is cut off" };
        return Err(ControlError::Failed(why.to_owned()));
    }
    let answer: Value =
        serde_json::from_slice(&line).map_err(|e| ControlError::Failed(format!("the job's answer is not understood: {e}")))?;
    match answer.get("v").and_then(Value::as_u64) {
        Some(VERSION) => Ok(answer),
        other => {
            let theirs = other.map_or_else(|| "none".to_owned(), |v| v.to_string());
            Err(ControlError::Failed(format!("the job speaks version {theirs} of this protocol, we speak {VERSION}")))
        }
    }
}

/// Process ids of the sockets in the folder, in order.
pub(crate) fn pids() -> Result<Vec<u32>, ControlError> {
    let folder = folder();
    match check_folder(&folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    }
    let mut pids: Vec<u32> =
        std::fs::read_dir(&folder)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Removes the socket of a job that is gone: nobody listens and no such process exists.
pub(crate) fn remove_stale(pid: u32) {
    let gone = i32::try_from(pid)
        .map_or(true, |pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH));
    if gone {
        // Failing to tidy up is no failure of what was asked.
        let _ = std::fs::remove_file(folder().join(pid.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("mrcuda-control-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        dir
    }

    /// A job that gives one answer, whatever it is asked.
    fn job(path: &Path, answer: &'static [u8]) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            (&stream).write_all(answer).unwrap();
            request
        })
    }

    #[test]
    fn a_request_and_its_answer_are_lines() {
        let dir = scratch("ask");
        let path = dir.join("1");
        let job = job(&path, b"{\"v\":1,\"ok\":true,\"pid\":1}\n");
        let answer = ask_at(&path, &json!({"v": 1, "op": "status"}), Some(Duration::from_secs(5))).unwrap();
        assert_eq!(answer["pid"], 1);
        assert_eq!(job.join().unwrap(), "{\"op\":\"status\",\"v\":1}\n");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn bad_answers_are_named() {
        let dir = scratch("bad");
        for (name, answer, want) in [
            ("empty", &b""[..], "closed"),
            ("cut", b"{\"v\":1", "cut off"),
            ("text", b"hello\n", "not understood"),
            ("version", b"{\"v\":2}\n", "version 2"),
            ("none", b"[]\n", "version none"),
        ] {
            let path = dir.join(name);
            let job = job(&path, answer);
            match ask_at(&path, &json!({}), Some(Duration::from_secs(5))) {
                Err(ControlError::Failed(why)) => assert!(why.contains(want), "{name}: {why}"),
                other => panic!("{name}: {other:?}"),
            }
            job.join().unwrap();
        }
        assert!(matches!(ask_at(&dir.join("nobody"), &json!({}), None), Err(ControlError::NoJob)));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn folders_that_others_can_reach_are_refused() {
        let dir = scratch("mode");
        check_folder(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check_folder(&dir).unwrap_err().to_string().contains("0700"));
        let link = dir.join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(check_folder(&link).unwrap_err().to_string().contains("not a folder"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
