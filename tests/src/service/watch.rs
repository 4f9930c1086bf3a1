//! What a server's process takes over time, and whether that stays flat.

use crate::server::Server;
use std::time::Duration;

/// A server's memory may grow by so much while it serves as many clients as before: what its allocator keeps.
pub const MOST_GROWTH_KIB: u64 = 4 << 10;
/// A server may have so many descriptors more when all jobs have left than before the first one came.
pub const MOST_LEFT: usize = 8;
/// Fewer samples say nothing about growth.
const FEWEST: usize = 6;

/// A server's process at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Since the beginning.
    pub at: Duration,
    /// Its process id: another one after it was replaced.
    pub pid: u32,
    /// Its resident memory.
    pub rss_kib: u64,
    /// Its open descriptors.
    pub descriptors: usize,
    /// Its workers, those that wait for a client included.
    pub workers: usize,
    /// Jobs that run,
    pub running: usize,
    /// have ended,
    pub ended: usize,
    /// and were not as natively.
    pub failed: usize,
    /// Moves that have succeeded, the agent's included.
    pub moves: usize,
    /// Moves that have not.
    pub unmoved: usize,
}

/// Resident memory of a process in KiB; none if it has ended.
pub(super) fn rss_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().trim_end_matches(" kB").parse().ok())
}

/// Open descriptors of a process.
pub(super) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The same of a server that serves: what it takes, with nothing of its jobs.
pub(super) fn sample(at: Duration, server: &Server) -> Sample {
    let pid = server.pid();
    let (rss_kib, descriptors, workers) = (rss_kib(pid).unwrap_or(0), descriptors(pid), server.workers().len());
    Sample { at, pid, rss_kib, descriptors, workers, running: 0, ended: 0, failed: 0, moves: 0, unmoved: 0 }
}

/// What one server process has taken while it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Its process id.
    pub pid: u32,
    /// Its memory in the second quarter of its time, when all clients were there,
    pub early_kib: u64,
    /// in the last one,
    pub late_kib: u64,
    /// and at most.
    pub most_kib: u64,
    /// Its descriptors in the second quarter, in the last one, and at most.
    pub descriptors: [usize; 3],
}

impl Growth {
    /// That of one process; none with too few samples.
    pub(super) fn of(pid: u32, samples: &[Sample]) -> Option<Growth> {
        let own: Vec<&Sample> = samples.iter().filter(|sample| sample.pid == pid).collect();
        let quarter = own.len() / 4;
        let (early, late) = (own.get(quarter..2 * quarter)?, own.get(own.len() - quarter..)?);
        let kib = |part: &[&Sample]| middle(part.iter().map(|sample| sample.rss_kib).collect());
        let count = |part: &[&Sample]| middle(part.iter().map(|sample| sample.descriptors as u64).collect()).map(|n| n as usize);
        let most = |of: fn(&Sample) -> u64| own.iter().map(|sample| of(sample)).max();
        (own.len() >= FEWEST).then_some(())?;
        Some(Growth {
            pid,
            early_kib: kib(early)?,
            late_kib: kib(late)?,
            most_kib: most(|sample| sample.rss_kib)?,
            descriptors: [count(early)?, count(late)?, most(|sample| sample.descriptors as u64)? as usize],
        })
    }

    /// What is wrong with it.
    pub(super) fn problem(&self) -> Option<String> {
        let grown = self.late_kib.saturating_sub(self.early_kib);
        let Growth { pid, early_kib, late_kib, .. } = self;
        (grown > MOST_GROWTH_KIB)
            .then(|| format!("server {pid} has grown from {early_kib} to {late_kib} KiB, more than {MOST_GROWTH_KIB} KiB"))
    }
}

fn middle(mut of: Vec<u64>) -> Option<u64> {
    of.sort_unstable();
    of.get(of.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(pid: u32, kib: impl Fn(u64) -> u64) -> Vec<Sample> {
        let none = Sample {
            at: Duration::ZERO,
            pid,
            rss_kib: 0,
            descriptors: 20,
            workers: 0,
            running: 0,
            ended: 0,
            failed: 0,
            moves: 0,
            unmoved: 0,
        };
        (0..40).map(|n| Sample { at: Duration::from_secs(n), rss_kib: kib(n), ..none }).collect()
    }

    #[test]
    fn what_grows_is_found_and_a_start_is_not_growth() {
        // Ten seconds until all clients are there; a moment at which more is taken; and 300 KiB more every second.
        let flat = samples(1, |n| if n < 10 { 10_000 + 1000 * n } else { 20_000 + if n == 30 { 9000 } else { n % 3 } });
        let grows = samples(2, |n| 20_000 + 300 * n);
        let all = [flat, grows].concat();
        let of = |pid| Growth::of(pid, &all).unwrap();
        assert_eq!((of(1).problem(), of(1).most_kib, of(1).descriptors), (None, 29_000, [20; 3]));
        assert!(of(2).problem().unwrap().contains("server 2 has grown from"), "{:?}", of(2));
        assert_eq!(Growth::of(3, &all), None);
    }
}
