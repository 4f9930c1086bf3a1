//! Configuration files: `/etc/mrcuda/config.toml` and the user's `config.toml`, and `mrcuda config`, which shows and checks them.
//!
//! [`known`] says which settings there are: the long options of the commands, and variables that jobs read. [`file`] reads a file, [`layers`]
//! puts files, environment variables and built-in defaults over each other, and has `clap` use the result as defaults of the options: so
//! an option on the command line counts most.

mod file;
mod known;
mod layers;
pub(crate) mod show;

pub(crate) use file::ConfigError;
pub(crate) use layers::{Config, INSTEAD, is_read_by};
