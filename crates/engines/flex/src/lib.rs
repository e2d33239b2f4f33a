//! # FlexDB engine: all pairs sorted in one flexible address space
//!
//! Keeps pairs in key order in a FlexSpace and finds them with a sparse index of *intervals*
//! (FlexSpace and FlexDB, EuroSys'22, section 5). The README lists the differences from the paper.
//!
//! ```text
//!  put ─> journal ─> active memtable ── freeze ──> frozen memtable ── flush ──> space + index
//!         (values)   keys, frame addresses         (at a checkpoint)          flush/  index/table
//!  get ─> active ─> frozen ─> index/sparse_index ─> slot ─> block, or fingerprints and one pair
//!                                                   index/slots           interval/
//!  scan ─> one interval at a time, merged with the keys of the memtables        read/cursor.rs
//!  checkpoint ─> image; opening ─> image, or the index is read from the space   image/
//! ```
//!
//! ## Invariants
//!
//! 1. A get asks the active memtable, the frozen one and the space, in this order. The first one
//!    that has the key has its newest version. The frozen memtable stays in the state until all of
//!    it is in the space, so a flush changes no result.
//! 2. A frozen memtable is flushed only if all its commits are durable and at or below ROOT's floor
//!    (commit.md R12).
//! 3. A version that a view needs is in a memtable or in the interval of its key.
//! 4. Index and space agree in every published state, because both are published together.
//!
//! ## Crash
//!
//! A checkpoint frees the journal only after the frozen memtable is in the space, the space is
//! synced, and the image is durable. The space counts its edits in its *mark*, and the image
//! contains the mark. If a crash leaves different marks, the index is read from the space. Replay
//! restores the records of the frozen memtable, and flushing them again leads to the same result.

mod engine;
mod flush;
mod image;
mod index;
mod interval;
mod read;
mod sizes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_log::options::{EngineOptions, OptionSpec};
use sheaf_log::types::KeyspaceId;

/// Creates keyspaces of the FlexDB engine.
///
/// A put costs a lookup in a hash table, a journal frame, and for a new key an entry in the sorted
/// tree. Until its memtable is flushed, a key takes about 90 bytes of memory plus its own length,
/// and no memory for the value. A get costs a descent over separators of two words, a block and a
/// pair. The index takes about 60 bytes per interval and 25 per extent of the space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flex;

impl EngineFactory for Flex {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn owns_file(&self, name: &str) -> bool {
        name.starts_with("HEAD.")
    }

    fn options(&self) -> &'static [OptionSpec] {
        &sizes::OPTIONS
    }

    fn create(
        &self,
        id: KeyspaceId,
        options: &EngineOptions,
        context: &Arc<EngineContext>,
    ) -> Arc<dyn Engine> {
        Arc::new(engine::FlexEngine::new(Arc::clone(context), id, options))
    }
}
