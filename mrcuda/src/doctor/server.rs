//! Checks the way to a server step by step, and what is there.

use super::finding::Finding;
use crate::gpus::credentials;
use crate::progress::waiting;
use crate::table::{bytes, printable};
use control::without_numbers;
use rcuda_forwarder::{Endpoint, GpuState, LinkError, NotGreeted, ServerState, Trial, inspect, trial};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long an address may take to accept a connection.
const CONNECTING: Duration = Duration::from_secs(5);
/// From this time of a round trip on, programs that often wait for the GPU are slow.
const LONG_TRIP: Duration = Duration::from_millis(1);
/// Below this rate, in bytes per second, a move of a usual job takes long.
const SLOW: f64 = 100e6;

/// All findings about a server. What cannot be found out because of an earlier one is left out.
pub(super) fn check(at: &Endpoint) -> Vec<Finding> {
    let shown = waiting("the server is asked");
    let mut findings = Vec::new();
    match reach(at) {
        Ok(found) => findings.push(found),
        Err(why) => return vec![why],
    }
    let credentials = match credentials(at) {
        Ok(credentials) => credentials,
        Err(why) => return with(findings, Finding::bad("server", why.to_string())),
    };
    let state = match inspect(at, credentials.as_ref()) {
        Ok(state) => state,
        Err(why) => {
            let text = format!("{}{}", printable(&why.to_string()), advice(&why));
            return with(findings, Finding::bad("server", text));
        }
    };
    findings.push(greeting(at, &state, credentials.as_ref().is_some_and(|shown| shown.munge.is_some())));
    findings.extend(gpus(&state));
    let measured = trial(at, credentials.as_ref());
    drop(shown);
    findings.push(measured.map_or_else(|why| Finding::note("speed", format!("not measured: {why}")), |trial| speed(&trial)));
    findings
}

fn with(mut findings: Vec<Finding>, last: Finding) -> Vec<Finding> {
    findings.push(last);
    findings
}

/// Connects to the server's address. The error is what was found instead.
fn reach(at: &Endpoint) -> Result<Finding, Finding> {
    const SUBJECT: &str = "connection";
    let bad = |text: String| Finding::bad(SUBJECT, text);
    if let Some(path) = at.unix_path() {
        return match UnixStream::connect(path) {
            Ok(_) => Ok(Finding::good(SUBJECT, format!("{path} accepts connections"))),
            Err(e) => Err(bad(match e.kind() {
                ErrorKind::NotFound => format!("{path} is not there: start `mrcuda serve --unix {path}`"),
                ErrorKind::ConnectionRefused => format!("no process listens at {path}: its server has ended"),
                ErrorKind::PermissionDenied => {
                    format!("{}: a server serves its own user on this machine", without_numbers(&format!("{path}: {e}")))
                }
                _ => without_numbers(&format!("{path}: {e}")),
            })),
        };
    }
    let no_address = |e| bad(format!("{} has no address ({e}): check the name, or name the server by its address", at.host));
    let addresses: Vec<SocketAddr> = (at.host.as_str(), at.port).to_socket_addrs().map_err(no_address)?.collect();
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect_timeout(address, CONNECTING) {
            Ok(_) => return Ok(Finding::good(SUBJECT, format!("{address} accepts connections"))),
            Err(e) => last = Some((*address, e)),
        }
    }
    let Some((address, why)) = last else { return Err(bad(format!("{} has no address", at.host))) };
    Err(bad(match why.kind() {
        ErrorKind::ConnectionRefused => format!(
            "nothing listens at {address}: start `mrcuda serve --listen 0.0.0.0:{}` there (without --listen it serves its own machine only)",
            at.port
        ),
        ErrorKind::TimedOut => {
            format!("{address} does not answer: a firewall, or the machine is off (port {} must be open)", at.port)
        }
        _ => without_numbers(&format!("{address}: {why}")),
    }))
}

/// What to do about a server that does not let this user in.
fn advice(why: &LinkError) -> &'static str {
    let LinkError::Greeting { why, .. } = why else { return "" };
    match why {
        NotGreeted::OtherBuild => " (mrcuda --version says which one is here)",
        NotGreeted::OtherProtocol => ": another program listens there; check the port",
        NotGreeted::WrongToken => ": check the address, and the token file that was copied from the server",
        NotGreeted::NoAnswer => ": look at its log",
        NotGreeted::NoMunge | NotGreeted::Other(_) => "",
    }
}

fn greeting(at: &Endpoint, state: &ServerState, by_munge: bool) -> Finding {
    const SUBJECT: &str = "server";
    // Whichever of the two it takes, the other one does not matter.
    let shown = if by_munge { "munge, or the token," } else { "the token" };
    let how = match (at.unix_path(), at.is_plain()) {
        (Some(_), _) => "this user is accepted".to_owned(),
        (None, true) => format!("{shown} is accepted; WITHOUT encryption"),
        (None, false) => format!("{shown} and the certificate are accepted, the connection is encrypted"),
    };
    let same = format!("process {}, the same build of mrcuda; {how}", state.pid);
    if state.ending {
        return Finding::bad(SUBJECT, format!("{same}; but it is ending and takes no new jobs"));
    }
    Finding::good(SUBJECT, same)
}

fn gpus(state: &ServerState) -> Vec<Finding> {
    let mut findings: Vec<Finding> = state.gpus.iter().enumerate().map(|(number, gpu)| of_gpu(number, gpu)).collect();
    if state.gpus.iter().all(|gpu| gpu.facts.is_none()) {
        findings.push(Finding::bad("GPUs", "none of them can be used: the server's log says why"));
    }
    findings
}

fn of_gpu(number: usize, gpu: &GpuState) -> Finding {
    const SUBJECT: &str = "GPU";
    let Some(facts) = &gpu.facts else {
        return Finding::note(SUBJECT, format!("{number}: no worker has opened it (so far): the server's log says why"));
    };
    let free = gpu.free_bytes.map_or_else(|| "free memory unknown".to_owned(), |free| format!("{} free", bytes(free)));
    let version = format!("CUDA {}.{}", facts.driver_version / 1000, facts.driver_version % 1000 / 10);
    let jobs = match gpu.jobs.len() {
        1 => "1 job".to_owned(),
        n => format!("{n} jobs"),
    };
    let name = printable(&facts.name);
    Finding::good(SUBJECT, format!("{number}: {name}, {free} of {}, {jobs}, {version}", bytes(facts.total_bytes)))
}

fn speed(trial: &Trial) -> Finding {
    let rate = |rate: f64| format!("{}/s", bytes(rate as u64));
    let text = format!(
        "a round trip takes {:.3} ms; {} to the server and {} from it, over one connection",
        trial.round_trip.as_secs_f64() * 1e3,
        rate(trial.up),
        rate(trial.down)
    );
    let mut remarks = Vec::new();
    if trial.round_trip >= LONG_TRIP {
        remarks.push("programs that often wait for the GPU will be slow");
    }
    if trial.up.min(trial.down) < SLOW {
        remarks.push("moves of much memory will take long");
    }
    if remarks.is_empty() {
        Finding::good("speed", text)
    } else {
        Finding::note("speed", format!("{text}: {}", remarks.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use rcuda_forwarder::{GpuFacts, ServerLimits};

    fn endpoint(text: &str) -> Endpoint {
        text.parse().expect("a server")
    }

    #[test]
    fn a_server_that_is_not_reached_is_named_with_advice() {
        for (at, advice) in [
            ("127.0.0.1:1", "nothing listens at 127.0.0.1:1: start `mrcuda serve --listen 0.0.0.0:1`"),
            ("unix:/nowhere/mrcuda", "is not there: start `mrcuda serve --unix /nowhere/mrcuda`"),
            ("no-such-host.invalid:7878", "no-such-host.invalid has no address"),
        ] {
            let findings = check(&endpoint(at));
            assert_eq!(findings.len(), 1);
            assert!(findings[0].verdict == Verdict::Bad && findings[0].text.contains(advice), "{}", findings[0].text);
        }
    }

    #[test]
    fn what_a_server_has_is_judged() {
        let facts = GpuFacts { name: "GPU\x1b".into(), uuid: [0; 16], total_bytes: 80 << 30, driver_version: 13_010 };
        let none = GpuState::default();
        let gpu = GpuState { facts: Some(facts), free_bytes: Some(79 << 30), idle_workers: 1, ..none.clone() };
        let state = |gpus, ending| ServerState {
            pid: 7,
            since_unix_ms: 0,
            ending,
            limits: ServerLimits::default(),
            gpus,
            parked: Vec::new(),
            earlier: None,
            no_readings: None,
        };
        let verdicts = |state: &ServerState| gpus(state).iter().map(|f| f.verdict).collect::<Vec<_>>();
        let both = state(vec![gpu.clone(), none.clone()], false);
        assert_eq!(verdicts(&both), [Verdict::Good, Verdict::Note]);
        assert_eq!(verdicts(&state(vec![none], false)), [Verdict::Note, Verdict::Bad]);
        let text = &gpus(&both)[0].text;
        assert_eq!(text, "0: GPU\\u001b, 79.0 GiB free of 80.0 GiB, 0 jobs, CUDA 13.1");
        let at = endpoint("gpubox:7878");
        assert_eq!(greeting(&at, &both, false).verdict, Verdict::Good);
        assert_eq!(greeting(&at, &state(Vec::new(), true), false).verdict, Verdict::Bad);
        assert!(
            greeting(&endpoint("plain://gpubox:7878"), &both, false).text.contains("the token is accepted; WITHOUT encryption")
        );
    }

    #[test]
    fn slow_ways_are_noted() {
        let trial = |micros, up| Trial { round_trip: Duration::from_micros(micros), up, down: 1e9 };
        assert_eq!(speed(&trial(50, 1e9)).verdict, Verdict::Good);
        assert!(speed(&trial(5000, 1e9)).text.ends_with("programs that often wait for the GPU will be slow"));
        let both = speed(&trial(5000, 1e6));
        assert!(
            both.verdict == Verdict::Note && both.text.contains("slow; moves of much memory will take long"),
            "{}",
            both.text
        );
    }
}
