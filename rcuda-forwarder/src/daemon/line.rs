//! The lines of jobs that wait for a GPU of a server which is full.

use super::admission::{Budget, Source};
use super::error::AssignError;
use super::pool::{Admitted, Pool};
use super::seats::{Seat, Seats};
use crate::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// Jobs that wait at a time: each has a thread and a connection.
const WAITING: Budget = Budget { all: 256, of_one: 32 };

/// A job that waits.
#[derive(Debug)]
struct Waiter {
    number: u64,
    source: Source,
    /// What it has got, until it takes it.
    got: Option<Admitted>,
}

/// The lines, by GPU. The first that can be admitted is: one whose client has too many workers holds up nobody behind it.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Mutex<(u64, HashMap<u32, VecDeque<Waiter>>)>,
    seats: Seats<Source>,
}

/// The place of a job in its line.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    lines: &'a Lines,
    gpu: u32,
    number: u64,
    seat: Option<Seat<Source>>,
}

impl Lines {
    /// Number of jobs that wait for a GPU.
    pub(super) fn waiting(&self, gpu: u32) -> usize {
        lock(&self.lines).1.get(&gpu).map_or(0, VecDeque::len)
    }

    /// Puts a job into the line of a GPU, behind those that wait already. One that does not wait takes no seat.
    pub(super) fn enter(&self, source: Source, gpu: u32, waits: bool) -> Result<Turn<'_>, AssignError> {
        let seat = waits.then(|| self.seats.take(source.clone(), WAITING)).transpose().map_err(|_| AssignError::TooManyWait)?;
        let mut lines = lock(&self.lines);
        let number = lines.0;
        lines.0 += 1;
        lines.1.entry(gpu).or_default().push_back(Waiter { number, source, got: None });
        Ok(Turn { lines: self, gpu, number, seat })
    }
}

impl Turn<'_> {
    /// Takes a seat for a job that has to wait after all, unless it has one. Returns whether there is one.
    pub(super) fn take_seat(&mut self, source: &Source) -> bool {
        self.seat = self.seat.take().or_else(|| self.lines.seats.take(source.clone(), WAITING).ok());
        self.seat.is_some()
    }

    /// Admits those for whom there is room, in their order, up to this job. Returns what it has got, or how many wait before it and why it
    /// is not admitted.
    pub(super) fn poll(&self, pool: &Pool) -> Result<Admitted, (usize, AssignError)> {
        let mut lines = lock(&self.lines.lines);
        let line = lines.1.get_mut(&self.gpu).map(|line| line.make_contiguous()).unwrap_or_default();
        let mut before = 0;
        for waiter in line {
            let admitted = match waiter.got.take() {
                Some(got) => Ok(got),
                None => pool.admit(&waiter.source, self.gpu),
            };
            match (admitted, waiter.number == self.number) {
                (Ok(admitted), true) => return Ok(admitted),
                (Ok(admitted), false) => waiter.got = Some(admitted),
                (Err(why), true) => return Err((before, why)),
                (Err(_), false) => before += 1,
            }
        }
        Err((before, AssignError::Stopping))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.lines);
        if let Some(line) = lines.1.get_mut(&self.gpu) {
            line.retain(|waiter| waiter.number != self.number);
            if line.is_empty() {
                lines.1.remove(&self.gpu);
            }
        }
    }
}
