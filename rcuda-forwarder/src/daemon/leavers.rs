//! Workers whose jobs have left them.

use super::admission::Source;
use super::error::AssignError;

/// Workers that end: the GPU and the client of each.
#[derive(Debug, Default)]
pub(super) struct Leavers(Vec<(u32, Source)>);

impl Leavers {
    pub(super) fn new(all: Vec<(u32, Source)>) -> Leavers {
        Leavers(all)
    }

    /// Whether the end of one of them makes room for a job that was refused for this reason.
    pub(super) fn make_room_for(&self, why: &AssignError) -> bool {
        match why {
            AssignError::GpuFull { gpu, .. } => self.0.iter().any(|(of, _)| of == gpu),
            AssignError::ClientWorkers { client, .. } => self.0.iter().any(|(_, of)| of == client),
            AssignError::Workers(_) => !self.0.is_empty(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_makes_room_where_it_has_a_seat() {
        let (ann, bob) = (Source::Account(4_000_001), Source::Account(4_000_002));
        let leavers = Leavers::new(vec![(1, ann.clone())]);
        let of_client = |client: &Source| AssignError::ClientWorkers { client: client.clone(), workers: 2 };
        let made = |why: AssignError| leavers.make_room_for(&why);
        assert!(made(AssignError::GpuFull { gpu: 1, jobs: 1 }) && !made(AssignError::GpuFull { gpu: 0, jobs: 1 }));
        assert!(made(of_client(&ann)) && !made(of_client(&bob)));
        assert!(made(AssignError::Workers(4)) && !made(AssignError::Stopping));
        assert!(!Leavers::default().make_room_for(&AssignError::Workers(4)));
    }
}
