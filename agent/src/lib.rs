//! Decides which jobs move where. Everything here is a function of what is known at a time: the GPUs and jobs ([`World`]), what an operator has
//! written ([`Settings`]), and the moves so far ([`Pace`]). `mrcuda agent` collects the first, calls [`decide()`], carries out what it
//! returns, and tells [`Pace`] how that ended.
//!
//! A policy proposes moves for one state of the world. [`decide()`] asks the policies in the order in which the operator has named them, and each
//! sees the world as the proposals before it will leave it. Most proposals are carried out only when they have been made for a while and
//! the job has rested since its last move, so that two policies, or a policy and a person, do not move a job back and forth.

mod choice;
mod decide;
mod pace;
mod policy;
mod proposal;
mod settings;
mod world;

pub use choice::{Choice, ChoiceError};
pub use decide::{Decision, decide};
pub use pace::Pace;
pub use policy::Policy;
pub use proposal::Action;
pub use settings::{JobRule, Settings, SettingsError};
pub use world::{Gpu, Job, JobState, LOCAL, World};
