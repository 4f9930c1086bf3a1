//! What the names of a module stand for.

use std::collections::HashMap;

/// Where an address in code or data points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Index into `Image::globals`.
    Global(usize),
    /// Index into `Image::functions`.
    Function(usize),
}

/// The meaning of a module-level name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Symbol {
    Address(Target),
    Shared(usize),
}

/// Names of the module, and the variables with static storage that functions declare inside.
#[derive(Default)]
pub(crate) struct Symbols {
    pub(crate) names: HashMap<String, Symbol>,
    /// By function (index of the text, bodies or not), scope and name.
    pub(crate) inner: HashMap<(usize, usize, String), Symbol>,
}
