//! # Kreon engine: a full index per level over a value log
//!
//! Values stay in the store log, where only GC moves them. Each level is a full index over them;
//! leaves have copies of small values. A *spill* inserts entries into the leaves of the next level
//! instead of merging whole levels (Kreon, SoCC'18; only its abstract was available; see README).
//!
//! ```text
//!  put ─> store log ─> active memtable ── freeze ──> frozen memtable ── spill ──> L1 ──> L2 ...
//!         (values)     L0: keys, addresses           maintenance/: spill, level_edit
//!  get ─> active ─> frozen ─> L1 ─> L2 ...: inner nodes, a leaf or its fingerprints ─> record
//!         read/lookup.rs                    tree/: level_store, cache, filter, node/
//!  GC ──> is this record the newest?  memtables, upper levels, bitmap   maintenance/relocation.rs
//!  scan ─> all sources merged, without removed ranges                   read/cursor.rs
//! ```
//!
//! ## Invariants
//!
//! 1. The newest version of a key is in the first of active, frozen, L1, L2, ... that contains the
//!    key, unless a range tombstone of a memtable hides it. Spills account for lower versions.
//! 2. The record of the newest version exists. A superseded or hidden entry of a level may point at
//!    a deleted segment. The *stamp* of its leaf (opening, next segment id) reveals that.
//! 3. A view finds its version in the first source with an entry that is old enough, or among the
//!    old versions. The record of that version exists.
//! 4. A state (memtables and roots) is published as a whole.
//! 5. A page of an image is not written again while a slot of ROOT may refer to the image.
//!
//! ## Crash
//!
//! An image contains the roots. Replay of the log from the checkpoint fills a memtable, which
//! shadows the levels. The highest seq of a key wins; a tombstone is also compared with the levels.

mod check;
mod engine;
mod image;
mod maintenance;
#[cfg(any(test, feature = "measure"))]
#[doc(hidden)]
pub mod measure;
mod memtable;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_log::options::EngineOptions;
use sheaf_log::types::KeyspaceId;

/// Creates keyspaces of the Kreon engine.
///
/// A put costs a lookup in a hash table, a frame in the log, and for a new key an entry in the
/// sorted tree. Until the memtable is spilled, a key takes about 90 bytes of memory plus its own
/// length. A get costs the lookups in the memtables, one descent per level, and one record, unless
/// the leaf has a copy of the value. If memory holds a quarter of the bytes of all leaves, a get
/// that needs a record usually reads the device only once, for the record
/// (`tree/node/fingerprints.rs`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Kreon;

impl EngineFactory for Kreon {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn owns_file(&self, name: &str) -> bool {
        name.starts_with(tree::level_file::FILE)
    }

    fn create(&self, id: KeyspaceId, _: &EngineOptions, context: &Arc<EngineContext>) -> Arc<dyn Engine> {
        Arc::new(engine::KreonEngine::new(Arc::clone(context), id))
    }
}
