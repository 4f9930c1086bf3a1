//! The system calls that a worker may not make: those that neither we nor a driver need and that reach other processes, the network or the
//! machine. They fail with an error as if the kernel did not allow them, so a driver that tries one goes on.
//!
//! A list of what is refused, not of what is allowed: a driver's next version may use calls that this one does not.

use super::error::SandboxError;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
    sock_filter,
};
use std::collections::BTreeMap;

/// Calls that are refused in any case.
const REFUSED: &[libc::c_long] = &[
    // The memory, descriptors and threads of other processes.
    libc::SYS_ptrace,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_tkill,
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // What Landlock does not see: owners, permissions and times of files, which the user may change without opening them.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    libc::SYS_utimensat,
    FILE_SETATTR,
    // And in its first versions this.
    libc::SYS_truncate,
    // Whatever calls are refused, this one makes them.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Objects that all processes of a user share.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // The kernel and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
];

/// Those that only x86-64 has: earlier forms of the ones above, and its ports.
#[cfg(target_arch = "x86_64")]
const REFUSED_OF_X86: &[libc::c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OF_X86: &[libc::c_long] = &[];

/// The calls that open a file, with the number of the argument that has the flags.
#[cfg(target_arch = "x86_64")]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_open, 1), (libc::SYS_openat, 2)];
#[cfg(not(target_arch = "x86_64"))]
const OPENING: &[(libc::c_long, u8)] = &[(libc::SYS_openat, 2)];

/// From `asm-generic/unistd.h`, the same for all processors: newer calls, which the `libc` crate does not have for all of them.
const FCHMODAT2: libc::c_long = 452;
const SETXATTRAT: libc::c_long = 463;
const REMOVEXATTRAT: libc::c_long = 466;
const OPEN_TREE_ATTR: libc::c_long = 467;
const FILE_SETATTR: libc::c_long = 469;

/// Calls whose first argument may only be this process.
const ONLY_OWN: &[libc::c_long] = &[
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    // A way to read memory that may not be there.
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

/// A new thread, not a new process.
const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;
/// From `linux/fcntl.h`: `F_SETOWN` with a kind of owner.
const F_SETOWN_EX: u64 = 15;
/// Likewise: the signal that a descriptor sends.
const F_SETSIG: u64 = 10;
/// From `asm-generic/sockios.h`: the same owner by other calls.
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
/// The part of a socket's type that is not a flag.
const KIND: u64 = 0xf;
/// Numbers from here on are calls of another interface of x86-64 (x32), by which refused ones could be made.
const OTHER_INTERFACE: u32 = 0x4000_0000;
/// Instructions of a filter, from `linux/bpf_common.h`: load a word of what is filtered, compare and jump, return.
const LOAD: u16 = 0x20;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Whether the kernel can filter system calls.
pub(super) fn are_filtered() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: reads one word.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

/// Filters the system calls of this thread, and of those that it starts.
pub(super) fn restrict(unix_sockets: bool) -> Result<(), SandboxError> {
    let refused = refused(u64::from(std::process::id()), unix_sockets)?;
    // The C library then starts threads and opens files by other calls, whose flags a filter can see.
    let without_flags = Rules::from([(libc::SYS_clone3, Vec::new()), (libc::SYS_openat2, Vec::new())]);
    // As where there is no such socket, so that a driver which looks for a service goes on without it.
    let nowhere = if unix_sockets { Rules::new() } else { Rules::from([(libc::SYS_connect, Vec::new())]) };
    for (rules, error) in [(nowhere, libc::ENOENT), (without_flags, libc::ENOSYS), (refused, libc::EPERM)] {
        if !rules.is_empty() {
            refuse(rules, error)?;
        }
    }
    Ok(())
}

/// Has these calls fail with an error.
pub(super) fn refuse(rules: Rules, error: i32) -> Result<(), SandboxError> {
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()))
}

/// Has all calls fail with an error but these.
pub(super) fn allow_only(rules: Rules, error: i32) -> Result<(), SandboxError> {
    filter(rules, SeccompAction::Errno(error.unsigned_abs()), SeccompAction::Allow)
}

/// Installs a filter: what it does with these calls, and with all others.
fn filter(rules: Rules, others: SeccompAction, these: SeccompAction) -> Result<(), SandboxError> {
    let filter = SeccompFilter::new(rules, others, these, TargetArch::try_from(std::env::consts::ARCH)?)?;
    let rest: BpfProgram = filter.try_into()?;
    let instruction = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let no_such_call = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let other =
        [instruction(LOAD, 0, 0), instruction(JUMP_IF_AT_LEAST, 1, OTHER_INTERFACE), instruction(RETURN, 0, no_such_call)];
    let program: BpfProgram = other.into_iter().chain(rest).collect();
    Ok(seccompiler::apply_filter(&program)?)
}

/// The calls that fail with `EPERM` in the process `own`: calls without rules in any case, others if a rule applies.
fn refused(own: u64, unix_sockets: bool) -> Result<Rules, SandboxError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let is = |argument, operation, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value);
    let all = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let mut rules: Rules = REFUSED.iter().chain(REFUSED_OF_X86).map(|call| (*call, Vec::new())).collect();
    let not_own = || -> Result<_, SandboxError> { Ok(vec![all(vec![is(0, Ne, own)?])?]) };
    for call in ONLY_OWN {
        rules.insert(*call, not_own()?);
    }
    // A descriptor that becomes ready sends a signal to its owner, whoever that is.
    let any_of = |values: &[u64]| values.iter().map(|value| all(vec![is(1, Eq, *value)?])).collect::<Result<Vec<_>, _>>();
    rules.insert(libc::SYS_fcntl, any_of(&[libc::F_SETOWN as u64, F_SETOWN_EX, F_SETSIG])?);
    rules.insert(libc::SYS_ioctl, any_of(&[FIOSETOWN, SIOCSPGRP, libc::TIOCSTI, libc::TIOCLINUX])?);
    // In its first versions Landlock takes this for reading.
    let cut = (libc::O_ACCMODE | libc::O_TRUNC) as u64;
    for (call, flags) in OPENING {
        rules.insert(*call, vec![all(vec![is(*flags, MaskedEq(cut), libc::O_TRUNC as u64)?])?]);
    }
    // Limits and pages of other processes. Zero is this one.
    let others = || -> Result<_, SandboxError> { Ok(vec![all(vec![is(0, Ne, 0)?, is(0, Ne, own)?])?]) };
    for call in [libc::SYS_prlimit64, libc::SYS_move_pages] {
        rules.insert(call, others()?);
    }
    rules.insert(libc::SYS_clone, vec![all(vec![is(0, MaskedEq(CLONE_THREAD), 0)?])?]);
    let (unix, netlink) = (libc::AF_UNIX as u64, libc::AF_NETLINK as u64);
    let datagrams = [libc::SOCK_DGRAM, libc::SOCK_RAW].map(|kind| kind as u64);
    let mut pairs = vec![all(vec![is(0, Ne, unix)?])?];
    let mut sockets = vec![all(vec![is(0, Ne, unix)?, is(0, Ne, netlink)?])?];
    for kind in datagrams {
        // A datagram goes where its sender says, without a connection.
        pairs.push(all(vec![is(1, MaskedEq(KIND), kind)?])?);
        if !unix_sockets {
            sockets.push(all(vec![is(0, Eq, unix)?, is(1, MaskedEq(KIND), kind)?])?);
        }
    }
    if !cfg!(feature = "rdma") {
        // The library of RDMA devices asks the kernel for them.
        sockets.push(all(vec![is(0, Eq, netlink)?])?);
    }
    rules.insert(libc::SYS_socketpair, pairs);
    rules.insert(libc::SYS_socket, sockets);
    Ok(rules)
}
