//! # sheaf-base: components that all engines share
//!
//! Disk access, commits, logs, checkpoints and the contract of an engine. Engines depend on this
//! crate and not on each other. The store syncs the logs and starts the background threads. An
//! engine has access to the disk only through the directory of its own files ([`ground::Home`]).
//!
//! ## Picture
//!
//! ```text
//!   facade (crate sheaf)          engines (flat, ...)
//!        |  ops                        ^  prepare / is_current / apply / replay / moved
//!        v                             |
//!   store    window: seq + place, bytes, apply, complete  (store/, window/)
//!        |
//!   log      frames in segments, salted checksums         (frame, segment/)
//!        |
//!   root     two slots: floor, segments, keyspaces        (root)
//!        |
//!   disk     access to files                              (disk/)
//! ```

pub mod backup;
pub mod blob;
pub mod clock;
pub mod codec;
pub mod disk;
pub mod engine;
pub mod entries;
pub mod error;
pub mod fault;
pub mod fork;
pub mod frame;
pub mod ground;
pub mod keys;
pub mod load;
pub mod lull;
pub mod memory;
pub mod memtable;
pub mod options;
pub mod own;
pub mod paged;
pub mod pair;
pub mod pairs;
pub mod porter;
pub mod reach;
pub mod record;
pub mod root;
pub mod segment;
pub mod shares;
mod speed;
pub mod store;
pub mod sync;
mod target;
pub mod trace;
pub mod types;
pub mod value;
pub mod versions;
pub mod views;
pub mod window;
pub mod work;
