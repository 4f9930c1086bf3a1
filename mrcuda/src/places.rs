//! Place specifications: `local[:GPU]`, `helper[:GPU]`, `[tls://]HOST:PORT[/GPU]`, `plain://HOST:PORT[/GPU]`,
//! `rdma://HOST:PORT[/GPU]`, `unix:PATH[/GPU]`; and those where a job is parked: `memory`, `file:DIR`.

use cuda_api::address_map::DEVICES;
use rcuda_forwarder::{PlaceSpec, PlaceSpecError};

/// The places where calls are executed.
const EXECUTING: &str =
    "HOST:PORT[/GPU], plain://HOST:PORT[/GPU], rdma://HOST:PORT[/GPU], unix:PATH[/GPU], local[:GPU] or helper[:GPU]";

/// Validates a place specification. Returns it unchanged, except that the path of a socket or directory is made absolute.
pub(crate) fn place(text: &str) -> Result<String, String> {
    match text.parse() {
        Ok(PlaceSpec::Remote(server)) => Ok(server.unix_path().map_or_else(|| text.to_owned(), |path| from_anywhere(path, text))),
        // The job's working directory may differ.
        Ok(PlaceSpec::File(directory)) | Err(PlaceSpecError::Directory { directory, .. }) => {
            let whole = std::path::absolute(directory).map_err(|why| format!("invalid directory in `{text}`: {why}"))?;
            Ok(PlaceSpec::File(whole).to_string())
        }
        Ok(PlaceSpec::Local(_) | PlaceSpec::Helper(_) | PlaceSpec::Memory) => Ok(text.to_owned()),
        Err(why) => Err(why.to_string()),
    }
}

/// Makes a socket path absolute, because the job's working directory may differ. `path` is the one in `text`, whose
/// GPU is kept.
fn from_anywhere(path: &str, text: &str) -> String {
    let whole = std::path::absolute(path).ok();
    match (whole.as_deref().and_then(|p| p.to_str()), text.strip_prefix("unix:").and_then(|rest| rest.strip_prefix(path))) {
        (Some(whole), Some(gpu)) => format!("unix:{whole}{gpu}"),
        _ => text.to_owned(),
    }
}

/// Checks a comma-separated list of places, one for each GPU that the program sees.
pub(crate) fn places(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the list of places is empty".to_owned());
    }
    if text.split(',').any(str::is_empty) {
        return Err(format!("empty place in the list `{text}`"));
    }
    // The job has this many address ranges.
    let count = text.split(',').count();
    if count > DEVICES as usize {
        return Err(format!("{count} places: a job can have at most {DEVICES}"));
    }
    let places: Vec<String> = text.split(',').map(place).collect::<Result<_, _>>()?;
    Ok(places.join(","))
}

/// As [`places`], for places where a job can start.
pub(crate) fn gpus(text: &str) -> Result<String, String> {
    let list = places(text).map_err(|why| {
        let shape = |place: &str| match place.parse::<PlaceSpec>() {
            Err(PlaceSpecError::Shape(place)) => Some(format!("invalid place `{place}`: expected {EXECUTING}")),
            _ => None,
        };
        // Those where a job can only be parked are not offered.
        text.split(',').filter(|place| !place.is_empty()).find_map(shape).unwrap_or(why)
    })?;
    let is_store = |place: &&str| place.parse().is_ok_and(|place: PlaceSpec| place.is_store());
    match list.split(',').find(is_store) {
        Some(store) => Err(format!("nothing is executed at `{store}`: a job can only be parked there")),
        None => Ok(list),
    }
}

/// Whether one of a list of places uses a GPU of this machine.
pub(crate) fn any_on_this_machine(list: &str) -> bool {
    list.split(',').any(|place| matches!(place.parse(), Ok(PlaceSpec::Local(_) | PlaceSpec::Helper(_))))
}

/// Parses a signal by name (`USR1`, `SIGUSR1`) or number; it must be one that can be sent to a program and ignored.
pub(crate) fn signal(text: &str) -> Result<nix::sys::signal::Signal, String> {
    use nix::sys::signal::Signal;
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let signal = match text.parse::<i32>() {
        Ok(number) => Signal::try_from(number).ok(),
        Err(_) => full.parse::<Signal>().ok(),
    };
    let signal = signal.ok_or_else(|| format!("invalid signal `{text}` (try USR1 or USR2)"))?;
    match signal {
        Signal::SIGKILL | Signal::SIGSTOP => Err(format!("{signal} cannot be handled by a program")),
        Signal::SIGSEGV
        | Signal::SIGBUS
        | Signal::SIGILL
        | Signal::SIGFPE
        | Signal::SIGTRAP
        | Signal::SIGABRT
        | Signal::SIGCHLD => Err(format!("{signal} has another meaning for programs")),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

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
            assert_eq!(place(good).as_deref(), Ok(good));
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
        assert_eq!(place("unix:u/3"), Ok(format!("unix:{here}/u/3")));
        assert_eq!(place("file:p"), Ok(format!("file:{here}/p")));
        assert!(
            gpus("a:1,local").is_ok() && gpus("memory").is_err() && gpus("a:1/memory").is_err() && gpus("local,file:/a").is_err()
        );
        assert_eq!(places("unix:s,local").as_deref(), Ok(&*format!("unix:{here}/s,local")));
        assert_eq!(place("unix:/run/s/0").as_deref(), Ok("unix:/run/s/0"));
    }

    #[test]
    fn where_a_job_starts_no_stores_are_offered() {
        let why = gpus("local,nowhere").unwrap_err();
        assert!(why.starts_with("invalid place `nowhere`: expected HOST:PORT") && !why.contains("memory"), "{why}");
        assert!(places("nowhere").unwrap_err().contains("memory"));
        assert!(gpus("a:0").unwrap_err().contains("invalid port") && gpus("local,").unwrap_err().contains("empty place"));
    }

    #[test]
    fn one_bad_place_spoils_the_list() {
        for good in ["a:1,b:2/1", "a:1,local", "helper:1", "unix:/run/s/0,local:1,helper"] {
            assert_eq!(places(good).as_deref(), Ok(good));
        }
        for bad in ["a:1,", "", "a:1,locale", "local:99,a:1", &["a:1"; 33].join(",")] {
            assert!(places(bad).is_err(), "{bad}");
        }
        assert!(places(&["a:1"; 32].join(",")).is_ok());
        assert!(any_on_this_machine("a:1,helper:2") && !any_on_this_machine("local-box:1,unix:/local/0"));
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
