//! Replaying a journal: the same calls in the same order, with the same answers.

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
    /// Row or operation.
    pub id: u16,
    /// Encoded arguments.
    pub body: &'a [u8],
    /// The answer that the job was given; empty if there was none that a place decides (addresses, sizes).
    pub reply: &'a [u8],
}

/// Where records go. Calls are answered in the order in which they were submitted.
pub trait Sink {
    /// Hands a call over, without waiting for it.
    ///
    /// # Errors
    /// In words: the place is lost.
    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), String>;
    /// The result of the oldest call that has not been asked for.
    ///
    /// # Errors
    /// In words: the place is lost.
    fn next_result(&mut self) -> Result<(Code, Vec<u8>), String>;
}

/// How a replay went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayReport {
    /// Records replayed.
    pub records: u64,
    /// Milliseconds it took.
    pub ms: f64,
}

/// The place did not answer as the first one did: it must not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("record {seq} ({call}) came out differently: expected {expected}, got {got}")]
pub struct Divergence {
    /// The record's number in the journal.
    pub seq: u64,
    /// The call's name.
    pub call: String,
    /// What the journal says.
    pub expected: String,
    /// What the place answered.
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

/// The first bytes of an answer, in hexadecimal.
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

/// Replays records in their order, with up to `window` on their way at once.
///
/// # Errors
/// The first record that fails or is answered differently. What follows it may have been applied.
pub fn replay<'a>(
    records: impl Iterator<Item = Record<'a>>,
    sink: &mut dyn Sink,
    window: usize,
) -> Result<ReplayReport, Divergence> {
    let start = Instant::now();
    let mut done = 0;
    let mut waiting: VecDeque<Record<'a>> = VecDeque::new();
    let mut settle = |waiting: &mut VecDeque<Record<'a>>, sink: &mut dyn Sink| match waiting.pop_front() {
        Some(record) => {
            done += 1;
            check(&record, sink.next_result().map_err(|why| lost(&record, why))?)
        }
        None => Ok(()),
    };
    for record in records {
        if waiting.len() >= window.max(1) {
            settle(&mut waiting, sink)?;
        }
        sink.submit(record.id, record.body).map_err(|why| lost(&record, why))?;
        waiting.push_back(record);
    }
    while !waiting.is_empty() {
        settle(&mut waiting, sink)?;
    }
    Ok(ReplayReport { records: done, ms: start.elapsed().as_secs_f64() * 1e3 })
}

fn lost(record: &Record<'_>, why: String) -> Divergence {
    Divergence { seq: record.seq, call: call_name(record.id), expected: "an answer".into(), got: why }
}

/// The executor of this process as a sink.
impl Sink for LocalSink<'_> {
    fn submit(&mut self, id: u16, body: &[u8]) -> Result<(), String> {
        let mut reply = Vec::new();
        let rc = match self.exec.apply(id, body, &mut reply) {
            executor::Applied::Done(rc) => rc,
            executor::Applied::Pending(p) => p.wait(self.exec, &mut reply),
        };
        self.results.push_back((rc, reply));
        Ok(())
    }

    fn next_result(&mut self) -> Result<(Code, Vec<u8>), String> {
        self.results.pop_front().ok_or_else(|| "nothing was submitted".into())
    }
}

/// Replays into an executor of this process.
#[derive(Debug)]
pub struct LocalSink<'a> {
    exec: &'a executor::Executor,
    results: VecDeque<(Code, Vec<u8>)>,
}

impl<'a> LocalSink<'a> {
    /// A sink that applies to `exec`.
    pub fn new(exec: &'a executor::Executor) -> Self {
        LocalSink { exec, results: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a list and remembers how many calls were on their way at once.
    #[derive(Default)]
    struct Fake {
        answers: VecDeque<(Code, Vec<u8>)>,
        submitted: Vec<u16>,
        open: usize,
        most: usize,
    }

    impl Sink for Fake {
        fn submit(&mut self, id: u16, _: &[u8]) -> Result<(), String> {
            self.submitted.push(id);
            self.open += 1;
            self.most = self.most.max(self.open);
            Ok(())
        }
        fn next_result(&mut self) -> Result<(Code, Vec<u8>), String> {
            self.open -= 1;
            self.answers.pop_front().ok_or("gone".into())
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
        assert_eq!((e.seq, e.call.as_str(), e.got.as_str()), (9, "ChunkMap", "CUDA_ERROR_OUT_OF_MEMORY (2)"));
    }

    #[test]
    fn another_answer_is_a_divergence() {
        let mut sink = Fake { answers: vec![(0, vec![1, 2, 4])].into(), ..Fake::default() };
        let e = replay([record(3, 0x0508, &[1, 2, 3])].into_iter(), &mut sink, 1).unwrap_err();
        assert_eq!(e.call, "cuModuleGetGlobal_v2");
        let mut lost = Fake::default();
        let e = replay([record(3, 0x0508, &[])].into_iter(), &mut lost, 1).unwrap_err();
        assert_eq!(e.got, "gone");
    }
}
