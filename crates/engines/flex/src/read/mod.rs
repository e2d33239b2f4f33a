//! # Read: scans and counts over the intervals and the memtables
//!
//! ```text
//!  cursor, count ─┬─ merge_inputs: the next records of each memtable
//!                 ├─ merged_pairs: the pairs of an interval that has keys in memtables
//!                 └─ read_ahead: the intervals that follow
//! ```
//!
//! Gets are in `engine.rs` and in the sparse index.

mod count;
pub(crate) mod cursor;
mod estimate;
mod merge_inputs;
mod merged_pairs;
mod read_ahead;
