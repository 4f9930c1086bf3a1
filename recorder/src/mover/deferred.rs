//! Deferred records: a target can replay them only when the job is quiesced, since they refer to memory that exists there only then:
//! memory of other GPUs (which all have theirs by then) and host memory (which is allocated and freed during a move). These records
//! concern graph instances with nodes for such memory, which the driver accepts only if it knows the memory, and textures and references
//! to it.

use crate::calls::registry::{self, deferred_object};
use crate::job::Device;
use journal::{OwnedRecord, Record};
use std::collections::HashMap;

/// The deferred records for a target.
#[derive(Debug, Default)]
pub(super) struct DeferredRecords {
    /// Instances, textures and references with deferred records; the value tells whether the record that creates the object is among
    /// them.
    objects: HashMap<u64, bool>,
    records: Vec<OwnedRecord>,
}

/// A record to replay now: in the copy of the journal that it came with, or deferred until now.
#[derive(Debug)]
pub(super) enum Due<'a> {
    InPlace(Record<'a>),
    Deferred(OwnedRecord),
}

impl Due<'_> {
    pub(super) fn record(&self) -> Record<'_> {
        match self {
            Due::InPlace(record) => *record,
            Due::Deferred(record) => record.as_record(),
        }
    }
}

impl DeferredRecords {
    /// Removes the deferred records from those to replay now, and keeps them. Drops the records of objects that were destroyed meanwhile.
    pub(super) fn keep_back<'a>(&mut self, device: &Device, records: impl IntoIterator<Item = Record<'a>>) -> Vec<Due<'a>> {
        self.sort_out(records, |record| registry::comes_late(device, record))
    }

    fn sort_out<'a>(
        &mut self,
        records: impl IntoIterator<Item = Record<'a>>,
        comes_late: impl Fn(&Record) -> bool,
    ) -> Vec<Due<'a>> {
        let mut now = Vec::new();
        for record in records {
            let Some(object) = deferred_object(&record) else {
                now.push(Due::InPlace(record));
                continue;
            };
            let made_here = self.objects.get(&object).copied();
            if made_here.is_some() && registry::replaces(&record).is_some() {
                // The previous resource is no longer needed, and may be freed.
                self.records.retain(|r| registry::replaces(&r.as_record()) != Some(object));
                if !comes_late(&record) {
                    self.objects.remove(&object);
                    let deferred = self.records.extract_if(.., |r| deferred_object(&r.as_record()) == Some(object));
                    now.extend(deferred.map(Due::Deferred));
                    now.push(Due::InPlace(record));
                    continue;
                }
            }
            if made_here.is_none() && !comes_late(&record) {
                now.push(Due::InPlace(record));
            } else if made_here == Some(true) && record.ends.is_some() {
                self.objects.remove(&object);
                self.records.retain(|r| deferred_object(&r.as_record()) != Some(object));
            } else {
                self.objects.entry(object).or_insert(record.creates.first() == Some(&object));
                self.records.push(record.into());
            }
        }
        now
    }

    /// Takes the deferred records for which `is_needed` returns true now.
    pub(super) fn take(&mut self, is_needed: impl Fn(&Record) -> bool) -> Vec<OwnedRecord> {
        self.objects.clear();
        let mut records = std::mem::take(&mut self.records);
        records.retain(|r| is_needed(&r.as_record()));
        records
    }
}

#[cfg(test)]
mod tests;
