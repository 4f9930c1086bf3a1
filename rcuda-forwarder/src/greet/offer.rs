//! What a server offers its clients.

use crate::handshake::ServerTls;

/// What a server offers, as bits, and a client chooses: TLS, or no encryption.
pub(super) const TLS: u8 = 1;
pub(super) const PLAIN: u8 = 2;
/// Also offered: it accepts credentials of munge.
pub(super) const MUNGE: u8 = 4;

/// What a server accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// TLS, with this certificate.
    pub(crate) tls: Option<&'a ServerTls>,
    /// Connections without encryption.
    pub(crate) plain: bool,
    /// Credentials of munge, in place of a token.
    pub(crate) munge: bool,
}

impl<'a> Offer<'a> {
    /// A Unix socket.
    pub(crate) const LOCAL: Offer<'static> = Offer { tls: None, plain: true, munge: false };

    /// As one byte.
    pub(crate) fn bits(&self) -> u8 {
        (u8::from(self.tls.is_some()) * TLS) | (u8::from(self.plain) * PLAIN) | (u8::from(self.munge) * MUNGE)
    }

    /// From one byte; TLS is by `tls`.
    pub(crate) fn of_bits(bits: u8, tls: Option<&'a ServerTls>) -> Offer<'a> {
        Offer { tls: tls.filter(|_| bits & TLS != 0), plain: bits & PLAIN != 0, munge: bits & MUNGE != 0 }
    }
}
