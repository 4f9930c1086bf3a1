//! Replays a journal: the same calls in the same order, whose answers must be the same.

use cuda_api::calls;
use cuda_api::code::{self, Code};
use cuda_api::ops;
use std::collections::VecDeque;
use std::time::Instant;

/// One record to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number in the journal.
    pub seq: u64,
    /// Id of the row or operation.
    pub id: u16,
    /// Encoded arguments.
    pub body: &'a [u8],
    /// The answer that the job received; empty if it contains nothing that a place decides (addresses, sizes).
    pub reply: &'a [u8],
}

/// A destination of replayed calls. Results come in the order in which the calls were submitted.
pub trait Sink {
    /// Why a call cannot be submitted, or has no result.
    type Error;
    /// Submits a call without waiting for it.
    ///
    /// # Errors
    /// For example, the place is lost.
    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), Self::Error>;
    /// Returns the result of the oldest call whose result has not been taken.
    ///
    /// # Errors
    /// For example, the place is lost.
    fn next_result(&mut self) -> Result<(Code, Vec<u8>), Self::Error>;
}

/// Why a replay did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError<E> {
    /// The place answered differently from the first one.
    #[error(transparent)]
    Diverged(#[from] Divergence),
    /// The sink did not accept a call or returned no result.
    #[error("{0}")]
    Sink(E),
}

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayReport {
    /// Records replayed.
    pub records: u64,
    /// Duration in milliseconds.
    pub ms: f64,
}

/// The place answered differently from the first one, so it must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} ({call}) came out differently: expected {expected}, got {got}")]
pub struct Divergence {
    /// The record's number in the journal.
    pub seq: u64,
    /// The call's name.
    pub call: String,
    /// The answer in the journal.
    pub expected: String,
    /// The answer of the place.
    pub got: String,
}

/// Name of a row or operation.
pub fn call_name(id: u16) -> String {
    let row = || calls::rows().find(|r| r.id == id).map(|r| r.name);
    ops::name(id).or_else(row).map_or_else(|| format!("call {id:#06x}"), str::to_owned)
}

fn code_name(rc: Code) -> String {
    code::describe(rc).map_or_else(|| format!("error {rc}"), |(name, _)| format!("{} ({rc})", name.trim_end_matches('\0')))
}

/// Formats the first bytes of an answer in hexadecimal.
fn bytes(reply: &[u8]) -> String {
    let shown: String = reply.iter().take(32).map(|b| format!("{b:02x}")).collect();
    format!("{} bytes {shown}{}", reply.len(), if reply.len() > 32 { "…" } else { "" })
}

fn check(record: &Record<'_>, (rc, reply): (Code, Vec<u8>)) -> Result<(), Divergence> {
    let differs = |expected: String, got: String| Divergence { seq: record.seq, call: call_name(record.id), expected, got };
    if rc != code::SUCCESS {
        return Err(differs(code_name(code::SUCCESS), code_name(rc)));
    }
    if !record.reply.is_empty() && record.reply != reply {
        return Err(differs(bytes(record.reply), bytes(&reply)));
    }
    Ok(())
}

/// Replays records in order, with up to `window` of them in flight.
///
/// # Errors
/// The first record that fails or is answered differently, or an error of the sink. Records after it may have been
/// applied.
pub fn replay<'a, S: Sink>(
    records: impl Iterator<Item = Record<'a>>,
    sink: &mut S,
    window: usize,
) -> Result<ReplayReport, ReplayError<S::Error>> {
    let start = Instant::now();
    let mut done = 0;
    let mut waiting: VecDeque<Record<'a>> = VecDeque::new();
    let mut settle = |waiting: &mut VecDeque<Record<'a>>, sink: &mut S| match waiting.pop_front() {
        Some(record) => {
            done += 1;
            let result = sink.next_result().map_err(ReplayError::Sink)?;
            check(&record, result).map_err(ReplayError::Diverged)
        }
        None => Ok(()),
    };
    for record in records {
        if waiting.len() >= window.max(1) {
            settle(&mut waiting, sink)?;
        }
        sink.submit(record.id, record.body).map_err(ReplayError::Sink)?;
        waiting.push_back(record);
    }
    while !waiting.is_empty() {
        settle(&mut waiting, sink)?;
    }
    Ok(ReplayReport { records: done, ms: start.elapsed().as_secs_f64() * 1e3 })
}

/// The executor of this process as a sink.
impl Sink for LocalSink<'_> {
    type Error = NothingSubmitted;

    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), NothingSubmitted> {
        let mut reply = Vec::new();
        let rc = match self.exec.apply(id, body, &mut reply) {
            executor::Applied::Done(rc) => rc,
            executor::Applied::Pending(p) => p.wait(self.exec, &mut reply),
        };
        self.results.push_back((rc, reply));
        Ok(())
    }

    fn next_result(&mut self) -> Result<(Code, Vec<u8>), NothingSubmitted> {
        self.results.pop_front().ok_or(NothingSubmitted)
    }
}

/// A result was requested, but there is no outstanding call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no call is without its result")]
pub struct NothingSubmitted;

/// Replays into an executor of this process.
#[derive(Debug)]
pub struct LocalSink<'a> {
    exec: &'a executor::Executor,
    results: VecDeque<(Code, Vec<u8>)>,
}

impl<'a> LocalSink<'a> {
    /// Creates a sink that applies calls to `exec`.
    pub fn new(exec: &'a executor::Executor) -> Self {
        LocalSink { exec, results: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a list and records how many calls were in flight at once.
    #[derive(Default)]
    struct Fake {
        answers: VecDeque<(Code, Vec<u8>)>,
        submitted: Vec<u16>,
        open: usize,
        most: usize,
    }

    /// No more answers are left.
    #[derive(Debug, PartialEq, Eq)]
    struct Gone;

    fn divergence(e: ReplayError<Gone>) -> Divergence {
        match e {
            ReplayError::Diverged(divergence) => divergence,
            ReplayError::Sink(Gone) => panic!("the sink is gone"),
        }
    }

    impl Sink for Fake {
        type Error = Gone;

        fn submit(&mut self, id: u16, _: &[u8]) -> Result<(), Gone> {
            self.submitted.push(id);
            self.open += 1;
            self.most = self.most.max(self.open);
            Ok(())
        }
        fn next_result(&mut self) -> Result<(Code, Vec<u8>), Gone> {
            self.open -= 1;
            self.answers.pop_front().ok_or(Gone)
        }
    }

    fn record(seq: u64, id: u16, reply: &[u8]) -> Record<'_> {
        Record { seq, id, body: &[], reply }
    }

    #[test]
    fn all_are_submitted_in_order_inside_the_window() {
        let mut sink = Fake { answers: vec![(0, vec![]); 5].into(), ..Fake::default() };
        let report = replay((0..5).map(|i| record(i, 0x400 + i as u16, &[])), &mut sink, 2).expect("equal");
        assert_eq!((report.records, sink.most), (5, 2));
        assert_eq!(sink.submitted, [0x400, 0x401, 0x402, 0x403, 0x404]);
    }

    #[test]
    fn a_failed_record_is_named() {
        let mut sink = Fake { answers: vec![(0, vec![]), (2, vec![])].into(), ..Fake::default() };
        let e = replay([record(7, ops::id::CHUNK_MAP, &[]), record(9, ops::id::CHUNK_MAP, &[])].into_iter(), &mut sink, 8)
            .unwrap_err();
        let e = divergence(e);
        assert_eq!((e.seq, e.call.as_str(), e.got.as_str()), (9, "ChunkMap", "CUDA_ERROR_OUT_OF_MEMORY (2)"));
    }

    #[test]
    fn another_answer_is_a_divergence() {
        let mut sink = Fake { answers: vec![(0, vec![1, 2, 4])].into(), ..Fake::default() };
        let e = divergence(replay([record(3, 0x0508, &[1, 2, 3])].into_iter(), &mut sink, 1).unwrap_err());
        assert_eq!(e.call, "cuModuleGetGlobal_v2");
        let mut lost = Fake::default();
        let e = replay([record(3, 0x0508, &[])].into_iter(), &mut lost, 1).unwrap_err();
        assert_eq!(e, ReplayError::Sink(Gone));
    }
}
