//! Tickets of data connections: 32 secret bytes, and what is said of them.

/// Bytes of a route.
pub(super) const ROUTE: usize = 8;

/// The public name of a ticket, which does not reveal the ticket.
pub(crate) fn ticket_name(ticket: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("mrcuda 2026 ticket name", ticket)
}

/// What a client says unencrypted of the ticket that it has, by which a server finds the daemon that knows it (see
/// [`crate::daemon`], "take-over"); zeros without one.
pub(crate) type Route = [u8; ROUTE];

/// The route of a ticket of this name, which does not reveal the name.
pub(crate) fn route(ticket_name: &[u8; 32]) -> Route {
    let digest = blake3::derive_key("mrcuda 2026 ticket route", ticket_name);
    std::array::from_fn(|i| digest[i])
}

/// Key by which a data connection proves its ticket.
pub(crate) fn ticket_key(ticket: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("mrcuda 2026 ticket key", ticket)
}
