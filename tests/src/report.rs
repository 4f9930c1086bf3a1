//! The report of a move, as printed by `mrcuda migrate --json` and `mrcuda moves --json`.

use crate::json;
use serde_json::Value;

/// The report of one move.
#[derive(Debug, Clone)]
pub struct Report(pub Value);

impl Report {
    /// Whether the move committed.
    pub fn ok(&self) -> bool {
        self.0.get("ok").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Its id in the job.
    pub fn id(&self) -> &str {
        self.text("id")
    }

    /// Its state: `queued`, `running`, `stopping`, `committed`, `done`, `failed`, `cancelled`.
    pub fn state(&self) -> &str {
        self.text("state")
    }

    /// Why it did not commit.
    pub fn reason(&self) -> &str {
        self.text("reason")
    }

    /// The reason as a code; empty if it committed.
    pub fn code(&self) -> &str {
        self.text("code")
    }

    /// The place that the job left.
    pub fn from(&self) -> &str {
        self.text("from")
    }

    /// The place that the job went to.
    pub fn to(&self) -> &str {
        self.text("to")
    }

    /// The transport to the target.
    pub fn transport(&self) -> &str {
        self.text("transport")
    }

    /// Digest of all that was moved, as the target computed it.
    pub fn digest(&self) -> &str {
        self.text("digest")
    }

    /// Bytes that were live.
    pub fn bytes(&self) -> u64 {
        self.0.get("bytes").and_then(Value::as_u64).unwrap_or(0)
    }

    /// The downtime, in milliseconds.
    pub fn downtime_ms(&self) -> f64 {
        self.0.get("downtime_ms").and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Whether a kernel was still running when calls were blocked.
    pub fn kernel_running(&self) -> bool {
        self.0.get("kernel_running").and_then(Value::as_bool).unwrap_or(false)
    }

    /// How many streams, events, modules, functions and allocations were live.
    pub fn live_objects(&self) -> u64 {
        self.0.get("live_objects").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Whether the move counts as one in the middle of work: it committed, a kernel was unfinished, or the job was parked, ten objects were
    /// live.
    pub fn counts(&self) -> bool {
        let was_parked = self.direction().starts_with("parked");
        self.ok() && (self.kernel_running() || was_parked) && self.live_objects() >= 10
    }

    /// Between what kinds of places it went: `remote` (TCP), `unix` (shared memory), `local`, `helper`, `parked`.
    pub fn direction(&self) -> String {
        let kind = |place: &str| match place.split(':').next() {
            Some("local") => "local",
            Some("helper") => "helper",
            Some("unix") => "unix",
            Some("memory" | "file") => "parked",
            _ => "remote",
        };
        let leg = |key: &str| self.0["legs"][0][key].as_str().map(kind);
        format!("{} -> {}", leg("from").unwrap_or(kind(self.from())), leg("to").unwrap_or(kind(self.to())))
    }

    /// A figure by its path, for example `["phases", "delta"]`; 0 where there is none.
    pub fn number(&self, path: &[&str]) -> f64 {
        json::number(&self.0, path)
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or("")
    }
}
