//! Determines which records of a history are live.
//!
//! Records that can only be dropped together form a *group*: what created a handle, what changed the object, what
//! destroyed it. A group is live while one of its handles is open, or while a record outside the group that must be
//! kept needs one of them. Liveness is therefore reachability, found by marking. Dead groups are swept whenever the
//! number of kept records has doubled, which makes the cost per record constant and bounds the memory by the number of
//! live records.
//!
//! The load of code that has been unloaded is dead, but may have to be replayed all the same: it determines the
//! addresses of code that was loaded while it was present. [`Live::with_trace`] decides which of these loads can be
//! dropped.

use crate::{Record, Role};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The group of records that are never dropped.
const ALWAYS: u32 = u32::MAX;
/// Marks, during a sweep, a group that is dropped.
const DEAD: u32 = u32::MAX - 1;
/// Value of [`Group::parent`] for a group without a parent.
const NONE: u32 = u32::MAX;
/// Number of records that may accumulate before the first sweep; for later sweeps, beyond twice the live ones.
const SLACK: usize = 1024;
/// Maximum number of loads of unloaded code that are kept because of their effect on addresses. Without it, a program
/// that never unloads the last code that it loaded would make the journal grow without limit.
const MAX_UNLOADED: usize = 1023;
/// Number of loads that are dropped at once when there are more. A program that unloads the oldest of a few similar
/// modules whenever it loads a new one returns to the same addresses after a small number of loads; this number is
/// divisible by all numbers up to 8, and by many others.
const GO_TOGETHER: usize = 840;

/// The edges of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edges<'a> {
    pub(crate) role: Role,
    pub(crate) setting: Option<[u64; 2]>,
    pub(crate) creates: &'a [u64],
    pub(crate) ends: Option<u64>,
    pub(crate) uses: &'a [u64],
}

impl<'a> From<&Record<'a>> for Edges<'a> {
    fn from(r: &Record<'a>) -> Edges<'a> {
        Edges { role: r.role, setting: r.setting, creates: r.creates, ends: r.ends, uses: r.uses }
    }
}

/// Hash function for handles, 64-bit numbers that are not chosen by an attacker: one multiplication, with the upper
/// half folded into the lower one. Handle lookup is most of the cost of a record.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write_u64(&mut self, n: u64) {
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ (h >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        rest.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A handle that has been created and not destroyed.
#[derive(Debug)]
struct Open {
    group: u32,
    /// Creations less destructions: a handle may be returned more than once (a context retained twice). A journal
    /// cannot hold enough records to overflow it.
    times: u32,
}

/// How a group affects the addresses of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Placing {
    /// Not at all.
    #[default]
    Nothing,
    /// It is a load of code.
    Code,
    /// It is a load of code without variables.
    LightCode,
    /// It is a record that is always kept, or something that was live during a load.
    Beside,
}

#[derive(Debug)]
struct Group {
    /// Sum of [`Open::times`] over its handles.
    open: u32,
    /// The group whose end also destroys this group's handles.
    parent: u32,
    /// A record that is never dropped needs this group.
    pinned: bool,
    /// Its handle was created by a record that is never dropped and is thus not a member; whatever destroys the handle
    /// is kept as well.
    rooted: bool,
    placing: Placing,
    /// Groups whose handles its members need. It is empty for most groups, and there are many groups.
    #[allow(clippy::box_collection)]
    holds: Option<Box<Vec<u32>>>,
}

impl Group {
    fn new() -> Group {
        Group { open: 0, parent: NONE, pinned: false, rooted: false, placing: Placing::Nothing, holds: None }
    }

    fn is_code(&self) -> bool {
        matches!(self.placing, Placing::Code | Placing::LightCode)
    }

    fn holds(&self) -> &[u32] {
        self.holds.as_deref().map_or(&[], |holds| holds)
    }
}

/// The last record of a setting.
#[derive(Debug)]
struct Setting {
    /// Its index in [`Live::kept`].
    at: usize,
    /// It has a group of its own, which is pinned until the setting is replaced.
    stays: bool,
}

/// The records so far, without those found dead. `T` represents a record.
#[derive(Debug)]
pub(crate) struct Live<T> {
    kept: Vec<(u32, T)>,
    groups: Vec<Group>,
    open: HashMap<u64, Open, BuildHasherDefault<Mix>>,
    /// The last record of each setting.
    settings: HashMap<[u64; 2], Setting, BuildHasherDefault<Mix>>,
    sweep_at: usize,
}

impl<T> Live<T> {
    pub(crate) fn new() -> Live<T> {
        Live { kept: Vec::new(), groups: Vec::new(), open: HashMap::default(), settings: HashMap::default(), sweep_at: SLACK }
    }

    /// Takes the next record. Destructions are processed before creations.
    pub(crate) fn feed(&mut self, edges: Edges, record: T) {
        let group = self.home(&edges);
        for used in edges.uses {
            if let Some(other) = self.group_of(*used) {
                self.hold(group, other);
                if matches!(edges.role, Role::Load | Role::LightLoad) && self.groups[other as usize].placing == Placing::Nothing {
                    self.groups[other as usize].placing = Placing::Beside;
                }
            }
        }
        if let Some(h) = edges.ends {
            self.end(group, h);
        }
        self.create(group, edges.creates);
        // What creates or destroys, too, is not replaced.
        let only_sets = edges.creates.is_empty() && edges.ends.is_none();
        if let Some(setting) = edges.setting.filter(|_| only_sets)
            && let Some(before) = self.settings.insert(setting, Setting { at: self.kept.len(), stays: edges.role == Role::Stays })
        {
            let group = std::mem::replace(&mut self.kept[before.at].0, DEAD);
            if before.stays {
                self.groups[group as usize].pinned = false;
            }
        }
        self.kept.push((group, record));
    }

    /// Whether enough records have accumulated for a sweep.
    pub(crate) fn due(&self) -> bool {
        self.kept.len() >= self.sweep_at
    }

    /// Drops the dead records and groups.
    pub(crate) fn sweep(&mut self) {
        let alive = self.mark();
        self.renumber_settings(&alive);
        // The remaining groups are compacted, so that the cost of the next mark depends on the live ones only.
        let mut next = 0;
        let number = alive.iter().map(|alive| {
            next += u32::from(*alive);
            if *alive { next - 1 } else { DEAD }
        });
        let number: Vec<u32> = number.collect();
        self.kept.retain_mut(|(group, _)| {
            if *group < DEAD {
                *group = number[*group as usize];
            }
            *group != DEAD
        });
        let mut slot = alive.iter();
        self.groups.retain(|_| slot.next() == Some(&true));
        // Whatever a live group refers to is live, in particular its parent, whose handle it uses.
        let renumber = |group: &mut u32| *group = number[*group as usize];
        self.groups.iter_mut().filter_map(|g| g.holds.as_deref_mut()).flatten().for_each(renumber);
        self.groups.iter_mut().map(|g| &mut g.parent).filter(|parent| **parent != NONE).for_each(renumber);
        // Handles that were destroyed with another one are no longer open.
        self.open.retain(|_, o| {
            renumber(&mut o.group);
            o.group != DEAD
        });
        self.sweep_at = 2 * self.kept.len() + SLACK;
        if self.kept.capacity() > 2 * self.sweep_at {
            self.kept.shrink_to(self.sweep_at);
            self.groups.shrink_to_fit();
        }
        if self.open.capacity() > 4 * (self.open.len() + SLACK) {
            self.open.shrink_to_fit();
        }
        if self.settings.capacity() > 4 * (self.settings.len() + SLACK) {
            self.settings.shrink_to_fit();
        }
    }

    /// Updates the positions of settings to those after the sweep.
    fn renumber_settings(&mut self, alive: &[bool]) {
        if self.settings.is_empty() {
            return;
        }
        let mut left = 0;
        let rank = self.kept.iter().map(|(group, _)| {
            let stays = is_alive(alive, *group);
            left += usize::from(stays);
            stays.then(|| left - 1)
        });
        let rank: Vec<Option<usize>> = rank.collect();
        self.settings.retain(|_, last| {
            rank[last.at].is_some_and(|rank| {
                last.at = rank;
                true
            })
        });
    }

    /// The live records, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let alive = self.mark();
        self.kept.iter().filter(move |(group, _)| is_alive(&alive, *group)).map(|(_, record)| record)
    }

    /// Mutable access to what represents each kept record. After [`Live::sweep`] these are the live ones.
    pub(crate) fn kept_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.kept.iter_mut().map(|(_, record)| record)
    }

    /// The kept records: the live ones, and those that died since the last sweep.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().map(|(_, record)| record)
    }

    fn group_of(&self, handle: u64) -> Option<u32> {
        self.open.get(&handle).map(|o| o.group)
    }

    fn new_group(&mut self, group: Group) -> u32 {
        self.groups.push(group);
        // Each group comes from a record of at least 48 bytes, so a journal reaches its length limit long before this
        // overflows.
        (self.groups.len() - 1) as u32
    }

    /// Returns the group of a record.
    fn home(&mut self, e: &Edges) -> u32 {
        match e.role {
            // A record that only changes the context gets its own group, so that a later setting can replace it.
            Role::Stays if e.creates.is_empty() && e.ends.is_none() => {
                return self.new_group(Group { pinned: true, placing: Placing::Beside, ..Group::new() });
            }
            Role::Stays => return ALWAYS,
            Role::Load => {
                return self.new_group(Group { placing: Placing::Code, ..Group::new() });
            }
            Role::LightLoad => {
                return self.new_group(Group { placing: Placing::LightCode, ..Group::new() });
            }
            Role::Plain | Role::Child => {}
        }
        if let Some(h) = e.ends {
            match self.group_of(h) {
                Some(group) if !self.groups[group as usize].rooted => return group,
                // A record that destroys a handle of an ordered record, or an unknown handle, is kept.
                _ => return ALWAYS,
            }
        }
        if !e.creates.is_empty() {
            let mut known = e.creates.iter().filter_map(|h| self.group_of(*h)).peekable();
            return match known.peek().copied() {
                None => {
                    let with = e.uses.first().filter(|_| e.role == Role::Child).and_then(|h| self.group_of(*h));
                    self.new_group(Group { parent: with.unwrap_or(NONE), ..Group::new() })
                }
                // Records that destroy such a handle are kept, so whatever creates it must be kept too.
                Some(_) if known.any(|g| self.groups[g as usize].rooted) => ALWAYS,
                Some(group) => group,
            };
        }
        e.uses.iter().find_map(|h| self.group_of(*h)).unwrap_or(ALWAYS)
    }

    fn hold(&mut self, group: u32, other: u32) {
        if group == ALWAYS {
            self.groups[other as usize].pinned = true;
        } else if group != other {
            let holds = self.groups[group as usize].holds.get_or_insert_default();
            if holds.last() != Some(&other) {
                holds.push(other);
            }
        }
    }

    fn end(&mut self, group: u32, handle: u64) {
        let Some(open) = self.open.get_mut(&handle) else {
            return;
        };
        let owner = open.group;
        open.times -= 1;
        if open.times == 0 {
            self.open.remove(&handle);
        }
        let owned = &mut self.groups[owner as usize];
        owned.open -= 1;
        // A kept record can only be replayed if what it destroys is created. A creation by an ordered record is kept
        // anyway.
        if group == ALWAYS && !owned.rooted {
            owned.pinned = true;
        }
    }

    fn create(&mut self, home: u32, handles: &[u64]) {
        for handle in handles {
            let owner = match self.open.get_mut(handle) {
                Some(open) => {
                    open.times += 1;
                    let owner = open.group;
                    // Created again by another record: neither can be dropped without the other.
                    self.hold(home, owner);
                    if home != ALWAYS {
                        self.hold(owner, home);
                    }
                    owner
                }
                None => {
                    // The handles of a kept record are independent of each other.
                    let owner = if home == ALWAYS { self.new_group(Group { rooted: true, ..Group::new() }) } else { home };
                    self.open.insert(*handle, Open { group: owner, times: 1 });
                    owner
                }
            };
            self.groups[owner as usize].open += 1;
        }
    }

    /// Determines which groups are live.
    fn mark(&self) -> Vec<bool> {
        // A parent was created before the groups that end with it.
        let mut ended: Vec<bool> = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            ended.push(group.open == 0 || (group.parent != NONE && ended[group.parent as usize]));
        }
        let mut alive: Vec<bool> = self.groups.iter().zip(&ended).map(|(g, ended)| !ended || g.pinned).collect();
        self.follow(&mut alive);
        let unloaded = |slot: usize| self.groups[slot].is_code() && !alive[slot];
        if (0..self.groups.len()).any(unloaded) {
            for slot in self.with_trace(&alive) {
                alive[slot as usize] = true;
            }
            self.follow(&mut alive);
        }
        alive
    }

    /// Marks everything that live groups refer to.
    fn follow(&self, alive: &mut [bool]) {
        let holds = |slot: &u32| self.groups[*slot as usize].holds.is_some();
        let mut todo: Vec<u32> = (0..).zip(&*alive).filter(|(_, alive)| **alive).map(|(slot, _)| slot).filter(holds).collect();
        while let Some(slot) = todo.pop() {
            for held in self.groups[slot as usize].holds() {
                if !std::mem::replace(&mut alive[*held as usize], true) && holds(held) {
                    todo.push(*held);
                }
            }
        }
    }

    /// The groups of unloaded code whose loads and unloads must be replayed, among those that nothing live needs.
    ///
    /// A load has no effect on later addresses if, between it and its unload, no kept event happened that affects the
    /// addresses of code, in particular no other load (docs/migration.md, "What the journal keeps"). Dropping its
    /// records may make the same true of others. Kept events are therefore pushed onto a stack, and an unload pops its
    /// load if that is on top. If too many remain, code without variables is dropped first, and then the oldest.
    fn with_trace(&self, alive: &[bool]) -> Vec<u32> {
        let mut unloaded: Vec<bool> = self.groups.iter().zip(alive).map(|(group, alive)| group.is_code() && !alive).collect();
        let mut count = usize::MAX;
        let mut stack = Vec::new();
        // What only unloaded code needs counts as present until that code is found to have no effect.
        while count > unloaded.iter().filter(|u| **u).count() {
            count = unloaded.iter().filter(|u| **u).count();
            let mut kept: Vec<bool> = alive.iter().zip(&unloaded).map(|(alive, unloaded)| alive | unloaded).collect();
            self.follow(&mut kept);
            stack = self.stacked(&kept, &unloaded);
            unloaded.fill(false);
            stack.iter().for_each(|slot| unloaded[*slot as usize] = true);
        }
        if stack.len() > MAX_UNLOADED {
            stack.retain(|slot| self.groups[*slot as usize].placing != Placing::LightCode);
        }
        if stack.len() > MAX_UNLOADED {
            stack.drain(..(stack.len() - MAX_UNLOADED).next_multiple_of(GO_TOGETHER).min(stack.len()));
        }
        stack
    }

    /// The unloaded code whose presence affected the address of something that is kept, in load order.
    fn stacked(&self, kept: &[bool], unloaded: &[bool]) -> Vec<u32> {
        let mut seen = vec![false; self.groups.len()];
        let mut is_over = vec![false; self.groups.len()];
        let mut stack: Vec<u32> = Vec::new();
        // The last record of a group of loaded code is its unload.
        let mut left = vec![0u32; self.groups.len()];
        let slots = || self.kept.iter().map(|(group, _)| *group).filter(|group| *group < DEAD);
        slots().for_each(|slot| left[slot as usize] += 1);
        for slot in slots() {
            let at = slot as usize;
            left[at] -= 1;
            if self.groups[at].placing == Placing::Nothing || !kept[at] {
                continue;
            }
            if !std::mem::replace(&mut seen[at], true) {
                stack.push(slot);
            } else if unloaded[at] && left[at] == 0 {
                is_over[at] = true;
                while stack.pop_if(|top| is_over[*top as usize]).is_some() {}
            }
        }
        stack.retain(|slot| unloaded[*slot as usize]);
        stack
    }
}

fn is_alive(alive: &[bool], group: u32) -> bool {
    group == ALWAYS || (group != DEAD && alive[group as usize])
}

/// The records of a history that a fresh place must replay, in order, to get what exists at its end.
///
/// * A record whose role is [`Role::Stays`] is kept.
/// * Of records with the same setting that neither create nor destroy only the last one is kept.
/// * What the record of a child creates is destroyed, at the latest, with the first handle that it uses.
/// * The records of code that was loaded and unloaded are dropped if no kept event that affects the addresses of code
///   happened in between: another load, a record that is always kept, or the creation of something that was live during
///   a load.
/// * Records that create handles are dropped, together with those that changed or destroyed them, once all the handles
///   are destroyed, unless a kept record needs one of them (a graph is destroyed, but its instance is not). Then all of
///   these are kept.
/// * A record that neither creates nor destroys is part of the group of the first handle that it uses and is dropped
///   with it. The other handles that it uses are dependencies.
/// * A record without edges, or with edges only to handles that are not open, is kept; so is one that destroys such a
///   handle, and one that destroys (or creates once more) a handle that such a record created.
/// * A handle created twice is open until it has been destroyed twice. After that its number may be reused, in a new
///   group.
pub fn live_of<'a>(records: impl Iterator<Item = Record<'a>>) -> Vec<Record<'a>> {
    let mut live = Live::new();
    for record in records {
        live.feed(Edges::from(&record), record);
        if live.due() {
            live.sweep();
        }
    }
    live.sweep();
    live.kept.into_iter().map(|(_, record)| record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_spread() {
        // As with handles and addresses, the lowest and the highest bits are all equal.
        for step in [64, 512, 2 << 20] {
            let mut seen = std::collections::HashSet::new();
            for n in 0..10_000u64 {
                let mut h = Mix::default();
                h.write_u64(0x5c03_0000_0000_0000 + n * step);
                seen.insert((h.finish() & 0xffff, h.finish() >> 57));
            }
            assert!(seen.len() > 9_900, "{step}: {}", seen.len());
        }
    }

    /// Feeds records as a writer does; returns the maximum number of records and groups that were kept.
    fn churn(live: &mut Live<u64>, n: u64, each: impl Fn(u64, &mut dyn FnMut(Edges))) -> (usize, usize) {
        let mut most = (0, 0);
        for i in 0..n {
            each(i, &mut |edges| live.feed(edges, i));
            if live.due() {
                live.sweep();
            }
            most = (most.0.max(live.kept.capacity()), most.1.max(live.groups.len()));
        }
        most
    }

    #[test]
    fn memory_is_bounded_by_what_is_alive() {
        let mut live = Live::new();
        let none = Edges { role: Role::Plain, setting: None, creates: &[], ends: None, uses: &[] };
        live.feed(Edges { creates: &[1], ..none }, 0);
        let (records, groups) = churn(&mut live, 300_000, |i, feed| {
            let (event, graph) = (1000 + 2 * i, 1001 + 2 * i);
            feed(Edges { creates: &[event], uses: &[1], ..none });
            feed(Edges { creates: &[graph], ..none });
            feed(Edges { uses: &[graph, event], ..none });
            feed(Edges { uses: &[event, graph], ..none });
            feed(Edges { ends: Some(event), ..none });
            feed(Edges { ends: Some(graph), ..none });
        });
        assert!(records < 4 * SLACK && groups < 4 * SLACK, "{records} records, {groups} groups");
        assert_eq!(live.iter().count(), 1);
        assert_eq!(live.open.len(), 1);
    }

    #[test]
    fn a_setting_replaces_no_record_that_creates_or_destroys() {
        let none = Edges { role: Role::Plain, setting: None, creates: &[], ends: None, uses: &[] };
        let sets = Edges { setting: Some([1, 2]), uses: &[1], ..none };
        let mut live = Live::new();
        live.feed(Edges { creates: &[1], setting: Some([1, 2]), ..none }, 0);
        for i in 1..3 {
            live.feed(sets, i);
        }
        live.feed(Edges { creates: &[3], uses: &[1], ..none }, 3);
        live.feed(Edges { ends: Some(1), setting: Some([1, 2]), ..none }, 4);
        live.feed(sets, 5);
        assert_eq!(live.iter().copied().collect::<Vec<_>>(), [0, 3, 4, 5]);
    }

    #[test]
    fn a_setting_that_was_always_kept_holds_nothing_once_it_is_replaced() {
        let none = Edges { role: Role::Plain, setting: None, creates: &[], ends: None, uses: &[] };
        let sets = Edges { setting: Some([1, 2]), uses: &[1], ..none };
        let mut live = Live::new();
        live.feed(Edges { creates: &[1], ..none }, 0);
        live.feed(Edges { role: Role::Stays, ..sets }, 1);
        live.feed(sets, 2);
        live.feed(Edges { ends: Some(1), ..none }, 3);
        assert_eq!(live.iter().count(), 0);
    }

    #[test]
    fn memory_shrinks_with_what_is_alive() {
        let mut live = Live::new();
        let none = Edges { role: Role::Plain, setting: None, creates: &[], ends: None, uses: &[] };
        churn(&mut live, 100_000, |i, feed| feed(Edges { creates: &[i], ..none }));
        assert_eq!(live.iter().count(), 100_000);
        churn(&mut live, 100_000, |i, feed| feed(Edges { ends: Some(i), ..none }));
        live.sweep();
        assert_eq!(live.iter().count(), 0);
        assert!(live.kept.capacity() < 4 * SLACK && live.groups.is_empty() && live.open.capacity() < 8 * SLACK);
    }
}
