//! Connections between two places, which carry bytes past the job: for a move, and for copies between the job's GPUs.

use crate::base::config::half_of_processors;
use crate::move_error::MoveError;
use crate::place::Place;
use rcuda_forwarder::{Carried, Control, ControlReply, Endpoint};
use std::os::unix::net::UnixStream;

/// Number of connections between two places, whose machines are likely to have as many processors as the job's.
fn stripes() -> u32 {
    half_of_processors().clamp(4, 8)
}

/// Connects two places under a ticket. Returns how bytes travel between them. After an error one of them may still expect connections.
pub(crate) fn connect(places: [&Place; 2], ticket: [u8; 32]) -> Result<Carried, MoveError> {
    let stripes = stripes();
    let expect = Control::Expect { ticket, stripes };
    // The place that can be reached listens; a Unix socket can be reached from its own machine only.
    let mut ends = [(places[1], places[0]), (places[0], places[1])];
    ends.sort_by_key(|(listens, _)| listens.address().map_or(2, |a| u8::from(a.unix_path().is_some())));
    let (listens, connects) = ends[0];
    listens.control(&expect)?;
    match listens.address_for(connects) {
        Some(at) => {
            let may_use_rdma = connects.address().is_none_or(may_use_rdma);
            let to = if may_use_rdma { at } else { at.without_rdma() }.to_string();
            drop(connects.control(&Control::Connect { to, ticket, stripes })?);
        }
        None => {
            // Both places are on this machine and belong to this job, which creates the connections for them.
            connects.control(&expect)?;
            for _ in 0..stripes {
                let (a, b) = UnixStream::pair().map_err(|error| MoveError::SystemError { what: "make a connection", error })?;
                listens.hand_over(&ticket, a)?;
                connects.hand_over(&ticket, b)?;
            }
            connects.control(&Control::Accept { ticket })?;
        }
    }
    match listens.control(&Control::Accept { ticket })? {
        ControlReply::Connected(carried) => Ok(carried),
        odd => Err(MoveError::unexpected(&odd)),
    }
}

/// Whether the data of this place may travel over RDMA, which is not encrypted: the user has said so, or it is on the job's machine.
fn may_use_rdma(place: &Endpoint) -> bool {
    place.is_rdma() || place.unix_path().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_an_encrypted_place_stays_encrypted() {
        for (place, may) in
            [("rdma://a:1", true), ("unix:/run/a", true), ("a:1", false), ("tls://a:1", false), ("plain://a:1", false)]
        {
            assert_eq!(may_use_rdma(&place.parse().unwrap()), may, "{place}");
        }
    }
}
