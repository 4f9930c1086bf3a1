//! Reason codes for programs: why a request was refused or a move failed (docs/scheduler.md, "Codes").

use serde::{Deserialize, Serialize};

/// Why a request was refused, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Not JSON, or a field is missing, unknown or of the wrong type.
    BadRequest,
    /// The protocol version differs.
    Version,
    /// Unknown request.
    UnknownOp,
    /// The line is too long, or was not complete in time.
    TooLong,
    /// Too many connections.
    TooMany,
    /// The request comes from another user.
    Forbidden,
    /// The job has no GPU.
    NoGpu,
    /// The text is not a valid place.
    BadPlace,
    /// The program has no GPU with this number.
    NoSuchGpu,
    /// A move is under way.
    Busy,
    /// The id is in use.
    DuplicateId,
    /// No move has that id, or none is under way.
    NoSuchMove,
    /// The move has been committed or has ended.
    TooLate,
    /// A code of a later version.
    #[serde(other)]
    Other,
}

macro_rules! codes {
    ($($(#[$about:meta])+ $name:ident = $text:literal,)+) => {
        /// A reason as a code for programs. Codes never change, while the texts may.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum ReasonCode {
            $($(#[$about])+ $name,)+
            /// A code of a later version, treated as any other failure.
            Unknown(String),
        }

        impl ReasonCode {
            /// All codes of this version.
            pub const ALL: &[ReasonCode] = &[$(ReasonCode::$name,)+];

            /// The code's text on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(ReasonCode::$name => $text,)+
                    ReasonCode::Unknown(text) => text,
                }
            }
        }

        impl From<String> for ReasonCode {
            fn from(text: String) -> ReasonCode {
                match text.as_str() {
                    $($text => ReasonCode::$name,)+
                    _ => ReasonCode::Unknown(text),
                }
            }
        }
    };
}

codes! {
    // Refused requests.
    /// Not JSON, or a field is missing, unknown or of the wrong type.
    BadRequest = "bad-request",
    /// The protocol version differs.
    Version = "version",
    /// Unknown request.
    UnknownOp = "unknown-op",
    /// The request is too long, or was not complete in time.
    TooLong = "too-long",
    /// Too many connections.
    TooMany = "too-many",
    /// The request comes from another user.
    Forbidden = "forbidden",
    /// The job has no GPU.
    NoGpu = "no-gpu",
    /// The text is not a valid place.
    BadPlace = "bad-place",
    /// The number of places does not match the number of GPUs that would move.
    PlaceCount = "place-count",
    /// The program has no GPU with this number.
    NoSuchGpu = "no-such-gpu",
    /// A move is running or queued.
    Busy = "busy",
    /// Too many moves are queued.
    QueueFull = "queue-full",
    /// The job already has a move with this id.
    DuplicateId = "duplicate-id",
    /// No move has that id, or none is running or queued.
    NoSuchMove = "no-such-move",
    /// The move has been committed or has ended.
    TooLate = "too-late",
    /// The program is ending.
    JobEnded = "job-ended",
    /// No job listens for that process.
    NoJob = "no-job",
    /// Several children of the process are jobs.
    SeveralJobs = "several-jobs",
    /// The job does not respond, or its response is not understood.
    NoAnswer = "no-answer",

    // Abandoned moves.
    /// Someone cancelled the move.
    Cancelled = "cancelled",
    /// The move was not committed by its deadline.
    DeadlineExceeded = "deadline-exceeded",
    /// Calls were blocked for longer than the limit.
    DowntimeExceeded = "downtime-exceeded",

    // Blockers in the job.
    /// The job is already at this place.
    AlreadyThere = "already-there",
    /// A job that is not parked cannot be resumed.
    NotParked = "not-parked",
    /// A job is parked, and resumed, with all its GPUs.
    ParkedTogether = "parked-together",
    /// The file of a parked job is damaged, or cannot be read.
    ParkedFile = "parked-file",
    /// The context has failed.
    ContextFailed = "context-failed",
    /// Memory or events are shared with other processes.
    SharedWithProcesses = "shared-with-processes",
    /// GPUs that use each other's memory would be separated.
    PeerAccess = "peer-access",
    /// A texture object refers to memory that has been freed.
    TextureMemoryFreed = "texture-memory-freed",
    /// The GPU or a thread of the program did not become idle.
    NotIdle = "not-idle",
    /// The system refuses membarrier.
    NoMembarrier = "no-membarrier",
    /// The job has no journal.
    NoJournal = "no-journal",
    /// A part of the journal could not be written, or is damaged.
    JournalIncomplete = "journal-incomplete",
    /// An internal error occurred in the job.
    InternalError = "internal-error",

    // Problems with the target.
    /// No connection to the target.
    TargetUnreachable = "target-unreachable",
    /// The server of the target refuses the job.
    TargetRefused = "target-refused",
    /// The job has no usable token for the target.
    NoToken = "no-token",
    /// A place on the job's machine cannot be opened.
    PlaceUnusable = "place-unusable",
    /// The target's driver is for another version of CUDA.
    DriverVersion = "driver-version",
    /// The target's driver is a different build.
    DriverBuild = "driver-build",
    /// The target has another compute capability.
    ComputeCapability = "compute-capability",
    /// The target's GPU differs in an attribute that the job relies on.
    GpuAttribute = "gpu-attribute",
    /// The target is a different GPU model.
    GpuModel = "gpu-model",
    /// Where differences are allowed: the job has code that does not run on the target.
    NoCode = "no-code",
    /// Where differences are allowed: a cooperative launch that the job has made does not fit the target.
    NotResident = "not-resident",
    /// Where differences are allowed: it cannot be shown that the job goes on as it would at its place.
    NotShown = "not-shown",
    /// The target has too little free memory.
    NoMemory = "no-memory",
    /// The target cannot map the job's host memory.
    HostMemory = "host-memory",
    /// The targets cannot use each other's memory.
    TargetPeerAccess = "target-peer-access",
    /// Source and target do not have the same memory at the same addresses.
    LayoutDiffers = "layout-differs",
    /// The target answered a call of the journal differently.
    ReplayDiverged = "replay-diverged",

    // Failures during the move.
    /// Source and target cannot connect to each other.
    NotConnected = "not-connected",
    /// A place was lost.
    PlaceLost = "place-lost",
    /// A place refused a request.
    PlaceRefused = "place-refused",
    /// A place's answer is malformed.
    BadAnswer = "bad-answer",
    /// A place did not answer within the time limit.
    PlaceSilent = "place-silent",
    /// A call at a place failed.
    CallFailed = "call-failed",
    /// Memory could not be copied.
    CopyFailed = "copy-failed",
    /// Copying took too long.
    CopyTooSlow = "copy-too-slow",
    /// The copy is not identical.
    NotIdentical = "not-identical",
    /// A system call failed.
    SystemError = "system-error",
}

/// A text: later versions have more codes.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for ReasonCode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReasonCode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let known: Vec<&str> = ReasonCode::ALL.iter().map(ReasonCode::as_str).collect();
        schemars::json_schema!({
            "description": "A reason as a code for programs. Later versions have more of them.",
            "type": "string",
            "examples": known,
        })
    }
}

impl From<ReasonCode> for String {
    fn from(code: ReasonCode) -> String {
        match code {
            ReasonCode::Unknown(text) => text,
            code => code.as_str().to_owned(),
        }
    }
}

impl std::fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ReasonCode {
    /// The `error` of a request that is refused with this reason.
    pub fn error(&self) -> ErrorCode {
        match self {
            ReasonCode::BadRequest => ErrorCode::BadRequest,
            ReasonCode::Version => ErrorCode::Version,
            ReasonCode::UnknownOp => ErrorCode::UnknownOp,
            ReasonCode::TooLong => ErrorCode::TooLong,
            ReasonCode::TooMany => ErrorCode::TooMany,
            ReasonCode::Forbidden => ErrorCode::Forbidden,
            ReasonCode::NoGpu => ErrorCode::NoGpu,
            ReasonCode::BadPlace | ReasonCode::PlaceCount => ErrorCode::BadPlace,
            ReasonCode::NoSuchGpu => ErrorCode::NoSuchGpu,
            ReasonCode::Busy | ReasonCode::QueueFull => ErrorCode::Busy,
            ReasonCode::DuplicateId => ErrorCode::DuplicateId,
            ReasonCode::NoSuchMove => ErrorCode::NoSuchMove,
            ReasonCode::TooLate | ReasonCode::JobEnded => ErrorCode::TooLate,
            _ => ErrorCode::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The codes in the first column of the table under "Codes" in docs/scheduler.md.
    fn documented() -> Vec<String> {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scheduler.md")).unwrap();
        let section = text.lines().skip_while(|line| *line != "## Codes").skip(1).take_while(|line| !line.starts_with("## "));
        section.filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
    }

    #[test]
    fn codes_are_distinct_and_the_documentation_lists_exactly_them() {
        let ours: BTreeSet<&str> = ReasonCode::ALL.iter().map(ReasonCode::as_str).collect();
        assert_eq!(ours.len(), ReasonCode::ALL.len());
        let kebab = |code: &str| code.split('-').all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase()));
        assert!(ours.iter().all(|code| kebab(code)));
        let documented = documented();
        let listed: BTreeSet<&str> = documented.iter().map(String::as_str).collect();
        assert_eq!((listed.len(), &listed), (documented.len(), &ours));
    }

    #[test]
    fn every_code_has_a_symptom() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/troubleshooting.md")).unwrap();
        let missing: Vec<_> = ReasonCode::ALL.iter().filter(|code| !page.contains(&format!("`{code}`"))).collect();
        assert!(missing.is_empty(), "docs/troubleshooting.md lacks {missing:?}");
    }

    #[test]
    fn codes_of_later_versions_are_kept_as_they_are() {
        for code in ReasonCode::ALL {
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(&serde_json::from_str::<ReasonCode>(&text).unwrap(), code);
        }
        let later: ReasonCode = serde_json::from_str("\"moon-phase\"").unwrap();
        assert_eq!((&later, later.as_str()), (&ReasonCode::Unknown("moon-phase".to_owned()), "moon-phase"));
        assert_eq!(serde_json::to_string(&later).unwrap(), "\"moon-phase\"");
    }
}
