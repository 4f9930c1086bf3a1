//! Where servers may ask this job to move (`MRCUDA_SERVER_MOVES`).

use rcuda_forwarder::{PlaceSpec, PlaceSpecError};

/// Where servers may ask this job to move, as far as its user decides that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerMoves {
    /// Everywhere.
    Any,
    /// Nowhere: a job whose server ends loses its GPU.
    Nowhere,
    /// To these servers, whatever the GPU; `local`, `helper` and `memory` stand for the job's machine.
    To(Vec<PlaceSpec>),
}

impl ServerMoves {
    /// Reads `any`, `none` or a list of places.
    pub(crate) fn read(text: &str) -> Result<ServerMoves, PlaceSpecError> {
        match text {
            "any" => Ok(ServerMoves::Any),
            "none" => Ok(ServerMoves::Nowhere),
            list => Ok(ServerMoves::To(list.split(',').map(str::parse).collect::<Result<_, _>>()?)),
        }
    }

    /// Whether a server may ask for this place.
    pub(crate) fn allow(&self, to: &PlaceSpec) -> bool {
        let is_listed = |listed: &PlaceSpec| match (listed, to) {
            (PlaceSpec::Remote(listed), PlaceSpec::Remote(to)) => {
                let protection = |at: &rcuda_forwarder::Endpoint| (at.is_plain(), at.is_rdma());
                (listed.server(), protection(listed)) == (to.server(), protection(to))
            }
            (PlaceSpec::Local(None), PlaceSpec::Local(_)) | (PlaceSpec::Helper(None), PlaceSpec::Helper(_)) => true,
            (listed, to) => listed == to,
        };
        match self {
            ServerMoves::Any => true,
            ServerMoves::Nowhere => false,
            ServerMoves::To(places) => places.iter().any(is_listed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_names_servers_or_places_of_the_jobs_machine() {
        let may = |setting: &str, to: &str| ServerMoves::read(setting).unwrap().allow(&to.parse().unwrap());
        for (setting, to) in [
            ("any", "b:1/3"),
            ("any", "local"),
            ("b:1", "b:1/3"),
            ("b:1", "tls://b:1/memory"),
            ("c:1,local", "local:1"),
            ("memory", "memory"),
            ("unix:/run/b/0", "unix:/run/b/1"),
        ] {
            assert!(may(setting, to), "{setting} {to}");
        }
        for (setting, to) in [
            ("none", "b:1"),
            ("none", "local"),
            ("b:1", "b:2"),
            ("b:1", "plain://b:1"),
            ("b:1", "local"),
            ("local:0", "local:1"),
            ("local", "helper"),
            ("local", "memory"),
        ] {
            assert!(!may(setting, to), "{setting} {to}");
        }
        for bad in ["", "all", "b:1,", "none,b:1"] {
            assert!(ServerMoves::read(bad).is_err(), "{bad}");
        }
    }
}
