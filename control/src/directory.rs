//! Where the sockets are: one directory for each user, one socket for each job.

use crate::socket::has_no_listener;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The directory of this user: `$XDG_RUNTIME_DIR/mrcuda`, or `/tmp/mrcuda-UID` if that variable names no directory of this user.
pub fn path() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    of_user(nix::unistd::Uid::effective().as_raw(), runtime.as_deref())
}

/// The directory of a user with this `XDG_RUNTIME_DIR`. Batch systems and `su` pass on the variable of another machine or user, so a
/// directory that does not exist, or belongs to somebody else, is not used.
fn of_user(user: u32, runtime: Option<&OsStr>) -> PathBuf {
    let is_theirs = |dir: &&Path| dir.is_absolute() && dir.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
    match runtime.map(Path::new).filter(is_theirs) {
        Some(dir) => dir.join("mrcuda"),
        None => PathBuf::from(format!("/tmp/mrcuda-{user}")),
    }
}

/// The directory and the user of a process's job: the one that the environment of the process names, if this user may ask it.
pub(crate) fn of(pid: u32) -> (PathBuf, u32) {
    let me = nix::unistd::Uid::effective().as_raw();
    let Some(owner) = owner(pid).filter(|owner| may_ask(me, *owner)) else { return (path(), me) };
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let theirs = of_user(owner, runtime_directory(&environment));
    // The directory can be shared with containers, whose processes have other ids; and not every environment can be read.
    let is_ours = owner == me && !has_socket(&theirs, pid) && has_socket(&path(), pid);
    (if is_ours { path() } else { theirs }, owner)
}

fn has_socket(directory: &Path, pid: u32) -> bool {
    directory.join(pid.to_string()).symlink_metadata().is_ok()
}

/// `XDG_RUNTIME_DIR` in an environment (`NAME=VALUE`, each ended by a zero).
fn runtime_directory(environment: &[u8]) -> Option<&OsStr> {
    let value = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"XDG_RUNTIME_DIR="));
    value.map(OsStr::from_bytes)
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

/// Process ids of the jobs that are found by their processes' environment, whatever `XDG_RUNTIME_DIR` it has: those of this user, for root
/// those of all users.
///
/// # Errors
/// The list of processes cannot be read.
pub fn pids_of_processes() -> io::Result<Vec<u32>> {
    let me = nix::unistd::Uid::effective().as_raw();
    let pids = std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_job = |pid: &u32| {
        let (directory, owner) = of(*pid);
        may_ask(me, owner) && has_socket(&directory, *pid)
    };
    Ok(pids.filter(is_job).collect())
}

/// Removes the socket of a job that has ended: no process accepts connections there, and the job's process id is unused or belongs
/// to a process that started after the socket was created. A job that has not begun to listen yet keeps its socket.
pub fn remove_stale(pid: u32) {
    let gone = i32::try_from(pid)
        .map_or(true, |pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) == Err(nix::errno::Errno::ESRCH));
    let socket = path().join(pid.to_string());
    if (gone || is_older(&socket, pid)) && has_no_listener(&socket) {
        // A failure to clean up is not a failure of the request.
        let _ = std::fs::remove_file(socket);
    }
}

/// Whether a file was made before the process with this id started, with room for changes of the clock.
fn is_older(file: &Path, pid: u32) -> bool {
    const ROOM: f64 = 1.0;
    let made = std::fs::symlink_metadata(file).and_then(|meta| meta.modified()?.elapsed().map_err(io::Error::other));
    made.is_ok_and(|age| seconds_since_start(pid).is_some_and(|running| running + ROOM < age.as_secs_f64()))
}

/// How long a process has been running.
fn seconds_since_start(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The 22nd field, counted from the number; the second one can contain blanks.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let each = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    Some(uptime - ticks / each as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_older_than_a_process_that_started_later() {
        let file = std::env::temp_dir().join(format!("mrcuda-control-{}-older", std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        assert!(seconds_since_start(pid).is_some_and(|s| (-1.0..600.0).contains(&s)), "{:?}", seconds_since_start(pid));
        let made = |ago: u64| {
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(ago);
            std::fs::File::create(&file).unwrap().set_modified(time).unwrap();
            is_older(&file, pid)
        };
        assert!(!made(0), "made by the process itself, perhaps");
        assert!(made(3600));
        std::fs::remove_file(&file).unwrap();
        assert!(!is_older(&file, pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

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
        let read = |environment| runtime_directory(environment).and_then(OsStr::to_str);
        assert_eq!(read(b"A=b\0XDG_RUNTIME_DIR=/run/user/7\0"), Some("/run/user/7"));
        assert_eq!((read(b"NOT_XDG_RUNTIME_DIR=/x\0"), read(b"")), (None, None));
        assert_eq!(of(std::process::id()), (path(), nix::unistd::Uid::effective().as_raw()));
    }

    #[test]
    fn a_runtime_directory_of_somebody_else_is_not_used() {
        let me = nix::unistd::Uid::effective().as_raw();
        let own = std::env::temp_dir().join(format!("mrcuda-control-{}-runtime", std::process::id()));
        std::fs::create_dir_all(&own).unwrap();
        assert_eq!(of_user(me, Some(own.as_os_str())), own.join("mrcuda"));
        let fallback = |user| PathBuf::from(format!("/tmp/mrcuda-{user}"));
        assert_eq!(of_user(me + 1, Some(own.as_os_str())), fallback(me + 1), "su keeps the variable");
        std::fs::remove_dir(&own).unwrap();
        for missing in [Some(own.as_os_str()), Some(OsStr::new("relative")), None] {
            assert_eq!(of_user(me, missing), fallback(me));
        }
    }

    #[test]
    fn jobs_with_another_runtime_directory_are_found() {
        let me = nix::unistd::Uid::effective().as_raw();
        let runtime = std::env::temp_dir().join(format!("mrcuda-control-{}-elsewhere", std::process::id()));
        std::fs::create_dir_all(runtime.join("mrcuda")).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").env("XDG_RUNTIME_DIR", &runtime).spawn().unwrap();
        let pid = child.id();
        let before = pids_of_processes().unwrap().contains(&pid);
        std::fs::write(runtime.join("mrcuda").join(pid.to_string()), "").unwrap();
        let found = (of(pid), pids_of_processes().unwrap().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!before);
        assert_eq!(found, ((runtime.join("mrcuda"), me), true));
        std::fs::remove_dir_all(runtime).unwrap();
    }
}
