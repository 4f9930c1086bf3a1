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
use std::collections::VecDeque;
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
    /// What is waited for: the other device's event, or the stream itself. None once it has come.
    ahead: Option<Waiting>,
    /// Who answers that.
    other: &'static Device,
    then: Option<Then<End>>,
    /// The devices that it concerns.
    concerned: Vec<u32>,
}

/// What is done before the stream goes on.
enum Then<L: Lane> {
    Carry(Carry<L>),
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

/// What carries a copy from device to device asks of them.
trait Lane {
    type Answer: Answer;
    /// Asks for the bytes of a piece.
    fn read(&self, piece: &Rect) -> Result<Self::Answer, Code>;
    /// Hands the bytes of a piece over.
    fn write(&self, piece: &Rect, bytes: &[u8]) -> Result<(), Code>;
    /// Asks for an answer that comes when everything is written.
    fn settle(&self) -> Result<Self::Answer, Code>;
    /// Takes note of an error.
    fn failed(&self, rc: Code);
}

/// An answer on its way.
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

    fn read(&self, piece: &Rect) -> Result<Waiting, Code> {
        let End::Gpu(_, place) = self else {
            // SAFETY: the program keeps pinned memory until the copies from it have been made.
            let bytes = unsafe { gather(piece.src.address, piece.src.pitch, piece.width, piece.rows) };
            return Ok(Waiting::Done(code::SUCCESS, bytes));
        };
        let op = CopyOut { src: piece.src.address, pitch: piece.src.pitch, width: piece.width, rows: piece.rows, stream: LANE };
        place.begin(id::COPY_OUT, &[&encode(&op)])
    }

    fn write(&self, piece: &Rect, bytes: &[u8]) -> Result<(), Code> {
        let End::Gpu(_, place) = self else {
            if bytes.len() as u64 != piece.width * piece.rows {
                return Err(code::ERROR_UNKNOWN);
            }
            // SAFETY: the program keeps pinned memory until the copies to it have been made.
            unsafe { scatter(bytes, piece.dst.address, piece.dst.pitch, piece.width) };
            return Ok(());
        };
        place.give_named(bytes);
        let op = CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream: LANE };
        place.send(id::COPY_IN, &[&encode(&op), bytes]).map(drop)
    }

    fn settle(&self) -> Result<Waiting, Code> {
        match self {
            End::Gpu(_, place) => place.begin(id::STREAM_SYNC, &[&LANE.to_le_bytes()]),
            End::Host => Ok(Waiting::Done(code::SUCCESS, Vec::new())),
        }
    }

    fn failed(&self, rc: Code) {
        self.device().into_iter().for_each(|d| d.note(rc));
    }
}

/// A copy from device to device, or between a device and the host. Each piece goes on as soon as it can; nothing is waited for here, since what one copy waits for may be
/// the release of another stream by the same thread.
struct Carry<L: Lane> {
    from: L,
    to: L,
    /// What has not been asked for.
    pieces: VecDeque<Rect>,
    /// What has been, in order: the next piece is read while one is written.
    reading: VecDeque<(Rect, L::Answer)>,
    /// All is handed over.
    settling: Option<L::Answer>,
}

/// Pieces that are read at a time.
const READ_AHEAD: usize = 2;

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
    /// Goes on as far as it can; whether the stream has been let go on. Whatever fails stays with the device where it did.
    fn go_on(&mut self) -> bool {
        if let Some(ahead) = &mut self.ahead {
            if !ahead.is_done() {
                return false;
            }
            let rc = self.ahead.take().map_or(code::SUCCESS, |ahead| ahead.finish().0);
            self.other.note(rc);
            match self.then.take() {
                Some(Then::Own(work)) => work(if rc == code::SUCCESS { Ok(()) } else { Err(rc) }),
                carry if rc == code::SUCCESS => self.then = carry,
                _ => {}
            }
        }
        if let Some(Then::Carry(carry)) = &mut self.then
            && !carry.go_on()
        {
            return false;
        }
        // A place that is lost holds nothing.
        let _ = self.place.send(id::HOST_DONE, &[&self.token.to_le_bytes()]);
        count(&self.concerned, false);
        true
    }
}

impl<L: Lane> Carry<L> {
    fn new(from: L, to: L, pieces: Vec<Rect>) -> Carry<L> {
        Carry { from, to, pieces: pieces.into(), reading: VecDeque::new(), settling: None }
    }

    /// Goes on as far as it can without waiting; whether it is over, also by an error.
    fn go_on(&mut self) -> bool {
        match self.try_to_go_on() {
            Ok(is_over) => is_over,
            Err((end, rc)) => {
                end.failed(rc);
                true
            }
        }
    }

    fn try_to_go_on(&mut self) -> Result<bool, (&L, Code)> {
        loop {
            while self.reading.len() < READ_AHEAD
                && let Some(piece) = self.pieces.pop_front()
            {
                let answer = self.from.read(&piece).map_err(|rc| (&self.from, rc))?;
                self.reading.push_back((piece, answer));
            }
            if let Some((_, answer)) = self.reading.front_mut() {
                if !answer.is_done() {
                    return Ok(false);
                }
                let Some((piece, answer)) = self.reading.pop_front() else { continue };
                let bytes = settled(answer).map_err(|rc| (&self.from, rc))?;
                self.to.write(&piece, &bytes).map_err(|rc| (&self.to, rc))?;
                continue;
            }
            let Some(mut answer) = self.settling.take() else {
                self.settling = Some(self.to.settle().map_err(|rc| (&self.to, rc))?);
                continue;
            };
            if !answer.is_done() {
                self.settling = Some(answer);
                return Ok(false);
            }
            return settled(answer).map(|_| true).map_err(|rc| (&self.to, rc));
        }
    }
}

/// The bytes of an answer that is here, or its error.
fn settled(answer: impl Answer) -> Result<Vec<u8>, Code> {
    match answer.finish() {
        (code::SUCCESS, bytes) => Ok(bytes),
        (rc, _) => Err(rc),
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
    then: Option<Carry<End>>,
) -> Result<(), Code> {
    let thread = thread()?;
    let token = token();
    cx.work(device, id::STREAM_HOLD, &[&encode(&StreamHold { token, stream })])?;
    let item = Item { device, place: cx.place(device).clone(), token, ahead: Some(ahead), other, then: then.map(Then::Carry), concerned: Vec::new() };
    attend_to(thread, item)
}

/// A name for the time that a stream is held.
pub(crate) fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    HOLD | NEXT.fetch_add(1, Ordering::Relaxed)
}

fn attend_to(thread: &Sender<Item>, mut item: Item) -> Result<(), Code> {
    let carry = if let Some(Then::Carry(c)) = &item.then { Some(c) } else { None };
    let ends = carry.into_iter().flat_map(|c| [&c.from, &c.to]).filter_map(|end| Some(end.device()?.index));
    let mut concerned: Vec<u32> = [item.device.index, item.other.index].into_iter().chain(ends).collect();
    concerned.sort_unstable();
    concerned.dedup();
    count(&concerned, true);
    item.concerned = concerned;
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
    let then = Some(Then::Own(work));
    attend_to(thread, Item { device, place: place.clone(), token, ahead: Some(ahead), other: device, then, concerned: Vec::new() })
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
    hold(cx, (device, stream), ahead, device, Some(Carry::new(end(from), end(to), rect.pieces())))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::End as Memory;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    /// Two devices in one: what was asked of them, and which of the answers have come.
    #[derive(Default)]
    struct World {
        log: Vec<String>,
        here: BTreeSet<String>,
        errors: Vec<Code>,
        fails: Option<String>,
    }

    #[derive(Clone, Default)]
    struct Fake(Rc<RefCell<World>>);

    struct FakeAnswer(Fake, String);

    impl Answer for FakeAnswer {
        fn is_done(&mut self) -> bool {
            self.0.0.borrow().here.contains(&self.1)
        }

        fn finish(mut self) -> (Code, Vec<u8>) {
            assert!(self.is_done(), "{} is waited for", self.1);
            let failed = self.0.0.borrow().fails.as_ref() == Some(&self.1);
            (if failed { code::ERROR_ILLEGAL_ADDRESS } else { code::SUCCESS }, self.1.clone().into_bytes())
        }
    }

    impl Fake {
        fn ask(&self, what: String) -> FakeAnswer {
            self.0.borrow_mut().log.push(what.clone());
            FakeAnswer(self.clone(), what)
        }

        fn arrives(&self, what: &str) {
            self.0.borrow_mut().here.insert(what.to_owned());
        }

        fn log(&self) -> Vec<String> {
            std::mem::take(&mut self.0.borrow_mut().log)
        }
    }

    impl Lane for Fake {
        type Answer = FakeAnswer;

        fn read(&self, piece: &Rect) -> Result<FakeAnswer, Code> {
            Ok(self.ask(format!("read {}", piece.src.address)))
        }

        fn write(&self, piece: &Rect, bytes: &[u8]) -> Result<(), Code> {
            let what = format!("write {} ({})", piece.dst.address, String::from_utf8_lossy(bytes));
            self.0.borrow_mut().log.push(what);
            Ok(())
        }

        fn settle(&self) -> Result<FakeAnswer, Code> {
            Ok(self.ask("settle".to_owned()))
        }

        fn failed(&self, rc: Code) {
            self.0.borrow_mut().errors.push(rc);
        }
    }

    fn carry(world: &Fake, pieces: u64) -> Carry<Fake> {
        let end = |address| Memory { address, pitch: 1, device: true };
        let piece = |n| Rect { dst: end(100 + n), src: end(n), width: 1, rows: 1 };
        Carry::new(world.clone(), world.clone(), (0..pieces).map(piece).collect())
    }

    #[test]
    fn a_copy_never_waits_and_keeps_its_order() {
        let world = Fake::default();
        let mut it = carry(&world, 3);
        assert!(!it.go_on());
        assert_eq!(world.log(), ["read 0", "read 1"]);
        // What comes early waits for its turn.
        world.arrives("read 1");
        assert!(!it.go_on() && world.log().is_empty());
        world.arrives("read 0");
        assert!(!it.go_on());
        assert_eq!(world.log(), ["write 100 (read 0)", "read 2", "write 101 (read 1)"]);
        world.arrives("read 2");
        assert!(!it.go_on());
        assert_eq!(world.log(), ["write 102 (read 2)", "settle"]);
        assert!(!it.go_on() && world.log().is_empty());
        world.arrives("settle");
        assert!(it.go_on() && world.0.borrow().errors.is_empty());
    }

    #[test]
    fn a_copy_that_fails_is_over_and_says_so_once() {
        for fails in ["read 0", "settle"] {
            let world = Fake::default();
            world.0.borrow_mut().fails = Some(fails.to_owned());
            let mut it = carry(&world, 1);
            assert!(!it.go_on());
            world.arrives("read 0");
            world.arrives("settle");
            assert!(it.go_on());
            assert_eq!(world.0.borrow().errors, [code::ERROR_ILLEGAL_ADDRESS], "{fails}");
        }
    }

    #[test]
    fn a_copy_that_waits_holds_no_other_one_up() {
        // The answer of the first one comes only after the second one is over, as where its stream waits for the other's release.
        let (first, second) = (Fake::default(), Fake::default());
        let mut all = vec![carry(&first, 1), carry(&second, 1)];
        for what in ["read 0", "settle"] {
            second.arrives(what);
            all.retain_mut(|it| !it.go_on());
        }
        assert_eq!(all.len(), 1);
        first.arrives("read 0");
        first.arrives("settle");
        all.retain_mut(|it| !it.go_on());
        assert!(all.is_empty());
    }
}
