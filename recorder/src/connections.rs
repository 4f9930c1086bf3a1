//! Connections between two places, which carry bytes past the job: for a move, and for copies between the job's GPUs.

use crate::base::config;
use crate::move_error::MoveError;
use crate::place::Place;
use rcuda_forwarder::{Carried, Control, ControlReply, Endpoint, LinkError, PlaceSpec, Refused};
use std::os::unix::net::UnixStream;

/// How many connections carry memory between two places, by the processors of both: a connection that is busy takes one at each
/// end. More than 16 have not been measured. `costly`: over RDMA, which takes none for each byte, but registers memory for each
/// connection; and if an end is the job's process, whose descriptors the program needs.
fn between(processors: [u32; 2], costly: bool) -> u32 {
    processors[0].min(processors[1]).clamp(4, if costly { 8 } else { 16 })
}

/// Connects two places under a ticket. Returns how bytes travel between them. After an error one of them may still expect connections.
pub(crate) fn connect(places: [&Place; 2], ticket: [u8; 32]) -> Result<Carried, MoveError> {
    // The place that can be reached listens; a Unix socket can be reached from its own machine only.
    let mut ends = [(places[1], places[0]), (places[0], places[1])];
    ends.sort_by_key(|(listens, _)| listens.address().map_or(2, |a| u8::from(a.unix_path().is_some())));
    let (listens, connects) = ends[0];
    let set = config::get().ok().and_then(|config| config.move_connections);
    let costly = listens.address().is_some_and(Endpoint::is_rdma) || places.iter().any(|place| place.in_process().is_some());
    let stripes = set.unwrap_or_else(|| between(places.map(|place| place.device().processors), costly));
    let expect = Control::Expect { ticket, stripes };
    listens.control(&expect)?;
    match listens.address_for(connects) {
        Some(at) => {
            let may_use_rdma = connects.address().is_none_or(may_use_rdma);
            let at = if may_use_rdma { at } else { at.without_rdma() };
            let asked = connects.control(&Control::Connect { to: at.to_string(), ticket, stripes });
            asked.map_err(|why| named(why, &at, listens.spec()))?;
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
        ControlReply::Connected(carried) => {
            tracing::debug!(target: "place", "{stripes} connections by {carried} between {} and {}", connects.spec(), listens.spec());
            Ok(carried)
        }
        odd => Err(MoveError::unexpected(&odd)),
    }
}

/// An error of a place that could not connect, with the other place as its user knows it instead of a socket that only this
/// machine knows.
fn named(why: LinkError, at: &Endpoint, place: PlaceSpec) -> LinkError {
    match why {
        LinkError::Refused(Refused::Unreachable(why)) if at.is_local_socket() => {
            LinkError::Refused(Refused::Unreachable(why.replace(&at.to_string(), &place.to_string())))
        }
        why => why,
    }
}

/// Whether the data of this place may travel over RDMA, which is not encrypted: the user has said so, or it is on the job's machine.
fn may_use_rdma(place: &Endpoint) -> bool {
    place.is_rdma() || place.unix_path().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcuda_forwarder::Scheme;

    #[test]
    fn connections_are_as_many_as_both_ends_have_processors_for() {
        let numbers = |costly| [[1, 64], [6, 8], [64, 8], [16, 16], [200, 64]].map(|ends| between(ends, costly));
        assert_eq!((numbers(false), numbers(true)), ([4, 6, 8, 16, 16], [4, 6, 8, 8, 8]));
        // A place may say anything.
        assert_eq!([between([0, u32::MAX], false), between([u32::MAX; 2], false)], [4, 16]);
    }

    #[test]
    fn an_error_names_the_place() {
        let socket = Endpoint { host: format!("unix:@mrcuda-{:032}", 7), port: 0, gpu: 1, scheme: Scheme::Best };
        let [place, path] = ["gpubox:7/1", "unix:/run/a/1"].map(|text| text.parse::<PlaceSpec>().unwrap());
        let refused = |at: &Endpoint| LinkError::Refused(Refused::Unreachable(format!("cannot connect to {at}: no such file")));
        let said = |at: &Endpoint, place: &PlaceSpec| named(refused(at), at, place.clone()).to_string();
        assert_eq!(said(&socket, &place), "cannot connect to gpubox:7/1: no such file");
        assert_eq!(said(&"unix:/run/a/1".parse().unwrap(), &path), "cannot connect to unix:/run/a/1: no such file");
    }

    #[test]
    fn data_of_an_encrypted_place_stays_encrypted() {
        for (place, may) in
            [("rdma://a:1", true), ("unix:/run/a", true), ("a:1", false), ("tls://a:1", false), ("plain://a:1", false)]
        {
            assert_eq!(may_use_rdma(&place.parse().unwrap()), may, "{place}");
        }
    }
}
