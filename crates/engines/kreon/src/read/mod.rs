//! # Reads: gets, scans and counts over all sources
//!
//! ```text
//!  get   ─> lookup: active, frozen, L1, L2 ... until a source has the key
//!  scan  ─> cursor: a merge_input for each source, merged in batches
//!             └─ removed ranges (`removed_range_cache` of sheaf-engine) that later cursors skip
//!  count ─> the root of the last level, or the same merge
//! ```

mod count;
pub(crate) mod cursor;
pub(crate) mod eager_cursors;
mod estimate;
pub(crate) mod lookup;
pub(crate) mod merge_input;
