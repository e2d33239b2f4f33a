//! # Keyspaces: their catalog, creation, bulk load, conversion and copy

pub(crate) mod bulk_load;
pub(crate) mod catalog;
pub(crate) mod change_tracker;
pub(crate) mod convert;
pub(crate) mod copy;
pub(crate) mod ingest;
pub(crate) mod names;
mod rename;
pub(crate) mod state;
pub(crate) mod unpublished;
