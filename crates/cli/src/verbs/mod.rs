//! # Verbs: one file each
//!
//! Each file has one entry, `run`. It takes the arguments of the verb, opens the database, and
//! returns a [`crate::failure::Failure`] if the verb did not do its job.

pub(crate) mod advise;
pub(crate) mod backup;
pub(crate) mod call;
pub(crate) mod compact;
pub(crate) mod convert;
pub(crate) mod del;
pub(crate) mod drop;
pub(crate) mod dump;
pub(crate) mod engines;
pub(crate) mod get;
pub(crate) mod keyspaces;
pub(crate) mod load;
pub(crate) mod path;
pub(crate) mod put;
pub(crate) mod repair;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod verify;
