//! # cedrus
#[cfg(test)]
mod check;
mod cursor;
mod engine;
mod heap;
mod image;
mod list;
mod page;
pub mod shape;
mod space;
mod trie;

use std::sync::Arc;

use sheaf_base::engine::{Engine, EngineFactory};
use sheaf_base::ground::Ground;
use sheaf_base::types::KeyspaceId;

/// Makes keyspaces kept by CedrusDB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cedrus;

impl EngineFactory for Cedrus {
    fn name(&self) -> &'static str {
        engine::NAME
    }

    fn create(&self, id: KeyspaceId, ground: &Arc<Ground>) -> Arc<dyn Engine> {
        Arc::new(engine::CedrusEngine::new(Arc::clone(ground), id))
    }
}
