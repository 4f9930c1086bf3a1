//! What of a history still matters.
//!
//! Records that can only be dropped together form a *group*: what created a handle, what was done to it, what ended it. A group
//! is alive while one of its handles is open, or while a record outside that stays needs one of them. So liveness is
//! reachability, found by marking; dead groups are swept out whenever the kept records have doubled, which makes it a constant
//! cost per record and bounds the memory by what is alive.

use crate::{OwnedRecord, Record};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The group of records that are never dropped.
const ALWAYS: u32 = u32::MAX;
/// In a sweep: no group.
const DEAD: u32 = u32::MAX - 1;
/// Records that may pile up before the first sweep, and beyond twice the live ones before later ones.
const SLACK: usize = 1024;

/// The edges of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edges<'a> {
    pub(crate) ordered: bool,
    pub(crate) creates: &'a [u64],
    pub(crate) ends: Option<u64>,
    pub(crate) uses: &'a [u64],
}

impl<'a> From<&Record<'a>> for Edges<'a> {
    fn from(r: &Record<'a>) -> Edges<'a> {
        Edges { ordered: r.ordered, creates: r.creates, ends: r.ends, uses: r.uses }
    }
}

/// Hashes handles, which are 64-bit numbers that nobody chooses to do harm: one multiplication, its upper half folded into the
/// lower one. Looking handles up is most of what a record costs.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write_u64(&mut self, n: u64) {
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ (h >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A handle that has been created and not ended.
#[derive(Debug)]
struct Open {
    group: u32,
    /// Creations less ends: a handle may be given out more than once (a context retained twice). There are fewer: a journal has an
    /// end before that.
    times: u32,
}

#[derive(Debug, Default)]
struct Group {
    /// Sum of [`Open::times`] of its handles.
    open: u32,
    /// A record that is never dropped needs it.
    pinned: bool,
    /// Its handle comes from a record that is never dropped and so is no member; whatever ends the handle stays as well.
    rooted: bool,
    /// Groups whose handles its members need. Most groups need none, and there are many.
    #[allow(clippy::box_collection)]
    holds: Option<Box<Vec<u32>>>,
}

impl Group {
    fn holds(&self) -> &[u32] {
        self.holds.as_deref().map_or(&[], |holds| holds)
    }
}

/// The records fed so far, less those found dead. `T` stands for a record.
#[derive(Debug)]
pub(crate) struct Live<T> {
    kept: Vec<(u32, T)>,
    groups: Vec<Group>,
    open: HashMap<u64, Open, BuildHasherDefault<Mix>>,
    sweep_at: usize,
}

impl<T> Live<T> {
    pub(crate) fn new() -> Live<T> {
        Live { kept: Vec::new(), groups: Vec::new(), open: HashMap::default(), sweep_at: SLACK }
    }

    /// Takes the next record. Ends count before creations.
    pub(crate) fn feed(&mut self, edges: Edges, record: T) {
        let group = self.home(&edges);
        for used in edges.uses {
            if let Some(other) = self.group_of(*used) {
                self.hold(group, other);
            }
        }
        if let Some(h) = edges.ends {
            self.end(group, h);
        }
        self.create(group, edges.creates);
        self.kept.push((group, record));
    }

    /// Whether so many records have come that a sweep pays.
    pub(crate) fn due(&self) -> bool {
        self.kept.len() >= self.sweep_at
    }

    /// Forgets the dead records and groups.
    pub(crate) fn sweep(&mut self) {
        let alive = self.mark();
        // The groups that stay move together, so that the next mark costs what is alive and not what once was.
        let mut next = 0;
        let number = alive.iter().map(|alive| {
            next += u32::from(*alive);
            if *alive { next - 1 } else { DEAD }
        });
        let number: Vec<u32> = number.collect();
        self.kept.retain_mut(|(group, _)| {
            if *group != ALWAYS {
                *group = number[*group as usize];
            }
            *group != DEAD
        });
        let mut slot = alive.iter();
        self.groups.retain(|_| slot.next() == Some(&true));
        // Whatever a living group holds lives, and so do the groups of open handles.
        let renumber = |group: &mut u32| *group = number[*group as usize];
        self.groups.iter_mut().filter_map(|g| g.holds.as_deref_mut()).flatten().for_each(renumber);
        self.open.values_mut().map(|o| &mut o.group).for_each(renumber);
        self.sweep_at = 2 * self.kept.len() + SLACK;
        if self.kept.capacity() > 2 * self.sweep_at {
            self.kept.shrink_to(self.sweep_at);
            self.groups.shrink_to_fit();
        }
        if self.open.capacity() > 4 * (self.open.len() + SLACK) {
            self.open.shrink_to_fit();
        }
    }

    /// What is alive, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let alive = self.mark();
        self.kept.iter().filter(move |(group, _)| is_alive(&alive, *group)).map(|(_, record)| record)
    }

    /// Changes what stands for a record, of all that are kept. After [`Live::sweep`] these are the live ones.
    pub(crate) fn kept_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.kept.iter_mut().map(|(_, record)| record)
    }

    /// What is kept: what is alive, and what died since the last sweep.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().map(|(_, record)| record)
    }

    fn group_of(&self, handle: u64) -> Option<u32> {
        self.open.get(&handle).map(|o| o.group)
    }

    fn new_group(&mut self, rooted: bool) -> u32 {
        self.groups.push(Group { rooted, ..Group::default() });
        // A record of 48 bytes at least makes it: a journal ends long before the numbers do.
        (self.groups.len() - 1) as u32
    }

    /// The group that a record belongs to.
    fn home(&mut self, e: &Edges) -> u32 {
        if e.ordered {
            return ALWAYS;
        }
        if let Some(h) = e.ends {
            match self.group_of(h) {
                Some(group) if !self.groups[group as usize].rooted => return group,
                // What ends a handle of an ordered record, or one that was never made here, stays.
                _ => return ALWAYS,
            }
        }
        if !e.creates.is_empty() {
            let mut known = e.creates.iter().filter_map(|h| self.group_of(*h)).peekable();
            return match known.peek().copied() {
                None => self.new_group(false),
                // The ends of such a handle stay, so whatever creates it must stay too.
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
        let Some(open) = self.open.get_mut(&handle) else { return };
        let owner = open.group;
        open.times -= 1;
        if open.times == 0 {
            self.open.remove(&handle);
        }
        let owned = &mut self.groups[owner as usize];
        owned.open -= 1;
        // A record that stays can only be replayed if what it ends is made. An ordered creation stays anyway.
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
                    // Made again by another record: neither can be dropped without the other.
                    self.hold(home, owner);
                    if home != ALWAYS {
                        self.hold(owner, home);
                    }
                    owner
                }
                None => {
                    // The handles of a record that stays are nothing to each other.
                    let owner = if home == ALWAYS { self.new_group(true) } else { home };
                    self.open.insert(*handle, Open { group: owner, times: 1 });
                    owner
                }
            };
            self.groups[owner as usize].open += 1;
        }
    }

    /// Which groups are alive.
    fn mark(&self) -> Vec<bool> {
        let mut alive: Vec<bool> = self.groups.iter().map(|g| g.open > 0 || g.pinned).collect();
        let holds = |slot: &u32| self.groups[*slot as usize].holds.is_some();
        let mut todo: Vec<u32> = (0..).zip(&alive).filter(|(_, alive)| **alive).map(|(slot, _)| slot).filter(holds).collect();
        while let Some(slot) = todo.pop() {
            for held in self.groups[slot as usize].holds() {
                if !std::mem::replace(&mut alive[*held as usize], true) && holds(held) {
                    todo.push(*held);
                }
            }
        }
        alive
    }
}

fn is_alive(alive: &[bool], group: u32) -> bool {
    group == ALWAYS || alive[group as usize]
}

/// The records of a history that a fresh place must replay, in order, to get what exists at its end.
///
/// * An ordered record stays.
/// * What creates handles goes, together with what ended them and with what was done to them, once they are all ended: unless a
///   record that stays needs one of them (a graph is gone, what was instantiated from it is not). Then all of these stay.
/// * A record that neither creates nor ends belongs to the first handle that it uses and goes with it. Others that it uses it
///   needs.
/// * What has no edges, or only to handles that are not open, stays; so does what ends such a handle, and what ends (or makes
///   once more) a handle that an ordered record made.
/// * A handle made twice is open until it has been ended twice. After that its number may be made anew: another life, another
///   group.
pub fn live_of(records: impl Iterator<Item = OwnedRecord>) -> Vec<OwnedRecord> {
    let mut live = Live::new();
    for record in records {
        // The edges are copied out, short as they are, since the record itself moves into the live set.
        let (creates, uses) = (record.creates.clone(), record.uses.clone());
        live.feed(Edges { ordered: record.ordered, creates: &creates, ends: record.ends, uses: &uses }, record);
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
        // As handles and addresses are: their lowest bits are all alike, and so are their highest.
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

    /// Feeds as a writer does; gives the most that was ever kept of records and groups.
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
        let none = Edges { ordered: false, creates: &[], ends: None, uses: &[] };
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
    fn memory_shrinks_with_what_is_alive() {
        let mut live = Live::new();
        let none = Edges { ordered: false, creates: &[], ends: None, uses: &[] };
        churn(&mut live, 100_000, |i, feed| feed(Edges { creates: &[i], ..none }));
        assert_eq!(live.iter().count(), 100_000);
        churn(&mut live, 100_000, |i, feed| feed(Edges { ends: Some(i), ..none }));
        live.sweep();
        assert_eq!(live.iter().count(), 0);
        assert!(live.kept.capacity() < 4 * SLACK && live.groups.is_empty() && live.open.capacity() < 8 * SLACK);
    }
}
