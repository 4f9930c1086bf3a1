//! The forms: the quantities that an overhead depends on.
//!
//! Every model is a sum `seconds = Σ coefficient × quantity` with non-negative coefficients, since each is the cost of
//! one thing. The quantity `once` is always 1: the fixed cost.

/// The form of one overhead's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Name of the overhead, in benchmark and model files.
    pub what: &'static str,
    /// Its quantities.
    pub terms: &'static [&'static str],
    /// Description.
    pub meaning: &'static str,
}

/// All forms. The names of forms and quantities are used in files: they are only ever added.
pub const FORMS: &[Form] = &[
    Form { what: "record", terms: &["once", "calls", "bytes"], meaning: "appending records to the journal" },
    Form {
        what: "replay",
        terms: &["once", "records", "chunks", "modules"],
        meaning: "replaying the live records in a new place",
    },
    Form { what: "memsync", terms: &["once", "bytes", "regions"], meaning: "the first copy, while the job works" },
    Form {
        what: "downtime",
        terms: &["once", "held", "sent", "regions"],
        meaning: "from the closing of the gate to its opening",
    },
    Form { what: "prepare", terms: &["once"], meaning: "opening the new place and the connections to it" },
    Form { what: "release", terms: &["once", "bytes", "regions"], meaning: "freeing the old place, after the job goes on" },
    Form { what: "forwarding", terms: FORWARD, meaning: "launches, waits and copies of a job at a server" },
    Form { what: "mhelper", terms: FORWARD, meaning: "the same through the helper process" },
    Form { what: "native", terms: FORWARD, meaning: "the same on the driver itself, or in the job's own process" },
];

/// Launches without a wait for each; waits; bytes copied, by direction and kind of memory. Copies of [`LARGE`] and more have quantities of their own:
/// every place, and the driver too, makes large ones in another way than short ones.
const FORWARD: &[&str] = &[
    "launches",
    "waits",
    "in",
    "out",
    "pinned_in",
    "pinned_out",
    "large_in",
    "large_out",
    "large_pinned_in",
    "large_pinned_out",
];

/// Bytes of a large copy.
pub const LARGE: usize = 16 << 20;

/// The form of an overhead.
pub fn of(what: &str) -> Option<&'static Form> {
    FORMS.iter().find(|f| f.what == what)
}

/// The transport to a place, as used in the names of paths: `tls`, `tcp`, `rdma`, `shm`, `helper` or `in-process`.
pub fn transport(place: &str) -> &'static str {
    let head = place.split(':').next().unwrap_or_default();
    match head {
        "local" => "in-process",
        "helper" => "helper",
        "unix" => "shm",
        "plain" => "tcp",
        "rdma" => "rdma",
        _ => "tls",
    }
}

/// The path of a move between two places.
pub fn way(from: &str, to: &str) -> String {
    format!("{}->{}", transport(from), transport(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, form) in FORMS.iter().enumerate() {
            assert!(FORMS[..i].iter().all(|f| f.what != form.what), "{}", form.what);
            for (j, term) in form.terms.iter().enumerate() {
                assert!(!form.terms[..j].contains(term), "{} {term}", form.what);
            }
        }
    }

    #[test]
    fn ways_follow_from_the_places() {
        assert_eq!(way("gpubox:7878/1", "local:0"), "tls->in-process");
        assert_eq!(way("plain://gpubox:7878/1", "tls://gpubox:7878/0"), "tcp->tls");
        assert_eq!(way("gpubox:7878", "rdma://gpubox:7878/0"), "tls->rdma");
        assert_eq!(way("unix:/run/x/0", "helper:1"), "shm->helper");
        assert_eq!(way("local", "[::1]:5"), "in-process->tls");
    }
}
