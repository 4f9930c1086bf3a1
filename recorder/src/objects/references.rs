//! The recorder's data about texture and surface references.

use crate::base::log::lock;
use crate::ledger::Ledger;
use crate::objects::table::Known;
use cuda_api::code::Code;
use cuda_api::few::Few;
use cuda_api::ops::id;
use cuda_api::reference::{Setting, Slot};
use cuda_model::reference::Reference;
use std::collections::HashMap;
use std::sync::Mutex;

/// The state of a reference.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) is: Reference,
    /// The allocation of host memory to which it is bound: another allocation may have its address later.
    pub(crate) host: Option<u64>,
    /// The names of the records of its settings.
    pub(crate) changes: HashMap<Slot, u64>,
}

/// The recorder's data about a reference.
#[derive(Debug, Default)]
pub(crate) struct ReferenceData(pub(crate) Mutex<Kept>);

impl Known for ReferenceData {
    fn forget(&self) {
        *lock(&self.0) = Kept::default();
    }
}

impl Kept {
    /// Records a setting in place of the last one of its kind.
    pub(crate) fn journal(
        &mut self,
        ledger: &mut Ledger,
        setting: Setting,
        (body, reply): (&[u8], &[u8]),
        uses: Few,
    ) -> Result<(), Code> {
        let old = self.changes.get(&setting.slot()).copied();
        let change = ledger.replace(old, id::REFERENCE_SET, (body, reply), uses)?;
        self.changes.insert(setting.slot(), change);
        Ok(())
    }
}
