//! The number of items of work between devices that are under way.

use crate::job::Device;
use cuda_api::address_map::DEVICES;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of items by the devices that they concern.
static CONCERNS: [AtomicUsize; DEVICES as usize] = [const { AtomicUsize::new(0) }; DEVICES as usize];
/// Number of all items.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether work between this device and another is under way.
pub(crate) fn concerns(device: &Device) -> bool {
    CONCERNS[device.index as usize].load(Ordering::Acquire) != 0
}

/// Returns whether any work between devices is under way.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Notes that an item which concerns these devices begins or ends.
pub(super) fn count(devices: &[u32], begins: bool) {
    for d in devices.iter().map(|d| &CONCERNS[*d as usize]).chain([&COUNT]) {
        if begins {
            d.fetch_add(1, Ordering::AcqRel)
        } else {
            d.fetch_sub(1, Ordering::AcqRel)
        };
    }
}
