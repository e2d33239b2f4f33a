//! # Reads: gets, scans and counts over all sources
//!
//! ```text
//!  get   ─> lookup: active, frozen, L1, L2 ... until a source has the key
//!  scan  ─> cursor: a merge_input for each source, merged in batches
//!             └─ removed_ranges: ranges of removed keys that later cursors skip
//! ```

pub(crate) mod cursor;
mod estimate;
pub(crate) mod lookup;
pub(crate) mod merge_input;
pub(crate) mod removed_ranges;
