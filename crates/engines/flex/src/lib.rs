//! # flex: FlexDB, all pairs sorted in one flexible address space
//!
//! Pairs stand in the order of their keys in a FlexSpace, whose bytes can be inserted and removed
//! anywhere; a sparse index says which *interval* of it a key belongs to (FlexSpace and FlexDB,
//! EuroSys'22, section 5). Nothing is merged level by level: a change goes to a memtable, and from
//! there to its place. See the crate's README for what differs from the paper and why.
//!
//! ## Picture
//!
//! ```text
//!  put ─> journal (base) ─> active memtable ── freeze ──> frozen memtable ── work ──> space + sparse index
//!          the values        keys, addresses of            (at a checkpoint)          an edit and a publication
//!                            frames in the journal                                    a step: flush.rs, plan.rs
//!
//!  get ─> active ─> frozen ─> sparse index ─> slot ─> block (fingerprints, runs)     index.rs slots.rs block.rs
//!                             key -> interval    │     cached, or read from the space and checked
//!                                                └───> prints (fingerprints.rs): the one pair that has the key, read and checked
//!
//!  scan ─> an interval at a time, merged with what the memtables have in it          cursor.rs
//! ```
//!
//! ## Invariants
//!
//! 1. A key's newest version is in the first of active, frozen, space that has the key. Moving
//!    changes nothing that a reader sees: what is frozen stays in the state until all of it is in
//!    the space.
//! 2. The space holds nothing that is not durable in the journal and below ROOT's floor (commit.md
//!    R12): only what a checkpoint has frozen is moved.
//! 3. A version that a view needs is somewhere: the chain of a memtable's record, or its interval,
//!    beside newer ones.
//! 4. Index and space agree in every state that is published, because both are.
//!
//! ## Threads
//!
//! Commits write the active memtable, several at once. The store's background moves what is frozen,
//! a few hundred keys a step. Readers pin the epoch, load one state, and wait for nobody; a cursor
//! holds a block between calls, no state.
//!
//! ## Crash
//!
//! The journal is cut only behind a checkpoint: what was frozen is in the space, the space is
//! synced, the image of the index is durable. A crash before that leaves the space somewhere on the
//! way, at the end of an edit. Then the image does not fit (its mark is another), the index is read
//! from the space, and the journal brings back all that was frozen: newer or the same versions of
//! what the space has, which shadow it and are moved again, to the same result.
//!
//! ## Costs
//!
//! A put: a look at the hash table, the journal's frame, and for a key that is new to the memtable
//! an entry in the sorted tree; about 90 bytes of memory and the key for as long as it is there,
//! nothing for its value. A get: a descent over separators of two words, a block, a pair. Memory
//! for the index: about 60 bytes an interval of up to 16 pairs, and 25 for each extent of the
//! space.
//!
//! ## Files
//!
//! `engine` the contract; `commit`, `changes`, `hoard`, `route`, `plan`, `table`, `run` what goes
//! into the space, `ingest` past the memtables; `index`, `slots`, `kept`, `block`, `prints` the way
//! to an interval; `cursor`, `ahead`, `batch`, `lanes`, `count` ranges, `toll` what memtables cost
//! them; `image`, `probe` checkpoints and opening; `warm` what an opening leaves to the background.

mod block;
mod changes;
mod count;
mod cursor;
mod engine;
mod fingerprints;
mod flush;
mod image;
mod index;
mod ingest;
#[cfg(all(test, shuttle))]
mod interleavings;
mod interval_lookup;
mod io_gauge;
mod merge_inputs;
mod merged_pairs;
mod plan;
mod read_ahead;
mod rebuild_index;
mod run;
mod scan_cost;
mod sizes;
mod slot_state;
mod slots;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod value_prefetch;
mod warm_up;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::options::{EngineOptions, OptionSpec};
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by FlexDB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flex;

impl EngineFactory for Flex {
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
        Arc::new(engine::FlexEngine::new(Arc::clone(context), id, options))
    }
}
