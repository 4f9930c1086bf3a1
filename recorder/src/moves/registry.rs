//! The moves of the job and their reported state.

use crate::move_error::Failure;
use ::control::{Event, EventKind, Move, MoveState, Trace, without_numbers};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar};
use std::time::Instant;

/// Maximum number of finished moves that can still be queried.
pub(super) const KEPT: usize = 1000;
/// Maximum number of traces that are kept.
pub(super) const TRACES: usize = 4;
/// Maximum number of events that a slow reader can be behind.
pub(super) const EVENTS: usize = 1024;

/// What the registry knows of a requested move.
pub(super) trait Requested {
    fn id(&self) -> &str;

    /// Whether the job stays where it is, and a copy is made.
    fn is_copy(&self) -> bool;
}

/// A move and its reported state.
#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) task: Arc<T>,
    pub(super) it: Move,
    pub(super) begun: Option<Instant>,
    pub(super) trace: Option<Arc<Trace>>,
}

impl<T> Entry<T> {
    /// The report, and the trace that belongs to it.
    pub(super) fn report_with_trace(&self) -> (Move, Option<Arc<Trace>>) {
        (self.report(), self.trace.clone())
    }

    pub(super) fn report(&self) -> Move {
        let mut it = self.it.clone();
        if let (Some(begun), false) = (self.begun, it.state.is_over()) {
            it.total_ms = begun.elapsed().as_secs_f64() * 1e3;
        }
        it
    }
}

/// All moves, the oldest first.
#[derive(Debug)]
pub(super) struct Registry<T> {
    pub(super) entries: VecDeque<Entry<T>>,
    /// Number of moves requested so far.
    pub(super) count: u64,
    /// Number of copies among them.
    pub(super) copies: u64,
    /// Whether a thread that carries out moves exists.
    pub(super) mover: bool,
    /// Whether the program is ending: no further moves are accepted.
    pub(super) closed: bool,
    pub(super) events: VecDeque<Event>,
    pub(super) seq: u64,
}

/// Notified when the state of a move has changed.
pub(super) static CHANGED: Condvar = Condvar::new();

impl<T: Requested> Registry<T> {
    pub(super) const fn new() -> Registry<T> {
        Registry { entries: VecDeque::new(), count: 0, copies: 0, mover: false, closed: false, events: VecDeque::new(), seq: 0 }
    }

    pub(super) fn find(&mut self, id: &str) -> Option<&mut Entry<T>> {
        self.entries.iter_mut().rev().find(|e| e.task.id() == id)
    }

    /// The move that is being carried out.
    pub(super) fn running(&self) -> Option<&Entry<T>> {
        self.entries.iter().find(|e| matches!(e.it.state, MoveState::Running | MoveState::Stopping | MoveState::Committed))
    }

    /// As [`Registry::running`], but not if only a copy is made, which gives way to a move.
    pub(super) fn moving(&self) -> Option<&Entry<T>> {
        self.running().filter(|e| !e.task.is_copy())
    }

    /// The moves that wait, without copies.
    pub(super) fn queued(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.iter().filter(|e| e.it.state == MoveState::Queued && !e.task.is_copy())
    }

    /// The copies that are made, or wait.
    pub(super) fn copying(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.iter().filter(|e| e.task.is_copy() && !e.it.state.is_over())
    }

    /// Changes the reported state of a move, and notifies subscribers.
    pub(super) fn change(&mut self, id: &str, event: Option<EventKind>, change: impl FnOnce(&mut Move)) {
        let Some(entry) = self.find(id) else { return };
        change(&mut entry.it);
        entry.it.sum_up();
        let it = entry.report();
        if let Some(event) = event {
            self.seq += 1;
            self.events.push_back(Event { seq: self.seq, event, it });
            if self.events.len() > EVENTS {
                self.events.pop_front();
            }
        }
        CHANGED.notify_all();
    }

    /// Keeps the trace of a move, and no more than a few in all.
    pub(super) fn keep_trace(&mut self, id: &str, trace: Option<Arc<Trace>>) {
        if let (Some(_), Some(entry)) = (&trace, self.find(id)) {
            entry.trace = trace;
            let kept = self.entries.iter_mut().rev().filter(|e| e.trace.is_some());
            kept.skip(TRACES).for_each(|e| e.trace = None);
        }
    }

    /// The report that a move will have when it has ended.
    pub(super) fn ended(&mut self, id: &str, state: MoveState, why: Option<&Failure>) -> Option<Move> {
        let mut it = self.find(id)?.report();
        end(&mut it, state, why);
        Some(it)
    }

    pub(super) fn end(&mut self, id: &str, state: MoveState, why: Option<&Failure>) {
        self.change(id, Some(EventKind::Ended), |it| end(it, state, why));
        if self.find(id).is_some_and(|e| e.task.is_copy()) {
            // Of copies the last one is kept.
            self.entries.retain(|e| !e.task.is_copy() || !e.it.state.is_over() || e.task.id() == id);
        }
        let over = self.entries.iter().filter(|e| e.it.state.is_over()).count();
        if over > KEPT
            && let Some(oldest) = self.entries.iter().position(|e| e.it.state.is_over())
        {
            self.entries.remove(oldest);
        }
    }
}

/// Maximum length of a reason: texts of places are in it.
pub(super) const LONGEST_REASON: usize = 4 << 10;

/// Shortens a text that is too long.
pub(super) fn cut(mut text: String) -> String {
    if text.len() > LONGEST_REASON {
        let end = (0..=LONGEST_REASON).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

/// Gives a report its end.
fn end(it: &mut Move, state: MoveState, why: Option<&Failure>) {
    it.state = state;
    it.ok = state == MoveState::Done;
    it.phase = None;
    it.reason = why.map(|why| cut(without_numbers(&why.to_string())));
    it.code = why.map(Failure::code);
}
