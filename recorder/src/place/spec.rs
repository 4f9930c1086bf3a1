//! Place specifications, as users write them.

use cuda_api::address_map::DEVICES;
use rcuda_forwarder::{Endpoint, EndpointError};
use std::path::PathBuf;
use std::str::FromStr;

/// A place specification. For a GPU of this machine without a number, [`choose`] selects one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spec {
    /// `local[:GPU]`: in this process, or in a helper if this process already uses another GPU.
    Local(Option<u32>),
    /// `helper[:GPU]`: in a separate process on this machine.
    Helper(Option<u32>),
    /// `[tls://]HOST:PORT[/GPU]`, `plain://HOST:PORT[/GPU]`, `rdma://HOST:PORT[/GPU]`, `unix:PATH[/GPU]`: a worker of a server; with `/memory`
    /// instead of a GPU, it holds memory and executes nothing.
    Remote(Endpoint),
    /// `memory`: in host memory of this machine, where nothing is executed.
    Memory,
    /// `file:DIR`: in a file in this directory, where nothing is executed.
    File(PathBuf),
}

/// Why a text is not a place specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    /// It has none of the valid forms.
    #[error(
        "invalid place `{0}`: expected HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU], unix:PATH[/GPU], local[:GPU], helper[:GPU], memory, HOST:PORT/memory or file:DIR"
    )]
    Shape(String),
    /// The server is invalid.
    #[error("invalid place `{text}`: {source}")]
    Server {
        /// The text.
        text: String,
        /// The cause.
        source: EndpointError,
    },
    /// The GPU is not a number, or too high.
    #[error("{text}: invalid GPU number `{number}`")]
    Gpu {
        /// The text.
        text: String,
        /// The text where the number is expected.
        number: String,
    },
    /// Calls are executed there, so a job cannot be parked there.
    #[error("a job is parked at `memory`, `HOST:PORT/memory` or `file:DIR`, not at `{0}`")]
    Executes(String),
    /// A directory is relative to an unknown one.
    #[error("invalid place `{0}`: the directory must be absolute")]
    Directory(String),
}

impl FromStr for Spec {
    type Err = SpecError;
    fn from_str(s: &str) -> Result<Spec, SpecError> {
        let (head, gpu) = s.split_once(':').map_or((s, None), |(head, gpu)| (head, Some(gpu)));
        let near = match head {
            "local" => Spec::Local,
            "helper" => Spec::Helper,
            "memory" if s == "memory" => return Ok(Spec::Memory),
            "file" => {
                let directory = PathBuf::from(gpu.unwrap_or_default());
                return if directory.is_absolute() { Ok(Spec::File(directory)) } else { Err(SpecError::Directory(s.to_owned())) };
            }
            _ => {
                return s.parse().map(Spec::Remote).map_err(|e| match e {
                    EndpointError::Shape => SpecError::Shape(s.to_owned()),
                    source => SpecError::Server { text: s.to_owned(), source },
                });
            }
        };
        let number = |n: &str| n.parse().ok().filter(|n| *n < DEVICES);
        let invalid = |n: &str| SpecError::Gpu { text: s.to_owned(), number: n.to_owned() };
        let gpu = gpu.map(|n| number(n).ok_or_else(|| invalid(n))).transpose()?;
        Ok(near(gpu))
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Spec::Local(None) => f.write_str("local"),
            Spec::Local(Some(gpu)) => write!(f, "local:{gpu}"),
            Spec::Helper(None) => f.write_str("helper"),
            Spec::Helper(Some(gpu)) => write!(f, "helper:{gpu}"),
            Spec::Remote(e) => write!(f, "{e}"),
            Spec::Memory => f.write_str("memory"),
            Spec::File(directory) => write!(f, "file:{}", directory.display()),
        }
    }
}

impl Spec {
    /// The number of the GPU on this machine.
    pub(crate) fn near(&self) -> Option<u32> {
        match self {
            Spec::Local(gpu) | Spec::Helper(gpu) => *gpu,
            Spec::Remote(_) | Spec::Memory | Spec::File(_) => None,
        }
    }

    /// Whether nothing is executed there: a device that moves there is parked.
    pub(crate) fn is_store(&self) -> bool {
        match self {
            Spec::Memory | Spec::File(_) => true,
            Spec::Remote(endpoint) => endpoint.is_store(),
            Spec::Local(_) | Spec::Helper(_) => false,
        }
    }
}

/// Selects the GPU for each place of this machine and decides which place is in this process. Without a number it is the lowest GPU that
/// the job does not use otherwise: `taken` are the GPUs of devices that do not move. A process can use only one GPU for one device, for
/// as long as it runs: that is the first `local` one, or `bound` (GPU, device); further ones are in helpers.
pub(crate) fn choose(wanted: Vec<(u32, Spec)>, taken: &[u32], mut bound: Option<(u32, u32)>) -> Vec<Spec> {
    let mut used: Vec<u32> = wanted.iter().filter_map(|(_, s)| s.near()).chain(taken.iter().copied()).collect();
    let mut chosen = Vec::new();
    for (device, spec) in wanted {
        let mut lowest = |preferred: Option<u32>| {
            let free = preferred.filter(|g| !used.contains(g)).or_else(|| (0..).find(|g| !used.contains(g)));
            used.extend(free);
            free.unwrap_or(0)
        };
        chosen.push(match spec {
            spec @ (Spec::Remote(_) | Spec::Memory | Spec::File(_)) => spec,
            Spec::Helper(gpu) => Spec::Helper(Some(gpu.unwrap_or_else(|| lowest(None)))),
            Spec::Local(gpu) => {
                let own = bound.filter(|(_, d)| *d == device).map(|(g, _)| g);
                let gpu = gpu.unwrap_or_else(|| lowest(own));
                if *bound.get_or_insert((gpu, device)) == (gpu, device) {
                    Spec::Local(Some(gpu))
                } else {
                    Spec::Helper(Some(gpu))
                }
            }
        });
    }
    chosen
}

#[cfg(test)]
mod tests;
