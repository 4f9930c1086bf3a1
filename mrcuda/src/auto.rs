//! `mrcuda run --server auto[:N]`: chooses GPUs of the servers of `--pool` when a job starts.

use crate::failure::Failure;
use crate::gpus::{self, Candidate, Server};
use crate::progress::waiting;
use crate::table::note;
use rcuda_forwarder::Endpoint;
use std::cmp::Reverse;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The end of a server's refusal if too many clients ask for its state: jobs that start together ask together.
const AGAIN: &str = "ask again in a moment";
/// How often servers that say so are asked, and the pause before that, to which a random one of the same length is added. A number and not a time:
/// a process that is stopped meanwhile, by a scheduler for example, goes on where it was.
const QUESTIONS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(250);

/// The best of these GPUs: those with the fewest jobs, of these with the most free memory, in GiB. Programs that start at the same time see the
/// same GPUs, so of equals those of `turn` others are left to them.
fn choose(mut all: Vec<Candidate>, count: usize, turn: usize) -> Vec<String> {
    let rank = |gpu: &Candidate| (gpu.jobs, Reverse(gpu.free_bytes >> 30));
    all.sort_by_key(rank);
    let mut places = Vec::new();
    for equals in all.chunk_by(|a, b| rank(a) == rank(b)) {
        let first = turn.wrapping_mul(count) % equals.len();
        places.extend(equals[first..].iter().chain(&equals[..first]).map(|gpu| gpu.place.clone()));
    }
    places.truncate(count);
    places
}

/// Asks the servers, again and again while too few of their GPUs are known and one of them is asked by too many.
fn candidates(pool: &[Endpoint], count: usize) -> (Vec<Candidate>, Vec<Server>) {
    let mut questions = 1;
    loop {
        let asked: Vec<Server> = gpus::ask_all(pool);
        let mut candidates: Vec<Candidate> = asked.iter().flat_map(Server::candidates).collect();
        candidates.sort_by(|a, b| a.place.cmp(&b.place));
        candidates.dedup_by(|a, b| a.place == b.place);
        let is_busy = |server: &Server| server.outcome().1.is_some_and(|why| why.ends_with(AGAIN));
        if candidates.len() >= count || questions == QUESTIONS || !asked.iter().any(is_busy) {
            return (candidates, asked);
        }
        questions += 1;
        std::thread::sleep(PAUSE + PAUSE * (RandomState::new().hash_one(0) as u32 % 1000) / 1000);
    }
}

/// Chooses `count` different GPUs of the servers.
pub(crate) fn find(pool: &[Endpoint], count: usize) -> Result<String, Failure> {
    if pool.is_empty() {
        return Err(Failure::with_code(
            2,
            "`auto` chooses among the GPUs of the servers of --pool, and there are none (or `pool` in [run] of a configuration file)",
        ));
    }
    let shown = waiting("the servers of --pool are asked");
    let (candidates, asked) = candidates(pool, count);
    drop(shown);
    if candidates.len() < count {
        let reasons: String = asked.iter().filter_map(|server| server.outcome().1).map(|why| format!("; {why}")).collect();
        let found = candidates.len();
        return Err(Failure::new(format!(
            "{count} GPUs are wanted, and the servers of --pool have {found} that take jobs{reasons}"
        )));
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    // Tasks of a step of Slurm have numbers; elsewhere theirs is 0.
    let of_slurm = number("SLURM_STEP_ID").and_then(|_| Some(number("SLURM_JOB_ID")?.wrapping_add(number("SLURM_PROCID")?)));
    let turn = of_slurm.unwrap_or_else(|| std::process::id() as usize);
    let places = choose(candidates, count, turn).join(",");
    note(&format!("auto: {places}"));
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((best(2, 0), best(2, 1), best(2, 2)), ("a b".into(), "c a".into(), "b c".into()));
        assert_eq!(best(6, 4), "a b c small shared busy");
        assert_eq!(best(9, 0), "a b c small shared busy");
        assert!(choose(Vec::new(), 1, 7).is_empty());
    }
}
