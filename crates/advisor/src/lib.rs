//! # sheaf-advisor: which engine suits a workload
//!
//! [`advise`] estimates the costs of each engine for the workload statistics of a keyspace; `sheaf
//! advise` prints the result. `sheaf advise --replay` measures too: a [`WorkloadMix`] describes a
//! load by the statistics of a keyspace. A [`ReplayDatabase`] is a scratch database of one engine
//! with the pairs of that load. [`ReplayDatabase::run`] applies the load for some time.
//!
//! ## Picture
//!
//! ```text
//!  WorkloadStats ─> WorkloadMix ─> random operations, keys, lengths ─> ReplayDatabase (one engine)
//!                                                                      ReplayDatabase (another)
//!                                                                      ... in turns
//! ```
//!
//! A replay only has the properties that the statistics describe. Keys are drawn independently of
//! each other and of the time, and values are noise. One thread runs the load. Other programs on
//! the machine influence the results.
//!
//! ## Threads
//!
//! One thread uses a database at a time. A run ends early when its `stop` returns true.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "measuring needs the real clock; nothing here runs on the simulated disk"
)]

mod advice;
mod mix;
mod random;
mod replay_database;

pub use advice::{Advice, AdviceRequest, COSTS, Candidate, Confidence, CostPart, advise};
pub use mix::{OperationShares, ReplayOperation, WorkloadMix};
pub use random::Random;
pub use replay_database::{ReplayDatabase, ReplayOutcome};
