//! Small linear models of the costs of recording, replaying, copying and forwarding.
//!
//! A **benchmark file** (`mrcuda bench`) holds samples: what was measured, on which path, the amount of each quantity,
//! and the duration. [`fit`] computes one **model** for each overhead and path from them, [`check`](mod@check) compares
//! models with samples that were not used for the fit, and [`predict`] predicts the times of a move. The forms are in
//! [`form`]; docs/models.md explains them. This crate measures nothing.

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
