//! How the name of a user is known.

use cuda_api::wire_enum;

wire_enum! {
    /// How a server knows the name of a job's user.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum UserBy {
        /// The job has shown the token of a user of this name (`mrcuda token`).
        Token = 0,
        /// The job has shown a credential of munge (`mrcuda serve --munge`).
        Munge = 1,
        /// The job is a process of this user on the server's machine.
        System = 2,
    }
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
