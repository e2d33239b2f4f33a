//! # Recovery: opening, verification and pins of the files of a keyspace
//!
//! - open.rs restores a keyspace from its image and manifest.
//! - check.rs reads all data and reports damage.
//! - pinned_tables.rs keeps the files of one state for a backup or an attached reader.

pub(crate) mod check;
pub(crate) mod open;
pub(crate) mod pinned_tables;
