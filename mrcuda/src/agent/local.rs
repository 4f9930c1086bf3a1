//! The GPUs of this machine that jobs use in their own processes, and who uses them, whether mrcuda knows them or not.

use super::tell::Tell;
use crate::{drivers, probe};
use agent::{Gpu, LOCAL};
use rcuda_forwarder::{GpuUsage, GpuUsers, NoReadings};
use std::collections::HashMap;
use std::path::Path;

/// A GPU, and the processes that use it.
pub(super) type Local = (Gpu, Vec<u32>);
type Uuid = [u8; 16];

/// Who is asked about the GPUs.
#[derive(Debug, Default)]
pub(super) struct LocalGpus {
    /// Their UUIDs as CUDA counts them here, and who reads NVML; the reason if that is not known. Asked for once.
    known: Option<Result<(Vec<Uuid>, GpuUsers), String>>,
    /// Why it was not known who uses them when they were last asked about.
    missing: Option<String>,
}

/// What is known of the GPUs at a time.
#[derive(Debug)]
enum Known {
    /// The first ones have these UUIDs, and NVML says this.
    Usage(Vec<Uuid>, HashMap<Uuid, GpuUsage>),
    /// Nothing now.
    NotNow(String),
    /// Nothing, as long as this agent runs.
    Never(String),
}

impl LocalGpus {
    /// The first GPUs of this machine now. It is told if it is not known who uses them, or known again.
    pub(super) fn look(&mut self, n: u32, tell: &Tell) -> Vec<Local> {
        if n == 0 {
            return Vec::new();
        }
        let known = match self.known.get_or_insert_with(find) {
            Err(why) => Known::Never(why.clone()),
            Ok((uuids, users)) => {
                let uuids: Vec<Uuid> = uuids.iter().copied().take(n as usize).collect();
                match users.ask(&uuids) {
                    Ok(usage) => Known::Usage(uuids, usage),
                    Err(NoReadings::Unusable(why)) => Known::Never(why),
                    Err(why) => Known::NotNow(why.to_string()),
                }
            }
        };
        let (gpus, missing) = described(n, known);
        if self.missing != missing {
            tell.local_gpus(missing.as_deref());
            self.missing = missing;
        }
        gpus
    }
}

/// Finds the driver and its GPUs.
fn find() -> Result<(Vec<Uuid>, GpuUsers), String> {
    let named = drivers::from_environment().map(|text| drivers::named(&text).map_err(|why| why.to_string())).transpose()?;
    let driver = named.or_else(drivers::find).ok_or_else(|| "this machine has no CUDA driver".to_owned())?;
    let found = probe::ask(&driver, false).map_err(|why| format!("the driver {}: {why}", driver.display()))?;
    if found.uuids.is_empty() {
        return Err(format!("{} names no GPU (CUDA error {})", driver.display(), found.init));
    }
    // As a server's workers: not by its path, where another file could be put while this process runs.
    Ok((found.uuids, GpuUsers::new("/proc/self/exe".into(), &driver)))
}

/// The GPUs by what is known of them, and what is not known of all of them.
fn described(n: u32, known: Known) -> (Vec<Local>, Option<String>) {
    // While an answer is missing that usually comes, none of them is taken for free.
    let takes_jobs = !matches!(known, Known::NotNow(_));
    let mut missing = None;
    let usage: Vec<GpuUsage> = match known {
        Known::Usage(uuids, usage) => {
            let of = |gpu: u32| uuids.get(gpu as usize).and_then(|uuid| usage.get(uuid)).cloned().unwrap_or_default();
            (0..n).map(of).collect()
        }
        Known::NotNow(why) | Known::Never(why) => {
            missing = Some(why);
            vec![GpuUsage::default(); n as usize]
        }
    };
    let gpu = |(number, usage): (u32, GpuUsage)| {
        let (place, sees_programs) = (format!("{LOCAL}:{number}"), usage.processes.is_some());
        if !sees_programs || usage.free_bytes.is_none() {
            missing.get_or_insert_with(|| format!("NVML does not say it of {place}"));
        }
        let gpu = Gpu {
            place,
            server: LOCAL.into(),
            free_bytes: usage.free_bytes,
            takes_jobs,
            others: 0,
            sees_programs,
            draining_node: None,
        };
        (gpu, usage.processes.unwrap_or_default().into_iter().map(job_of).collect())
    };
    let gpus = (0..).zip(usage).map(gpu).collect();
    (gpus, missing)
}

/// The process of the job that a helper works for; other processes themselves.
fn job_of(pid: u32) -> u32 {
    // One that has ended uses nothing any more.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    of_helper(&command).unwrap_or(pid)
}

/// The job in the command line of a helper.
fn of_helper(command: &[u8]) -> Option<u32> {
    let mut words = command.split(|byte| *byte == 0).map(std::str::from_utf8);
    let program = Path::new(words.next()?.ok()?).file_name()?;
    words.next()?.ok()?.parse().ok().filter(|_| program == "mhelper")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [Uuid; 2] = [[1; 16], [2; 16]];

    fn usage(free_bytes: Option<u64>, processes: Option<Vec<u32>>) -> GpuUsage {
        GpuUsage { free_bytes, processes }
    }

    #[test]
    fn nvml_says_who_uses_a_gpu() {
        // No process has such a number.
        let pid = u32::MAX - 1;
        let known = [(UUIDS[0], usage(Some(7), Some(vec![pid]))), (UUIDS[1], usage(Some(8), Some(Vec::new())))];
        let (gpus, missing) = described(2, Known::Usage(UUIDS.to_vec(), known.into_iter().collect()));
        let [(first, pids), (second, none)] = &gpus[..] else { panic!("{gpus:?}") };
        assert_eq!((&*first.place, first.free_bytes, first.takes_jobs, first.sees_programs), ("local:0", Some(7), true, true));
        assert_eq!((&pids[..], &*second.place, &none[..], missing), (&[pid][..], "local:1", &[][..], None));
    }

    #[test]
    fn what_is_not_known_is_said_and_a_gpu_is_not_taken_for_free_while_an_answer_is_missing() {
        let (gpus, missing) = described(1, Known::Never("none".into()));
        assert!(gpus[0].0.takes_jobs && !gpus[0].0.sees_programs && gpus[0].0.free_bytes.is_none() && gpus[0].1.is_empty());
        assert_eq!(missing.as_deref(), Some("none"));
        let (gpus, missing) = described(1, Known::NotNow("late".into()));
        assert!(!gpus[0].0.takes_jobs && missing.as_deref() == Some("late"));
        // The settings name more GPUs than there are.
        let known = [(UUIDS[0], usage(Some(7), Some(Vec::new())))];
        let (gpus, missing) = described(2, Known::Usage(UUIDS[..1].to_vec(), known.into_iter().collect()));
        assert!(gpus[0].0.sees_programs && !gpus[1].0.sees_programs);
        assert_eq!(missing.as_deref(), Some("NVML does not say it of local:1"));
    }

    #[test]
    fn a_helper_counts_as_its_job() {
        assert_eq!(of_helper(b"/usr/lib/mrcuda/mhelper\x004711\x00build\0"), Some(4711));
        for other in [&b"/bin/mhelper2\x004711\0"[..], b"/bin/mhelper\0x\0", b"mhelper", b"", b"\xff\x001\0"] {
            assert_eq!(of_helper(other), None);
        }
    }
}
