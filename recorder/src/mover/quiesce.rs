//! An attempt to quiesce the sources: the gate is closed, no call is inside, and the GPUs are idle.

use crate::calls::host_function;
use crate::gate::{self, Closed, NotClosed};
use crate::job::{Device, Job};
use crate::move_error::{Busyness, MoveError};
use crate::mover::protocol::Attempt;
use crate::moves::Task;
use crate::order::last_launch;
use crate::place::Place;
use crate::random::random;
use cuda_api::arg::stream_name;
use rcuda_forwarder::{Control, ControlReply};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval between two checks whether the move was abandoned.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Minimum time that an attempt leaves the GPU to finish, however long the gate took to close.
const MIN_DRAIN_TIME: Duration = Duration::from_millis(50);

/// Why an attempt failed.
pub(super) struct NotYet {
    /// Whether a host function did not return.
    pub(super) function: bool,
    pub(super) why: Busyness,
}

/// One attempt: closes the gate and waits until all sources are idle, and notes in `busy` which of them were not. It is abandoned earlier
/// if one host function takes too long; the inner error gives the obstacle. `downtime`: see [`Task::hold`].
pub(super) fn quiesce(
    job: &Job,
    sources: &[(&'static Device, &Place)],
    attempt: Attempt,
    downtime: Duration,
    busy: &mut [bool],
    task: &Task,
) -> Result<Result<Closed, NotYet>, MoveError> {
    let Attempt { limit, held, function, again } = attempt;
    if again {
        // A random pause, so that two programs that disturb each other do not retry at the same time.
        let pause = u64::from(u16::from_le_bytes(random()?));
        std::thread::sleep(Duration::from_micros(2000 + pause % 20_000));
    }
    let mut hold = Hold { task, downtime, most: held, begun: false };
    let not_yet = |why| Ok(Err(NotYet { function: false, why }));
    let since = Instant::now();
    let mut function = Function::new(function);
    let closed = match gate::close(limit, || task.check().is_ok() && !function.is_stuck() && hold.update()) {
        Ok(closed) => closed,
        Err(NotClosed::NoBarrier) => return Err(MoveError::NoMembarrier),
        Err(NotClosed::Busy | NotClosed::Taken) => {
            task.check()?;
            if function.is_stuck() {
                return Ok(Err(NotYet { function: true, why: Busyness::ThreadAndFunction }));
            }
            return not_yet(Busyness::ThreadInCall);
        }
    };
    // A thread that waits in the driver of this process may submit a copy after the GPU was found idle. New waiters cannot appear now.
    let others = sources.iter().any(|(device, _)| device.waiters.load(Ordering::Acquire) != 0);
    if let Some(not_yet) = idle(job, sources, since, limit, &mut function, busy, &mut hold)? {
        return Ok(Err(not_yet));
    }
    hold.begin();
    // Work between one of these devices and another ends by itself, unless the program holds it up.
    for (device, _) in sources {
        while crate::order::concerned::concerns(device) {
            task.check()?;
            if since.elapsed() >= limit + MIN_DRAIN_TIME || !hold.update() {
                return not_yet(Busyness::CrossDevice);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    // An answer without a waiter may still bring the bytes of a copy to pinned memory.
    let waits = |device: &Device, source: &Place| device.waiters.load(Ordering::Acquire) != 0 || source.outstanding() != 0;
    let timeout = limit + Duration::from_secs(1);
    for (device, source) in sources {
        while waits(device, source) && since.elapsed() < timeout && hold.update() {
            task.check()?;
            std::thread::yield_now();
        }
        if waits(device, source) {
            return not_yet(Busyness::Answer);
        }
    }
    let late = if others { idle(job, sources, since, limit, &mut function, busy, &mut hold)? } else { None };
    Ok(late.map_or(Ok(closed), Err))
}

/// The time for which an attempt holds up calls: none, while all threads wait for the GPU.
struct Hold<'a> {
    task: &'a Task,
    downtime: Duration,
    /// How long a call may be held up before the GPU is idle; `None`: as long as the attempt takes.
    most: Option<Duration>,
    begun: bool,
}

impl Hold<'_> {
    /// Counts from the first call that is held up, or else from now on.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.task.hold(gate::held_for().unwrap_or_default(), self.downtime);
        }
    }

    /// How long a call may still be held up.
    fn left(&self) -> Duration {
        self.most.map_or(Duration::MAX, |most| most.saturating_sub(gate::held_for().unwrap_or_default()))
    }

    /// Begins to count once a call is held up. Returns false if one has been held up for too long.
    fn update(&mut self) -> bool {
        let held = gate::held_for();
        if held.is_some() {
            self.begin();
        }
        self.most.is_none_or(|most| held.is_none_or(|held| held < most))
    }
}

impl Drop for Hold<'_> {
    /// An attempt that has failed counts, too, if it has held up a call.
    fn drop(&mut self) {
        if gate::held_for().is_some() {
            self.begin();
        }
    }
}

/// Checks whether one host function takes too long.
struct Function {
    limit: Option<Duration>,
    /// The function that ran at the last check, and since when.
    running: Option<usize>,
    since: Instant,
}

impl Function {
    fn new(limit: Option<Duration>) -> Function {
        Function { limit, running: host_function::running(), since: Instant::now() }
    }

    fn is_stuck(&mut self) -> bool {
        let running = host_function::running();
        if running != self.running {
            (self.running, self.since) = (running, Instant::now());
        }
        running.is_some() && self.limit.is_some_and(|limit| self.since.elapsed() >= limit)
    }
}

/// What was launched last in a stream, in the words of a report.
fn last(job: &Job, device: &Device, stream: u64) -> Option<String> {
    let name = last_launch::name(job, device, stream)?;
    Some(format!("; launched last in {}: {name}", stream_name(stream)))
}

/// Waits until the GPUs are idle; otherwise returns the obstacle.
fn idle(
    job: &Job,
    sources: &[(&Device, &Place)],
    since: Instant,
    limit: Duration,
    function: &mut Function,
    busy: &mut [bool],
    hold: &mut Hold<'_>,
) -> Result<Option<NotYet>, MoveError> {
    for ((device, source), busy) in sources.iter().zip(busy.iter_mut()) {
        let least = MIN_DRAIN_TIME.min(limit);
        let until = since + limit.max(since.elapsed() + least);
        loop {
            hold.task.check()?;
            let left = until.saturating_duration_since(Instant::now());
            // A call is held up no longer than it may be.
            let limit_ms = left.min(POLL_INTERVAL).min(hold.left()).as_millis() as u32;
            let (idle, what, runs) = match source.control(&Control::Drain { limit_ms })? {
                ControlReply::Drained { idle, was_busy, waits_for, runs } => {
                    *busy |= was_busy;
                    (idle, waits_for, runs)
                }
                other => return Err(MoveError::unexpected(&other)),
            };
            if idle {
                break;
            }
            let is_over = left <= POLL_INTERVAL || !hold.update();
            if is_over || function.is_stuck() {
                let last = runs.and_then(|stream| last(job, device, stream));
                return Ok(Some(NotYet { function: !is_over, why: Busyness::Gpu { what, last } }));
            }
        }
    }
    Ok(None)
}
