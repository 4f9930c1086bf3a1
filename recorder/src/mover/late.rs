//! Deferred records: a target can replay them only when the job is quiesced, since they refer to memory that exists there only then:
//! memory of other GPUs (which all have theirs by then) and host memory (which is allocated and freed during a move). These records
//! concern graph instances with nodes for such memory, which the driver accepts only if it knows the memory, and textures and references
//! to it.

use crate::calls::registry::{self, deferred_object};
use crate::job::Device;
use journal::OwnedRecord;
use std::collections::HashMap;

/// The deferred records for a target.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Instances, textures and references with deferred records; the value tells whether the record that creates the object is among
    /// them.
    objects: HashMap<u64, bool>,
    records: Vec<OwnedRecord>,
}

impl Late {
    /// Removes the deferred records from those to replay now, and keeps them. Drops the records of objects that were destroyed meanwhile.
    pub(super) fn keep_back(&mut self, device: &Device, records: Vec<OwnedRecord>) -> Vec<OwnedRecord> {
        self.sort_out(records, |record| registry::comes_late(device, record))
    }

    fn sort_out(&mut self, records: Vec<OwnedRecord>, comes_late: impl Fn(&OwnedRecord) -> bool) -> Vec<OwnedRecord> {
        let mut now = Vec::with_capacity(records.len());
        for record in records {
            let Some(object) = deferred_object(&record) else {
                now.push(record);
                continue;
            };
            let made_here = self.objects.get(&object).copied();
            if made_here.is_some() && registry::replaces(&record).is_some() {
                // The previous resource is no longer needed, and may be freed.
                self.records.retain(|r| registry::replaces(r) != Some(object));
                if !comes_late(&record) {
                    self.objects.remove(&object);
                    now.extend(self.records.extract_if(.., |r| deferred_object(r) == Some(object)));
                    now.push(record);
                    continue;
                }
            }
            if made_here.is_none() && !comes_late(&record) {
                now.push(record);
            } else if made_here == Some(true) && record.ends.is_some() {
                self.objects.remove(&object);
                self.records.retain(|r| deferred_object(r) != Some(object));
            } else {
                self.objects.entry(object).or_insert(record.creates.first() == Some(&object));
                self.records.push(record);
            }
        }
        now
    }

    /// Takes the deferred records for which `is_needed` returns true now.
    pub(super) fn take(&mut self, is_needed: impl Fn(&OwnedRecord) -> bool) -> Vec<OwnedRecord> {
        self.objects.clear();
        let mut records = std::mem::take(&mut self.records);
        records.retain(is_needed);
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::encoding::encode;
    use crate::calls::reference;
    use cuda_api::array::Resource;
    use cuda_api::ops::id;
    use cuda_api::reference::{ReferenceSet, Setting};
    use journal::Role;

    fn record(seq: u64, id: u16, instance: u64) -> OwnedRecord {
        let (mut creates, mut ends, mut uses) = (vec![], None, vec![]);
        match id {
            id::GRAPH_MAKE | id::OBJECT_MAKE => creates.push(instance),
            id::GRAPH_END | id::OBJECT_END => ends = Some(instance),
            // The change itself has another name.
            _ => (creates, uses) = (vec![1000 + seq], vec![instance]),
        }
        OwnedRecord { seq, id, role: Role::Plain, setting: None, device: 0, creates, ends, uses, body: vec![], reply: vec![] }
    }

    #[test]
    fn all_of_an_instance_waits_and_what_has_ended_is_left_out() {
        let mut late = Late::default();
        let feed = |late: &mut Late, records: Vec<OwnedRecord>| -> Vec<u64> {
            // Deferred are the creation of 20 and 21, and the change 8.
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
        let left: Vec<u64> = late.take(|_| true).iter().map(|r| r.seq).collect();
        assert_eq!(left, [3, 5, 8, 11]);
    }

    #[test]
    fn settings_of_a_reference_wait_and_end_with_it() {
        let mut late = Late::default();
        let of = |seq, reference: u64| OwnedRecord {
            body: encode(&ReferenceSet { reference, setting: Setting::Flags(0) }),
            ..record(seq, id::REFERENCE_SET, reference)
        };
        let feed = |late: &mut Late, records: Vec<OwnedRecord>| -> Vec<u64> {
            late.sort_out(records, |r| [2, 3].contains(&r.seq)).iter().map(|r| r.seq).collect()
        };
        assert_eq!(feed(&mut late, [(1, 10), (2, 20), (3, 30), (4, 10), (5, 20)].map(|(seq, r)| of(seq, r)).to_vec()), [1, 4]);
        let left: Vec<u64> = late.take(|r| reference::set_by(r) != Some(30)).iter().map(|r| r.seq).collect();
        assert_eq!(left, [2, 5]);
    }

    #[test]
    fn a_reference_that_shows_something_else_waits_no_longer() {
        let mut late = Late::default();
        let set = |seq, setting| {
            let body = encode(&ReferenceSet { reference: 20, setting });
            OwnedRecord { body, ..record(seq, id::REFERENCE_SET, 20) }
        };
        let shows = |seq| set(seq, Setting::Resource(Resource::default()));
        let mut feed = |records: Vec<OwnedRecord>| -> Vec<u64> {
            late.sort_out(records, |r| [1, 3].contains(&r.seq)).iter().map(|r| r.seq).collect()
        };
        assert!(feed(vec![shows(1), set(2, Setting::Flags(1)), shows(3), set(4, Setting::Filter(0))]).is_empty());
        // The array that it refers to now may be freed before the job is quiesced.
        assert_eq!(feed(vec![shows(5), record(6, id::OBJECT_END, 9), set(7, Setting::Flags(0))]), [2, 4, 5, 6, 7]);
        assert!(late.take(|_| true).is_empty());
    }

    #[test]
    fn a_texture_of_host_memory_waits_and_one_that_has_ended_is_left_out() {
        let mut late = Late::default();
        let mut feed = |records: Vec<OwnedRecord>| -> Vec<u64> {
            late.sort_out(records, |r| [2, 3].contains(&r.seq)).iter().map(|r| r.seq).collect()
        };
        assert_eq!(feed([(1, 10), (2, 20), (3, 30)].map(|(seq, o)| record(seq, id::OBJECT_MAKE, o)).to_vec()), [1]);
        assert_eq!(feed([(4, 10), (5, 20)].map(|(seq, o)| record(seq, id::OBJECT_END, o)).to_vec()), [4]);
        assert_eq!(late.take(|_| true).iter().map(|r| r.seq).collect::<Vec<_>>(), [3]);
    }
}
