use super::*;

/// A test's memory of some pages, and one side's view of it.
struct Side {
    memory: Agreed,
    mirrored: MirroredMemory,
}

/// Enough pages to make tracking worthwhile.
const PAGES: usize = 64;
/// Both sides are the same except for the tracking of writes.
const KINDS: [fn() -> MirroredMemory; 2] = [MirroredMemory::of_place, MirroredMemory::of_job];

impl Side {
    fn new() -> Side {
        Side::of(MirroredMemory::of_place)
    }

    fn of(kind: fn() -> MirroredMemory) -> Side {
        let memory = Agreed::new(PAGES * PAGE as usize).unwrap();
        let mut mirrored = kind();
        // SAFETY: it lives as long as the view.
        unsafe { mirrored.add(memory.at as u64, memory.len as u64) }.unwrap();
        Side { memory, mirrored }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at.cast(), self.memory.len) }
    }

    fn at(&self) -> u64 {
        self.memory.at as u64
    }

    /// Sends changes to another side at another address.
    fn send_to(&mut self, other: &mut Side) -> usize {
        let mut lines = self.mirrored.changes();
        let (from, to) = (self.at(), other.at());
        lines.iter_mut().for_each(|l| l[0] = l[0] - from + to);
        assert!(other.mirrored.take_over(bytes_of(&lines), |_| 0));
        lines.len()
    }
}

fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn changes_of_both_sides_meet_byte_by_byte() {
    KINDS.iter().for_each(|kind| changes_meet(Side::of(*kind), Side::new()));
}

fn changes_meet(mut a: Side, mut b: Side) {
    let mut want = vec![0u8; PAGES * PAGE as usize];
    let mut seed = 7;
    for round in 0..200 {
        // One side writes even bytes, the other one odd bytes.
        for _ in 0..random(&mut seed) % 300 {
            let (at, value) = (random(&mut seed) % want.len(), random(&mut seed) as u8);
            want[at] = value;
            if at % 2 == 0 { a.bytes()[at] = value } else { b.bytes()[at] = value }
        }
        if round % 5 == 0 {
            let start = (random(&mut seed) % (want.len() - 9000)) & !1;
            for i in (start..start + 9000).step_by(2) {
                want[i] = round as u8;
                a.bytes()[i] = round as u8;
            }
        }
        if round % 2 == 0 {
            a.send_to(&mut b);
            b.send_to(&mut a);
        } else {
            b.send_to(&mut a);
            a.send_to(&mut b);
        }
        assert!(a.bytes() == &want[..] && b.bytes() == &want[..], "round {round}");
    }
    assert_eq!(a.send_to(&mut b) + b.send_to(&mut a), 0, "what both hold is not sent again");
}

#[test]
fn one_s_own_change_stays_and_is_reported() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.bytes()[100] = 1;
    b.bytes()[100] = 2;
    a.send_to(&mut b);
    assert_eq!(b.bytes()[100], 2);
    b.send_to(&mut a);
    assert_eq!(a.bytes()[100], 2);
    assert_eq!(a.send_to(&mut b) + b.send_to(&mut a), 0);
    // Both have sent before they received: one of them gives its own changes precedence.
    a.bytes()[100] = 3;
    b.bytes()[100] = 4;
    let (mut from_a, mut from_b) = (a.mirrored.changes(), b.mirrored.changes());
    from_a.iter_mut().for_each(|l| l[0] = l[0] - a.at() + b.at());
    from_b.iter_mut().for_each(|l| l[0] = l[0] - b.at() + a.at());
    let sent = from_a[0][1];
    assert!(a.mirrored.take_over(bytes_of(&from_b), |_| sent) && b.mirrored.take_over(bytes_of(&from_a), |_| 0));
    assert_eq!((a.bytes()[100], b.bytes()[100]), (3, 3));
    assert_eq!(a.send_to(&mut b) + b.send_to(&mut a), 0);
}

#[test]
fn other_memory_is_left_alone() {
    let (mut a, mut b) = (Side::new(), Side::new());
    a.bytes()[0] = 9;
    let mut lines = a.mirrored.changes();
    lines[0][0] = b.at() + b.memory.len as u64;
    assert!(!b.mirrored.take_over(bytes_of(&lines), |_| 0));
    lines[0][0] = b.at() + 8;
    assert!(!b.mirrored.take_over(bytes_of(&lines), |_| 0), "lines begin at lines");
    assert!(b.bytes().iter().all(|x| *x == 0));
}

#[test]
fn ends_and_what_stands_alone_come_last() {
    let mut a = Side::new();
    a.bytes()[..1000].fill(1);
    a.bytes()[5000] = 1;
    let lines: Vec<u64> = a.mirrored.changes().iter().map(|l| (l[0] - a.at()) / LINE).collect();
    assert_eq!(lines, (1..15).rev().chain([15, 0, 78]).collect::<Vec<_>>());
}

/// One thread writes words at scattered addresses in order: the changes sent are the contents at one moment, or are not claimed to
/// be.
#[test]
fn what_was_written_before_is_sent_before() {
    KINDS.iter().for_each(|kind| answered_before(Side::of(*kind), Side::new()));
}

fn answered_before(a: Side, mut b: Side) {
    let (from, to) = (a.at(), b.at());
    let words = PAGES * PAGE as usize / 8;
    // A step permutes all words so that neighbours are far apart.
    let order: Vec<u64> = (0..words as u64).map(|i| i * 1237 % words as u64).collect();
    const ROUNDS: u64 = 60;
    let mut moments = 0;
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            for round in 1..=ROUNDS {
                for (n, at) in order.iter().enumerate() {
                    // SAFETY: inside the memory, which outlives the thread.
                    unsafe { word(from + 8 * at) }.store(round, Ordering::Release);
                    if n % 1500 == round as usize {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                }
            }
        });
        let Side { memory, mut mirrored } = a;
        loop {
            let done = writer.is_finished();
            let (mut lines, whole) = mirrored.collect();
            lines.iter_mut().for_each(|l| l[0] = l[0] - from + to);
            assert!(b.mirrored.take_over(bytes_of(&lines), |_| 0));
            // SAFETY: as above.
            let seen: Vec<u64> = order.iter().map(|at| unsafe { word(to + 8 * at) }.load(Ordering::Relaxed)).collect();
            if whole {
                assert!(seen.windows(2).all(|w| w[0] >= w[1]) && seen[0] - seen[words - 1] <= 1);
                moments += usize::from(!lines.is_empty());
            }
            if done && lines.is_empty() {
                assert!(seen.iter().all(|v| *v == ROUNDS));
                break;
            }
        }
        drop(memory);
    });
    assert!(moments > 1, "all at once");
}

#[test]
fn who_never_stops_is_not_waited_for() {
    KINDS.iter().for_each(|kind| not_waited_for(Side::of(*kind), Side::new()));
}

#[test]
fn who_never_stops_is_not_ahead_of_its_half_words() {
    for kind in KINDS {
        [1, 2, 4].into_iter().for_each(|width| half_words(Side::of(kind), Side::new(), width));
    }
}

/// A ring of elements of some bytes that are written in order, and a counter behind them that never stops.
fn half_words(a: Side, mut b: Side, width: u64) {
    const ELEMENTS: u64 = 6000;
    let (from, to, counter) = (a.at(), b.at(), 60 * PAGE);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let turn = |n: u64| n / ELEMENTS % 250 + 1;
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let at = from + PAGE + width * (n % ELEMENTS);
                // SAFETY: inside the memory, which outlives the thread; multiples of the size.
                unsafe {
                    match width {
                        1 => AtomicU8::from_ptr(at as *mut u8).store(turn(n) as u8, Ordering::Release),
                        2 => AtomicU16::from_ptr(at as *mut u16).store(turn(n) as u16, Ordering::Release),
                        _ => AtomicU32::from_ptr(at as *mut u32).store(turn(n) as u32, Ordering::Release),
                    }
                    word(from + counter).store(n, Ordering::Release);
                }
                (0..20).for_each(|_| std::hint::spin_loop());
            }
        });
        let Side { memory, mut mirrored } = a;
        let mut wrong = None;
        for _ in 0..300 {
            let mut lines = mirrored.changes();
            lines.iter_mut().for_each(|l| l[0] = l[0] - from + to);
            assert!(b.mirrored.take_over(bytes_of(&lines), |_| 0));
            // SAFETY: as above.
            let count = unsafe { word(to + counter) }.load(Ordering::Relaxed);
            let at = (PAGE + width * (count % ELEMENTS)) as usize;
            let element = (0..width as usize).fold(0, |all, i| all | u64::from(b.bytes()[at + i]) << (8 * i));
            // The element of this turn, or of one that came after it.
            if count > 0 && (element + 250 - turn(count)) % 250 > 100 {
                wrong.get_or_insert((count, element, turn(count)));
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(wrong, None, "the counter is ahead of its element of {width} bytes");
        drop(memory);
    });
}

fn not_waited_for(a: Side, mut b: Side) {
    let (from, to) = (a.at(), b.at());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        // First a word somewhere, then the counter that announces it.
        let writer = s.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                // SAFETY: inside the memory, which outlives the thread.
                unsafe { word(from + PAGE + 8 * (n % 6000)) }.store(n, Ordering::Release);
                // SAFETY: as above.
                unsafe { word(from) }.store(n, Ordering::Release);
            }
        });
        let Side { memory, mut mirrored } = a;
        // SAFETY: as above.
        while unsafe { word(from) }.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let (mut last, mut right) = (0, true);
        for _ in 0..200 {
            let mut lines = mirrored.changes();
            lines.iter_mut().for_each(|l| l[0] = l[0] - from + to);
            right &= b.mirrored.take_over(bytes_of(&lines), |_| 0);
            // SAFETY: as above.
            let at = |n: u64| unsafe { word(to + n) }.load(Ordering::Relaxed);
            let count = at(0);
            right &= count >= last && (count == 0 || at(PAGE + 8 * (count % 6000)) >= count);
            last = count;
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        // Checked only now: a running writer would keep a failing test from ending.
        assert!(right, "the counter is ahead of its word");
        drop(memory);
        assert!(last > 0);
    });
}

#[test]
fn a_flag_comes_with_its_data_beside_a_counter_that_never_stops() {
    KINDS.iter().for_each(|kind| flag_beside_counter(Side::of(*kind), Side::new()));
}

fn flag_beside_counter(a: Side, mut b: Side) {
    const MESSAGES: u64 = 300;
    let (from, to) = (a.at(), b.at());
    let (flag, counter, data) = (30 * PAGE + 8, 5 * PAGE, |n: u64| (n * 37 % 60 + 2) * PAGE + 64 * (n % 60) + 16);
    let (stop, answered, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    // SAFETY: inside the memory, which outlives the threads.
    let put = |at: u64, value| unsafe { word(from + at) }.store(value, Ordering::Release);
    std::thread::scope(|s| {
        let counts = s.spawn(|| (1..).take_while(|_| stop.load(Ordering::Relaxed) == 0).for_each(|n| put(counter, n)));
        // Words in many pages, then the flag that announces them; then it waits for the answer.
        let tells = s.spawn(|| {
            for message in 1..=MESSAGES {
                for n in 0..40 {
                    put(data(n), message);
                    (0..message * 7 % 200).for_each(|_| std::hint::spin_loop());
                }
                put(flag, message);
                while answered.load(Ordering::Acquire) < message && failed.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let Side { memory, mut mirrored } = a;
        let mut last = 0;
        while last < MESSAGES && failed.load(Ordering::Relaxed) == 0 {
            let mut lines = mirrored.changes();
            lines.iter_mut().for_each(|l| l[0] = l[0] - from + to);
            // SAFETY: as above.
            let at = |n: u64| unsafe { word(to + n) }.load(Ordering::Relaxed);
            let known = b.mirrored.take_over(bytes_of(&lines), |_| 0);
            let (seen, before) = (at(flag), last);
            last = seen;
            if !known || seen < before || (0..40).any(|n| seen != before && at(data(n)) != seen) {
                failed.store(seen.max(1), Ordering::Relaxed);
            }
            answered.store(seen, Ordering::Release);
        }
        stop.store(1, Ordering::Relaxed);
        counts.join().unwrap();
        tells.join().unwrap();
        assert_eq!(failed.load(Ordering::Relaxed), 0, "a flag came without its data");
        drop(memory);
    });
}

#[test]
fn what_was_found_and_not_sent_is_found_again() {
    for kind in KINDS {
        let mut a = Side::of(kind);
        a.bytes()[9] = 1;
        let (mut changes, at) = (a.mirrored.scan_once(&BTreeSet::new()), a.at());
        assert_eq!((changes.len(), a.mirrored.scan_once(&BTreeSet::new()).len()), (1, 0));
        a.mirrored.undo(&changes.remove(0), u64::MAX);
        // Also if the system does not report the page any more.
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(a.mirrored.changes().iter().map(|l| (l[0], l[1])).collect::<Vec<_>>(), [(at, 1 << 9)]);
        assert!(a.mirrored.changes().is_empty());
    }
}

/// Memory that one side at a time writes to, and more of it than one thread or one part compares.
mod exclusive {
    use super::super::compare::PIECE;
    use super::*;

    const BLOCKS: [usize; 3] = [20 << 20, 3 << 20, PAGE as usize];

    /// One side's blocks, the first address of each on the other side, and its view of them.
    struct Blocks {
        memory: Vec<Agreed>,
        mirrored: MirroredMemory,
    }

    impl Blocks {
        fn new(kind: fn() -> MirroredMemory) -> Blocks {
            let memory: Vec<Agreed> = BLOCKS.iter().map(|len| Agreed::new(*len).unwrap()).collect();
            let mut mirrored = kind();
            for block in &memory {
                // SAFETY: it lives as long as the view.
                unsafe { mirrored.add_exclusive(block.at as u64, block.len as u64) }.unwrap();
            }
            Blocks { memory, mirrored }
        }

        fn bytes(&mut self, block: usize) -> &mut [u8] {
            let Agreed { at, len } = self.memory[block];
            // SAFETY: the mapping, borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(at.cast(), len) }
        }

        /// Lists of changed lines, with the other side's addresses.
        fn found(&mut self, other: &Blocks) -> Vec<Vec<Line>> {
            assert!(self.mirrored.changes().is_empty(), "it is not compared otherwise");
            let (mut touched, mut all) = (self.mirrored.touched(), Vec::new());
            while let Some(lists) = self.mirrored.next_lines(&mut touched) {
                all.extend(lists);
            }
            let pairs: Vec<(u64, u64, u64)> =
                self.memory.iter().zip(&other.memory).map(|(a, b)| (a.at as u64, a.len as u64, b.at as u64)).collect();
            for line in all.iter_mut().flatten() {
                let (from, _, to) = pairs.iter().find(|(at, len, _)| (*at..at + len).contains(&line[0])).unwrap();
                line[0] = line[0] - from + to;
            }
            all
        }

        fn send_to(&mut self, other: &mut Blocks) -> usize {
            let lists = self.found(other);
            for lines in &lists {
                assert!(lines.is_sorted_by_key(|line| line[0]) && lines.len() <= PIECE / LINE as usize);
                assert!(other.mirrored.take_over(bytes_of(lines), |_| 0));
            }
            lists.iter().map(Vec::len).sum()
        }
    }

    #[test]
    fn what_one_side_writes_the_other_one_gets() {
        let (mut a, mut b) = (Blocks::new(MirroredMemory::of_job), Blocks::new(MirroredMemory::of_place));
        let mut seed = 11;
        for round in 0..40u8 {
            let (from, to) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            for block in 0..BLOCKS.len() {
                let bytes = from.bytes(block);
                for _ in 0..random(&mut seed) % 100 {
                    bytes[random(&mut seed) % BLOCKS[block]] = random(&mut seed) as u8;
                }
                if round % 4 < 2 {
                    // Every line of a large part, some of the bytes of each word.
                    let start = random(&mut seed) % (BLOCKS[block] / 2);
                    let step = 1 + random(&mut seed) % 3;
                    bytes[start..].iter_mut().step_by(step).for_each(|byte| *byte = byte.wrapping_add(round | 1));
                }
            }
            assert!(from.send_to(to) > 0);
            assert_eq!(to.send_to(from), 0, "what came from the other side is no change, round {round}");
            assert!((0..BLOCKS.len()).all(|i| a.bytes(i) == b.bytes(i)), "round {round}");
        }
    }

    #[test]
    fn a_block_that_has_ended_meanwhile_is_not_compared() {
        let (mut a, b) = (Blocks::new(MirroredMemory::of_job), Blocks::new(MirroredMemory::of_place));
        (0..BLOCKS.len()).for_each(|i| a.bytes(i).fill(1));
        let mut touched = a.mirrored.touched();
        a.mirrored.remove(a.memory[0].at as u64);
        let (mut lines, mut parts) = (0, 0);
        while let Some(lists) = a.mirrored.next_lines(&mut touched) {
            lines += lists.iter().map(Vec::len).sum::<usize>();
            parts += 1;
        }
        assert_eq!(lines, (BLOCKS[1] + BLOCKS[2]) / LINE as usize);
        assert!((1..5).contains(&parts));
        drop(b);
    }

    #[test]
    fn bytes_beside_those_that_are_taken_over_keep_what_others_write() {
        const LINES: usize = 8000;
        let mut b = Blocks::new(MirroredMemory::of_job);
        let at = b.memory[0].at as u64;
        let done = std::sync::atomic::AtomicBool::new(false);
        // In each line a word of which the other side has one byte, and one of which it has none.
        let beside = |number: usize, word: usize| {
            // SAFETY: a byte of the block, which both threads use by atomic accesses only.
            unsafe { AtomicU8::from_ptr((at as usize + LINE as usize * number + 8 * word + 1) as *mut u8) }
        };
        let last = std::thread::scope(|s| {
            let writer = s.spawn(|| {
                let mut value = 0u8;
                while !done.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    (0..LINES).for_each(|n| [0, 1].iter().for_each(|word| beside(n, *word).store(value, Ordering::Relaxed)));
                }
                value
            });
            for round in 0..200u64 {
                let lines: Vec<Line> = (0..LINES as u64).map(|n| [at + LINE * n, 1, round, 0, 0, 0, 0, 0, 0, 0]).collect();
                assert!(b.mirrored.take_over(bytes_of(&lines), |_| 0));
            }
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert!((0..LINES).all(|n| [0, 1].iter().all(|word| beside(n, *word).load(Ordering::Relaxed) == last)));
        assert!((0..LINES).all(|n| b.bytes(0)[LINE as usize * n] == 199));
    }

    /// As a place sends changes of a block that it keeps in host memory: runs backwards, what is alone last.
    #[test]
    fn lines_in_the_order_of_other_memory_are_all_taken_over() {
        let memory = Agreed::new(BLOCKS[0]).unwrap();
        let mut a = Side { memory, mirrored: MirroredMemory::of_place() };
        // SAFETY: it lives as long as the view.
        unsafe { a.mirrored.add(a.at(), BLOCKS[0] as u64) }.unwrap();
        let mut b = Blocks::new(MirroredMemory::of_job);
        let (from, to) = (a.at(), b.memory[0].at as u64);
        let mut seed = 5;
        for round in 0..20u8 {
            let bytes = a.bytes();
            let line = LINE as usize;
            bytes[..1000 * line].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            for number in (2000..8000).step_by(2).chain((9000..13_000).step_by(2)) {
                let count = if round % 2 > 0 { 1 + random(&mut seed) % 16 } else { 4 + 4 * usize::from(number < 9000) };
                bytes[number * line..number * line + count].iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
            }
            let mut lines = a.mirrored.changes();
            assert!(lines.len() >= 6000 && !lines.is_sorted());
            lines.iter_mut().for_each(|line| line[0] = line[0] - from + to);
            assert!(b.mirrored.take_over(bytes_of(&lines), |_| 0));
            assert!(b.bytes(0) == a.bytes(), "round {round}");
        }
    }

    #[test]
    fn lines_that_are_out_of_order_or_outside_do_no_harm() {
        let mut b = Blocks::new(MirroredMemory::of_place);
        let at = b.memory[0].at as u64;
        let line = |number: usize, word: u64| -> Line { [at + LINE * number as u64, 0xff, word, 0, 0, 0, 0, 0, 0, 0] };
        let all = BLOCKS[0] / LINE as usize;
        let word = |b: &mut Blocks, number: usize| b.bytes(0)[LINE as usize * number];
        // By address, but the last ones are beyond the end.
        let beyond: Vec<Line> = (all - 5000..all + 5000).map(|number| line(number, 1)).collect();
        assert!(!b.mirrored.take_over(bytes_of(&beyond), |_| 0));
        assert!((all - 5000..all).all(|number| word(&mut b, number) == 1));
        // One that is not in its turn, one twice, one beyond the end.
        for (value, (other, known)) in (2..).zip([(0, true), (4499, true), (all - 1, true), (all, false)]) {
            let mut lines: Vec<Line> = (1000..9000).map(|number| line(number, value.into())).collect();
            lines[3500] = line(other, value.into());
            assert_eq!(b.mirrored.take_over(bytes_of(&lines), |_| 0), known, "{other}");
            let want = |number: usize| number == other || (1000..9000).contains(&number) && number != 4500;
            assert!((0..all).all(|number| want(number) == (word(&mut b, number) == value)), "{other}");
        }
        let mut odd: Vec<Line> = (0..8000).map(|number| line(number, 33)).collect();
        odd[100][0] += 8;
        odd[4000][0] += 1;
        odd[7999][0] = u64::MAX - 63;
        assert!(!b.mirrored.take_over(bytes_of(&odd), |_| 0));
        assert!([99, 101, 3999, 4001, 7998].iter().all(|number| word(&mut b, *number) == 33));
        // Backwards, and bytes that this side has precedence for.
        let back: Vec<Line> = (0..8000).rev().map(|number| line(number, 44)).collect();
        assert!(b.mirrored.take_over(bytes_of(&back), |_| 0));
        let forth: Vec<Line> = (0..8000).map(|number| line(number, 55)).collect();
        assert!(b.mirrored.take_over(bytes_of(&forth), |line| if line == at + 64 * 5000 { 1 } else { 0 }));
        assert_eq!((word(&mut b, 5000), word(&mut b, 5001)), (44, 55));
    }
}
