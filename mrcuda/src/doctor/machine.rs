//! Checks what the kernel and the limits of this session allow.

use super::finding::Finding;
use cuda_api::address_map::{ARENA, OWN};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// A job uses one mapping for each 2 MiB of GPU memory at worst; the usual limit suffices for 64 GiB in the worst case.
const FEWEST_MAPPINGS: u64 = 65_530;

/// All findings about the machine.
pub(super) fn check() -> Vec<Finding> {
    vec![kernel(), address_space(), mappings(), barrier(), memfd(), preload()]
}

fn kernel() -> Finding {
    match nix::sys::utsname::uname() {
        Ok(name) => {
            let release = name.release().to_string_lossy().into_owned();
            let version = || -> Option<(u32, u32)> {
                let mut parts = release.split(['.', '-']);
                Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
            };
            // 4.17 introduced MAP_FIXED_NOREPLACE, the newest feature that memory placement needs.
            match version() {
                Some(v) if v < (4, 17) => Finding::bad("kernel", format!("{release} is too old: 4.17 or newer is needed")),
                _ => Finding::good("kernel", release),
            }
        }
        Err(e) => Finding::note("kernel", format!("its version is unknown: {e}")),
    }
}

/// Tries the first step of a job: reserving a range of addresses that takes no memory.
fn address_space() -> Finding {
    const SUBJECT: &str = "address space";
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping that replaces nothing; nothing is stored in it.
    let got = unsafe { libc::mmap(OWN as *mut _, ARENA as usize, libc::PROT_NONE, flags, -1, 0) };
    if got as u64 == OWN {
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(got, ARENA as usize) };
        return Finding::good(SUBJECT, "ranges of 512 GiB can be held");
    }
    let error = std::io::Error::last_os_error();
    if got != libc::MAP_FAILED {
        // SAFETY: a mapping made above, at another address (kernels that do not know the flag).
        unsafe { libc::munmap(got, ARENA as usize) };
        return Finding::bad(SUBJECT, "the kernel does not put a range where it is asked to");
    }
    let limit = getrlimit(Resource::RLIMIT_AS).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|v| v.trim() == "2");
    Finding::bad(
        SUBJECT,
        match (limit, strict) {
            (RLIM_INFINITY, false) => format!("a range of 512 GiB cannot be held: {error}"),
            (RLIM_INFINITY, true) => format!("a range of 512 GiB cannot be held ({error}): vm.overcommit_memory is 2"),
            (limit, _) => format!("the limit on address space is {limit} bytes (ulimit -v): it must be unlimited"),
        },
    )
}

fn mappings() -> Finding {
    const SUBJECT: &str = "mappings";
    match std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|v| v.trim().parse::<u64>().ok()) {
        Some(n) if n < FEWEST_MAPPINGS => {
            Finding::note(SUBJECT, format!("vm.max_map_count is {n}: jobs with many allocations need {FEWEST_MAPPINGS} or more"))
        }
        Some(n) => Finding::good(SUBJECT, format!("vm.max_map_count is {n}")),
        None => Finding::note(SUBJECT, "vm.max_map_count cannot be read"),
    }
}

/// membarrier(2) lets calls pass the gate without a memory fence.
fn barrier() -> Finding {
    const QUERY: libc::c_int = 0;
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    // SAFETY: a system call without pointers.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    if commands >= 0 && commands & PRIVATE_EXPEDITED != 0 {
        Finding::good("membarrier", "allowed")
    } else {
        Finding::note("membarrier", "refused here (a container's filter?): each call costs a few nanoseconds more")
    }
}

fn memfd() -> Finding {
    // SAFETY: the name is a C string; the descriptor is closed below.
    let fd = unsafe { libc::memfd_create(c"mrcuda-doctor".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Finding::bad("memfd", format!("memfd_create: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor made above, used by nothing else.
    unsafe { libc::close(fd) };
    Finding::good("memfd", "allowed")
}

/// A preloaded driver takes precedence over every search path.
fn preload() -> Finding {
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let beats = preload.split([':', ' ']).find(|p| p.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so")));
    match beats {
        Some(path) => Finding::bad("LD_PRELOAD", format!("{path} would be used instead of mrcuda's library: unset it")),
        None => Finding::good("LD_PRELOAD", "brings no CUDA driver"),
    }
}
