//! How the name of a user is known.

use cuda_api::wire::{Short, Wire};

/// How a server knows the name of a job's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserBy {
    /// The job has shown the token of a user of this name (`mrcuda token`).
    Token,
    /// The job is a process of this user on the server's machine.
    System,
}

impl UserBy {
    /// In one word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            UserBy::Token => "token",
            UserBy::System => "system",
        }
    }
}

impl Wire for UserBy {
    fn put(&self, out: &mut Vec<u8>) {
        (*self == UserBy::Token).put(out);
    }

    fn get(src: &mut &[u8]) -> Result<UserBy, Short> {
        Ok(if bool::get(src)? { UserBy::Token } else { UserBy::System })
    }
}
