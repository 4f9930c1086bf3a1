//! What lies at a device address.

use crate::job::{Device, Job};
use cuda_api::address_map::{ARENA, HEAP, HEAP_END, OWN, PLACED, PLACED_END};
use cuda_api::code::{self, Code};
use cuda_api::few::Few;

/// The index of the device to which an address belongs, as far as the address shows it: own allocations, the driver's placements, and the
/// program's mappings there.
pub(crate) fn home_index(address: u64) -> Option<u32> {
    let index = match address {
        OWN..PLACED => (address - OWN) / ARENA,
        PLACED..PLACED_END => (address - PLACED) / ARENA,
        _ => return crate::device_memory::mappings::find(address).map(|found| found.device),
    };
    u32::try_from(index).ok()
}

/// Returns whether an address is another device's memory.
pub(crate) fn is_of_another(device: &Device, address: u64) -> bool {
    home_index(address).is_some_and(|index| index != device.index)
}

/// Returns whether a device's target has the memory at this address only when the job is quiesced: another device's, or the host's.
pub(crate) fn comes_late(device: &Device, address: u64) -> bool {
    !is_device(address) || is_of_another(device, address)
}

/// The device with this index ([`home_index`]).
pub(crate) fn home(job: &'static Job, address: u64) -> Option<&'static Device> {
    job.devices.get(home_index(address)? as usize)
}

/// The journal's names of the physical memory behind some bytes of device memory.
pub(crate) fn behind(job: &'static Job, address: u64, bytes: u64) -> Few {
    if crate::device_memory::mappings::is_reserved(address) {
        return crate::device_memory::mappings::behind(address, bytes);
    }
    home(job, address).map(|device| device.memory().chunks_behind(address, bytes)).unwrap_or_default()
}

/// Returns whether an address is device memory (own, reserved by the program, placed by the driver, or the device heap); everything else
/// is host memory.
pub(crate) fn is_device(address: u64) -> bool {
    (OWN..PLACED_END).contains(&address)
        || crate::device_memory::mappings::is_reserved(address)
        || (HEAP..HEAP_END).contains(&address)
}

impl Device {
    /// Refuses a copy that exceeds its allocation, as the driver does. Returns false for addresses that only the place can check.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<bool, Code> {
        let allowed = if crate::device_memory::mappings::is_reserved(address) {
            Some(crate::device_memory::mappings::allows(self.index, address, bytes))
        } else {
            self.memory.allows(address, bytes)
        };
        match allowed {
            Some(false) => Err(code::ERROR_INVALID_VALUE),
            Some(true) => Ok(true),
            None => Ok(false),
        }
    }
}
