//! Models of which it is known what comes out.

use super::*;
use std::collections::HashSet;
use std::fmt::Debug;

/// What comes out of two threads in all orders.
fn outcomes<T: Debug + Eq + std::hash::Hash + Send + 'static>(run: impl Fn(Arc<Mutex<Option<T>>>) -> Vec<Body>) -> HashSet<T> {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let last = Arc::new(Mutex::new(None::<T>));
    let keep = |last: &Mutex<Option<T>>| {
        if let Some(value) = last.lock().unwrap().take() {
            seen.lock().unwrap().insert(value);
        }
    };
    explore(9, Barrier::Works, || {
        keep(&last);
        run(last.clone())
    })
    .unwrap();
    keep(&last);
    std::mem::take(&mut *seen.lock().unwrap())
}

/// Two threads that each store to a word of their own and then read the other's, with `between` in between: what they read.
fn store_buffering(between: fn()) -> HashSet<(u32, u32)> {
    outcomes(|out| {
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let read = Arc::new(Mutex::new([None; 2]));
        (0..2)
            .map(|me| {
                let (words, read, out) = (words.clone(), read.clone(), out.clone());
                Box::new(move || {
                    words[me].store(1, Ordering::Release);
                    between();
                    let other = words[1 - me].load(Ordering::Acquire);
                    let mut read = read.lock().unwrap();
                    read[me] = Some(other);
                    if let [Some(a), Some(b)] = *read {
                        *out.lock().unwrap() = Some((a, b));
                    }
                }) as Body
            })
            .collect()
    })
}

#[test]
fn models_show_what_processors_do() {
    assert_eq!(store_buffering(|| ()), HashSet::from([(0, 0), (0, 1), (1, 0), (1, 1)]));
    assert_eq!(store_buffering(|| fence(Ordering::SeqCst)), HashSet::from([(0, 1), (1, 0), (1, 1)]));
    // What is written first is seen first.
    let message = outcomes(|out| {
        let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let theirs = words.clone();
        let write = move || {
            theirs[0].store(1, Ordering::Relaxed);
            theirs[1].store(1, Ordering::Release);
        };
        let read = move || {
            let flag = words[1].load(Ordering::Acquire);
            *out.lock().unwrap() = Some((flag, words[0].load(Ordering::Relaxed)));
        };
        vec![Box::new(write), Box::new(read)]
    });
    assert_eq!(message, HashSet::from([(0, 0), (0, 1), (1, 1)]));
}

#[test]
fn models_find_what_hangs_and_what_is_wrong() {
    // Each of two threads waits for what the other one holds.
    let crossed = explore(2, Barrier::Works, || {
        let locks = Arc::new([Mutex::new(()), Mutex::new(())]);
        (0..2)
            .map(|me| {
                let locks = locks.clone();
                Box::new(move || {
                    let _first = lock(&locks[me]);
                    let _second = lock(&locks[1 - me]);
                }) as Body
            })
            .collect()
    });
    assert!(crossed.unwrap_err().starts_with("nothing happens any more"));
    // A count by two accesses loses one.
    let counted = |by_one: bool| {
        explore(2, Barrier::Works, || {
            let (count, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            (0..2)
                .map(|_| {
                    let (count, over) = (count.clone(), over.clone());
                    Box::new(move || {
                        if by_one {
                            count.fetch_add(1, Ordering::Relaxed);
                        } else {
                            let seen = count.load(Ordering::SeqCst);
                            count.store(seen + 1, Ordering::SeqCst);
                        }
                        if over.fetch_add(1, Ordering::SeqCst) == 1 {
                            assert_eq!(count.load(Ordering::SeqCst), 2);
                        }
                    }) as Body
                })
                .collect()
        })
    };
    assert!(counted(true).unwrap() > 10);
    assert!(counted(false).is_err());
    // Somebody who sleeps on a word is woken only by who wakes.
    let slept = |wakes: bool| {
        explore(2, Barrier::Works, || {
            let word = Arc::new(AtomicI32::new(0));
            let theirs = word.clone();
            let sleeper = move || {
                while word.load(Ordering::Acquire) == 0 {
                    assert!(sleep(&*word, 0));
                }
            };
            let waker = move || {
                theirs.fetch_or(1, Ordering::SeqCst);
                assert!(!wakes || wake(&*theirs));
            };
            vec![Box::new(sleeper), Box::new(waker)]
        })
    };
    assert!(slept(true).unwrap() > 3);
    assert!(slept(false).is_err());
}

#[test]
fn every_sequence_of_choices_is_run_once() {
    let mut seen = HashSet::new();
    let runs = every_choice(|choices| {
        let first = choices.pick(3);
        let rest: Vec<usize> = (0..first).map(|_| choices.pick(2)).collect();
        assert!(seen.insert((first, rest)));
    });
    assert_eq!((runs, seen.len()), (1 + 2 + 4, 7));
    let mut random = Vec::new();
    random_choices(20, |choices| random.push((choices.pick(1000), choices.pick(1))));
    assert!(random.iter().all(|(first, second)| *first < 1000 && *second == 0));
    assert!(random.iter().collect::<HashSet<_>>().len() > 15, "the runs differ");
}
