//! What a server has heard of a client, before anything is proved.

use super::error::GreetError;
use super::offer::{Offer, PLAIN, TLS};
use super::opening::Opening;
use super::ticket::Route;
use crate::munge::{self, Credential};
use cuda_api::wire_struct;

/// Maximum length of the body of an opening.
pub(super) const BODY: usize = 64 << 10;

wire_struct! {
    /// What a client has said in its greeting, and what the server's end of the connection knows of it. Nothing of it is proved.
    #[derive(Clone, PartialEq, Eq)]
    pub(crate) struct Heard {
        /// How it protects the connection.
        pub(super) choice: u8,
        pub(super) route: Route,
        /// It has shown a certificate of an authority.
        pub(super) is_certified: bool,
        /// The binding of the TLS connection, or zeros.
        pub(super) binding: [u8; 32],
        /// The client's.
        pub(super) nonce: [u8; 32],
        pub(super) role: u8,
        pub(super) body: Vec<u8>,
        /// A credential of munge, or nothing.
        pub(super) credential: Vec<u8>,
        pub(super) proof: [u8; 32],
    }
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heard").field("choice", &self.choice).field("role", &self.role).finish_non_exhaustive()
    }
}

impl Heard {
    /// Length of all that has no fixed one.
    pub(crate) fn text_length(&self) -> usize {
        self.body.len() + self.credential.len()
    }

    /// Whether the connection is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.choice == TLS
    }

    /// What the client wants, and its credential of munge; an error if that is none of what was offered.
    pub(super) fn read(&self, offer: Offer<'_>) -> Result<(Opening, Option<Credential>), GreetError> {
        match self.choice {
            TLS if offer.tls.is_some() => {}
            PLAIN if offer.plain && self.binding == [0; 32] && !self.is_certified => {}
            _ => return Err(GreetError::Garbage),
        }
        if self.body.len() > BODY || self.credential.len() > munge::LONGEST {
            return Err(GreetError::Garbage);
        }
        let opening = Opening::read(self.role, &self.body).map_err(|_| GreetError::Garbage)?;
        // It may have come here by its route.
        if self.route != opening.route() {
            return Err(GreetError::UnknownTicket);
        }
        let credential = match &self.credential[..] {
            [] => None,
            _ if !offer.munge || matches!(opening, Opening::Bulk { .. }) => return Err(GreetError::Garbage),
            bytes => Some(Credential::read(bytes.to_vec()).ok_or(GreetError::Garbage)?),
        };
        Ok((opening, credential))
    }
}
