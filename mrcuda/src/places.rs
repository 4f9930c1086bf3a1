//! Place specifications: `local[:GPU]`, `helper[:GPU]`, `HOST:PORT[/GPU]`, `tls://HOST:PORT[/GPU]`, `plain://HOST:PORT[/GPU]`,
//! `rdma://HOST:PORT[/GPU]`, `unix:PATH[/GPU]`; and those where a job is parked: `memory`, `file:DIR`.

use cuda_api::address_map::DEVICES;
use nix::sys::signal::Signal;
use rcuda_forwarder::{PlaceSpec, PlaceSpecError};
use std::io;

/// The places where calls are executed.
const EXECUTING: &str = "HOST:PORT[/GPU], tls://HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU], unix:PATH[/GPU], local[:GPU] or helper[:GPU]";

/// Why a list of places cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlacesError {
    /// One of them is malformed.
    #[error(transparent)]
    Place(#[from] PlaceSpecError),
    /// A relative directory cannot be made absolute.
    #[error("invalid directory in `{place}`: {source}")]
    Directory {
        /// The place with the directory.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is none.
    #[error("the list of places is empty")]
    NoPlaces,
    /// One of them is empty.
    #[error("empty place in the list `{0}`")]
    EmptyPlace(String),
    /// There are more than a job can have.
    #[error("{0} places: a job can have at most {DEVICES}")]
    TooMany(usize),
    /// There are several where one is meant.
    #[error("{0} places: expected one")]
    Several(usize),
    /// A job is to be parked at a place that executes.
    #[error("a job cannot be parked at `{0}`: expected memory, file:DIR or HOST:PORT/memory")]
    NoStore(String),
    /// The number of GPUs to choose is none.
    #[error("invalid number in `{0}`: expected auto, or auto:N with at most {DEVICES}")]
    Auto(String),
    /// One of them, where the job is to start, is malformed.
    #[error("invalid place `{0}`: expected {EXECUTING}")]
    Executing(String),
    /// The job is to start at a store.
    #[error("nothing is executed at `{0}`: a job can only be parked there")]
    Store(String),
}

/// Validates a place specification. Returns it unchanged, except that the path of a socket or directory is made absolute.
pub(crate) fn place(text: &str) -> Result<String, PlacesError> {
    match text.parse() {
        Ok(PlaceSpec::Remote(server)) => Ok(server.unix_path().map_or_else(|| text.to_owned(), |path| from_anywhere(path, text))),
        // The job's working directory may differ.
        Ok(PlaceSpec::File(directory)) | Err(PlaceSpecError::Directory { directory, .. }) => {
            let absolute = std::path::absolute(directory);
            let absolute = absolute.map_err(|source| PlacesError::Directory { place: text.to_owned(), source })?;
            Ok(PlaceSpec::File(absolute).to_string())
        }
        Ok(PlaceSpec::Local(_) | PlaceSpec::Helper(_) | PlaceSpec::Memory) => Ok(text.to_owned()),
        Err(why) => Err(why.into()),
    }
}

/// Makes a socket path absolute, because the job's working directory may differ. `path` is the one in `text`, whose
/// GPU is kept.
fn from_anywhere(path: &str, text: &str) -> String {
    let absolute = std::path::absolute(path).ok();
    match (absolute.as_deref().and_then(|p| p.to_str()), text.strip_prefix("unix:").and_then(|rest| rest.strip_prefix(path))) {
        (Some(absolute), Some(gpu)) => format!("unix:{absolute}{gpu}"),
        _ => text.to_owned(),
    }
}

/// Checks a comma-separated list of places, one for each GPU that the program sees.
pub(crate) fn places(text: &str) -> Result<String, PlacesError> {
    if text.is_empty() {
        return Err(PlacesError::NoPlaces);
    }
    if text.split(',').any(str::is_empty) {
        return Err(PlacesError::EmptyPlace(text.to_owned()));
    }
    // The job has this many address ranges.
    let count = text.split(',').count();
    if count > DEVICES as usize {
        return Err(PlacesError::TooMany(count));
    }
    let places: Vec<String> = text.split(',').map(place).collect::<Result<_, PlacesError>>()?;
    Ok(places.join(","))
}

/// As [`places`], for places where a job can start.
pub(crate) fn gpus(text: &str) -> Result<String, PlacesError> {
    let list = places(text).map_err(|why| {
        let shape = |place: &str| match place.parse::<PlaceSpec>() {
            Err(PlaceSpecError::Shape(place)) => Some(PlacesError::Executing(place)),
            _ => None,
        };
        // Those where a job can only be parked are not offered.
        text.split(',').filter(|place| !place.is_empty()).find_map(shape).unwrap_or(why)
    })?;
    let is_store = |place: &&str| place.parse().is_ok_and(|place: PlaceSpec| place.is_store());
    match list.split(',').find(is_store) {
        Some(store) => Err(PlacesError::Store(store.to_owned())),
        None => Ok(list),
    }
}

/// As [`gpus`], for one place.
pub(crate) fn gpu(text: &str) -> Result<String, PlacesError> {
    let place = gpus(text)?;
    match place.split(',').count() {
        1 => Ok(place),
        several => Err(PlacesError::Several(several)),
    }
}

/// As [`places`], for places where a job is parked.
pub(crate) fn stores(text: &str) -> Result<String, PlacesError> {
    let list = places(text)?;
    let executes = |place: &&str| !place.parse().is_ok_and(|place: PlaceSpec| place.is_store());
    match list.split(',').find(executes) {
        Some(place) => Err(PlacesError::NoStore(place.to_owned())),
        None => Ok(list),
    }
}

/// How many GPUs `auto[:N]` asks for; `None` if the text is something else.
///
/// # Errors
/// The number is none, or a job cannot have so many.
pub(crate) fn auto(text: &str) -> Option<Result<usize, PlacesError>> {
    let rest = text.strip_prefix("auto")?;
    let number = match rest.strip_prefix(':') {
        None if rest.is_empty() => return Some(Ok(1)),
        None => return None,
        Some(number) => number,
    };
    let count = number.parse().ok().filter(|count| (1..=DEVICES as usize).contains(count));
    Some(count.ok_or_else(|| PlacesError::Auto(text.to_owned())))
}

/// As [`gpus`], or `auto[:N]`.
pub(crate) fn gpus_or_auto(text: &str) -> Result<String, PlacesError> {
    auto(text).map_or_else(|| gpus(text), |count| count.map(|_| text.to_owned()))
}

/// Whether one of a list of places uses a GPU of this machine.
pub(crate) fn any_on_this_machine(list: &str) -> bool {
    list.split(',').any(|place| matches!(place.parse(), Ok(PlaceSpec::Local(_) | PlaceSpec::Helper(_))))
}

/// Why a signal cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignalError {
    /// There is none of this name or number.
    #[error("invalid signal `{0}` (try USR1 or USR2)")]
    Unknown(String),
    /// Programs cannot handle it.
    #[error("{0} cannot be handled by a program")]
    NotHandled(Signal),
    /// It has a meaning of its own.
    #[error("{0} has another meaning for programs")]
    OtherMeaning(Signal),
}

/// Parses a signal by name (`USR1`, `SIGUSR1`) or number; it must be one that can be sent to a program and ignored.
pub(crate) fn signal(text: &str) -> Result<Signal, SignalError> {
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let signal = match text.parse::<i32>() {
        Ok(number) => Signal::try_from(number).ok(),
        Err(_) => full.parse::<Signal>().ok(),
    };
    let signal = signal.ok_or_else(|| SignalError::Unknown(text.to_owned()))?;
    match signal {
        Signal::SIGKILL | Signal::SIGSTOP => Err(SignalError::NotHandled(signal)),
        Signal::SIGSEGV
        | Signal::SIGBUS
        | Signal::SIGILL
        | Signal::SIGFPE
        | Signal::SIGTRAP
        | Signal::SIGABRT
        | Signal::SIGCHLD => Err(SignalError::OtherMeaning(signal)),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_checked() {
        for good in [
            "local",
            "local:0",
            "local:31",
            "helper",
            "helper:2",
            "10.0.0.1:7878",
            "node:7878/3",
            "tls://a:1",
            "plain://[::1]:1/2",
            "rdma://[::1]:1/2",
            "memory",
            "file:/a/b",
            "node:7878/memory",
        ] {
            assert_eq!(place(good).unwrap(), good);
        }
        for bad in [
            "",
            "local:",
            "local:32",
            "local:-1",
            "helper:x",
            "nowhere",
            "host:port",
            "host:99999",
            "quic://a:1",
            "tls://unix:/a",
            "memory:0",
            "file",
            "file:",
        ] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sockets_are_named_in_full() {
        let here = std::env::current_dir().unwrap().display().to_string();
        assert_eq!(place("unix:u/3").unwrap(), format!("unix:{here}/u/3"));
        assert_eq!(place("file:p").unwrap(), format!("file:{here}/p"));
        assert!(
            gpus("a:1,local").is_ok() && gpus("memory").is_err() && gpus("a:1/memory").is_err() && gpus("local,file:/a").is_err()
        );
        assert_eq!(places("unix:s,local").unwrap(), format!("unix:{here}/s,local"));
        assert_eq!(place("unix:/run/s/0").unwrap(), "unix:/run/s/0");
    }

    #[test]
    fn where_a_job_starts_no_stores_are_offered() {
        let why = gpus("local,nowhere").unwrap_err().to_string();
        assert!(why.starts_with("invalid place `nowhere`: expected HOST:PORT") && !why.contains("memory"), "{why}");
        assert!(places("nowhere").unwrap_err().to_string().contains("memory"));
        assert!(matches!(gpus("a:0"), Err(PlacesError::Place(PlaceSpecError::Server { .. }))));
        assert!(matches!(gpus("local,"), Err(PlacesError::EmptyPlace(_))));
    }

    #[test]
    fn one_bad_place_spoils_the_list() {
        for good in ["a:1,b:2/1", "a:1,local", "helper:1", "unix:/run/s/0,local:1,helper"] {
            assert_eq!(places(good).unwrap(), good);
        }
        for bad in ["a:1,", "", "a:1,locale", "local:99,a:1", &["a:1"; 33].join(",")] {
            assert!(places(bad).is_err(), "{bad}");
        }
        assert!(places(&["a:1"; 32].join(",")).is_ok());
        assert!(any_on_this_machine("a:1,helper:2") && !any_on_this_machine("local-box:1,unix:/local/0"));
    }

    #[test]
    fn the_number_of_gpus_to_choose_is_checked() {
        let counts = |text| auto(text).map(|count| count.ok());
        assert_eq!((counts("auto"), counts("auto:1"), counts("auto:32")), (Some(Some(1)), Some(Some(1)), Some(Some(32))));
        for text in ["auto:", "auto:0", "auto:33", "auto:-1", "auto:x", "auto:1,a:2"] {
            assert_eq!(counts(text), Some(None), "{text}");
        }
        assert_eq!((counts("automatic:1"), counts("autobox:7878"), counts("local")), (None, None, None));
    }

    #[test]
    fn signals_by_name_and_number() {
        assert_eq!(signal("USR1"), Ok(Signal::SIGUSR1));
        assert_eq!(signal("sigusr2"), Ok(Signal::SIGUSR2));
        assert_eq!(signal("10"), Ok(Signal::SIGUSR1));
        for bad in ["KILL", "STOP", "SEGV", "nope", "0", "999"] {
            assert!(signal(bad).is_err(), "{bad}");
        }
    }
}
