//! # sheaf-log: files of logs, ROOT and blobs
//!
//! The bytes of commits on disk: records in frames, frames in segments, and the two slots of ROOT,
//! which list the segments. The store decides the order of commits; this crate only writes and
//! checks bytes.
//!
//! ## Picture
//!
//! ```text
//!  record -> frame -> segment      operations, with salted checksums, in files of a log
//!  root, double_slot               the file that lists everything else, in two slots
//!  blob, blob_reader               values outside of logs
//!  compression                     stored form of compressed values
//!  types, options                  numbers and names
//! ```

pub mod blob;
pub mod blob_reader;
pub mod compression;
pub mod double_slot;
pub mod frame;
pub mod options;
pub mod record;
pub mod root;
pub mod root_changes;
pub mod segment;
pub mod types;
