//! `cargo xtask verify`: every parser of what others wrote, fed with inputs that are almost right (crate `fuzz`); with `--long` for
//! some minutes each, and the models (crate `interleave`) with their large bounds.

use crate::error::Error;
use crate::step::step;
use ::tests::install;
use cuda_api::lock::{into_inner, lock};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Arguments of `cargo xtask verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Run the models with their large bounds, and each target for some minutes, looking for inputs that reach new code
    #[arg(long)]
    long: bool,
    /// How long each target runs, in minutes; as many run at a time as there are processors
    #[arg(long, default_value_t = 4, requires = "long", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
}

/// The crates whose models have large bounds.
const MODELS: [&str; 2] = ["recorder", "rcuda-forwarder"];
/// The crates that have targets.
const CRATES: [&str; 6] = ["control", "cuda-api", "cuda-image", "journal", "memsync", "rcuda-forwarder"];
/// What makes the compiler count how often each branch is taken (LLVM's SanitizerCoverage). It needs no other toolchain.
const COUNTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                       -Cllvm-args=-sanitizer-coverage-inline-8bit-counters --cfg fuzzing";

/// Runs all targets.
pub(crate) fn verify(args: &VerifyArgs) -> Result<(), Error> {
    let root = install::root();
    if !args.long {
        let mut cargo = cargo_test();
        let passed = cargo.args(["--", "fuzz::"]).status().map_err(Error::start("cargo"))?.success();
        return if passed {
            Ok(())
        } else {
            Err(Error::Found("verify: a target has failed; the input is in target/fuzz/failed".to_owned()))
        };
    }
    step("the models, with their large bounds");
    let mut models = install::cargo();
    models.args(["test", "--profile", install::PROFILE, "--lib"]).env("LARGE_MODELS", "1");
    MODELS.iter().for_each(|package| _ = models.args(["--package", package]));
    if !models.status().map_err(Error::start("cargo"))?.success() {
        return Err(Error::Found("verify: a model has failed".to_owned()));
    }
    step("building the targets, with counters");
    let targets = names(&root)?;
    step(&format!("{} targets, {} minutes each", targets.len(), args.minutes));
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            s.spawn(|| {
                while let Some(name) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut cargo = counted(&root);
                    cargo.args(["--quiet", "--", "--exact", name, "--nocapture"]);
                    cargo.env("FUZZ_SECONDS", (60 * args.minutes).to_string());
                    if !cargo.status().is_ok_and(|status| status.success()) {
                        lock(&failed).push(name.as_str());
                    }
                }
            });
        }
    });
    let failed = into_inner(failed);
    if failed.is_empty() { Ok(()) } else { Err(Error::Found(format!("verify: failed: {}", failed.join(", ")))) }
}

fn cargo_test() -> Command {
    let mut cargo = install::cargo();
    cargo.args(["test", "--profile", install::PROFILE, "--lib"]);
    CRATES.iter().for_each(|package| _ = cargo.args(["--package", package]));
    cargo
}

/// The tests with counters in all code but that of build scripts, which are not for the target.
fn counted(root: &Path) -> Command {
    let mut cargo = cargo_test();
    cargo.args(["--target", "x86_64-unknown-linux-gnu", "--target-dir"]).arg(root.join("target/fuzz/build"));
    cargo.env("RUSTFLAGS", COUNTED);
    cargo
}

/// The targets: lines like `fuzz::requests: test`. No two crates have one of the same name.
fn names(root: &Path) -> Result<Vec<String>, Error> {
    let out = counted(root).args(["--", "fuzz::", "--list"]).stderr(std::process::Stdio::inherit()).output();
    let out = out.map_err(Error::start("cargo"))?;
    if !out.status.success() {
        return Err(Error::Found("verify: the targets do not compile".to_owned()));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
