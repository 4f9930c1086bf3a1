//! The measured cases of calls, by name, as used between orchestrator and client.
//!
//! A case is a name, for some with an amount: `launches:64` is 64 launches and a wait, `in:4096` a copy of 4096 bytes to the
//! device from pageable memory, `later:4096` eight that are queued before one waits, `pieces:4096` one in pieces of 4096 bytes, `beside:4096` one of 64 KiB while one of 4096 bytes runs, `inside:4096`
//! one from device memory to device memory.

use models::form::LARGE;
use std::fmt;
use std::str::FromStr;

/// One measured case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Case {
    /// Launches as the caller sees them, without a wait.
    Launch,
    /// One launch some time after the last call, as in programs that do other work in between.
    Spaced,
    /// This many launches, and a wait for the last.
    Launches(u32),
    /// A wait on an idle stream.
    Wait,
    /// A synchronous copy to the device.
    In(Memory, usize),
    /// A synchronous copy from the device.
    Out(Memory, usize),
    /// Copies of so many bytes of pinned memory to the device, [`QUEUED`] of them before a wait.
    Later(usize),
    /// A copy of [`WHOLE`] bytes of pageable memory to the device in pieces of this size, by way of a pair of pinned buffers.
    Pieces(usize),
    /// A copy on the device, and a wait.
    Inside(usize),
    /// A copy of 64 KiB to the device, and a wait, while a copy of so many bytes of pinned memory runs in another stream.
    Beside(usize),
    /// An allocation of this size, freed at once.
    Allocate(usize),
    /// A fill of 4 KiB, without a wait.
    Fill,
    /// Recording an event.
    Record,
    /// Recording an event and waiting for it.
    Reach,
    /// Querying an event.
    QueryEvent,
    /// Querying a stream.
    QueryStream,
    /// Creating and destroying an event.
    Event,
    /// Creating and destroying a stream.
    Stream,
    /// Querying free memory.
    MemoryInfo,
    /// Querying a property of the device.
    Attribute,
    /// PyTorch's calls for one operation in eager mode: a launch in the default stream, and many queries of device and
    /// context.
    Operation,
}

/// Up to so many bytes, a copy of pageable memory to the device need not be waited for (CUDA Runtime API, "API synchronization behavior"). At places
/// over a network copies of pinned memory do not wait either.
const EARLY: usize = 64 << 10;
/// Copies that [`Case::Later`] queues.
pub(crate) const QUEUED: u32 = 8;
/// Bytes of the copy of [`Case::Pieces`].
pub(crate) const WHOLE: usize = 32 << 20;

/// Host memory at the other end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Memory {
    Pageable,
    Pinned,
}

use Case::*;
use Memory::*;

/// The cases without an amount.
const PLAIN: [(&str, Case); 13] = [
    ("launch", Launch),
    ("spaced", Spaced),
    ("wait", Wait),
    ("fill", Fill),
    ("record", Record),
    ("reach", Reach),
    ("query-event", QueryEvent),
    ("query-stream", QueryStream),
    ("event", Event),
    ("stream", Stream),
    ("memory-info", MemoryInfo),
    ("attribute", Attribute),
    ("operation", Operation),
];

impl Case {
    /// Number of operations between two clock readings: many for cheap calls, since reading the clock takes some 25 ns.
    pub(crate) fn each(self) -> u32 {
        match self {
            Launch | Fill | Record => 20,
            QueryEvent | QueryStream | Attribute => 50,
            Event | Operation => 10,
            _ => 1,
        }
    }

    /// The divisor that converts the time between two readings into the cost of one operation.
    pub(crate) fn parts(self) -> u64 {
        match self {
            Launches(n) => u64::from(n),
            Later(_) => u64::from(QUEUED),
            other => u64::from(other.each()),
        }
    }

    /// Bytes that it copies.
    pub(crate) fn bytes(self) -> Option<usize> {
        match self {
            In(_, n) | Out(_, n) | Later(n) | Inside(n) | Beside(n) => Some(n),
            Pieces(_) => Some(WHOLE),
            _ => None,
        }
    }

    /// The amounts of model quantities of one operation batch; `None` for what no model covers.
    pub(crate) fn terms(self) -> Option<Vec<(&'static str, f64)>> {
        match self {
            Launches(n) => Some(vec![("launches", f64::from(n)), ("waits", 1.0)]),
            // It may return before the device has the bytes.
            In(_, ..=EARLY) => None,
            In(memory, n) => {
                Some(vec![("waits", 1.0), (bytes_of(["in", "pinned_in", "large_in", "large_pinned_in"], memory, n), n as f64)])
            }
            Out(memory, n) => Some(vec![
                ("waits", 1.0),
                (bytes_of(["out", "pinned_out", "large_out", "large_pinned_out"], memory, n), n as f64),
            ]),
            _ => None,
        }
    }

    /// Description for tables.
    pub(crate) fn words(self) -> String {
        let way = |memory, n, way: &str| {
            let memory = if memory == Pinned { "pinned" } else { "pageable" };
            format!("copy {way} {}, {memory}", size(n))
        };
        match self {
            Launch => "launch, to the caller".into(),
            Spaced => "launch 100 us after a call".into(),
            Launches(1) => "launch and wait".into(),
            Launches(n) => format!("launch, {n} and a wait"),
            Wait => "wait, nothing queued".into(),
            In(memory, n) => way(memory, n, "in"),
            Out(memory, n) => way(memory, n, "out"),
            Later(n) => format!("copy in {}, pinned, {QUEUED} queued", size(n)),
            Pieces(n) => format!("copy in {} in pieces of {}", size(WHOLE), size(n)),
            Inside(n) => format!("copy on the device {}", size(n)),
            Beside(n) => format!("copy in 64 KiB beside {}", size(n)),
            Allocate(n) => format!("allocate and free {}", size(n)),
            Fill => "fill 4 KiB".into(),
            Record => "record event".into(),
            Reach => "record and wait for event".into(),
            QueryEvent => "query event".into(),
            QueryStream => "query stream".into(),
            Event => "make and end event".into(),
            Stream => "make and end stream".into(),
            MemoryInfo => "query free memory".into(),
            Attribute => "query attribute".into(),
            Operation => "operation of PyTorch".into(),
        }
    }
}

/// The quantity of the bytes of a copy, of those of its direction: pageable, pinned, and both for large copies.
fn bytes_of(names: [&'static str; 4], memory: Memory, bytes: usize) -> &'static str {
    names[usize::from(memory == Pinned) + 2 * usize::from(bytes >= LARGE)]
}

/// Bytes with a binary unit.
pub(crate) fn size(n: usize) -> String {
    match n {
        n if n >= 1 << 30 && n % (1 << 30) == 0 => format!("{} GiB", n >> 30),
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Launches(n) => write!(f, "launches:{n}"),
            In(Pageable, n) => write!(f, "in:{n}"),
            In(Pinned, n) => write!(f, "pinned-in:{n}"),
            Out(Pageable, n) => write!(f, "out:{n}"),
            Out(Pinned, n) => write!(f, "pinned-out:{n}"),
            Later(n) => write!(f, "later:{n}"),
            Pieces(n) => write!(f, "pieces:{n}"),
            Inside(n) => write!(f, "inside:{n}"),
            Beside(n) => write!(f, "beside:{n}"),
            Allocate(n) => write!(f, "allocate:{n}"),
            plain => f.write_str(PLAIN.iter().find(|(_, case)| case == plain).map_or("?", |(name, _)| name)),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        let odd = || format!("`{}` is nothing that can be measured", text.escape_debug());
        let Some((name, amount)) = text.split_once(':') else {
            return PLAIN.iter().find(|(name, _)| *name == text).map(|(_, case)| *case).ok_or_else(odd);
        };
        let n: usize = amount.parse().ok().filter(|n| (1..=1 << 34).contains(n)).ok_or_else(odd)?;
        match name {
            "launches" => u32::try_from(n).map(Launches).map_err(|_| odd()),
            "in" => Ok(In(Pageable, n)),
            "pinned-in" => Ok(In(Pinned, n)),
            "out" => Ok(Out(Pageable, n)),
            "pinned-out" => Ok(Out(Pinned, n)),
            "later" => Ok(Later(n)),
            "pieces" if n <= WHOLE => Ok(Pieces(n)),
            "inside" => Ok(Inside(n)),
            "beside" => Ok(Beside(n)),
            "allocate" => Ok(Allocate(n)),
            _ => Err(odd()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let amounts = [
            Launches(64),
            In(Pageable, 4),
            In(Pinned, 5),
            Out(Pageable, 6),
            Out(Pinned, 7),
            Later(10),
            Pieces(11),
            Inside(8),
            Beside(9),
            Allocate(1 << 30),
        ];
        for case in PLAIN.iter().map(|(_, case)| *case).chain(amounts) {
            assert_eq!(case.to_string().parse(), Ok(case));
            assert!(!case.words().contains('?'));
        }
        for bad in ["", "launches", "launches:0", "in:-1", "in:99999999999999", "pieces:99999999", "sleep"] {
            assert!(bad.parse::<Case>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!([size(4), size(65536), size(512 << 20), size(3 << 30)], ["4 B", "64 KiB", "512 MiB", "3 GiB"]);
    }
}
