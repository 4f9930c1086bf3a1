//! How the name of a user is known.

use cuda_api::wire::{Short, Wire};

/// How a server knows the name of a job's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UserBy {
    /// The job has shown the token of a user of this name (`mrcuda token`).
    Token,
    /// The job has shown a credential of munge (`mrcuda serve --munge`).
    Munge,
    /// The job is a process of this user on the server's machine.
    System,
}

impl UserBy {
    /// In one word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            UserBy::Token => "token",
            UserBy::Munge => "munge",
            UserBy::System => "system",
        }
    }
}

impl Wire for UserBy {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u8).put(out);
    }

    fn get(src: &mut &[u8]) -> Result<UserBy, Short> {
        let number = u8::get(src)?;
        [UserBy::Token, UserBy::Munge, UserBy::System].into_iter().find(|by| *by as u8 == number).ok_or(Short)
    }
}
