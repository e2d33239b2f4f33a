//! # kreon: Kreon, a full index per level over a value log
//!
//! Values stand in the store's flat log and are moved by its cleaner only; each level is a full
//! index over them. What has gathered in memory goes down by being inserted into the leaves it
//! belongs to, instead of merging whole levels (Kreon, SoCC'18, of which only the abstract is at
//! hand). See the crate's README for what is the paper's and what is ours.
//!
//! ## Picture
//!
//! ```text
//!  put ─> flat log (base) ─> active memtable ── freeze ──> frozen memtable ── work ──> L1 ──> L2 ...
//!          the values         L0: keys, addresses                  spill, a few hundred leaves a step: spill.rs level_edit.rs merge_accounting.rs
//!
//!  get ─> active ─> frozen ─> L1 ─> L2 ...: inner nodes, a leaf (fingerprints) or its prints ─> record     tree.rs node/ cache.rs filter.rs
//!  cleaner ─> is this record the newest? memtables, upper levels, and a mirror of what the last one points at      lookup.rs live_bitmap.rs
//!  cursor ─> the sources side by side, around stretches of removed keys                             cursor.rs merge_input.rs removed_ranges.rs
//!  own/<id>/levels: pages, never overwritten while an image may name them; a few keys need none     level_file.rs image.rs levels.rs image_keys.rs
//! ```
//!
//! ## Invariants
//!
//! 1. A key's newest version is in the first of active, frozen, L1, L2, ... that has the key. Puts
//!    are blind: what they supersede below is met, and accounted, when a spill brings both
//!    together.
//! 2. The newest version's record is held, so its address is good. Superseded entries in the levels
//!    may point at nothing: no one follows them, since leaves have whole keys, and a leaf's *stamp*
//!    tells which of its segments are gone.
//! 3. A version that a view needs stands in the first source that has it, or among the versions,
//!    and its record is held.
//! 4. A state (memtables and roots) is published whole; who has it under a guard sees one moment.
//! 5. What an image names is not written again while a slot of ROOT may name the image.
//!
//! ## Threads
//!
//! Commits of different keys write the active memtable at once, with the stripes of their keys held
//! by the store. The store's background spills. Readers pin the epoch, load one state, and take no
//! lock. Locks in order: the store's stripes, `spill` (never waited for with a stripe), that of
//! `state`, `candidates`, the others.
//!
//! ## Crash
//!
//! A checkpoint freezes the active memtable, spills it, and its image names the roots; the flat log
//! is replayed from the checkpoint's position into a memtable. The highest number of a key wins,
//! and a memtable shadows the levels.
//!
//! ## Costs
//!
//! A put: a look at a hash table, the log's frame, for a key that is new to the memtable an entry
//! in the sorted tree: about 90 bytes and the key while it is there. A get: the memtables, a
//! descent a level, a record. With too little memory for the leaves it reads the device once, for
//! the record, as long as there is a quarter of what they take: `node/fingerprints.rs`.

mod cache;
mod check;
mod cursor;
mod engine;
mod filter;
mod image;
mod image_keys;
#[cfg(all(test, shuttle))]
mod interleavings;
mod level_edit;
mod level_file;
mod levels;
mod live_bitmap;
mod lookup;
#[cfg(test)]
mod mapping_bench;
mod memtable;
mod merge_accounting;
mod merge_input;
mod node;
mod page_table;
mod removed_ranges;
#[cfg(test)]
mod removed_tests;
mod spill;
#[cfg(test)]
mod spill_bench;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::options::EngineOptions;
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by Kreon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kreon;

impl EngineFactory for Kreon {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn create(&self, id: KeyspaceId, _: &EngineOptions, context: &Arc<EngineContext>) -> Arc<dyn Engine> {
        Arc::new(engine::KreonEngine::new(Arc::clone(context), id))
    }
}
