//! Opens the journal of a device.

use crate::ledger::NoJournal;
use executor::DeviceInfo;
use journal::{Meta, Writer};
use std::time::{SystemTime, UNIX_EPOCH};

/// Creates an empty journal. Without `MRCUDA_KEEP_JOURNAL` it is in memory only, so that nothing of it remains after the job,
/// however that ends.
pub(crate) fn open(device: u32, info: &DeviceInfo) -> Result<Writer, NoJournal> {
    let writer = create(device, info);
    if let Err(why) = &writer {
        tracing::warn!(target: "migrate", "GPU {device} has no journal, so it cannot move: {why}");
    }
    writer
}

fn create(device: u32, info: &DeviceInfo) -> Result<Writer, NoJournal> {
    let Some(directory) = &crate::base::config::get()?.keep_journal else {
        return Writer::in_memory().map_err(NoJournal::Memory);
    };
    let path = directory.join(format!("{}.d{device}.journal", std::process::id()));
    let meta = Meta {
        build: rcuda_forwarder::build_digest(),
        pid: std::process::id(),
        created_unix: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        driver_version: info.driver_version,
        about: serde_json::json!({ "device": device, "name": info.name, "capability": info.capability }).to_string(),
    };
    Writer::create(&path, &meta).map_err(|source| NoJournal::File { path, source })
}
