//! # Index: from keys to intervals, and the cache of their content
//!
//! ```text
//!  sparse_index: lookups, reads of intervals         table: edits of space and tree, publication
//!    │ slot of the interval                            │ new and reused slots
//!    v                                                 v
//!  slots, slot_state: counts, cached block or fingerprints, eviction
//!    ^
//!  warm_up: fills the cache after an opening         io_gauge: do reads wait for the device?
//! ```

pub(crate) mod io_gauge;
pub(crate) mod slot_state;
pub(crate) mod slots;
mod sparse_index;
pub(crate) mod table;
pub(crate) mod warm_up;

pub(crate) use self::sparse_index::{EngineState, Interval, IntervalCache, SparseIndex};
