//! # flat: FlatStore, a volatile index over a compact log
//!
//! The log is the store: an entry is written once, where commits go, and an index in memory says where
//! each key's newest entry stands (FlatStore, ASPLOS'20, §3). This is FlatStore-H, with a hash index
//! (§4.1). See the crate's README for what differs from the paper and why.
//!
//! ## Picture
//!
//! ```text
//!   key --hash--> directory -> table -> bucket (one cache line: 8 x [21 bits of hash | 40-bit address])
//!                                                     |
//!   segments of the store log:   ... | frame | frame | frame | ...
//! ```
//!
//! ## Files
//!
//! `engine` the contract; `index` the hash index; `versions` old entries that views need; `cursor`
//! unordered iteration; `image` what a checkpoint holds.

mod cursor;
mod engine;
mod image;
mod index;
mod versions;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::ground::Ground;
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by FlatStore with a hash index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat;

impl EngineFactory for Flat {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn create(&self, _id: KeyspaceId, ground: &Arc<Ground>) -> Arc<dyn Engine> {
        Arc::new(engine::FlatEngine::new(Arc::clone(ground)))
    }
}
