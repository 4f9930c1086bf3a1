//! The files that a worker may use, by Landlock. It also keeps a worker from tracing and signalling processes outside, from opening TCP
//! connections, and from abstract Unix sockets of others, as far as the kernel's version offers that.
//!
//! Nothing may be executed; a library only needs to be readable.

use super::error::SandboxError;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use std::path::{Path, PathBuf};

/// The newest version whose restrictions are asked for; an older kernel enforces those that it has.
const NEWEST: ABI = ABI::V9;

/// What the driver, the C library and we read. Links may lead here from anywhere: where a link lies does not count.
const READABLE: &[&str] = &[
    "/usr",
    "/lib",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/run/opengl-driver",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/libibverbs.d",
    // What concerns other processes there is protected by the kernel as tracing is, which Landlock forbids.
    "/proc",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/module",
];

/// Devices that belong to every process.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Directories of which some files are for GPUs: their names begin so.
const NAMED: &[(&str, &str)] = &[("/dev", "nvidia"), ("/etc", "nvidia")];

/// Devices of the GPU of Windows' Linux, and of RDMA.
const OTHER_DEVICES: &[&str] = &["/dev/dxg", "/dev/infiniband"];

/// The threads of this process.
const THREADS: &str = "/proc/self/task";

/// Where drivers have the state of events that processes share.
const SHARED: &str = "/dev/shm";

/// The version of Landlock's interface that the kernel has.
pub(super) fn version() -> Option<u32> {
    // From `linux/landlock.h`.
    const VERSION: u32 = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attributes, and only returns a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Restricts this thread, and those that it starts, to what the system has for everybody and these files and directories.
pub(super) fn restrict(readable: &[String], writable: &[String], unix_sockets: bool) -> Result<(), SandboxError> {
    let (mut scopes, mut handled) = (Scope::from_all(NEWEST), AccessFs::from_all(NEWEST));
    if unix_sockets {
        scopes.remove(Scope::AbstractUnixSocket);
        handled.remove(AccessFs::ResolveUnix);
    }
    let mut rules =
        Ruleset::default().handle_access(handled)?.handle_access(AccessNet::from_all(NEWEST))?.scope(scopes)?.create()?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let use_device = read | AccessFs::WriteFile | AccessFs::IoctlDev;
    let all_but_execute = handled & !BitFlags::from(AccessFs::Execute);
    for path in READABLE.iter().map(Path::new).chain(readable.iter().map(Path::new)) {
        rules = allow(rules, path, read)?;
    }
    for path in DEVICES.iter().chain(OTHER_DEVICES).map(Path::new) {
        rules = allow(rules, path, use_device)?;
    }
    for (directory, start) in NAMED {
        let access = if *directory == "/dev" { use_device } else { read };
        for path in named(Path::new(directory), start) {
            rules = allow(rules, &path, access)?;
        }
    }
    // A driver gives its threads names. All of this belongs to this process.
    rules = allow(rules, Path::new(THREADS), read | AccessFs::WriteFile | AccessFs::Truncate)?;
    // Not to be listed: the names of others' files there are theirs.
    let unlisted = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
    rules = allow(rules, Path::new(SHARED), unlisted)?;
    for path in writable {
        rules = allow(rules, Path::new(path), all_but_execute)?;
    }
    enforced(rules)
}

/// Restricts this thread, and those that it starts, to no file at all, no TCP port, and no other process.
pub(super) fn restrict_to_nothing() -> Result<(), SandboxError> {
    let rules = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?.handle_access(AccessNet::from_all(NEWEST))?;
    enforced(rules.scope(Scope::from_all(NEWEST))?.create()?)
}

fn enforced(rules: RulesetCreated) -> Result<(), SandboxError> {
    let status = rules.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced { Err(SandboxError::NotEnforced) } else { Ok(()) }
}

/// Allows this use of a file, or of what is in a directory. What cannot be opened now cannot be used later either.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, SandboxError> {
    let Ok(file) = PathFd::new(path) else { return Ok(rules) };
    Ok(rules.add_rule(PathBeneath::new(file, access))?)
}

/// The files in a directory whose names begin so.
fn named(directory: &Path, start: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    all.filter(|file| file.file_name().as_encoded_bytes().starts_with(start.as_bytes())).map(|file| file.path()).collect()
}
