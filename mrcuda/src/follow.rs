//! Shows the progress of a move on a terminal. Ctrl-C asks whether to cancel the move or to leave it running.

use crate::ask::{ANSWER_TIMEOUT, refused};
use crate::failure::Failure;
use crate::moves::of_ended_job;
use crate::progress::draw;
use crate::table::{bytes, duration, note};
use control::{AskError, Client, Move, MoveState};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Interval between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(200);
/// The rate is that of this time.
const RATE_OVER: Duration = Duration::from_secs(3);
/// Exit code of a command that Ctrl-C has ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// How following a move has ended.
#[derive(Debug)]
pub(crate) enum Followed {
    /// The move is over.
    Ended(Box<Move>),
    /// The move with this id goes on.
    Left(String),
}

/// Messages of the threads that wait for the job to the one that shows it: a job can stop to answer at any time, and Ctrl-C must work all the same.
enum Heard {
    Progress(Box<Move>),
    CancelRefused(AskError),
    Ended(Box<Result<Move, AskError>>),
}

/// Whether somebody sees the progress and can answer.
pub(crate) fn is_possible() -> bool {
    std::io::stderr().is_terminal() && std::io::stdin().is_terminal()
}

/// Requests a move by `begin`, which does not wait for its end, and shows its progress until it is over, or until the user leaves it
/// running.
pub(crate) fn follow(
    pid: u32,
    mut job: Client,
    begin: impl FnOnce(&mut Client) -> Result<Move, AskError> + Send + 'static,
) -> Result<Followed, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(nix::sys::signal::Signal::SIGINT as i32, interrupted.clone()).map_err(Failure::new)?;
    let (sender, answer) = sync_channel(1);
    std::thread::spawn(move || {
        let began = begin(&mut job);
        // Without a listener the command has ended.
        let _ = sender.send((job, began));
    });
    let (job, began) = loop {
        match answer.recv_timeout(INTERVAL) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) if !interrupted.swap(false, Ordering::Relaxed) => {}
            Err(RecvTimeoutError::Timeout) => {
                let unknown = format!("the job has not answered the request yet (mrcuda moves {pid} shows whether it moves)");
                return Err(Failure::with_code(INTERRUPTED, format!("process {pid}: {unknown}")));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("the move cannot be requested")),
        }
    };
    let id = began.map_err(|why| refused(pid, why, false))?.id;
    let (sender, heard) = sync_channel(1);
    wait_for_end(pid, id.clone(), sender.clone());
    ask_for_progress(job, id.clone(), sender.clone());
    show(pid, id, &interrupted, &heard, &sender)
}

/// Sends a message when the move is over.
fn wait_for_end(pid: u32, id: String, sender: SyncSender<Heard>) {
    std::thread::spawn(move || {
        let result =
            Client::connect(pid).and_then(|mut job| job.wait_for(&id)).or_else(|why| match (&why, of_ended_job(pid, &id)) {
                // The job has ended in the same moment.
                (AskError::Failed(_) | AskError::NoJob, Some(it)) => Ok(it),
                _ => Err(why),
            });
        // Without a listener the move was left running.
        let _ = sender.send(Heard::Ended(Box::new(result)));
    });
}

/// Sends the progress of the move periodically.
fn ask_for_progress(mut job: Client, id: String, sender: SyncSender<Heard>) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(INTERVAL);
            // Its end comes the other way.
            let Some(it) = job.report(Some(&id), Some(ANSWER_TIMEOUT)).ok().and_then(|mut moves| moves.pop()) else { continue };
            if sender.send(Heard::Progress(Box::new(it))).is_err() {
                return;
            }
        }
    });
}

/// Cancels the move; a refusal is shown, and the move followed to its end.
fn cancel(pid: u32, id: String, sender: SyncSender<Heard>) {
    draw("");
    note("cancelling the move");
    // The job has the request before a second Ctrl-C is looked at, which ends this process.
    let asked = Client::connect(pid).and_then(|mut job| job.begin_cancel(Some(&id)).map(|()| job));
    std::thread::spawn(move || {
        if let Err(why) = asked.and_then(|mut job| job.end_cancel()) {
            let _ = sender.send(Heard::CancelRefused(why));
        }
    });
}

/// Shows what is heard of the move. Ctrl-C asks what to do; where the answer was to cancel it, it leaves the move.
fn show(
    pid: u32,
    id: String,
    interrupted: &AtomicBool,
    heard: &Receiver<Heard>,
    sender: &SyncSender<Heard>,
) -> Result<Followed, Failure> {
    let ended =
        |result: Result<Move, AskError>| result.map(|it| Followed::Ended(Box::new(it))).map_err(|why| refused(pid, why, false));
    let mut rate = Rate::default();
    let mut is_cancelling = false;
    loop {
        match heard.recv_timeout(INTERVAL) {
            Ok(Heard::Ended(result)) => {
                draw("");
                return ended(*result);
            }
            Ok(Heard::Progress(it)) => draw(&line(&it, rate.at(Instant::now(), it.bytes))),
            Ok(Heard::CancelRefused(why)) => {
                draw("");
                note(&why.to_string());
                is_cancelling = false;
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("the move cannot be followed")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupted.swap(false, Ordering::Relaxed) {
            let choice = if is_cancelling { Choice::Leave } else { ask(interrupted, heard) };
            match choice {
                Choice::Leave => {
                    draw("");
                    return Ok(Followed::Left(id));
                }
                Choice::Cancel => {
                    is_cancelling = true;
                    cancel(pid, id.clone(), sender.clone());
                }
                Choice::Ended(result) => return ended(*result),
            }
        }
    }
}

/// What to do after Ctrl-C.
enum Choice {
    Leave,
    Cancel,
    /// The move has ended before the answer.
    Ended(Box<Result<Move, AskError>>),
}

/// Asks. A second Ctrl-C, or the end of the input, leaves the move running, as Ctrl-C does without a terminal.
fn ask(interrupted: &AtomicBool, heard: &Receiver<Heard>) -> Choice {
    let stdin = std::io::stdin();
    let question = || {
        draw("");
        eprint!("leave it running in the background, or cancel? [b/c] ");
    };
    question();
    loop {
        if interrupted.swap(false, Ordering::Relaxed) {
            eprintln!();
            return Choice::Leave;
        }
        if let Ok(Heard::Ended(result)) = heard.try_recv() {
            eprintln!();
            return Choice::Ended(result);
        }
        let timeout = PollTimeout::try_from(INTERVAL).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        // An interruption is looked at above.
        if !matches!(poll(&mut fds, timeout), Ok(1..)) {
            continue;
        }
        let mut answer = String::new();
        match stdin.read_line(&mut answer) {
            Ok(0) | Err(_) => {
                eprintln!();
                return Choice::Leave;
            }
            Ok(_) => {}
        }
        match answer.trim().to_lowercase().as_str() {
            "b" | "background" => return Choice::Leave,
            "c" | "cancel" => return Choice::Cancel,
            _ => question(),
        }
    }
}

/// The rate at which bytes are copied.
#[derive(Debug, Default)]
pub(crate) struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// Bytes a second, once they are known over some time.
    pub(crate) fn at(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        self.0.push_back((now, bytes));
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= RATE_OVER) {
            self.0.pop_front();
        }
        let (since, before) = self.0.front()?;
        let seconds = now.duration_since(*since).as_secs_f64();
        (bytes > *before && seconds > 0.0).then(|| (bytes - before) as f64 / seconds)
    }
}

/// The progress of a move in a line.
pub(crate) fn line(it: &Move, rate: Option<f64>) -> String {
    let phase = match (it.state, &it.phase) {
        (MoveState::Queued, _) => return "queued behind another move".to_owned(),
        (MoveState::Stopping, _) => return "being abandoned".to_owned(),
        (MoveState::Committed, _) => "release",
        (_, Some(phase)) => phase,
        (_, None) => "start",
    };
    let mut line = format!("{phase}, {}", duration(it.total_ms));
    let total = it.chunk_bytes.saturating_sub(it.bytes_adopted);
    // Later rounds copy pages a second time.
    let left = total.checked_sub(it.bytes).filter(|left| *left > 0);
    match left {
        Some(_) => line.push_str(&format!(": {} of {}", bytes(it.bytes), bytes(total))),
        None if it.bytes > 0 => line.push_str(&format!(": {}", bytes(it.bytes))),
        None => {}
    }
    if let Some(rate) = rate {
        line.push_str(&format!(", {}/s", bytes(rate as u64)));
        if let Some(left) = left {
            line.push_str(&format!(", {} left", duration(left as f64 / rate * 1e3)));
        }
    }
    if let Some(waits_for) = &it.waits_for {
        line.push_str(&format!(" ({waits_for})"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_phase_bytes_rate_and_what_is_left() {
        let it = Move {
            state: MoveState::Running,
            phase: Some("precopy".into()),
            total_ms: 2500.0,
            bytes: 1 << 30,
            chunk_bytes: 5 << 30,
            bytes_adopted: 1 << 30,
            ..Move::default()
        };
        assert_eq!(line(&it, Some(f64::from(1 << 29))), "precopy, 2.50 s: 1.0 GiB of 4.0 GiB, 512.0 MiB/s, 6.00 s left");
        assert_eq!(line(&Move { bytes: 5 << 30, ..it.clone() }, None), "precopy, 2.50 s: 5.0 GiB");
        let waits =
            Move { phase: Some("quiesce".into()), bytes: 0, chunk_bytes: 0, waits_for: Some("a kernel".into()), ..it.clone() };
        assert_eq!(line(&waits, None), "quiesce, 2.50 s (a kernel)");
        assert_eq!(line(&Move { state: MoveState::Queued, ..it }, None), "queued behind another move");
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        assert_eq!(rate.at(start, 1000), None);
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(rate.at(at(1000), 3000), Some(2000.0));
        assert_eq!(rate.at(at(2000), 3000), Some(1000.0));
        assert_eq!(rate.at(at(6000), 3000), None, "nothing was copied for some seconds");
        assert_eq!(rate.at(at(7000), 2000), None, "a move that begins again");
    }
}
