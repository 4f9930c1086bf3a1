//! One device's part of a move.

use super::compare::compare;
use super::times::{keep_event_times, reference_ms};
use super::wires::Wires;
use super::{Moving, Report, unexpected};
use crate::gate::Closed;
use crate::job::{Device, Job};
use crate::log::lock;
use crate::place::{Place, Spec, Waiting};
use cuda_api::code::Code;
use journal::OwnedRecord;
use rcuda_forwarder::{Control, ControlReply};
use replayer::replay::{Record, Sink, replay};
use std::collections::VecDeque;
use std::time::Instant;

/// Records on their way to the target at a time.
pub(super) const WINDOW: usize = 256;
/// Pre-copy ends when a round has sent no more than this...
const SMALL_ROUND: u64 = 64 << 20;
/// ... or after this many rounds.
const ROUNDS: usize = 3;
/// Memory of the target that is left free beside the job's.
const HEADROOM: u64 = 64 << 20;

/// A device on its way. What it has opened is closed again when it is dropped, unless it has committed.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) device: &'static Device,
    pub(super) from: Spec,
    pub(super) to: Spec,
    pub(super) source: Place,
    pub(super) report: Report,
    wires: Option<Wires>,
    target: Option<Place>,
    /// When the target's reference event happened, on the job's clock.
    target_clock: f64,
}

impl Leg {
    pub(super) fn new(device: &'static Device, source: &Place, to: Spec) -> Leg {
        Leg {
            device,
            from: source.spec(),
            to,
            source: source.clone(),
            report: Report::default(),
            wires: None,
            target: None,
            target_clock: 0.0,
        }
    }

    /// Notes how long a phase took.
    pub(super) fn note(&mut self, name: &'static str, since: Instant) {
        self.report.phases.push((name, since.elapsed().as_secs_f64() * 1e3));
    }

    fn phase(&mut self, name: &'static str, run: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let since = Instant::now();
        let r = run(self);
        self.note(name, since);
        r.map_err(|why| if why.starts_with("cannot") { why } else { format!("{name}: {why}") })
    }

    fn target(&self) -> Result<&Place, String> {
        self.target.as_ref().ok_or_else(|| "cannot move: the target is not open".to_owned())
    }

    /// What can be known before anything is opened.
    pub(super) fn check_source(&mut self, job: &Job) -> Result<(), String> {
        self.phase("plan", |leg| {
            let device = leg.device;
            leg.report.live_objects = job.live(device.index).values().sum();
            leg.report.total_bytes = device.memory().used();
            leg.report.records = job.records(device.index);
            if device.sticky() != 0 {
                return Err(format!("cannot move: the context has failed with error {}", device.sticky()));
            }
            if let (Place::Local { .. }, Spec::Local(_)) = (&leg.source, &leg.to) {
                return Err("cannot move: two GPUs of this machine need a helper process, which is not there yet".into());
            }
            Ok(())
        })
    }

    /// Opens the target and asks whether it can hold the device.
    pub(super) fn prepare(&mut self) -> Result<(), String> {
        self.phase("prepare", |leg| {
            leg.target = Some(Place::open(&leg.to, leg.device.index)?);
            check_target(leg.device, leg.target()?)
        })
    }

    /// Feeds the live journal to the target.
    pub(super) fn replay(&mut self, job: &Job) -> Result<(), String> {
        self.phase("replay", |leg| {
            let live = lock(&leg.device.ledger).begin_move()?;
            leg.report.records = live.len() as u64;
            replay_to(leg.target()?, &live)?;
            leg.target_clock = reference_ms(job, leg.device, leg.target()?)?;
            Ok(())
        })
    }

    /// Makes the connections for the bytes.
    pub(super) fn connect(&mut self) -> Result<(), String> {
        self.phase("connect", |leg| {
            leg.wires = Some(Wires::connect(&leg.source, leg.target()?)?);
            Ok(())
        })
    }

    /// Copies while the job works.
    pub(super) fn precopy(&mut self) -> Result<(), String> {
        self.phase("precopy", |leg| {
            for _ in 0..ROUNDS {
                let sent = leg.round(false)?;
                if sent <= SMALL_ROUND {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Brings the target to the journal's end and makes a round. Gives the bytes that travelled.
    fn round(&mut self, verify: bool) -> Result<u64, String> {
        let tail = lock(&self.device.ledger).take_tail();
        replay_to(self.target()?, &tail)?;
        let wires = self.wires.as_ref().ok_or("cannot move: the places are not connected")?;
        let round = wires.round(verify)?;
        self.report.bytes += round.bytes_sent;
        if verify {
            self.report.digest = crate::context::hex(&round.digest);
        }
        Ok(round.bytes_sent)
    }

    /// Copies what has changed since, on a quiet source.
    pub(super) fn delta(&mut self, job: &Job) -> Result<(), String> {
        self.phase("delta", |leg| {
            keep_event_times(job, leg.device, &leg.source)?;
            leg.round(true).map(drop)
        })
    }

    /// Whether both places hold the same at the same addresses.
    pub(super) fn verify(&mut self) -> Result<(), String> {
        self.phase("verify", |leg| compare(&leg.source, leg.target()?))
    }

    /// Makes the target the device's place. Gives the old one.
    pub(super) fn commit(&mut self, gate: &Closed, moving: &Moving) -> Option<Box<Place>> {
        let place = self.target.take()?;
        self.device.watch(&place);
        let old = self.device.commit(place, gate, moving);
        lock(&self.device.clock).reference_ms = self.target_clock;
        Some(old)
    }

    /// Closes the connections.
    pub(super) fn hang_up(&mut self) {
        self.wires = None;
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        lock(&self.device.ledger).end_move();
        self.wires = None;
        if let Some(target) = self.target.take() {
            target.release();
        }
    }
}

/// Whether the target can hold the device, with the figures.
fn check_target(device: &Device, target: &Place) -> Result<(), String> {
    let (have, want) = (target.device(), &device.info);
    if have.driver_version != want.driver_version {
        return Err(format!(
            "cannot move: the target's driver speaks CUDA {}, this job started with {}",
            version(have.driver_version),
            version(want.driver_version)
        ));
    }
    if have.capability != want.capability {
        let dot = |c: [i32; 2]| format!("{}.{}", c[0], c[1]);
        return Err(format!(
            "cannot move: the target is a {} of compute capability {}, the job's code was chosen for {}",
            have.name,
            dot(have.capability),
            dot(want.capability)
        ));
    }
    let need = device.memory().used() + HEADROOM;
    let free = match target.control(&Control::FreeBytes)? {
        ControlReply::FreeBytes(n) => n,
        other => return Err(unexpected(&other)),
    };
    if free < need {
        return Err(format!("cannot move: the job needs {} MiB, the target has {} MiB free", need >> 20, free >> 20));
    }
    Ok(())
}

fn version(v: i32) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

/// The records of a journal go to a place through this window.
struct ToPlace<'a> {
    place: &'a Place,
    waiting: VecDeque<Waiting>,
}

impl Sink for ToPlace<'_> {
    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), String> {
        let w = self.place.begin(id, &[body]).map_err(|_| "the target is gone".to_owned())?;
        self.waiting.push_back(w);
        Ok(())
    }

    fn next_result(&mut self) -> Result<(Code, Vec<u8>), String> {
        self.waiting.pop_front().map(Waiting::finish).ok_or_else(|| "no record is on its way".to_owned())
    }
}

fn replay_to(place: &Place, records: &[OwnedRecord]) -> Result<(), String> {
    let mut sink = ToPlace { place, waiting: VecDeque::new() };
    let all = records.iter().map(|r| Record { seq: r.seq, id: r.id, body: &r.body, reply: &r.reply });
    replay(all, &mut sink, WINDOW).map(drop).map_err(|d| d.to_string())
}
