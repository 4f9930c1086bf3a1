//! Work of a stream that may delay later work for reasons that only the GPU knows.

use crate::enter::CallContext;
use crate::job::Device;
use crate::objects::instances::LastLaunch;
use cuda_api::flags::STREAM_NON_BLOCKING;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Returns whether a stream's work implicitly follows that of others. A destroyed stream counts as one of these.
pub(crate) fn follows_default(cx: &CallContext, stream: u64) -> bool {
    cx.job.tables.streams.get(stream).map_or(true, |s| s.data.flags.load(Ordering::Relaxed) & STREAM_NON_BLOCKING == 0)
}

/// Bits of a position in a place's order, where it is stored together with the place's epoch.
const POSITION_BITS: u32 = 48;

/// A position in the order of an epoch's place as one number, which grows with both; the maximum if they are too large.
pub(crate) fn moment(epoch: u64, position: u64) -> u64 {
    let fits = epoch < u64::MAX >> POSITION_BITS && position < 1 << POSITION_BITS;
    if fits { epoch << POSITION_BITS | position } else { u64::MAX }
}

/// Notes work of a stream that may delay later work for reasons that only the GPU knows: a kernel or a graph, which may wait for another
/// stream, or a wait for an event.
#[inline]
pub(crate) fn note_delay(cx: &CallContext, device: &Device, stream: u64, call: Option<&Range<u64>>) {
    if let (Some(call), Ok(s)) = (call, cx.job.tables.streams.get(stream)) {
        s.data.delay.fetch_max(moment(device.epoch.load(Ordering::Relaxed), call.end), Ordering::Relaxed);
    }
}

/// Returns whether the next work of a stream follows nothing but copies and functions of the stream itself: it does not implicitly follow
/// another stream, and delaying work ([`note_delay`]) is known to be complete.
pub(crate) fn is_undelayed(cx: &CallContext, device: &Device, stream: u64) -> bool {
    let delay = || cx.job.tables.streams.get(stream).map_or(u64::MAX, |s| s.data.delay.load(Ordering::Relaxed));
    !follows_default(cx, stream) && is_over(device, stream, delay())
}

/// Returns whether the work of a stream up to a [`moment`] is known to be complete.
pub(crate) fn is_over(device: &Device, stream: u64, then: u64) -> bool {
    // A move waits until all work is complete.
    let is_earlier = then < moment(device.epoch.load(Ordering::Relaxed), 0);
    is_earlier || then != u64::MAX && device.is_past(stream, then & ((1 << POSITION_BITS) - 1))
}

/// Notes a launch of a graph instance, behind which its next one is ordered whatever its stream.
pub(crate) fn note_launch(last: &LastLaunch, device: &Device, stream: u64, call: Option<&Range<u64>>) {
    last.set(stream, call.map_or(u64::MAX, |call| moment(device.epoch.load(Ordering::Relaxed), call.end)));
}

/// Returns whether the next launch of an instance, in this stream, follows nothing but the stream's own work.
pub(crate) fn is_no_delay(last: &LastLaunch, device: &Device, stream: u64) -> bool {
    last.get().is_none_or(|(before, then)| before == stream || is_over(device, before, then))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_grow_with_the_place_and_its_order() {
        assert!(moment(0, 0) < moment(1, 0) && moment(1, 7) < moment(1, 8) && moment(1, (1 << POSITION_BITS) - 1) < moment(2, 0));
        // A moment that is too large is never complete.
        assert_eq!((moment(1, 1 << POSITION_BITS), moment(u64::MAX >> POSITION_BITS, 0)), (u64::MAX, u64::MAX));
    }
    #[test]
    fn moments_grow_with_epoch_and_position() {
        let all =
            [moment(0, 0), moment(0, 1), moment(0, (1 << 48) - 1), moment(1, 0), moment(1, 8), moment(2, 0), moment(65_534, 0)];
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:x?}");
    }

    #[test]
    fn moments_that_do_not_fit_are_never_over() {
        assert_eq!((moment(0, 1 << 48), moment(65_535, 0), moment(u64::MAX, u64::MAX)), (u64::MAX, u64::MAX, u64::MAX));
        assert_ne!(moment(65_534, (1 << 48) - 1), u64::MAX);
    }
}
