//! # Verbs that show the state of a database

pub(crate) mod advise;
pub(crate) mod changes;
pub(crate) mod engines;
pub(crate) mod keyspaces;
pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod verify;
