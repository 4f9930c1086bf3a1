//! Place specifications, as users write them.

use crate::endpoint::{Endpoint, EndpointError, GPUS};
use std::path::PathBuf;
use std::str::FromStr;

/// A place specification. For a GPU of this machine without a number, the job selects one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceSpec {
    /// `local[:GPU]`: in this process, or in a helper if this process already uses another GPU.
    Local(Option<u32>),
    /// `helper[:GPU]`: in a separate process on this machine.
    Helper(Option<u32>),
    /// `HOST:PORT[/GPU]`, `tls://HOST:PORT[/GPU]`, `plain://HOST:PORT[/GPU]`, `rdma://HOST:PORT[/GPU]`, `unix:PATH[/GPU]`: a worker of a server; with `/memory`
    /// instead of a GPU, it holds memory and executes nothing.
    Remote(Endpoint),
    /// `memory`: in host memory of this machine, where nothing is executed.
    Memory,
    /// `file:DIR`: in a file in this directory, where nothing is executed.
    File(PathBuf),
}

/// Why a text is not a place specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceSpecError {
    /// It has none of the valid forms.
    #[error(
        "invalid place `{0}`: expected HOST:PORT[/GPU], tls://HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU], unix:PATH[/GPU], local[:GPU], helper[:GPU], memory, HOST:PORT/memory or file:DIR"
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
    #[error("invalid GPU number `{number}` in `{text}`: expected 0 to {last}", last = GPUS - 1)]
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
    #[error("invalid place `{text}`: the directory must be absolute")]
    Directory {
        /// The text.
        text: String,
        /// The directory.
        directory: PathBuf,
    },
}

impl FromStr for PlaceSpec {
    type Err = PlaceSpecError;
    fn from_str(s: &str) -> Result<PlaceSpec, PlaceSpecError> {
        let (head, gpu) = s.split_once(':').map_or((s, None), |(head, gpu)| (head, Some(gpu)));
        let of_this_machine = match head {
            "local" => PlaceSpec::Local,
            "helper" => PlaceSpec::Helper,
            "memory" if s == "memory" => return Ok(PlaceSpec::Memory),
            "file" => {
                let directory = PathBuf::from(gpu.unwrap_or_default());
                let text = || s.to_owned();
                return if directory.is_absolute() {
                    Ok(PlaceSpec::File(directory))
                } else {
                    Err(PlaceSpecError::Directory { text: text(), directory })
                };
            }
            _ => {
                return s.parse().map(PlaceSpec::Remote).map_err(|e| match e {
                    EndpointError::Shape => PlaceSpecError::Shape(s.to_owned()),
                    source => PlaceSpecError::Server { text: s.to_owned(), source },
                });
            }
        };
        let number = |n: &str| n.parse().ok().filter(|n| *n < GPUS);
        let invalid = |n: &str| PlaceSpecError::Gpu { text: s.to_owned(), number: n.to_owned() };
        let gpu = gpu.map(|n| number(n).ok_or_else(|| invalid(n))).transpose()?;
        Ok(of_this_machine(gpu))
    }
}

impl std::fmt::Display for PlaceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlaceSpec::Local(None) => f.write_str("local"),
            PlaceSpec::Local(Some(gpu)) => write!(f, "local:{gpu}"),
            PlaceSpec::Helper(None) => f.write_str("helper"),
            PlaceSpec::Helper(Some(gpu)) => write!(f, "helper:{gpu}"),
            PlaceSpec::Remote(e) => write!(f, "{e}"),
            PlaceSpec::Memory => f.write_str("memory"),
            PlaceSpec::File(directory) => write!(f, "file:{}", directory.display()),
        }
    }
}

impl PlaceSpec {
    /// The number of the GPU on this machine.
    pub fn local_number(&self) -> Option<u32> {
        match self {
            PlaceSpec::Local(gpu) | PlaceSpec::Helper(gpu) => *gpu,
            PlaceSpec::Remote(_) | PlaceSpec::Memory | PlaceSpec::File(_) => None,
        }
    }

    /// Whether both are one place, however it is reached: with `tls://` and without a prefix it is the same. Without encryption
    /// it is another place, because only the user may choose that.
    pub fn is_same_as(&self, other: &PlaceSpec) -> bool {
        let of = |at: &'_ Endpoint| (at.server(), at.gpu, at.is_plain(), at.is_rdma());
        match (self, other) {
            (PlaceSpec::Remote(one), PlaceSpec::Remote(two)) => of(one) == of(two),
            (one, two) => one == two,
        }
    }

    /// Whether nothing is executed there: a device that moves there is parked.
    pub fn is_store(&self) -> bool {
        match self {
            PlaceSpec::Memory | PlaceSpec::File(_) => true,
            PlaceSpec::Remote(endpoint) => endpoint.is_store(),
            PlaceSpec::Local(_) | PlaceSpec::Helper(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        for text in ["local", "local:3", "helper", "helper:31", "gpubox:7878/1", "unix:/run/s/0", "memory", "file:/var/park"] {
            assert_eq!(text.parse::<PlaceSpec>().unwrap().to_string(), text);
        }
        assert!(matches!("gpubox:7878/1".parse(), Ok(PlaceSpec::Remote(e)) if e.port == 7878 && e.gpu == 1));
        assert!(
            ["memory", "file:/d", "a:1/memory", "unix:/run/s/memory"]
                .iter()
                .all(|text| text.parse::<PlaceSpec>().unwrap().is_store())
        );
        assert!(
            ["memory:1/0", "local", "a:1/0", "unix:/run/memory.s"]
                .iter()
                .all(|text| !text.parse::<PlaceSpec>().unwrap().is_store())
        );
        for bad in ["", "local:x", "local:32", "localhost", "helper:", "a:b", "local2", "helpers", "memory:", "file", "file:d"] {
            assert!(bad.parse::<PlaceSpec>().is_err(), "{bad}");
        }
    }

    fn parsed(text: &str) -> Result<PlaceSpec, PlaceSpecError> {
        text.parse()
    }

    #[test]
    fn places_of_this_machine_may_have_a_number() {
        assert_eq!(
            (parsed("local"), parsed("local:0"), parsed("helper:31")),
            (Ok(PlaceSpec::Local(None)), Ok(PlaceSpec::Local(Some(0))), Ok(PlaceSpec::Helper(Some(31))))
        );
    }

    #[test]
    fn a_number_that_is_too_high_is_named() {
        let error = parsed("local:32").unwrap_err();
        assert_eq!(error, PlaceSpecError::Gpu { text: "local:32".into(), number: "32".into() });
        assert_eq!(error.to_string(), "invalid GPU number `32` in `local:32`: expected 0 to 31");
    }

    #[test]
    fn what_is_no_number_is_named() {
        for number in ["", "x", "-1", "1 ", "0x1", "1:2", "4294967296"] {
            let text = format!("helper:{number}");
            assert_eq!(parsed(&text), Err(PlaceSpecError::Gpu { text: text.clone(), number: number.into() }));
        }
    }

    #[test]
    fn a_text_without_a_known_form_is_quoted_with_the_forms() {
        let error = parsed("nowhere").unwrap_err();
        assert_eq!(error, PlaceSpecError::Shape("nowhere".into()));
        assert!(error.to_string().contains("HOST:PORT[/GPU]"));
    }

    #[test]
    fn names_are_case_sensitive() {
        assert!(parsed("Local").is_err() && parsed("HELPER").is_err());
    }

    #[test]
    fn a_host_may_be_called_like_a_prefix_of_a_place() {
        assert!(matches!(parsed("localhost:7878"), Ok(PlaceSpec::Remote(e)) if e.port == 7878 && e.gpu == 0));
        assert!(matches!(parsed("helpers:1/3"), Ok(PlaceSpec::Remote(e)) if e.gpu == 3));
    }

    #[test]
    fn every_place_is_read_as_it_is_written() {
        for text in ["local", "local:31", "helper", "helper:0", "a:1/0", "a.b-c:65535/31", "unix:/x/0", "unix:/run/a b/7"] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn only_places_of_this_machine_have_a_local_number() {
        let number = |text| parsed(text).unwrap().local_number();
        assert_eq!(
            (number("local:3"), number("helper:4"), number("local"), number("a:1/5"), number("unix:/x/6")),
            (Some(3), Some(4), None, None, None)
        );
    }

    #[test]
    fn a_place_is_the_same_with_and_without_tls_in_its_name() {
        let same = |one: &str, two: &str| {
            let [one, two] = [one, two].map(|text| text.parse::<PlaceSpec>().unwrap());
            assert_eq!(one.is_same_as(&two), two.is_same_as(&one));
            one.is_same_as(&two)
        };
        assert!(same("a:1", "tls://a:1/0") && same("tls://a:1/memory", "a:1/memory") && same("local:1", "local:1"));
        for (one, two) in [("a:1", "b:1"), ("a:1", "a:2"), ("a:1", "a:1/1"), ("a:1", "plain://a:1"), ("tls://a:1", "rdma://a:1")]
        {
            assert!(!same(one, two), "{one} {two}");
        }
        assert!(!same("a:1", "unix:/a") && !same("local", "helper") && !same("memory", "a:1/memory"));
    }
}
