//! Failure of a command: a message for the user and an exit code for the shell.

use crate::table::note;
use std::fmt::Display;

/// Failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: i32,
    message: String,
}

impl Failure {
    /// The command could not do its work: exit code 1.
    pub(crate) fn new(message: impl Display) -> Failure {
        Failure { code: 1, message: message.to_string() }
    }

    /// A failure with a specific exit code.
    pub(crate) fn with_code(code: i32, message: impl Display) -> Failure {
        Failure { code, message: message.to_string() }
    }

    /// A failure whose message has already been printed.
    pub(crate) fn silent(code: i32) -> Failure {
        Failure { code, message: String::new() }
    }

    /// A failure of the same code, whose message is printed in this way.
    pub(crate) fn printed_by(self, print: impl FnOnce(&str)) -> Failure {
        if !self.message.is_empty() {
            print(&self.message);
        }
        Failure::silent(self.code)
    }

    /// The message for the user.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints the message; the command goes on with this value.
    pub(crate) fn warn<T>(self, instead: T) -> T {
        note(&self.message);
        instead
    }

    /// Prints the message and ends the process.
    pub(crate) fn exit(self) -> ! {
        if !self.message.is_empty() {
            note(&self.message);
        }
        std::process::exit(self.code)
    }
}
