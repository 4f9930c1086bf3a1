//! The decisions of one round.

use crate::pace::Pace;
use crate::proposal::{Action, resumed};
use crate::settings::Settings;
use crate::world::World;
use std::time::Duration;

/// A move that is to be made now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The job's process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The policy that wants it.
    pub policy: &'static str,
    /// What is to be done.
    pub action: Action,
    /// Why, for people.
    pub why: String,
}

/// The jobs that an agent has parked go on whatever the policies are: by this name.
const RESUME: &str = "resume";

/// The moves that are to begin now: at most one for each job. `now` is since the moment that `pace` counts from.
pub fn decide(world: &World, settings: &Settings, pace: &mut Pace, now: Duration) -> Vec<Decision> {
    let mut after = world.clone();
    for policy in &settings.policies {
        after.gpus.iter_mut().filter(|gpu| policy.why_left(gpu).is_some()).for_each(|gpu| gpu.takes_jobs = false);
    }
    for job in &mut after.jobs {
        job.avoid = (0..world.gpus.len()).filter(|gpu| pace.avoids(job.pid, &world.gpus[*gpu].place, settings, now)).collect();
    }
    let mut decisions: Vec<Decision> = Vec::new();
    for policy in settings.policies.iter().map(Some).chain([None]) {
        let (name, is_urgent) = policy.map_or((RESUME, true), |policy| (policy.name(), policy.is_urgent()));
        loop {
            let proposals = match policy {
                Some(policy) => policy.propose(&after, settings.reserve()),
                None => resumed(&after, settings.reserve()),
            };
            // All of them are noted, so that they settle.
            let allowed: Vec<bool> = proposals.iter().map(|p| pace.allows(p, (name, is_urgent), settings, now)).collect();
            let next =
                proposals.into_iter().zip(allowed).find(|(p, allowed)| *allowed && decisions.iter().all(|d| d.pid != p.pid));
            let Some((proposal, _)) = next.filter(|_| pace.has_room(decisions.len(), settings, now)) else { break };
            let job = world.jobs.iter().find(|job| job.pid == proposal.pid).map(|job| job.name.clone()).unwrap_or_default();
            after = after.after(proposal.pid, proposal.to);
            let (pid, action, why) = (proposal.pid, proposal.action, proposal.why);
            decisions.push(Decision { pid, name: job, policy: name, action, why });
        }
    }
    pace.end_round(|pid| world.jobs.iter().any(|job| job.pid == pid));
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::proposal::tests::world;
    use crate::world::JobState;
    use interleave::random_choices;

    const SECOND: Duration = Duration::from_secs(1);

    fn settings(policies: Vec<Policy>) -> Settings {
        let (settle, rest) = (10 * SECOND, 60 * SECOND);
        Settings { policies, settle, rest, reserve_mib: 0, ..Settings::default() }
    }

    /// The jobs that are to move after so many seconds.
    fn decided(world: &World, settings: &Settings, pace: &mut Pace, second: u32) -> Vec<u32> {
        let decisions = decide(world, settings, pace, second * SECOND);
        decisions.iter().for_each(|_| pace.begins(second * SECOND));
        decisions.into_iter().map(|d| d.pid).collect()
    }

    #[test]
    fn a_proposal_settles_before_it_is_carried_out_unless_it_is_urgent() {
        let crowded = world(&[('a', 100), ('b', 100)]).with(1, 0, 10, 0).with(2, 0, 10, 0);
        let (settings, mut pace) = (settings(vec![Policy::Balance]), Pace::default());
        assert_eq!([0, 5, 9].map(|s| decided(&crowded, &settings, &mut pace, s).len()), [0; 3]);
        assert_eq!(decided(&crowded, &settings, &mut pace, 10), [1]);
        // Once it was not proposed it begins anew.
        assert_eq!(decided(&world(&[('a', 1)]), &settings, &mut pace, 11), []);
        assert_eq!([12, 21].map(|s| decided(&crowded, &settings, &mut pace, s).len()), [0; 2]);
        assert_eq!(decided(&crowded, &settings, &mut pace, 22), [1]);
        let drain =
            Settings { policies: vec![Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: false }], ..settings };
        assert_eq!(decided(&crowded, &drain, &mut Pace::default(), 0), [1, 2]);
    }

    #[test]
    fn a_job_rests_and_a_failure_makes_it_rest_longer_each_time() {
        let crowded = world(&[('a', 100), ('b', 100)]).with(1, 0, 10, 0).with(2, 0, 20, 0);
        let settings = Settings { settle: Duration::ZERO, ..settings(vec![Policy::Balance]) };
        let mut pace = Pace::default();
        pace.ended(1, None, true, Duration::ZERO);
        assert_eq!(decided(&crowded, &settings, &mut pace, 59), [2], "the other one goes instead");
        pace.ended(2, None, false, 59 * SECOND);
        assert_eq!(decided(&crowded, &settings, &mut pace, 60), [1]);
        for (failures, wait) in [(1, 60), (2, 120), (3, 240)] {
            let drain = Settings {
                policies: vec![Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: false }],
                ..settings.clone()
            };
            let mut pace = Pace::default();
            (0..failures).for_each(|_| pace.ended(2, None, false, Duration::ZERO));
            assert!(!decided(&crowded, &drain, &mut pace, wait - 1).contains(&2), "{failures} failures");
            assert!(decided(&crowded, &drain, &mut pace, wait).contains(&2), "{failures} failures");
        }
    }

    #[test]
    fn a_job_is_tried_elsewhere_before_it_is_sent_again_to_a_place_where_it_failed() {
        let drain = Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: false };
        let world = world(&[('a', 100), ('b', 200), ('c', 100)]).with(1, 0, 10, 0);
        let (settings, mut pace) = (settings(vec![drain]), Pace::default());
        let to = |pace: &mut Pace, second: u32| {
            let decisions = decide(&world, &settings, pace, second * SECOND);
            decisions.into_iter().map(|d| d.action).next()
        };
        let at = |place: &str| Some(Action::Move(place.to_owned()));
        assert_eq!(to(&mut pace, 0), at("b:1/0"));
        pace.ended(1, Some("b:1/0"), false, Duration::ZERO);
        assert_eq!((to(&mut pace, 59), to(&mut pace, 60), to(&mut pace, 119)), (None, at("c:1/0"), at("c:1/0")));
        assert_eq!(to(&mut pace, 120), at("b:1/0"));
    }

    #[test]
    fn to_park_a_job_is_not_so_urgent_and_whoever_is_parked_goes_on_without_any_policy() {
        let full = world(&[('a', 100)]).with(1, 0, 10, 5).with(2, 0, 10, 1);
        let yields = settings(vec![Policy::Yield { park: true }]);
        let mut pace = Pace::default();
        assert_eq!([0, 9, 10].map(|s| decided(&full, &yields, &mut pace, s).len()), [0, 0, 1]);
        let mut parked = world(&[('a', 100)]).with(2, 0, 10, 1);
        (parked.jobs[0].gpu, parked.jobs[0].state) = (None, JobState::Parked { by_agent: true });
        assert_eq!(decided(&parked, &settings(vec![Policy::Home]), &mut Pace::default(), 0), [2]);
    }

    #[test]
    fn no_more_moves_begin_in_a_minute_than_may() {
        let mut full = world(&[('a', 100), ('b', 1000)]);
        for pid in 0..10 {
            full = full.with(pid, 0, 10, 0);
        }
        let policies = vec![Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: false }];
        let (settings, mut pace) = (Settings { moves_per_minute: 4, ..settings(policies) }, Pace::default());
        assert_eq!([0, 59, 60].map(|s| decided(&full, &settings, &mut pace, s).len()), [4, 0, 4]);
    }

    #[test]
    fn a_policy_sees_what_those_before_it_have_decided() {
        // The drained job takes the room that the other one would have gone home to.
        let world = world(&[('a', 100), ('b', 100), ('c', 100)]).with(1, 0, 10, 0).with(2, 2, 10, 0).at_home(2, "b:1/0");
        let drain = Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: false };
        let settings = Settings { settle: Duration::ZERO, ..settings(vec![drain, Policy::Home]) };
        assert_eq!(decided(&world, &settings, &mut Pace::default(), 0), [1]);
        let home_first = Settings { policies: settings.policies.iter().rev().cloned().collect(), ..settings };
        assert_eq!(decided(&world, &home_first, &mut Pace::default(), 0), [2, 1]);
    }

    /// From any state, what is decided leads to one in which nothing is decided any more: no two policies move a job back and forth.
    #[test]
    fn decisions_come_to_an_end() {
        let drain = Policy::Drain { servers: vec!["a:1".into()], slurm: false, park: true };
        let sets = [
            vec![drain.clone(), Policy::Yield { park: true }, Policy::Home, Policy::Balance],
            vec![Policy::Balance, Policy::Home, Policy::Yield { park: true }, drain.clone()],
            vec![drain, Policy::Yield { park: false }, Policy::Home, Policy::Consolidate],
            vec![Policy::Consolidate, Policy::Home, Policy::Yield { park: true }],
        ];
        let mut moves = 0;
        random_choices(400, |choices| {
            for policies in &sets {
                let gpus: Vec<(char, u64)> =
                    (0..2 + choices.pick(4)).map(|i| (char::from(b'a' + (i % 3) as u8), choices.pick(100) as u64)).collect();
                let mut now = world(&gpus);
                for pid in 0..choices.pick(9) as u32 {
                    let gpu = choices.pick(gpus.len());
                    now = now.with(pid, gpu, choices.pick(40) as u64, choices.pick(3) as i32);
                    if choices.rarely(3) {
                        let home = now.gpus[choices.pick(gpus.len())].place.clone();
                        now = now.at_home(pid, &home);
                    }
                }
                let settings = Settings {
                    settle: Duration::ZERO,
                    rest: Duration::ZERO,
                    moves_per_minute: 1000,
                    ..settings(policies.clone())
                };
                let mut rounds = 0;
                loop {
                    let decisions = decide(&now, &settings, &mut Pace::default(), Duration::ZERO);
                    if decisions.is_empty() {
                        break;
                    }
                    rounds += 1;
                    assert!(rounds < 30, "{policies:?}: still {decisions:?} in {now:#?}");
                    for decision in decisions {
                        moves += 1;
                        let (to, next) = match &decision.action {
                            Action::Move(place) | Action::Resume(place) => (now.gpu_at(place), JobState::Running),
                            Action::Park => (None, JobState::Parked { by_agent: true }),
                        };
                        now = now.after(decision.pid, to);
                        now.jobs.iter_mut().filter(|job| job.pid == decision.pid).for_each(|job| job.state = next);
                    }
                }
            }
        });
        assert!(moves > 1000, "{moves}");
    }
}
