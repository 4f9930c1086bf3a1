//! The function that was launched last in each stream of a device: what a move names that waits for the stream.

use cuda_api::handle::{Cells, Kind, kind, slot};
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream, and the function that was launched there last. Threads that launch in one slot at the same time may leave a function that was
/// not quite the last one.
#[derive(Debug, Default)]
struct Last {
    stream: AtomicU64,
    function: AtomicU64,
}

impl Last {
    fn note(&self, stream: u64, function: u64) {
        self.stream.store(stream, Ordering::Relaxed);
        self.function.store(function, Ordering::Relaxed);
    }

    fn of(&self, stream: u64) -> Option<u64> {
        let function = self.function.load(Ordering::Relaxed);
        (function != 0 && self.stream.load(Ordering::Relaxed) == stream).then_some(function)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LastKernels {
    /// By the slots of streams.
    streams: Cells<Last>,
    /// The legacy default stream.
    legacy: Last,
}

impl LastKernels {
    pub(crate) fn new() -> LastKernels {
        LastKernels { streams: Cells::new(), legacy: Last::default() }
    }

    /// Notes a launch, by the job's handles.
    #[inline]
    pub(crate) fn note(&self, stream: u64, function: u64) {
        let last = if kind(stream) == Some(Kind::Stream) { self.streams.at(slot(stream)) } else { &self.legacy };
        last.note(stream, function);
    }

    /// The job's handle of the function that was launched last in a stream; it may have been unloaded since.
    pub(crate) fn of(&self, stream: u64) -> Option<u64> {
        match kind(stream) {
            Some(Kind::Stream) => self.streams.get(slot(stream))?.of(stream),
            _ => self.legacy.of(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_api::arg::LEGACY;
    use cuda_api::handle::compose;

    #[test]
    fn each_stream_has_its_own_last_kernel() {
        let (last, a, b) = (LastKernels::new(), compose(Kind::Stream, 1, 0), compose(Kind::Stream, 1, 5000));
        assert_eq!([a, b, LEGACY].map(|stream| last.of(stream)), [None; 3]);
        for (n, stream) in [a, b, LEGACY, a].into_iter().enumerate() {
            last.note(stream, 10 + n as u64);
        }
        assert_eq!([a, b, LEGACY].map(|stream| last.of(stream)), [Some(13), Some(11), Some(12)]);
        assert_eq!(last.of(compose(Kind::Stream, 2, 0)), None, "a later stream of the same slot");
    }
}
