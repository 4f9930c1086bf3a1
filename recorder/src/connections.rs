//! Connections between two places, which carry bytes past the job: for a move, and for copies between the job's GPUs.

use crate::move_error::MoveError;
use crate::place::Place;
use rcuda_forwarder::Control;
use std::os::unix::net::UnixStream;

/// Number of connections between two places.
const STRIPES: u32 = 4;

/// Connects two places under a ticket. After an error one of them may still expect connections.
pub(crate) fn connect(places: [&Place; 2], ticket: [u8; 32]) -> Result<(), MoveError> {
    let expect = Control::Expect { ticket, stripes: STRIPES };
    // The place that can be reached listens; a Unix socket can be reached from its own machine only.
    let mut ends = [(places[1], places[0]), (places[0], places[1])];
    ends.sort_by_key(|(listens, _)| listens.address().map_or(2, |a| u8::from(a.unix_path().is_some())));
    let (listens, connects) = ends[0];
    listens.control(&expect)?;
    match listens.address() {
        Some(at) => drop(connects.control(&Control::Connect { to: at.to_string(), ticket, stripes: STRIPES })?),
        None => {
            // Both places are on this machine and belong to this job, which creates the connections for them.
            connects.control(&expect)?;
            for _ in 0..STRIPES {
                let (a, b) = UnixStream::pair().map_err(|error| MoveError::SystemError { what: "make a connection", error })?;
                listens.hand_over(&ticket, a)?;
                connects.hand_over(&ticket, b)?;
            }
            connects.control(&Control::Accept { ticket })?;
        }
    }
    listens.control(&Control::Accept { ticket })?;
    Ok(())
}
