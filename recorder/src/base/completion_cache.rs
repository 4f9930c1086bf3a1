//! The completion cache: what is known to be complete at a place, so that calls that wait need no round trip if nothing was submitted
//! since.

use cuda_api::arg::LEGACY;
use std::ops::Range;

/// A position in a place's order ([`crate::place::Place::position`]) before which streams are complete.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct CompletionCache {
    epoch: u64,
    /// The position; `u64::MAX` if there is none.
    position: u64,
    /// Whether all streams are complete.
    all: bool,
    /// The streams that are complete.
    streams: Vec<u64>,
    /// Streams, each with the position up to which it is complete, whatever was submitted since.
    past: Vec<(u64, u64)>,
    /// The same for all streams.
    past_all: u64,
}

/// Maximum number of streams in the cache.
const MAX_STREAMS: usize = 64;

impl CompletionCache {
    /// Returns whether a stream, or with `None` every stream, is known to be complete up to `position`.
    pub(crate) fn holds(&self, epoch: u64, position: u64, stream: Option<u64>) -> bool {
        self.epoch == epoch && self.position == position && (self.all || stream.is_some_and(|s| self.streams.contains(&s)))
    }

    /// Returns whether everything submitted to a stream before `position` is complete.
    pub(crate) fn is_past(&self, epoch: u64, stream: u64, position: u64) -> bool {
        let past = || self.past.iter().any(|(s, done)| *s == stream && position <= *done);
        self.epoch == epoch && (position <= self.past_all || past())
    }

    /// Notes that a stream, or with `None` every stream, is complete up to `position`.
    pub(crate) fn learn_past(&mut self, epoch: u64, position: u64, stream: Option<u64>) {
        if self.epoch != epoch {
            *self = CompletionCache { epoch, position: u64::MAX, ..CompletionCache::default() };
        }
        let Some(stream) = stream else {
            self.past_all = self.past_all.max(position);
            return;
        };
        match self.past.iter_mut().find(|(s, _)| *s == stream) {
            Some((_, done)) => *done = position.max(*done),
            None => {
                // Streams are created and destroyed, so the list is bounded.
                if self.past.len() == MAX_STREAMS {
                    self.past.remove(0);
                }
                self.past.push((stream, position));
            }
        }
    }

    /// Notes that a call has shown that a stream, or with `None` every stream, is complete up to the call's end; the call itself gives no
    /// other stream work.
    pub(crate) fn learn(&mut self, epoch: u64, call: Range<u64>, stream: Option<u64>) {
        self.learn_past(epoch, call.end, stream);
        if self.position != u64::MAX && self.position > call.start {
            // A later position is known already.
            return;
        }
        if self.position != call.start {
            self.all = false;
            self.streams.clear();
        }
        self.position = call.end;
        match stream {
            None => {
                self.all = true;
                self.streams.clear();
            }
            Some(s) if !self.all && self.streams.len() < MAX_STREAMS && !self.streams.contains(&s) => self.streams.push(s),
            Some(_) => {}
        }
    }

    /// Notes that the place has answered a query: the stream is complete up to the end of that call.
    pub(crate) fn learn_answer(&mut self, epoch: u64, call: Range<u64>, stream: u64) {
        // For the default stream the answer may not cover the streams that its work follows, so it is ignored.
        if stream != LEGACY {
            self.learn(epoch, call, Some(stream));
        }
    }

    /// Notes that a call gives no stream work, so that the cache stays valid.
    pub(crate) fn extend(&mut self, epoch: u64, call: Range<u64>) {
        if self.epoch == epoch && self.position == call.start {
            self.position = call.end;
        }
    }
}

#[cfg(test)]
mod tests;
