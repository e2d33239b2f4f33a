//! # Experiments: one file for each subcommand that measures a single question
//!
//! Each file has one entry, `run`, which takes the arguments of the subcommand. `compare`, `paper`
//! and `figures` run many workloads and have folders or files of their own.

pub(crate) mod backup;
pub(crate) mod batching;
pub(crate) mod cedrus_shapes;
pub(crate) mod many_keyspaces;
pub(crate) mod memory;
pub(crate) mod recovery;
pub(crate) mod single_run;
pub(crate) mod stream;
pub(crate) mod values;
