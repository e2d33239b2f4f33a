//! # Read: walks over memtables and tables
//!
//! ```text
//!  cursor.rs ──> removed_range_cache of sheaf-engine   skips runs of removed keys
//!            ──> merge_inputs.rs     sorted inputs, also of flushes and merges
//!                      └──> recent.rs    the block in which walks begin, decoded
//! ```

pub(crate) mod cursor;
mod estimate;
pub(crate) mod merge_inputs;
pub(crate) mod recent;
