//! Records that a target can replay only when the memory of other GPUs is there, which comes when all have their own: instances of
//! graphs with nodes that copy or fill such memory, and what was done to them.

use crate::graph;
use crate::job::Device;
use journal::OwnedRecord;
use std::collections::HashSet;

/// What is kept back for a target.
#[derive(Debug, Default)]
pub(super) struct Late {
    instances: HashSet<u64>,
    records: Vec<OwnedRecord>,
}

impl Late {
    /// Takes such records out of those to replay now.
    pub(super) fn keep_back(&mut self, device: &Device, records: Vec<OwnedRecord>) -> Vec<OwnedRecord> {
        let mut now = Vec::with_capacity(records.len());
        for record in records {
            let Some(instance) = graph::instance_of(&record) else {
                now.push(record);
                continue;
            };
            if self.instances.contains(&instance) || graph::uses_another(device, &record) {
                self.instances.insert(instance);
                self.records.push(record);
            } else {
                now.push(record);
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
