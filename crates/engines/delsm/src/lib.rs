//! # delsm: DeLSM, a tree of plain files
//!
//! A log-structured merge tree for large values (DeLSM, arXiv 2109.13142). Its tables are
//! directories, and each value above a few KiB is a file that contains only the value. Compaction
//! moves directory entries instead of bytes. The README of the crate compares it with the paper.
//!
//! ## Picture
//!
//! ```text
//!  put ─> value > 8 KiB: blob file (base) ─────┐
//!         journal (base) ─> active memtable ───┴─ freeze ─> queue ─ flush ─> level 0 ─ merge ─>
//!
//!  own/<keyspace>/KEYS.0 KEYS.1        manifest: tables and packs          files/manifest.rs
//!                 00000012/cat.jpg@2a  a table with a value: key, number   files/file_names.rs
//!                 00000013.keys        key list: metadata of its values    files/list/
//!                 00000014.pack        small values of several tables      files/pack.rs
//! ```
//!
//! ## Invariants
//!
//! 1. A value in a file of its own is written once. Moves change only its name.
//! 2. The number of a directory, list, pack or value is never used again. A name therefore always
//!    has the same meaning.
//! 3. Tables contain only commits that are durable in the journal and below the floor of ROOT
//!    (commit.md R12).
//! 4. The manifest is written first, then files are moved, then old names are removed
//!    (`maintenance/`). After a crash at any point each value is where its list says, or in the
//!    directory of its table.
//! 5. A checkpoint finds a place in the queue of frozen memtables. Others are frozen only while one
//!    that the pending checkpoint covers is not flushed.

mod engine;
mod files;
mod maintenance;
mod read;
mod recovery;
mod sizes;
mod tree;

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_log::options::{EngineOptions, OptionSpec};
use sheaf_log::types::KeyspaceId;

/// Factory of keyspaces in DeLSM.
///
/// ## Threads
///
/// Several commits write the active memtable at once. The background thread of the store executes
/// one bounded step after the other. Readers pin the epoch, load one state and take no lock. They
/// look a file up again if it has moved.
///
/// ## Costs
///
/// A large put creates, writes and closes a file, appends a frame to the journal, and uses memory
/// until the flush. A flush moves no file. A merge, or the background work of an idle database,
/// links the files of a table into its directory and removes the old names. A merge also reads and
/// writes key lists, and copies small packs. A get reads filters, one block of a list, and the file
/// of the value. Memory: 10 bits per key, and one key for each 4 KiB of lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delsm;

impl EngineFactory for Delsm {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn owns_file(&self, name: &str) -> bool {
        name.ends_with(".keys") || name.starts_with("KEYS.")
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
