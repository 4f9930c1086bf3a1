//! Findings of the checks.

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No problem.
    Good,
    /// Works, with a remark.
    Note,
    /// Will not work.
    Bad,
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) subject: &'static str,
    pub(super) verdict: Verdict,
    pub(super) text: String,
}

impl Finding {
    pub(super) fn good(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Good, text: text.into() }
    }

    pub(super) fn note(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Note, text: text.into() }
    }

    pub(super) fn bad(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Bad, text: text.into() }
    }
}
