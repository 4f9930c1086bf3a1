//! Which jobs the daemon has served of late, for those who watch it (docs/servers.md, "The page of a server").

use super::accounting::End;
use super::client::Client;
use crate::account::Used;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// How many are kept,
const KEPT: usize = 200;
/// and how long they are told.
const TOLD_MS: u64 = 10 * 60 * 1000;

/// The service of a job by a worker, which is over: its channel is closed.
#[derive(Debug, Clone)]
pub(super) struct Stay {
    /// Number of the GPU, or [`crate::endpoint::Endpoint::MEMORY`].
    pub(super) gpu: u32,
    pub(super) worker: u32,
    pub(super) client: Client,
    pub(super) until_unix_ms: u64,
    /// Whether the job came by a move, and left by one.
    pub(super) moved_in: bool,
    pub(super) moved_out: bool,
    /// How it has ended, once the worker's process has,
    pub(super) end: Option<End>,
    /// and how that process has, unless as it should.
    pub(super) failure: Option<String>,
}

impl Stay {
    /// Whether it is that of this client at this worker.
    pub(super) fn is(&self, worker: u32, client: &Client) -> bool {
        (self.worker, self.client.since_unix_ms()) == (worker, client.since_unix_ms())
    }
}

/// Those that ended last, the latest one last.
#[derive(Debug, Default)]
pub(super) struct Stays(Mutex<VecDeque<Stay>>);

impl Stays {
    pub(super) fn add(&self, stay: Stay) {
        let mut stays = lock(&self.0);
        if stays.len() == KEPT {
            stays.pop_front();
        }
        stays.push_back(stay);
    }

    /// The worker of one of them has ended, after this use; with a failure not as it should.
    pub(super) fn ended(&self, worker: u32, client: &Client, used: &Used, end: End, failure: Option<String>) {
        if let Some(stay) = lock(&self.0).iter_mut().rev().find(|stay| stay.is(worker, client)) {
            (stay.moved_in, stay.moved_out, stay.end) = (used.moved_in, used.moved_out, Some(end));
            stay.failure = failure;
        }
    }

    /// The latest one by a process.
    pub(super) fn latest_of(&self, worker: u32) -> Option<Stay> {
        lock(&self.0).iter().rev().find(|stay| stay.worker == worker).cloned()
    }

    /// Those that ended within the last ten minutes.
    pub(super) fn recent(&self, now_unix_ms: u64) -> Vec<Stay> {
        let is_recent = |stay: &&Stay| now_unix_ms.saturating_sub(stay.until_unix_ms) <= TOLD_MS;
        lock(&self.0).iter().filter(is_recent).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Conn;
    use crate::greet::JobHello;

    #[test]
    fn they_are_told_at_once_and_for_ten_minutes() {
        let (conn, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let hello = JobHello { virtual_device: 0, pid: 7, env: Vec::new(), name: "a\u{1b}b\u{202e}".into() };
        let client = Client::of(&Conn::new(conn.into()), &hello, None, 0);
        assert_eq!(client.name(), "a?b?");
        let stays = Stays::default();
        let stay = |worker, until_unix_ms| {
            let client = client.clone();
            Stay { gpu: 0, worker, client, until_unix_ms, moved_in: false, moved_out: false, end: None, failure: None }
        };
        (0..KEPT as u32 + 5).for_each(|worker| stays.add(stay(worker, u64::from(worker))));
        let told = stays.recent(TOLD_MS);
        assert_eq!((told.len(), told[0].worker, told[0].end), (KEPT, 5, None));
        stays.ended(5, &client, &Used { moved_out: true, ..Used::default() }, End::Left, None);
        stays.ended(4, &client, &Used::default(), End::Failed, None);
        let told = stays.recent(TOLD_MS + 5);
        assert!(told[0].is(5, &client) && told[0].moved_out && told[0].end == Some(End::Left), "{told:?}");
        // Another process got the number later.
        stays.add(stay(6, TOLD_MS));
        stays.ended(7, &client, &Used::default(), End::Failed, Some("signal: 9".into()));
        let latest = |worker| stays.latest_of(worker).map(|stay| (stay.until_unix_ms, stay.failure));
        assert_eq!([latest(5), latest(7)], [None, Some((7, Some("signal: 9".to_owned())))]);
        assert_eq!(latest(6), Some((TOLD_MS, None)));
        assert!(told[1].end.is_none() && stays.recent(TOLD_MS + 6)[0].worker == 6);
    }
}
