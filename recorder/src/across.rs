//! What a stream does with another device: waiting for its events, copies from GPU to GPU, or between another GPU and the host; and what the job does itself in the order of a
//! stream of this process's driver.
//!
//! The places of a job know nothing of each other. So the stream is held in its place, one thread of ours sees when the other device
//! has got there, carries the bytes where it is a copy, and lets the stream go on. It works outside the gate, also while that is
//! closed; a move waits until nothing concerns its devices any more (docs/design.md, "Several GPUs").

use crate::control;
use crate::copy::{Rect, gather, scatter};
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
    then: Option<Then>,
}

/// What is done before the stream goes on.
enum Then {
    Carry(Carry),
    /// Work in the host's memory.
    Own(Box<dyn FnOnce(Result<(), Code>) + Send>),
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

/// A copy from device to device, or between a device and the host.
struct Carry {
    from: End,
    to: End,
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

fn count(devices: &[u32], begins: bool) {
    for d in devices.iter().map(|d| &CONCERNS[*d as usize]).chain([&COUNT]) {
        if begins {
            d.fetch_add(1, Ordering::AcqRel)
        } else {
            d.fetch_sub(1, Ordering::AcqRel)
        };
    }
}

impl Item {
    fn devices(&self) -> Vec<u32> {
        let carry = if let Some(Then::Carry(c)) = &self.then { Some(c) } else { None };
        let ends = carry.into_iter().flat_map(|c| [&c.from, &c.to]).filter_map(|end| Some(end.device()?.index));
        let mut all: Vec<u32> = [self.device.index, self.other.index].into_iter().chain(ends).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// What is waited for has come: carries the bytes, and lets the stream go on. Whatever fails stays with the device where it did.
    fn finish(mut self) {
        let (rc, _) = std::mem::replace(&mut self.ahead, Waiting::Done(code::SUCCESS, Vec::new())).finish();
        self.other.note(rc);
        let devices = self.devices();
        match self.then.take() {
            Some(Then::Carry(carry)) if rc == code::SUCCESS => carry.run(),
            Some(Then::Own(work)) => work(if rc == code::SUCCESS { Ok(()) } else { Err(rc) }),
            _ => {}
        }
        // A place that is lost holds nothing.
        let _ = self.place.send(id::HOST_DONE, &[&self.token.to_le_bytes()]);
        count(&devices, false);
    }
}

/// An answer, or the error of the device that gave it.
fn settled(device: Option<&Device>, waiting: Result<Waiting, Code>) -> Result<Vec<u8>, Code> {
    match waiting.map(Waiting::finish) {
        Ok((code::SUCCESS, bytes)) => Ok(bytes),
        Ok((rc, _)) | Err(rc) => {
            device.into_iter().for_each(|d| d.note(rc));
            Err(rc)
        }
    }
}

impl Carry {
    fn run(&self) {
        let Carry { from, to, rect } = self;
        let read = |piece: &Rect| {
            let End::Gpu(_, source) = from else {
                // SAFETY: the program keeps pinned memory until the copies from it have been made.
                let bytes = unsafe { gather(piece.src.address, piece.src.pitch, piece.width, piece.rows) };
                return Ok(Waiting::Done(code::SUCCESS, bytes));
            };
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
            let Ok(bytes) = settled(from.device(), waiting) else { return };
            let End::Gpu(to, target) = to else {
                if bytes.len() as u64 == piece.width * piece.rows {
                    // SAFETY: as above, of copies to it.
                    unsafe { scatter(&bytes, piece.dst.address, piece.dst.pitch, piece.width) };
                }
                continue;
            };
            target.give_named(&bytes);
            let op =
                CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream: LANE };
            if let Err(rc) = target.send(id::COPY_IN, &[&encode(&op), &bytes]) {
                to.note(rc);
                return;
            }
        }
        if let End::Gpu(to, target) = to {
            // Noted where it failed.
            let _ = settled(Some(to), target.begin(id::STREAM_SYNC, &[&LANE.to_le_bytes()]));
        }
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
    let thread = thread()?;
    let token = token();
    cx.work(device, id::STREAM_HOLD, &[&encode(&StreamHold { token, stream })])?;
    attend_to(thread, Item { device, place: cx.place(device).clone(), token, ahead, other, then: then.map(Then::Carry) })
}

/// A name for the time that a stream is held.
pub(crate) fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    HOLD | NEXT.fetch_add(1, Ordering::Relaxed)
}

fn attend_to(thread: &Sender<Item>, item: Item) -> Result<(), Code> {
    count(&item.devices(), true);
    // The thread lives as long as the process.
    thread.send(item).map_err(|_| code::ERROR_OPERATING_SYSTEM)
}

/// Does something in the order of a stream of this process's driver, which is held meanwhile; `begin` asks the place for that with a token.
/// What is done is told whether the stream got there.
pub(crate) fn in_order(
    cx: &Entered,
    device: &'static Device,
    begin: impl FnOnce(&Place) -> Result<Waiting, Code>,
    token: u64,
    work: Box<dyn FnOnce(Result<(), Code>) + Send>,
) -> Result<(), Code> {
    let thread = thread()?;
    let place = cx.place(device);
    let ahead = device.noting(begin(place))?;
    if let Waiting::Done(rc, _) = &ahead
        && *rc != code::SUCCESS
    {
        device.note(*rc);
        return Err(*rc);
    }
    attend_to(thread, Item { device, place: place.clone(), token, ahead, other: device, then: Some(Then::Own(work)) })
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

/// Copies in a stream's order, between devices or, where none is named, pinned memory of the host. Both ranges have been checked.
pub(crate) fn carry(
    cx: &Entered,
    (device, stream): (&'static Device, u64),
    (from, to): (Option<&'static Device>, Option<&'static Device>),
    rect: Rect,
) -> Result<(), Code> {
    [Some(device), from, to].into_iter().flatten().try_for_each(Device::check)?;
    let ahead = device.noting(cx.place(device).begin(id::STREAM_SYNC, &[&stream.to_le_bytes()]))?;
    let end = |d: Option<&'static Device>| d.map_or(End::Host, |d| End::Gpu(d, cx.place(d).clone()));
    hold(cx, (device, stream), ahead, device, Some(Carry { from: end(from), to: end(to), rect }))
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
    carry(cx, (device, stream), (Some(from), Some(to)), rect)?;
    // Nor does anything begin on either before it is done.
    if wait || stream == LEGACY { cx.wait(device, id::STREAM_SYNC, &stream.to_le_bytes()).map(drop) } else { Ok(()) }
}
