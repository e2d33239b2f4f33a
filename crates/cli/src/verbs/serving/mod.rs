//! # Verbs of a served database

pub(crate) mod call;
pub(crate) mod serve;
