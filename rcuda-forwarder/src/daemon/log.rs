//! The daemon's log. Lines that anyone can cause are rate-limited so that they cannot fill a disk; suppressed lines are
//! counted.

use super::users;
use crate::endpoint::Endpoint;
use crate::sync::lock;
use crate::threads;
use crate::user::User;
use crate::user_by::UserBy;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum burst of lines of one kind.
const AT_ONCE: u32 = 20;
/// Time after which one more line is allowed.
const ONE_MORE: Duration = Duration::from_millis(500);
/// Delay between the first suppressed line and the line that reports their number.
const SUMMARY: Duration = Duration::from_secs(10);

/// A line of the log, and what it is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogLine {
    /// What comes before the text where the line is written for people.
    heading: String,
    text: String,
    is_warning: bool,
    /// The kind of process that has written the text, which may say anything.
    output_of: Option<&'static str>,
    worker: Option<u32>,
    /// A process that greets clients.
    greeter: Option<u32>,
    gpu: Option<u32>,
    peer: Option<String>,
    uid: Option<u32>,
    /// The user that was proved.
    user: Option<User>,
    job: Option<u32>,
    name: Option<String>,
}

/// Writes a line.
pub(crate) type Log = fn(&LogLine);

impl LogLine {
    pub(crate) fn info(text: impl Into<String>) -> LogLine {
        LogLine { text: text.into(), ..LogLine::default() }
    }

    /// A line that tells of something that has failed or was refused.
    pub(crate) fn warning(text: impl Into<String>) -> LogLine {
        LogLine { is_warning: true, ..LogLine::info(text) }
    }

    /// The same line behind other words.
    pub(super) fn after(self, words: &str) -> LogLine {
        LogLine { text: format!("{words}{}", self.text), ..self }
    }

    /// A line that a worker has written.
    pub(super) fn output(worker: u32, text: &str) -> LogLine {
        LogLine { heading: format!("worker {worker}: "), output_of: Some("worker"), worker: Some(worker), ..LogLine::info(text) }
    }

    /// A line that a process which greets clients has written.
    pub(super) fn greeter_output(greeter: u32, text: &str) -> LogLine {
        LogLine {
            heading: format!("greeter {greeter}: "),
            output_of: Some("greeter"),
            greeter: Some(greeter),
            ..LogLine::info(text)
        }
    }

    /// It is about the worker with this process, at this GPU.
    pub(super) fn of_worker(self, worker: u32, gpu: u32) -> LogLine {
        LogLine { worker: Some(worker), ..self.at_gpu(gpu) }
    }

    /// It is about this GPU, or about the memory for parked jobs.
    pub(super) fn at_gpu(self, gpu: u32) -> LogLine {
        LogLine { gpu: Some(gpu).filter(|gpu| *gpu != Endpoint::MEMORY), ..self }
    }

    /// It is about the job with this process id.
    pub(super) fn of_job(self, job: u32) -> LogLine {
        LogLine { job: Some(job), ..self }
    }

    /// Its job has this name, by its own word, and this user, if the kernel says.
    pub(super) fn named(self, name: &str, uid: Option<u32>) -> LogLine {
        LogLine { name: Some(name.to_owned()).filter(|name| !name.is_empty()), uid, ..self }
    }

    /// It is about a client that has proved to be of this user.
    pub(super) fn of_user(self, user: Option<&User>) -> LogLine {
        LogLine { user: user.cloned(), uid: user.and_then(User::uid), ..self }
    }

    /// It is about whoever is at the other end of a connection.
    pub(super) fn at_peer(self, peer: &str) -> LogLine {
        LogLine { peer: Some(peer.to_owned()), ..self }
    }

    /// The line for people.
    pub(crate) fn words(&self) -> String {
        format!("{}{}", self.heading, self.text)
    }

    /// Writes it for people.
    pub(super) fn write_text(&self) {
        tracing::info!(target: "serve", "{}", self.words());
    }

    /// Writes it with what it is about in fields of their own.
    pub(super) fn write_fields(&self) {
        let LogLine { text, output_of: source, worker, greeter, gpu, peer, uid, job, name, .. } = self;
        let (user, by) = users::known_as(self.user.as_ref(), *uid).unzip();
        let user_by = by.map(UserBy::word);
        if self.is_warning {
            tracing::warn!(target: "serve", source, worker, greeter, gpu, peer, uid, user, user_by, job, name, "{text}");
        } else {
            tracing::info!(target: "serve", source, worker, greeter, gpu, peer, uid, user, user_by, job, name, "{text}");
        }
    }
}

#[derive(Debug)]
struct Allowance {
    lines: u32,
    since: Instant,
    left_out: u64,
}

/// A rate limit for lines of one kind.
#[derive(Debug)]
pub(super) struct RateLimitedLog {
    write: Log,
    /// The name of what is counted, in the plural.
    what: &'static str,
    allowance: Mutex<Allowance>,
}

impl RateLimitedLog {
    pub(super) fn new(write: Log, what: &'static str) -> Arc<RateLimitedLog> {
        let allowance = Allowance { lines: AT_ONCE, since: Instant::now(), left_out: 0 };
        Arc::new(RateLimitedLog { write, what, allowance: Mutex::new(allowance) })
    }

    /// Writes a line, or counts it.
    pub(super) fn say(self: &Arc<Self>, line: &LogLine) {
        let mut a = lock(&self.allowance);
        let more = (a.since.elapsed().as_nanos() / ONE_MORE.as_nanos()).min(u128::from(AT_ONCE)) as u32;
        if more > 0 {
            (a.lines, a.since) = ((a.lines + more).min(AT_ONCE), Instant::now());
        }
        if a.lines > 0 {
            a.lines -= 1;
            drop(a);
            return (self.write)(line);
        }
        a.left_out += 1;
        let first = a.left_out == 1;
        drop(a);
        if first {
            let this = self.clone();
            let later = move || {
                std::thread::sleep(SUMMARY);
                this.sum_up();
            };
            // Without a thread, the next suppressed line after a summary reports the number.
            let _ = threads::spawn("log", later);
        }
    }

    fn sum_up(&self) {
        let n = std::mem::take(&mut lock(&self.allowance).left_out);
        if n > 0 {
            (self.write)(&LogLine::warning(format!("{n} more {} were not written here", self.what)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let log = RateLimitedLog::new(|line| lock(&LINES).push(line.words()), "refusals");
        let began = Instant::now();
        for n in 0..10_000 {
            log.say(&LogLine::info(format!("line {n}")));
        }
        let most = AT_ONCE as usize + (began.elapsed().as_millis() / ONE_MORE.as_millis()) as usize + 1;
        let written = lock(&LINES).len();
        assert!((1..=most).contains(&written), "{written} of at most {most}");
        log.sum_up();
        let last = lock(&LINES).last().cloned().unwrap();
        let left_out: usize = last.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(left_out + lock(&LINES).len() - 1, 10_000, "each was written or counted: {last}");
        log.sum_up();
        assert_eq!(lock(&LINES).last(), Some(&last), "nothing to say twice");
    }
}
