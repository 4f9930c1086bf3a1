//! What recording, replaying, copying and forwarding cost, as small linear models.
//!
//! A **benchmark file** (`mrcuda bench`) holds samples: what was measured, on which path, how much of everything there was, and
//! how long it took. [`fit`] makes one **model** for each overhead and path out of them, [`check`](mod@check) compares
//! models with samples that were not used for the fit, and [`predict`] says what a move will take. The forms are in [`form`]; docs/models.md explains
//! them. Nothing here measures anything.

pub mod bench;
pub mod check;
pub mod fit;
pub mod form;
mod limits;
pub mod models_file;
pub mod plot;
pub mod predict;

pub use bench::{Bench, Machine, Sample};
pub use models_file::{Model, Models};
