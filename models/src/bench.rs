//! The parts of benchmark files that models need: the machine and the samples.

use crate::form;
use crate::limits;
pub use crate::limits::{ContentError, FileError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Kind of a benchmark file.
pub const KIND: &str = "mrcuda-bench";
/// Version of benchmark files.
pub const VERSION: u64 = 1;
/// Maximum length of a file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum number of samples of a file.
const MAX_SAMPLES: usize = 1 << 20;

/// The measured machine. Figures are valid for one machine only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name of the GPU.
    pub gpu: String,
    /// CUDA version of the driver, for example 13.0.
    pub driver: String,
    /// Name of the CPU.
    pub cpu: String,
    /// Processors that the process could use.
    pub cores: u32,
    /// Operating system and its version.
    pub system: String,
    /// Whether the GPU is softgpu, whose figures do not apply to hardware.
    pub soft: bool,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let soft = if self.soft { " (the CPU driver: these figures say nothing of hardware)" } else { "" };
        write!(f, "{}{soft}, CUDA {}, {}, {} cores, {}", self.gpu, self.driver, self.cpu, self.cores, self.system)
    }
}

/// A measured duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Which overhead: the name of a [`form::Form`].
    pub what: String,
    /// On which path, for example `tcp` or `tcp->in-process`.
    pub path: String,
    /// The amount of each quantity; missing ones are 0, `once` is always 1.
    pub terms: BTreeMap<String, f64>,
    /// The median of the runs, in seconds.
    pub seconds: f64,
    /// Number of runs.
    pub runs: u64,
}

impl Sample {
    /// The amount of a quantity.
    pub fn amount(&self, term: &str) -> f64 {
        if term == "once" { 1.0 } else { self.terms.get(term).copied().unwrap_or(0.0) }
    }

    fn check(&self) -> Result<(), ContentError> {
        let form = form::of(&self.what).ok_or_else(|| ContentError::Overhead(self.what.clone()))?;
        limits::name(&self.path, "the path of a sample")?;
        if let Some(odd) = self.terms.keys().find(|t| !form.terms.contains(&t.as_str())) {
            return Err(ContentError::Term { overhead: form.what, term: odd.clone() });
        }
        self.terms.values().try_for_each(|n| limits::figure(*n, "a quantity"))?;
        limits::figure(self.seconds, "a time")
    }
}

/// The parts of a benchmark file that models need; the rest is for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bench {
    /// [`KIND`].
    pub kind: String,
    /// [`VERSION`].
    pub v: u64,
    /// The measured machine.
    pub machine: Machine,
    /// What was measured.
    pub samples: Vec<Sample>,
}

impl Bench {
    /// Reads a file and checks all of it.
    ///
    /// # Errors
    /// It is not a benchmark file, has another version, or holds impossible values.
    pub fn read(path: &Path) -> Result<Bench, FileError> {
        let bench: Bench = limits::read(path, MAX_FILE_BYTES)?;
        bench.check().map_err(|why| limits::content(path, why))?;
        Ok(bench)
    }

    fn check(&self) -> Result<(), ContentError> {
        limits::heading(&self.kind, self.v, KIND, VERSION)?;
        self.machine.check()?;
        if self.samples.len() > MAX_SAMPLES {
            return Err(ContentError::TooMany { limit: MAX_SAMPLES, what: "samples" });
        }
        self.samples.iter().try_for_each(Sample::check)
    }
}

impl Machine {
    /// Validates the contents.
    pub(crate) fn check(&self) -> Result<(), ContentError> {
        for (text, what) in
            [(&self.gpu, "the GPU"), (&self.driver, "the driver"), (&self.cpu, "the CPU"), (&self.system, "the system")]
        {
            limits::name(text, what)?;
        }
        Ok(())
    }

    /// Whether figures of the other machine apply here: same GPU, same driver.
    pub fn is_like(&self, other: &Machine) -> bool {
        self.gpu == other.gpu && self.driver == other.driver && self.cpu == other.cpu
    }
}
