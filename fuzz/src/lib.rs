//! Feeds a parser with inputs that are almost right: seeds, what is kept in `corpus/NAME`, and changed copies of them.
//!
//! A target is a test that calls [`run`]. In an ordinary test run it checks all inputs of the corpus and then [`SHORT`] changed
//! ones, which are the same in every run. With `FUZZ_SECONDS` in the environment it goes on for so long, with other inputs each
//! time; compiled by `cargo xtask verify --long` it also knows which code an input has reached, goes on from inputs that have
//! reached new code, and leaves the ones worth keeping in `target/fuzz/NAME`.
//!
//! Whoever uses this crate has its counting allocator, so that an input that makes a parser take much memory is found, too.

mod coverage;
mod memory;
mod mutate;

use coverage::Coverage;
use mutate::Mutator;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Changed inputs of an ordinary test run.
pub const SHORT: usize = 4000;

/// Most memory that an input may take at a time, beyond what was there before: so many bytes, and so many for each of its own.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// For an input of any length.
    pub bytes: usize,
    /// For each byte of the input.
    pub each: usize,
}

/// The directory of this crate.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Runs `check` on the seeds, on the corpus of `name`, and on inputs made from both.
///
/// # Panics
/// `check` has panicked, or an input took too much memory. The input is then in a file that the message names.
pub fn run(name: &str, seeds: impl IntoIterator<Item = Vec<u8>>, limit: Limit, check: impl Fn(&[u8])) {
    let target = Target { name, limit, check };
    let mut pool: Vec<Vec<u8>> = seeds.into_iter().collect();
    pool.extend(corpus(&Path::new(HERE).join("corpus").join(name)));
    assert!(!pool.is_empty(), "there is nothing to begin with");
    let mut coverage = Coverage::default();
    for input in &pool {
        target.try_one(input);
        coverage.is_new();
    }
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    match seconds.map(Duration::from_secs) {
        None => {
            let mut mutator = Mutator::new(seed(name));
            (0..SHORT).for_each(|_| _ = target.try_one(&mutator.changed(&pool)));
        }
        Some(time) => target.search(time, pool, coverage),
    }
}

/// A beginning for random numbers that depends on the name alone.
fn seed(name: &str) -> u64 {
    hash(0xcbf2_9ce4_8422_2325, name.as_bytes())
}

/// The FNV-1a hash of bytes, continued from `from`.
fn hash(from: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(from, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// The files of a directory, in the order of their names.
fn corpus(directory: &Path) -> Vec<Vec<u8>> {
    // A target need not have one.
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).collect();
    files.sort();
    let read = |file: &PathBuf| std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    files.iter().map(read).collect()
}

struct Target<'a, F> {
    name: &'a str,
    limit: Limit,
    check: F,
}

impl<F: Fn(&[u8])> Target<'_, F> {
    /// Checks one input; gives the time that took.
    fn try_one(&self, input: &[u8]) -> Duration {
        coverage::reset();
        memory::begin();
        let began = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| (self.check)(input)));
        let (took, peak) = (began.elapsed(), memory::peak());
        let most = self.limit.bytes + self.limit.each * input.len();
        if let Err(panic) = ended {
            eprintln!("{}: this input panics: {}", self.name, self.keep("failed", input).display());
            resume_unwind(panic);
        }
        if peak > most {
            let file = self.keep("failed", input);
            panic!("{}: {peak} bytes of memory for an input of {} bytes: {}", self.name, input.len(), file.display());
        }
        took
    }

    /// Writes an input to a directory under `target/fuzz`.
    fn keep(&self, directory: &str, input: &[u8]) -> PathBuf {
        let directory = Path::new(HERE).join("../target/fuzz").join(directory).join(self.name);
        let file = directory.join(format!("{:016x}", hash(input.len() as u64, input)));
        let written = std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&file, input));
        written.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        file
    }

    /// Looks for so long, and goes on from what has reached new code.
    fn search(&self, time: Duration, mut pool: Vec<Vec<u8>>, mut coverage: Coverage) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        let mut mutator = Mutator::new(seed(self.name) ^ now);
        let given = pool.len();
        let (began, mut tried, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
        while began.elapsed() < time {
            let input = mutator.changed(&pool);
            slowest = slowest.max(self.try_one(&input));
            tried += 1;
            if coverage.is_new() {
                pool.push(input);
            }
        }
        let found = self.worth_keeping(&pool[..given], &pool[given..]);
        println!(
            "{}: {tried} inputs in {:.0?}, slowest {slowest:.0?}; {} reached new code, {found} kept in target/fuzz/found/{}",
            self.name,
            began.elapsed(),
            pool.len() - given,
            self.name
        );
    }

    /// Writes the few of what was found that reach what all of them reach; gives how many.
    fn worth_keeping(&self, given: &[Vec<u8>], found: &[Vec<u8>]) -> usize {
        let mut coverage = Coverage::default();
        for input in given {
            self.try_one(input);
            coverage.is_new();
        }
        let mut shortest: Vec<&Vec<u8>> = found.iter().collect();
        shortest.sort_by_key(|input| input.len());
        let mut kept = 0;
        for input in shortest {
            self.try_one(input);
            if coverage.is_new_code() {
                self.keep("found", input);
                kept += 1;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const NO_LIMIT: Limit = Limit { bytes: usize::MAX, each: 0 };

    #[test]
    fn what_panics_and_what_takes_memory_is_found() {
        let number = |input: &[u8]| input.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)) as usize;
        let seed = || [vec![1, 0, 0, 0, 7, 7, 7, 7]];
        let panics = catch_unwind(|| run("panics", seed(), NO_LIMIT, |input| assert!(number(input) < 1 << 20, "too large")));
        assert!(panics.is_err());
        let limit = Limit { bytes: 1000, each: 1 };
        let takes = |input: &[u8]| drop(std::hint::black_box(Vec::<u8>::with_capacity(number(input) >> 8)));
        assert!(catch_unwind(|| run("takes", seed(), limit, takes)).is_err());
        run("takes", seed(), limit, |input| drop(std::hint::black_box(input.to_vec())));
        for name in ["panics", "takes"] {
            std::fs::remove_dir_all(Path::new(HERE).join("../target/fuzz/failed").join(name)).expect("the input was kept");
        }
    }

    #[test]
    fn an_ordinary_run_is_the_same_every_time() {
        let digest = || {
            let (sum, runs) = (Cell::new(0u64), Cell::new(0));
            run("same", [b"{\"a\":1}".to_vec(), vec![0; 40]], NO_LIMIT, |input| {
                sum.set(hash(sum.get(), input));
                runs.set(runs.get() + 1);
            });
            (sum.get(), runs.get())
        };
        assert_eq!(digest(), digest());
        assert_eq!(digest().1, SHORT + 2);
    }
}
