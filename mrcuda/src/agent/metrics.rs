//! What an agent tells Prometheus (docs/agent.md, "Metrics").

use super::carry::{Outcome, word};
use crate::failure::Failure;
use crate::jobs::State;
use agent::Decision;
use cuda_api::clock::unix_ms;
use rcuda_forwarder::{Exposition, Family, Histogram, MetricsServer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BUILD: Family = ("mrcuda_agent_build_info", "gauge", "The program, by version and commit; always 1.");
const START: Family = ("mrcuda_agent_start_time_seconds", "gauge", "When the agent started, in seconds since 1970.");
const LOOK: Family = ("mrcuda_agent_last_look_time_seconds", "gauge", "When the agent has looked last, in seconds since 1970.");
const SERVER: Family =
    ("mrcuda_agent_server_up", "gauge", "1 if the server has answered the last time it was asked, otherwise 0.");
const JOBS: Family = ("mrcuda_agent_jobs", "gauge", "Jobs that the agent sees, by what they do.");
const DECISIONS: Family =
    ("mrcuda_agent_decisions_total", "counter", "Decisions that were carried out, by the policy and by what was to be done.");
const PENDING: Family = ("mrcuda_agent_moves_pending", "gauge", "Decisions that are being carried out.");
const MOVES: Family =
    ("mrcuda_agent_moves_total", "counter", "Moves that have ended, by the policy, by what was to be done, and how.");
const DURATION: Family =
    ("mrcuda_agent_move_duration_seconds", "histogram", "Time from the start to the end of moves that have succeeded.");
const DOWNTIME: Family =
    ("mrcuda_agent_move_downtime_seconds", "histogram", "How long calls were blocked by moves that have succeeded.");

/// Upper bounds of the histograms, in seconds. Calls of a job that was parked are not blocked by its move alone, so its downtime is not here.
const DURATIONS: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];
const DOWNTIMES: [f64; 12] = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// How a move has ended: the job is where it was to go, the move has failed or was abandoned, or none was begun because it could not succeed.
const ENDS: [&str; 3] = ["done", "failed", "not_begun"];

/// What a decision is about.
type Kind = (&'static str, &'static str);

#[derive(Debug)]
struct Seen {
    since_unix_ms: u64,
    looked_unix_ms: u64,
    servers: BTreeMap<String, bool>,
    jobs: BTreeMap<&'static str, usize>,
    decisions: BTreeMap<Kind, u64>,
    pending: u64,
    moves: BTreeMap<(Kind, &'static str), u64>,
    duration: Histogram,
    downtime: Histogram,
}

/// Counts what an agent does; clones count together.
#[derive(Debug, Clone)]
pub(super) struct Metrics(Arc<Mutex<Seen>>);

impl Metrics {
    pub(super) fn new() -> Metrics {
        Metrics(Arc::new(Mutex::new(Seen {
            since_unix_ms: unix_ms(),
            looked_unix_ms: 0,
            servers: BTreeMap::new(),
            jobs: BTreeMap::new(),
            decisions: BTreeMap::new(),
            pending: 0,
            moves: BTreeMap::new(),
            duration: Histogram::new(&DURATIONS),
            downtime: Histogram::new(&DOWNTIMES),
        })))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Numbers are complete after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves them until what this returns is dropped.
    pub(super) fn serve(&self, at: SocketAddr) -> Result<MetricsServer, Failure> {
        let theirs = self.clone();
        MetricsServer::start(at, move || theirs.describe()).map_err(Failure::new)
    }

    /// The agent has asked all servers and jobs.
    pub(super) fn looked(&self, servers: impl Iterator<Item = (String, bool)>, jobs: impl Iterator<Item = State>) {
        let mut seen = self.seen();
        seen.looked_unix_ms = unix_ms();
        seen.servers = servers.collect();
        seen.jobs.clear();
        jobs.for_each(|state| *seen.jobs.entry(state.word()).or_default() += 1);
    }

    /// A decision is carried out.
    pub(super) fn begins(&self, decision: &Decision) {
        let mut seen = self.seen();
        *seen.decisions.entry((decision.policy, word(&decision.action))).or_default() += 1;
        seen.pending += 1;
    }

    /// A move has ended.
    pub(super) fn ended(&self, outcome: &Outcome) {
        let mut seen = self.seen();
        seen.pending = seen.pending.saturating_sub(1);
        let how = match (outcome.ok, &outcome.id) {
            (true, _) => "done",
            (false, Some(_)) => "failed",
            (false, None) => "not_begun",
        };
        *seen.moves.entry(((outcome.policy, outcome.action), how)).or_default() += 1;
        if outcome.ok {
            outcome.total_ms.into_iter().for_each(|ms| seen.duration.add(ms / 1e3));
            outcome.downtime_ms.filter(|_| outcome.action == "move").into_iter().for_each(|ms| seen.downtime.add(ms / 1e3));
        }
    }

    /// All of it now.
    fn describe(&self) -> String {
        let seen = self.seen();
        let mut text = Exposition::default();
        let version = [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("MRCUDA_COMMIT"))];
        text.family(BUILD).sample(&version, 1);
        text.family(START).sample(&[], seen.since_unix_ms as f64 / 1e3);
        text.family(LOOK).sample(&[], seen.looked_unix_ms as f64 / 1e3);
        text.family(SERVER);
        seen.servers.iter().for_each(|(server, up)| text.sample(&[("server", server)], u8::from(*up)));
        text.family(JOBS);
        for state in State::ALL.map(State::word) {
            text.sample(&[("state", state)], seen.jobs.get(state).copied().unwrap_or(0));
        }
        text.family(DECISIONS);
        seen.decisions.iter().for_each(|((policy, action), n)| text.sample(&[("policy", policy), ("action", action)], n));
        text.family(PENDING).sample(&[], seen.pending);
        text.family(MOVES);
        for (policy, action) in seen.decisions.keys() {
            for how in ENDS {
                let n = seen.moves.get(&((*policy, *action), how)).copied().unwrap_or(0);
                text.sample(&[("policy", policy), ("action", action), ("outcome", how)], n);
            }
        }
        text.family(DURATION).histogram(&[], &seen.duration);
        text.family(DOWNTIME).histogram(&[], &seen.downtime);
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::Action;
    use std::collections::BTreeSet;

    const ALL: [Family; 10] = [BUILD, START, LOOK, SERVER, JOBS, DECISIONS, PENDING, MOVES, DURATION, DOWNTIME];

    fn decision(policy: &'static str, action: Action) -> Decision {
        Decision { pid: 7, name: "train".into(), policy, action, why: String::new() }
    }

    #[test]
    fn decisions_and_moves_are_counted_by_policy_and_outcome() {
        let metrics = Metrics::new();
        let [home, yields] = [decision("home", Action::Move("a:1/0".into())), decision("yield", Action::Park)];
        [&home, &home, &home, &yields].into_iter().for_each(|d| metrics.begins(d));
        let failed = Outcome::failed(&home, "no".into());
        let (id, total_ms, downtime_ms) = (Some("m1".to_owned()), Some(300.0), Some(20.0));
        metrics.ended(&failed);
        metrics.ended(&Outcome { id: id.clone(), ..failed.clone() });
        metrics.ended(&Outcome { ok: true, id: id.clone(), total_ms, downtime_ms, ..failed });
        metrics.ended(&Outcome { ok: true, id, total_ms, downtime_ms, ..Outcome::failed(&yields, String::new()) });
        metrics.looked(
            [("a:1".to_owned(), true), ("b:1".to_owned(), false)].into_iter(),
            [State::Running, State::Running].into_iter(),
        );
        let text = metrics.describe();
        for line in [
            "mrcuda_agent_decisions_total{policy=\"home\",action=\"move\"} 3",
            "mrcuda_agent_moves_pending 0",
            "mrcuda_agent_moves_total{policy=\"home\",action=\"move\",outcome=\"done\"} 1",
            "mrcuda_agent_moves_total{policy=\"home\",action=\"move\",outcome=\"failed\"} 1",
            "mrcuda_agent_moves_total{policy=\"home\",action=\"move\",outcome=\"not_begun\"} 1",
            "mrcuda_agent_moves_total{policy=\"yield\",action=\"park\",outcome=\"done\"} 1",
            "mrcuda_agent_move_duration_seconds_bucket{le=\"0.25\"} 0",
            "mrcuda_agent_move_duration_seconds_bucket{le=\"0.5\"} 2",
            "mrcuda_agent_move_downtime_seconds_count 1",
            "mrcuda_agent_server_up{server=\"a:1\"} 1",
            "mrcuda_agent_server_up{server=\"b:1\"} 0",
            "mrcuda_agent_jobs{state=\"running\"} 2",
            "mrcuda_agent_jobs{state=\"not_answering\"} 0",
        ] {
            assert!(text.lines().any(|said| said == line), "`{line}` is missing in {text}");
        }
    }

    /// The words of a text that name metrics of an agent, without the endings that a histogram has.
    fn names(text: &str) -> BTreeSet<String> {
        let words =
            text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.starts_with("mrcuda_agent_"));
        let base =
            |word: &str| ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned();
        words.map(base).collect()
    }

    #[test]
    fn the_page_and_the_dashboard_name_what_is_exported() {
        let page = include_str!("../../../docs/agent.md");
        for (name, kind, help) in ALL {
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(help.ends_with('.') && page.contains(&format!("`{name}`")), "docs/agent.md does not describe `{name}`");
        }
        let dashboard = include_str!("../../../docs/grafana/mrcuda-agent.json");
        let whole: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
        assert!(names(dashboard).len() >= 8, "{:?}", names(dashboard));
        for name in names(page).into_iter().chain(names(dashboard)) {
            assert!(ALL.iter().any(|(known, ..)| *known == name), "{name} is not exported");
        }
        let panels = whole["panels"].as_array().expect("panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert!(ids.len() == panels.len() && panels.iter().all(|panel| panel["gridPos"].is_object()));
    }
}
