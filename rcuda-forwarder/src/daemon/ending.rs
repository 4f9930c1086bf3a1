//! The end of a daemon without the end of its jobs: it takes no new ones, and asks those that it serves to move away.

use super::drain::Drain;
use super::error::ServeError;
use super::log::LogLine;
use super::pool::{Occupant, Worker};
use super::{Daemon, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between two checks whether all jobs have left.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of jobs that one line of the log names.
const NAMED: usize = 10;

/// The first few of these jobs, and the number of the others.
fn named(jobs: &[String]) -> String {
    let named = jobs.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if jobs.len() > NAMED { format!("{named}; and {} more", jobs.len() - NAMED) } else { named }
}

fn workers(n: usize) -> String {
    if n == 1 { "1 worker has a job".to_owned() } else { format!("{n} workers have jobs") }
}

impl State {
    /// The jobs that are served, and their workers.
    fn served(&self) -> Vec<(Arc<Worker>, String)> {
        let job = |(worker, occupant): (Arc<Worker>, Occupant)| match occupant {
            Occupant::Job(client) => Some((worker, client.words())),
            Occupant::Nobody => None,
        };
        self.pool.occupants().into_iter().filter_map(job).collect()
    }

    /// Writes which jobs lose their GPU because the daemon ends now; returns the number of their workers.
    fn report_abandoned(&self) -> usize {
        let jobs: Vec<String> = self.served().into_iter().map(|(_, words)| words).collect();
        if !jobs.is_empty() {
            (self.log)(&LogLine::warning(format!("{}, whose GPU ends with this server: {}", workers(jobs.len()), named(&jobs))));
        }
        jobs.len()
    }
}

impl Daemon {
    /// Takes no new jobs, asks those that are served to move away, again and again if they refuse, and waits until all have left. An error
    /// if some have not, after the time limit or once `at_once` is set, or if the worker of one has failed.
    pub(super) fn drain(&self, drain: &Drain, at_once: &AtomicBool) -> Result<(), ServeError> {
        let (state, until) = (&self.state, Instant::now() + drain.timeout);
        state.draining.store(true, Ordering::SeqCst);
        state.closing.end();
        state.forget_leaves();
        state.pool.end_warm();
        let n = state.served().len();
        state.pool.events().drain(true, &drain.words(), n);
        if n > 0 {
            (state.log)(&LogLine::info(format!(
                "ending: {} and {} asked to move to {} within {} s; a second signal ends them at once",
                workers(n),
                if n == 1 { "is" } else { "are" },
                drain.words(),
                drain.timeout.as_secs_f64()
            )));
        }
        let failed_before = state.pool.failed();
        // A job that had been let in before may get its worker now.
        let ended = loop {
            if !state.pool.has_clients() {
                break 0;
            }
            for (worker, _) in state.served() {
                if let Some(to) = drain.target(worker.gpu()) {
                    worker.ask_to_leave(&to, until.saturating_duration_since(Instant::now()));
                }
            }
            if at_once.load(Ordering::SeqCst) || Instant::now() >= until {
                // The last one may just have left.
                break state.report_abandoned();
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        state.pool.events().drain(false, &drain.words(), ended);
        match state.pool.failed() - failed_before {
            0 if ended == 0 => {
                if n > 0 {
                    (state.log)(&LogLine::info("all jobs have left"));
                }
                Ok(())
            }
            failed => {
                if failed > 0 {
                    let why = format!("while jobs were to move away, workers have failed that had one: {failed}");
                    (state.log)(&LogLine::warning(why));
                }
                Err(ServeError::NotDrained { ended, failed })
            }
        }
    }

    /// Writes which jobs lose their GPU, before the daemon is stopped.
    pub(super) fn name_jobs(&self) {
        self.state.report_abandoned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let jobs: Vec<String> = (1..=12).map(|n| format!("job {n}")).collect();
        assert_eq!(named(&jobs[..2]), "job 1; job 2");
        assert!(named(&jobs).ends_with("job 10; and 2 more"));
    }
}
