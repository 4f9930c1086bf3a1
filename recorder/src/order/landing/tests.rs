use super::*;

fn landing(stream: u64, followers: &[u64], fenced: &[u64]) -> Landing {
    let arrival = Arrival::Flag(Arc::new(AtomicBool::new(false)));
    Landing { device: 0, stream, to: 0..1, arrival, followers: followers.to_vec(), fenced: fenced.to_vec(), held: false }
}

#[test]
fn work_is_held_back_behind_what_it_follows() {
    let l = landing(7, &[8], &[]);
    assert!(l.concerns(0, 7, false, false), "the stream of the copy");
    assert!(l.concerns(0, 8, false, false), "a stream that waits for an event");
    assert!(l.concerns(0, LEGACY, false, false) && landing(LEGACY, &[], &[]).concerns(0, 9, false, false), "the default stream");
    assert!(!l.concerns(0, 9, false, false) && !l.concerns(1, 7, false, false), "another stream, another device");
    assert!(l.concerns(0, 9, true, false), "a graph may wait for any stream");
    assert!(!landing(7, &[], &[7]).concerns(0, 7, false, false), "one fence is enough");
    assert!(landing(7, &[8], &[7]).concerns(0, 8, false, false), "for one stream");
    let held = || Landing { held: true, ..landing(7, &[8], &[]) };
    assert!(!held().concerns(0, 8, true, false), "the place holds the stream");
    assert!(held().concerns(0, 8, false, true) && !held().concerns(0, 9, false, true), "but its mirror lacks the bytes");
}

#[test]
fn what_has_landed_is_forgotten() {
    let here = Arc::new(AtomicBool::new(false));
    let to = 0x7000_0000_0000..0x7000_0000_1000;
    lock(&LANDINGS).push(Landing { to: to.clone(), arrival: Arrival::Flag(here.clone()), ..landing(7, &[], &[]) });
    COUNT.store(1, Ordering::Release);
    assert!(any_to(to.start + 8, 8) && !any_to(to.end, 8));
    here.store(true, Ordering::Release);
    assert!(!any_to(to.start, 8) && COUNT.load(Ordering::Acquire) == 0);
}

#[test]
fn a_copy_in_the_default_stream_holds_every_stream_of_its_device() {
    let l = landing(LEGACY, &[], &[]);
    assert!((1..100).all(|stream| l.concerns(0, stream, false, false)));
    assert!(!l.concerns(1, 7, false, false) && !l.concerns(1, LEGACY, true, false));
}

#[test]
fn a_follower_that_is_held_is_not_held_again() {
    let l = landing(7, &[8, 9], &[8]);
    assert!(!l.concerns(0, 8, false, false) && !l.concerns(0, 8, true, false) && l.concerns(0, 9, false, false));
}

#[test]
fn a_graph_is_held_in_any_stream_but_once() {
    assert!(landing(7, &[], &[]).concerns(0, 12, true, false));
    assert!(!landing(7, &[], &[12]).concerns(0, 12, true, false));
}

#[test]
fn the_default_stream_is_held_once_too() {
    assert!(!landing(7, &[], &[LEGACY]).concerns(0, LEGACY, false, false));
}

#[test]
fn a_flag_shows_an_arrival() {
    let flag = Arc::new(AtomicBool::new(false));
    let arrival = Arrival::Flag(flag.clone());
    assert!(!arrival.has_come());
    flag.store(true, Ordering::Release);
    assert!(arrival.has_come());
}
