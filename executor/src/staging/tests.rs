//! A model of areas: a GPU that carries out the commands of streams, and connections, step by step in many orders. Whatever the order,
//! the GPU reads only what has been received for it, the job receives only what the GPU has written for it, nobody uses a region that
//! another still needs, and all copies end.

use super::*;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

const PAGE: usize = 4096;
const SMALL: Sizes = Sizes { region: 2 * PAGE, piece: PAGE, segment: [PAGE, PAGE] };

fn map(bytes: usize) -> usize {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn room(sizes: Sizes) -> Arc<Room> {
    // SAFETY: fresh mappings.
    Arc::new(unsafe { Room::new((map(sizes.regions()), sizes.regions()), map(WORDS), None) })
}

#[derive(Debug, Clone, Copy)]
struct Copy {
    stream: u64,
    bytes: u64,
    to_device: bool,
    late: bool,
}

fn copy(stream: u64, pages: u64, to_device: bool, late: bool) -> Copy {
    // The last piece is shorter.
    Copy { stream, bytes: pages * PAGE as u64 - 7, to_device, late }
}

/// A byte of a copy.
fn byte(token: u64, offset: u64) -> u8 {
    (token.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset.wrapping_mul(0x2545_f491)).to_be_bytes()[3]
}

enum Command {
    Word(Word),
    /// The first command of a copy.
    Begin(u64),
    Piece {
        token: u64,
        at: usize,
        offset: u64,
        bytes: usize,
    },
    End(u64),
}

/// Which step is taken next: given the number of possible ones.
trait Order {
    fn choose(&mut self, among: usize) -> usize;
}

struct Random(u64);

impl Order for Random {
    fn choose(&mut self, among: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % among
    }
}

/// All orders, one after the other.
#[derive(Default)]
struct All {
    path: Vec<(usize, usize)>,
    at: usize,
}

impl Order for All {
    fn choose(&mut self, among: usize) -> usize {
        if self.at == self.path.len() {
            self.path.push((0, among));
        }
        self.at += 1;
        self.path[self.at - 1].0
    }
}

impl All {
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((taken, of)) = self.path.pop() {
            if taken + 1 < of {
                self.path.push((taken + 1, of));
                return true;
            }
        }
        false
    }
}

/// What a step does.
#[derive(Clone, Copy)]
enum Actor {
    /// Gives the commands of the next copy to its stream.
    Submit,
    /// The GPU carries out the next command of a stream.
    Gpu(u64),
    /// A connection takes a segment, or has carried it.
    Connection(usize),
}

struct World<'a> {
    staging: Staging,
    copies: &'a [Copy],
    submitted: usize,
    streams: Vec<(u64, VecDeque<Command>)>,
    /// Each connection's direction and segment.
    connections: Vec<(bool, Option<Segment>)>,
    /// Copies that their streams have reached.
    reached: Vec<u64>,
    ended: usize,
    /// Bytes of each copy to the host that have arrived.
    arrived: HashMap<u64, u64>,
}

impl World<'_> {
    fn can(&self, actor: Actor) -> bool {
        match actor {
            Actor::Submit => self.submitted < self.copies.len(),
            Actor::Gpu(stream) => match self.queue(stream).front() {
                Some(Command::Word(Word::Wait(at, value))) => {
                    // SAFETY: a word of an area, which lives as long as the world.
                    let word = unsafe { AtomicU32::from_ptr(*at as *mut u32) };
                    reached(word.load(Ordering::Acquire), *value)
                }
                other => other.is_some(),
            },
            Actor::Connection(_) => true,
        }
    }

    /// Whether a stream waits for bytes of a copy to the device.
    fn any_waits_for_bytes(&self) -> bool {
        // Behind the wait for its bytes; behind that for bytes of a copy to the host is the end of the copy.
        let to_device = |q: &VecDeque<Command>| matches!(q.get(1), Some(Command::Piece { token, .. }) if self.copies[*token as usize].to_device);
        self.streams.iter().any(|(stream, q)| !q.is_empty() && !self.can(Actor::Gpu(*stream)) && to_device(q))
    }

    fn queue(&self, stream: u64) -> &VecDeque<Command> {
        &self.streams.iter().find(|(s, _)| *s == stream).unwrap().1
    }

    /// False if there was nothing to do.
    fn step(&mut self, actor: Actor) -> bool {
        match actor {
            Actor::Submit => {
                let (token, c) = (self.submitted as u64, self.copies[self.submitted]);
                if self.staging.lacks_area(c.stream) {
                    assert!(self.staging.add(room(SMALL), c.stream));
                }
                let (steps, last) = self.staging.begin(c.stream, token, c.bytes, c.to_device, c.late).unwrap();
                assert_eq!(2 * steps.len() + 2, SMALL.commands(c.bytes));
                let queue = &mut self.streams.iter_mut().find(|(s, _)| *s == c.stream).unwrap().1;
                queue.push_back(Command::Begin(token));
                for s in steps {
                    queue.extend(s.words.into_iter().map(Command::Word));
                    queue.push_back(Command::Piece { token, at: s.at, offset: s.offset, bytes: s.bytes });
                }
                queue.extend(last.into_iter().map(Command::Word));
                queue.push_back(Command::End(token));
                self.submitted += 1;
            }
            Actor::Gpu(stream) => {
                let command = self.streams.iter_mut().find(|(s, _)| *s == stream).unwrap().1.pop_front().unwrap();
                self.carry_out(command);
            }
            Actor::Connection(i) => return self.carry(i),
        }
        true
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Word(Word::Write(at, value)) => {
                // SAFETY: as in `can`.
                let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
                word.store(value, Ordering::Release);
            }
            Command::Word(Word::Wait(..)) => {}
            Command::Begin(token) => self.reached.push(token),
            Command::Piece { token, at, offset, bytes } => {
                // SAFETY: a region of an area; the model has one thread.
                let region = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) };
                for (b, o) in region.iter_mut().zip(offset..) {
                    if self.copies[token as usize].to_device {
                        assert_eq!(*b, byte(token, o), "the GPU read copy {token} at {o} before it was there");
                        // Whoever reads it again finds something else.
                        *b = !*b;
                    } else {
                        *b = byte(token, o);
                    }
                }
            }
            Command::End(token) => {
                let c = self.copies[token as usize];
                assert!(
                    c.to_device || self.arrived[&token] == c.bytes,
                    "work behind copy {token} began before its bytes arrived"
                );
                self.ended += 1;
            }
        }
    }

    fn carry(&mut self, i: usize) -> bool {
        let (to_device, held) = &mut self.connections[i];
        let Some(mut segment) = held.take() else {
            *held = self.staging.try_next(*to_device);
            if let Some(s) = held {
                let late = *to_device && self.copies[s.token as usize].late;
                assert!(!late || self.reached.contains(&s.token), "the bytes of late copy {} were asked for too early", s.token);
            }
            return held.is_some();
        };
        let (token, offset) = (segment.token, segment.offset);
        if *to_device {
            segment.bytes_mut().unwrap().iter_mut().zip(offset..).for_each(|(b, o)| *b = byte(token, o));
        } else {
            assert!(segment.bytes().unwrap().iter().zip(offset..).all(|(b, o)| *b == byte(token, o)), "copy {token} at {offset}");
            *self.arrived.entry(token).or_default() += segment.size() as u64;
        }
        self.staging.over(&segment);
        true
    }
}

/// Runs copies in one order, to their end.
fn run(copies: &[Copy], connections: &[bool], first: u32, order: &mut dyn Order) {
    let mut streams: Vec<u64> = copies.iter().map(|c| c.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let mut w = World {
        staging: Staging::new(SMALL),
        copies,
        submitted: 0,
        streams: streams.iter().map(|s| (*s, VecDeque::new())).collect(),
        connections: connections.iter().map(|c| (*c, None)).collect(),
        reached: Vec::new(),
        ended: 0,
        arrived: HashMap::new(),
    };
    assert!(w.staging.add(room(SMALL), streams[0]));
    {
        let area = &mut lock(&w.staging.state).areas[0];
        (area.first, area.next, area.carried, area.begun) = (first, first, first, [first; 2]);
        area.room.carried().store(first, Ordering::Release);
        area.room.done().store(first, Ordering::Release);
    }
    let actors = || {
        let gpu = streams.iter().map(|s| Actor::Gpu(*s));
        [Actor::Submit].into_iter().chain(gpu).chain((0..connections.len()).map(Actor::Connection))
    };
    while w.ended < copies.len() {
        let mut left: Vec<Actor> = actors().filter(|a| w.can(*a)).collect();
        loop {
            assert!(!left.is_empty(), "nothing can go on");
            let at = if left.len() == 1 { 0 } else { order.choose(left.len()) };
            if w.step(left.remove(at)) {
                break;
            }
        }
        assert!(w.staging.awaits_bytes() || !w.any_waits_for_bytes(), "a stream waits for bytes, which the areas do not say");
    }
    assert!(!w.staging.awaits_bytes());
    assert!(lock(&w.staging.state).areas.iter_mut().all(Area::is_idle));
}

#[test]
fn short_copies_in_all_orders() {
    for copies in [
        vec![copy(1, 6, true, false)],
        vec![copy(1, 6, false, false)],
        vec![copy(1, 2, true, true), copy(1, 1, false, false)],
        vec![copy(1, 1, false, false), copy(1, 2, true, true)],
        vec![copy(1, 1, true, false), copy(2, 1, false, false)],
    ] {
        let (mut order, mut n) = (All::default(), 0);
        loop {
            run(&copies, &[true, false], 0, &mut order);
            n += 1;
            if n == 30_000 || !order.next() {
                break;
            }
        }
        assert!(n > 10);
    }
}

#[test]
fn many_copies_in_random_orders() {
    for seed in 0..1500 {
        let mut random = Random(seed);
        let n = 1 + random.choose(9);
        let copies: Vec<Copy> = (0..n)
            .map(|_| {
                let (stream, pages) = (random.choose(4) as u64, 1 + random.choose(40) as u64);
                copy(stream, pages, random.choose(2) == 0, random.choose(3) == 0)
            })
            .collect();
        // Numbers that wrap around in the middle.
        let first = 0u32.wrapping_sub(random.choose(12) as u32);
        run(&copies, &[true, true, false, true, false, false], first, &mut random);
    }
}

#[test]
fn more_streams_than_areas_are_refused() {
    let s = Staging::new(SMALL);
    for stream in 0..AREAS as u64 {
        assert!(s.lacks_area(stream) && s.add(room(SMALL), stream));
        assert!(s.begin(stream, stream, 1, true, false).is_some());
    }
    assert!(s.lacks_area(99) && !s.add(room(SMALL), 99) && s.begin(99, 99, 1, true, false).is_none());
    assert!(!s.lacks_area(3) && s.begin(3, 100, 1, true, false).is_some());
}

/// The copies of the next segments, which are carried at once.
fn next(s: &Staging, segments: usize) -> Vec<u64> {
    let carry = |segment: Segment| {
        s.over(&segment);
        segment.token
    };
    (0..segments).map_while(|_| s.try_next(true).map(carry)).collect()
}

/// Begins a copy to the device of a stream that has an area; its token is the stream.
fn begin(s: &Staging, stream: u64, pages: u64) {
    s.begin(stream, stream, pages * PAGE as u64, true, false).unwrap();
}

#[test]
fn of_equal_copies_the_first_is_complete_early_and_the_others_go_on() {
    let s = Staging::new(SMALL);
    for stream in 0..3 {
        assert!(s.add(room(SMALL), stream));
        begin(&s, stream, 4);
    }
    let order = next(&s, 12);
    let last = [0, 1, 2].map(|stream| order.iter().rposition(|t| *t == stream).unwrap());
    assert!(last[0] <= 5 && last[0] < last[1] && last[1] < last[2], "{order:?}");
}

/// Also a copy in the middle of which it begins.
#[test]
fn a_short_copy_does_not_wait_for_a_long_one() {
    let s = Staging::new(SMALL);
    (0..3).for_each(|stream| assert!(s.add(room(SMALL), stream)));
    begin(&s, 0, 1000);
    begin(&s, 1, 500);
    for carried in 0..4 {
        begin(&s, 2, 2);
        let order = next(&s, 4);
        assert!(order.iter().filter(|t| **t == 2).count() == 2, "after {carried}: {order:?}");
        // The GPU makes the copies.
        for area in &lock(&s.state).areas {
            area.room.done().store(area.carried, Ordering::Release);
        }
    }
}

/// However many short ones there are.
#[test]
fn a_long_copy_does_not_wait_for_ever() {
    let s = Staging::new(SMALL);
    (0..2).for_each(|stream| assert!(s.add(room(SMALL), stream)));
    begin(&s, 0, 1000);
    let mut long = 0;
    for _ in 0..40 {
        begin(&s, 1, 1);
        long += next(&s, 2).iter().filter(|t| **t == 0).count();
        for area in &lock(&s.state).areas {
            area.room.done().store(area.carried, Ordering::Release);
        }
    }
    assert!(long >= 20, "{long} of 80");
}

#[test]
fn segments_of_shared_memory_are_as_long_as_what_has_one_lock_in_the_kernel() {
    let sizes = Sizes { region: 8 << 20, piece: 2 << 20, segment: [256 << 10, 1 << 20] };
    let of = |copy: u64, is_shared| sizes.segment_of(sizes.pieces_of(copy) as usize, copy, is_shared);
    assert_eq!([1, 8, 16, 512].map(|mib| of(mib << 20, true)), [256 << 10, 1 << 20, 2 << 20, 2 << 20]);
    assert_eq!([1, 8, 16, 512].map(|mib| of(mib << 20, false)), [256 << 10, 256 << 10, 512 << 10, 1 << 20]);
}

#[test]
fn segments_outlive_their_area() {
    let s = Staging::new(SMALL);
    assert!(s.add(room(SMALL), 1));
    s.begin(1, 7, 3 * PAGE as u64, true, false).unwrap();
    let mut segment = s.next(true);
    s.let_go();
    drop(s.end());
    segment.bytes_mut().unwrap().fill(1);
    s.over(&segment);
    assert!(s.try_next(true).is_none() && s.lacks_area(1));
}

#[test]
fn a_waiting_connection_gets_what_comes() {
    let s = Arc::new(Staging::new(SMALL));
    assert!(s.add(room(SMALL), 1));
    let connections: Vec<_> = (0..4)
        .map(|_| {
            let s = s.clone();
            std::thread::spawn(move || s.over(&s.next(true)))
        })
        .collect();
    let (steps, last) = s.begin(1, 7, 4 * PAGE as u64, true, false).unwrap();
    connections.into_iter().for_each(|c| c.join().unwrap());
    let [Word::Write(_, 4)] = last[..] else { panic!("{last:?}") };
    let Word::Wait(carried, _) = steps[0].words[1] else { panic!() };
    // SAFETY: a word of the area.
    assert_eq!(unsafe { AtomicU32::from_ptr(carried as *mut u32) }.load(Ordering::Acquire), 4);
}

#[test]
fn the_job_is_asked_as_long_as_it_has_changes_and_there_is_room() {
    let s = Staging::new(SMALL);
    assert!(!s.begin_from_job() && s.try_ask().is_none(), "there are no connections");
    s.begin_to_carry_changes();
    assert!(s.try_ask().is_none() && s.try_next_to_host().is_none());
    for round in 1..3 {
        assert!(s.begin_from_job());
        assert!(matches!(s.try_next_to_host(), Some(ToHost::Ask(asked)) if asked == round));
        let mut asked = 1;
        while let Some(number) = s.try_ask() {
            assert_eq!(number, round);
            asked += 1;
        }
        assert!((8..64).contains(&asked), "{asked} messages may be in memory");
        // What has come, and what is being applied, takes room.
        (0..asked - 1).for_each(|_| s.answered(Some(s.buffer())));
        let first = s.next_from_job().unwrap();
        assert!(s.try_ask().is_none());
        s.give_back(first);
        assert!(s.try_ask().is_some() && s.try_ask().is_none());
        // The one that has no more; another one was asked before.
        s.answered(None);
        (1..asked - 1).for_each(|_| s.give_back(s.next_from_job().unwrap()));
        assert!(s.try_ask().is_none());
        std::thread::scope(|scope| {
            let last = scope.spawn(|| s.next_from_job().is_none());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!last.is_finished(), "a question was not answered");
            s.answered(None);
            assert!(last.join().unwrap());
        });
        s.end_from_job();
    }
}

#[test]
fn a_connection_that_waits_asks_for_changes_of_the_job() {
    let s = Staging::new(SMALL);
    s.begin_to_carry_changes();
    let (rounds, answers) = (std::sync::Mutex::new(Vec::new()), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (s, rounds, answers) = (&s, &rounds, &answers);
            scope.spawn(move || {
                let ToHost::Ask(round) = s.next_to_host() else { panic!("there is nothing else") };
                lock(rounds).push(round);
                answers.fetch_add(1, Ordering::Release);
                // One of them gets changes.
                s.answered((number == 1).then(|| s.buffer()));
            });
        }
        while lock(&s.state).waiting[0] < 3 {
            std::thread::yield_now();
        }
        // Those that come too late for a round ask in a later one.
        let mut came = 0;
        while answers.load(Ordering::Acquire) < 3 {
            assert!(s.begin_from_job());
            while let Some(changes) = s.next_from_job() {
                came += 1;
                s.give_back(changes);
                if answers.load(Ordering::Acquire) == 3 {
                    return;
                }
            }
        }
        assert_eq!(came, 1);
    });
    let rounds = lock(&rounds);
    assert!(rounds[0] == 1 && rounds.is_sorted());
}
