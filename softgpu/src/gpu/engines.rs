//! Copy engines: a device makes one copy in each direction between it and the host at a time.
//!
//! As on an H100 (docs/driver-facts.md, 5.12), an engine goes on with the next copy of the stream that has it, and turns to another stream
//! only where that one comes to something else: a kernel, a write to memory, a wait that is not over. Events do not count. Then it prefers
//! the others. Who reads or changes this holds the scheduler's lock.

use crate::config;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Copies of at least so many bytes wait at the gate ([`pass_gate`]).
const GATED: u64 = 1 << 20;
const POLL: Duration = Duration::from_millis(1);

/// The direction of an engine's copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    ToDevice,
    ToHost,
}

/// Streams are numbers from 1 here, 0 is none.
#[derive(Debug, Default)]
struct One {
    /// The stream that has the engine.
    holder: AtomicU64,
    /// The stream that had it last.
    last: AtomicU64,
}

/// The engines of a device.
#[derive(Debug, Default)]
pub(crate) struct Engines([One; 2]);

impl Engines {
    fn of(&self, engine: Engine) -> &One {
        &self.0[usize::from(engine == Engine::ToHost)]
    }

    /// Whether a stream may begin a copy.
    pub fn is_free(&self, engine: Engine, stream: u64) -> bool {
        [0, stream + 1].contains(&self.of(engine).holder.load(Ordering::Relaxed))
    }

    /// Whether a stream is the last one that should get the engine.
    pub fn yields(&self, engine: Engine, stream: u64) -> bool {
        let one = self.of(engine);
        one.holder.load(Ordering::Relaxed) == 0 && one.last.load(Ordering::Relaxed) == stream + 1
    }

    /// A copy of a stream begins.
    pub fn begin(&self, engine: Engine, stream: u64) {
        self.of(engine).holder.store(stream + 1, Ordering::Relaxed);
    }

    /// A copy of a stream has ended; `keeps`: the stream has another one.
    pub fn end(&self, engine: Engine, stream: u64, keeps: bool) {
        let one = self.of(engine);
        one.last.store(stream + 1, Ordering::Relaxed);
        one.holder.store(if keeps { stream + 1 } else { 0 }, Ordering::Relaxed);
    }
}

/// Waits in the middle of a copy of so many bytes as long as the setting `SOFTGPU_COPY_GATE` asks for: until its file has a byte for this
/// copy too. A test that appends bytes decides how far large copies get, however fast the machine is.
pub(crate) fn pass_gate(bytes: u64) {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Some(file) = config::get().copy_gate.as_ref().filter(|_| bytes >= GATED) else { return };
    let number = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
    while std::fs::metadata(file).is_ok_and(|about| about.len() < number) {
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_one_streams_until_it_gives_it_up() {
        let e = Engines::default();
        let to = Engine::ToDevice;
        e.begin(to, 0);
        assert!(e.is_free(to, 0) && !e.is_free(to, 1) && e.is_free(Engine::ToHost, 1));
        e.end(to, 0, true);
        assert!(e.is_free(to, 0) && !e.is_free(to, 1) && !e.yields(to, 0));
        e.end(to, 0, false);
        assert!(e.is_free(to, 1) && e.yields(to, 0) && !e.yields(to, 1));
    }
}
