//! Where the jobs of a daemon that ends are to move.

use super::error::ServeError;
use crate::endpoint::Endpoint;
use crate::place_spec::PlaceSpec;
use std::time::Duration;

/// Where jobs are to move when the server ends, and how long it waits for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// A place for all GPUs of the server, or one for each.
    pub to: Vec<PlaceSpec>,
    /// After this time the server ends, whether the jobs have left or not.
    pub timeout: Duration,
}

impl Drain {
    /// Whether these places can be used by a server with so many GPUs.
    pub(super) fn check(&self, gpus: usize) -> Result<(), ServeError> {
        if self.to.iter().any(|to| matches!(to, PlaceSpec::File(_))) {
            return Err(ServeError::DrainFile);
        }
        if self.to.len() == 1 || self.to.len() == gpus {
            Ok(())
        } else {
            Err(ServeError::DrainPlaces { places: self.to.len(), gpus })
        }
    }

    /// Where what is at this GPU, or in memory, is to move. A job that is parked stays parked.
    pub(super) fn target(&self, gpu: u32) -> Option<PlaceSpec> {
        let to = self.to.get(gpu as usize).filter(|_| self.to.len() > 1).or(self.to.first())?.clone();
        if gpu != Endpoint::MEMORY || to.is_store() {
            return Some(to);
        }
        Some(match to {
            PlaceSpec::Remote(server) => PlaceSpec::Remote(Endpoint { gpu: Endpoint::MEMORY, ..server.without_rdma() }),
            _ => PlaceSpec::Memory,
        })
    }

    /// The places for the log.
    pub(super) fn words(&self) -> String {
        self.to.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(to: &str) -> Drain {
        Drain { to: to.split(',').map(|to| to.parse().unwrap()).collect(), timeout: Duration::from_secs(30) }
    }

    #[test]
    fn one_place_is_for_all_gpus_or_each_has_its_own() {
        let to = |drain: &Drain, gpu| drain.target(gpu).unwrap().to_string();
        let (one, each) = (drain("b:1/3"), drain("b:1/0,b:1/1,local"));
        assert_eq!([to(&one, 0), to(&one, 7)], ["b:1/3", "b:1/3"]);
        assert_eq!([to(&each, 0), to(&each, 1), to(&each, 2)], ["b:1/0", "b:1/1", "local"]);
        assert!(one.check(1).is_ok() && one.check(8).is_ok() && each.check(3).is_ok());
        let why = each.check(2).unwrap_err().to_string();
        assert!(why.contains("3 places") && why.contains("2 GPUs"), "{why}");
    }

    #[test]
    fn parked_jobs_stay_parked() {
        for (to, wanted) in [
            ("b:1/3", "b:1/memory"),
            ("rdma://b:1/3", "b:1/memory"),
            ("local", "memory"),
            ("helper:2", "memory"),
            ("memory", "memory"),
        ] {
            assert_eq!(drain(to).target(Endpoint::MEMORY).unwrap().to_string(), wanted);
        }
        assert_eq!(drain("unix:/s/0,local").target(Endpoint::MEMORY).unwrap().to_string(), "unix:/s/memory");
    }

    #[test]
    fn a_server_names_no_files_of_its_jobs() {
        assert!(matches!(drain("file:/scratch").check(1), Err(ServeError::DrainFile)));
    }
}
