//! Waiting by looking again and again: cheaper than a sleep where the wait is short and a processor is idle.
//!
//! If all processors are needed by other threads, a thread that spins is preempted, or yields and gets the processor back a time slice
//! (milliseconds) later, while a thread that sleeps is woken within microseconds. So a thread that has lost its processor while it spun
//! makes all threads of the process sleep early for a time that is proportional to what was lost, which bounds what is lost to 2 %.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Approximate cost of waking a sleeping thread (10 to 50 us on an H100 machine).
pub const WAKE_UP: Duration = Duration::from_micros(50);

/// How long a thread spins whatever the machine does. A thread that spins for longer [yields](Pause::Yield) the processor.
pub const POLITE: Duration = Duration::from_micros(5);

/// With so many processors, some are likely to be idle.
const SPARE: usize = 8;

/// A pause between two looks that takes longer has cost the thread its processor. Threads of ours that have work for less time than this
/// are what a thread yields to.
const PREEMPTED: Duration = Duration::from_micros(500);

/// For how many times the lost time threads sleep early, and for how long at most.
const AVOIDED: u32 = 50;
const AVOIDED_AT_MOST: Duration = Duration::from_secs(1);

/// How long a thread spins for what another process sends before it sleeps. With eight processors or more it is four times [`WAKE_UP`]: a
/// worker first executes what was sent before, and each thread between the two that has fallen asleep adds a wake-up (docs/measurements.md, "How
/// long to spin").
pub fn spin_time() -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    *TIME.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        match processors {
            // What is waited for needs the processor.
            1 => POLITE,
            n if n < SPARE => WAKE_UP,
            _ => 4 * WAKE_UP,
        }
    })
}

/// What a thread does between two looks.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// It keeps the processor, for so many pauses of it (140 cycles each on the processors of an H200 machine).
    Keep(u32),
    /// It keeps the processor for [`POLITE`], and then yields it: what it waits for may be a thread that needs it.
    Yield,
}

/// One wait of a thread that spins.
#[derive(Debug)]
pub struct Spinning {
    began: Instant,
    crowd: &'static Crowd,
}

impl Spinning {
    /// Begins to spin.
    pub fn begin() -> Spinning {
        static CROWD: Crowd = Crowd(AtomicU64::new(0));
        Spinning { began: Instant::now(), crowd: &CROWD }
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Pauses until the next look. False if the thread had better sleep: `limit` is over, or other threads need the processors.
    #[must_use]
    pub fn goes_on(&self, pause: Pause, limit: Duration) -> bool {
        let before = Instant::now();
        match pause {
            Pause::Keep(times) => (0..times).for_each(|_| std::hint::spin_loop()),
            Pause::Yield if before - self.began < POLITE => std::hint::spin_loop(),
            Pause::Yield if self.crowd.is_crowded(before) => {}
            Pause::Yield => std::thread::yield_now(),
        }
        self.counts(before, Instant::now(), limit)
    }

    /// Whether to go on after a pause.
    fn counts(&self, before: Instant, now: Instant, limit: Duration) -> bool {
        if now - before >= PREEMPTED {
            self.crowd.lost(now - before, now);
            return false;
        }
        let spun = now - self.began;
        spun < limit && (spun < POLITE || !self.crowd.is_crowded(now))
    }
}

/// Spins until a condition holds, for at most [`spin_time`]; returns whether it holds.
pub fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    let spinning = Spinning::begin();
    loop {
        if condition() {
            return true;
        }
        if !spinning.goes_on(Pause::Yield, spin_time()) {
            return condition();
        }
    }
}

/// Until when threads sleep early: microseconds on the clock of [`micros`].
#[derive(Debug)]
struct Crowd(AtomicU64);

impl Crowd {
    fn is_crowded(&self, now: Instant) -> bool {
        // No other memory depends on it, and an old value costs one time slice.
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && micros(now) < until
    }

    fn lost(&self, time: Duration, now: Instant) {
        let avoided = (time * AVOIDED).min(AVOIDED_AT_MOST);
        self.0.fetch_max(micros(now + avoided), Ordering::Relaxed);
    }
}

/// Microseconds since the first call in this process.
fn micros(at: Instant) -> u64 {
    static BASE: OnceLock<Instant> = OnceLock::new();
    at.saturating_duration_since(*BASE.get_or_init(Instant::now)).as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that a test has control of.
    fn waits() -> (Spinning, Instant) {
        let began = Instant::now();
        (Spinning { began, crowd: Box::leak(Box::new(Crowd(AtomicU64::new(0)))) }, began)
    }

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_thread_spins_for_its_limit_while_it_keeps_its_processor() {
        let (spinning, t) = waits();
        assert!(spinning.counts(t, t + us(1), us(200)));
        assert!(spinning.counts(t + us(150), t + us(199), us(200)));
        assert!(!spinning.counts(t + us(199), t + us(200), us(200)));
    }

    #[test]
    fn who_loses_the_processor_makes_all_sleep_early_for_fifty_times_as_long() {
        let (spinning, t) = waits();
        assert!(!spinning.counts(t + us(10), t + us(3010), us(9000)), "3 ms were lost");
        let later = |since: u64| Spinning { began: t + us(since), crowd: spinning.crowd };
        for (since, avoided) in [(3100, true), (80_000, true), (152_900, true), (153_100, false)] {
            let began = t + us(since);
            assert!(later(since).counts(began, began + us(4), us(200)), "it always spins for {POLITE:?}");
            assert_eq!(later(since).counts(began + us(5), began + us(6), us(200)), !avoided, "{since} us");
        }
        // A second loss extends the time, but by no more than a second.
        assert!(!later(200_000).counts(t + us(200_000), t + us(900_000), us(200)));
        assert!(!later(1_899_000).counts(t + us(1_899_005), t + us(1_899_006), us(200)));
        assert!(later(1_900_010).counts(t + us(1_900_015), t + us(1_900_016), us(200)));
    }

    #[test]
    fn a_condition_that_holds_at_last_is_seen() {
        let mut looks = 0;
        assert!(spin_until(|| {
            looks += 1;
            looks == 2
        }));
        assert!(!spin_until(|| false));
    }
}
