//! `mrcuda events`: what happens at a server, line by line.

use crate::failure::Failure;
use crate::gpus::{credentials, named_or_usual};
use crate::table::{bytes, one_line, write};
use rcuda_forwarder::{Endpoint, ServerEvent, ServerEventKind, ServerEvents};
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Arguments of `mrcuda events`.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    /// Server: HOST:PORT, plain://HOST:PORT or unix:PATH [default: 127.0.0.1:7878]
    #[arg(value_name = "SERVER")]
    server: Option<Endpoint>,
    /// Print JSON, a line for each event
    #[arg(long)]
    json: bool,
}

/// What has happened, in one word.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Kind {
    /// The first line: what happens from then on is among the lines.
    #[default]
    Following,
    /// A worker serves a job.
    JobCame,
    /// A job has ended, or left without its memory.
    JobLeft,
    /// A job has moved away.
    JobMoved,
    /// The worker of a job has failed, or the server ends.
    JobLost,
    /// A job was refused.
    JobRefused,
    /// A job was asked to move.
    MoveAsked,
    /// A job that was asked to move stays.
    JobStays,
    /// The server takes no new jobs, and asks those that it serves to move away.
    DrainBegan,
    /// It no longer does so.
    DrainEnded,
    /// Events were left out, because they were not read in time.
    Dropped,
    /// A job gives no sign of life: its memory was taken off the GPU.
    JobEvicted,
    /// It goes on, and waits until the GPU has room for its memory.
    JobWaits,
    /// Its memory is back on the GPU.
    JobRestored,
}

impl From<ServerEventKind> for Kind {
    fn from(kind: ServerEventKind) -> Kind {
        match kind {
            ServerEventKind::JobCame => Kind::JobCame,
            ServerEventKind::JobLeft => Kind::JobLeft,
            ServerEventKind::JobMoved => Kind::JobMoved,
            ServerEventKind::JobLost => Kind::JobLost,
            ServerEventKind::JobRefused => Kind::JobRefused,
            ServerEventKind::MoveAsked => Kind::MoveAsked,
            ServerEventKind::JobStays => Kind::JobStays,
            ServerEventKind::DrainBegan => Kind::DrainBegan,
            ServerEventKind::DrainEnded => Kind::DrainEnded,
            ServerEventKind::Dropped => Kind::Dropped,
            ServerEventKind::JobEvicted => Kind::JobEvicted,
            ServerEventKind::JobWaits => Kind::JobWaits,
            ServerEventKind::JobRestored => Kind::JobRestored,
        }
    }
}

/// A line of `mrcuda events --json` (docs/servers.md).
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Line {
    /// RFC 3339, in UTC, with milliseconds, by the server's clock.
    time: String,
    server: String,
    event: Kind,
    worker: Option<u32>,
    gpu: Option<u32>,
    pid: Option<u32>,
    host: Option<String>,
    uid: Option<u32>,
    user: Option<String>,
    user_by: Option<String>,
    to: Option<String>,
    reason: Option<String>,
    count: Option<u64>,
}

impl Line {
    fn new(server: &str, event: ServerEvent) -> Line {
        /// The end of the year 9999: times after it cannot be written.
        const LAST_MS: u64 = 253_402_300_799_999;
        let ServerEvent { unix_ms, kind, worker, gpu, pid, host, uid, user, user_by, to, reason, count } = event;
        let time = UNIX_EPOCH + Duration::from_millis(unix_ms.min(LAST_MS));
        Line {
            time: humantime::format_rfc3339_millis(time).to_string(),
            server: server.to_owned(),
            event: kind.into(),
            worker,
            gpu,
            pid,
            host,
            uid,
            user,
            user_by: user_by.map(|by| by.word().to_owned()),
            to,
            reason,
            count,
        }
    }

    /// The first line.
    fn following(server: &str) -> Line {
        Line {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            server: server.to_owned(),
            event: Kind::Following,
            ..Line::default()
        }
    }

    /// The line for people.
    fn words(&self) -> String {
        let job = match (&self.user, &self.host) {
            (Some(user), Some(host)) => format!("job {} of {user}@{host}", self.pid.unwrap_or_default()),
            (Some(user), None) => format!("job {} of {user}", self.pid.unwrap_or_default()),
            (None, Some(host)) => format!("job {} of {host}", self.pid.unwrap_or_default()),
            (None, None) => format!("job {}", self.pid.unwrap_or_default()),
        };
        let at = self.gpu.map_or_else(|| "in memory".to_owned(), |gpu| format!("on GPU {gpu}"));
        let to = self.to.as_ref().map(|to| format!(" to {to}")).unwrap_or_default();
        let why = self.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let count = self.count.unwrap_or_default();
        let text = match self.event {
            Kind::Following => format!("following {}", self.server),
            Kind::JobCame => format!("{job} came, {at}"),
            Kind::JobLeft => format!("{job} has left; it was {at}"),
            Kind::JobMoved => format!("{job} has moved{to}; it was {at}"),
            Kind::JobLost => format!("{job} has lost its worker; it was {at}"),
            Kind::JobRefused => format!("{job} was refused{why}"),
            Kind::MoveAsked => format!("{job}, {at}, is asked to move{to}"),
            Kind::JobStays => format!("{job} stays {at}{why}"),
            Kind::DrainBegan => format!("a drain began{to}; workers with jobs: {count}"),
            Kind::DrainEnded => format!("the drain{to} ended; workers with jobs: {count}"),
            Kind::JobEvicted => {
                format!("{job} gives no sign of life; {} of its memory were taken off the GPU; it is {at}", bytes(count))
            }
            Kind::JobWaits => format!("{job} goes on, and waits for {} of memory {at}", bytes(count)),
            Kind::JobRestored => format!("{job} goes on; {} of its memory are back {at}", bytes(count)),
            Kind::Dropped => format!("events that were left out, because they were not read in time: {count}"),
        };
        format!("{} {}\n", self.time, one_line(&text))
    }
}

/// Prints what happens at a server until the connection ends, which is a failure.
pub(crate) fn events(args: &EventsArgs) -> Result<(), Failure> {
    let named: Vec<Endpoint> = args.server.clone().into_iter().collect();
    let servers = named_or_usual(&named)?;
    let Some(at) = servers.first() else { return Ok(()) };
    let events = ServerEvents::follow(at, credentials(at).map_err(Failure::new)?.as_ref()).map_err(Failure::new)?;
    let server = at.server();
    print(&Line::following(&server), args.json)?;
    loop {
        print(&Line::new(&server, events.next_event().map_err(Failure::new)?), args.json)?;
    }
}

fn print(line: &Line, json: bool) -> Result<(), Failure> {
    match json {
        true => write((serde_json::to_string(line).map_err(Failure::new)? + "\n").as_bytes()),
        false => write(line.words().as_bytes()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuda_forwarder::UserBy;
    use serde_json::json;

    fn line(kind: ServerEventKind) -> Line {
        let event = ServerEvent {
            unix_ms: 1_795_802_594_007,
            kind,
            worker: Some(9),
            gpu: Some(1),
            pid: Some(7),
            host: Some("10.0.0.7".into()),
            uid: None,
            user: Some("ann\x1b".into()),
            user_by: Some(UserBy::Token),
            to: Some("b:1/0".into()),
            reason: Some("no\nroom".into()),
            count: Some(3),
        };
        Line::new("gpubox:7878", event)
    }

    #[test]
    fn every_event_is_one_line() {
        for kind in ServerEventKind::ALL {
            let words = line(kind).words();
            assert!(words.starts_with("2026-11-27T18:03:14.007Z ") && !words.contains('\x1b'), "{words}");
            assert_eq!(words.matches('\n').count(), 1, "{words}");
        }
        assert!(Line::following("a:1").words().ends_with("Z following a:1\n"));
        let stays = line(ServerEventKind::JobStays).words();
        assert!(stays.ends_with(" job 7 of ann\\u001b@10.0.0.7 stays on GPU 1: no\\u000aroom\n"), "{stays}");
        assert!(line(ServerEventKind::JobMoved).words().contains(" has moved to b:1/0; it was on GPU 1"));
        let last = Line::new("a:1", ServerEvent::new(ServerEventKind::Dropped, u64::MAX));
        assert!(last.time.starts_with("9999-12-31"));
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let page = include_str!("../../docs/servers.md");
        let value = serde_json::to_value(line(ServerEventKind::JobStays)).unwrap();
        assert_eq!(
            (&value["event"], &value["user_by"], &value["reason"]),
            (&json!("job-stays"), &json!("token"), &json!("no\nroom"))
        );
        for name in value.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
        }
        for kind in ServerEventKind::ALL {
            let word = serde_json::to_value(Kind::from(kind)).unwrap();
            assert!(page.contains(&format!("`{}`", word.as_str().unwrap())), "docs/servers.md does not name {word}");
        }
    }
}
