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

/// A look that finds nothing and the pause after it take less, unless the thread has lost its processor. A thread yields to threads of ours
/// that have work for less time than this.
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
    /// Since when it has had nothing to do.
    idle: Instant,
    crowd: &'static Crowd,
}

impl Spinning {
    /// Begins to spin.
    pub fn begin() -> Spinning {
        static CROWD: Crowd = Crowd(AtomicU64::new(0));
        let now = Instant::now();
        Spinning { began: now, idle: now, crowd: &CROWD }
    }

    /// The last look has found something, though not what is waited for: the time that this has taken was not lost.
    pub fn found(&mut self) {
        self.idle = Instant::now();
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Pauses until the next look. False if the thread had better sleep: `limit` is over, or other threads need the processors. What is
    /// waited for may have come meanwhile, so it is looked for once more.
    #[must_use]
    pub fn goes_on(&mut self, pause: Pause, limit: Duration) -> bool {
        let before = Instant::now();
        if before - self.began >= limit {
            return false;
        }
        match pause {
            Pause::Keep(times) => (0..times).for_each(|_| std::hint::spin_loop()),
            Pause::Yield if before - self.began < POLITE => std::hint::spin_loop(),
            Pause::Yield if self.crowd.is_crowded(before) => {}
            Pause::Yield => std::thread::yield_now(),
        }
        self.counts(Instant::now(), limit)
    }

    /// Whether to go on after a look and a pause.
    fn counts(&mut self, now: Instant, limit: Duration) -> bool {
        let idle = now - std::mem::replace(&mut self.idle, now);
        if idle >= PREEMPTED {
            self.crowd.lost(idle, now);
            return false;
        }
        let spun = now - self.began;
        spun < limit && (spun < POLITE || !self.crowd.is_crowded(now))
    }
}

/// Spins until a condition holds, for at most [`spin_time`]; returns whether it holds.
pub fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    let mut spinning = Spinning::begin();
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

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn crowd() -> &'static Crowd {
        Box::leak(Box::new(Crowd(AtomicU64::new(0))))
    }

    /// Whether a wait that began at a time, and last looked at another, goes on at a third one.
    fn goes_on(crowd: &'static Crowd, [began, idle, now]: [Instant; 3], limit: Duration) -> bool {
        Spinning { began, idle, crowd }.counts(now, limit)
    }

    #[test]
    fn a_thread_spins_for_its_limit_while_it_keeps_its_processor() {
        let (crowd, t) = (crowd(), Instant::now());
        assert!(goes_on(crowd, [t, t, t + us(1)], us(200)));
        assert!(goes_on(crowd, [t, t + us(150), t + us(199)], us(200)));
        assert!(!goes_on(crowd, [t, t + us(199), t + us(200)], us(200)));
        // Who has come to its limit does not yield the processor once more.
        let mut late = Spinning { began: t - us(200), idle: t, crowd };
        assert!(!late.goes_on(Pause::Yield, us(200)) && crowd.0.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn who_loses_the_processor_makes_all_sleep_early_for_fifty_times_as_long() {
        let (crowd, t) = (crowd(), Instant::now());
        assert!(!goes_on(crowd, [t, t + us(10), t + us(3010)], us(9000)), "3 ms were lost");
        for (since, avoided) in [(3100, true), (80_000, true), (152_900, true), (153_100, false)] {
            let began = t + us(since);
            assert!(goes_on(crowd, [began, began, began + us(4)], us(200)), "it always spins for {POLITE:?}");
            assert_eq!(goes_on(crowd, [began, began + us(5), began + us(6)], us(200)), !avoided, "{since} us");
        }
        // A second loss extends the time, but by no more than a second.
        assert!(!goes_on(crowd, [t + us(200_000), t + us(200_000), t + us(900_000)], us(200)));
        assert!(!goes_on(crowd, [t + us(1_899_000), t + us(1_899_005), t + us(1_899_006)], us(200)));
        assert!(goes_on(crowd, [t + us(1_900_010), t + us(1_900_015), t + us(1_900_016)], us(200)));
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
