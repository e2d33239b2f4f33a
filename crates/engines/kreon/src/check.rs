//! # Check: reads everything that the levels have on disk
//!
//! It takes long, so that steps and checkpoints go on meanwhile: pages that they replace are kept
//! for it.

use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::sync::epoch;

use crate::engine::KreonEngine;
use crate::level_file::PagePin;
use crate::node::NodeRef;

impl KreonEngine {
    /// Reads all pages of the present levels. Steps and checkpoints go on meanwhile; what they
    /// replace stays as it is until the end.
    pub(crate) fn check(
        &self,
        report: &mut dyn FnMut(Error),
        step: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let (_kept, mut todo) = self.pin_nodes();
        let mut tell = |result: Result<()>| match result {
            Err(error @ Error::Corrupt { .. }) => {
                report(error);
                Ok(())
            }
            other => other,
        };
        tell(self.level_store.space.verify())?;
        while let Some((at, height)) = todo.pop() {
            step(u64::from(at.pages) * self.level_store.space.page_file.page as u64)?;
            tell(self.level_store.space.read(at, height).map(|frame| {
                if height > 0 {
                    let node = frame.node();
                    todo.extend((0..node.len()).map(|slot| (node.child(slot), height - 1)));
                }
            }))?;
        }
        Ok(())
    }

    /// The topmost nodes of the present levels that are on disk, of which level each: all below
    /// them are there too, and stay as they are while the first value lives.
    fn pin_nodes(&self) -> (PagePin, Vec<(NodeRef, u8)>) {
        let spill = self.spill.lock(); // nothing is replaced meanwhile, nor written that is in memory only
        let pin = self.level_store.space.pin_pages();
        // Of each node's moment is a guard: what others let go during all of this would wait for
        // it.
        let levels = Arc::clone(&self.state(&epoch::pin()).levels);
        let mut todo: Vec<(NodeRef, u8)> = levels.iter().filter_map(|level| level.root).collect();
        let mut there = Vec::new();
        while let Some((at, height)) = todo.pop() {
            if !spill.dirty_nodes.contains(&at.page) {
                there.push((at, height));
            } else if let Some(frame) = self.level_store.cache.get(at.page, &epoch::pin()) {
                let node = frame.node();
                todo.extend((0..node.len()).map(|slot| (node.child(slot), height - 1)));
            }
        }
        (pin, there)
    }
}
