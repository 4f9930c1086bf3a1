use super::*;

const LIGHT: Weight = Weight { makings: 0, bytes: 0 };
const SMALL: Weight = Weight { makings: 0, bytes: SMALL_ROUND };
const LARGE: Weight = Weight { makings: 0, bytes: SMALL_ROUND + 1 };
const CODE: Weight = Weight { makings: 1, bytes: 0 };

/// Runs a move whose steps end as `answer` says. Returns its actions.
fn run(
    devices: usize,
    max_downtime: Option<Duration>,
    answer: impl FnMut(Request) -> Result<Report<u32>, Failed<u32>>,
) -> Vec<Action<u32>> {
    run_until(Protocol::new(devices, max_downtime, false, Parking::default()), answer)
}

/// As [`run`], for a given move.
fn run_until(
    mut protocol: Protocol<u32>,
    mut answer: impl FnMut(Request) -> Result<Report<u32>, Failed<u32>>,
) -> Vec<Action<u32>> {
    let (mut all, mut waiting) = (Vec::new(), Vec::new());
    loop {
        while let Some(action) = protocol.poll() {
            if let Action::Run(ticket, request) = action {
                waiting.push((ticket, request));
            }
            all.push(action);
        }
        let Some((ticket, request)) = waiting.pop() else { return all };
        protocol.handle(Event::Answer(ticket, answer(request)));
    }
}

/// The answer of a step that succeeds, with a small round and light tails.
fn good(request: Request) -> Result<Report<u32>, Failed<u32>> {
    Ok(match request {
        Request::Device(_, Step::Copy) => Report::Copied { bytes: 0, took: Duration::ZERO },
        Request::Joint(Joint::Weigh) => Report::Tails(vec![LIGHT; 2]),
        _ => Report::Done,
    })
}

fn count(actions: &[Action<u32>], is_meant: impl Fn(&Request) -> bool) -> usize {
    actions.iter().filter(|a| matches!(a, Action::Run(_, request) if is_meant(request))).count()
}

fn copies(actions: &[Action<u32>]) -> usize {
    count(actions, |r| matches!(r, Request::Device(0, Step::Copy)))
}

fn attempts(actions: &[Action<u32>]) -> Vec<Attempt> {
    let attempt = |a: &Action<u32>| if let Action::Run(_, Request::Joint(Joint::Quiesce(it))) = a { Some(*it) } else { None };
    actions.iter().filter_map(attempt).collect()
}

#[test]
fn pre_copy_ends_when_a_further_round_gains_nothing() {
    // The first round copies so many bytes, and each one so many percent of the one before.
    let rounds = |first: u64, percent: u64, ms, max_downtime| {
        let (took, mut next) = (Duration::from_millis(ms), first);
        copies(&run(1, max_downtime, |request| match request {
            Request::Device(_, Step::Copy) => {
                let bytes = next;
                next = (bytes * percent).div_ceil(100);
                Ok(Report::Copied { bytes, took })
            }
            other => good(other),
        }))
    };
    assert_eq!(rounds(SMALL_ROUND, 50, 1000, None), 1, "it was small");
    assert_eq!(rounds(SMALL_ROUND + 1, 50, 10, None), 1, "it was short");
    assert_eq!(rounds(SMALL_ROUND + 1, 50, 11, None), 2, "the second one is small");
    const LARGE: u64 = SMALL_ROUND << 10;
    for percent in [95, 100, 105] {
        assert_eq!(rounds(LARGE, percent, 1000, None), 2, "{percent}: memory changes as fast as it is copied");
    }
    for percent in [50, 76, 80, 126] {
        assert_eq!(rounds(LARGE, percent, 150, None), 3, "{percent}: the downtime is as wanted");
    }
    assert_eq!(rounds(LARGE, 50, 151, None), 11, "until little is left");
    assert_eq!(rounds(LARGE, 70, 151, None), MAX_ROUNDS as usize);
    for percent in [76, 80, 126] {
        assert_eq!(rounds(LARGE, percent, 1000, None), 3, "{percent}: further rounds help little");
    }
    let limit = |ms| Some(Duration::from_millis(ms));
    assert_eq!((rounds(LARGE, 50, 151, limit(1000)), rounds(LARGE, 50, 151, limit(100))), (3, 11));
}

/// The rounds of the first device of a move whose rounds copy half as much each time, and a second each.
fn halving(protocol: Protocol<u32>) -> usize {
    let mut next = SMALL_ROUND << 10;
    copies(&run_until(protocol, |request| match request {
        Request::Device(0, Step::Copy) => {
            let bytes = next;
            next = bytes / 2;
            Ok(Report::Copied { bytes, took: Duration::from_secs(1) })
        }
        other => good(other),
    }))
}

#[test]
fn further_rounds_are_for_moves_that_have_time_and_run_on() {
    let one = || Protocol::new(1, None, false, Parking::default());
    assert_eq!(halving(one()), 11);
    assert_eq!(halving(one().until(Some(Duration::from_secs(20)))), 5, "a quarter of the deadline");
    assert_eq!(halving(one().until(Some(Duration::from_secs(4)))), 3);
    assert_eq!(halving(Protocol::new(2, None, false, Parking::default())), 3, "the other copies would be left behind");
    let parks = Parking { after: true, ..Parking::default() };
    assert_eq!(halving(Protocol::new(1, None, false, parks)), 3, "calls wait anyway");
}

/// Rounds and attempts to quiesce of a move whose tails are weighed as these, the last one again and again.
fn weighed(tails: &[Weight]) -> (usize, usize) {
    let mut left = tails.iter().copied();
    let mut last = LIGHT;
    let actions = run(1, None, |request| match request {
        Request::Joint(Joint::Weigh) => {
            last = left.next().unwrap_or(last);
            Ok(Report::Tails(vec![last]))
        }
        other => good(other),
    });
    assert_eq!(actions.last(), Some(&Action::End(Ok(()))));
    (copies(&actions), attempts(&actions).len())
}

#[test]
fn a_heavy_tail_is_replayed_before_the_gate_is_closed() {
    assert_eq!(weighed(&[LIGHT]), (1, 1));
    for heavy in [CODE, LARGE, SMALL] {
        assert_eq!(weighed(&[heavy, LIGHT]), (2, 1));
        assert_eq!(weighed(&[heavy, heavy, LIGHT]), (3, 1));
    }
}

#[test]
fn the_gate_is_opened_again_for_what_takes_longer_than_a_quiesce() {
    for heavy in [CODE, LARGE] {
        assert_eq!(weighed(&[LIGHT, heavy, LIGHT]), (2, 2));
    }
    assert_eq!(weighed(&[LIGHT, SMALL]), (1, 1), "a little memory is mapped while calls wait");
}

#[test]
fn a_job_that_makes_something_all_the_time_waits_in_the_end() {
    let (rounds, closings) = weighed(&[CODE]);
    assert_eq!(closings, 1 + REOPENINGS as usize);
    assert_eq!(rounds, 1 + CATCH_UPS as usize + REOPENINGS as usize);
}

#[test]
fn half_of_the_allowed_downtime_is_for_waiting() {
    let limits = |ms| {
        let busy = |request| match request {
            Request::Joint(Joint::Quiesce(_)) => Ok(Report::Busy { function: false, why: 7 }),
            other => good(other),
        };
        attempts(&run(1, Some(Duration::from_millis(ms)), busy)).iter().map(|a| a.held.unwrap_or(a.limit)).collect::<Vec<_>>()
    };
    assert_eq!(limits(60_000), QUIESCE.map(|(limit, held)| held.unwrap_or(limit)));
    assert_eq!(limits(40), [10, 20, 20, 20, 20, 20].map(Duration::from_millis));
    assert_eq!(limits(0), [Duration::ZERO; QUIESCE.len()]);
}

#[test]
fn attempts_to_quiesce_grow_and_those_that_wait_for_a_host_function_do_not_count() {
    let busy = |function| {
        let actions = run(1, None, |request| match request {
            Request::Joint(Joint::Quiesce(_)) => Ok(Report::Busy { function, why: 7 }),
            other => good(other),
        });
        assert_eq!(actions.last(), Some(&Action::End(Err(7))));
        attempts(&actions)
    };
    let limits: Vec<(Duration, Option<Duration>)> = busy(false).iter().map(|a| (a.limit, a.held)).collect();
    assert_eq!(limits, QUIESCE);
    let all = busy(true);
    assert_eq!(all.len(), FUNCTION_MS.len() + QUIESCE.len());
    assert!(all[..=FUNCTION_MS.len()].iter().all(|a| (a.limit, a.held) == QUIESCE[0]));
    assert!(all[FUNCTION_MS.len()].function.is_none() && !all[0].again && all[1].again);
}

#[test]
fn of_several_failures_the_first_one_counts_and_interrupts_the_other_legs() {
    let actions = run(3, None, |request| match request {
        Request::Device(device, Step::Delta) => Err(Failed { why: device as u32, unfit: false }),
        other => good(other),
    });
    // The last device answers first.
    assert_eq!(actions.last(), Some(&Action::End(Err(2))));
    let interrupted: Vec<&Action<u32>> = actions.iter().filter(|a| matches!(a, Action::Interrupt(_))).collect();
    assert_eq!(interrupted, [&Action::Interrupt(0), &Action::Interrupt(1)]);
}

#[test]
fn a_helper_is_tried_once_where_this_process_is_unfit() {
    let actions = run(2, None, |request| match request {
        Request::Device(1, Step::Replay) => Err(Failed { why: 1, unfit: true }),
        other => good(other),
    });
    let restarts: Vec<&Action<u32>> = actions.iter().filter(|a| matches!(a, Action::Restart { .. })).collect();
    assert_eq!(restarts, [&Action::Restart { device: 0, helper: false }, &Action::Restart { device: 1, helper: true }]);
    assert_eq!(count(&actions, |r| *r == Request::Device(1, Step::Replay)), 2);
    assert_eq!(actions.last(), Some(&Action::End(Err(1))));
}

#[test]
fn a_patient_move_keeps_its_copy_current_and_tries_again() {
    let busy = |times: usize, max_downtime| {
        let mut left = times;
        let actions = run_until(Protocol::new(1, max_downtime, true, Parking::default()), |request| match request {
            Request::Joint(Joint::Quiesce(_)) if left > 0 => {
                left -= 1;
                Ok(Report::Busy { function: left.is_multiple_of(2), why: 7 })
            }
            other => good(other),
        });
        assert_eq!(actions.last(), Some(&Action::End(Ok(()))));
        actions
    };
    let actions = busy(100, None);
    let all = attempts(&actions);
    assert_eq!((all.len(), copies(&actions)), (101, 101), "a round before each attempt");
    assert!(all.iter().all(|a| (a.limit, a.held, a.function) == (PATIENT, Some(PATIENT_HELD), None)));
    let opened = actions.iter().filter(|a| **a == Action::OpenGate).count();
    assert_eq!(opened, 101);
    assert_eq!(attempts(&busy(1, Some(Duration::from_millis(100))))[0].held, Some(Duration::from_millis(50)));
}

const PARKS: Parking = Parking { before: false, after: true, copies: false };
const GOES_ON: Parking = Parking { before: true, after: false, copies: false };

#[test]
fn a_job_that_is_to_be_parked_is_copied_while_it_runs_and_its_gate_stays_closed() {
    let actions = run_until(Protocol::new(1, None, false, PARKS), good);
    assert_eq!((copies(&actions), attempts(&actions).len()), (1, 1));
    assert!(!actions.contains(&Action::OpenGate));
    let at = |wanted: &Action<u32>| actions.iter().position(|action| action == wanted);
    assert!(at(&Action::StayParked).is_some_and(|stays| at(&Action::ReleaseSource(0)).is_some_and(|released| stays < released)));
    let failed = run_until(Protocol::new(1, None, false, PARKS), |request| match request {
        Request::Device(_, Step::Delta) => Err(Failed { why: 3, unfit: false }),
        other => good(other),
    });
    assert!(failed.contains(&Action::OpenGate) && !failed.contains(&Action::StayParked));
}

#[test]
fn a_parked_job_moves_without_pre_copy_and_stays_parked_until_the_commit() {
    let actions = run_until(Protocol::new(2, None, false, GOES_ON), good);
    assert_eq!((copies(&actions), attempts(&actions).len()), (0, 0));
    assert!(actions.contains(&Action::OpenGate) && !actions.contains(&Action::StayParked));
    for step in [Step::Plan, Step::Prepare, Step::Replay, Step::Delta, Step::Verify] {
        let failed = run_until(Protocol::new(2, None, false, GOES_ON), |request| match request {
            Request::Device(1, at) if at == step => Err(Failed { why: 3, unfit: false }),
            other => good(other),
        });
        assert!(!failed.contains(&Action::OpenGate), "{step:?}");
        assert_eq!(failed[failed.len() - 2..], [Action::StayParked, Action::End(Err(3))], "{step:?}");
    }
    let between = run_until(Protocol::new(1, None, false, Parking { before: true, after: true, copies: false }), good);
    assert!(!between.contains(&Action::OpenGate) && between.contains(&Action::StayParked));
}
