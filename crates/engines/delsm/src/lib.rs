//! # delsm: DeLSM, each large value a plain file
//!
//! A log-structured merge tree whose tables are directories: each value above a few KiB is a file
//! that holds the value and nothing else, and compaction moves directory entries instead of bytes
//! (DeLSM, arXiv 2109.13142). See the crate's README for what differs from the paper and why.
//!
//! ## Picture
//!
//! ```text
//!  put ─> value > 8 KiB: staged file (base) ──┐
//!         journal (base) ─> active memtable ──┴─ freeze ─> frozen ── flush ─> level 0 ── merge ─> level 1 ── ...
//!
//!  own/<keyspace>/KEYS.0 KEYS.1        manifest: which tables and packs there are             manifest.rs
//!                 00000012/cat.jpg@2a  a table, and a value in it, under its key and its number       tree.rs file_names.rs
//!                 00000013.keys        its key list: all that is known of its values          list/ filter.rs
//!                 00000014.pack        small values of several tables                         pack.rs
//! ```
//!
//! ## Invariants
//!
//! 1. A value in a file of its own is written once. Moves change its name only.
//! 2. A directory, list, pack or value has a number that is never used again. What a name means
//!    never changes.
//! 3. Tables hold nothing that is not durable in the journal and below ROOT's floor (commit.md
//!    R12).
//! 4. The manifest comes first, moves follow, removals come last (`maintenance.rs`), so every crash
//!    leaves a state of which each value is found where its list says, or in its table's directory.
//!
//! ## Threads
//!
//! Commits write the active memtable, several at once. The store's background does one bounded step
//! after the other. Readers pin the epoch, load one state and take no lock. They look up a moved
//! file again.
//!
//! ## Costs
//!
//! A large put creates, writes and closes a file, appends a frame to the journal, and takes about
//! 90 bytes of memory until the flush. A flush moves no file. A merge, or the background at rest,
//! links the files of a table into its directory and removes the old names. A merge reads and
//! writes key lists, about 45 bytes a value and ten times a level, and copies small packs. A get
//! reads filters, one block of a list, and the file of the value. Memory: 10 bits a key, and one
//! key for each 4 KiB of lists.

mod check;
mod cursor;
mod engine;
mod file_moves;
mod file_names;
mod filter;
mod flush;
mod idle_compaction;
mod ingest;
mod list;
mod maintenance;
mod manifest;
mod merge;
mod merge_inputs;
mod pack;
mod pinned_tables;
mod recent;
mod recover;
mod removed_ranges;
mod sizes;
mod tree;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::options::{EngineOptions, OptionSpec};
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by DeLSM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delsm;

impl EngineFactory for Delsm {
    fn name(&self) -> &'static str {
        engine::NAME
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
        Arc::new(engine::DelsmEngine::new(Arc::clone(context), id, options))
    }
}
