//! # Verbs that copy, repair, and reorganize a database

pub(crate) mod backup;
pub(crate) mod compact;
pub(crate) mod convert;
pub(crate) mod drop;
pub(crate) mod rename;
pub(crate) mod repair;
