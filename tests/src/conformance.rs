//! Transcripts of the program `conformance`, and their comparison.

use crate::{Job, Outcome, Scene, Server, Transport};
use cuda_api::Class;
use cuda_api::calls::{self, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

/// Explained differences under mrcuda: `[reason]`, then the beginnings of the lines that differ for it.
const DIFFERENCES: &str = include_str!("../programs/conformance/differences.txt");
/// The answers of an H200 with driver 580, without numbers of mappings, which depend on the machine.
const H200: &str = include_str!("../programs/conformance/h200.txt");
/// Explained differences between that and softgpu.
const SOFTGPU: &str = include_str!("../programs/conformance/softgpu.txt");

/// Where the program's GPU is.
pub const MODES: [&str; 5] = ["remote", "unix", "moved", "inside", "helper"];
/// Those that begin at the server, reached as the plan says.
pub const REMOTE_MODES: [&str; 2] = ["remote", "moved"];

/// What is run.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Only sections whose name contains this.
    pub only: Option<&'a str>,
    /// How many sections at a time.
    pub jobs: u32,
    /// How long a whole run may take.
    pub limit: Duration,
    /// How the server of remote modes is reached.
    pub transport: Transport,
}

impl Plan<'_> {
    fn args(&self) -> Vec<String> {
        let mut args = vec!["--jobs".to_owned(), self.jobs.to_string()];
        if let Some(only) = self.only {
            args.extend(["--only".to_owned(), only.to_owned()]);
        }
        args
    }
}

/// The program `conformance` failed or did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("{mode}: code {:?}, signal {:?}, hung {}: {}", outcome.code, outcome.signal, outcome.hung, outcome.stderr)]
pub struct TranscriptError {
    /// Where the program's GPU was.
    mode: String,
    /// How the program ended.
    outcome: Outcome,
}

/// The transcript of the driver itself.
pub fn native(scene: &Scene, plan: Plan<'_>) -> Result<String, TranscriptError> {
    let args = plan.args();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    transcript("native", Job::native(scene, "native", &scene.install.file("conformance"), &args).wait(plan.limit))
}

/// The transcript under mrcuda; `server` is on the same machine.
pub fn under_mrcuda(scene: &Scene, server: &Server, mode: &str, plan: Plan<'_>) -> Result<String, TranscriptError> {
    let (place, unix) = (server.by(plan.transport, 0), server.unix_place(0));
    let options: &[&str] = match mode {
        "inside" => &[],
        "helper" => &["--server", "helper"],
        "unix" => &["--server", &unix],
        _ => &["--server", &place],
    };
    let mut args = plan.args();
    if mode == "moved" {
        args.extend(["--move".to_owned(), scene.install.file("mrcuda").display().to_string(), "local".to_owned()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    transcript(mode, Job::start(scene, mode, options, &scene.install.file("conformance"), &args, &[]).wait(plan.limit))
}

fn transcript(mode: &str, outcome: Outcome) -> Result<String, TranscriptError> {
    if outcome.ok() {
        return Ok(outcome.stdout);
    }
    Err(TranscriptError { mode: mode.to_owned(), outcome })
}

/// The differences of a transcript from the native one.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Number of common cases.
    pub cases: usize,
    /// Number of explained differences, by reason.
    pub explained: BTreeMap<String, usize>,
    /// Unexplained differences.
    pub unexplained: Vec<String>,
    /// Every difference, as text.
    pub lines: String,
}

/// Compares a transcript under mrcuda with the driver's, case by case.
pub fn compare(native: &str, other: &str) -> Comparison {
    compare_by(&Reasons::under_mrcuda(), native, other)
}

/// Compares softgpu's transcript with an H200's.
pub fn compare_with_hardware(softgpu: &str) -> Comparison {
    // The list of what is never called is the program's, no driver's. A section that the hardware's transcript does not have yet is not compared.
    let section = |line: &str| line.split_once(": ").map(|(section, _)| section.to_owned());
    let measured: HashSet<Option<String>> = H200.lines().map(section).collect();
    let counts = |line: &&str| !line.starts_with("never: ") && measured.contains(&section(line));
    let called = |text: &str| text.lines().filter(counts).map(|l| format!("{l}\n")).collect::<String>();
    compare_by(&Reasons::of_softgpu(), &called(H200), &called(softgpu))
}

fn compare_by(reasons: &Reasons, native: &str, other: &str) -> Comparison {
    let (native, mut other) = (cases(native), by_key(other));
    let mut result = Comparison { cases: native.len(), ..Comparison::default() };
    for (key, want) in native {
        let have = other.get_mut(key).filter(|all| !all.is_empty()).map(|all| all.remove(0));
        if have == Some(want) {
            continue;
        }
        let have = have.unwrap_or("(not told)");
        // Formatting into a string cannot fail.
        let _ = writeln!(result.lines, "{key} = {want} | {have}");
        match reasons.find(key, want, have) {
            Some(reason) => *result.explained.entry(reason).or_default() += 1,
            None => result.unexplained.push(format!("{key}: natively {want}, here {have}")),
        }
    }
    for (key, rest) in other {
        for have in rest {
            let _ = writeln!(result.lines, "{key} = (not told) | {have}");
            match reasons.find(key, "(not told)", have) {
                Some(reason) => *result.explained.entry(reason).or_default() += 1,
                None => result.unexplained.push(format!("{key}: natively not told, here {have}")),
            }
        }
    }
    result
}

/// Lines as case and result.
fn cases(text: &str) -> Vec<(&str, &str)> {
    text.lines().map(|line| line.split_once(" = ").unwrap_or((line, ""))).collect()
}

fn by_key(text: &str) -> HashMap<&str, Vec<&str>> {
    let mut map: HashMap<&str, Vec<&str>> = HashMap::new();
    for (key, result) in cases(text) {
        map.entry(key).or_default().push(result);
    }
    map
}

struct Reasons {
    /// Functions that may return "not supported".
    refused: HashMap<&'static str, &'static Row>,
    listed: Vec<(&'static str, &'static str)>,
    /// Whether the other one may lack functions.
    may_lack: bool,
}

impl Reasons {
    fn under_mrcuda() -> Reasons {
        let refused = calls::rows().filter(|r| r.class == Class::Refused).map(|r| (r.name, r)).collect();
        Reasons { refused, listed: listed(DIFFERENCES), may_lack: false }
    }

    fn of_softgpu() -> Reasons {
        Reasons { refused: HashMap::new(), listed: listed(SOFTGPU), may_lack: true }
    }

    fn find(&self, key: &str, want: &str, have: &str) -> Option<String> {
        let line = format!("{key} = {want}");
        if let Some((_, reason)) = self.listed.iter().find(|(start, _)| begins(&line, start)) {
            return Some((*reason).to_owned());
        }
        if key.starts_with("symbols: ") {
            return symbol_reason(want, have, self.may_lack).map(str::to_owned);
        }
        let words = || key.split(|c: char| !c.is_alphanumeric() && c != '_');
        match (want, have) {
            ("absent", _) => Some("the native driver has no such function".to_owned()),
            (_, "absent") if self.may_lack => Some("there is no such function".to_owned()),
            ("crashes", _) if have.parse::<i32>().is_ok() => {
                Some("the native driver crashes, this one answers an error".to_owned())
            }
            (_, "801") => words().find_map(|w| self.refused.get(w)).map(|row| format!("refused: {}", row.doc.trim())),
            _ => None,
        }
    }
}

/// Whether a line begins with this pattern, in which `*` matches any characters.
fn begins(line: &str, start: &str) -> bool {
    let mut parts = start.split('*');
    let rest = parts.next().and_then(|first| line.strip_prefix(first));
    parts.try_fold(rest.unwrap_or(""), |rest, part| rest.split_once(part).map(|(_, after)| after)).is_some() && rest.is_some()
}

/// The lines of a list of differences, each with its reason.
fn listed(text: &'static str) -> Vec<(&'static str, &'static str)> {
    let (mut listed, mut reason) = (Vec::new(), "");
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        match line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            Some(text) => reason = text,
            None => listed.push((line, reason)),
        }
    }
    listed
}

/// Versions in which the one has a name and the other has not; the last is the newest.
fn symbol_reason(want: &str, have: &str, may_lack: bool) -> Option<&'static str> {
    let pairs: Vec<(&str, &str)> = want.split(' ').zip(have.split(' ')).collect();
    let different = || pairs.iter().filter(|(w, h)| w != h);
    if may_lack && different().all(|(w, h)| *w == "0" && *h == "1") {
        return Some("there is no such function");
    }
    if pairs.last().is_some_and(|(w, h)| w == h) && different().all(|(w, h)| *w == "0" && *h == "1") {
        return Some("forms of functions for CUDA versions of long ago are not there");
    }
    different().all(|(w, _)| *w == "1").then_some("the native driver has no such function")
}

#[cfg(test)]
mod tests {
    use super::{begins, compare};

    #[test]
    fn beginnings_may_have_gaps() {
        assert!(begins("a: b: c = 1", "a: b: c =") && begins("a: b: c = 1", "a: *: c =") && begins("a: b: c = 1", "a*c"));
        assert!(!begins("a: b: c = 1", "b: c") && !begins("a: b: c = 1", "a: *: d =") && !begins("a: b: c = 1", "x*c"));
    }

    #[test]
    fn equal_transcripts_are_equal_and_others_are_not() {
        let native = "a: cuInit(0) = 0\na: cuInit(1) = 1\n";
        let same = compare(native, native);
        assert!(same.cases == 2 && same.unexplained.is_empty() && same.explained.is_empty());
        assert_eq!(compare(native, "a: cuInit(0) = 0\na: cuInit(1) = 3\n").unexplained.len(), 1);
        assert_eq!(compare(native, "a: cuInit(0) = 0\n").unexplained.len(), 1);
        assert_eq!(compare(native, "a: cuInit(0) = 0\na: cuInit(1) = 1\nb: more = 1\n").unexplained.len(), 1);
    }

    #[test]
    fn only_refused_functions_may_answer_not_supported() {
        assert!(compare("zeros: cuMulticastCreate = 1\n", "zeros: cuMulticastCreate = 801\n").unexplained.is_empty());
        assert_eq!(compare("zeros: cuMemAlloc_v2 = 1\n", "zeros: cuMemAlloc_v2 = 801\n").unexplained.len(), 1);
    }

    #[test]
    fn a_missing_newest_form_is_a_difference() {
        assert!(compare("symbols: f = 2 0 0\n", "symbols: f = 2 1 0\n").unexplained.is_empty());
        assert_eq!(compare("symbols: f = 2 0 0\n", "symbols: f = 2 0 1\n").unexplained.len(), 1);
    }
}
