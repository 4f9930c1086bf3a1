//! Where the sockets are: one directory for each user, one socket for each job.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The directory of this user: `$XDG_RUNTIME_DIR/mrcuda`, or `/tmp/mrcuda-UID` if that variable is not set.
pub fn path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Path::new(&dir).join("mrcuda"),
        _ => PathBuf::from(format!("/tmp/mrcuda-{}", nix::unistd::Uid::effective())),
    }
}

/// The directory and the user of a process's job: this user's own, or for root that of the process's user.
pub(crate) fn of(pid: u32) -> (PathBuf, u32) {
    let me = nix::unistd::Uid::effective().as_raw();
    match owner(pid) {
        Some(owner) if owner != me && may_ask(me, owner) => {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            (of_user(owner, &environment), owner)
        }
        _ => (path(), me),
    }
}

/// The user of a process.
pub fn owner(pid: u32) -> Option<u32> {
    effective_user(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Whether a user may send requests to jobs of another: root may.
pub(crate) fn may_ask(me: u32, owner: u32) -> bool {
    me == owner || me == 0
}

/// The effective user in the text of `/proc/PID/status`.
fn effective_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// As [`path`], for another user's process with this environment (`NAME=VALUE`, each ended by a zero).
fn of_user(owner: u32, environment: &[u8]) -> PathBuf {
    let runtime = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"XDG_RUNTIME_DIR="));
    match runtime.map(|dir| Path::new(std::ffi::OsStr::from_bytes(dir))) {
        Some(dir) if dir.is_absolute() => dir.join("mrcuda"),
        _ => PathBuf::from(format!("/tmp/mrcuda-{owner}")),
    }
}

/// Returns the directory after creating it if necessary and applying the checks of [`check`].
///
/// # Errors
/// It cannot be created, or is refused.
pub fn make() -> io::Result<PathBuf> {
    let path = path();
    match std::fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(e.kind(), format!("cannot make {}: {e}", path.display())));
        }
        _ => {}
    }
    check(&path)?;
    Ok(path)
}

/// Refuses a directory that another user could have prepared: it must be a real directory, owned by this user, and
/// inaccessible to others.
///
/// # Errors
/// It does not exist, or is refused.
pub fn check(path: &Path) -> io::Result<()> {
    check_owner(path, nix::unistd::Uid::effective().as_raw())
}

/// As [`check`], for the directory of the user `owner`.
pub(crate) fn check_owner(path: &Path, owner: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    let refuse = |why: &str| Err(io::Error::other(format!("{} {why}", path.display())));
    if !meta.is_dir() {
        return refuse("is not a directory");
    }
    if meta.uid() != owner {
        return refuse("belongs to another user");
    }
    if meta.mode() & 0o077 != 0 {
        return refuse("is open to other users (its mode must be 0700)");
    }
    Ok(())
}

/// Process ids of the sockets in the directory, in ascending order.
///
/// # Errors
/// The directory is refused or cannot be read. A missing directory has no jobs.
pub fn pids() -> io::Result<Vec<u32>> {
    let directory = path();
    match check(&directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    }
    let mut pids: Vec<u32> =
        std::fs::read_dir(&directory)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// As [`pids`], with the jobs of all users that this user may ask: root finds them by the environment of their processes.
///
/// # Errors
/// As for [`pids`], or the list of processes cannot be read.
pub fn pids_of_all_users() -> io::Result<Vec<u32>> {
    let mut all = pids()?;
    let me = nix::unistd::Uid::effective().as_raw();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok()) else { continue };
        let (directory, owner) = of(pid);
        if owner != me && directory.join(pid.to_string()).symlink_metadata().is_ok() {
            all.push(pid);
        }
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Removes the socket of a job that has ended: no process has its id, or the process that reuses the id does not
/// listen.
pub fn remove_stale(pid: u32) {
    let gone = i32::try_from(pid)
        .map_or(true, |pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH));
    let socket = path().join(pid.to_string());
    if gone && UnixStream::connect(&socket).is_err() {
        // A failure to clean up is not a failure of the request.
        let _ = std::fs::remove_file(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn directories_that_others_can_reach_are_refused() {
        let dir = std::env::temp_dir().join(format!("mrcuda-control-{}-mode", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        check(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(check(&dir).unwrap_err().to_string().contains("0700"));
        let link = dir.join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(check(&link).unwrap_err().to_string().contains("not a directory"));
        let me = nix::unistd::Uid::effective().as_raw();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
        check_owner(&dir, me).unwrap();
        assert!(check_owner(&dir, me + 1).unwrap_err().to_string().contains("another user"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn root_finds_the_jobs_of_others_and_nobody_else_does() {
        assert!(may_ask(7, 7) && may_ask(0, 7) && !may_ask(8, 7) && !may_ask(8, 0));
        assert_eq!(effective_user("Name:\tx\nUid:\t1\t7\t3\t4\nGid:\t9\t9\t9\t9\n"), Some(7));
        assert_eq!((effective_user(""), effective_user("Uid:\tx")), (None, None));
        assert_eq!(of_user(7, b"A=b\0XDG_RUNTIME_DIR=/run/user/7\0"), Path::new("/run/user/7/mrcuda"));
        assert_eq!(of_user(7, b"XDG_RUNTIME_DIR=relative\0"), Path::new("/tmp/mrcuda-7"));
        assert_eq!(of_user(7, b"NOT_XDG_RUNTIME_DIR=/x\0"), Path::new("/tmp/mrcuda-7"));
        assert_eq!(of(std::process::id()), (path(), nix::unistd::Uid::effective().as_raw()));
    }
}
