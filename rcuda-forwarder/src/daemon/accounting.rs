//! Accounting: a line of JSON for each worker that has served a job, at its end (docs/servers.md, "Accounting").
//!
//! A thread of its own writes the lines. A disk that is full or slow delays no job; lines that cannot be written are counted in the log.

use super::client::Client;
use super::counters::Counter;
use super::log::{Log, LogLine, RateLimitedLog};
use crate::account::Used;
use crate::endpoint::Endpoint;
use crate::server_state::GpuFacts;
use crate::threads;
use crate::user_by::UserBy;
use cuda_api::clock::unix_ms;
use cuda_api::hex::hex;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Version of the lines' form.
const VERSION: u32 = 1;
/// Lines that wait for the disk; further ones are lost.
const WAITING: usize = 4096;

/// How a worker's service of a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum End {
    /// The job has ended, or moved away.
    Left,
    /// The worker has failed.
    Failed,
    /// The server has ended.
    ServerEnded,
}

/// A line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    version: u32,
    server_pid: u32,
    worker: u32,
    gpu: Option<u32>,
    gpu_name: Option<&'a str>,
    gpu_uuid: Option<String>,
    host: Option<&'a str>,
    pid: u32,
    name: &'a str,
    uid: Option<u32>,
    user: Option<String>,
    user_by: Option<&'static str>,
    since_unix_ms: u64,
    until_unix_ms: u64,
    gpu_seconds: f64,
    peak_bytes: u64,
    byte_seconds: f64,
    bytes_in: u64,
    bytes_out: u64,
    moved_in: bool,
    moved_out: bool,
    end: End,
}

/// What the thread gets that writes the file.
#[derive(Debug)]
enum Item {
    Line(String),
    /// Everything before it has been written when this is dropped.
    Flush(#[expect(dead_code, reason = "its end is what counts")] SyncSender<()>),
}

/// The file with the lines.
#[derive(Debug)]
pub(super) struct Accounting {
    lines: SyncSender<Item>,
    fate: Arc<Fate>,
}

/// What has become of lines.
#[derive(Debug)]
struct Fate {
    written: Counter,
    lost: Counter,
    log: Arc<RateLimitedLog>,
}

impl Fate {
    /// A line is lost.
    fn lose(&self, why: &str) {
        self.lost.add(1);
        self.log.say(&LogLine::warning(format!("a line of accounting is lost: {why}")));
    }
}

impl Accounting {
    /// Opens the file; created, readable by its owner only, if it does not exist.
    pub(super) fn open(path: &Path, log: Log) -> io::Result<Arc<Accounting>> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let (lines, received) = sync_channel(WAITING);
        let log = RateLimitedLog::new(log, "lines of accounting that are lost");
        let fate = Arc::new(Fate { written: Counter::default(), lost: Counter::default(), log });
        let (path, theirs) = (path.to_owned(), fate.clone());
        threads::spawn("accounting", move || write_all(file, &received, &path, &theirs))?;
        Ok(Arc::new(Accounting { lines, fate }))
    }

    /// Writes the line of a worker that has served a client.
    pub(super) fn record(&self, (worker, gpu): (u32, u32), facts: Option<&GpuFacts>, client: &Client, used: &Used, end: End) {
        let served = client.served(worker, None);
        let (since, until) = (served.since_unix_ms, unix_ms());
        let gpu = Some(gpu).filter(|gpu| *gpu != Endpoint::MEMORY);
        let seconds = until.saturating_sub(since) as f64 / 1e3;
        let line = Line {
            version: VERSION,
            server_pid: std::process::id(),
            worker,
            gpu,
            gpu_name: facts.map(|f| f.name.as_str()),
            gpu_uuid: facts.map(|f| hex(&f.uuid)),
            host: served.host.as_deref(),
            pid: served.pid,
            name: client.name(),
            uid: served.uid,
            user: served.user,
            user_by: served.user_by.map(UserBy::word),
            since_unix_ms: since,
            until_unix_ms: until,
            gpu_seconds: if gpu.is_some() { seconds } else { 0.0 },
            peak_bytes: used.peak,
            byte_seconds: used.kib_ms as f64 * 1.024,
            bytes_in: used.bytes_in,
            bytes_out: used.bytes_out,
            moved_in: used.moved_in,
            moved_out: used.moved_out,
            end,
        };
        let text = serde_json::to_string(&line).map_err(io::Error::from);
        let sent = text.and_then(|text| {
            let full = |_| io::Error::other("the disk is too slow");
            self.lines.try_send(Item::Line(text)).map_err(full)
        });
        sent.unwrap_or_else(|why| self.fate.lose(&why.to_string()));
    }

    /// How many lines were written, and how many are lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.fate.written.get(), self.fate.lost.get())
    }

    /// Waits until what was recorded is written, for a limited time.
    pub(super) fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel::<()>(0);
        if self.lines.try_send(Item::Flush(done)).is_ok() {
            // It ends with an error when the other end is dropped.
            let _ = is_done.recv_timeout(limit);
        }
    }
}

fn write_all(mut file: File, lines: &Receiver<Item>, path: &Path, fate: &Fate) {
    // The file may end in the middle of a line that did not fit on the disk.
    let mut is_torn = false;
    while let Ok(item) = lines.recv() {
        let Item::Line(line) = item else { continue };
        let start = if is_torn { "\n" } else { "" };
        match file.write_all(format!("{start}{line}\n").as_bytes()) {
            Ok(()) => {
                is_torn = false;
                fate.written.add(1);
            }
            Err(why) => {
                is_torn = true;
                fate.lose(&format!("{}: {why}", path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::pair;
    use crate::greet::JobHello;
    use crate::sync::lock;
    use crate::user::{Account, User};
    use serde_json::Value;
    use std::sync::Mutex;

    static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn log(line: &LogLine) {
        lock(&LOG).push(line.words());
    }

    fn client() -> Client {
        let hello = JobHello { virtual_device: 0, pid: 7, env: Vec::new(), name: "train\x1b\n1".into() };
        let ann = User::Munge(Arc::new(Account { uid: 1000, name: "ann".into() }));
        Client::of(&pair().0, &hello, Some(ann), 0)
    }

    const USED: Used = Used { peak: 3 << 20, kib_ms: 1_000_000, bytes_in: 5, bytes_out: 6, moved_in: true, moved_out: false };

    #[test]
    fn lines_have_the_documented_fields() {
        let path = std::env::temp_dir().join(format!("mrcuda-accounting-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let facts = GpuFacts { name: "GPU".into(), uuid: [0xab; 16], total_bytes: 1, driver_version: 13_000 };
        let accounting = Accounting::open(&path, log).unwrap();
        accounting.record((11, 2), Some(&facts), &client(), &USED, End::Left);
        accounting.record((12, Endpoint::MEMORY), None, &client(), &Used::default(), End::ServerEnded);
        accounting.flush(Duration::from_secs(60));
        assert_eq!(accounting.counts(), (2, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        let page = include_str!("../../../docs/servers.md");
        for name in lines[0].as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{name}`")), "docs/servers.md does not name `{name}`");
        }
        assert_eq!(
            (&lines[0]["gpu"], &lines[0]["gpu_uuid"], &lines[0]["name"]),
            (&2.into(), &"ab".repeat(16).into(), &"train??1".into())
        );
        assert_eq!((&lines[0]["user"], &lines[0]["user_by"]), (&"ann".into(), &"munge".into()));
        assert_eq!((&lines[0]["byte_seconds"], &lines[0]["end"]), (&1_024_000.0.into(), &"left".into()));
        assert_eq!(
            (&lines[1]["gpu"], &lines[1]["gpu_seconds"], &lines[1]["end"]),
            (&Value::Null, &0.0.into(), &"server-ended".into())
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_costs_lines_and_nothing_else() {
        let accounting = Accounting::open(Path::new("/dev/full"), log).unwrap();
        for _ in 0..3 {
            accounting.record((11, 2), None, &client(), &USED, End::Failed);
        }
        accounting.flush(Duration::from_secs(60));
        assert_eq!(accounting.counts(), (0, 3));
        assert!(lock(&LOG).iter().any(|line| line.contains("a line of accounting is lost: /dev/full: No space left")));
    }
}
