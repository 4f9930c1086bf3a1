//! Which work between devices is under way, and the calls that must not meet any that the job itself carries out.
//!
//! A driver may wait for the GPU before it returns from a call, as it does when code is loaded, and meanwhile it takes no other call
//! (docs/driver-facts.md, 8.27). If a stream waits for a copy that the job makes, the calls of that copy would wait behind such a call, and it for
//! them. So each waits until there is none of the other kind on its devices. Waits for events need no calls once the stream is held, so they count as
//! work that concerns a device, but meet anything.

use crate::base::log::lock;
use crate::job::Device;
use cuda_api::address_map::DEVICES;
use cuda_api::lock::{wait_timeout_while, wait_while};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Number of items by the devices that they concern.
static CONCERNS: [AtomicUsize; DEVICES as usize] = [const { AtomicUsize::new(0) }; DEVICES as usize];
/// Number of all items.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The items that the job carries out, and the calls that must not meet them.
static TURNS: Mutex<Turns> =
    Mutex::new(Turns { carried: [0; DEVICES as usize], calls: [0; DEVICES as usize], late: [false; DEVICES as usize] });
/// Notified when one of them ends.
static ENDED: Condvar = Condvar::new();

/// How long a call is held up. What the stream waits for may depend on the program's thread that makes the call, if the driver would not have waited for
/// the GPU in it after all.
const LIMIT: Duration = Duration::from_secs(60);

/// Numbers by devices.
struct Turns {
    carried: [usize; DEVICES as usize],
    calls: [usize; DEVICES as usize],
    /// A call has waited for too long for what is carried out: others do not wait until nothing is.
    late: [bool; DEVICES as usize],
}

/// Returns whether work between this device and another is under way.
pub(crate) fn concerns(device: &Device) -> bool {
    CONCERNS[device.index as usize].load(Ordering::Acquire) != 0
}

/// Returns whether any work between devices is under way.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// An item of work under way; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Concern {
    /// Each once.
    devices: Vec<u32>,
    /// Whether the job carries it out.
    carried: bool,
}

impl Concern {
    /// Begins an item that concerns these devices. If the job carries it out, it waits for calls that must not meet it: before anything of it is sent.
    pub(crate) fn begin(devices: impl IntoIterator<Item = u32>, carried: bool) -> Concern {
        let mut devices: Vec<u32> = devices.into_iter().collect();
        devices.sort_unstable();
        devices.dedup();
        if carried {
            let mut turns = wait_while(&ENDED, lock(&TURNS), |t| devices.iter().any(|d| t.calls[*d as usize] > 0));
            devices.iter().for_each(|d| turns.carried[*d as usize] += 1);
        }
        for counted in devices.iter().map(|d| &CONCERNS[*d as usize]).chain([&COUNT]) {
            counted.fetch_add(1, Ordering::AcqRel);
        }
        Concern { devices, carried }
    }
}

impl Drop for Concern {
    fn drop(&mut self) {
        for counted in self.devices.iter().map(|d| &CONCERNS[*d as usize]).chain([&COUNT]) {
            counted.fetch_sub(1, Ordering::AcqRel);
        }
        if self.carried {
            let mut turns = lock(&TURNS);
            for d in self.devices.iter().map(|d| *d as usize) {
                turns.carried[d] -= 1;
                turns.late[d] &= turns.carried[d] > 0;
            }
            ENDED.notify_all();
        }
    }
}

/// A call for which the driver may wait for the GPU: while this lives, the job begins nothing on its device that such a call would keep from ending.
#[derive(Debug)]
pub(crate) struct WaitingCall(usize);

impl WaitingCall {
    /// Waits for the work under way on a device that the job carries out. Not for a thread that holds a lock of the device, which work that is about to
    /// begin may need.
    pub(crate) fn begin(device: &Device) -> WaitingCall {
        WaitingCall::on(device.index)
    }

    fn on(device: u32) -> WaitingCall {
        let index = device as usize;
        let mut turns = lock(&TURNS);
        turns.calls[index] += 1;
        let (mut turns, waited) = wait_timeout_while(&ENDED, turns, LIMIT, |t| t.carried[index] > 0 && !t.late[index]);
        if waited.timed_out() {
            turns.late[index] = true;
            ENDED.notify_all();
            tracing::warn!(target: "job", "a call waits for GPU {index}, on which a copy has waited for {LIMIT:?}");
        }
        WaitingCall(index)
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        lock(&TURNS).calls[self.0] -= 1;
        ENDED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI32;

    #[test]
    fn what_the_job_carries_out_and_calls_that_wait_for_the_gpu_never_meet() {
        // Of devices that no other test uses. Positive: items under way; negative: calls.
        static DEVICE: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];
        let first = DEVICES - 2;
        let under_way = |devices: &[usize], by: i32| {
            for d in devices {
                let before = DEVICE[*d].fetch_add(by, Ordering::SeqCst);
                assert!(before == 0 || before.signum() == by, "{before} and {by} on device {d}");
            }
            std::thread::yield_now();
            for d in devices {
                DEVICE[*d].fetch_sub(by, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..6 {
                scope.spawn(move || {
                    for round in 0..500 {
                        let device = (thread + round) % 2;
                        if thread < 3 {
                            let _concern = Concern::begin([first + 1, first], true);
                            under_way(&[0, 1], 1);
                        } else if round % 5 == 0 {
                            // One that the job does not carry out waits for nothing.
                            drop(Concern::begin([first + device as u32], false));
                        } else {
                            let _call = WaitingCall::on(first + device as u32);
                            under_way(&[device], -1);
                        }
                    }
                });
            }
        });
        let turns = lock(&TURNS);
        assert!([&turns.carried, &turns.calls].iter().all(|counts| counts[first as usize..] == [0, 0]));
    }
}
