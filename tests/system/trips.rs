//! How many round trips patterns of calls cost at a remote place (the program `trips`): answers that a thread of the program waits for, and
//! times that a stream waits for a word of the job. What is counted does not depend on how fast anything is.

use crate::LIMIT;
use std::collections::BTreeMap;
use tests::{Job, Linkage, Programs, Scene, Server};

/// Of one kind of call: how many were sent, and answers waited for.
type Sent = BTreeMap<String, [u64; 2]>;

/// How often the pattern is repeated: the difference counts, so what happens once does not.
const COUNTS: [u64; 2] = [20, 70];

fn run(scene: &Scene, place: &str, pattern: &str, count: u64) -> Sent {
    let log = scene.path.join(format!("{pattern}-{count}.log"));
    let (program, text) = (Programs::get().path(Linkage::Static, "trips"), count.to_string());
    let env = [("MRCUDA_LOG", log.display().to_string())];
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let outcome = Job::start(scene, pattern, &["--server", place], &program, &[pattern, &text], &env).wait(LIMIT);
    assert!(outcome.ok() && outcome.stdout == format!("{pattern} ok\n"), "{outcome:?}");
    // `exit: sent NAME: N calls, N bytes, N answers waited for`
    let text = std::fs::read_to_string(&log).unwrap();
    let lines = text.lines().filter_map(|l| l.split_once("exit: sent ")?.1.split_once(": "));
    let numbers = |figures: &str| {
        let all: Vec<u64> = figures.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        [all[0], all[2]]
    };
    lines.map(|(name, figures)| (name.to_owned(), numbers(figures))).collect()
}

/// What one repetition of a pattern costs: round trips, and the calls by name, in hundredths.
fn cost(scene: &Scene, place: &str, pattern: &str) -> (u64, BTreeMap<String, u64>) {
    let [few, many] = COUNTS.map(|count| run(scene, place, pattern, count));
    let each = |i: usize| {
        let more = |(name, sent): (&String, &[u64; 2])| {
            let before = few.get(name).map_or(0, |s| s[i]);
            (name.clone(), (sent[i].saturating_sub(before)) * 100 / (COUNTS[1] - COUNTS[0]))
        };
        many.iter().map(more).filter(|(_, n)| *n > 0).collect::<BTreeMap<String, u64>>()
    };
    let (calls, waits) = (each(0), each(1));
    (waits.values().sum(), calls)
}

/// Each pattern: round trips of one repetition, and how often a stream waits for the job in it.
fn cheap(place: impl Fn(&Server) -> String, name: &str, patterns: &[(&str, u64, u64)]) {
    let scene = Scene::new(name);
    let server = Server::start(&scene, "one");
    let place = place(&server);
    let mut wrong = Vec::new();
    for (pattern, trips, words) in patterns {
        let (waits, calls) = cost(&scene, &place, pattern);
        let messages = calls.get("HostDone").copied().unwrap_or(0);
        if (waits, messages) != (trips * 100, words * 100) {
            wrong.push(format!("{pattern}: {waits} and {messages} hundredths instead of {trips} and {words}: {calls:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_need_not_wait_does_not_over_the_network() {
    // A free waits for work that may use the memory, as natively; physical memory that is made anew may not be there.
    let allocations =
        [("allocations", 0, 0), ("many", 0, 0), ("used", 1, 0), ("large", 1, 0), ("hosts", 0, 0), ("managed", 1, 0)];
    // What the program itself waits for; the end of registration, which waits as natively; a function of the program that has returned.
    let work =
        [("limits", 0, 0), ("registered", 3, 0), ("streams", 1, 0), ("updates", 0, 0), ("graphs", 1, 0), ("pipeline", 1, 1)];
    cheap(|s| s.place(0), "trips-tcp", &[&allocations[..], &work[..]].concat());
}

/// A model is loaded with a wait for each copy of 1 MiB and more, whose bytes have connections of their own; a step of training waits for
/// its loss.
#[test]
fn a_step_waits_for_what_the_program_reads() {
    cheap(|s| s.place(0), "trips-steps-tcp", &[("eager", 1, 0), ("weights", 1, 0)]);
    cheap(|s| s.unix_place(0), "trips-steps-unix", &[("eager", 1, 0)]);
}

/// That other GPUs could use its memory is no reason to wait for copies.
#[test]
fn a_question_about_peers_costs_later_copies_nothing() {
    cheap(|s| format!("{},{}", s.place(0), s.place(0)), "trips-peers", &[("asked", 0, 0)]);
}

/// From the start of a program to the result of its first kernels, over the network.
#[test]
fn a_start_waits_for_few_answers() {
    let scene = Scene::new("trips-start");
    let server = Server::start(&scene, "one");
    let waits = |count| -> BTreeMap<String, u64> {
        let sent = run(&scene, &server.place(0), "eager", count);
        sent.into_iter().filter(|(_, [_, waits])| *waits > 0).map(|(name, [_, waits])| (name, waits)).collect()
    };
    let [one, two] = [1, 2].map(waits);
    // The code, with everything that is asked about it; memory; the program's own wait, and that of its first step for its loss.
    let once = [("ChunkMap", 1), ("ContextSync", 1), ("CopyOut", 1), ("ImageLoad", 1)];
    assert_eq!(one, once.map(|(name, waits)| (name.to_owned(), waits)).into());
    // The next step costs as much as all later ones.
    assert_eq!(
        two,
        BTreeMap::from([("CopyOut".to_owned(), 2)]).into_iter().chain(one.into_iter().filter(|(n, _)| n != "CopyOut")).collect()
    );
}

#[test]
fn what_need_not_wait_does_not_in_shared_memory() {
    let allocations =
        [("allocations", 0, 0), ("many", 0, 0), ("used", 1, 0), ("large", 1, 0), ("hosts", 1, 0), ("managed", 1, 0)];
    let work =
        [("registered", 3, 0), ("streams", 1, 0), ("updates", 0, 0), ("graphs", 1, 0), ("pipeline", 1, 1), ("pageable", 2, 0)];
    cheap(|s| s.unix_place(0), "trips-unix", &[&allocations[..], &work[..]].concat());
}

/// What may still be changed is read when its turn comes.
#[test]
fn copies_follow_what_comes_before_them() {
    let scene = Scene::new("trips-order");
    let (server, program) = (Server::start(&scene, "one"), Programs::get().path(Linkage::Static, "trips"));
    for place in [&server.place(0), &server.unix_place(0), "helper", "local"] {
        for pattern in ["order", "kernels", "instances"] {
            let outcome = Job::start(&scene, "job", &["--server", place], &program, &[pattern, "30"], &[]).wait(LIMIT);
            assert!(outcome.ok() && outcome.stdout == format!("{pattern} ok\n"), "at {place}: {outcome:?}");
        }
    }
}
