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
    then: Option<Carry<End>>,
}

/// One of the two devices of a copy, and its place.
struct End {
    device: &'static Device,
    place: Place,
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
        let op = CopyOut { src: piece.src.address, pitch: piece.src.pitch, width: piece.width, rows: piece.rows, stream: LANE };
        self.place.begin(id::COPY_OUT, &[&encode(&op)])
    }

    fn write(&self, piece: &Rect, bytes: &[u8]) -> Result<(), Code> {
        let op = CopyIn { dst: piece.dst.address, pitch: piece.dst.pitch, width: piece.width, rows: piece.rows, stream: LANE };
        self.place.send(id::COPY_IN, &[&encode(&op), bytes]).map(drop)
    }

    fn settle(&self) -> Result<Waiting, Code> {
        self.place.begin(id::STREAM_SYNC, &[&LANE.to_le_bytes()])
    }

    fn failed(&self, rc: Code) {
        self.device.note(rc);
    }
}

/// A copy from device to device. Each piece goes on as soon as it can; nothing is waited for here, since what one copy waits for may be
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

impl Item {
    fn devices(&self) -> Vec<u32> {
        let ends = self.then.iter().flat_map(|c| [c.from.device.index, c.to.device.index]);
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

    /// Goes on as far as it can; whether the stream has been let go on. Whatever fails stays with the device where it did.
    fn go_on(&mut self) -> bool {
        if let Some(ahead) = &mut self.ahead {
            if !ahead.is_done() {
                return false;
            }
            let rc = self.ahead.take().map_or(code::SUCCESS, |ahead| ahead.finish().0);
            self.other.note(rc);
            if rc != code::SUCCESS {
                self.then = None;
            }
        }
        if self.then.as_mut().is_some_and(|carry| !carry.go_on()) {
            return false;
        }
        // A place that is lost holds nothing.
        let _ = self.place.send(id::HOST_DONE, &[&self.token.to_le_bytes()]);
        self.count(false);
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
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let thread = thread()?;
    let token = HOLD | NEXT.fetch_add(1, Ordering::Relaxed);
    cx.work(device, id::STREAM_HOLD, &[&encode(&StreamHold { token, stream })])?;
    let item = Item { device, place: cx.place(device).clone(), token, ahead: Some(ahead), other, then };
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
    let end = |device: &'static Device| End { device, place: cx.place(device).clone() };
    let carry = Carry::new(end(from), end(to), rect.pieces());
    hold(cx, (device, stream), ahead, device, Some(carry))?;
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
