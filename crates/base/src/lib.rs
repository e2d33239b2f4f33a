//! # sheaf-base: components that all engines share
//!
//! Disk access, commits, logs, checkpoints and the contract of an engine. Engines depend on this
//! crate and not on each other. The store syncs the logs and starts the background threads. An
//! engine has access to the disk only through the directory of its own files
//! ([`engine_context::EngineDir`]).
//!
//! ## Picture
//!
//! ```text
//!   facade (crate sheaf)          engines (flat, ...)
//!        |  operations                 ^  prepare / is_current / apply / replay / moved
//!        v                             |
//!   store    window: seq + place, bytes, apply, complete  (store/, window/)
//!        |
//!   log      frames in segments, salted checksums         (frame, segment/)
//!        |
//!   root     two slots: floor, segments, keyspaces        (root)
//!        |
//!   disk     access to files                              (disk/)
//! ```

pub mod accept;
pub mod backup;
pub mod backup_files;
pub mod blob;
pub mod blob_reader;
pub mod cache_arbiter;
pub mod clock;
pub mod codec;
mod commit_rate;
pub mod disk;
pub mod double_slot;
pub mod engine;
pub mod engine_context;
pub mod error;
pub mod fork;
pub mod frame;
pub mod idle;
pub mod keys;
pub mod log_entries;
pub mod memory;
pub mod memtable;
pub mod options;
mod output_dir;
pub mod page_file;
pub mod parallel;
pub mod read_ahead;
pub mod record;
pub mod root;
pub mod scan_length;
pub mod segment;
pub mod store;
pub mod sync;
pub mod trace;
pub mod types;
pub mod versions;
pub mod views;
pub mod window;
pub mod wire_error;
pub mod workload;
