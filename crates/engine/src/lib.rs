//! # sheaf-engine: contract of an engine, and parts that engines share
//!
//! An engine keeps the data of a keyspace. It implements [`contract::Engine`] and uses the services
//! of [`context::EngineContext`]. Engines depend on this crate and not on each other. An engine has
//! access to the disk only through the directory of its own files ([`context::EngineDir`]).
//!
//! ## Picture
//!
//! ```text
//!   store (crate sheaf-store)          engines (flat, ...)
//!        |  calls                           ^  prepare / is_current / apply / replay / relocate
//!        v                                  |
//!   contract     traits of an engine; context: services for engines
//!   decoding     an engine of a keyspace with compressed values
//!   window       order and visibility of commits; views, versions: past states
//!   memtable     recent commits in memory; removed_range_cache: ranges that cursors skip
//!   page_file, checkpoint_file, log_entries, read_ahead: files and their content
//!   range_estimate: approximate number and size of the pairs in a range
//!   workload, idle, scan_length: statistics
//! ```

pub mod backup_files;
pub mod checkpoint_file;
pub mod context;
pub mod contract;
pub mod decoding;
pub mod idle;
pub mod keys;
pub mod log_entries;
pub mod memtable;
pub mod page_file;
pub mod range_estimate;
pub mod read_ahead;
pub mod removed_range_cache;
pub mod scan_length;
pub mod versions;
pub mod views;
pub mod window;
pub mod workload;
