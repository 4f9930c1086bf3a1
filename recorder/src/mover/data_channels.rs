//! The connections on which a move's bytes travel: directly from place to place.

use super::{random, unexpected};
use crate::moves::Task;
use crate::place::Place;
use faults::Faults;
use memsync::Verify;
use rcuda_forwarder::{Control, ControlReply, RoundInfo, is_of_the_other_end};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connections that carry a move's bytes.
const STRIPES: u32 = 4;

/// The connections between source and target. Closed when dropped.
#[derive(Debug)]
pub(super) struct Wires {
    source: Place,
    target: Place,
    ticket: [u8; 32],
}

impl Wires {
    pub(super) fn connect(source: &Place, target: &Place) -> Result<Wires, String> {
        let ticket = random()?;
        let wires = Wires { source: source.clone(), target: target.clone(), ticket };
        let expect = Control::Expect { ticket, stripes: STRIPES };
        // Whoever can be reached listens; a Unix socket can be reached from its own machine only.
        let mut ends = [(target, source), (source, target)];
        ends.sort_by_key(|(listens, _)| listens.address().map_or(2, |a| u8::from(a.unix_path().is_some())));
        let (listens, connects) = ends[0];
        listens.control(&expect)?;
        match listens.address() {
            Some(at) => drop(connects.control(&Control::Connect { to: at.to_string(), ticket, stripes: STRIPES })?),
            None => {
                // Both are of this machine and belong to this job: it makes the connections for them.
                connects.control(&expect)?;
                for _ in 0..STRIPES {
                    let (a, b) = UnixStream::pair().map_err(|e| format!("cannot make a connection: {e}"))?;
                    listens.hand_over(&ticket, a)?;
                    connects.hand_over(&ticket, b)?;
                }
                connects.control(&Control::Accept { ticket })?;
            }
        }
        listens.control(&Control::Accept { ticket })?;
        Ok(wires)
    }

    /// What cuts the connections from another thread: a round on them fails at once.
    pub(super) fn cutter(&self) -> impl Fn() + Send + use<> {
        let (ends, ticket) = ([self.source.clone(), self.target.clone()], self.ticket);
        move || hang_up(&ends, ticket)
    }

    /// One round of memsync: both ends run at the same time, and both must succeed. As soon as one has failed the other one is
    /// told: what it waits for may never come, if its peer is stopped and not gone. If the move is given up the source is left
    /// to end by itself, since it may wait for the job's kernels; it only reads.
    /// With a limit a round that takes longer is given up.
    pub(super) fn round(&self, verify: Verify, task: &Task, limit: Option<Duration>) -> Result<RoundInfo, String> {
        let ticket = self.ticket;
        let far = Faults::from_env().tcp_is_far && [&self.source, &self.target].iter().any(|p| p.transport() == "tcp");
        let part = Control::RoundTarget { ticket, verify, near: !far };
        let (source, target) = (self.source.clone(), self.target.clone());
        let (from, to) = std::thread::scope(|s| {
            let to = s.spawn(|| ask(&self.target, &part, &self.source, ticket));
            let from = task.apart_within(limit, move || ask(&source, &Control::RoundSource { ticket }, &target, ticket));
            let from = from.unwrap_or_else(|| {
                // The target must not wait for it either.
                hang_up(&[self.source.clone(), self.target.clone()], ticket);
                let limit = limit.unwrap_or_default().as_secs();
                Err(format!(
                    "cannot move: the job's memory could not be looked through and copied within {limit} s; kernels that never end \
                     may hold the whole GPU"
                ))
            });
            (from, to.join().unwrap_or_else(|_| Err("the copying thread failed".into())))
        });
        let (from, to) = both(from, to)?;
        if verify != Verify::Skip && from.digest != to.digest {
            return Err("the target holds other bytes than the source".into());
        }
        // Only the target knows what it has fetched, and when everything is there.
        Ok(RoundInfo { bytes_sent: from.bytes_sent, ..to })
    }
}

/// What both ends say; of two reasons the one that is not only what the other end's failure looks like.
fn both<T>(from: Result<T, String>, to: Result<T, String>) -> Result<(T, T), String> {
    match (from, to) {
        (Err(from), Err(to)) => Err(if is_of_the_other_end(&from) { to } else { from }),
        (from, to) => Ok((from?, to?)),
    }
}

/// Asks one end for its part of a round; after a failure the other end is told.
fn ask(place: &Place, part: &Control, other: &Place, ticket: [u8; 32]) -> Result<RoundInfo, String> {
    let round = match place.control(part) {
        Ok(ControlReply::Round(r)) => Ok(r),
        Ok(odd) => Err(unexpected(&odd)),
        Err(why) => Err(why),
    };
    round.inspect_err(|_| drop(other.control(&Control::HangUp { ticket })))
}

fn hang_up(ends: &[Place; 2], ticket: [u8; 32]) {
    for place in ends {
        // A place that is gone has closed them.
        let _ = place.control(&Control::HangUp { ticket });
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        hang_up(&[self.source.clone(), self.target.clone()], self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_that_says_more_is_told() {
        let broken = format!("{} while receiving pages: connection reset by peer", memsync::BROKEN);
        let said = |from: &str, to: &str| both::<()>(Err(from.to_owned()), Err(to.to_owned())).unwrap_err();
        assert_eq!(said(&broken, "no memory"), "no memory");
        assert_eq!(said("no memory", &broken), "no memory");
        assert_eq!(said("one", "two"), "one");
        assert_eq!(both::<()>(Ok(()), Err("two".to_owned())), Err("two".to_owned()));
        assert_eq!(both(Ok(1), Ok(2)), Ok((1, 2)));
    }
}
