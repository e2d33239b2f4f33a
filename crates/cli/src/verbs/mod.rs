//! # The verbs: one file each
//!
//! Each has one entry, `run`, that takes its arguments, opens what they name, and answers with a
//! [`crate::failure::Failure`] if it did not do what was asked.

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
