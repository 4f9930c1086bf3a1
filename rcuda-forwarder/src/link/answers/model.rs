//! A model of a receiver, polling threads and a worker in all interleavings: no thread sleeps while a message is
//! unread. Each step is one access to a shared word, as in [`super`]; all are SeqCst there.

use std::collections::HashSet;

/// The shared words, and the state of each thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct State {
    written: u8,
    read: u8,
    asleep: bool,
    bell: u8,
    pollers: u8,
    napping: bool,
    receiver: u8,
    /// The receiver's last value of the bell, and whether no other thread was polling.
    seen: u8,
    alone: bool,
    polling: [u8; 2],
    /// A polling thread was the last one.
    last: [bool; 2],
    worker: u8,
}

/// The receiver sleeps on the bell.
const SLEEPING: u8 = 9;
const DONE: u8 = 100;
/// Messages that the worker sends.
const MESSAGES: u8 = 2;

impl State {
    fn something(&self) -> bool {
        self.written != self.read
    }

    fn ring(&mut self) {
        self.asleep = false;
        self.bell += 1;
    }

    /// A step of the receiver. `polls_again`: after it has left the bell to polling threads, it checks whether any are
    /// left.
    fn receive(mut self, polls_again: bool) -> Option<State> {
        match self.receiver {
            0 => self.read = self.written,
            1 => self.seen = self.bell,
            2 => self.napping = true,
            3 => self.alone = self.pollers == 0,
            4 => self.asleep = self.alone,
            5 if polls_again && !self.alone && self.pollers == 0 => self.alone = true,
            // It was not alone before, or is now for another reason.
            6 if self.alone => self.asleep = true,
            5..=7 => {}
            8 if self.alone && self.something() => self.receiver = SLEEPING,
            8 => {}
            SLEEPING if self.seen == self.bell => return None,
            SLEEPING => {}
            10 => self.napping = false,
            _ => {
                self.asleep = false;
                self.receiver = 0;
                return Some(self);
            }
        }
        self.receiver += 1;
        Some(self)
    }

    /// A step of a polling thread; `reads`: whether it finds the unread message.
    fn poll(mut self, who: usize, reads: bool) -> Option<State> {
        match self.polling[who] {
            0 => self.pollers += 1,
            1 => self.asleep = false,
            2 if reads => self.read = self.written,
            2 => {}
            3 => {
                self.pollers -= 1;
                self.last[who] = self.pollers == 0;
            }
            4 if self.last[who] && self.napping => {}
            4 => self.polling[who] += 1,
            5 => self.asleep = true,
            6 if self.something() => {}
            6 => self.polling[who] = DONE - 1,
            7 => self.ring(),
            _ => return None,
        }
        self.polling[who] = if self.polling[who] == 7 { DONE } else { self.polling[who] + 1 };
        Some(self)
    }

    /// A step of the worker: it writes, and wakes a sleeper.
    fn work(mut self) -> Option<State> {
        if self.worker / 2 == MESSAGES {
            return None;
        }
        match self.worker % 2 {
            0 => self.written += 1,
            _ if self.asleep => self.ring(),
            _ => {}
        }
        self.worker += 1;
        Some(self)
    }
}

/// Visits all states; returns one without a further step although a message is unread.
fn stuck(polls_again: bool) -> Option<State> {
    let (mut seen, mut next) = (HashSet::new(), vec![State::default()]);
    while let Some(state) = next.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let mut after: Vec<State> = state.clone().work().into_iter().collect();
        for who in 0..2 {
            after.extend([false, true].into_iter().filter_map(|reads| state.clone().poll(who, reads)));
        }
        after.extend(state.clone().receive(polls_again));
        if after.is_empty() && state.something() {
            return Some(state);
        }
        next.extend(after);
    }
    assert!(seen.len() > 10_000, "{} states", seen.len());
    None
}

#[test]
fn nobody_sleeps_while_a_message_lies_unread() {
    assert_eq!(stuck(true), None);
    assert!(stuck(false).is_some(), "the model finds what a receiver misses that polls only once");
}
