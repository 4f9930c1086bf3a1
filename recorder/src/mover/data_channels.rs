//! The data connections of a move, which connect the two places directly.

use crate::base::spawn;
use crate::connections;
use crate::internal_error;
use crate::job::Device;
use crate::move_error::MoveError;
use crate::moves::Task;
use crate::place::{ControlUnderWay, Place};
use crate::random::random;
use faults::Faults;
use memsync::{Round, Verify};
use rcuda_forwarder::{Carried, Control, ControlReply};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a place may take to end its part of a round that has failed. It has no connections any more, so one that takes longer is stuck.
const ENDING: Duration = Duration::from_secs(3);
/// Poll interval for the end of its part.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Interval between two reports of the progress of a round.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Waits until a condition is met, at most as long as a place may take to end its part of a round. Returns whether it is met.
fn comes_to_its_end(met: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !met() {
        if since.elapsed() >= ENDING {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Checks that the source takes part in no round of an earlier move: each such round occupies a thread there, of which it has few.
pub(super) fn check_source(device: &Device) -> Result<(), MoveError> {
    if comes_to_its_end(|| !device.is_copying()) { Ok(()) } else { Err(MoveError::CopyTooSlow(None)) }
}

/// The data connections between source and target. Closed when dropped.
#[derive(Debug)]
pub(super) struct DataChannels {
    device: &'static Device,
    source: Place,
    target: Place,
    ticket: [u8; 32],
    carried: Carried,
    /// Whether they are still to be closed.
    is_open: bool,
}

impl DataChannels {
    pub(super) fn connect(device: &'static Device, source: &Place, target: &Place) -> Result<DataChannels, MoveError> {
        let ticket = random()?;
        let (source_end, target_end) = (source.clone(), target.clone());
        let mut data_channels =
            DataChannels { device, source: source_end, target: target_end, ticket, carried: Carried::default(), is_open: true };
        data_channels.carried = connections::connect([source, target], ticket)?;
        Ok(data_channels)
    }

    /// How bytes travel.
    pub(super) fn carried(&self) -> Carried {
        self.carried
    }

    /// Returns a function that closes the connections from another thread: a round on them then fails at once.
    pub(super) fn cutter(&self) -> impl Fn() + Send + use<> {
        let (ends, ticket) = ([self.source.clone(), self.target.clone()], self.ticket);
        move || hang_up(&ends, ticket)
    }

    /// One round of memsync: both ends run at the same time, and both must succeed. When one fails, the other is asked to stop: a peer
    /// that is stopped but not closed would keep it waiting. If the move is abandoned, the source is left to finish by itself, since it
    /// may wait for the job's kernels; it only reads. A round that takes longer than the limit, if there is one, is abandoned. A target
    /// that does not end with the source is abandoned too: it may send heartbeats and yet never end. If a copy is abandoned, both ends lose
    /// their connections at once, so that its target ends the round in time and is kept. While a round takes long that does
    /// not verify, `progress` gets the bytes that the target has received in all rounds.
    pub(super) fn round(
        &self,
        verify: Verify,
        task: &Task,
        limit: Option<Duration>,
        progress: impl Fn(u64) + Send,
    ) -> Result<Round, MoveError> {
        let ticket = self.ticket;
        let by_descriptor = !are_apart(&self.source, &self.target);
        // A store has no regions of its own.
        let send_regions = self.target.spec().is_store();
        let part = Control::RoundTarget { ticket, verify, by_descriptor };
        let (source, target) = (self.source.clone(), self.target.clone());
        let (under_way, ended) = std::sync::mpsc::channel::<()>();
        let (from, to) = std::thread::scope(|s| {
            let to = spawn::scoped(s, "mrcuda-round", || ask(&self.target, &part, &self.source, ticket));
            let to = to.map_err(MoveError::no_thread)?;
            // Without that thread, and in the pause, the progress is reported at the end of the round.
            let _under_way = under_way;
            let watched = || spawn::scoped(s, "mrcuda-progress", move || self.watch(&ended, progress));
            drop((verify == Verify::Skip).then(watched));
            let copying = self.device.begin_copy();
            let from = task.apart_within(limit, move || {
                let _copying = copying;
                ask(&source, &Control::RoundSource { ticket, send_regions }, &target, ticket)
            });
            let from = from.unwrap_or_else(|| {
                // The target must not wait for the source either.
                hang_up(&[self.source.clone(), self.target.clone()], ticket);
                Err(MoveError::CopyTooSlow(limit))
            });
            if from.is_err() && task.gives_way() {
                // No stopper does it, and both ends still copy: the move that comes next would wait for them.
                hang_up(&[self.source.clone(), self.target.clone()], ticket);
            }
            if from.is_err() && !comes_to_its_end(|| to.is_finished()) {
                self.target.abandon();
            }
            Ok::<_, MoveError>((from, to.join().unwrap_or_else(|_| Err(internal_error::of_thread()))))
        })?;
        let (from, to) = both(from, to)?;
        if verify != Verify::Skip && from.digest != to.digest {
            return Err(MoveError::NotIdentical("the target holds other bytes than the source".to_owned()));
        }
        // Only the target knows how much it has fetched, and when everything has arrived.
        Ok(Round { bytes_sent: from.bytes_sent, ..to })
    }
}

/// Connects two places as a move does, and closes the connections again.
pub(super) fn try_to_connect(source: &Place, target: &Place) -> Result<(), MoveError> {
    let ticket = random()?;
    let connected = connections::connect([source, target], ticket);
    for place in [source, target] {
        // Not `HangUp`, which would also end what a move has mapped that has begun meanwhile. A lost place has closed them.
        let _ = place.control(&Control::EndLink { ticket });
    }
    connected.map(drop)
}

impl DataChannels {
    /// Asks the target for its progress again and again until the round has ended.
    fn watch(&self, ended: &Receiver<()>, progress: impl Fn(u64)) {
        while ended.recv_timeout(PROGRESS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            match self.target.control(&Control::Moved) {
                Ok(ControlReply::Moved(bytes)) => progress(bytes),
                // The round itself finds out why.
                _ => return,
            }
        }
    }
}

/// Whether two places are to be treated as those of two machines, though they may be on one.
pub(super) fn are_apart(source: &Place, target: &Place) -> bool {
    let is_tcp = |place: &Place| matches!(place.transport(), "tls" | "tcp" | "rdma");
    Faults::from_env().tcp_is_other_machine && (is_tcp(source) || is_tcp(target))
}

/// Combines the results of both ends; of two errors returns the one that is not merely a consequence of the other end's failure.
fn both<T>(from: Result<T, MoveError>, to: Result<T, MoveError>) -> Result<(T, T), MoveError> {
    match (from, to) {
        (Err(from), Err(to)) => Err(if from.is_of_the_other_end() { to } else { from }),
        (from, to) => Ok((from?, to?)),
    }
}

/// Requests one end's part of a round; on failure asks the other end to stop.
fn ask(place: &Place, part: &Control, other: &Place, ticket: [u8; 32]) -> Result<Round, MoveError> {
    let round = match place.control(part) {
        Ok(ControlReply::Round(r)) => Ok(r),
        Ok(odd) => Err(MoveError::unexpected(&odd)),
        Err(why) => Err(MoveError::of_round(why)),
    };
    round.inspect_err(|_| drop(other.control(&Control::HangUp { ticket })))
}

/// Closes the connections at both ends, at the same time: each may have much of the other's memory to unmap.
fn hang_up(ends: &[Place; 2], ticket: [u8; 32]) {
    let asked = ends.each_ref().map(|place| place.begin_control(Control::HangUp { ticket }));
    for asked in asked {
        // A lost place has closed them.
        let _ = asked.and_then(ControlUnderWay::finish);
    }
}

impl DataChannels {
    /// Closes the connections at both ends, and meanwhile `release`s one of them, which has closed them then: the source, or else the target.
    /// What the other one still has mapped of its memory is its own by then.
    pub(super) fn close(mut self, of_source: bool, release: impl FnOnce()) {
        self.is_open = false;
        let (first, second) = if of_source { (&self.source, &self.target) } else { (&self.target, &self.source) };
        // Begun first, as it may take longer.
        let request = || Control::HangUp { ticket: self.ticket };
        let other = second.begin_control(request());
        // A lost place has closed them.
        let _ = first.control(&request());
        release();
        let _ = other.and_then(ControlUnderWay::finish);
    }
}

impl Drop for DataChannels {
    fn drop(&mut self) {
        if self.is_open {
            hang_up(&[self.source.clone(), self.target.clone()], self.ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuda_forwarder::Refused;

    #[test]
    fn the_reason_that_says_more_is_told() {
        let broken = || MoveError::CopyFailed(Refused::OtherEnd("connection reset by peer".to_owned()));
        let unknown = || MoveError::CopyFailed(Refused::UnknownTicket);
        let failed = |why: &str| MoveError::CopyFailed(Refused::Other(why.to_owned()));
        let differs = || MoveError::NotIdentical("a page differs".to_owned());
        let said = |from, to| both::<()>(Err(from), Err(to)).unwrap_err().to_string();
        assert_eq!(said(broken(), failed("no memory")), "no memory");
        assert_eq!(said(failed("no memory"), broken()), "no memory");
        assert_eq!(said(unknown(), differs()), "a page differs");
        assert_eq!(said(differs(), unknown()), "a page differs");
        assert_eq!(said(failed("one"), failed("two")), "one");
        assert_eq!(both::<()>(Ok(()), Err(failed("two"))).unwrap_err().to_string(), "two");
        assert_eq!(both(Ok(1), Ok(2)).unwrap(), (1, 2));
    }
}
