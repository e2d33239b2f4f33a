//! # Maintenance: steps that move entries down, and the questions of GC
//!
//! ```text
//!  step ─> range_removal: removes the entries that the memtable's range tombstones hide
//!          spill, spill_batch: choose the entries
//!            └─> level_edit: rewrites the leaves and nodes of a level
//!                  └─ merge_accounting: decides for each key
//!  GC   ─> relocation: is this record needed? repoint ─> live_bitmap: references of the last level
//! ```

pub(crate) mod level_edit;
pub(crate) mod live_bitmap;
pub(crate) mod merge_accounting;
pub(crate) mod range_removal;
pub(crate) mod relocation;
pub(crate) mod spill;
pub(crate) mod spill_batch;
