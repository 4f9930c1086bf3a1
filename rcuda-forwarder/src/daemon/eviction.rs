//! Memory of stopped jobs, which workers evict from GPUs: how much of it may be in host memory, and what is told of it.

use super::State;
use super::log::LogLine;
use super::pool::Worker;
use crate::channel::Message;
use crate::eviction::{EvictedMemory, EvictionNews, WantedMemory};
use crate::server_event::ServerEventKind;
use memsync::free_host_memory;
use std::sync::Arc;

/// As people read it.
fn size(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// As people read it.
fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// Whether the machine has so much memory. The limit says how much is meant for this, not whether it is there.
fn has_room(bytes: u64, free: u64) -> Result<(), String> {
    // Without the other figure, which changes all the time: a worker says once why memory stays.
    if bytes <= free { Ok(()) } else { Err(format!("{} are more than the machine has free", size(bytes))) }
}

impl State {
    /// Takes news of a worker.
    pub(super) fn note_eviction(&self, worker: &Arc<Worker>, news: EvictionNews) {
        let evicted = worker.evicted();
        let (line, kind, bytes) = match news {
            EvictionNews::Wanted(memory) => return self.allow_eviction(worker, memory),
            EvictionNews::Evicted(EvictedMemory { bytes, rest, ms }) => {
                let Some(bytes) = evicted.evict(bytes) else { return };
                let text = format!(
                    "its job gives no sign of life: {} of its memory are in host memory now, which took {}; {} stay on the GPU",
                    size(bytes),
                    seconds(ms),
                    size(rest)
                );
                (LogLine::info(text), ServerEventKind::JobEvicted, bytes)
            }
            EvictionNews::Stays(why) => {
                evicted.end();
                let Some(why) = why else { return };
                let why = super::events::cut(&why);
                let text = format!("its job gives no sign of life, and its memory stays on the GPU: {why}");
                return self.say_of(worker, LogLine::warning(text));
            }
            EvictionNews::Waits => {
                let Some(bytes) = evicted.wait() else { return };
                let text = format!("its job goes on, and waits until the GPU has room for {} of its memory", size(bytes));
                (LogLine::warning(text), ServerEventKind::JobWaits, bytes)
            }
            EvictionNews::Restored(ms) => {
                let Some(bytes) = evicted.end() else { return };
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
    fn allow_eviction(&self, worker: &Worker, WantedMemory { number, bytes }: WantedMemory) {
        // What it was granted before is not in use: it would not ask.
        worker.evicted().end();
        let budget = self.pool.host_memory();
        let granted = free_host_memory().map_or(Ok(()), |free| has_room(bytes, free)).and_then(|()| {
            budget.hold(bytes).ok_or_else(|| {
                let limit = size(budget.limit());
                format!("{} would be more than the {limit} for all jobs (mrcuda serve --evict-memory)", size(bytes))
            })
        });
        let (held, why_not) = granted.map_or_else(|why| (None, Some(why)), |held| (Some(held), None));
        worker.evicted().grant(held, bytes);
        // A worker that has ended needs no answer.
        let _ = worker.send(&Message::MayEvict(number, why_not), None);
    }

    fn say_of(&self, worker: &Worker, line: LogLine) {
        let line = line.after(&format!("worker {}: ", worker.pid())).of_worker(worker.pid(), worker.gpu());
        self.evictions.say(&worker.client().iter().fold(line, |line, client| client.on(line)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_has_not_free_is_refused() {
        assert_eq!((has_room(7 << 20, 7 << 20), has_room(0, 0)), (Ok(()), Ok(())));
        let why = has_room((7 << 20) + 1, 7 << 20).unwrap_err();
        assert_eq!(why, "7 MiB are more than the machine has free");
    }

    #[test]
    fn sizes_and_times_are_as_people_read_them() {
        assert_eq!((size((3 << 20) + 7), seconds(61_250), seconds(40)), ("3 MiB".into(), "61.2 s".into(), "0.0 s".into()));
    }
}
