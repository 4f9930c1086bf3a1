//! Model check of the protocol: every sequence of outcomes of its steps, with a request to stop at every point, for one and two devices.
//! The world here stands for the job and its places; it checks each action when it carries it out.

use super::*;
use interleave::bound;
use rustc_hash::FxHashMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Why {
    Step,
    Busy,
    Stopped,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Target {
    #[default]
    None,
    /// It was opened, or the attempt has failed.
    Open { usable: bool },
    /// The job executes there.
    Executes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct FakeDevice {
    target: Target,
    source_released: bool,
    /// Whether the target was proved to be equal to the source, and compared with it, since the gate was closed.
    proved: bool,
    verified: bool,
    /// Whether what its step waits for was interrupted.
    interrupted: bool,
}

/// A wrong protocol, which the model must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    LeavesTheGateClosed,
    ForgetsTheFailureOfALaterDevice,
    ReleasesSourcesOnFailure,
    ReleasesTwice,
    RestartsWithoutRelease,
    BelievesLateAnswers,
    ReopensWithoutBound,
    FailsAfterTheCommit,
    CommitsWhatIsNotCompared,
    WaitsForTheOtherLegs,
    OpensTheGateOfAParkedJob,
    LetsAParkedJobGoOn,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    protocol: Protocol<Why>,
    devices: Vec<FakeDevice>,
    running: Vec<(Ticket, Request)>,
    closed: bool,
    /// The gate is to stay closed after the move.
    stays: bool,
    idle: bool,
    stopped: bool,
    /// Whether a step has failed, or the move was stopped, since it began.
    failed: bool,
    committed: bool,
    /// Whether all targets are proved copies of a job that runs again.
    copied: bool,
    over: Option<Result<(), Why>>,
    /// How often a patient move may still find the job busy before its time is over.
    tries: usize,
}

/// That often at first.
const TRIES: usize = 2;

/// What the longest runs from a state have, counted separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Longest {
    closings: usize,
    answers: usize,
}

impl World {
    fn new(devices: usize, patient: bool, parking: Parking) -> World {
        World {
            protocol: Protocol::new(devices, None, patient, parking),
            tries: TRIES,
            devices: vec![FakeDevice::default(); devices],
            running: Vec::new(),
            closed: parking.before,
            stays: false,
            idle: false,
            stopped: false,
            failed: false,
            committed: false,
            copied: false,
            over: None,
        }
    }

    /// The state without what only counts how it was reached.
    fn key(&self) -> World {
        let mut key = self.clone();
        key.protocol.next = 0;
        for running in [&mut key.protocol.running, &mut key.running] {
            running.iter_mut().for_each(|(ticket, _)| *ticket = Ticket(0));
            running.sort_by_key(|(_, request)| if let Request::Device(device, _) = request { *device } else { 0 });
        }
        key
    }

    /// Carries out what the protocol says. Returns how often it has closed the gate.
    fn go_on(&mut self, mistake: Mistake) -> usize {
        let mut closings = 0;
        let mut actions: Vec<Action<Why>> = std::iter::from_fn(|| self.protocol.poll()).collect();
        let restarts = actions.iter().any(|a| matches!(a, Action::Restart { .. }));
        match mistake {
            Mistake::LeavesTheGateClosed if !self.committed => actions.retain(|a| *a != Action::OpenGate),
            Mistake::ReleasesSourcesOnFailure => actions.iter_mut().for_each(|a| {
                if let Action::ReleaseTarget(device) = a {
                    *a = Action::ReleaseSource(*device);
                }
            }),
            Mistake::ReleasesTwice => {
                let again: Vec<_> = actions.iter().filter(|a| matches!(a, Action::ReleaseTarget(_))).cloned().collect();
                again.into_iter().for_each(|a| actions.insert(0, a));
            }
            Mistake::OpensTheGateOfAParkedJob => {
                actions.iter_mut().filter(|a| **a == Action::StayParked).for_each(|a| *a = Action::OpenGate)
            }
            Mistake::LetsAParkedJobGoOn => actions.retain(|a| *a != Action::StayParked),
            Mistake::WaitsForTheOtherLegs => actions.retain(|a| !matches!(a, Action::Interrupt(_))),
            Mistake::RestartsWithoutRelease if restarts => actions.retain(|a| !matches!(a, Action::ReleaseTarget(_))),
            _ => {}
        }
        for action in actions {
            assert!(self.over.is_none(), "{action:?} after the end");
            match action {
                Action::Run(ticket, request) => {
                    self.check(request);
                    if let Request::Joint(Joint::Quiesce(_)) = request {
                        (self.closed, closings) = (true, closings + 1);
                    }
                    if let Request::Device(device, Step::Prepare) = request {
                        self.devices[device].target = Target::Open { usable: false };
                    }
                    assert!(!self.failed, "a step begins after a failure");
                    if let Request::Device(device, _) = request {
                        self.devices[device].interrupted = false;
                    }
                    self.running.push((ticket, request));
                }
                Action::Interrupt(device) => {
                    let runs = self.running.iter().any(|(_, r)| matches!(r, Request::Device(l, _) if *l == device));
                    assert!(runs && self.failed, "a device is interrupted without need");
                    self.devices[device].interrupted = true;
                }
                Action::OpenGate => {
                    assert!(self.closed, "an open gate is opened");
                    let parking = self.protocol.parking;
                    let may = if self.committed { !parking.after } else { !parking.before };
                    assert!(may, "the gate of a parked job is opened");
                    self.copied = !self.failed && self.devices.iter().all(|device| device.proved && device.verified);
                    (self.closed, self.idle) = (false, false);
                    self.devices.iter_mut().for_each(|device| (device.proved, device.verified) = (false, false));
                }
                Action::StayParked => {
                    let parking = self.protocol.parking;
                    assert!(
                        self.closed && if self.committed { parking.after } else { parking.before },
                        "a job is parked that executes"
                    );
                    assert!(!std::mem::replace(&mut self.stays, true), "a job is parked twice");
                    self.idle = false;
                }
                Action::ReleaseSource(device) => {
                    assert!(
                        self.committed && self.closed == self.stays,
                        "a source is released before the commit, or while calls wait"
                    );
                    assert!(!std::mem::replace(&mut self.devices[device].source_released, true), "a source is released twice");
                }
                Action::ReleaseTarget(device) => {
                    let waits = self.closed && !self.protocol.parking.before;
                    assert!(self.running.is_empty() && !waits, "a target is released while steps run, or calls wait");
                    let target = std::mem::take(&mut self.devices[device].target);
                    assert_ne!(target, Target::Executes, "the place of the job is released");
                    assert_ne!(target, Target::None, "a target is released twice");
                }
                Action::Restart { device, .. } => {
                    assert!(!self.committed && self.closed == self.protocol.parking.before && self.running.is_empty());
                    self.idle = false;
                    (self.devices[device].proved, self.devices[device].verified) = (false, false);
                    assert_eq!(self.devices[device].target, Target::None, "a target is open when a device begins again");
                    self.failed = false;
                }
                Action::End(result) => {
                    let parking = self.protocol.parking;
                    let parked = if self.committed { parking.after } else { parking.before };
                    assert_eq!((self.closed, self.stays), (parked, parked), "the gate is in the wrong state at the end");
                    assert!(self.running.is_empty(), "steps run at the end");
                    let done = if parking.copies { self.copied } else { self.committed };
                    assert_eq!(result.is_ok(), done, "a committed move fails, or another one succeeds");
                    for device in &self.devices {
                        let expected = match result {
                            Ok(()) if parking.copies => Target::Open { usable: true },
                            Ok(()) => Target::Executes,
                            Err(_) => Target::None,
                        };
                        assert_eq!(device.target, expected, "a target is open at the end, or not all devices have moved");
                        assert_eq!(device.source_released, self.committed, "a source is left, or gone");
                    }
                    self.over = Some(result);
                }
            }
        }
        let waits = |r: &Request| matches!(r, Request::Device(device, _) if !self.devices[*device].interrupted);
        assert!(!self.failed || !self.running.iter().any(|(_, r)| waits(r)), "a step goes on after a failure");
        assert_eq!(self.running.len(), self.protocol.running.len());
        assert!(self.over.is_some() || !self.running.is_empty(), "the move neither ends nor goes on");
        closings
    }

    /// Checks whether a step may begin now.
    fn check(&self, request: Request) {
        assert!(!self.committed, "a step after the commit");
        match request {
            Request::Device(device, step) => {
                let other = |r: &Request| matches!(r, Request::Joint(_)) || matches!(r, Request::Device(l, _) if *l == device);
                assert!(!self.running.iter().any(|(_, r)| other(r)), "two steps of a device at a time");
                let at_rest = matches!(step, Step::Delta | Step::ReplayDeferred | Step::Verify);
                let closed = at_rest || self.protocol.parking.before;
                assert_eq!((self.closed, self.idle), (closed, at_rest), "{step:?} with the gate in the wrong state");
                let runs = matches!(step, Step::Copy);
                assert!(!runs || !self.protocol.parking.before, "a parked job is copied as if it ran");
                match step {
                    Step::Plan => {}
                    Step::Prepare => assert_eq!(self.devices[device].target, Target::None, "a target is opened over another one"),
                    _ => assert_eq!(self.devices[device].target, Target::Open { usable: true }, "{step:?} without a target"),
                }
            }
            Request::Joint(joint) => {
                assert!(self.running.is_empty(), "{joint:?} while devices take steps");
                match joint {
                    Joint::Quiesce(_) => assert!(!self.closed, "a closed gate is closed"),
                    Joint::AtRest => assert!(self.closed && self.protocol.parking.before),
                    Joint::PeerAccess => assert!(self.closed && self.idle && self.devices.iter().all(|device| device.proved)),
                    Joint::Commit => {
                        assert!(!self.protocol.parking.copies, "a copy is committed");
                        assert!(self.closed && self.idle, "a commit while the job runs");
                        assert!(
                            self.devices.iter().all(|device| device.proved && device.verified),
                            "a commit of what was not compared"
                        );
                    }
                    Joint::PeerAccessAhead => {
                        assert!(!self.closed, "calls wait for what need not be done then");
                        assert!(self.devices.iter().all(|device| device.target == Target::Open { usable: true }));
                    }
                    Joint::Sound | Joint::Sharing | Joint::Weigh => {}
                }
            }
        }
    }

    /// Every way in which a step can end.
    fn outcomes(&self, request: Request) -> Vec<Result<Report<Why>, Failed<Why>>> {
        let failed = |unfit| Err(Failed { why: Why::Step, unfit });
        let mut all = match request {
            Request::Device(_, Step::Copy) => {
                let copied = |bytes| Ok(Report::Copied { bytes, took: Duration::from_secs(1) });
                vec![copied(SMALL_ROUND), copied(SMALL_ROUND + 1)]
            }
            Request::Joint(Joint::Weigh) => {
                let weights = [(0, 0), (0, 1), (1, 0)].map(|(makings, bytes)| Weight { makings, bytes });
                let one = |first: Weight| match self.devices.len() {
                    1 => vec![vec![first]],
                    _ => weights.iter().map(|second| vec![first, *second]).collect(),
                };
                weights.into_iter().flat_map(one).map(|tails| Ok(Report::Tails(tails))).collect()
            }
            Request::Joint(Joint::Quiesce(_)) => {
                let busy = |function| Ok(Report::Busy { function, why: Why::Busy });
                // The mover ends a patient move with a failure.
                let over = self.protocol.patient && self.tries == 0;
                if over { vec![Ok(Report::Done)] } else { vec![Ok(Report::Done), busy(false), busy(true)] }
            }
            _ => vec![Ok(Report::Done)],
        };
        all.push(failed(false));
        if matches!(request, Request::Device(..)) {
            all.push(failed(true));
        }
        all
    }

    /// The move is to be abandoned: what its steps wait for is interrupted.
    fn stop(&mut self) {
        (self.stopped, self.failed) = (true, true);
        self.devices.iter_mut().for_each(|device| device.interrupted = true);
    }

    /// A step ends.
    fn answer(&mut self, at: usize, result: Result<Report<Why>, Failed<Why>>, mistake: Mistake) {
        let (ticket, request) = self.running.remove(at);
        let (ok, mut answer) = (matches!(result, Ok(Report::Done)), result);
        self.tries -= usize::from(self.protocol.patient && matches!(answer, Ok(Report::Busy { .. })));
        match request {
            Request::Device(device, Step::Prepare) => self.devices[device].target = Target::Open { usable: ok },
            Request::Device(device, Step::Delta) => self.devices[device].proved = ok,
            Request::Device(device, Step::Verify) => self.devices[device].verified = ok,
            Request::Joint(Joint::Quiesce(_) | Joint::AtRest) => self.idle = ok,
            Request::Joint(Joint::Commit) if ok => {
                self.committed = true;
                self.devices.iter_mut().for_each(|device| device.target = Target::Executes);
                if mistake == Mistake::FailsAfterTheCommit {
                    answer = Err(Failed { why: Why::Step, unfit: false });
                }
            }
            _ => {}
        }
        match (mistake, request) {
            (Mistake::ForgetsTheFailureOfALaterDevice, Request::Device(1, _)) if answer.is_err() => answer = Ok(Report::Done),
            (Mistake::CommitsWhatIsNotCompared, Request::Device(_, Step::ReplayDeferred))
                if ok && self.protocol.running.len() == 1 =>
            {
                self.protocol.stage = Stage::Verify;
            }
            _ => {}
        }
        self.failed |= answer.is_err();
        self.protocol.handle(Event::Answer(ticket, answer));
        if mistake == Mistake::ReopensWithoutBound {
            (self.protocol.reopenings, self.protocol.catch_ups) = (1, 1);
        }
    }

    /// An answer to a request that is not outstanding: of a target that was abandoned, or a second one.
    fn check_late_answers(&self, mistake: Mistake) {
        let is_late = |ticket: &Ticket| !self.running.iter().any(|(running, _)| running == ticket);
        let mut protocol = self.protocol.clone();
        for ticket in (0..=self.protocol.next).rev().map(Ticket).filter(is_late).take(3) {
            for result in [Ok(Report::Done), Err(Failed { why: Why::Step, unfit: true })] {
                let ticket = match (mistake, &protocol.running[..]) {
                    (Mistake::BelievesLateAnswers, [(running, _), ..]) => *running,
                    _ => ticket,
                };
                protocol.handle(Event::Answer(ticket, result));
                assert_eq!(protocol, self.protocol, "a late answer changes something");
            }
        }
    }
}

/// Explores everything that can follow a state.
fn explore(world: &World, mistake: Mistake, seen: &mut FxHashMap<World, Option<Longest>>) -> Longest {
    if world.over.is_some() {
        let mut protocol = world.protocol.clone();
        protocol.handle(Event::Stop(Why::Stopped));
        assert_eq!(protocol, world.protocol, "a request to stop comes after the end");
        world.check_late_answers(mistake);
        return Longest::default();
    }
    let key = world.key();
    match seen.get(&key) {
        Some(Some(known)) => return *known,
        Some(None) => panic!("a move goes on for ever"),
        None => {}
    }
    seen.insert(key.clone(), None);
    world.check_late_answers(mistake);
    let mut longest = Longest::default();
    let mut follow = |mut next: World| {
        let closings = next.go_on(mistake);
        let then = explore(&next, mistake, seen);
        longest.closings = longest.closings.max(closings + then.closings);
        longest.answers = longest.answers.max(1 + then.answers);
    };
    if !world.stopped {
        let mut next = world.clone();
        next.stop();
        next.protocol.handle(Event::Stop(Why::Stopped));
        follow(next);
    }
    for (at, (_, request)) in world.running.iter().enumerate() {
        for result in world.outcomes(*request) {
            let mut next = world.clone();
            next.answer(at, result, mistake);
            follow(next);
        }
    }
    seen.insert(key, Some(longest));
    longest
}

/// Explores all runs of a move. Returns the number of states and what the longest runs have.
fn run(devices: usize, patient: bool, parking: Parking, mistake: Mistake) -> Result<(usize, Longest), String> {
    // One frame for each answer of a run.
    let explored = std::thread::Builder::new().stack_size(256 << 20).spawn(move || {
        let (mut seen, mut world) = (FxHashMap::default(), World::new(devices, patient, parking));
        world.go_on(mistake);
        let longest = explore(&world, mistake, &mut seen);
        (seen.len(), longest)
    });
    explored.unwrap().join().map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned()),
    })
}

#[test]
fn every_run_ends_with_the_job_at_one_place_and_the_gate_open() {
    for (devices, at_least) in [(1, 1000), (2, 10_000)] {
        let since = std::time::Instant::now();
        let (states, longest) = run(devices, false, Parking::default(), Mistake::None).unwrap();
        println!("{devices} devices: {states} states, {longest:?}, {:?}", since.elapsed());
        assert!(states > at_least, "{states} states of {devices} devices");
        // Twice: a move can begin again with a helper.
        let attempts = QUIESCE.len() + FUNCTION_MS.len();
        assert_eq!(longest.closings, 2 * (REOPENINGS as usize + 1) * attempts);
    }
}

#[test]
fn every_run_of_a_patient_move_ends_too() {
    for (devices, at_least) in [(1, 1000), (2, 10_000)] {
        let (states, longest) = run(devices, true, Parking::default(), Mistake::None).unwrap();
        assert!(states > at_least, "{states} states of {devices} devices");
        assert!(longest.closings > TRIES, "{longest:?}");
    }
}

/// What a job can do that is parked, or is to be.
const PARKINGS: [Parking; 3] = [
    Parking { before: false, after: true, copies: false },
    Parking { before: true, after: false, copies: false },
    Parking { before: true, after: true, copies: false },
];
/// A copy is made of a job that runs.
const COPIES: Parking = Parking { before: false, after: false, copies: true };

#[test]
fn every_run_that_copies_a_job_leaves_it_where_it_was() {
    // Copies are patient.
    let others: &[(usize, bool)] = bound(&[], &[(2, false)]);
    for &(devices, patient) in [(1, false), (1, true), (2, true)].iter().chain(others) {
        let (states, longest) = run(devices, patient, COPIES, Mistake::None).unwrap();
        println!("{devices} devices, patient {patient}: {states} states, {longest:?}");
        assert!(states > 50, "{states} states of {devices} devices");
    }
}

#[test]
fn every_run_that_parks_a_job_or_lets_it_go_on_leaves_the_gate_as_it_must_be() {
    for (parking, devices) in PARKINGS.into_iter().flat_map(|parking| [(parking, 1), (parking, 2)]) {
        let (states, longest) = run(devices, false, parking, Mistake::None).unwrap();
        println!("{parking:?}, {devices} devices: {states} states, {longest:?}");
        assert!(states > 50, "{states} states of {devices} devices");
        assert_eq!(longest.closings == 0, parking.before, "a gate that is closed is not closed again");
    }
}

#[test]
fn the_model_finds_mistakes_about_parked_jobs() {
    let wrong: Vec<String> = [
        (PARKINGS[0], Mistake::OpensTheGateOfAParkedJob, "the gate of a parked job is opened"),
        (PARKINGS[1], Mistake::OpensTheGateOfAParkedJob, "the gate of a parked job is opened"),
        (PARKINGS[0], Mistake::LetsAParkedJobGoOn, "a source is released before"),
        (PARKINGS[1], Mistake::LetsAParkedJobGoOn, "in the wrong state at the end"),
        (PARKINGS[1], Mistake::ReleasesSourcesOnFailure, "a source is released before the commit"),
        (PARKINGS[1], Mistake::CommitsWhatIsNotCompared, "a commit of what was not compared"),
        (COPIES, Mistake::CommitsWhatIsNotCompared, "a committed move fails, or another one succeeds"),
        (COPIES, Mistake::LeavesTheGateClosed, "or calls wait"),
    ]
    .into_iter()
    .filter_map(|(parking, mistake, found)| match run(2, false, parking, mistake) {
        Err(why) if why.contains(found) => None,
        other => Some(format!("{parking:?} {mistake:?}: {other:?}")),
    })
    .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_model_finds_mistakes() {
    let wrong: Vec<String> = [
        (Mistake::LeavesTheGateClosed, "or calls wait"),
        (Mistake::ForgetsTheFailureOfALaterDevice, "a commit of what was not compared"),
        (Mistake::ReleasesSourcesOnFailure, "a source is released before the commit"),
        (Mistake::ReleasesTwice, "a target is released twice"),
        (Mistake::RestartsWithoutRelease, "a target is open when a device begins again"),
        (Mistake::BelievesLateAnswers, "a late answer changes something"),
        (Mistake::ReopensWithoutBound, "a move goes on for ever"),
        (Mistake::FailsAfterTheCommit, "the place of the job is released"),
        (Mistake::CommitsWhatIsNotCompared, "a commit of what was not compared"),
        (Mistake::WaitsForTheOtherLegs, "a step goes on after a failure"),
    ]
    .into_iter()
    .filter_map(|(mistake, found)| match run(2, false, Parking::default(), mistake) {
        Err(why) if why.contains(found) => None,
        other => Some(format!("{mistake:?}: {other:?}")),
    })
    .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
