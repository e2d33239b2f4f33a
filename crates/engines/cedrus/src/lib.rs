//! # cedrus: CedrusDB, a lazy-trie on disk over the hashes of keys
//!
//! The index is a trie of key hashes. Its pages are on disk and are loaded on demand (CedrusDB,
//! EuroSys'21, §2). An opening reads a table of pages, but neither the data nor the index.
//!
//! ## Picture
//!
//! ```text
//!  key --keyed hash--> root [4096] -> node [16] -> node [16] -> list: up to 32 entries
//!                      \____ trie space: lines of 64 bytes ____/   [rest of hash | 40-bit address]
//!                      in pages of 4 KiB; on disk: own/<id>/trie                       v
//!  data space: segments of the store log, collected by GC:      ... | record | record | record ...
//! ```
//!
//! ## Invariants
//!
//! 1. While a ROOT slot may refer to an image, the pages that it names are not overwritten
//!    (trie_file.rs).
//! 2. An image is the trie at one moment: the position of its checkpoint. The log has all later
//!    changes (heap.rs).
//! 3. An address in a page is valid after every opening, because segments keep their slots
//!    (`log::segment`).
//!
//! ## Threads
//!
//! The first 6 bits of a hash select its shard. The lock of a shard admits one writer at a time (a
//! commit, GC or background work). The lock of the heap comes after it. A look-up takes no lock and
//! validates its result by the version of the shard. After 16 failed validations it takes the lock
//! of the shard.

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
mod page_access;
#[cfg(test)]
mod paged_trie;
#[cfg(all(test, not(shuttle)))]
mod parallel_commits;
#[cfg(feature = "measure")]
pub mod probe;
#[cfg(all(test, not(shuttle)))]
mod record_requests;
mod replay_cost;
mod resident_pages;
pub mod shape;
mod trie;
mod trie_file;

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_log::options::{EngineOptions, OptionSpec};
use sheaf_log::types::KeyspaceId;

/// Factory of keyspaces that CedrusDB stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cedrus;

impl EngineFactory for Cedrus {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn owns_file(&self, name: &str) -> bool {
        name.starts_with(trie_file::FILE)
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
