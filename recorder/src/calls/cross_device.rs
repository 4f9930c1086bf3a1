//! Work of a stream that concerns another device: waits for its events, copies between GPUs, or between another GPU and the host; and
//! work that the job does itself in the order of a stream of this process's driver.
//!
//! The places of a job do not communicate with each other. So the stream is held at its place; one recorder thread detects when the other
//! device has got there, transfers the bytes if it is a copy, and releases the stream. It works outside the gate, also while the gate is
//! closed; a move waits until nothing concerns its devices any more (docs/execution.md, "Several GPUs").

use crate::base::encoding::encode;
use crate::base::spawn;
use crate::calls::copy::rect::{self, Rect};
use crate::device_memory::peer;
use crate::enter::CallContext;
use crate::host_memory;
use crate::job::Device;
use crate::order::concerned::{Concern, concerns};
use crate::place::{Place, Waiting};
use cuda_api::arg::LEGACY;
use cuda_api::array::{CopyBox, HOST};
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyIn, CopyOut, HOLD, LANE, StreamHold, id};
use cuda_api::work::{Copy3, CopyEnd};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod direct;
mod link;
pub(crate) use link::leave;

/// Poll intervals for what streams wait for.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(500);

/// A held stream, and what must precede its continuation.
struct Item<L: Lane> {
    /// The place where it is held.
    holder: L,
    /// `None` if the stream is not held: what is waited for is work of its own.
    token: Option<u64>,
    /// The answer to the hold. `None` once it has arrived, or if [`Item::ahead`] is the same.
    hold: Option<L::Answer>,
    /// The answer that is waited for: the other device's event, or the stream itself. `None` once it has arrived.
    ahead: Option<L::Answer>,
    /// The call that requested it.
    asked: u16,
    /// The place that answers it.
    other: L,
    then: Option<Then<L>>,
    /// `None` once it is over.
    concern: Option<Concern>,
    outcome: Outcome,
}

/// The result, once the stream was released or nothing holds it any more; [`PENDING`] before.
type Outcome = Arc<AtomicI32>;
const PENDING: Code = Code::MIN;

/// What is done before the stream is released.
enum Then<L: Lane> {
    Carry(Carry<L>),
    /// Work in host memory.
    Own(Box<dyn FnOnce(Result<(), Code>) + Send>),
}

/// A part of a copy that is made at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    Rows(Rect),
    /// With an array at one end or both: rows of one slice, as [`rect::plain`] describes them.
    Box(Copy3),
}

/// An end of a copy.
enum End {
    Gpu(&'static Device, Place),
    /// Pinned memory of the job.
    Host,
}

impl End {
    fn device(&self) -> Option<&'static Device> {
        if let End::Gpu(device, _) = self { Some(device) } else { None }
    }
}

/// The operations that a copy between devices needs of its ends.
trait Lane {
    type Answer: Answer;
    type Shortcut: Shortcut;
    /// Requests the bytes of a piece.
    fn read(&self, piece: &Piece) -> Result<Self::Answer, Code>;
    /// Sends the bytes of a piece.
    fn write(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Code>;
    /// Requests an answer that arrives when everything is written.
    fn settle(&self) -> Result<Self::Answer, Code>;
    /// Releases a stream that is held here. A lost place holds nothing.
    fn let_go(&self, token: u64);
    /// Records an error of a call; returns false if the end is the host.
    fn failed(&self, call: u16, rc: Code) -> bool;
}

/// A way of a copy past the job.
trait Shortcut {
    /// Makes all possible progress; returns whether the copy has been made, once that is known.
    fn go_on(&mut self) -> Option<bool>;
}

impl Shortcut for link::Shortcut {
    fn go_on(&mut self) -> Option<bool> {
        link::Shortcut::go_on(self)
    }
}

/// An answer that is under way.
trait Answer {
    fn is_done(&mut self) -> bool;
    fn finish(self) -> (Code, Vec<u8>);
}

impl Answer for Waiting {
    fn is_done(&mut self) -> bool {
        Waiting::is_done(self)
    }

    fn finish(self) -> (Code, Vec<u8>) {
        Waiting::finish(self)
    }
}

impl Lane for End {
    type Answer = Waiting;
    type Shortcut = link::Shortcut;

    fn read(&self, piece: &Piece) -> Result<Waiting, Code> {
        match (self, *piece) {
            (End::Host, Piece::Rows(r)) => Ok(Waiting::Done(code::SUCCESS, r.source().read())),
            (End::Host, Piece::Box(c)) => Ok(Waiting::Done(code::SUCCESS, rect::source_rows(&c).read())),
            (End::Gpu(_, place), Piece::Rows(r)) => {
                let op = CopyOut { src: r.src.address, pitch: r.src.pitch, width: r.width, rows: r.rows, stream: LANE };
                place.begin(id::COPY_OUT, &[&encode(&op)])
            }
            (End::Gpu(_, place), Piece::Box(c)) => {
                let op = CopyBox { copy: Copy3 { dst: PACKED, ..c }, stream: LANE };
                place.begin(id::COPY_BOX_OUT, &[&encode(&op)])
            }
        }
    }

    fn write(&self, piece: &Piece, bytes: &[u8]) -> Result<(), Code> {
        let (width, rows) = match piece {
            Piece::Rows(r) => (r.width, r.rows),
            Piece::Box(c) => (c.width, c.rows),
        };
        if bytes.len() as u64 != width * rows {
            return Err(code::ERROR_UNKNOWN);
        }
        if let End::Gpu(_, place) = self {
            place.pin_named(bytes);
        }
        match (self, *piece) {
            (End::Host, Piece::Rows(r)) => r.destination().write(bytes),
            (End::Host, Piece::Box(c)) => rect::destination_rows(&c).write(bytes),
            (End::Gpu(_, place), Piece::Rows(r)) => {
                let op = CopyIn { dst: r.dst.address, pitch: r.dst.pitch, width, rows, stream: LANE };
                place.send(id::COPY_IN, &[&encode(&op), bytes])?;
            }
            (End::Gpu(_, place), Piece::Box(c)) => {
                let op = CopyBox { copy: Copy3 { src: PACKED, ..c }, stream: LANE };
                place.send(id::COPY_BOX_IN, &[&encode(&op), bytes])?;
            }
        }
        Ok(())
    }

    fn settle(&self) -> Result<Waiting, Code> {
        match self {
            End::Gpu(_, place) => place.begin(id::STREAM_SYNC, &[&LANE.to_le_bytes()]),
            End::Host => Ok(Waiting::Done(code::SUCCESS, Vec::new())),
        }
    }

    fn let_go(&self, token: u64) {
        if let End::Gpu(_, place) = self {
            let _ = place.send(id::HOST_DONE, &[&token.to_le_bytes()]);
        }
    }

    fn failed(&self, call: u16, rc: Code) -> bool {
        self.device().inspect(|d| d.failed_late(call, rc)).is_some()
    }
}

/// A copy between devices, or between a device and the host. Each piece progresses as soon as possible; nothing blocks here, since one
/// copy may wait for the same thread to release another stream.
struct Carry<L: Lane> {
    from: L,
    to: L,
    /// Pieces that were not requested yet.
    pieces: VecDeque<Piece>,
    /// Pieces that were requested, in order: the next piece is read while one is written.
    reading: VecDeque<(Piece, L::Answer)>,
    /// Everything was sent; the answer shows that it is written.
    settling: Option<L::Answer>,
    failed: Option<Code>,
    /// Another way for all of it, which is tried first.
    shortcut: Option<L::Shortcut>,
}

/// Number of pieces that are read at a time.
const READ_AHEAD: usize = 2;

/// The end of a box whose bytes travel with the operation.
const PACKED: CopyEnd = CopyEnd { memory: HOST, host: 0, device: 0, array: 0, x: 0, y: 0, z: 0, lod: 0, pitch: 0, height: 0 };

/// Waits outside the gate until nothing concerns a device, so that its memory may be freed.
pub(crate) fn settle(cx: &CallContext, device: &'static Device) {
    if concerns(device) {
        cx.pass.outside(|| {
            while concerns(device) {
                std::thread::sleep(LONGEST);
            }
        });
    }
}

impl<L: Lane> Item<L> {
    /// Makes all possible progress; returns whether the stream was released. An error is recorded at the device where it occurred.
    fn go_on(&mut self) -> bool {
        if let Some(hold) = &mut self.hold {
            if !hold.is_done() {
                return false;
            }
            if let Some(Err(rc)) = self.hold.take().map(settled) {
                // The hold was refused: nothing is carried out in the order of the stream, and there is nothing to release.
                self.holder.failed(id::STREAM_HOLD, rc);
                self.end(rc);
                return true;
            }
        }
        let (mut is_held, mut outcome) = (true, code::SUCCESS);
        if let Some(ahead) = &mut self.ahead {
            if !ahead.is_done() {
                return false;
            }
            let rc = self.ahead.take().map_or(code::SUCCESS, |ahead| ahead.finish().0);
            if rc != code::SUCCESS {
                self.other.failed(self.asked, rc);
                // This call holds the stream itself, unless the place has refused it.
                is_held = self.asked != id::HOST_CALL || code::is_sticky(rc);
                outcome = rc;
            }
            match self.then.take() {
                Some(Then::Own(work)) => work(if rc == code::SUCCESS { Ok(()) } else { Err(rc) }),
                carry if rc == code::SUCCESS => self.then = carry,
                _ => {}
            }
        }
        if let Some(Then::Carry(carry)) = &mut self.then {
            if !carry.go_on() {
                return false;
            }
            outcome = carry.failed.unwrap_or(outcome);
        }
        if let Some(token) = self.token.filter(|_| is_held) {
            self.holder.let_go(token);
        }
        self.end(outcome);
        true
    }

    fn end(&mut self, outcome: Code) {
        self.concern = None;
        self.outcome.store(outcome, Ordering::Release);
    }
}

impl<L: Lane> Drop for Item<L> {
    /// If the thread has ended by a panic, no other thread must wait for it.
    fn drop(&mut self) {
        if self.outcome.load(Ordering::Acquire) == PENDING {
            self.end(code::ERROR_UNKNOWN);
        }
    }
}

impl<L: Lane> Carry<L> {
    fn new(from: L, to: L, pieces: impl IntoIterator<Item = Piece>) -> Carry<L> {
        Carry {
            from,
            to,
            pieces: pieces.into_iter().collect(),
            reading: VecDeque::new(),
            settling: None,
            failed: None,
            shortcut: None,
        }
    }

    fn past_the_job(self, shortcut: Option<L::Shortcut>) -> Carry<L> {
        Carry { shortcut, ..self }
    }

    /// Makes all possible progress without waiting; returns whether the copy is over, also by an error.
    fn go_on(&mut self) -> bool {
        match self.try_to_go_on() {
            Ok(is_over) => is_over,
            Err((end, call, rc)) => {
                // An error at the host's end is recorded at the other end, which sent the bytes.
                if !end.failed(call, rc) {
                    self.from.failed(call, rc);
                }
                self.failed = Some(rc);
                true
            }
        }
    }

    fn try_to_go_on(&mut self) -> Result<bool, (&L, u16, Code)> {
        if let Some(shortcut) = &mut self.shortcut {
            match shortcut.go_on() {
                None => return Ok(false),
                Some(true) => return Ok(true),
                // Nothing has changed its source: the stream is held.
                Some(false) => self.shortcut = None,
            }
        }
        loop {
            while self.reading.len() < READ_AHEAD
                && let Some(piece) = self.pieces.pop_front()
            {
                let answer = self.from.read(&piece).map_err(|rc| (&self.from, id::COPY_OUT, rc))?;
                self.reading.push_back((piece, answer));
            }
            if let Some((_, answer)) = self.reading.front_mut() {
                if !answer.is_done() {
                    return Ok(false);
                }
                let Some((piece, answer)) = self.reading.pop_front() else { continue };
                let bytes = settled(answer).map_err(|rc| (&self.from, id::COPY_OUT, rc))?;
                self.to.write(&piece, &bytes).map_err(|rc| (&self.to, id::COPY_IN, rc))?;
                continue;
            }
            let Some(mut answer) = self.settling.take() else {
                self.settling = Some(self.to.settle().map_err(|rc| (&self.to, id::STREAM_SYNC, rc))?);
                continue;
            };
            if !answer.is_done() {
                self.settling = Some(answer);
                return Ok(false);
            }
            return settled(answer).map(|_| true).map_err(|rc| (&self.to, id::STREAM_SYNC, rc));
        }
    }
}

/// The bytes of an answer that has arrived, or its error.
fn settled(answer: impl Answer) -> Result<Vec<u8>, Code> {
    match answer.finish() {
        (code::SUCCESS, bytes) => Ok(bytes),
        (rc, _) => Err(rc),
    }
}

/// The thread that releases held streams.
fn attend(arrivals: &Receiver<Item<End>>) {
    let mut items: Vec<Item<End>> = Vec::new();
    let mut pause = SHORTEST;
    loop {
        if items.is_empty() {
            let Ok(item) = arrivals.recv() else { return };
            items.push(item);
        }
        loop {
            match arrivals.try_recv() {
                Ok(item) => items.push(item),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let before = items.len();
        items.retain_mut(|item| !item.go_on());
        if items.len() == before {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        } else {
            pause = SHORTEST;
        }
    }
}

fn thread() -> Result<&'static Sender<Item<End>>, Code> {
    static THREAD: OnceLock<Option<Sender<Item<End>>>> = OnceLock::new();
    let start = || {
        let (sender, arrivals) = channel();
        let started = spawn::spawn("mrcuda-across", move || attend(&arrivals));
        started
            .inspect_err(|e| tracing::warn!(target: "job", "cannot start a thread for work of several GPUs: {e}"))
            .ok()
            .map(|()| sender)
    };
    THREAD.get_or_init(start).as_ref().ok_or(code::ERROR_OPERATING_SYSTEM)
}

/// Holds a stream until `ahead` has arrived and `then` is done.
fn hold(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    (asked, ahead): (u16, Waiting),
    other: &'static Device,
    then: Option<Carry<End>>,
) -> Result<Outcome, Code> {
    let (thread, outcome) = (thread()?, pending());
    let token = token();
    device.check()?;
    let ends = then.iter().flat_map(|carry| [&carry.from, &carry.to]).filter_map(End::device);
    let concern = Concern::begin(ends.chain([device, other]).map(|d| d.index), then.is_some());
    let hold = device.record_error(cx.place(device).begin(id::STREAM_HOLD, &[&encode(&StreamHold { token, stream })]))?;
    let gpu = |d: &'static Device| End::Gpu(d, cx.place(d).clone());
    let (holder, other, then) = (gpu(device), gpu(other), then.map(Then::Carry));
    let (hold, ahead, concern, shown) = (Some(hold), Some(ahead), Some(concern), outcome.clone());
    attend_to(thread, Item { holder, token: Some(token), hold, ahead, asked, other, then, concern, outcome: shown })?;
    Ok(outcome)
}

fn pending() -> Outcome {
    Arc::new(AtomicI32::new(PENDING))
}

/// A unique token for a held stream.
pub(crate) fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    HOLD | NEXT.fetch_add(1, Ordering::Relaxed)
}

fn attend_to(thread: &Sender<Item<End>>, item: Item<End>) -> Result<(), Code> {
    // The thread lives as long as the process.
    thread.send(item).map_err(|_| code::ERROR_OPERATING_SYSTEM)
}

/// Carries out work in the order of a stream of this process's driver, which is held meanwhile; `begin` requests the hold from the place
/// with a token. The work is passed whether the stream got there.
pub(crate) fn in_order(
    cx: &CallContext,
    device: &'static Device,
    begin: impl FnOnce(&Place) -> Result<Waiting, Code>,
    token: u64,
    work: Box<dyn FnOnce(Result<(), Code>) + Send>,
) -> Result<(), Code> {
    let thread = thread()?;
    let place = cx.place(device);
    let concern = Concern::begin([device.index], true);
    let ahead = device.record_error(begin(place))?;
    if let Waiting::Done(rc, _) = &ahead
        && *rc != code::SUCCESS
    {
        device.note(*rc);
        return Err(*rc);
    }
    let (holder, other) = (End::Gpu(device, place.clone()), End::Gpu(device, place.clone()));
    let (asked, then) = (id::HOST_CALL, Some(Then::Own(work)));
    let (concern, outcome) = (Some(concern), pending());
    attend_to(thread, Item { holder, token: Some(token), hold: None, ahead: Some(ahead), asked, other, then, concern, outcome })
}

/// Makes a stream wait for the last record of an event of another device.
pub(crate) fn wait_event(
    cx: &CallContext,
    device: &'static Device,
    stream: u64,
    event: u64,
    other: &'static Device,
) -> Result<(), Code> {
    device.check()?;
    other.check()?;
    let data = &cx.job.tables.events.get(event)?.data;
    // An event that was never recorded, or in an earlier place, needs no wait.
    if data.epoch.load(Ordering::Acquire) != other.epoch.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut ahead = other.record_error(cx.place(other).begin(id::EVENT_REACHED, &[&event.to_le_bytes()]))?;
    if ahead.is_done() {
        let (rc, _) = ahead.finish();
        other.note(rc);
        return if rc == code::SUCCESS { Ok(()) } else { Err(rc) };
    }
    hold(cx, (device, stream), (id::EVENT_REACHED, ahead), other, None).map(drop)
}

/// Copies in stream order, between devices or, where none is given, pinned host memory. Both ranges have been checked.
pub(crate) fn carry(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    (from, to): (Option<&'static Device>, Option<&'static Device>),
    rect: Rect,
) -> Result<Outcome, Code> {
    [Some(device), from, to].into_iter().flatten().try_for_each(Device::check)?;
    let shortcut = match (from, to) {
        (Some(from), Some(to)) if host_memory::may_pass(cx, from, to) => {
            // Of what the job has found in the first place's memory.
            host_memory::note_found(cx)?;
            link::shortcut(cx, (from, to), rect)
        }
        _ => None,
    };
    let pieces = rect.pieces().into_iter().map(Piece::Rows);
    carry_pieces(cx, (device, stream), Carry::new(end(cx, from), end(cx, to), pieces).past_the_job(shortcut))
}

/// The same for a copy with an array at one end or both, given by its parts, which have been checked.
pub(crate) fn carry_boxes(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    (from, to): (Option<&'static Device>, Option<&'static Device>),
    boxes: Vec<Copy3>,
) -> Result<Outcome, Code> {
    [Some(device), from, to].into_iter().flatten().try_for_each(Device::check)?;
    carry_pieces(cx, (device, stream), Carry::new(end(cx, from), end(cx, to), boxes.into_iter().map(Piece::Box)))
}

fn end(cx: &CallContext, device: Option<&'static Device>) -> End {
    device.map_or(End::Host, |d| End::Gpu(d, cx.place(d).clone()))
}

fn carry_pieces(cx: &CallContext, (device, stream): (&'static Device, u64), carry: Carry<End>) -> Result<Outcome, Code> {
    let ahead = device.record_error(cx.place(device).begin(id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
    hold(cx, (device, stream), (id::STREAM_SYNC, ahead), device, Some(carry))
}

/// Ends a copy that the device makes by itself when its stream has passed it.
fn follow(cx: &CallContext, (device, stream): (&'static Device, u64), crossing: direct::Crossing) -> Result<(), Code> {
    let thread = thread()?;
    let concern = Some(Concern::begin([device.index], false));
    let ahead = device.record_error(cx.place(device).begin(id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
    let gpu = || End::Gpu(device, cx.place(device).clone());
    let then = Some(Then::Own(Box::new(move |_| drop(crossing))));
    let (hold, ahead, asked) = (None, Some(ahead), id::STREAM_SYNC);
    attend_to(thread, Item { holder: gpu(), token: None, hold, ahead, asked, other: gpu(), then, concern, outcome: pending() })
}

/// A copy whose ends are not both on the stream's device. Both ranges have been checked.
pub(crate) fn copy(
    cx: &mut CallContext,
    (device, stream): (&'static Device, u64),
    (from, to): (&'static Device, &'static Device),
    rect: Rect,
    wait: bool,
) -> Result<(), Code> {
    for d in [device, from, to] {
        d.check()?;
    }
    if stream == LEGACY {
        // It begins when all earlier work on both devices is complete (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy").
        cx.settle(from)?;
        cx.settle(to)?;
    }
    if stream == LEGACY && peer::reaches(device, from) && peer::reaches(device, to) {
        crate::calls::copy::sending::copy_device(cx, device, true, rect, stream)?;
        return cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes()).map(drop);
    }
    // What follows it must exist before it is submitted.
    thread()?;
    if let Some((crossing, submitted)) = direct::submit(cx, (device, stream), (from, to), rect)? {
        // Also if this thread waits: it may have to wait at the gate afterwards, and a move must not wait for it.
        follow(cx, (device, stream), crossing)?;
        submitted?;
        if !wait && stream != LEGACY {
            return Ok(());
        }
        cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes())?;
        return [device, from, to].into_iter().try_for_each(Device::check);
    }
    let outcome = carry(cx, (device, stream), (Some(from), Some(to)), rect)?;
    finish(cx, (device, stream), [from, to], &outcome, wait)
}

/// As [`copy`], with an array at one end or both.
pub(crate) fn copy_boxes(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    (from, to): (&'static Device, &'static Device),
    boxes: Vec<Copy3>,
    wait: bool,
) -> Result<(), Code> {
    if stream == LEGACY {
        cx.settle(from)?;
        cx.settle(to)?;
    }
    let outcome = carry_boxes(cx, (device, stream), (Some(from), Some(to)), boxes)?;
    finish(cx, (device, stream), [from, to], &outcome, wait)
}

/// Waits for a copy that has been submitted, if the caller does, or later work of the default stream would.
fn finish(
    cx: &CallContext,
    (device, stream): (&'static Device, u64),
    [from, to]: [&'static Device; 2],
    outcome: &Outcome,
    wait: bool,
) -> Result<(), Code> {
    // Nor does later work on either device begin before it is complete.
    if !wait && stream != LEGACY {
        return Ok(());
    }
    cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes())?;
    // For a stream that could not be held, the wait was useless. Nearly always everything is complete by now.
    let is_over = || outcome.load(Ordering::Acquire) != PENDING;
    if !is_over() {
        cx.pass.outside(|| {
            while !is_over() {
                std::thread::sleep(SHORTEST);
            }
        });
    }
    // A failure is returned here, and not by a later call; another thread's call may also have returned it.
    let checked = [device, from, to].into_iter().try_for_each(Device::check);
    match outcome.load(Ordering::Acquire) {
        code::SUCCESS => checked,
        rc => Err(rc),
    }
}

#[cfg(test)]
mod tests;
