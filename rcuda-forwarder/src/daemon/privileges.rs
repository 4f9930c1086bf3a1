//! What a worker is allowed by its user, its limits and its capabilities; set between fork and exec.

use super::error::ServeError;
use crate::rlimit::limit;
use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::ffi::CString;
use std::io;
use std::path::PathBuf;

/// Maximum number of open descriptors of a worker: each piece of memory that is passed by descriptor uses one for a
/// while.
const DESCRIPTORS: u64 = 1 << 16;
/// From `linux/capability.h`: to lock memory, as devices of RDMA need it, gives access to nothing.
const CAP_IPC_LOCK: libc::c_ulong = 14;
/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// The usual number of the user, and of the group, that own nothing.
const NOBODY: u32 = 65534;

/// A user that workers run as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerUser {
    pub(crate) name: String,
    uid: Uid,
    gid: Gid,
    /// Its groups, of which one may have the GPUs' devices.
    groups: Vec<Gid>,
    pub(crate) home: PathBuf,
    /// The directory in which the driver keeps compiled code for this user's jobs alone.
    pub(crate) jit_cache: Option<PathBuf>,
}

impl WorkerUser {
    /// Finds a user that this process can have workers run as.
    pub(crate) fn find(name: &str) -> Result<WorkerUser, ServeError> {
        let failed = |why: String| ServeError::WorkerUser { name: name.to_owned(), why };
        if !nix::unistd::geteuid().is_root() {
            return Err(WorkerUser::only_root(name));
        }
        let numbered = || User::from_uid(Uid::from_raw(name.parse().ok()?)).transpose();
        let found = User::from_name(name).transpose().or_else(numbered).transpose().map_err(|e| failed(e.to_string()))?;
        let user = found.ok_or_else(|| failed("there is no such user on this machine".to_owned()))?;
        if user.uid.is_root() {
            return Err(failed("that is the server's own user".to_owned()));
        }
        WorkerUser::of(user).map_err(failed)
    }

    /// The user who owns nothing.
    pub(super) fn nobody() -> WorkerUser {
        // Also where no name service knows it, and with no other groups.
        let uid = User::from_name("nobody").ok().flatten().map_or(Uid::from_raw(NOBODY), |user| user.uid);
        let gid = Gid::from_raw(NOBODY);
        WorkerUser { name: "nobody".to_owned(), uid, gid, groups: Vec::new(), home: "/".into(), jit_cache: None }
    }

    /// The error of a server that cannot start processes of other users.
    pub(super) fn only_root(name: &str) -> ServeError {
        let why = "only a server that runs as root can start processes of another user".to_owned();
        ServeError::WorkerUser { name: name.to_owned(), why }
    }

    /// The account of a job's user, by its name. The error is for the client.
    pub(super) fn named(name: &str) -> Result<WorkerUser, String> {
        WorkerUser::of_client(User::from_name(name), || format!("this machine has no user {name}"))
    }

    /// The same by its number.
    pub(super) fn numbered(uid: u32) -> Result<WorkerUser, String> {
        WorkerUser::of_client(User::from_uid(Uid::from_raw(uid)), || format!("this machine has no user of uid {uid}"))
    }

    fn of_client(found: nix::Result<Option<User>>, none: impl Fn() -> String) -> Result<WorkerUser, String> {
        let user = found.map_err(|e| format!("its user cannot be looked up: {e}"))?.ok_or_else(none)?;
        if user.uid.is_root() {
            return Err("root's jobs have no other user".to_owned());
        }
        WorkerUser::of(user)
    }

    fn of(user: User) -> Result<WorkerUser, String> {
        let text = CString::new(user.name.as_str()).map_err(|e| e.to_string())?;
        let groups = getgrouplist(&text, user.gid).map_err(|e| format!("its groups are not known: {e}"))?;
        Ok(WorkerUser { name: user.name, uid: user.uid, gid: user.gid, groups, home: user.dir, jit_cache: None })
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    pub(super) fn gid(&self) -> u32 {
        self.gid.as_raw()
    }

    /// Becomes this user. Only system calls.
    fn become_it(&self) -> io::Result<()> {
        // Straight to the kernel: the library would have other threads do the same, and this process is a copy that has none.
        let groups = self.groups.as_ptr().cast::<libc::gid_t>();
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        // SAFETY: `Gid` is a group's number, and the list has as many; the other calls take numbers. The user is last: after it nothing
        // can be changed.
        let done = unsafe {
            libc::syscall(libc::SYS_setgroups, self.groups.len(), groups) == 0
                && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// What a worker gives up before it starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Privileges {
    /// It becomes another user.
    pub(crate) user: Option<WorkerUser>,
    /// As root it keeps what root's files and processes are to it, but no capabilities, except to lock memory.
    pub(crate) without_capabilities: bool,
}

impl Privileges {
    /// Gives up privileges between fork and exec. Only system calls: other threads may hold any lock.
    pub(super) fn give_up(&self) -> io::Result<()> {
        // SAFETY: plain numbers.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // A core dump would contain the memory of a job.
        limit(libc::RLIMIT_CORE, 0)?;
        limit(libc::RLIMIT_NOFILE, DESCRIPTORS)?;
        if self.without_capabilities {
            drop_capabilities()?;
        }
        self.user.as_ref().map_or(Ok(()), WorkerUser::become_it)
    }
}

/// Has the program that is started next get no capabilities, although its user is root: not those that it could get, nor those that are passed on.
fn drop_capabilities() -> io::Result<()> {
    for capability in (0..).filter(|c| *c != CAP_IPC_LOCK) {
        // SAFETY: plain numbers.
        match unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) } {
            // A container may have dropped it already, and the right to drop others with it.
            0 => continue,
            // It is the first that the kernel does not know.
            n if n < 0 => break,
            _ => {}
        }
        // SAFETY: as above.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: plain numbers. Old kernels have none of them.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    // `struct __user_cap_header_struct` and twice `struct __user_cap_data_struct`: effective, permitted, inheritable.
    let (mut header, mut sets) = ([CAPABILITY_VERSION_3, 0], [[0u32; 3]; 2]);
    // SAFETY: both have the layout of this version; the kernel reads and writes nothing else.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        sets.iter_mut().for_each(|set| set[2] = 0);
        if libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
