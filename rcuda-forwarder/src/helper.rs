//! Helpers: workers that the job starts on its own machine, for GPUs that cannot be used in its process.
//!
//! The job does for a helper what a daemon does for a worker: it tells it which GPU to open and hands it the job's
//! connection and data connections. The helper ends when the channel between them closes, so it never outlives its job, except
//! while it frees what it has after its job has left it for a place that has adopted its memory.

use crate::channel::{Channel, Message, OPENING, Start, StoreAt};
use crate::conn::Conn;
use crate::greet::{JobHello, build_digest};
use crate::limits::WorkerLimits;
use crate::orphan;
use cuda_api::hex::hex;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Variables that a helper does not inherit, because they load libraries into processes.
const NOT_PASSED: [&str; 2] = ["LD_PRELOAD", "LD_AUDIT"];
const SEARCH: &str = "LD_LIBRARY_PATH";

/// Options of a helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperOptions {
    /// Its program, whose main function is [`crate::helper_main`].
    pub program: PathBuf,
    /// What it opens.
    pub opens: Opens,
    /// Directories that are removed from its library search path: they hold the recorder under the driver's name.
    pub hidden: Vec<PathBuf>,
}

/// What a helper opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opens {
    /// A GPU.
    Gpu {
        /// File of the CUDA driver.
        driver: PathBuf,
        /// The GPU's number in the driver.
        gpu: u32,
    },
    /// Memory for a parked device, with room for so many bytes.
    Store(StoreAt, u64),
}

/// Starts a helper and waits until it has opened its GPU, or its store. Returns the channel and the job's end of the connection.
pub(crate) fn start(o: &HelperOptions, hello: &JobHello) -> io::Result<(Channel, Conn)> {
    let other = |why: String| io::Error::other(why);
    let (driver, gpu, store, limits) = match &o.opens {
        Opens::Gpu { driver, gpu } => (driver.as_path(), *gpu, None, WorkerLimits::NONE),
        Opens::Store(at, most) => (Path::new(""), 0, Some(at.clone()), WorkerLimits { parked: *most, ..WorkerLimits::NONE }),
    };
    let driver = driver.to_str().ok_or_else(|| other("the path of the driver is not UTF-8".into()))?.to_owned();
    let (channel, theirs) = Channel::pair_apart()?;
    let arguments = [o.program.as_os_str().to_owned(), hello.pid.to_string().into(), build().into()];
    let arguments = arguments.into_iter().map(text).collect::<io::Result<Vec<CString>>>()?;
    orphan::start(&arguments, &environment(std::env::vars_os(), &o.hidden), theirs.as_fd(), true)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", o.program.display())))?;
    drop(theirs);
    let virtual_device = hello.virtual_device;
    let user = nix::unistd::geteuid().as_raw();
    let start = Start {
        driver,
        user,
        gpu,
        virtual_device,
        limits,
        plain: true,
        gpudirect: false,
        evict_after: None,
        store,
        confinement: None,
    };
    channel.send(&Message::Start(start), None)?;
    match channel.receive_by(Instant::now() + OPENING)? {
        Some((Message::Ready(Ok(_)), None)) => {}
        Some((Message::Ready(Err(why)), None)) => return Err(other(why)),
        Some(_) => return Err(other("the helper sent a malformed message".into())),
        None => return Err(other("the helper ended while it started".into())),
    }
    let (ours, theirs) = UnixStream::pair()?;
    channel.send(&Message::Job(hello.clone(), None, false), Some(theirs.as_fd()))?;
    Ok((channel, Conn::apart(OwnedFd::from(ours))))
}

/// Hands a helper its end of a connection whose ticket it expects.
pub(crate) fn hand_over(channel: &Channel, ticket: &[u8; 32], socket: BorrowedFd<'_>) -> io::Result<()> {
    channel.send(&Message::Joined(*ticket), Some(socket))
}

/// Makes a connection to a helper that expects its ticket.
pub(crate) fn connect(channel: &Channel, ticket: &[u8; 32]) -> io::Result<Conn> {
    let (ours, theirs) = UnixStream::pair()?;
    let ours = Conn::apart(OwnedFd::from(ours));
    hand_over(channel, ticket, theirs.as_fd())?;
    Ok(ours)
}

/// Identification of the build, as passed to a helper.
pub(crate) fn build() -> String {
    hex(&build_digest())
}

fn text(t: OsString) -> io::Result<CString> {
    Ok(CString::new(t.into_vec())?)
}

/// The job's environment without the variables that would load the recorder, or the job's own libraries, into the
/// helper.
fn environment(all: impl Iterator<Item = (OsString, OsString)>, hidden: &[PathBuf]) -> Vec<CString> {
    let is_hidden = |directory: &&[u8]| hidden.iter().any(|h| h == Path::new(OsStr::from_bytes(directory)));
    let pair = |(name, value): (OsString, OsString)| {
        if NOT_PASSED.iter().any(|n| name == *n) {
            return None;
        }
        let mut bytes = value.into_vec();
        if name == SEARCH {
            let kept: Vec<&[u8]> = bytes.split(|b| *b == b':').filter(|f| !is_hidden(f)).collect();
            if kept.iter().all(|f| f.is_empty()) {
                return None;
            }
            bytes = kept.join(&b':');
        }
        CString::new([name.as_bytes(), b"=", &bytes].concat()).ok()
    };
    all.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_does_not_find_the_recorder() {
        let given = [
            ("LD_LIBRARY_PATH", "/m/mrcuda-lib:/usr/local/nvidia/lib64:/m/mrcuda-lib"),
            ("LD_PRELOAD", "/x.so"),
            ("CUDA_VISIBLE_DEVICES", "2,3"),
        ];
        let pairs = |list: &[(&str, &str)]| list.iter().map(|(n, v)| (n.into(), v.into())).collect::<Vec<_>>().into_iter();
        let hidden = [PathBuf::from("/m/mrcuda-lib")];
        let got = environment(pairs(&given), &hidden);
        assert_eq!(got, [c"LD_LIBRARY_PATH=/usr/local/nvidia/lib64".to_owned(), c"CUDA_VISIBLE_DEVICES=2,3".to_owned()]);
        assert!(
            environment(pairs(&[("LD_LIBRARY_PATH", "/m/mrcuda-lib")]), &hidden).is_empty(),
            "an empty path is the current directory"
        );
    }
}
