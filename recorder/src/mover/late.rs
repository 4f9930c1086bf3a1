//! Records that a target can replay only when the job is at rest: instances of graphs with nodes that the driver takes only if it knows
//! their memory, which is there last: other GPUs' (all have their own then) and the host's (which comes and goes while a move goes on).

use crate::graph;
use crate::job::Device;
use journal::OwnedRecord;
use std::collections::HashMap;

/// What is kept back for a target.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Instances with records here; whether the one that makes it is among them.
    instances: HashMap<u64, bool>,
    records: Vec<OwnedRecord>,
}

impl Late {
    /// Takes such records out of those to replay now. Of an instance that has ended meanwhile nothing is left.
    pub(super) fn keep_back(&mut self, device: &Device, records: Vec<OwnedRecord>) -> Vec<OwnedRecord> {
        self.sort_out(records, |record| graph::comes_late(device, record))
    }

    fn sort_out(&mut self, records: Vec<OwnedRecord>, comes_late: impl Fn(&OwnedRecord) -> bool) -> Vec<OwnedRecord> {
        let mut now = Vec::with_capacity(records.len());
        for record in records {
            let Some(instance) = graph::instance_of(&record) else {
                now.push(record);
                continue;
            };
            let made_here = self.instances.get(&instance).copied();
            if made_here.is_none() && !comes_late(&record) {
                now.push(record);
            } else if made_here == Some(true) && record.ends.is_some() {
                self.instances.remove(&instance);
                self.records.retain(|r| graph::instance_of(r) != Some(instance));
            } else {
                self.instances.entry(instance).or_insert(record.creates.first() == Some(&instance));
                self.records.push(record);
            }
        }
        now
    }

    /// What was kept back.
    pub(super) fn take(&mut self) -> Vec<OwnedRecord> {
        self.instances.clear();
        std::mem::take(&mut self.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::Role;
    use cuda_api::ops::id;

    fn record(seq: u64, id: u16, instance: u64) -> OwnedRecord {
        let (mut creates, mut ends, mut uses) = (vec![], None, vec![]);
        match id {
            id::GRAPH_MAKE => creates.push(instance),
            id::GRAPH_END => ends = Some(instance),
            // The name of the change itself is another.
            _ => (creates, uses) = (vec![1000 + seq], vec![instance]),
        }
        OwnedRecord { seq, id, role: Role::Plain, setting: None, device: 0, creates, ends, uses, body: vec![], reply: vec![] }
    }

    #[test]
    fn all_of_an_instance_waits_and_what_has_ended_is_left_out() {
        let mut late = Late::default();
        let feed = |late: &mut Late, records: Vec<OwnedRecord>| -> Vec<u64> {
            // Late are the makings of 20 and 21, and the change 8.
            late.sort_out(records, |r| [2, 3, 8].contains(&r.seq)).iter().map(|r| r.seq).collect()
        };
        let first = vec![
            record(1, id::GRAPH_MAKE, 10),
            record(2, id::GRAPH_MAKE, 20),
            record(3, id::GRAPH_MAKE, 21),
            record(4, id::GRAPH_CHANGE, 20),
            record(5, id::GRAPH_SWITCH, 21),
            record(6, id::GRAPH_MAKE, 11),
            record(7, id::GRAPH_CHANGE, 10),
        ];
        assert_eq!(feed(&mut late, first), [1, 6, 7]);
        let second = vec![
            record(8, id::GRAPH_CHANGE, 11),
            record(9, id::GRAPH_END, 20),
            record(10, id::GRAPH_END, 10),
            record(11, id::GRAPH_END, 11),
            record(12, id::EVENT_RECORD, 21),
        ];
        assert_eq!(feed(&mut late, second), [10, 12]);
        let left: Vec<u64> = late.take().iter().map(|r| r.seq).collect();
        assert_eq!(left, [3, 5, 8, 11]);
    }
}
