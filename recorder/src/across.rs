//! What a stream does with another device: waiting for its events, copies from GPU to GPU.
//!
//! The places of a job know nothing of each other. So the stream is held in its place, one thread of ours sees when the other device
//! has got there, carries the bytes where it is a copy, and lets the stream go on. It works outside the gate, also while that is
//! closed; a move waits until nothing concerns its devices any more (docs/design.md, "Several GPUs").

use crate::control;
use crate::copy::Rect;
use crate::enter::Entered;
use crate::job::Device;
use crate::memory::encode;
use crate::place::{Place, Waiting};
use crate::{log, peer};
use cuda_api::arg::LEGACY;
use cuda_api::code::{self, Code};
use cuda_api::ops::{CopyIn, CopyOut, HOLD, LANE, StreamHold, id};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

/// Pauses between two looks at what streams wait for.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(500);

/// A held stream, and what must come before it goes on.
struct Item {
    /// Where it is.
    device: &'static Device,
    place: Place,
    token: u64,
    /// What is waited for: the other device's event, or the stream itself.
    ahead: Waiting,
    /// Who answers that.
    other: &'static Device,
    then: Option<Carry>,
}

/// A copy from device to device.
struct Carry {
    from: (&'static Device, Place),
    to: (&'static Device, Place),
    rect: Rect,
}

/// Items by the devices that they concern.
static CONCERNS: [AtomicUsize; 32] = [const { AtomicUsize::new(0) }; 32];
/// All items.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether something between this device and another is under way.
pub(crate) fn concerns(device: &Device) -> bool {
    CONCERNS[device.index as usize].load(Ordering::Acquire) != 0
}

/// Waits outside the gate until nothing concerns a device: what it has may then go away.
pub(crate) fn settle(cx: &Entered, device: &'static Device) {
    if concerns(device) {
        cx.pass.outside(|| {
            while concerns(device) {
                std::thread::sleep(LONGEST);
            }
        });
    }
}

/// Whether any stream is held.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

impl Item {
    fn devices(&self) -> Vec<u32> {
        let ends = self.then.iter().flat_map(|c| [c.from.0.index, c.to.0.index]);
        let mut all: Vec<u32> = [self.device.index, self.other.index].into_iter().chain(ends).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn count(&self, begins: bool) {
        for d in self.devices().into_iter().map(|d| &CONCERNS[d as usize]).chain([&COUNT]) {
            if begins {
                d.fetch_add(1, Ordering::AcqRel)
            } else {
                d.fetch_sub(1, Ordering::AcqRel)
            };
        }
    }

    /// What is waited for has come: carries the bytes, and lets the stream go on. Whatever fails stays with the device where it did.
    fn finish(mut self) {
        let (rc, _) = std::mem::replace(&mut self.ahead, Waiting::Done(code::SUCCESS, Vec::new())).finish();
        self.other.note(rc);
        if rc == code::SUCCESS
            && let Some(carry) = &self.then
        {
            carry.run();
        }
        // A place that is lost holds nothing.
        let _ = self.place.send(id::HOST_DONE, &[&self.token.to_le_bytes()]);
        self.count(false);
    }
}

/// An answer, or the error of the device that gave it.
fn settled(device: &Device, waiting: Result<Waiting, Code>) -> Result<Vec<u8>, Code> {
    match waiting.map(Waiting::finish) {
        Ok((code::SUCCESS, bytes)) => Ok(bytes),
        Ok((rc, _)) | Err(rc) => {
            device.note(rc);
            Err(rc)
        }
    }
}

impl Carry {
    fn run(&self) {
        let Carry { from: (from, source), to: (to, target), rect } = self;
        let read = |piece: &Rect| {
            let op =
                CopyOut { src: piece.src.address, pitch: piece.src.pitch, width: piece.width, rows: piece.rows, stream: LANE };
            source.begin(id::COPY_OUT, &[&encode(&op)])
        };
        let pieces = rect.pieces();
        let mut next = pieces.first().map(read);
        for (number, piece) in pieces.iter().enumerate() {
            let Some(waiting) = next.take() else { return };
            // The next piece is read while this one is written.
            next = pieces.get(number + 1).map(read);
            let Ok(bytes) = settled(from, waiting) else { return };
            let op =
                CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream: LANE };
            if let Err(rc) = target.send(id::COPY_IN, &[&encode(&op), &bytes]) {
                to.note(rc);
                return;
            }
        }
        // Noted where it failed.
        let _ = settled(to, target.begin(id::STREAM_SYNC, &[&LANE.to_le_bytes()]));
    }
}

/// The thread that lets held streams go on.
fn attend(arrivals: &Receiver<Item>) {
    let mut items: Vec<Item> = Vec::new();
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
        let done: Vec<Item> = items.extract_if(.., |item| item.ahead.is_done()).collect();
        if done.is_empty() {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        } else {
            pause = SHORTEST;
            done.into_iter().for_each(Item::finish);
        }
    }
}

fn thread() -> Result<&'static Sender<Item>, Code> {
    static THREAD: OnceLock<Option<Sender<Item>>> = OnceLock::new();
    let start = || {
        let (sender, arrivals) = channel();
        let started = control::spawn("mrcuda-across", move || attend(&arrivals));
        started.inspect_err(|e| log::tell(&format!("cannot start a thread for work of several GPUs: {e}"))).ok().map(|()| sender)
    };
    THREAD.get_or_init(start).as_ref().ok_or(code::ERROR_OPERATING_SYSTEM)
}

/// Holds a stream until `ahead` has come and what follows is done.
fn hold(
    cx: &Entered,
    (device, stream): (&'static Device, u64),
    ahead: Waiting,
    other: &'static Device,
    then: Option<Carry>,
) -> Result<(), Code> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let thread = thread()?;
    let token = HOLD | NEXT.fetch_add(1, Ordering::Relaxed);
    cx.work(device, id::STREAM_HOLD, &[&encode(&StreamHold { token, stream })])?;
    let item = Item { device, place: cx.place(device).clone(), token, ahead, other, then };
    item.count(true);
    // The thread lives as long as the process.
    thread.send(item).map_err(|_| code::ERROR_OPERATING_SYSTEM)
}

/// A stream waits for what was last recorded in an event of another device.
pub(crate) fn wait_event(
    cx: &Entered,
    device: &'static Device,
    stream: u64,
    event: u64,
    other: &'static Device,
) -> Result<(), Code> {
    device.check()?;
    other.check()?;
    let data = &cx.job.tables.events.get(event)?.data;
    // What was never recorded, or in an earlier place, is nothing to wait for.
    if data.epoch.load(Ordering::Acquire) != other.epoch.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut ahead = other.noting(cx.place(other).begin(id::EVENT_REACHED, &[&event.to_le_bytes()]))?;
    if ahead.is_done() {
        let (rc, _) = ahead.finish();
        other.note(rc);
        return if rc == code::SUCCESS { Ok(()) } else { Err(rc) };
    }
    hold(cx, (device, stream), ahead, other, None)
}

/// A copy whose ends are not both of the stream's device. Both ranges have been checked.
pub(crate) fn copy(
    cx: &mut Entered,
    (device, stream): (&'static Device, u64),
    (from, to): (&'static Device, &'static Device),
    rect: Rect,
    wait: bool,
) -> Result<(), Code> {
    for d in [device, from, to] {
        d.check()?;
    }
    if stream == LEGACY {
        // It begins when everything before it on both devices is done (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy").
        cx.settle(from)?;
        cx.settle(to)?;
    }
    if stream == LEGACY && peer::reaches(device, from) && peer::reaches(device, to) {
        crate::copy::copy_device(cx, device, true, rect, stream)?;
        return cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes()).map(drop);
    }
    let ahead = device.noting(cx.place(device).begin(id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
    let end = |d: &'static Device| (d, cx.place(d).clone());
    let carry = Carry { from: end(from), to: end(to), rect };
    hold(cx, (device, stream), ahead, device, Some(carry))?;
    // Nor does anything begin on either before it is done.
    if wait || stream == LEGACY { cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes()).map(drop) } else { Ok(()) }
}
