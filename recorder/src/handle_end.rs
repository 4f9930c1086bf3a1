//! What else ends when a handle ends.

use crate::base::log::lock;
use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::references::ReferenceData;
use cuda_api::code::{self, Code};
use cuda_api::handle::Kind;

/// The data of a live reference, and its device.
pub(crate) fn reference_data(cx: &CallContext, reference: u64) -> Result<(&'static Device, &'static ReferenceData), Code> {
    let tables = &cx.job.tables;
    let slot = match cuda_api::handle::kind(reference) {
        Some(Kind::TextureRef) => tables.textures.get(reference)?,
        Some(Kind::SurfaceRef) => tables.surfaces.get(reference)?,
        _ => return Err(code::ERROR_INVALID_HANDLE),
    };
    let device = cx.job.devices.get(slot.device() as usize).ok_or(code::ERROR_INVALID_DEVICE)?;
    Ok((device, &slot.data))
}

/// Removes a destroyed reference, if the handle is one: with its module, or by itself. Its settings need not be replayed any more.
pub(crate) fn reference_ended(cx: &CallContext, handle: u64) {
    let Ok((device, data)) = reference_data(cx, handle) else { return };
    let changes = std::mem::take(&mut lock(&data.0).changes);
    let mut ledger = lock(&device.ledger);
    for change in changes.into_values() {
        // Fails as the record of the destruction itself would: the journal then reports that it is incomplete.
        let _ = ledger.overtaken(change);
    }
}
