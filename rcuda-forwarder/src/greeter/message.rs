//! What the daemon and the process that greets for it say to each other, as packets (docs/formats.md, "Greeter").

use crate::greet::{GreetError, Heard};
use crate::handshake::{Authority, ShownCertificate, TranscriptHash};
use crate::packet::{self, Packet};
use crate::records::Session;
use crate::sandbox::GreeterConfinement;
use cuda_api::wire::{Short, Wire};
use cuda_api::{wire_enum, wire_struct};
use nix::sys::socket::MsgFlags;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use zeroize::Zeroizing;

/// Maximum length of a reason, in characters: it is written to the log and sent to the client.
const LONGEST_REASON: usize = 300;
/// Length of what a message has besides its texts, at the most.
const BESIDE_TEXT: usize = 512;

wire_struct! {
    /// How the process is to begin.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct StartGreeter {
        /// What it shows clients over TCP.
        pub(crate) certificate: Option<ShownCertificate>,
        /// Clients are asked for a certificate of the authorities that were sent before.
        pub(crate) certified_only: bool,
        /// What it confines itself to.
        pub(crate) confinement: GreeterConfinement,
    }
}

wire_struct! {
    /// How a client is to be greeted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Terms {
        /// What it is offered.
        pub(crate) offer: u8,
        /// The server's nonce.
        pub(crate) nonce: [u8; 32],
        /// How long it may take.
        pub(crate) limit_ms: u64,
    }
}

/// What the daemon says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToGreeter {
    /// An authority that certifies clients.
    Authority(Authority),
    /// Begin.
    Start(StartGreeter),
    /// Greet the client whose connection comes with it; the second descriptor is for the answers about it.
    Greet(Terms),
    /// Greet nobody else, and end when those who came before have been greeted: another process has taken its place.
    Finish,
    /// With the answers about a client: the signature of its handshake, or why there is none.
    Signed(Result<Vec<u8>, String>),
}

wire_enum! {
    /// Why nothing was heard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum NotHeardKind {
        Garbage = 0,
        OtherBuild = 1,
        PlainRefused = 2,
        UnknownTicket = 3,
        TooSlow = 4,
        Tls = 5,
        Io = 6,
    }
}

wire_struct! {
    /// The same with its words.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct NotHeard {
        kind: NotHeardKind,
        why: String,
    }
}

impl NotHeard {
    pub(crate) fn of(why: &GreetError) -> NotHeard {
        let (kind, why) = match why {
            GreetError::Garbage => (NotHeardKind::Garbage, String::new()),
            GreetError::OtherBuild => (NotHeardKind::OtherBuild, String::new()),
            GreetError::PlainRefused => (NotHeardKind::PlainRefused, String::new()),
            GreetError::UnknownTicket => (NotHeardKind::UnknownTicket, String::new()),
            GreetError::TooSlow => (NotHeardKind::TooSlow, String::new()),
            GreetError::Tls(why) => (NotHeardKind::Tls, why.clone()),
            GreetError::Io(e) => (NotHeardKind::Io, e.to_string()),
            other => (NotHeardKind::Io, other.to_string()),
        };
        NotHeard { kind, why }
    }

    /// The error for the client and the log. The process that has sent this may have been taken over.
    pub(crate) fn error(self) -> GreetError {
        let why = || self.why.chars().take(LONGEST_REASON).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
        match self.kind {
            NotHeardKind::Garbage => GreetError::Garbage,
            NotHeardKind::OtherBuild => GreetError::OtherBuild,
            NotHeardKind::PlainRefused => GreetError::PlainRefused,
            NotHeardKind::UnknownTicket => GreetError::UnknownTicket,
            NotHeardKind::TooSlow => GreetError::TooSlow,
            NotHeardKind::Tls => GreetError::Tls(why()),
            NotHeardKind::Io => GreetError::Io(io::Error::other(why())),
        }
    }
}

/// What the process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromGreeter {
    /// It is confined, and greets from now on.
    Ready,
    /// It ends, for this reason.
    Unusable(String),
    /// About a client: its handshake is to be signed by this scheme.
    Sign(u16, TranscriptHash),
    /// What it has said, and how the connection is protected. The last message about it.
    Heard(Heard, Option<Session>),
    /// Why it could not be heard, and how it can be told. The last message about it.
    NotHeard(NotHeard, Option<Session>),
}

impl ToGreeter {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            ToGreeter::Authority(one) => (1u8, one.clone()).put(&mut out),
            ToGreeter::Start(start) => (2u8, start.clone()).put(&mut out),
            ToGreeter::Greet(terms) => (3u8, terms.clone()).put(&mut out),
            ToGreeter::Signed(Ok(signature)) => (4u8, signature.clone()).put(&mut out),
            ToGreeter::Signed(Err(why)) => (5u8, why.clone()).put(&mut out),
            ToGreeter::Finish => 6u8.put(&mut out),
        }
        out
    }

    fn read(mut bytes: &[u8]) -> Result<ToGreeter, Short> {
        let src = &mut bytes;
        let message = match u8::get(src)? {
            1 => ToGreeter::Authority(Wire::get(src)?),
            2 => ToGreeter::Start(Wire::get(src)?),
            3 => ToGreeter::Greet(Wire::get(src)?),
            4 => ToGreeter::Signed(Ok(Wire::get(src)?)),
            5 => ToGreeter::Signed(Err(Wire::get(src)?)),
            6 => ToGreeter::Finish,
            _ => return Err(Short),
        };
        if src.is_empty() { Ok(message) } else { Err(Short) }
    }

    /// Sends it with descriptors; fails at once if the other end has not read what was sent before.
    pub(crate) fn send_now(&self, to: &OwnedFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        packet::send(to, &self.bytes(), fds, MsgFlags::MSG_DONTWAIT)
    }

    /// Sends it; fails if the other end reads nothing for some time.
    pub(crate) fn send(&self, to: &OwnedFd) -> io::Result<()> {
        packet::send(to, &self.bytes(), &[], MsgFlags::empty())
    }

    /// The answer about a client; `None` if the other end is closed.
    pub(crate) fn receive_answer(from: &OwnedFd) -> io::Result<Option<ToGreeter>> {
        let answer = packet::receive_plain(from)?.map(|bytes| ToGreeter::of_packet(Some((bytes, Vec::new()))));
        Ok(answer.transpose()?.flatten().map(|(message, _)| message))
    }

    /// What a packet says.
    pub(crate) fn of_packet(packet: Option<Packet>) -> io::Result<Option<(ToGreeter, Vec<OwnedFd>)>> {
        let Some((bytes, fds)) = packet else { return Ok(None) };
        let message = ToGreeter::read(&bytes).map_err(|_| packet::invalid("malformed message of the server"))?;
        Ok(Some((message, fds)))
    }
}

impl FromGreeter {
    /// Its bytes, which contain the keys of a connection: neither they nor what they have outgrown stay in memory.
    pub(crate) fn bytes(&self) -> Zeroizing<Vec<u8>> {
        let text = match self {
            FromGreeter::Heard(heard, _) => heard.text_length(),
            FromGreeter::NotHeard(why, _) => why.why.len(),
            FromGreeter::Unusable(why) => why.len(),
            FromGreeter::Ready | FromGreeter::Sign(..) => 0,
        };
        let mut out = Zeroizing::new(Vec::with_capacity(BESIDE_TEXT + text));
        let reserved = out.capacity();
        self.put(&mut out);
        debug_assert_eq!(out.capacity(), reserved, "it did not move while it grew");
        out
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            FromGreeter::Ready => 1u8.put(out),
            FromGreeter::Unusable(why) => (2u8, why.clone()).put(out),
            FromGreeter::Sign(scheme, transcript) => (3u8, (*scheme, *transcript)).put(out),
            FromGreeter::Heard(heard, session) => (4u8, (heard.clone(), session.clone())).put(out),
            FromGreeter::NotHeard(why, session) => (5u8, (why.clone(), session.clone())).put(out),
        }
    }

    pub(crate) fn read(mut bytes: &[u8]) -> Result<FromGreeter, Short> {
        let src = &mut bytes;
        let message = match u8::get(src)? {
            1 => FromGreeter::Ready,
            2 => FromGreeter::Unusable(Wire::get(src)?),
            3 => FromGreeter::Sign(Wire::get(src)?, Wire::get(src)?),
            4 => FromGreeter::Heard(Wire::get(src)?, Wire::get(src)?),
            5 => FromGreeter::NotHeard(Wire::get(src)?, Wire::get(src)?),
            _ => return Err(Short),
        };
        if src.is_empty() { Ok(message) } else { Err(Short) }
    }

    pub(crate) fn send(&self, to: &OwnedFd) -> io::Result<()> {
        packet::send(to, &self.bytes(), &[], MsgFlags::empty())
    }

    /// The next message; `None` if the other end is closed. None of them has a descriptor.
    pub(crate) fn receive(from: &OwnedFd) -> io::Result<Option<FromGreeter>> {
        let Some((bytes, _)) = packet::receive(from, 0)? else { return Ok(None) };
        let bytes = Zeroizing::new(bytes);
        FromGreeter::read(&bytes).map(Some).map_err(|_| packet::invalid("malformed message of the process that greets clients"))
    }
}
