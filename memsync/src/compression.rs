//! Decides for one connection which batches are compressed, without I/O and without a clock: from measured times follow decisions.
//!
//! Batches are sent as they are until the connection was measured to be slow: the time in which writes to it did not return, over the last
//! mebibytes. What fits into the buffers of the system takes no time, so one slow batch says little: the average of the last batches and at
//! least two of the last four must be slow. On a faster connection nothing is ever compressed, and a decision is one comparison.
//!
//! On a slow one a batch is compressed now and then, which measures the compressor: its speed and what remains. If compressing and sending
//! takes at most nine tenths of the time that sending alone takes, compression is switched on. It is switched off
//!
//! * at a batch that it does not make a tenth smaller, which is sent as it is;
//! * when compressing and sending takes as long as sending alone. The tenth between both limits keeps the decision from changing with each batch;
//! * when the connection may have become faster. As long as compressed batches wait for it, it is slow. When they have not for as long as
//!   [`TRUSTED`] bytes would have taken as they are, batches are sent as they are until the connection was measured again.
//!
//! An attempt that did not pay is followed by none until the connection has taken [`PATIENCE`] times as long as the attempt, and after further
//! ones that did not pay twice, four times, up to [`MAX_PATIENCE`] times as long. So data that does not shrink makes a round longer by a
//! sixteenth at most (with time, a 256th), and by the first attempt.

use std::time::Duration;

/// Nanoseconds that a byte takes on a connection that is too fast for compression: 500 MB/s. zstd compresses 1 GB/s or less on one processor.
const FAST: f64 = 2.0;
/// A batch counts as at most so many times as slow as those before it: one during which the receiver has halted says little.
const MAX_GROWTH: f64 = 8.0;
/// Smaller batches do not measure a connection.
const MIN_MEASURED: usize = 128 << 10;
/// The share that older batches keep in an average, at each further one.
const KEPT: f64 = 0.75;
/// Of this many last batches …
const LAST: u32 = 4;
/// … so many must have been slow.
const MIN_SLOW: u32 = 2;
/// Compression is switched on if sending takes at most this share of the time.
const WORTHWHILE: f64 = 0.9;
/// How many times as long as an attempt that did not pay the connection is used before the next one.
const PATIENCE: u32 = 16;
/// The same after several that did not pay.
const MAX_PATIENCE: u32 = 256;
/// Bytes whose time as they are is how long an earlier measurement of the connection is trusted.
const TRUSTED: f64 = (32 << 20) as f64;
/// A write that has waited for less says nothing about the connection.
const MIN_WAIT: Duration = Duration::from_micros(500);

/// Bytes and the time that they have taken, with less weight the older they are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Pace {
    bytes: f64,
    nanoseconds: f64,
}

impl Pace {
    fn add(&mut self, bytes: usize, nanoseconds: f64) {
        self.bytes = self.bytes * KEPT + bytes as f64;
        self.nanoseconds = self.nanoseconds * KEPT + nanoseconds;
    }

    /// Nanoseconds of a byte.
    fn per_byte(&self) -> f64 {
        if self.bytes > 0.0 { self.nanoseconds / self.bytes } else { 0.0 }
    }
}

/// What compression has done to recent batches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Outcome {
    pace: Pace,
    /// Bytes that remained, averaged like those of `pace`.
    remained: f64,
}

impl Outcome {
    fn add(&mut self, bytes: usize, remained: usize, time: Duration) {
        self.pace.add(bytes, time.as_nanos() as f64);
        self.remained = self.remained * KEPT + remained as f64;
    }

    /// Nanoseconds to compress and send a byte, over a connection that takes `plain` for each.
    fn per_byte(&self, plain: f64) -> f64 {
        self.pace.per_byte() + plain * self.remained / self.pace.bytes.max(1.0)
    }
}

/// What is known of one connection and of the data that it carries. It is kept from round to round: the last round, in which the job waits,
/// begins with what those before it have measured.
#[derive(Debug, Clone, Default)]
pub struct Compression {
    is_on: bool,
    /// Batches that were sent as they were, since the connection was measured anew.
    plain: Pace,
    /// Bit n says whether batch n of these, counted from the last, was slow.
    slow: u32,
    /// Nothing if the last attempt did not shrink its batch.
    outcome: Option<Outcome>,
    /// How long the connection must have been used before the next attempt.
    pause: Duration,
    /// How many times as long as the next attempt that does not pay the pause after it is.
    patience: u32,
    /// For how long compressed batches have not waited for the connection.
    unconfirmed: Duration,
}

impl Compression {
    /// Whether the next batch is to be compressed.
    pub(crate) fn is_due(&self) -> bool {
        self.is_on || (self.is_slow() && (self.pause.is_zero() || self.pays(WORTHWHILE)))
    }

    /// The largest size at which a compressed batch is sent.
    pub(crate) fn limit(bytes: usize) -> usize {
        bytes - bytes.div_ceil(10)
    }

    /// A batch was sent as it is, and its writes have taken so long.
    pub(crate) fn sent_plain(&mut self, bytes: usize, writing: Duration) {
        self.pause = self.pause.saturating_sub(writing);
        if bytes >= MIN_MEASURED {
            let writing = writing.as_nanos() as f64;
            self.slow = self.slow << 1 | u32::from(writing > bytes as f64 * FAST);
            self.plain.add(bytes, writing.min(bytes as f64 * self.plain.per_byte().max(FAST) * MAX_GROWTH));
        }
    }

    /// A batch was compressed to so many bytes and sent.
    pub(crate) fn sent_compressed(&mut self, bytes: usize, remained: usize, compressing: Duration, writing: Duration) {
        self.outcome.get_or_insert_default().add(bytes, remained, compressing);
        if !self.pays(if self.is_on { 1.0 } else { WORTHWHILE }) {
            return self.did_not_pay(compressing);
        }
        (self.is_on, self.patience) = (true, PATIENCE);
        // What is saved at the speed at which the connection took these bytes, compared with what it costs.
        let saved = writing.as_secs_f64() * (bytes - remained) as f64;
        let is_confirmed = writing >= MIN_WAIT && saved > compressing.as_secs_f64() * remained as f64;
        self.unconfirmed =
            if is_confirmed { Duration::ZERO } else { self.unconfirmed.saturating_add(compressing).saturating_add(writing) };
        if self.unconfirmed.as_nanos() as f64 > TRUSTED * self.plain.per_byte() {
            *self = Compression { outcome: self.outcome, ..Compression::default() };
        }
    }

    /// A batch was compressed for so long and did not become smaller than [`Compression::limit`].
    pub(crate) fn did_not_shrink(&mut self, compressing: Duration) {
        self.outcome = None;
        self.did_not_pay(compressing);
    }

    fn did_not_pay(&mut self, compressing: Duration) {
        let patience = self.patience.max(PATIENCE);
        self.is_on = false;
        self.pause = compressing.saturating_mul(patience);
        self.patience = (patience * 2).min(MAX_PATIENCE);
        self.unconfirmed = Duration::ZERO;
    }

    fn is_slow(&self) -> bool {
        let recent = self.slow & ((1 << LAST) - 1);
        self.plain.per_byte() > FAST && recent.count_ones() >= MIN_SLOW
    }

    /// Whether compressing and sending takes less than this share of the time of sending alone, as far as is known.
    fn pays(&self, share: f64) -> bool {
        let plain = self.plain.per_byte();
        self.outcome.is_some_and(|outcome| outcome.per_byte(plain) < plain * share)
    }
}

#[cfg(test)]
mod tests;
