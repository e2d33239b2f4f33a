//! # Check: reads all pages of the levels
//!
//! A check takes long, so steps and checkpoints continue during it. Pages that they replace are
//! pinned.

use std::sync::Arc;

use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch;

use crate::engine::KreonEngine;
use crate::tree::level_file::PagePin;
use crate::tree::node::NodeRef;

impl KreonEngine {
    /// Reads all pages of the current levels. Steps and checkpoints continue, and replaced pages
    /// keep their content until the end.
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

    /// Returns the topmost nodes of the current levels that are on disk, with their heights. All
    /// nodes below them are on disk too, and keep their content while the pin exists.
    fn pin_nodes(&self) -> (PagePin, Vec<(NodeRef, u8)>) {
        // no step replaces nodes, and no checkpoint writes dirty ones
        let spill = self.spill.lock();
        let pin = self.level_store.space.pin_pages();
        // One guard per node: a guard for the whole walk would delay the freeing of retired memory.
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
