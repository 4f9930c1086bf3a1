//! The live set against a plain model, and against what replaying it must mean.

use journal::{Meta, OwnedRecord, Record, Role, Writer};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

fn live_of(records: &[OwnedRecord]) -> Vec<OwnedRecord> {
    journal::live_of(records.iter().map(OwnedRecord::as_record)).into_iter().map(OwnedRecord::from).collect()
}

fn live_in(w: &Writer) -> Vec<OwnedRecord> {
    w.live().map(|r| r.unwrap().into()).collect()
}

fn record(seq: u64, ordered: bool, creates: &[u64], ends: Option<u64>, uses: &[u64]) -> OwnedRecord {
    OwnedRecord {
        seq,
        id: seq as u16,
        role: if ordered { Role::Stays } else { Role::Plain },
        setting: None,
        device: 0,
        creates: creates.to_vec(),
        ends,
        uses: uses.to_vec(),
        body: seq.to_le_bytes().to_vec(),
        reply: Vec::new(),
    }
}

/// Handles of one history: `make(&[1])`, `end(1)`, `touch(&[1])`; sequence numbers count from 0.
#[derive(Default)]
struct History(Vec<OwnedRecord>);

impl History {
    fn add(&mut self, ordered: bool, creates: &[u64], ends: Option<u64>, uses: &[u64]) -> &mut History {
        self.0.push(record(self.0.len() as u64, ordered, creates, ends, uses));
        self
    }
    fn make(&mut self, creates: &[u64]) -> &mut History {
        self.add(false, creates, None, &[])
    }
    fn from(&mut self, creates: &[u64], uses: &[u64]) -> &mut History {
        self.add(false, creates, None, uses)
    }
    fn touch(&mut self, uses: &[u64]) -> &mut History {
        self.add(false, &[], None, uses)
    }
    fn end(&mut self, handle: u64) -> &mut History {
        self.add(false, &[], Some(handle), &[])
    }
    fn put(&mut self, role: Role, setting: Option<[u64; 2]>, creates: &[u64], ends: Option<u64>, uses: &[u64]) -> &mut History {
        self.0.push(OwnedRecord { role, setting, ..record(self.0.len() as u64, false, creates, ends, uses) });
        self
    }
    fn load(&mut self, handle: u64) -> &mut History {
        self.put(Role::Load, None, &[handle], None, &[])
    }
    fn light(&mut self, handle: u64) -> &mut History {
        self.put(Role::LightLoad, None, &[handle], None, &[])
    }
    fn child(&mut self, handle: u64, of: u64) -> &mut History {
        self.put(Role::Child, None, &[handle], None, &[of])
    }
    fn set(&mut self, setting: [u64; 2], uses: &[u64]) -> &mut History {
        self.put(Role::Plain, Some(setting), &[], None, uses)
    }
    /// Without the model, which knows nothing of code and settings.
    fn left(&self) -> Vec<u64> {
        let live = live_of(&self.0);
        assert_eq!(live_of(&live), live, "the live set of a live set is itself");
        live.into_iter().map(|r| r.seq).collect()
    }
    fn live(&self) -> Vec<u64> {
        let live = live_of(&self.0);
        assert_eq!(live, model(&self.0), "the model agrees");
        live.into_iter().map(|r| r.seq).collect()
    }
}

#[test]
fn a_created_handle_goes_with_its_end_and_with_what_was_done_to_it() {
    let mut h = History::default();
    h.make(&[1]).make(&[2]).touch(&[1]).touch(&[2]).end(1);
    assert_eq!(h.live(), [1, 3]);
}

#[test]
fn several_handles_of_one_call_go_together() {
    let mut h = History::default();
    h.make(&[1, 2]).end(1);
    assert_eq!(h.live(), [0, 1]);
    h.end(2);
    assert!(h.live().is_empty());
}

#[test]
fn what_something_alive_was_made_from_stays_with_all_that_was_done_to_it() {
    let mut h = History::default();
    // A graph, a node of it, an instance; the graph is destroyed.
    h.make(&[1]).touch(&[1]).from(&[2], &[1]).end(1);
    assert_eq!(h.live(), [0, 1, 2, 3]);
    h.end(2);
    assert!(h.live().is_empty());
}

#[test]
fn ordered_records_stay_and_so_does_what_they_end_or_need() {
    let mut h = History::default();
    h.add(true, &[1], None, &[]).touch(&[1]).add(true, &[], Some(1), &[]);
    assert_eq!(h.live(), [0, 2], "a module's load and unload stay, an attribute of it goes");
    h.make(&[2]).add(true, &[], Some(2), &[]);
    assert_eq!(h.live(), [0, 2, 3, 4]);
    h.make(&[3]).add(true, &[], None, &[3]).end(3);
    assert_eq!(h.live(), [0, 2, 3, 4, 5, 6, 7]);
    h.add(true, &[4], None, &[]).end(4);
    assert_eq!(h.live(), [0, 2, 3, 4, 5, 6, 7, 8, 9], "what ends an ordered handle stays");
}

#[test]
fn what_has_no_edges_or_unknown_ones_stays() {
    let mut h = History::default();
    h.touch(&[]).touch(&[]).touch(&[9]).end(9).make(&[9]).end(9);
    assert_eq!(h.live(), [0, 1, 2, 3]);
}

#[test]
fn a_number_lives_again() {
    let mut h = History::default();
    h.make(&[1]).touch(&[1]).end(1).make(&[1]).touch(&[1]);
    assert_eq!(h.live(), [3, 4]);
}

#[test]
fn a_handle_made_twice_ends_twice() {
    let mut h = History::default();
    h.make(&[1]).make(&[1]).end(1);
    assert_eq!(h.live(), [0, 1, 2]);
    h.end(1);
    assert!(h.live().is_empty());
}

#[test]
fn a_record_goes_with_the_first_handle_that_it_uses_and_needs_the_others() {
    let mut h = History::default();
    h.make(&[1]).make(&[2]).touch(&[1, 2]).end(2);
    assert_eq!(h.live(), [0, 1, 2, 3]);
    h.end(1);
    assert!(h.live().is_empty());
    let mut h = History::default();
    h.make(&[1]).make(&[2]).touch(&[1, 2]).end(1);
    assert_eq!(h.live(), [1]);
}

#[test]
fn handles_that_need_each_other_die_together() {
    let mut h = History::default();
    h.make(&[1]).make(&[2]).touch(&[1, 2]).touch(&[2, 1]).end(1);
    assert_eq!(h.live(), [0, 1, 2, 3, 4]);
    h.end(2);
    assert!(h.live().is_empty());
}

#[test]
fn code_that_came_and_went_alone_leaves_no_trace() {
    let mut h = History::default();
    h.load(1).load(2).child(20, 2).touch(&[20]).end(2).load(3);
    assert_eq!(h.left(), [0, 5]);
    // In whatever order, as long as nothing that stays was loaded in between.
    let mut h = History::default();
    h.load(1).load(2).load(3).end(2).light(4).end(3).end(4);
    assert_eq!(h.left(), [0]);
    let mut h = History::default();
    h.load(1).load(2).load(3).load(4).end(2).end(4).end(3);
    assert_eq!(h.left(), [0]);
}

#[test]
fn a_load_and_its_unload_stay_for_what_was_loaded_between_them() {
    let mut h = History::default();
    h.load(1).child(10, 1).touch(&[10]).load(2).end(1);
    assert_eq!(h.left(), [0, 3, 4], "what was done to it goes");
    h.load(3);
    assert_eq!(h.left(), [0, 3, 4, 5]);
    h.end(2);
    assert_eq!(h.left(), [0, 3, 4, 5, 6], "it was there when the third one was loaded");
    h.end(3);
    assert!(h.left().is_empty());
}

#[test]
fn an_array_beside_a_load_counts_as_one_as_long_as_it_is_kept() {
    let mut h = History::default();
    // The array lies behind the first module, and the second one beside both.
    h.load(1).make(&[7]).end(1).put(Role::Load, None, &[2], None, &[7]).end(7);
    assert_eq!(h.left(), [0, 1, 2, 3, 4]);
    h.end(2);
    assert!(h.left().is_empty());
    // One that nothing is loaded beside is only an array.
    let mut h = History::default();
    h.load(1).make(&[7]).end(1).load(2);
    assert_eq!(h.left(), [1, 3]);
}

#[test]
fn what_changes_the_context_counts_as_a_load() {
    let mut h = History::default();
    h.load(1).put(Role::Stays, Some([0, 1]), &[], None, &[]).end(1);
    assert_eq!(h.left(), [0, 1, 2]);
    h.put(Role::Stays, Some([0, 1]), &[], None, &[]);
    assert_eq!(h.left(), [3], "overtaken");
}

#[test]
fn children_end_with_their_parents_and_earlier_if_they_are_ended() {
    let mut h = History::default();
    h.load(1).child(10, 1).child(11, 1).touch(&[11]).child(12, 10).end(10);
    assert_eq!(h.left(), [0, 2, 3]);
    h.end(1);
    assert!(h.left().is_empty());
    // Something alive that was made of a child keeps all of it.
    let mut h = History::default();
    h.load(1).child(10, 1).from(&[5], &[10]).end(1);
    assert_eq!(h.left(), [0, 1, 2, 3]);
    h.end(5);
    assert!(h.left().is_empty());
}

#[test]
fn of_a_setting_the_last_record_counts() {
    let mut h = History::default();
    h.make(&[1]).set([1, 5], &[1]).set([1, 6], &[1]).set([1, 5], &[1]).set([0, 5], &[]).set([0, 5], &[]);
    assert_eq!(h.left(), [0, 2, 3, 5]);
    h.end(1);
    assert_eq!(h.left(), [5]);
    // The same handle later is another one.
    h.make(&[1]).set([1, 5], &[1]);
    assert_eq!(h.left(), [5, 7, 8]);
}

/// Feeds a journal as a job does that runs for long; the most live records and bytes after its beginning.
fn long(n: u64, each: impl Fn(u64, &mut dyn FnMut(Role, Option<[u64; 2]>, &[u64], Option<u64>, &[u64]))) -> (usize, u64) {
    let mut w = Writer::in_memory().unwrap();
    let body = [7; 1000];
    let mut most = (0, 0);
    for i in 0..n {
        each(i, &mut |role, setting, creates, ends, uses| {
            let body = if matches!(role, Role::Load | Role::LightLoad) { &body[..] } else { &body[..20] };
            w.append(&Record { seq: i, id: 1, role, setting, device: 0, creates, ends, uses, body, reply: &[] }).unwrap();
        });
        if i > n / 2 && i % (n / 16) == 0 {
            most = (most.0.max(w.live_count()), most.1.max(w.bytes()));
        }
    }
    most
}

#[test]
fn a_million_loads_and_unloads_leave_a_journal_of_what_is_loaded() {
    let pairs = long(1_000_000, |i, put| {
        let (module, function) = (3 * i + 10, 3 * i + 11);
        put(Role::Load, None, &[module], None, &[]);
        put(Role::Child, None, &[function], None, &[module]);
        put(Role::Plain, Some([function, 4]), &[], None, &[function]);
        put(Role::Plain, None, &[], Some(module), &[]);
    });
    assert!(pairs.0 < 8 && pairs.1 < 8 << 20, "{pairs:?}");
}

#[test]
fn a_sliding_window_of_loads_leaves_a_bounded_journal() {
    for role in [Role::Load, Role::LightLoad] {
        let (records, bytes) = long(300_000, |i, put| {
            put(role, None, &[i + 10], None, &[]);
            if i >= 3 {
                put(Role::Plain, None, &[], Some(i + 7), &[]);
            }
        });
        assert!(records < 2 * 1024 + 8 && bytes < 16 << 20, "{records} records, {bytes} bytes");
    }
}

/// Windows of so many modules: with each load the oldest one is unloaded. Every second one has variables if `mixed`. The most live
/// records beside those of the window, and bytes, after each load.
fn windows(size: u64, loads: u64, mixed: bool) -> (usize, u64) {
    let mut w = Writer::in_memory().unwrap();
    let body = [7; 1000];
    let mut most = (0, 0);
    for i in 0..loads {
        let role = if mixed && i % 2 == 0 { Role::LightLoad } else { Role::Load };
        let mut put = |role, creates: &[u64], ends: Option<u64>, uses: &[u64], setting| {
            let body = if ends.is_none() { &body[..] } else { &body[..20] };
            w.append(&Record { seq: i, id: 1, role, setting, device: 0, creates, ends, uses, body, reply: &[] }).unwrap();
        };
        let (module, function) = (2 * i + 10, 2 * i + 11);
        put(role, &[module], None, &[], None);
        put(Role::Child, &[function], None, &[module], None);
        put(Role::Plain, &[], None, &[function], Some([function, 8]));
        if i >= size {
            put(Role::Plain, &[], Some(module - 2 * size), &[], None);
        }
        if i % (loads / 50) == 0 {
            most = (most.0.max(w.live_count().saturating_sub(3 * size as usize)), most.1.max(w.bytes()));
        }
    }
    most
}

#[test]
fn windows_of_any_size_leave_a_journal_of_no_more_than_the_limit() {
    for size in [1, 2, 7, 64] {
        for mixed in [false, true] {
            let (records, bytes) = windows(size, 100_000, mixed);
            // A load and an unload each of at most 1023 modules (docs/migration.md, "What the journal keeps"); what was done to them is gone. In memory dead
            // records may take as much as the live ones, and 1 MiB.
            assert!(records <= 2 * 1023 + 4, "{size}, {mixed}: {records} records");
            assert!(bytes < 16 << 20, "{size}, {mixed}: {bytes} bytes");
        }
    }
    // What the limit is for: without it two for each load would stay.
    assert!(windows(1, 1_000, false).0 > 1_900);
}

#[test]
fn ten_million_settings_leave_a_journal_of_those_that_hold() {
    let (records, bytes) = long(10_000_000, |i, put| {
        if i == 0 {
            put(Role::Load, None, &[1], None, &[]);
            put(Role::Child, None, &[2], None, &[1]);
        }
        put(Role::Plain, Some([2, i % 5]), &[], None, &[2]);
    });
    assert!(records == 7 && bytes < 4 << 20, "{records} records, {bytes} bytes");
}

/// A handle from its creation until it has been ended as often as it was created.
struct Life {
    times: u32,
    /// Made by a record that stays whatever happens.
    rooted: bool,
    members: Vec<usize>,
}

/// The rules as implications between records and lives, followed until nothing changes.
fn model(history: &[OwnedRecord]) -> Vec<OwnedRecord> {
    let mut lives: Vec<Life> = Vec::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut stays = vec![false; history.len()];
    // Lives that a record needs if it is kept.
    let mut needs: Vec<Vec<usize>> = vec![Vec::new(); history.len()];
    for (i, r) in history.iter().enumerate() {
        let known = |h: &u64| open.get(h).copied();
        let ended = r.ends.map(|h| known(&h));
        let rooted = |l: usize| lives[l].rooted;
        stays[i] = (r.role == Role::Stays)
            || ended.is_some_and(|l| l.is_none_or(rooted))
            || (r.ends.is_none() && r.creates.iter().filter_map(known).any(rooted))
            || (r.ends.is_none() && r.creates.is_empty() && r.uses.iter().filter_map(known).next().is_none());
        needs[i].extend(r.uses.iter().filter_map(known));
        if !stays[i] && r.ends.is_none() && r.creates.is_empty() {
            lives[needs[i][0]].members.push(i);
        }
        if let Some(Some(l)) = ended {
            if !stays[i] {
                lives[l].members.push(i);
            }
            if !lives[l].rooted {
                needs[i].push(l);
            }
            lives[l].times -= 1;
            if lives[l].times == 0 {
                open.retain(|_, x| *x != l);
            }
        }
        let mut fresh = Vec::new();
        for h in &r.creates {
            match open.get(h) {
                Some(l) => {
                    lives[*l].times += 1;
                    lives[*l].members.push(i);
                    needs[i].push(*l);
                }
                None => {
                    lives.push(Life { times: 1, rooted: stays[i], members: vec![i] });
                    open.insert(*h, lives.len() - 1);
                    fresh.push(lives.len() - 1);
                }
            }
        }
        if !stays[i] {
            needs[i].extend(fresh);
        }
    }
    let mut kept = stays;
    let mut alive: Vec<bool> = lives.iter().map(|l| l.times > 0).collect();
    loop {
        let mut changed = false;
        for i in (0..history.len()).filter(|i| kept[*i]) {
            for l in &needs[i] {
                changed |= !std::mem::replace(&mut alive[*l], true);
            }
        }
        for l in (0..lives.len()).filter(|l| alive[*l]) {
            for i in &lives[l].members {
                changed |= !std::mem::replace(&mut kept[*i], true);
            }
        }
        if !changed {
            return history.iter().zip(kept).filter(|(_, k)| *k).map(|(r, _)| r.clone()).collect();
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
    fn some(&mut self, most: u64, handles: u64) -> Vec<u64> {
        (0..self.below(most + 1)).map(|_| self.below(handles)).collect()
    }
}

/// Any record at all: most are odd, many make no sense.
fn wild(random: &mut Random, seq: u64, handles: u64) -> OwnedRecord {
    let ordered = random.below(20) == 0;
    let ends = (random.below(3) == 0).then(|| random.below(handles));
    let creates = if random.below(2) == 0 { random.some(3, handles) } else { Vec::new() };
    let uses = random.some(3, handles);
    record(seq, ordered, &creates, ends, &uses)
}

/// What a job does: makes, changes and ends handles that exist, with an ordered record now and then.
fn sane(random: &mut Random, seq: u64, open: &mut Vec<u64>) -> OwnedRecord {
    let pick = |random: &mut Random, open: &[u64]| open.get(random.below(open.len().max(1) as u64) as usize).copied();
    match random.below(100) {
        0..2 => record(seq, true, &[seq + 1000], None, &[]),
        2..45 => {
            let uses: Vec<u64> = if random.below(4) == 0 { pick(random, open).into_iter().collect() } else { Vec::new() };
            // Numbers come back, as addresses do.
            let handle = 100 + random.below(300);
            if open.contains(&handle) {
                return record(seq, false, &[], None, &[handle]);
            }
            open.push(handle);
            record(seq, false, &[handle], None, &uses)
        }
        45..85 if !open.is_empty() => {
            let at = random.below(open.len() as u64) as usize;
            record(seq, false, &[], Some(open.swap_remove(at)), &[])
        }
        _ => {
            let uses: Vec<u64> = (0..1 + random.below(2)).filter_map(|_| pick(random, open)).collect();
            record(seq, false, &[], None, &uses)
        }
    }
}

fn histories() -> Vec<Vec<OwnedRecord>> {
    let mut all = Vec::new();
    for seed in 1..=3000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let handles = 2 + random.below(12);
        all.push((0..1 + random.below(40)).map(|seq| wild(&mut random, seq, handles)).collect());
    }
    // Long enough that dead records are swept out on the way.
    for seed in 1..=6u64 {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        all.push((0..6000).map(|seq| wild(&mut random, seq, 5000)).collect());
        let mut open = Vec::new();
        all.push((0..12_000).map(|seq| sane(&mut random, seq, &mut open)).collect());
    }
    all
}

#[test]
fn random_histories_agree_with_the_model() {
    let mut dropped = 0;
    for (n, history) in histories().into_iter().enumerate() {
        let live = live_of(&history);
        assert_eq!(live, model(&history), "history {n}");
        assert_eq!(live_of(&live), live, "history {n}: the live set of a live set is itself");
        dropped += history.len() - live.len();
    }
    assert!(dropped > 30_000, "the histories are worth testing: {dropped}");
}

/// How often each handle is open.
fn state(records: &[OwnedRecord], mut each: impl FnMut(&OwnedRecord, &BTreeMap<u64, u32>)) -> BTreeMap<u64, u32> {
    let mut open = BTreeMap::new();
    for r in records {
        each(r, &open);
        if let Some(h) = r.ends
            && let Some(times) = open.get_mut(&h)
        {
            *times -= 1;
            if *times == 0 {
                open.remove(&h);
            }
        }
        for h in &r.creates {
            *open.entry(*h).or_default() += 1;
        }
    }
    open
}

#[test]
fn replaying_the_live_set_leaves_what_replaying_everything_does() {
    for (n, history) in histories().into_iter().enumerate() {
        let needed = |r: &OwnedRecord, open: &BTreeMap<u64, u32>| -> Vec<bool> {
            r.uses.iter().chain(&r.ends).map(|h| open.contains_key(h)).collect()
        };
        let mut found = HashMap::new();
        let all = state(&history, |r, open| {
            found.insert(r.seq, needed(r, open));
        });
        let live = live_of(&history);
        let replayed = state(&live, |r, open| {
            assert_eq!(needed(r, open), found[&r.seq], "history {n}: record {} finds what it found", r.seq);
        });
        assert_eq!(replayed, all, "history {n}");
    }
}

#[test]
fn the_writer_and_its_file_give_the_same_live_set() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("live.journal");
    let meta = Meta { build: [0; 32], pid: 1, created_unix: 0, driver_version: 0, about: String::new() };
    for history in histories().into_iter().step_by(101).chain(histories().into_iter().skip(3000)) {
        let mut w = Writer::create(&path, &meta).unwrap();
        history.iter().for_each(|r| w.append(&r.as_record()).unwrap());
        let mut in_memory = Writer::in_memory().unwrap();
        history.iter().for_each(|r| in_memory.append(&r.as_record()).unwrap());
        let expected = live_of(&history);
        assert_eq!(live_in(&in_memory), expected);
        assert_eq!(live_in(&w), expected);
        assert!(w.copy_live().unwrap().iter().eq(expected.iter().map(OwnedRecord::as_record)));
        assert_eq!(w.live_count(), expected.len());
        let mut reader = journal::Reader::open(&path).unwrap();
        assert_eq!(live_of(&reader.records().map(Result::unwrap).collect::<Vec<_>>()), expected);
    }
    std::fs::remove_file(&path).unwrap();
}
