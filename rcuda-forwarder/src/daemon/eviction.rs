//! Memory of stopped jobs, which workers evict from GPUs: how much of it may be in host memory, and what is told of it.

use super::State;
use super::log::LogLine;
use super::pool::Worker;
use crate::channel::Message;
use crate::eviction::{EvictedMemory, EvictionNews};
use crate::server_event::ServerEventKind;
use crate::sync::lock;
use executor::Held;
use std::sync::{Arc, Mutex};

/// What a worker has of its job in host memory.
#[derive(Debug, Default)]
pub(super) struct Eviction(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    /// What it may have there; given back when the worker is gone.
    granted: Option<Held>,
    bytes: u64,
}

impl Eviction {
    fn grant(&self, held: Option<Held>) {
        lock(&self.0).granted = held;
    }

    /// The worker's process has ended, or all is back.
    pub(super) fn over(&self) {
        *lock(&self.0) = Account::default();
    }
}

/// As people read it.
fn size(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// As people read it.
fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

impl State {
    /// Takes news of a worker.
    pub(super) fn note_eviction(&self, worker: &Arc<Worker>, news: EvictionNews) {
        let eviction = worker.eviction();
        let (line, kind, bytes) = match news {
            EvictionNews::Wanted(bytes) => return self.allow_eviction(worker, bytes),
            EvictionNews::Evicted(EvictedMemory { bytes, rest, ms }) => {
                lock(&eviction.0).bytes = bytes;
                let text = format!(
                    "its job gives no sign of life: {} of its memory are in host memory now, which took {}; {} stay on the GPU",
                    size(bytes),
                    seconds(ms),
                    size(rest)
                );
                (LogLine::info(text), ServerEventKind::JobEvicted, bytes)
            }
            EvictionNews::Stays(why) => {
                eviction.over();
                let Some(why) = why else { return };
                let why = super::events::cut(&why);
                let text = format!("its job gives no sign of life, and its memory stays on the GPU: {why}");
                return self.say_of(worker, LogLine::warning(text));
            }
            EvictionNews::Waits => {
                let bytes = lock(&eviction.0).bytes;
                let text = format!("its job goes on, and waits until the GPU has room for {} of its memory", size(bytes));
                (LogLine::warning(text), ServerEventKind::JobWaits, bytes)
            }
            EvictionNews::Restored(ms) => {
                let bytes = lock(&eviction.0).bytes;
                eviction.over();
                let text = format!("its job goes on: {} of its memory are back on the GPU, after {}", size(bytes), seconds(ms));
                (LogLine::info(text), ServerEventKind::JobRestored, bytes)
            }
        };
        self.say_of(worker, line);
        if let Some(client) = worker.client() {
            self.pool.events().evicted(kind, (worker.pid(), worker.gpu()), &client, bytes);
        }
    }

    /// Answers a worker that wants to have so many bytes in host memory.
    fn allow_eviction(&self, worker: &Worker, bytes: u64) {
        // What it was granted before is not in use: it would not ask.
        worker.eviction().over();
        let budget = self.pool.host_memory();
        let held = budget.hold(bytes);
        let why_not = held.is_none().then(|| {
            format!("{} would be more than the {} for all jobs (mrcuda serve --evict-memory)", size(bytes), size(budget.limit()))
        });
        worker.eviction().grant(held);
        // A worker that has ended needs no answer.
        let _ = worker.send(&Message::MayEvict(bytes, why_not), None);
    }

    fn say_of(&self, worker: &Worker, line: LogLine) {
        let line = line.after(&format!("worker {}: ", worker.pid())).of_worker(worker.pid(), worker.gpu());
        self.evictions.say(&worker.client().iter().fold(line, |line, client| client.on(line)));
    }
}
