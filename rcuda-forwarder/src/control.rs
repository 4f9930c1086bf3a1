//! Requests that concern a place as a whole; they are answered while calls continue (docs/formats.md, "Control").

use crate::carried::Carried;
use rkyv::ser::allocator::Arena;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize, rancor};
use std::time::Duration;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum Control {
    /// Free memory of the GPU.
    FreeBytes {
        /// Bytes that others are about to take there.
        beside: u64,
    },
    /// The regions that memsync compares and copies.
    Regions,
    /// Expect connections with this ticket; the server accepts this number, once.
    Expect {
        /// The ticket, a secret.
        ticket: [u8; 32],
        /// Number of connections.
        stripes: u32,
    },
    /// Connect to the place that expects this ticket.
    Connect {
        /// The target's server, in the syntax of [`crate::Endpoint`].
        to: String,
        /// The ticket, a secret.
        ticket: [u8; 32],
        /// Number of connections.
        stripes: u32,
    },
    /// Wait until all expected connections have arrived.
    Accept {
        /// Their ticket.
        ticket: [u8; 32],
    },
    /// Be the source of one round of copying.
    RoundSource {
        /// Ticket of the connections to use.
        ticket: [u8; 32],
        /// Whether to send the target all regions: it is a store, which has none of its own.
        send_regions: bool,
    },
    /// Be the target of one round of copying.
    RoundTarget {
        /// Ticket of the connections to use.
        ticket: [u8; 32],
        /// How to prove that the copy is identical.
        verify: memsync::Verify,
        /// Whether to copy from the source's memory through descriptors where possible.
        by_descriptor: bool,
    },
    /// How many bytes rounds have copied to this place so far, also in the one under way.
    Moved,
    /// Offer the physical memory of all chunks to a place of the same GPU.
    ShowMemory,
    /// Whether the memory that a place of the same GPU offers could be adopted.
    CouldAdopt {
        /// Where it is offered.
        offer: [u8; 32],
        /// The chunks: address, bytes, number of the memory.
        chunks: Vec<[u64; 3]>,
    },
    /// Adopt the memory that a place of the same GPU offers, where chunks are mapped from now on.
    AdoptFrom {
        /// Where it is offered.
        offer: [u8; 32],
        /// The chunks: address, bytes, number of the memory.
        chunks: Vec<[u64; 3]>,
    },
    /// Wait until the GPU is idle.
    Drain {
        /// Maximum wait in milliseconds.
        limit_ms: u32,
    },
    /// Use the connections of this ticket, all of which have arrived, for the bytes of large copies between place and job.
    Bulk {
        /// Their ticket.
        ticket: [u8; 32],
        /// For copies to the device, not for those to the host.
        to_device: bool,
        /// The job has sent a file on the first of them, in which the regions of staging areas are to lie.
        shared: bool,
    },
    /// Have at least this many staging areas for large copies.
    Areas {
        /// Their number.
        at_least: u32,
    },
    /// Send what a copy between GPUs of the job reads. The connections stay open for the next copy.
    PeerOut {
        /// Ticket of the connections to use.
        ticket: [u8; 32],
        /// Number of the copy on them.
        number: u64,
        /// What is read.
        parts: Vec<memsync::Part>,
    },
    /// Receive what such a copy writes; answered when it is written.
    PeerIn {
        /// Ticket of the connections to use.
        ticket: [u8; 32],
        /// Number of the copy on them.
        number: u64,
        /// What is written.
        parts: Vec<memsync::Part>,
    },
    /// Close the connections of this ticket, which are those of copies between GPUs of the job. Rounds are not affected.
    EndLink {
        /// Their ticket.
        ticket: [u8; 32],
    },
    /// Report to the server that the job stays here although it was asked to move away.
    Stay {
        /// The number of the server's request; `None`: the server is about to end.
        request: Option<u64>,
        /// The reason.
        why: String,
    },
    /// What the GPU measures.
    Readings,
    /// Close the connections of this ticket.
    HangUp {
        /// Their ticket.
        ticket: [u8; 32],
    },
}

/// Timeout for the answer of a worker without other work, which may be waiting for its driver or for CPU time.
const PROMPT: Duration = Duration::from_secs(120);

impl Control {
    /// Timeout of the answer, if it does not depend on the amount of data. The worker's own limits are shorter.
    pub(crate) fn limit(&self) -> Option<Duration> {
        match self {
            Control::RoundSource { .. } | Control::RoundTarget { .. } | Control::PeerOut { .. } | Control::PeerIn { .. } => None,
            Control::Drain { limit_ms } => Some(PROMPT + Duration::from_millis((*limit_ms).into())),
            _ => Some(PROMPT),
        }
    }
}

/// A global variable of a loaded module.
#[derive(Debug, Clone, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct GlobalInfo {
    /// Handle of the module or library.
    pub module: u64,
    /// Its name in the image.
    pub name: String,
    /// Its address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Archive, Serialize, Deserialize)]
pub enum ControlReply {
    /// Free bytes of the GPU.
    FreeBytes(u64),
    /// The regions that memsync compares and copies.
    Regions {
        /// Globals of all live modules, in load order.
        globals: Vec<GlobalInfo>,
        /// Address and bytes of the device heap, if a live module uses it.
        heap: Option<(u64, u64)>,
        /// Address and bytes of each mapped chunk, sorted.
        chunks: Vec<(u64, u64)>,
    },
    /// The memory of all chunks is offered.
    Shown {
        /// Where.
        offer: [u8; 32],
        /// The chunks: address, bytes, number of the memory.
        chunks: Vec<[u64; 3]>,
    },
    /// Rounds have copied so many bytes.
    Moved(u64),
    /// So many bytes could be adopted.
    Adoptable(u64),
    /// Success.
    Ok,
    /// All connections are there; how their bytes travel.
    Connected(Carried),
    /// The round has ended.
    Round(memsync::Round),
    /// The result of waiting for the GPU.
    Drained {
        /// All work has completed.
        idle: bool,
        /// Work was still running when the request arrived.
        was_busy: bool,
        /// What the GPU waits for, if it is not idle.
        waits_for: String,
        /// The job's handle of a stream that may run a kernel; that of the legacy stream is 1.
        runs: Option<u64>,
    },
    /// What the GPU measures: [`cuda_api::board::Readings`].
    Readings(Vec<(u32, u32)>),
    /// The request was refused. [`crate::Link::control`] returns this as an error.
    Refused(Refused),
}

/// Why a place refused a control request.
#[derive(Debug, Clone, PartialEq, Eq, Archive, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    /// A round has failed because the other end failed; that end knows the reason.
    #[error("{0}")]
    OtherEnd(String),
    /// The connections of a round have been closed, or were never expected.
    #[error("this ticket is not known here")]
    UnknownTicket,
    /// The target's bytes differ from the source's.
    #[error("{0}")]
    NotIdentical(String),
    /// The two ends of a round do not have memory at the same addresses.
    #[error("{0}")]
    OtherMemory(String),
    /// This place cannot connect to the other one.
    #[error("{0}")]
    Unreachable(String),
    /// A file of a store does not hold what was written, or cannot be read.
    #[error("{0}")]
    Damaged(String),
    /// The driver has returned an error.
    #[error("the driver refused: {}", driver_text(*.0))]
    Driver(i32),
    /// Any other reason, as text.
    #[error("{0}")]
    Other(String),
}

fn driver_text(code: i32) -> &'static str {
    cuda_api::code::describe(code).map_or("an unknown error", |d| d.1.trim_end_matches('\0'))
}

impl Refused {
    /// Whether this only reflects a failure of the other end of a round.
    pub fn is_of_the_other_end(&self) -> bool {
        matches!(self, Refused::OtherEnd(_) | Refused::UnknownTicket)
    }
}

impl From<memsync::SyncError> for Refused {
    fn from(e: memsync::SyncError) -> Refused {
        use memsync::SyncError as E;
        let text = e.to_string();
        match e {
            E::Io { .. } | E::Peer(_) => Refused::OtherEnd(text),
            E::Digest { .. } | E::Bytes { .. } => Refused::NotIdentical(text),
            E::Regions(_) | E::TooManyPages { .. } => Refused::OtherMemory(text),
            E::Damaged { .. } | E::File { what: "read" | "open", .. } => Refused::Damaged(text),
            E::Gpu { .. } | E::File { .. } | E::Full { .. } | E::Scarce | E::Protocol(_) => Refused::Other(text),
            E::Thread(_) | E::Decompressor(_) | E::NoConnection => Refused::Other(text),
        }
    }
}

macro_rules! encoded {
    ($t:ty) => {
        impl $t {
            /// Encodes the value.
            pub(crate) fn encode(&self) -> Result<AlignedVec, rancor::Error> {
                // Not `rkyv::to_bytes`: its scratch memory is a thread-local object, which panics in exit handlers of the process.
                let mut scratch = Arena::new();
                rkyv::api::high::to_bytes_in_with_alloc::<_, _, rancor::Error>(self, AlignedVec::new(), scratch.acquire())
            }

            /// Decodes the value: the bytes are copied, checked, then used.
            pub(crate) fn decode(bytes: &[u8]) -> Result<Self, rancor::Error> {
                let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
                aligned.extend_from_slice(bytes);
                rkyv::from_bytes::<Self, rancor::Error>(&aligned)
            }
        }
    };
}
encoded!(Control);
encoded!(ControlReply);

impl ControlReply {
    /// As [`ControlReply::decode`], for bytes that nobody else can change: they are copied only if they do not lie as they must.
    pub(crate) fn of_answer(bytes: &[u8]) -> Result<ControlReply, rancor::Error> {
        let is_aligned = bytes.as_ptr().align_offset(AlignedVec::<16>::ALIGNMENT) == 0;
        if is_aligned { rkyv::from_bytes(bytes) } else { ControlReply::decode(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies() -> Vec<ControlReply> {
        let global = GlobalInfo { module: 1, name: "counter".into(), address: 2, bytes: 3 };
        let round = memsync::Round {
            regions: 1,
            bytes_total: 2,
            bytes_sent: 3,
            bytes_carried: 2,
            bytes_fetched: 1,
            bytes_adopted: 6,
            handed_over: true,
            not_in_view: "the other place is of another machine".into(),
            pages_hashed: 4,
            hash_ms: 0.5,
            copy_ms: 1.5,
            digest: [7; 32],
            seal: [8; 32],
        };
        vec![
            ControlReply::Ok,
            ControlReply::Connected([Carried::RDMA, Carried::TLS].into_iter().collect()),
            ControlReply::Round(round),
            ControlReply::Regions { globals: vec![global; 3], heap: Some((4, 5)), chunks: vec![(6, 7), (8, 9)] },
            ControlReply::Refused(Refused::Other("a long enough reason, which does not lie inline".into())),
        ]
    }

    #[test]
    fn read_as_written_at_any_alignment() {
        let c = Control::Connect { to: "[::1]:7878/3".into(), ticket: [9; 32], stripes: 4 };
        let bytes = [&[0u8][..], &c.encode().unwrap()].concat();
        assert_eq!(Control::decode(&bytes[1..]).unwrap(), c);
        for r in replies() {
            let bytes = r.encode().unwrap();
            assert_eq!(ControlReply::decode(&bytes).unwrap(), r);
            // The first lie as they must, the others behind a byte.
            let mut shifted = AlignedVec::<16>::new();
            shifted.push(0);
            shifted.extend_from_slice(&bytes);
            assert_eq!([&bytes[..], &shifted[1..]].map(|bytes| ControlReply::of_answer(bytes).unwrap()), [r.clone(), r]);
        }
    }

    #[test]
    fn damage_gives_errors_or_other_values_but_no_more() {
        for r in replies() {
            let bytes = r.encode().unwrap();
            for n in 0..bytes.len() {
                // Truncated input: the root is located from the end, so any result but a crash is correct.
                let _ = ControlReply::decode(&bytes[..n]);
                for bit in 0..8 {
                    let mut b = bytes.clone();
                    b[n] ^= 1 << bit;
                    let _ = ControlReply::decode(&b);
                }
            }
        }
        assert!(ControlReply::decode(&[]).is_err());
        assert!(ControlReply::decode(&[0xff; 64]).is_err());
    }
}
