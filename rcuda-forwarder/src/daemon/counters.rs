//! What has happened since the daemon started, in numbers (docs/servers.md, "Metrics").
//!
//! Whoever counts only adds to an atomic number; nothing is locked.

use super::error::{AssignError, WelcomeError};
use crate::account::Used;
use crate::endpoint::Endpoint;
use crate::greet::GreetError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// It never goes down: what a worker says of itself may be false.
    pub(super) fn add(&self, n: u64) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| Some(before.saturating_add(n)));
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a client wants of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// It has not said so yet: it is greeting.
    Greeting,
    /// A worker for its job.
    Job,
    /// The state of the server, or a trial of the connection.
    Question,
    /// A connection for large copies, or for the data of a move.
    Copy,
}

impl Wish {
    const ALL: [Wish; 4] = [Wish::Greeting, Wish::Job, Wish::Question, Wish::Copy];

    /// The value of a label.
    pub(super) fn word(self) -> &'static str {
        match self {
            Wish::Greeting => "greeting",
            Wish::Job => "job",
            Wish::Question => "question",
            Wish::Copy => "copy",
        }
    }

    /// Why it may not be fulfilled, as values of a label.
    fn reasons(self) -> &'static [&'static str] {
        match self {
            Wish::Greeting => &GreetError::REASONS,
            Wish::Job => &AssignError::REASONS_OF_JOBS,
            Wish::Question => &AssignError::REASONS_OF_QUESTIONS,
            Wish::Copy => &AssignError::REASONS_OF_COPIES,
        }
    }
}

/// What has happened to the connections with one wish.
#[derive(Debug)]
struct OfWish {
    accepted: Counter,
    /// By reason, in the order of [`Wish::reasons`].
    refused: Vec<Counter>,
}

/// What has happened at a GPU, or in the memory for parked jobs.
#[derive(Debug, Default)]
pub(super) struct OfPlace {
    /// Workers that were handed a job.
    pub(super) served: Counter,
    /// Workers that were started, and those that could not be or have not opened their GPU.
    pub(super) started: Counter,
    pub(super) not_started: Counter,
    /// Workers that have failed with a job.
    pub(super) failed: Counter,
    /// Jobs that came by a move, and left by one.
    pub(super) moved_in: Counter,
    pub(super) moved_out: Counter,
    pub(super) bytes_in: Counter,
    pub(super) bytes_out: Counter,
    /// When the last job left it, in ms since the daemon's start; 0: none has so far.
    left_ms: AtomicU64,
}

/// What jobs were asked when the daemon began to end, and what they have done.
#[derive(Debug, Default)]
pub(super) struct OfDrain {
    pub(super) asked: Counter,
    pub(super) refused: Counter,
    pub(super) left: Counter,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Counters {
    began: Instant,
    wishes: [OfWish; 4],
    /// The GPUs, and then the memory for parked jobs.
    places: Vec<OfPlace>,
    pub(super) drain: OfDrain,
}

impl Counters {
    pub(super) fn new(gpus: usize) -> Counters {
        let of_wish = |wish: Wish| OfWish {
            accepted: Counter::default(),
            refused: wish.reasons().iter().map(|_| Counter::default()).collect(),
        };
        Counters {
            began: Instant::now(),
            wishes: Wish::ALL.map(of_wish),
            places: (0..=gpus).map(|_| OfPlace::default()).collect(),
            drain: OfDrain::default(),
        }
    }

    /// The place with this number, or the memory.
    pub(super) fn place(&self, gpu: u32) -> &OfPlace {
        let memory = self.places.len() - 1;
        &self.places[if gpu == Endpoint::MEMORY { memory } else { (gpu as usize).min(memory) }]
    }

    /// A connection was handed on, or answered.
    pub(super) fn accept(&self, wish: Wish) {
        self.wishes[wish as usize].accepted.add(1);
    }

    /// A connection was refused.
    pub(super) fn refuse(&self, why: &WelcomeError) {
        let (wish, reason) = match why {
            WelcomeError::Client { error, .. } => (Wish::Greeting, error.reason()),
            WelcomeError::Job { error, .. } => (Wish::Job, error.reason()),
            WelcomeError::Question { error, .. } => (Wish::Question, error.reason()),
            WelcomeError::Bulk { error, .. } => (Wish::Copy, error.reason()),
        };
        // The last reason stands for those that this wish does not name.
        let reasons = wish.reasons();
        let at = reasons.iter().position(|known| *known == reason).unwrap_or(reasons.len() - 1);
        self.wishes[wish as usize].refused[at].add(1);
    }

    /// The connections that were accepted, by wish. A greeting has no end of its own.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let wishes = Wish::ALL.into_iter().filter(|wish| *wish != Wish::Greeting);
        wishes.map(|wish| (wish.word(), self.wishes[wish as usize].accepted.get()))
    }

    /// The connections that were refused, by wish and reason.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Wish::ALL.into_iter().flat_map(|wish| {
            let counts = &self.wishes[wish as usize].refused;
            wish.reasons().iter().zip(counts).map(move |(reason, count)| (wish.word(), *reason, count.get()))
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A job has left a place.
    pub(super) fn note_left(&self, gpu: u32) {
        self.place(gpu).left_ms.fetch_max(self.now_ms(), Ordering::Relaxed);
    }

    /// For how many seconds no job is there, if none is.
    pub(super) fn unused_seconds(&self, gpu: u32) -> f64 {
        let left_ms = self.place(gpu).left_ms.load(Ordering::Relaxed);
        self.now_ms().saturating_sub(left_ms) as f64 / 1e3
    }
}

/// What of the use of one worker is in the counters already, so that each byte and move is counted once, whoever looks and when.
#[derive(Debug, Default)]
pub(super) struct Settled {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    moved_in: AtomicU64,
    moved_out: AtomicU64,
}

impl Settled {
    /// Counts what was used since the last time.
    pub(super) fn settle(&self, used: &Used, place: &OfPlace) {
        for (settled, now, counter) in [
            (&self.bytes_in, used.bytes_in, &place.bytes_in),
            (&self.bytes_out, used.bytes_out, &place.bytes_out),
            (&self.moved_in, u64::from(used.moved_in), &place.moved_in),
            (&self.moved_out, u64::from(used.moved_out), &place.moved_out),
        ] {
            // Of several threads that do this at the same time, each adds what it has found first.
            counter.add(now.saturating_sub(settled.fetch_max(now, Ordering::Relaxed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn refusals_are_counted_by_reason() {
        let counters = Counters::new(2);
        let all: Vec<_> = counters.refused().map(|(wish, reason, _)| (wish, reason)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "no series is there twice: {all:?}");
        let peer = String::new;
        counters.refuse(&WelcomeError::Job {
            peer: peer(),
            user: None,
            gpu: 0,
            pid: 7,
            error: AssignError::GpuFull { gpu: 0, jobs: 1 },
        });
        counters.refuse(&WelcomeError::Client { peer: peer(), error: GreetError::WrongToken });
        counters.refuse(&WelcomeError::Bulk { peer: peer(), error: AssignError::TicketUsed });
        counters.refuse(&WelcomeError::Question { peer: peer(), user: None, error: AssignError::Questions });
        // Nobody expects that.
        counters.refuse(&WelcomeError::Bulk { peer: peer(), error: AssignError::Environment });
        let counted: Vec<_> = counters.refused().filter(|(.., n)| *n > 0).map(|(wish, reason, _)| (wish, reason)).collect();
        let wanted = [
            ("greeting", "wrong_token"),
            ("job", "gpu_full"),
            ("question", "too_many"),
            ("copy", "ticket_used"),
            ("copy", "connection"),
        ];
        assert_eq!(counted, wanted);
    }

    #[test]
    fn a_worker_that_says_too_much_makes_no_counter_smaller() {
        let place = OfPlace::default();
        place.bytes_in.add(5);
        for _ in 0..2 {
            let before = place.bytes_in.get();
            Settled::default().settle(&Used { bytes_in: u64::MAX, ..Used::default() }, &place);
            assert!(place.bytes_in.get() >= before);
        }
        assert_eq!(place.bytes_in.get(), u64::MAX);
    }

    #[test]
    fn what_is_settled_often_is_counted_once() {
        let (settled, place) = (Settled::default(), OfPlace::default());
        let used = |bytes_in, moved_in| Used { bytes_in, moved_in, ..Used::default() };
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..1000).for_each(|n| settled.settle(&used(n, n > 500), &place)));
            }
        });
        assert_eq!((place.bytes_in.get(), place.moved_in.get(), place.bytes_out.get()), (999, 1, 0));
        settled.settle(&used(3, false), &place);
        assert_eq!(place.bytes_in.get(), 999, "a number that becomes smaller is not believed");
    }

    #[test]
    fn a_place_is_unused_since_its_last_job() {
        let counters = Counters::new(1);
        std::thread::sleep(std::time::Duration::from_millis(30));
        let before = counters.unused_seconds(0);
        assert!(before >= 0.029, "since the start: {before}");
        counters.note_left(0);
        assert!(counters.unused_seconds(0) <= counters.unused_seconds(Endpoint::MEMORY) - 0.029);
    }
}
