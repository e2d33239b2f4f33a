//! Tests of the engine, by topic.

mod cold_cache;
mod fingerprints;
pub(crate) mod fixture;
#[cfg(shuttle)]
mod interleavings;
mod level_tree;
mod live_bitmap;
mod page_reuse;
mod range_tombstones;
mod removed_keys;
mod spills;
mod views;
