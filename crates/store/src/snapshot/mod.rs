//! # Snapshots: past states for readers, backups and other processes

pub(crate) mod export;
pub(crate) mod owned_cursor;
pub(crate) mod pinned_state;
pub(crate) mod view;
