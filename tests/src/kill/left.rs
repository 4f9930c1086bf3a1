//! Checks that a job leaves nothing behind.

use crate::scene::{Scene, wait_for};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// Something of a job, its servers or its moves is left.
#[derive(Debug, thiserror::Error)]
pub enum LeftError {
    /// Processes that must have ended run.
    #[error("{what} still lives: {pids:?}")]
    Lives {
        /// What the processes are.
        what: &'static str,
        /// Those that run.
        pids: Vec<u32>,
    },
    /// `mrcuda ps` could not be run.
    #[error("{0}")]
    Ps(io::Error),
    /// `mrcuda ps` lists a job.
    #[error("mrcuda ps still lists a job: {0}")]
    Listed(String),
    /// Files in the runtime directory.
    #[error("left in the runtime directory: {}", .0.join(", "))]
    Files(Vec<String>),
    /// Files in /dev/shm.
    #[error("left in /dev/shm: {}", .0.join(", "))]
    SharedMemory(Vec<String>),
    /// Files in the directory in which the job was parked.
    #[error("left where the job was parked: {0:?}")]
    Parked(Vec<String>),
    /// More GPU memory than an idle worker needs.
    #[error("workers without a job hold {0} bytes of a GPU")]
    GpuBytes(u64),
    /// A server that has ended accepts connections.
    #[error("{0} still listens")]
    Listens(SocketAddr),
    /// A server failed at its end.
    #[error("the server did not end in order: {0:?}")]
    Server(Option<ExitStatus>),
}

/// Time limit for a process to end once it has no more work.
const ENDING: Duration = Duration::from_secs(20);

fn numbers(directory: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Whether a process exists and is no zombie.
pub(super) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

/// The processes of a scene, by its runtime directory in their environment.
pub(super) fn processes(scene: &Scene) -> Vec<u32> {
    let mark = [b"XDG_RUNTIME_DIR=", scene.runtime().as_os_str().as_bytes()].concat();
    let ours = |pid: &u32| {
        let env = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        env.split(|b| *b == 0).any(|v| v == mark) && lives(*pid)
    };
    numbers("/proc").filter(ours).collect()
}

/// Bytes of CPU-driver GPUs that a process holds: their memory is files in memory, open or mapped.
pub fn gpu_bytes(pid: u32) -> u64 {
    let mut files: HashMap<u64, u64> = HashMap::new();
    for fd in numbers(&format!("/proc/{pid}/fd")) {
        let link = format!("/proc/{pid}/fd/{fd}");
        let is_gpu = std::fs::read_link(&link).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(b"/memfd:softgpu"));
        if let (true, Ok(meta)) = (is_gpu, std::fs::metadata(&link)) {
            files.insert(meta.ino(), meta.len());
        }
    }
    for line in std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, _, _, _, inode, name, ..] = fields[..] else { continue };
        if let (true, Ok(inode), Some((from, to))) = (name.starts_with("/memfd:softgpu"), inode.parse(), range.split_once('-')) {
            let end = |s| u64::from_str_radix(s, 16).unwrap_or(0);
            files.entry(inode).or_insert(end(to) - end(from));
        }
    }
    files.values().sum()
}

/// Waits until none of these processes is left.
pub(super) fn all_end(pids: &[u32], what: &'static str) -> Result<(), LeftError> {
    let left = || pids.iter().copied().filter(|p| lives(*p)).collect::<Vec<u32>>();
    match wait_for(ENDING, || left().is_empty().then_some(())) {
        Some(()) => Ok(()),
        None => Err(LeftError::Lives { what, pids: left() }),
    }
}

/// What is in the runtime directory; dead jobs' sockets are removed by the next command that looks.
pub(super) fn files(scene: &Scene) -> Result<(), LeftError> {
    let jobs = scene.jobs().map_err(LeftError::Ps)?;
    if !jobs.is_empty() {
        return Err(LeftError::Listed(format!("{jobs:?}")));
    }
    let left: Vec<String> = names(&scene.runtime().join("mrcuda"));
    if left.is_empty() { Ok(()) } else { Err(LeftError::Files(left)) }
}

/// No file in /dev/shm is ours.
pub(super) fn shared_memory() -> Result<(), LeftError> {
    let ours = |n: &String| n.contains("mrcuda") || n.contains("softgpu");
    let left: Vec<String> = names(Path::new("/dev/shm")).into_iter().filter(ours).collect();
    if left.is_empty() { Ok(()) } else { Err(LeftError::SharedMemory(left)) }
}

/// No file is in the directory in which a job was parked.
pub(super) fn parked(directory: &Path) -> Result<(), LeftError> {
    let left = names(directory);
    if left.is_empty() { Ok(()) } else { Err(LeftError::Parked(left)) }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}
