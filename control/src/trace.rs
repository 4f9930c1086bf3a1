//! The trace of a move, in the format of Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A trace: written to a file as it is, it can be opened in Perfetto.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct Trace {
    /// The events.
    pub trace_events: Vec<TraceEvent>,
    /// How times are shown: in `ms`.
    pub display_time_unit: String,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TraceEvent {
    /// What happened.
    pub name: String,
    /// Its kind: `X` takes time, `i` is a moment, `C` is a figure, `M` names a track.
    pub ph: String,
    /// The group of tracks: 1 for the move, 2 for the program.
    pub pid: u32,
    /// The track: a thread of the program, or a part of the move.
    pub tid: u32,
    /// When it began, in microseconds after the move was requested.
    pub ts: f64,
    /// How long it took, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Details.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, Value>,
}
