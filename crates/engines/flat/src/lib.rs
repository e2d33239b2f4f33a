//! # flat: FlatStore, a volatile index over a compact log
//!
//! The log is the store: an entry is written once, where commits go, and an index in memory says
//! where each key's newest entry stands (FlatStore, ASPLOS'20, §3). This is FlatStore-H, with a
//! hash index (§4.1). See the crate's README for what differs from the paper and why.
//!
//! ## Picture
//!
//! ```text
//!   key --hash--> directory -> table -> bucket (one cache line: 8 x [21 bits of hash | 40-bit address])
//!                                                     |
//!   segments of the store log:   ... | frame | frame | frame | ...
//! ```
//!
//! ## Variants
//!
//! | engine | index | ranges |
//! |---|---|---|
//! | `flat` | hashed: FlatStore-H | no |
//! | `flat-ordered` | ordered: in the place of FlatStore-M's | both ways |
//! | `flat-plain` | `BTreeMap` behind one lock: tells the log's share of a figure from the index's | both ways |
//!
//! ## Files
//!
//! `engine` the contract; `index` what it asks of an index; `hash`, `ordered`, `plain` the indexes;
//! `replay` what they gather of a log that is replayed as a whole; `cursor` iteration; `image` what
//! a checkpoint holds. Old entries that views need are in `sheaf_base::versions`.

mod bulk_build;
mod cursor;
mod engine;
mod hash;
mod image;
mod index;
mod ordered;
#[cfg(all(test, not(shuttle)))]
mod parallel_commits;
mod plain;
pub mod pmem;

use std::marker::PhantomData;
use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::options::EngineOptions;
use sheaf_base::types::KeyspaceId;

use engine::FlatEngine;
use index::Index;

/// Makes keyspaces with one index.
struct FlatFactory<I>(PhantomData<fn() -> I>);

impl<I: Index> EngineFactory for FlatFactory<I> {
    fn name(&self) -> &'static str {
        I::NAME
    }

    fn create(&self, _id: KeyspaceId, _: &EngineOptions, context: &Arc<EngineContext>) -> Arc<dyn Engine> {
        Arc::new(FlatEngine::<I>::new(Arc::clone(context)))
    }
}

/// FlatStore with a hash index: `flat`.
#[must_use]
pub fn hashed() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<hash::HashIndex>(PhantomData))
}

/// FlatStore with an ordered index: `flat-ordered`.
#[must_use]
pub fn ordered() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<ordered::OrderedIndex>(PhantomData))
}

/// FlatStore with the simplest index there is, for comparison: `flat-plain`.
#[must_use]
pub fn plain() -> Arc<dyn EngineFactory> {
    Arc::new(FlatFactory::<plain::PlainIndex>(PhantomData))
}
