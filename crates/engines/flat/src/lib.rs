//! # flat: FlatStore, a volatile index over a compact log
//!
//! Stores each entry once, in the log that commits append to. An index in memory maps each key to
//! the address of its newest entry (FlatStore, ASPLOS'20, §3). This is FlatStore-H, with a hash
//! index (§4.1). The README of the crate lists the differences from the paper and the reasons.
//!
//! ## Picture
//!
//! ```text
//!   key --hash--> directory -> table -> bucket (cache line: 8 x [21 hash bits | 40-bit address])
//!                                                                                  |
//!   segments of the store log:   ... | frame | frame | frame | ...
//! ```
//!
//! ## Variants
//!
//! | engine | index | ranges |
//! |---|---|---|
//! | `flat` | hashed: FlatStore-H | no |
//! | `flat-ordered` | ordered: replaces the index of FlatStore-M | both directions |
//! | `flat-plain` (feature `plain-index`) | `BTreeMap` behind one lock, for comparison | both |
//!
//! ## Files
//!
//! `engine` implements the engine contract; `index` is the trait of an index; `hash`, `ordered` and
//! `plain` implement it. `bulk_build` builds an index from a log that is replayed as a whole,
//! `cursor` iterates, `image` encodes a checkpoint, `pmem` is the disk with files in persistent
//! memory. Old versions that views need are kept in `sheaf_engine::versions`.

mod bulk_build;
mod cursor;
mod engine;
mod hash;
mod image;
mod index;
mod ordered;
#[cfg(all(test, not(shuttle)))]
mod parallel_commits;
#[cfg(any(all(test, not(shuttle)), feature = "plain-index"))]
mod plain;

pub mod pmem;

use std::marker::PhantomData;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Engine, EngineFactory};
use sheaf_log::options::{COMPRESSION, EngineOptions, OptionSpec};
use sheaf_log::types::KeyspaceId;

use engine::FlatEngine;
use index::Index;

/// Factory of keyspaces with the index `I`.
struct FlatFactory<I>(PhantomData<fn() -> I>);

impl<I: Index> EngineFactory for FlatFactory<I> {
    fn name(&self) -> &'static str {
        I::NAME
    }

    fn options(&self) -> &'static [OptionSpec] {
        &[COMPRESSION]
    }

    fn create(&self, _id: KeyspaceId, _: &EngineOptions, context: &Arc<EngineContext>) -> Arc<dyn Engine> {
        Arc::new(FlatEngine::<I>::new(Arc::clone(context)))
    }
}

/// Returns the factory of `flat`: FlatStore with a hash index.
#[must_use]
pub fn hashed() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<hash::HashIndex>(PhantomData))
}

/// Returns the factory of `flat-ordered`: FlatStore with an ordered index.
#[must_use]
pub fn ordered() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<ordered::OrderedIndex>(PhantomData))
}

/// Returns the factory of `flat-plain`: FlatStore with the simplest index, for comparison.
#[cfg(feature = "plain-index")]
#[must_use]
pub fn plain() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<plain::PlainIndex>(PhantomData))
}
