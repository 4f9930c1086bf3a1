//! A model of sleepers and wakers in all interleavings (`interleave`): no thread sleeps while what it waits for has
//! happened.

use crate::pipe::{Closed, Reader, Writer};
use crate::shm::{Memory, Sleeper, Which};
use crate::sync::{AtomicBool, AtomicU32};
use interleave::{Barrier, Body, bound, explore};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1000);

/// One thread waits for a count, others increment it and wake the waiter.
#[derive(Default)]
struct World {
    count: AtomicU32,
    sleeper: Sleeper,
}

/// The behaviour of the incrementing threads.
#[derive(Clone, Copy, PartialEq)]
enum Waker {
    Wakes,
    /// It does not wake a sleeper that will poll soon.
    WakesLater,
    /// It checks for a sleeper before its store is visible: an error that the model must find.
    StoresLate,
}

/// The behaviour of the sleeper.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Sleeps,
    Naps,
    /// It naps first and then sleeps, as the consumer of a ring does.
    Both,
    /// It sleeps without a second check: an error that the model must find.
    Blindly,
}

fn counted(wakers: &'static [Waker], wait: Wait) -> Result<usize, String> {
    // Two have many times the orders of one.
    let most_preemptions = if wakers.len() == 1 { 3 } else { bound(2, 3) };
    explore(most_preemptions, Barrier::Works, || {
        let world = Arc::new(World::default());
        let wakes = |waker: &'static Waker| {
            let world = world.clone();
            let body = move || match waker {
                Waker::Wakes => {
                    world.count.fetch_add(1, Ordering::SeqCst);
                    world.sleeper.wake();
                }
                Waker::WakesLater => {
                    world.count.fetch_add(1, Ordering::SeqCst);
                    world.sleeper.wake_later();
                }
                Waker::StoresLate => {
                    world.count.store(1, Ordering::Release);
                    world.sleeper.wake();
                }
            };
            Box::new(body) as Body
        };
        let mut bodies: Vec<Body> = wakers.iter().map(wakes).collect();
        let waits = world.clone();
        bodies.push(Box::new(move || {
            let all = || waits.count.load(Ordering::SeqCst) as usize == wakers.len();
            for poll in 0.. {
                if all() {
                    break;
                }
                match wait {
                    Wait::Naps => waits.sleeper.nap(LONG, all),
                    Wait::Both if poll == 0 => waits.sleeper.nap(LONG, all),
                    Wait::Both | Wait::Sleeps => waits.sleeper.sleep(LONG, all),
                    Wait::Blindly => waits.sleeper.sleep(LONG, || false),
                }
            }
        }));
        bodies
    })
}

#[test]
fn in_no_order_does_somebody_sleep_who_has_been_woken() {
    use Waker::{Wakes, WakesLater};
    for wait in [Wait::Sleeps, Wait::Naps, Wait::Both] {
        for wakers in [&[Wakes][..], &[WakesLater], &[Wakes, WakesLater], &[Wakes, Wakes]] {
            assert!(counted(wakers, wait).unwrap() > 20);
        }
    }
    for (wakers, wait) in [(&[Waker::StoresLate][..], Wait::Sleeps), (&[Wakes], Wait::Blindly)] {
        let found = counted(wakers, wait).unwrap_err();
        assert!(found.starts_with("nothing happens any more"), "the model finds what is wrong: {found}");
    }
}

/// Sends bytes through a pipe that holds two.
fn piped(closes: bool) -> Result<usize, String> {
    explore(2, Barrier::Works, || {
        let (memory, closed) = (Arc::new(Memory::small(4096, 2)), Closed::default());
        let (writes, closes_it) = (memory.clone(), closed.clone());
        let write = move || {
            let mut writer = Writer::new(writes.clone(), Which::Bodies, closes_it.clone());
            writer.write_pieces(&[b"abc", b"", b"d"]).unwrap();
            if closes {
                closes_it.store(true, Ordering::SeqCst);
                writes.pipe_words(Which::Bodies).reader.ring();
            }
        };
        let read = move || {
            let mut reader = Reader::new(memory.clone(), Which::Bodies, closed.clone());
            let mut got = [0; 4];
            reader.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"abcd");
            if closes {
                assert_eq!(reader.read(&mut got).unwrap(), 0, "nothing follows");
            }
        };
        vec![Box::new(write) as Body, Box::new(read)]
    })
}

#[test]
fn in_no_order_does_a_pipe_hold_up_its_ends() {
    assert!(piped(false).unwrap() > 200);
    assert!(piped(true).unwrap() > 200);
}

#[test]
fn a_futex_sleeps_only_while_its_word_is_as_it_was() {
    let run = |wakes: bool| {
        explore(3, Barrier::Works, || {
            let (word, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
            let (theirs, ended) = (word.clone(), over.clone());
            let sleep = move || {
                while !over.load(Ordering::SeqCst) {
                    let before = word.load(Ordering::SeqCst);
                    if !over.load(Ordering::SeqCst) {
                        super::wait(&word, before, LONG);
                    }
                }
            };
            let wake = move || {
                ended.store(true, Ordering::SeqCst);
                theirs.fetch_add(1, Ordering::SeqCst);
                if wakes {
                    super::wake(&theirs);
                }
            };
            vec![Box::new(sleep) as Body, Box::new(wake)]
        })
    };
    assert!(run(true).unwrap() > 10);
    assert!(run(false).is_err());
}
