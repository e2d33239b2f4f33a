//! # Verbs that read and write pairs

pub(crate) mod del;
pub(crate) mod dump;
pub(crate) mod get;
mod integers;
pub(crate) mod load;
pub(crate) mod merge;
pub(crate) mod path;
pub(crate) mod put;
pub(crate) mod scan;
pub(crate) mod ttl;
