//! `cargo xtask test`: everything that must hold, from a fresh clone.

use crate::error::Error;
use crate::sample::Sample;
use crate::step::step;
use ::tests::{Install, Programs, install, random};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Only tests whose name contains this, all of them
    filter: Option<String>,
    /// Also the system tests that have no turn today
    #[arg(long, conflicts_with_all = ["filter", "seed"])]
    all: bool,
    /// The sample of a run that printed this seed, instead of today's
    #[arg(long, conflicts_with = "filter")]
    seed: Option<u64>,
}

/// Tests at a time, for each processor.
const THREADS: usize = 3;
/// How many failed tests are run once more, alone. More than these are no accident of timing.
const RUN_AGAIN: usize = 3;

/// Tests that passed and failed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    /// Names of those that passed.
    ok: HashSet<String>,
    /// Names of those that failed.
    names: Vec<String>,
    /// Names of those that failed beside the others and passed alone.
    unsteady: Vec<String>,
    /// Test programs that began, and those that came to a result.
    began: u64,
    ended: u64,
    /// A part that did not even run, for example because it does not compile.
    broken: bool,
}

/// Runs all tests, or those of a sample; the last line is `N passed, N failed`.
pub(crate) fn test(args: &TestArgs) -> Result<(), Error> {
    let install = build(args.all)?;
    let sample = Sample::new(args.seed);
    let filter: Vec<&str> = args.filter.as_deref().into_iter().collect();
    let whole = args.all || !filter.is_empty();
    let names = if whole { Vec::new() } else { system_tests(&install)? };
    let left_out = sample.left_out(&names);
    let skipped: Vec<&str> = match left_out.as_slice() {
        [] => Vec::new(),
        some => some.iter().flat_map(|name| ["--skip", name]).chain(["--exact"]).collect(),
    };
    if !left_out.is_empty() {
        let seed = sample.seed();
        println!("seed {seed}: {} of {} system tests have no turn (tests/README.md)", left_out.len(), names.len());
    }
    step("tests");
    let run = |args: &[&str]| cargo_test(&install, args, sample.seed());
    let mut tally = run(&[filter, skipped].concat())?;
    tally.run_again(|name| Ok(run(&[name, "--exact"])?.has_passed(name)))?;
    if tally.broken {
        eprintln!("cargo test failed beyond the tests that are counted");
    }
    for name in &tally.unsteady {
        println!("unsteady: {name} failed beside the others and passed alone");
    }
    if !left_out.is_empty() {
        let (seed, count) = (sample.seed(), left_out.len());
        println!(
            "{count} system tests had no turn: `cargo xtask test --seed {seed}` repeats this choice, `--all` runs all tests"
        );
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 || tally.broken {
        std::process::exit(1);
    }
    Ok(())
}

/// Builds everything: the crates and their tests in one go of cargo, and beside it nvcc and, for `all` tests, the test programs, which need no
/// cargo. Otherwise tests compile the programs that they use.
pub(crate) fn build(all: bool) -> Result<Install, Error> {
    let target = install::target_directory()?;
    step("building the crates and their tests (nvcc comes from PyPI at the first time)");
    std::thread::scope(|s| {
        let programs = s.spawn(|| if all { Programs::build(&target) } else { Programs::of_target(&target) });
        let mut cargo = install::cargo();
        cargo
            .args(["build", "--profile", install::PROFILE, "--workspace", "--target-dir"])
            .arg(&target)
            .args(["--lib", "--bins", "--tests"]);
        let crates = cargo.status().map_err(Error::start("cargo"))?;
        programs.join().map_err(|_| "the thread that compiles programs panicked".to_owned())??;
        Error::unless_success("cargo build", crates)
    })?;
    Ok(Install { bin: target.join(install::PROFILE), target })
}

/// The program `system` itself, which is built already.
pub(crate) fn system_program(install: &Install) -> Result<PathBuf, Error> {
    let mut cargo = install::cargo();
    cargo.args(["test", "--profile", install::PROFILE, "--quiet", "--workspace", "--test", "system", "--no-run"]);
    cargo.args(["--message-format", "json", "--target-dir"]);
    let out = cargo.arg(&install.target).output().map_err(Error::start("cargo"))?;
    let named = |line: &str| {
        let said: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = said["target"]["name"] == "system" && said["target"]["kind"][0] == "test";
        is_it.then(|| said["executable"].as_str().map(PathBuf::from)).flatten()
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let found = text.lines().find_map(named);
    found.ok_or_else(|| Error::Found(format!("no system tests: {}", String::from_utf8_lossy(&out.stderr))))
}

/// Names of the tests of the program `system`.
fn system_tests(install: &Install) -> Result<Vec<String>, Error> {
    let mut cargo = install::cargo();
    cargo.args(["test", "--profile", install::PROFILE, "--quiet", "--workspace", "--test", "system", "--target-dir"]);
    let out = cargo.arg(&install.target).args(["--", "--list"]).output().map_err(Error::start("cargo"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let names: Vec<String> = text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    if names.is_empty() {
        Err(Error::Found(format!("no system tests: {}", String::from_utf8_lossy(&out.stderr))))
    } else {
        Ok(names)
    }
}

/// Compiles the test programs.
pub(crate) fn programs() -> Result<(), Error> {
    let target = install::target_directory()?;
    Programs::build(&target)?;
    println!("{}", target.join("programs").display());
    Ok(())
}

/// Runs `cargo test` with these arguments for the test programs, and counts what they report.
fn cargo_test(install: &Install, args: &[&str], seed: u64) -> Result<Tally, Error> {
    // Many tests wait for processes most of the time.
    let threads = THREADS * std::thread::available_parallelism().map_or(1, usize::from);
    let mut child = install::cargo()
        // The same profile: what was built for the programs under test is used again.
        // The whole workspace, as it was built: cargo gives a part of it dependencies with other features, and would compile them again.
        .args(["test", "--profile", install::PROFILE, "--no-fail-fast", "--workspace", "--target-dir"])
        .arg(&install.target)
        // No crate has examples in its documentation that run; each would get a test program for them.
        .args(["--tests", "--"])
        .args(args)
        .env(random::SEED, seed.to_string())
        .env("MRCUDA_BIN_DIR", &install.bin)
        .env("RUST_TEST_THREADS", threads.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Error::start("cargo"))?;
    let mut tally = Tally::default();
    let mut out = std::io::stdout().lock();
    // Not every program under test prints text.
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok) {
        tally.read(&String::from_utf8_lossy(&line));
        out.write_all(&line).and_then(|()| out.write_all(b"\n"))?;
    }
    let status = child.wait()?;
    // A test program that crashed has no result.
    tally.broken = !status.success() && (tally.failed == 0 || tally.began != tally.ended);
    Ok(tally)
}

impl Tally {
    /// Whether this test ran and passed, and nothing failed.
    fn has_passed(&self, name: &str) -> bool {
        self.ok.contains(name) && self.failed == 0 && !self.broken
    }

    /// Runs the few tests that failed once more, each alone (`alone` says whether it passed). One that passes now depends on
    /// timing: it counts as passed, so that it stops nobody's work, and is named as unsteady, since it is a defect of the test or
    /// of what it tests.
    fn run_again(&mut self, mut alone: impl FnMut(&str) -> Result<bool, Error>) -> Result<(), Error> {
        if self.broken || self.names.len() > RUN_AGAIN || self.names.len() as u64 != self.failed {
            return Ok(());
        }
        for name in std::mem::take(&mut self.names) {
            if alone(&name)? {
                self.failed -= 1;
                self.passed += 1;
                self.unsteady.push(name);
            } else {
                self.names.push(name);
            }
        }
        Ok(())
    }

    /// Counts a line like `test result: FAILED. 3 passed; 1 failed; …`, and takes the names out of `test NAME ... FAILED` and
    /// `test NAME ... ok`.
    fn read(&mut self, line: &str) {
        if let Some((name, how)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
            match how {
                "ok" => _ = self.ok.insert(name.to_owned()),
                "FAILED" => self.names.push(name.to_owned()),
                _ => {}
            }
        }
        self.began += u64::from(line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")));
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.ended += 1;
        let count = |what: &str| -> u64 {
            let part = rest.split([';', '.']).map(str::trim).find(|part| part.ends_with(what));
            part.and_then(|part| part.split(' ').next()?.parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn results_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "running 12 tests",
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.02s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
            "running 1 test",
            "test foo ... ok",
            "test a::bar ... FAILED",
            "1 passed; 1 failed",
        ] {
            tally.read(line);
        }
        assert_eq!((tally.passed, tally.failed), (15, 2));
        assert_eq!(tally.names, ["a::bar"]);
        assert_eq!((tally.began, tally.ended), (2, 2));
        assert!(tally.ok.contains("foo") && !tally.has_passed("foo"), "others failed");
    }

    #[test]
    fn a_few_failed_tests_are_run_again() {
        let failed = |names: &[&str]| Tally {
            passed: 10,
            failed: names.len() as u64,
            names: names.iter().map(ToString::to_string).collect(),
            ..Tally::default()
        };
        let mut tally = failed(&["unsteady", "wrong"]);
        tally.run_again(|name| Ok(name == "unsteady")).unwrap();
        assert_eq!((tally.passed, tally.failed), (11, 1));
        assert_eq!((tally.names, tally.unsteady), (vec!["wrong".to_owned()], vec!["unsteady".to_owned()]));

        let mut crashed = Tally { broken: true, ..failed(&["a"]) };
        crashed.run_again(|_| panic!("a test program crashed")).unwrap();
        assert_eq!(crashed.failed, 1);

        let mut many = failed(&["a", "b", "c", "d"]);
        many.run_again(|_| panic!("so many are no accident")).unwrap();
        assert_eq!((many.passed, many.failed), (10, 4));

        let mut unnamed = Tally { failed: 2, ..failed(&["a"]) };
        unnamed.run_again(|_| panic!("one of them has no name")).unwrap();
        assert_eq!(unnamed.failed, 2);
    }
}
