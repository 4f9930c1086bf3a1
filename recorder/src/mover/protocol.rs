//! The protocol of a move, without I/O: a state machine that takes events and returns what to do next. The mover carries out
//! what it says, and `protocol/model.rs` checks it against every sequence of outcomes.
//!
//! The devices that move take their steps at the same time, and wait for each other between two stages. Each request
//! has a ticket and is answered once; an answer with another ticket changes nothing.

use crate::ledger::tail::Weight;
use ::control::TARGET_DOWNTIME;
use std::collections::VecDeque;
use std::time::Duration;

/// Pre-copy ends when a round has copied no more than this...
const SMALL_ROUND: u64 = 64 << 20;
/// ... or took no more than this: what changes meanwhile is copied as fast during the downtime...
const SHORT_COPY: Duration = Duration::from_millis(10);
/// ... or as much as the one before, in percent of that: the job changes memory as fast as it is copied, and a further round would gain
/// nothing...
const NO_GAIN: std::ops::RangeInclusive<u64> = 95..=105;
/// ... or after this many rounds...
const ROUNDS: u32 = 3;
/// ... or this many while the last part would take longer than half of the wanted downtime, and each round copies at most
/// [`MAX_PERCENT`] of the smallest one before: all further ones together then take less than three times as long as the third.
const MAX_ROUNDS: u32 = 12;
const MAX_PERCENT: u64 = 75;
/// How often a target catches up with what the job has made meanwhile, before the gate is closed: a job that makes something all the
/// time is not waited for.
const CATCH_UPS: u32 = 8;
/// How often the gate is opened again because the job has made something while it was closed: a job that does so all the time has to
/// wait in the end.
const REOPENINGS: u32 = 3;
/// The attempts to quiesce: how long each may take, and how long it may hold up a call if that is less. The first ones hold up calls for
/// moments only: they succeed once all threads wait for the GPU, or it has little to do. Then come a short one, which hardly disturbs a
/// job whose threads wait for each other, and longer ones for long kernels.
const QUIESCE: [(Duration, Option<Duration>); 6] = [
    (Duration::from_secs(1), Some(Duration::from_millis(10))),
    (Duration::from_secs(1), Some(Duration::from_millis(50))),
    (Duration::from_millis(200), None),
    (Duration::from_secs(1), None),
    (Duration::from_secs(3), None),
    (Duration::from_secs(5), None),
];
/// An attempt of a patient move: how long it may take while no call of the job waits, as when all threads wait for the GPU; then the copy
/// is brought up to date.
const PATIENT: Duration = Duration::from_secs(10);
/// And how long it may hold up a call.
const PATIENT_HELD: Duration = Duration::from_millis(200);
/// How long the GPU may wait for one host function, in milliseconds, in the first attempts, before each of them is abandoned: the
/// function may need a lock of a thread that waits at the gate, and then makes no progress until the gate is opened. These attempts do
/// not count.
const FUNCTION_MS: [u64; 16] = [10, 10, 10, 10, 20, 20, 20, 20, 50, 50, 50, 50, 100, 100, 200, 400];

/// A step of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// Find what blocks the source.
    Plan,
    /// Open the target, and check whether it can hold the device.
    Prepare,
    /// Replay the live set.
    Replay,
    /// Open the data connections.
    Connect,
    /// Replay the journal's tail, and copy what differs, while the job runs. Answered by [`Report::Copied`].
    Copy,
    /// Replay the tail and copy the changes from an idle source, and prove that both ends are equal.
    Delta,
    /// Replay the records that need the memory of all targets.
    ReplayDeferred,
    /// Compare the addresses at both places.
    Verify,
}

/// A step for all devices together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Joint {
    /// Check that mrcuda's state in the job can be trusted.
    Sound,
    /// Check that what the devices share with others does not prevent the move.
    Sharing,
    /// Weigh the journals' tails. Answered by [`Report::Tails`].
    Weigh,
    /// Of a parked job, whose gate is closed: see that no call is inside.
    AtRest,
    /// Close the gate and wait for the GPUs. Answered by [`Report::Busy`] if that takes too long. Whatever the answer, the gate may be
    /// closed until [`Action::OpenGate`].
    Quiesce(Attempt),
    /// Give the targets the access to each other's memory that the sources have, as far as that is possible while the job runs.
    PeerAccessAhead,
    /// The same, with all memory.
    PeerAccess,
    /// Make all targets the places of their devices, or none. This fails if the move was abandoned before.
    Commit,
}

/// An attempt to quiesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    /// How long it may take.
    pub(super) limit: Duration,
    /// How long it may hold up a call, if that is less.
    pub(super) held: Option<Duration>,
    /// How long one host function may take.
    pub(super) function: Option<Duration>,
    /// Whether an earlier attempt has failed, so that the job should run for a moment first.
    pub(super) again: bool,
}

/// A step, of a device or of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Device(usize, Step),
    Joint(Joint),
}

/// Identifies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

/// What the mover must do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Action<F> {
    /// Begin a step, and report its end as [`Event::Answer`].
    Run(Ticket, Request),
    /// Interrupt what a device's step waits for: another device has failed, so this one can only fail too.
    Interrupt(usize),
    /// Let the job's calls continue.
    OpenGate,
    /// The job is parked, for the first time or still: its calls wait until a later move takes it to GPUs.
    StayParked,
    /// Release the source of a device: the move is committed.
    ReleaseSource(usize),
    /// Release the target of a device, if it is open: the move is abandoned, or begun again.
    ReleaseTarget(usize),
    /// Begin the move of a device again; with `helper` its target is a helper instead of this process.
    Restart { device: usize, helper: bool },
    /// The move is over.
    End(Result<(), F>),
}

/// The result of a step that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Report<F> {
    Done,
    /// What a round has copied.
    Copied {
        bytes: u64,
        took: Duration,
    },
    /// The weight of each device's tail.
    Tails(Vec<Weight>),
    /// The job could not be quiesced now, and why; `function`: a host function has not returned in time.
    Busy {
        function: bool,
        why: F,
    },
}

/// Why a step has failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Failed<F> {
    pub(super) why: F,
    /// Whether the cause may be that the target is in this process: a helper may be used instead.
    pub(super) unfit: bool,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Event<F> {
    /// A step has ended.
    Answer(Ticket, Result<Report<F>, Failed<F>>),
    /// The move is to be abandoned: it was cancelled, or has exceeded a limit. What it waits for has been interrupted.
    Stop(F),
}

/// What all devices do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Begin,
    Plan,
    Sharing,
    Prepare,
    Replay,
    Connect,
    Precopy,
    /// A parked job needs no pre-copy: it makes nothing and changes nothing.
    AtRest,
    /// The targets have caught up, and map each other's memory.
    PeerAccessAhead,
    /// The tails are weighed while the job runs.
    Weigh,
    /// Targets with heavy tails catch up.
    CatchUp,
    Quiesce,
    /// The tails are weighed again, now that they cannot grow.
    WeighAtRest,
    SharingAtRest,
    Delta,
    PeerAccess,
    ReplayDeferred,
    Verify,
    SoundAtEnd,
    Commit,
    Over,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct DeviceState {
    /// Whether the target may be open.
    open: bool,
    /// Whether a failure may be due to this process as the target.
    unfit: bool,
    /// Rounds of this pre-copy, and how long they have copied.
    rounds: u32,
    precopy: Duration,
    /// Bytes that the last round has copied, and the smallest one.
    copied: Option<u64>,
    smallest: Option<u64>,
}

/// A move of several devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Protocol<F> {
    stage: Stage,
    devices: Vec<DeviceState>,
    /// Requests without an answer.
    running: Vec<(Ticket, Request)>,
    next: u64,
    /// What was weighed last.
    tails: Vec<Weight>,
    actions: VecDeque<Action<F>>,
    /// Why the move fails. The first failure counts: later ones may be consequences of it.
    failure: Option<F>,
    /// Whether the move was abandoned: it is not begun again.
    stopped: bool,
    /// Whether it was begun again with a helper.
    restarted: bool,
    /// Whether the gate may be closed.
    closed: bool,
    /// The longest time that the program's calls may be blocked.
    max_downtime: Option<Duration>,
    /// How long the move may take.
    deadline: Option<Duration>,
    /// Whether attempts to quiesce go on until the mover ends them with an error.
    patient: bool,
    /// Whether the job is parked at the beginning, and is to be parked at the end.
    parking: Parking,
    /// Indices of the next limits of an attempt to quiesce.
    attempt: usize,
    function: usize,
    /// How often targets may still catch up, and the gate may still be opened again.
    catch_ups: u32,
    reopenings: u32,
}

/// Which ends of a move execute nothing. Then the gate stays closed from the end of the move that parks the job to the commit of the one
/// that takes it to GPUs again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Parking {
    /// The sources: the job is parked.
    pub(super) before: bool,
    /// The targets.
    pub(super) after: bool,
    /// Nothing is committed: the job goes on where it is, and the targets, which execute nothing, stay as copies of it.
    pub(super) copies: bool,
}

impl<F> Protocol<F> {
    /// Begins a move of so many devices. A patient one is quiesced again and again.
    pub(super) fn new(devices: usize, max_downtime: Option<Duration>, patient: bool, parking: Parking) -> Protocol<F> {
        let mut new = Protocol {
            stage: Stage::Over,
            devices: vec![DeviceState::default(); devices],
            running: Vec::new(),
            next: 0,
            tails: Vec::new(),
            actions: VecDeque::new(),
            failure: None,
            stopped: false,
            restarted: false,
            closed: false,
            max_downtime,
            deadline: None,
            patient,
            parking,
            attempt: 0,
            function: 0,
            catch_ups: 0,
            reopenings: 0,
        };
        new.begin();
        new
    }

    /// Sets how long the move may take: a quarter of it at most is spent on further rounds.
    pub(super) fn until(self, deadline: Option<Duration>) -> Protocol<F> {
        Protocol { deadline, ..self }
    }

    /// The next thing to do. Without one, the next event is to be waited for.
    pub(super) fn poll(&mut self) -> Option<Action<F>> {
        self.actions.pop_front()
    }

    pub(super) fn handle(&mut self, event: Event<F>) {
        match event {
            Event::Stop(why) => {
                // Nothing is left to abandon when nothing runs.
                if !self.running.is_empty() {
                    self.stopped = true;
                    self.failure.get_or_insert(why);
                }
            }
            Event::Answer(ticket, result) => {
                let Some(at) = self.running.iter().position(|(running, _)| *running == ticket) else { return };
                let (_, request) = self.running.remove(at);
                match result {
                    Ok(report) => self.succeeded(request, report),
                    Err(failed) => self.failed(request, failed),
                }
                if self.running.is_empty() {
                    if self.failure.is_some() { self.abandon() } else { self.advance() }
                }
            }
        }
    }

    /// Begins with the first stage.
    fn begin(&mut self) {
        (self.attempt, self.function) = (0, 0);
        (self.catch_ups, self.reopenings) = (CATCH_UPS, REOPENINGS);
        self.joint(Stage::Begin, Joint::Sound);
    }

    fn run(&mut self, request: Request) {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.running.push((ticket, request));
        self.actions.push_back(Action::Run(ticket, request));
    }

    /// Enters a stage in which all devices take a step.
    fn each(&mut self, stage: Stage, step: Step) {
        self.stage = stage;
        (0..self.devices.len()).for_each(|device| self.run(Request::Device(device, step)));
    }

    /// Enters a stage with a step for all devices together.
    fn joint(&mut self, stage: Stage, joint: Joint) {
        self.stage = stage;
        self.run(Request::Joint(joint));
    }

    fn succeeded(&mut self, request: Request, report: Report<F>) {
        match (request, report) {
            (Request::Device(device, Step::Copy), Report::Copied { bytes, took }) if self.stage == Stage::Precopy => {
                let state = &mut self.devices[device];
                state.rounds += 1;
                state.precopy += took;
                let percent = |before: u64| bytes.saturating_mul(100) / before.max(1);
                let gains = state.copied.is_none_or(|before| !NO_GAIN.contains(&percent(before)));
                let shrinks = state.smallest.is_none_or(|smallest| percent(smallest) <= MAX_PERCENT);
                state.copied = Some(bytes);
                state.smallest = Some(state.smallest.map_or(bytes, |smallest| smallest.min(bytes)));
                // Further rounds of one of several devices would leave the copies of the others behind, and calls of a job that is
                // parked wait anyway.
                let may_go_on = shrinks
                    && self.devices.len() == 1
                    && !self.parking.after
                    && took > self.max_downtime.unwrap_or(TARGET_DOWNTIME) / 2
                    && self.deadline.is_none_or(|deadline| self.devices[device].precopy < deadline / 4);
                let rounds = if may_go_on { MAX_ROUNDS } else { ROUNDS };
                let enough = bytes <= SMALL_ROUND || took <= SHORT_COPY || !gains || self.devices[device].rounds >= rounds;
                // A device makes its rounds without waiting for the others.
                if !enough && self.failure.is_none() {
                    self.run(request);
                }
            }
            (Request::Joint(Joint::Weigh), Report::Tails(tails)) => self.tails = tails,
            // Nothing can fail the move now.
            (Request::Joint(Joint::Commit), _) => self.failure = None,
            (Request::Joint(Joint::Quiesce(_)), Report::Busy { function, why }) => {
                self.open_gate();
                if self.patient && self.failure.is_none() {
                    // What has changed meanwhile is copied while the job runs.
                    self.catch_ups = self.catch_ups.max(1);
                    return self.catch_up((0..self.devices.len()).collect());
                }
                if function && self.function < FUNCTION_MS.len() {
                    self.function += 1;
                } else {
                    self.attempt += 1;
                }
                if self.attempt == QUIESCE.len() {
                    self.failure.get_or_insert(why);
                } else if self.failure.is_none() {
                    self.quiesce(true);
                }
            }
            _ => {}
        }
    }

    fn failed(&mut self, request: Request, failed: Failed<F>) {
        if let Request::Device(device, _) = request {
            self.devices[device].unfit |= failed.unfit;
        }
        if self.failure.is_none() {
            self.failure = Some(failed.why);
            // The gate may be closed.
            let running =
                self.running.iter().filter_map(|(_, r)| if let Request::Device(device, _) = r { Some(*device) } else { None });
            self.actions.extend(running.map(Action::Interrupt));
        }
    }

    /// All devices have done what their stage asks for.
    fn advance(&mut self) {
        match self.stage {
            Stage::Begin => self.each(Stage::Plan, Step::Plan),
            Stage::Plan => self.joint(Stage::Sharing, Joint::Sharing),
            Stage::Sharing => {
                self.devices.iter_mut().for_each(|device| device.open = true);
                self.each(Stage::Prepare, Step::Prepare);
            }
            Stage::Prepare => self.each(Stage::Replay, Step::Replay),
            Stage::Replay => self.each(Stage::Connect, Step::Connect),
            Stage::Connect if self.parking.before => self.joint(Stage::AtRest, Joint::AtRest),
            Stage::Connect => self.each(Stage::Precopy, Step::Copy),
            Stage::AtRest => self.joint(Stage::SharingAtRest, Joint::Sharing),
            Stage::Precopy | Stage::CatchUp => {
                for device in &mut self.devices {
                    *device = DeviceState { open: device.open, unfit: device.unfit, ..DeviceState::default() };
                }
                self.joint(Stage::PeerAccessAhead, Joint::PeerAccessAhead);
            }
            Stage::PeerAccessAhead => self.joint(Stage::Weigh, Joint::Weigh),
            Stage::Weigh => {
                let due = self.due();
                if due.is_empty() || self.catch_ups == 0 {
                    self.quiesce(false);
                } else {
                    self.catch_up(due);
                }
            }
            Stage::Quiesce => {
                (self.attempt, self.function) = (0, 0);
                self.joint(Stage::WeighAtRest, Joint::Weigh);
            }
            Stage::WeighAtRest => {
                let worth = self.tails.iter().any(|tail| is_worth_reopening(*tail));
                let due = self.due();
                if worth && self.reopenings > 0 {
                    self.reopenings -= 1;
                    self.open_gate();
                    self.catch_ups = self.catch_ups.max(1);
                    self.catch_up(due);
                } else {
                    self.joint(Stage::SharingAtRest, Joint::Sharing);
                }
            }
            // The program may have begun sharing meanwhile.
            Stage::SharingAtRest => self.each(Stage::Delta, Step::Delta),
            Stage::Delta => self.joint(Stage::PeerAccess, Joint::PeerAccess),
            Stage::PeerAccess => self.each(Stage::ReplayDeferred, Step::ReplayDeferred),
            Stage::ReplayDeferred => self.each(Stage::Verify, Step::Verify),
            Stage::Verify => self.joint(Stage::SoundAtEnd, Joint::Sound),
            Stage::SoundAtEnd if self.parking.copies => {
                self.open_gate();
                self.end(Ok(()));
            }
            Stage::SoundAtEnd => self.joint(Stage::Commit, Joint::Commit),
            Stage::Commit => {
                match self.parking {
                    Parking { after: true, .. } => self.actions.push_back(Action::StayParked),
                    Parking { before: true, .. } => self.actions.push_back(Action::OpenGate),
                    Parking { .. } => self.open_gate(),
                }
                (0..self.devices.len()).for_each(|device| self.actions.push_back(Action::ReleaseSource(device)));
                self.end(Ok(()));
            }
            Stage::Over => {}
        }
    }

    /// The devices with tails that are replayed better while the job runs.
    fn due(&mut self) -> Vec<usize> {
        let tails = std::mem::take(&mut self.tails);
        (0..self.devices.len()).filter(|device| tails.get(*device).is_some_and(|tail| tail.is_heavy())).collect()
    }

    /// Lets targets catch up while the job runs.
    fn catch_up(&mut self, due: Vec<usize>) {
        self.catch_ups -= 1;
        self.stage = Stage::CatchUp;
        due.into_iter().for_each(|device| self.run(Request::Device(device, Step::Copy)));
    }

    fn quiesce(&mut self, again: bool) {
        // Half of the allowed downtime is left for the copy.
        let bounded = |limit: Duration| self.max_downtime.map_or(limit, |most| limit.min(most / 2));
        let (limit, held) = match self.patient {
            true => (PATIENT, Some(bounded(PATIENT_HELD))),
            false => match QUIESCE[self.attempt] {
                (limit, Some(held)) => (limit, Some(bounded(held))),
                (limit, None) => (bounded(limit), None),
            },
        };
        // A function that needs a lock of a thread at the gate ends a patient attempt by the call that is held up.
        let function = FUNCTION_MS.get(self.function).copied().map(Duration::from_millis).filter(|_| !self.patient);
        self.closed = true;
        self.joint(Stage::Quiesce, Joint::Quiesce(Attempt { limit, held, function, again }));
    }

    fn open_gate(&mut self) {
        if std::mem::take(&mut self.closed) {
            self.actions.push_back(Action::OpenGate);
        }
    }

    /// The move has failed before its commit, and nothing runs: the job continues where it was.
    fn abandon(&mut self) {
        self.open_gate();
        for (number, device) in self.devices.iter_mut().enumerate() {
            if std::mem::take(&mut device.open) {
                self.actions.push_back(Action::ReleaseTarget(number));
            }
        }
        let helper = !self.stopped && !self.restarted && self.devices.iter().any(|device| device.unfit);
        let Some(why) = self.failure.take() else { return };
        if !helper {
            if self.parking.before {
                self.actions.push_back(Action::StayParked);
            }
            return self.end(Err(why));
        }
        self.restarted = true;
        for (number, device) in self.devices.iter_mut().enumerate() {
            self.actions.push_back(Action::Restart { device: number, helper: device.unfit });
            *device = DeviceState::default();
        }
        self.begin();
    }

    fn end(&mut self, result: Result<(), F>) {
        self.stage = Stage::Over;
        self.actions.push_back(Action::End(result));
    }
}

/// Returns whether it is better to let the job continue and to quiesce it again than to let it wait for the replay of a tail: mapping a
/// little memory and copying it takes less time than that.
fn is_worth_reopening(weight: Weight) -> bool {
    weight.makings > 0 || weight.bytes > SMALL_ROUND
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;
