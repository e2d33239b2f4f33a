//! # Verbs: one file each
//!
//! Each file has one entry, `run`. It takes the arguments of the verb, opens the database, and
//! returns a [`crate::failure::Failure`] if the verb did not do its job. The folders group the
//! verbs by their role.

mod inspect;
mod maintain;
mod pairs;
#[cfg(target_os = "linux")]
mod serving;
#[cfg(not(target_os = "linux"))]
#[path = "serving/unsupported.rs"]
mod serving;

pub(crate) mod pages;

pub(crate) use inspect::{advise, changes, engines, keyspaces, stats, top, verify};
pub(crate) use maintain::{backup, compact, convert, drop, rename, repair};
pub(crate) use pairs::{del, dump, get, load, merge, path, put, scan, ttl};
pub(crate) use serving::{call, serve};
