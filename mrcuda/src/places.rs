//! What people write for a place: `local[:GPU]`, `helper[:GPU]`, `HOST:PORT[/GPU]`, `unix:PATH[/GPU]`.

use rcuda_forwarder::Endpoint;

/// Checks the text of a place; on success it is passed on as it was written.
pub(crate) fn place(text: &str) -> Result<String, String> {
    let (head, gpu) = text.split_once(':').map_or((text, None), |(head, rest)| (head, Some(rest)));
    if head == "local" || head == "helper" {
        return match gpu {
            None => Ok(text.to_owned()),
            Some(n) if n.parse::<u32>().is_ok_and(|n| n < 32) => Ok(text.to_owned()),
            Some(n) => Err(format!("`{n}` is no GPU number (0 to 31) in `{text}`")),
        };
    }
    endpoint(text)
        .map(|_| text.to_owned())
        .map_err(|why| format!("`{text}` is no place: it must be local[:GPU], helper[:GPU] or HOST:PORT[/GPU] ({why})"))
}

/// Checks the text of a server.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse::<Endpoint>().map_err(|e| e.to_string())
}

/// Checks a comma-separated list of servers, one for each GPU that the program sees.
pub(crate) fn servers(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the list of servers is empty".to_owned());
    }
    for part in text.split(',') {
        endpoint(part).map_err(|why| format!("`{part}` is no server: it must be HOST:PORT[/GPU] ({why})"))?;
    }
    Ok(text.to_owned())
}

/// A signal by name (`USR1`, `SIGUSR1`) or number: one that a program can be sent and can ignore.
pub(crate) fn signal(text: &str) -> Result<nix::sys::signal::Signal, String> {
    use nix::sys::signal::Signal;
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let signal = match text.parse::<i32>() {
        Ok(number) => Signal::try_from(number).ok(),
        Err(_) => full.parse::<Signal>().ok(),
    };
    let signal = signal.ok_or_else(|| format!("`{text}` is no signal (try USR1 or USR2)"))?;
    match signal {
        Signal::SIGKILL | Signal::SIGSTOP => Err(format!("{signal} cannot be handled by a program")),
        Signal::SIGSEGV
        | Signal::SIGBUS
        | Signal::SIGILL
        | Signal::SIGFPE
        | Signal::SIGTRAP
        | Signal::SIGABRT
        | Signal::SIGCHLD => Err(format!("{signal} means something else to programs")),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    #[test]
    fn places_are_checked() {
        for good in ["local", "local:0", "local:31", "helper", "helper:2", "10.0.0.1:7878", "node:7878/3"] {
            assert_eq!(place(good).as_deref(), Ok(good));
        }
        for bad in ["", "local:", "local:32", "local:-1", "helper:x", "nowhere", "host:port", "host:99999"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_bad_server_spoils_the_list() {
        assert!(servers("a:1,b:2/1").is_ok());
        assert!(servers("a:1,").is_err());
        assert!(servers("").is_err());
        assert!(servers("a:1,local").is_err());
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
