//! Checks that a job leaves nothing behind.

use crate::scene::{Scene, wait_for};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

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
pub(super) fn all_end(pids: &[u32], what: &str) -> Result<(), String> {
    let left = || pids.iter().copied().filter(|p| lives(*p)).collect::<Vec<u32>>();
    match wait_for(ENDING, || left().is_empty().then_some(())) {
        Some(()) => Ok(()),
        None => Err(format!("{what} still lives: {:?}", left())),
    }
}

/// What is in the runtime directory; dead jobs' sockets are removed by the next command that looks.
pub(super) fn files(scene: &Scene) -> Result<(), String> {
    let output = scene.mrcuda().args(["ps", "--json"]).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.trim() != "[]" {
        return Err(format!("mrcuda ps still lists a job: {said}"));
    }
    let left: Vec<String> = names(&scene.runtime().join("mrcuda"));
    if left.is_empty() { Ok(()) } else { Err(format!("left in the runtime directory: {}", left.join(", "))) }
}

/// Names in /dev/shm that are ours.
pub(super) fn shared_memory() -> Vec<String> {
    let ours = |n: &String| n.contains("mrcuda") || n.contains("softgpu");
    names(Path::new("/dev/shm")).into_iter().filter(ours).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}
