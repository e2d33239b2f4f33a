//! # cedrus: CedrusDB, a lazy-trie on disk by the hashes of keys
//!
//! The index is a trie of hashes that stands on disk and comes into memory page by page, as it is
//! needed (CedrusDB, EuroSys'21, §2): a start reads a table of pages, not the data and not the
//! index, and inserting or removing changes nothing above the place that it reaches. See the
//! crate's README for what differs from the paper and why.
//!
//! ## Picture
//!
//! ```text
//!  key --keyed hash--> root [4096] -> node [16] -> node [16] -> list (up to 32 x [rest of the hash | 40-bit address])
//!                       \____________ trie space: lines of 64 bytes in pages of 4 KiB ____________/      |
//!                          pages: in memory once they were needed, own/<id>/trie on disk                 v
//!  data space: segments of the store's flat log, cleaned by the store:           ... | record | record | record | ...
//! ```
//!
//! ## Spaces
//!
//! The paper's four logical spaces are two here, and neither has a free list on disk. The *trie
//! space* is this crate's: pages, whose heads say which lines are used; a table in the checkpoint's
//! image says where each page is. The *data space* is the store's flat log, shared with `flat`:
//! records are written once, where commits go, so there is no second log that tells of writes to
//! pages; its cleaner asks the engine who holds what and bounds the space.
//!
//! ## Invariants
//!
//! 1. What a checkpoint's image names is not written again while a slot of ROOT may name the image
//!    (trie_file.rs).
//! 2. An image is the trie of one moment, the position of its checkpoint; the log brings the rest
//!    (heap.rs).
//! 3. An address in a page is good in every later life: segments keep their slots
//!    (`base::segment`).
//!
//! ## Threads
//!
//! The first 6 bits of a hash say its shard. The lock of a shard admits one writer (a commit,
//! garbage collection or background work), for the change of the trie only. Writers take lines and
//! pages under the lock of the heap, which all shards share. A lookup takes no lock. It validates
//! its result by the version of the shard. After 16 failed validations it takes the lock of the
//! shard.
//!
//! ## Costs
//!
//! A get: the root, two or three nodes, a list, a record. 10 to 12 bytes of index a key, on disk
//! and in memory, at any number of keys (`examples/footprint.rs`). A checkpoint writes each page
//! once that changed since the one before.
//!
//! ## Files
//!
//! `engine` the contract; `shape` the paper's parameters; `trie`, `list` the lazy-trie; `heap`,
//! `page` its space in memory; `slots` entries in each segment; `space` its pages on disk; `image`
//! checkpoints; `owed`, `tail` what a start finds behind them; `cursor` iteration; `measure` sizes
//! without data; `check` invariants, for tests.

#[cfg(test)]
mod check;
mod cursor;
mod deferred_replay;
mod engine;
mod entry_counts;
mod entry_list;
mod heap;
mod image;
#[cfg(all(test, shuttle))]
mod interleavings;
pub mod measure;
#[cfg(test)]
mod paged_trie;
#[cfg(all(test, not(shuttle)))]
mod parallel_commits;
mod replay_cost;
mod resident_pages;
pub mod shape;
mod trie;
mod trie_file;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::options::{EngineOptions, OptionSpec};
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by CedrusDB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cedrus;

impl EngineFactory for Cedrus {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn options(&self) -> &'static [OptionSpec] {
        &shape::OPTIONS
    }

    fn create(
        &self,
        id: KeyspaceId,
        options: &EngineOptions,
        context: &Arc<EngineContext>,
    ) -> Arc<dyn Engine> {
        Arc::new(engine::CedrusEngine::new(Arc::clone(context), id, options))
    }
}
