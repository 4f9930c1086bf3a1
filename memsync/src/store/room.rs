//! How much memory this process can still get.

use std::path::{Path, PathBuf};

/// What the system must keep: a fiftieth of all memory, but no more than this.
const MAX_RESERVED: u64 = 1 << 30;

/// Memory of this machine, or of the part of it to which the process is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    total: u64,
    free: u64,
}

impl Memory {
    fn least(self, other: Memory) -> Memory {
        Memory { total: self.total.min(other.total), free: self.free.min(other.free) }
    }
}

/// Bytes of host memory that can be taken without bringing the machine into trouble; `None` if the system does not say.
pub fn free_host_memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let all = of_groups(&groups, Path::new("/sys/fs/cgroup")).fold(of_machine()?, Memory::least);
    Some(all.free.saturating_sub((all.total / 50).min(MAX_RESERVED)))
}

fn of_machine() -> Option<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Memory { total: figure("MemTotal:")?, free: figure("MemAvailable:")? })
}

/// The control groups of a process, as `/proc/self/cgroup` lists them, and those around them, as far as they limit memory. In a container
/// the innermost one is often mounted as the root, where the listed path does not exist.
fn of_groups<'a>(list: &'a str, root: &'a Path) -> impl Iterator<Item = Memory> + 'a {
    list.lines().flat_map(move |line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (root, files) = match controllers {
            "" => (root.to_owned(), ["memory.max", "memory.current", "inactive_file "]),
            some if some.split(',').any(|c| c == "memory") => {
                (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "])
            }
            _ => return Vec::new(),
        };
        let inside = Path::new(path.trim_start_matches('/'));
        inside.ancestors().filter_map(|group| of_group(&root.join(group), files)).collect()
    })
}

/// The memory of a control group, if it is limited. Pages of files that nobody has used lately are given up first.
fn of_group(group: &Path, [limit, usage, files]: [&str; 3]) -> Option<Memory> {
    let read = |name: &str| std::fs::read_to_string(PathBuf::from(group).join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (total, used) = (number(limit)?, number(usage)?);
    let stat = read("memory.stat").unwrap_or_default();
    let files = stat.lines().find_map(|line| line.strip_prefix(files)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(Memory { total, free: total.saturating_sub(used.saturating_sub(files)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("mrcuda-groups-{}", std::process::id()));
        let group = |path: &str, files: &[(&str, &str)]| {
            let directory = root.join(path);
            std::fs::create_dir_all(&directory).expect("a directory");
            files.iter().for_each(|(name, text)| std::fs::write(directory.join(name), text).expect("a file"));
        };
        group("a", &[("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", "anon 1\ninactive_file 300\n")]);
        group("a/b", &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        group("memory/c", &[("memory.limit_in_bytes", "700"), ("memory.usage_in_bytes", "800")]);
        let found = |list: &str| of_groups(list, &root).collect::<Vec<_>>();
        assert_eq!(found("0::/a/b\n"), [Memory { total: 1000, free: 400 }]);
        assert_eq!(found("3:cpu:/a\n2:cpuacct,memory:/c/d\nnonsense"), [Memory { total: 700, free: 0 }]);
        assert_eq!(found("0::/../../elsewhere"), []);
        std::fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn this_machine_says_how_much_is_free() {
        let all = of_machine().expect("figures");
        assert!(free_host_memory().is_some_and(|free| free < all.total));
    }
}
