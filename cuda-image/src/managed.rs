//! Managed variables of code, and code in which these variables are moved to given addresses.
//!
//! The driver would place such a variable at an address of its choice and keep it consistent with the host itself, at
//! one place only. As memory of the job it has the same address in every place: the code is changed to use that
//! address, and the variable is no longer marked as managed.

mod cubin;
mod ptx;
mod variables;

use super::kind::{Entry, EntryKind, Kind};
use super::{Image, fatbin, load};
pub use variables::{Addresses, Managed, ManagedError, Variables};

/// The changed code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The changed image.
    pub image: Image,
    /// Entries that could not be changed, with the reason: they are not in the changed image.
    pub left_out: Vec<ManagedError>,
}

impl Image {
    /// All managed variables of the code, of all entries.
    ///
    /// # Errors
    /// Entries disagree about a variable, or no entry with managed variables could be parsed.
    pub fn managed(&self) -> Result<Variables, ManagedError> {
        let mut all = Variables::new();
        let mut unknown = None;
        for entry in self.entries()? {
            let found = match variables(&entry) {
                Ok(found) => found,
                Err(why) => {
                    unknown = Some(why);
                    continue;
                }
            };
            for (name, variable) in found {
                match all.get(&name) {
                    Some(other) if *other != variable => {
                        return Err(ManagedError::Different(name));
                    }
                    Some(_) => {}
                    None => drop(all.insert(name, variable)),
                }
            }
        }
        match unknown {
            Some(why) if all.is_empty() => Err(why),
            _ => Ok(all),
        }
    }

    /// Returns the code with its managed variables at these addresses.
    ///
    /// # Errors
    /// No entry of the code could be changed.
    pub fn with_managed(&self, at: &Addresses) -> Result<Placed, ManagedError> {
        let mut left_out = Vec::new();
        let mut pieces = 0;
        let mut change = |entry: Entry<'_>| {
            let changed = changed(&entry, at);
            match changed {
                Ok(bytes) => {
                    pieces += 1;
                    Some(bytes)
                }
                Err(why) => {
                    left_out.push(why);
                    None
                }
            }
        };
        let room = &mut self.room(u64::MAX);
        let bytes = match self.kind {
            Kind::Wrapped | Kind::Fatbin => fatbin::rebuild(&self.bytes, room, &mut change)?,
            Kind::Linked => {
                let mut parts = Vec::new();
                for part in load::parts(&self.bytes)? {
                    let bytes = &self.bytes[part];
                    parts.push(match bytes.is_empty() {
                        true => Vec::new(),
                        false => fatbin::rebuild(bytes, room, &mut change)?,
                    });
                }
                load::contain(&parts)
            }
            Kind::Cubin | Kind::Ptx => {
                let entry = self.entries().ok().and_then(|all| all.into_iter().next());
                let mut bytes = entry.and_then(&mut change).unwrap_or_default();
                if self.kind == Kind::Ptx {
                    bytes.push(0);
                }
                bytes
            }
            Kind::Archive => return Err(ManagedError::Archive),
        };
        if pieces == 0 {
            return Err(left_out.pop().unwrap_or(ManagedError::NoCode));
        }
        let image = Image::from_bytes(self.kind, bytes.into())?;
        Ok(Placed { image, left_out })
    }
}

fn variables(entry: &Entry<'_>) -> Result<Variables, ManagedError> {
    match entry.kind {
        EntryKind::Cubin => cubin::variables(&entry.bytes),
        EntryKind::Ptx => ptx::variables(&entry.bytes),
        EntryKind::Other => Ok(Variables::new()),
    }
}

/// Changes the code of an entry.
fn changed(entry: &Entry<'_>, at: &Addresses) -> Result<Vec<u8>, ManagedError> {
    match entry.kind {
        EntryKind::Cubin => cubin::place(&entry.bytes, at),
        EntryKind::Ptx => ptx::place(&entry.bytes, at),
        EntryKind::Other => Err(ManagedError::Intermediate),
    }
    .map_err(|error| ManagedError::Code { sm: entry.sm, error: Box::new(error) })
}

#[cfg(test)]
pub(super) mod tests;
