//! What several of these tests write.

use journal::{Record, Role};

/// A record with nothing in it.
pub const EMPTY: Record = Record {
    seq: 0,
    id: 1,
    role: Role::Plain,
    setting: None,
    device: 0,
    creates: &[],
    ends: None,
    uses: &[],
    body: &[],
    reply: &[],
};
