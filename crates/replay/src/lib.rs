//! # sheaf-replay: a load like the one that was sketched, on scratch databases, engine beside engine
//!
//! `sheaf advise` predicts; this measures. A [`WorkloadMix`] says what a load is made of, as a
//! sketch does; a [`ReplayDatabase`] is a scratch database of one engine with that load's pairs in
//! it; [`ReplayDatabase::run`] gives it the load for a while.
//!
//! ## Picture
//!
//! ```text
//!   LoadStats ──> Mix ──> draw: which operation, which key, how many bytes ──> Subject (one engine) ──> Outcome
//!                                                                              Subject (another)
//!                                                                              ... in turns, slice by slice
//! ```
//!
//! What it cannot see: what a sketch does not have. Keys are drawn independently of each other and
//! of the time; values are noise. One thread; other programs on the machine are in the figures.
//!
//! ## Threads
//!
//! A subject belongs to one. A run ends early when its `stop` says so.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "measuring needs the real clock; nothing here runs on the simulated disk"
)]

mod mix;
mod random;
mod replay_database;

pub use mix::{OperationShares, ReplayOperation, WorkloadMix};
pub use random::Random;
pub use replay_database::{ReplayDatabase, ReplayOutcome};
