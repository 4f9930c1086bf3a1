//! `mrcuda run --server auto[:N]`: chooses GPUs of the servers of `--pool` when a job starts.

use crate::failure::Failure;
use crate::gpus::{self, Server};
use crate::places::PlacesError;
use crate::table::note;
use cuda_api::address_map::DEVICES;
use rcuda_forwarder::Endpoint;
use std::cmp::Reverse;

/// A GPU of a server that takes new jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its place.
    pub(crate) place: String,
    /// Number of its jobs.
    pub(crate) jobs: usize,
    /// Free bytes of its memory.
    pub(crate) free_bytes: u64,
}

/// How many GPUs `auto[:N]` asks for; `None` if the text is something else.
///
/// # Errors
/// The number is none, or a job cannot have so many.
pub(crate) fn count(text: &str) -> Option<Result<usize, PlacesError>> {
    let rest = text.strip_prefix("auto")?;
    let number = match rest.strip_prefix(':') {
        None if rest.is_empty() => return Some(Ok(1)),
        None => return None,
        Some(number) => number,
    };
    let count = number.parse().ok().filter(|count| (1..=DEVICES as usize).contains(count));
    Some(count.ok_or_else(|| PlacesError::Auto(text.to_owned())))
}

/// The best of these GPUs: those with the fewest jobs, of these with the most free memory, in GiB. Programs that start at the same time see the
/// same GPUs, so of equals the one after `turn` others is the first.
fn choose(mut all: Vec<Candidate>, count: usize, turn: usize) -> Vec<String> {
    let rank = |gpu: &Candidate| (gpu.jobs, Reverse(gpu.free_bytes >> 30));
    all.sort_by_key(rank);
    let mut places = Vec::new();
    for equals in all.chunk_by(|a, b| rank(a) == rank(b)) {
        let first = turn % equals.len();
        places.extend(equals[first..].iter().chain(&equals[..first]).map(|gpu| gpu.place.clone()));
    }
    places.truncate(count);
    places
}

/// Chooses so many GPUs of the servers, each once.
pub(crate) fn find(pool: &[Endpoint], count: usize) -> Result<String, Failure> {
    if pool.is_empty() {
        return Err(Failure::with_code(
            2,
            "`auto` chooses among the GPUs of the servers of --pool, and there are none (or `pool` in [run] of a configuration file)",
        ));
    }
    let asked: Vec<Server> = gpus::ask_all(pool);
    let candidates: Vec<Candidate> = asked.iter().flat_map(Server::candidates).collect();
    if candidates.len() < count {
        let reasons: String = asked.iter().filter_map(|server| server.outcome().1).map(|why| format!("; {why}")).collect();
        let found = candidates.len();
        return Err(Failure::new(format!(
            "{count} GPUs are wanted, and the servers of --pool have {found} that take jobs{reasons}"
        )));
    }
    // Tasks of Slurm have numbers.
    let number = std::env::var("SLURM_PROCID").ok().and_then(|text| text.parse().ok());
    let turn = number.unwrap_or_else(|| std::process::id() as usize);
    let places = choose(candidates, count, turn).join(",");
    note(&format!("auto: {places}"));
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_checked() {
        let counts = |text| count(text).map(|count| count.ok());
        assert_eq!((counts("auto"), counts("auto:1"), counts("auto:32")), (Some(Some(1)), Some(Some(1)), Some(Some(32))));
        for text in ["auto:", "auto:0", "auto:33", "auto:-1", "auto:x", "auto:1,a:2"] {
            assert_eq!(counts(text), Some(None), "{text}");
        }
        assert_eq!((counts("automatic:1"), counts("autobox:7878"), counts("local")), (None, None, None));
    }

    #[test]
    fn gpus_with_few_jobs_and_much_memory_come_first_and_equals_in_turn() {
        let gpu = |place: &str, jobs, gib: u64| Candidate { place: place.to_owned(), jobs, free_bytes: (gib << 30) + 12_345 };
        let all = vec![
            gpu("busy", 2, 100),
            gpu("small", 0, 10),
            gpu("a", 0, 80),
            gpu("shared", 1, 90),
            gpu("b", 0, 80),
            gpu("c", 0, 80),
        ];
        let best = |count, turn| choose(all.clone(), count, turn).join(" ");
        assert_eq!((best(1, 0), best(1, 1), best(1, 2), best(1, 3)), ("a".into(), "b".into(), "c".into(), "a".into()));
        assert_eq!(best(6, 4), "b c a small shared busy");
        assert_eq!(best(9, 0), "a b c small shared busy");
        assert!(choose(Vec::new(), 1, 7).is_empty());
    }
}
