//! # Files: the formats of a keyspace's files, and their readers and writers
//!
//! ```text
//!  own/<keyspace>/KEYS.0 KEYS.1    manifest.rs     which tables and packs exist
//!                 *.keys           list/           one per table: keys, versions, places of values
//!                 *.pack           pack.rs         small values of several tables
//!                 00000012/        file_names.rs   one per table: large values, a file each
//! ```
//!
//! All files except the manifest are written once.

pub(crate) mod file_names;
pub(crate) mod list;
pub(crate) mod manifest;
pub(crate) mod pack;
