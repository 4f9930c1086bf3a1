//! Staging areas: page-locked memory through which the bytes of large copies pass between the GPU and connections that carry nothing else.
//!
//! A stream with such copies has an *area*: a few *regions*, each for one *piece* of a copy at a time, and two words. All commands of a
//! copy are given to the driver at once, in its stream; they and the threads of the connections wait for each other by the words alone, so
//! no thread calls the driver while a copy is under way, and none is needed for its progress:
//!
//! * the GPU writes `done`: the number of pieces of the area that it has completed. Before each piece it writes it again, which shows that
//!   the stream has got there;
//! * the connections write `carried`: the number of pieces, from the first on, whose bytes have all been received, or have all arrived in
//!   the job's memory. The stream waits for it: before it reads a region that is being filled, and before it writes to a region that is
//!   being emptied. Behind a copy to the host it waits for the last piece, so the job has the bytes before later work begins.
//!
//! An area whose regions lie in the GPU's memory works alike: the network card writes to and reads from it, and the stream copies within the
//! GPU. Whether the GPU sees what the card has written as soon as `carried` says so is a property of the GPU, without which no such
//! area is made.
//!
//! A piece is divided into [`Segment`]s. A connection has one segment at a time and then takes another: mostly of the copy with the fewest
//! bytes left, so that a short copy does not wait for a long one, and of equal ones the first is complete early and what follows it in its
//! stream goes on beside the others. Some are taken from all areas in turn, so no copy waits for ever. Connections to the host also carry
//! changes of mirrored memory (`staging/changes.rs`). [docs/memory.md](../../docs/memory.md) describes the whole.

use cuda_api::lock::{lock, wait, wait_while};
use cuda_api::spin::{Pause, Spinning};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

mod changes;
mod file;
mod room;
mod sizes;

use crate::host_mirror::LinesOfRuns;
pub use changes::{Changes, Copies};
use changes::{FromJob, PART, Queue};
use file::RegionFile;
pub use file::{Mapped, Part};
pub use room::Room;
pub use sizes::{AREAS, REGIONS, Sizes, WORDS};

/// How long a thread that waits for the GPU yields, and how long it then sleeps between two looks, at first and later.
const YIELD: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_micros(20);
const LONG_NAP: Duration = Duration::from_micros(200);
const WHILE: Duration = Duration::from_millis(5);
/// One of so many segments is taken from the area whose turn it is, the others of the copy with the fewest bytes left.
const IN_TURN: u32 = 4;

/// What the connections have of a piece.
#[derive(Debug)]
struct Piece {
    token: u64,
    /// Where it begins in the copy.
    offset: u64,
    bytes: usize,
    /// Bytes of its segments, except the last.
    segment: usize,
    /// Bytes of the copy behind it.
    rest: u64,
    to_device: bool,
    /// The number that `done` must have reached before its bytes may be asked for.
    behind: Option<u32>,
    /// Bytes that were given to connections, and that these have carried.
    begun: usize,
    carried: usize,
}

#[derive(Debug)]
struct Area {
    room: Arc<Room>,
    /// The stream that has it. Another stream may take it when it has no pieces.
    stream: u64,
    /// Numbers of the first and of the next piece. They wrap around.
    first: u32,
    next: u32,
    /// The number of the first piece that was not carried.
    carried: u32,
    /// In each direction, the number of a piece before which all have been given to connections.
    begun: [u32; 2],
    pieces: VecDeque<Piece>,
}

/// Whether a number that wraps around has reached another.
fn reached(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 >= 0
}

impl Area {
    fn new(room: Arc<Room>, stream: u64) -> Area {
        Area { room, stream, first: 0, next: 0, carried: 0, begun: [0; 2], pieces: VecDeque::new() }
    }

    fn done(&self) -> u32 {
        self.room.done().load(Ordering::Acquire)
    }

    /// Forgets the pieces at the front that need nothing more.
    fn settle(&mut self) {
        let done = self.done();
        while !self.pieces.is_empty()
            && reached(self.carried, self.first.wrapping_add(1))
            && reached(done, self.first.wrapping_add(1))
        {
            self.pieces.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Whether bytes for the device are missing.
    fn awaits_bytes(&self) -> bool {
        let carried = self.carried.wrapping_sub(self.first) as usize;
        self.pieces.iter().skip(carried).any(|p| p.to_device && p.carried < p.bytes)
    }

    fn is_idle(&mut self) -> bool {
        self.settle();
        self.pieces.is_empty()
    }

    fn get(&mut self, number: u32) -> Option<&mut Piece> {
        self.pieces.get_mut(number.wrapping_sub(self.first) as usize)
    }

    /// Address of the region of a piece.
    fn region(&self, number: u32, sizes: &Sizes) -> usize {
        self.room.at() + (number % REGIONS) as usize * sizes.region
    }

    /// The piece with the next segment in a direction, or whether there will be one when the GPU has got further.
    fn ready(&mut self, to_device: bool) -> Result<u32, bool> {
        self.settle();
        let way = usize::from(to_device);
        if reached(self.first, self.begun[way]) {
            self.begun[way] = self.first;
        }
        loop {
            let number = self.begun[way];
            let Some(piece) = self.get(number) else { return Err(false) };
            if piece.to_device != to_device || piece.begun == piece.bytes {
                self.begun[way] = number.wrapping_add(1);
                continue;
            }
            return if self.is_ready(number) { Ok(number) } else { Err(true) };
        }
    }

    /// Whether connections may carry a piece now.
    fn is_ready(&self, number: u32) -> bool {
        let (before, done) = (number.wrapping_sub(self.first), self.done());
        self.pieces.get(before as usize).is_some_and(|piece| match piece.to_device {
            // The region is free when the piece before it in there has been forgotten.
            true => before < REGIONS && piece.behind.is_none_or(|behind| reached(done, behind)),
            false => reached(done, number.wrapping_add(1)),
        })
    }

    /// The number of segments that could be taken now in a direction.
    fn ready_segments(&mut self, to_device: bool) -> usize {
        let Ok(next) = self.ready(to_device) else { return 0 };
        let skip = next.wrapping_sub(self.first) as usize;
        let numbered = self.pieces.iter().enumerate().skip(skip).map(|(i, p)| (self.first.wrapping_add(i as u32), p));
        let those = numbered.filter(|(_, p)| p.to_device == to_device).take_while(|(number, _)| self.is_ready(*number));
        those.map(|(_, p)| (p.bytes - p.begun).div_ceil(p.segment)).sum()
    }

    /// As [`Area::ready`]: bytes of the copy that were not given to connections.
    fn left(&mut self, to_device: bool) -> Result<u64, bool> {
        let number = self.ready(to_device)?;
        let piece = self.get(number).ok_or(false)?;
        Ok((piece.bytes - piece.begun) as u64 + piece.rest)
    }

    /// As [`Area::ready`]: the segment.
    fn take(&mut self, to_device: bool, sizes: &Sizes) -> Result<Segment, bool> {
        let number = self.ready(to_device)?;
        let region = self.region(number, sizes);
        let piece = self.get(number).ok_or(false)?;
        let begun = piece.begun;
        let bytes = piece.segment.min(piece.bytes - begun);
        piece.begun += bytes;
        let (token, offset) = (piece.token, piece.offset + begun as u64);
        Ok(Segment { token, offset, bytes, at: region + begun, number, room: self.room.clone() })
    }

    /// Adds a piece; returns its number.
    fn push(&mut self, piece: Piece) -> u32 {
        self.pieces.push_back(piece);
        self.next = self.next.wrapping_add(1);
        self.next.wrapping_sub(1)
    }

    /// Notes that a segment was carried.
    fn over(&mut self, segment: &Segment) {
        if let Some(piece) = self.get(segment.number) {
            piece.carried += segment.bytes;
            self.advance();
        }
    }

    /// Counts the pieces that were carried.
    fn advance(&mut self) {
        let mut carried = self.carried;
        while self.get(carried).is_some_and(|p| p.carried == p.bytes) {
            carried = carried.wrapping_add(1);
        }
        self.carried = carried;
        self.room.carried().store(carried, Ordering::Release);
    }
}

/// Bytes of a copy that one connection carries. Until [`Staging::over`] they are its holder's.
#[derive(Debug)]
pub struct Segment {
    /// The copy.
    pub token: u64,
    /// Where they begin in the copy.
    pub offset: u64,
    bytes: usize,
    at: usize,
    number: u32,
    room: Arc<Room>,
}

impl Segment {
    /// Their number.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Where they lie in the file that the job maps too, if they do: then only the job's threads and the GPU use them.
    pub fn in_file(&self) -> Option<u64> {
        self.room.part().map(|part| part.offset() + (self.at - self.room.at()) as u64)
    }

    /// The memory of its area.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Their address, which the processor may not be able to use ([`Room::dma_buf`]).
    pub fn address(&self) -> u64 {
        self.at as u64
    }

    /// The bytes, if they lie in host memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.room.dma_buf().is_some() {
            return None;
        }
        // SAFETY: inside a region of the room, which lives; the GPU has written them and writes there again only after `over`.
        Some(unsafe { std::slice::from_raw_parts(self.at as *const u8, self.bytes) })
    }

    /// The bytes for writing, if they lie in host memory.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.room.dma_buf().is_some() {
            return None;
        }
        // SAFETY: as above; no other segment has them, and the GPU reads them only after `over`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.bytes) })
    }
}

/// A word operation of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Writes a value to the word at an address.
    Write(u64, u32),
    /// Waits until the word at an address has reached a value.
    Wait(u64, u32),
}

/// The commands of a stream for one piece: the operations on words, in order, and then the copy between the region and the device.
#[derive(Debug)]
pub struct Step {
    /// First the operations on words.
    pub words: Vec<Word>,
    /// Address of the piece in the area,
    pub at: usize,
    /// and whether that is memory of the GPU.
    pub on_gpu: bool,
    /// Where the piece begins in the copy.
    pub offset: u64,
    /// Bytes of the piece.
    pub bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    areas: Vec<Area>,
    /// In each direction, the number of segments that were taken, the area whose turn it is, and whether a thread waits for the GPU.
    taken: [u32; 2],
    turn: [usize; 2],
    looking: [bool; 2],
    /// In each direction, the number of other connections that wait for a segment.
    waiting: [usize; 2],
    /// What connections to the host carry before segments.
    changes: Queue,
    from_job: FromJob,
}

/// What a connection carries to the host.
#[derive(Debug)]
pub enum ToHost {
    /// A part of a copy.
    Segment(Segment),
    /// Changes, for [`Staging::encode`].
    Changes(Changes),
    /// The job is to be asked for changes, in this round. The answer is for [`Staging::answered`].
    Ask(u64),
}

fn find_to_host(s: &mut State, to_device: bool, sizes: &Sizes) -> Result<ToHost, bool> {
    if let Some(changes) = s.changes.waiting.pop_front() {
        return Ok(ToHost::Changes(changes));
    }
    s.from_job
        .ask()
        .map_or_else(|| Staging::find_segment(s, to_device, sizes).map(ToHost::Segment), |round| Ok(ToHost::Ask(round)))
}

/// Finds something for a connection in a direction; otherwise returns whether there will be something without another copy.
type Find<T> = fn(&mut State, bool, &Sizes) -> Result<T, bool>;

/// All areas of a place.
#[derive(Debug)]
pub struct Staging {
    sizes: Sizes,
    state: Mutex<State>,
    /// The file of the job for the regions, where both can map one.
    file: OnceLock<Arc<RegionFile>>,
    /// See [`Staging::awaits_bytes`].
    awaits_bytes: AtomicBool,
    /// In each direction: there are more pieces, or the thread that waits for the GPU has left.
    changed: [Condvar; 2],
    /// Changes have been found, or have arrived.
    changes_carried: Condvar,
    /// Changes of the job have come, or it has no more.
    from_job_came: Condvar,
}

impl Default for Staging {
    fn default() -> Staging {
        Staging::new(Sizes::of_process())
    }
}

impl Staging {
    /// No areas, for copies that are divided in this way.
    pub fn new(sizes: Sizes) -> Staging {
        let changed = [Condvar::new(), Condvar::new()];
        let (file, awaits_bytes, changes_carried) = (OnceLock::new(), AtomicBool::new(false), Condvar::new());
        Staging { sizes, state: Mutex::default(), file, awaits_bytes, changed, changes_carried, from_job_came: Condvar::new() }
    }

    /// Into what copies are divided.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// From now on the regions of areas lie in this file of the job.
    ///
    /// # Errors
    /// It could shrink or is too small, or there is one.
    pub fn share(&self, file: OwnedFd) -> io::Result<()> {
        let file = Arc::new(RegionFile::received(file, &self.sizes)?);
        self.file.set(file).map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "there is memory for large copies already"))
    }

    /// A part of the job's file for another area. None if there is no file, or if segments of areas that have ended use all of it: then
    /// the regions lie elsewhere, and the bytes pass through the connections.
    pub fn part(&self) -> Option<Part> {
        self.file.get()?.take()
    }

    /// Number of areas.
    pub fn areas(&self) -> usize {
        lock(&self.state).areas.len()
    }

    /// Whether a stream waits, or will wait, for bytes that connections have not received yet.
    pub fn awaits_bytes(&self) -> bool {
        self.awaits_bytes.load(Ordering::Acquire)
    }

    /// Notes a change of what [`Staging::awaits_bytes`] says.
    fn note(&self, s: &State) {
        self.awaits_bytes.store(s.areas.iter().any(Area::awaits_bytes), Ordering::Release);
    }

    /// Whether a copy of a stream needs one more area ([`Staging::add`]).
    pub fn lacks_area(&self, stream: u64) -> bool {
        !lock(&self.state).areas.iter_mut().any(|a| a.stream == stream || a.is_idle())
    }

    /// Adds an area for a stream, with [`Sizes::regions`] bytes of regions. False if there are too many.
    pub fn add(&self, room: Arc<Room>, stream: u64) -> bool {
        let mut s = lock(&self.state);
        let fits = s.areas.len() < AREAS && room.bytes() == self.sizes.regions();
        if fits {
            s.areas.push(Area::new(room, stream));
        }
        fits
    }

    /// Begins a copy: the connections may carry its bytes from now on. Returns the commands for its stream: those of the pieces, and
    /// operations behind them. `None` if there is no area. With `late` the bytes are asked for when the stream has got there.
    ///
    /// Only one thread at a time may begin copies of a stream and give their commands to the driver.
    pub fn begin(&self, stream: u64, token: u64, bytes: u64, to_device: bool, late: bool) -> Option<(Vec<Step>, Vec<Word>)> {
        let mut s = lock(&self.state);
        let own = s.areas.iter().position(|a| a.stream == stream);
        let at = own.or_else(|| s.areas.iter_mut().position(Area::is_idle))?;
        let area = &mut s.areas[at];
        area.stream = stream;
        let [carried, done] = area.room.words();
        if late {
            // The end of the copy before must not be taken for the arrival at this one: one number belongs to what lies between.
            area.push(Piece { token, offset: 0, bytes: 0, segment: 1, rest: 0, to_device, behind: None, begun: 0, carried: 0 });
            area.advance();
        }
        let behind = late.then_some(area.next);
        let (piece, is_shared) = (self.sizes.pieces_of(bytes), area.room.part().is_some());
        let on_gpu = area.room.dma_buf().is_some();
        let segment = self.sizes.segment_of(piece as usize, bytes, is_shared);
        let mut steps = Vec::new();
        for offset in (0..bytes).step_by(piece as usize) {
            let rest = (bytes - offset).saturating_sub(piece);
            let bytes = piece.min(bytes - offset) as usize;
            let number = area.push(Piece { token, offset, bytes, segment, rest, to_device, behind, begun: 0, carried: 0 });
            // The bytes that the GPU reads must be there; those that it overwrites must have been taken.
            let needed = if to_device { area.next } else { area.next.wrapping_sub(REGIONS) };
            let words = vec![Word::Write(done, number), Word::Wait(carried, needed)];
            steps.push(Step { words, at: area.region(number, &self.sizes), on_gpu, offset, bytes });
        }
        let mut last = vec![Word::Write(done, area.next)];
        if !to_device {
            last.push(Word::Wait(carried, area.next));
        }
        self.note(&s);
        drop(s);
        self.changed[usize::from(to_device)].notify_all();
        Some((steps, last))
    }

    /// A segment in a direction, if one is ready; otherwise whether there will be one without another copy.
    fn find_segment(s: &mut State, to_device: bool, sizes: &Sizes) -> Result<Segment, bool> {
        let (way, n) = (usize::from(to_device), s.areas.len());
        let in_turn = s.taken[way].is_multiple_of(IN_TURN);
        let (mut waits, mut best): (bool, Option<(u64, usize)>) = (false, None);
        for i in 0..n {
            let at = (s.turn[way] + i) % n;
            match s.areas[at].left(to_device) {
                Ok(left) if best.is_none_or(|(least, _)| !in_turn && left < least) => best = Some((left, at)),
                Ok(_) => {}
                Err(more) => waits |= more,
            }
        }
        let (_, at) = best.ok_or(waits)?;
        s.taken[way] = s.taken[way].wrapping_add(1);
        if in_turn {
            s.turn[way] = at + 1;
        }
        s.areas[at].take(to_device, sizes)
    }

    /// The next segment in a direction for a connection that has one already, if one is ready. In shared memory a message is sent at once,
    /// and a connection could take all segments before the job's thread at its other end has copied the first: those that have none come
    /// first.
    pub fn try_next(&self, to_device: bool) -> Option<Segment> {
        self.try_next_of(to_device, Staging::find_segment)
    }

    fn try_next_of<T>(&self, to_device: bool, find: Find<T>) -> Option<T> {
        let (mut s, way) = (lock(&self.state), usize::from(to_device));
        if self.file.get().is_some() && s.waiting[way] > 0 {
            let ready = self.ready_segments(&mut s, to_device);
            self.wake(ready.min(s.waiting[way]), way);
            if ready <= s.waiting[way] {
                return None;
            }
        }
        find(&mut s, to_device, &self.sizes).ok()
    }

    fn ready_segments(&self, s: &mut State, to_device: bool) -> usize {
        s.areas.iter_mut().map(|a| a.ready_segments(to_device)).sum()
    }

    /// Wakes so many connections that wait. All at once: one that wakes the next would come too late for most segments.
    fn wake(&self, connections: usize, way: usize) {
        (0..connections).for_each(|_| self.changed[way].notify_one());
    }

    /// Waits for the next segment in a direction.
    pub fn next(&self, to_device: bool) -> Segment {
        self.next_of(to_device, Staging::find_segment)
    }

    fn next_of<T>(&self, to_device: bool, find: Find<T>) -> T {
        let way = usize::from(to_device);
        let mut s = lock(&self.state);
        let mut spinning = Spinning::begin();
        loop {
            match find(&mut s, to_device, &self.sizes) {
                Ok(found) => {
                    if s.waiting[way] > 0 {
                        // There may be more, or another thread must wait for the GPU instead of this one.
                        let ready = self.ready_segments(&mut s, to_device);
                        self.wake(ready.clamp(1, s.waiting[way]), way);
                    }
                    return found;
                }
                Err(true) if !s.looking[way] => {
                    s.looking[way] = true;
                    drop(s);
                    if !spinning.goes_on(Pause::Yield, YIELD) {
                        std::thread::sleep(if spinning.elapsed() < WHILE { NAP } else { LONG_NAP });
                    }
                    s = lock(&self.state);
                    s.looking[way] = false;
                }
                Err(_) => {
                    s = self.wait(s, way);
                    spinning = Spinning::begin();
                }
            }
        }
    }

    fn wait<'a>(&self, mut s: MutexGuard<'a, State>, way: usize) -> MutexGuard<'a, State> {
        s.waiting[way] += 1;
        let mut s = wait(&self.changed[way], s);
        s.waiting[way] -= 1;
        s
    }

    /// A connection has carried a segment: its bytes have been received, or have arrived.
    pub fn over(&self, segment: &Segment) {
        let mut s = lock(&self.state);
        // After the end of a context there are other areas.
        if let Some(area) = s.areas.iter_mut().find(|a| Arc::ptr_eq(&a.room, &segment.room)) {
            area.over(segment);
        }
        self.note(&s);
    }

    /// From now on there are connections to the host that carry changes.
    pub fn begin_to_carry_changes(&self) {
        lock(&self.state).changes.has_connections = true;
    }

    /// Returns whether there are such connections.
    pub(crate) fn carries_changes(&self) -> bool {
        lock(&self.state).changes.has_connections
    }

    /// Gives the memory at an address to the connections. Its copies are in these buffers, which nothing else uses before [`Staging::await_compared`]
    /// returns. There are few buffers, so the parts that wait are few.
    pub fn send_changes(&self, after: u64, at: u64, bytes: usize, copies: &Arc<Copies>) {
        let of = |start: usize| {
            let part = start..bytes.min(start + PART);
            Changes { after, at: at + start as u64, copies: copies.clone(), part }
        };
        let parts = (0..bytes).step_by(PART).map(of);
        copies.left.store(parts.len(), Ordering::Release);
        let mut s = lock(&self.state);
        s.changes.left += parts.len();
        s.changes.waiting.extend(parts);
        let wake = s.waiting[0].min(s.changes.waiting.len());
        self.wake(wake, 0);
    }

    /// Waits until all parts of these buffers were compared.
    pub fn await_compared(&self, copies: &Copies) {
        drop(wait_while(&self.changes_carried, lock(&self.state), |_| copies.left.load(Ordering::Acquire) > 0));
    }

    /// Waits until the job has applied all changes.
    pub fn await_changes(&self) {
        drop(wait_while(&self.changes_carried, lock(&self.state), |s| s.changes.left > 0));
    }

    /// Finds the changes of a part, and writes them as runs of lines; returns how many messages with changes come before, or `None` if nothing has
    /// changed. `masks` is a reused buffer.
    pub fn encode(&self, changes: Changes, masks: &mut Vec<u8>, to: &mut Vec<u8>) -> Option<u64> {
        changes.encode(masks, to);
        if changes.copies.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Who waits has looked before, or waits.
            drop(lock(&self.state));
            self.changes_carried.notify_all();
        }
        if to.is_empty() {
            self.changes_arrived();
        }
        (!to.is_empty()).then_some(changes.after)
    }

    /// The job has applied the changes of a part.
    pub fn changes_arrived(&self) {
        let mut s = lock(&self.state);
        s.changes.left -= 1;
        if s.changes.left == 0 {
            self.changes_carried.notify_all();
        }
    }

    /// The job has changes: connections ask for them from now on. Returns false if there are no connections.
    pub fn begin_from_job(&self) -> bool {
        let mut s = lock(&self.state);
        if !s.changes.has_connections {
            return false;
        }
        s.from_job.round += 1;
        s.from_job.has_more = true;
        self.wake(s.waiting[0], 0);
        true
    }

    /// Waits for a message with changes of the job; `None` if there are no more. The last one [was given back](Staging::give_back).
    pub fn next_from_job(&self) -> Option<LinesOfRuns> {
        let waits = |from: &FromJob| from.came.is_empty() && (from.has_more || from.asked > 0);
        let mut s = wait_while(&self.from_job_came, lock(&self.state), |s| waits(&s.from_job));
        let next = s.from_job.came.pop_front();
        s.from_job.applied += usize::from(next.is_some());
        next
    }

    /// Takes the buffer of a message that was applied.
    pub fn give_back(&self, buffer: LinesOfRuns) {
        let mut s = lock(&self.state);
        s.from_job.applied -= 1;
        s.from_job.spare.push(buffer);
        let wake = s.waiting[0].min(usize::from(s.from_job.has_more));
        self.wake(wake, 0);
    }

    /// All messages of a round were applied: their buffers are given up.
    pub fn end_from_job(&self) {
        lock(&self.state).from_job.spare = Vec::new();
    }

    /// A connection that has asked for some already may ask for more: the round.
    pub fn try_ask(&self) -> Option<u64> {
        lock(&self.state).from_job.ask()
    }

    /// A buffer for the answer to a question.
    pub fn buffer(&self) -> LinesOfRuns {
        lock(&self.state).from_job.spare.pop().unwrap_or_default()
    }

    /// A question was answered; `None`: the job has no more.
    pub fn answered(&self, lines: Option<LinesOfRuns>) {
        let mut s = lock(&self.state);
        s.from_job.asked -= 1;
        s.from_job.has_more &= lines.is_some();
        s.from_job.came.extend(lines);
        self.from_job_came.notify_one();
    }

    /// As [`Staging::next`] to the host; changes come first, since a thread waits for them.
    pub fn next_to_host(&self) -> ToHost {
        self.next_of(false, find_to_host)
    }

    /// As [`Staging::try_next`] to the host, and as [`Staging::next_to_host`].
    pub fn try_next_to_host(&self) -> Option<ToHost> {
        self.try_next_of(false, find_to_host)
    }

    /// Lets all streams continue: the context is about to be destroyed.
    pub(crate) fn let_go(&self) {
        let mut s = lock(&self.state);
        for area in &mut s.areas {
            area.carried = area.next;
            area.room.carried().store(area.next, Ordering::Release);
        }
        self.note(&s);
    }

    /// Gives up all areas. Their memory lives until no connection has a segment of it.
    pub(crate) fn end(&self) -> Vec<Arc<Room>> {
        lock(&self.state).areas.drain(..).map(|a| a.room).collect()
    }
}

#[cfg(test)]
mod tests;
