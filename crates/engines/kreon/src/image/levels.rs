//! # Levels: operations on all levels at once
//!
//! Saves the levels in an image, restores them, and drops them. The lock of the steps
//! (`maintenance/spill.rs`) excludes a step in progress.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::ImageSink;
use sheaf_engine::memtable::MemtableLayer;
use sheaf_log::segment::SLOT_COUNT;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::KreonEngine;
use crate::maintenance::spill::SpillState;
use crate::tree::cache::CachedNode;
use crate::tree::level_file::{MAX_IO_BYTES, PAGE};
use crate::tree::{KreonState, Level, last_nonempty_level};

impl KreonEngine {
    /// Writes an image of the levels, after writing all nodes that are only in memory.
    pub(crate) fn write_image<T>(
        &self,
        out: &mut dyn ImageSink,
        image: impl FnOnce(&mut dyn ImageSink, &[Level], u32, &[u64], &[(u32, u64)]) -> Result<T>,
    ) -> Result<T> {
        let mut spill = self.spill.lock();
        self.write_dirty(&mut spill)?;
        let (end, used) = self.level_store.space.sync_for_image()?;
        let guard = epoch::pin();
        let levels = Arc::clone(&self.state(&guard).levels);
        let is_there = |slot: &u32, id: u64| {
            self.context.segments.at(*slot, &guard).is_some_and(|segment| segment.id().0 == id)
        };
        spill.live_bytes.retain(|slot, (id, bytes)| *bytes > 0 && is_there(slot, *id));
        drop(guard);
        let mut counts: Vec<(u32, u64)> = spill
            .live_bytes
            .iter()
            .map(|(slot, (_, bytes))| (*slot, u64::try_from(*bytes).unwrap_or(0)))
            .collect();
        counts.sort_unstable();
        drop(spill);
        image(out, &levels, end, &used, &counts)
    }

    /// Writes the inner nodes that are only in memory. They stay there while they are dirty, and
    /// only steps replace them. So no guard is needed across the whole function, in particular not
    /// during I/O, where it would delay the freeing of all retired memory.
    fn write_dirty(&self, spill: &mut SpillState) -> Result<()> {
        let pages: Vec<u32> = spill.dirty_nodes.iter().copied().collect();
        for pages in pages.chunks(MAX_IO_BYTES / PAGE) {
            let guard = &epoch::pin();
            let frames = self.dirty_frames(pages, guard)?;
            self.level_store
                .space
                .write(frames.iter().zip(pages).map(|(frame, page)| (*page, frame.bytes())))?;
        }
        // Only after all writes: a clean frame may be evicted, and `dirty_frames` would not find
        // it.
        for pages in pages.chunks(MAX_IO_BYTES / PAGE) {
            self.dirty_frames(pages, &epoch::pin())?.iter().for_each(|frame| frame.mark_clean());
        }
        spill.dirty_nodes.clear();
        Ok(())
    }

    fn dirty_frames<'g>(&'g self, pages: &[u32], guard: &'g Guard) -> Result<Vec<&'g CachedNode>> {
        let frames =
            pages.iter().map(|page| self.level_store.cache.get(*page, guard)).collect::<Option<Vec<_>>>();
        frames.ok_or_else(|| Error::InvalidArgument {
            argument: "cache",
            reason: "a changed page is missing".into(),
        })
    }

    /// Restores the levels of an image, with the bytes for which they account.
    pub(crate) fn restore_levels(&self, levels: Vec<Level>, counts: &[(u32, u64)]) {
        let guard = &epoch::pin();
        let mut spill = self.spill.lock();
        for (slot, bytes) in counts.iter().filter(|(slot, _)| (*slot as usize) < SLOT_COUNT) {
            let bytes = i64::try_from(*bytes).unwrap_or(i64::MAX / 2);
            if let Some(segment) = self.context.segments.at(*slot, guard) {
                segment.add_live(bytes);
                spill.live_bytes.insert(*slot, (segment.id().0, bytes));
            }
        }
        self.live_bitmap.reset(last_nonempty_level(&levels).is_some());
        self.state.replace(guard, |now| now.with_levels(levels, false));
    }

    /// Drops the keyspace: removes everything from the accounts, then all data.
    pub(crate) fn drop_all(&self) {
        let mut spill = self.spill.lock();
        let guard = &epoch::pin();
        let SpillState { live_bytes: counts, spilled_up_to: done, .. } = std::mem::take(&mut *spill);
        for (slot, (id, bytes)) in counts {
            if let Some(segment) = self.context.segments.at(slot, guard).filter(|s| s.id().0 == id) {
                segment.add_live(-bytes);
            }
        }
        let state = self.state(guard);
        for memtable in state.memtables.iter() {
            let mut places = Vec::new();
            // Entries that were spilled already are in the counts of the levels.
            let done = done.as_ref().filter(|(number, _)| *number == memtable.number);
            let low = done.map_or(Bound::Unbounded, |(_, key)| Bound::Excluded(&key[..]));
            memtable.ascend(low, usize::MAX, guard, &mut places);
            for word in
                places.iter().map(|place| memtable.version(*place).word).filter(|word| !word.is_tombstone())
            {
                self.accounts.count_live(word.address(), -i64::try_from(word.span()).unwrap_or(0), guard);
            }
            memtable.uncount_memory(&self.context.memory);
        }
        self.accounts.drop_versions(&self.versions, guard);
        self.live_bitmap.reset(false);
        self.state.replace(guard, |now| KreonState {
            memtables: now.memtables.cleared(self.context.tiny, guard),
            levels: Arc::new([]),
        });
        self.level_store.cache.clear(guard);
        self.level_store.filters.clear(guard);
        self.level_store.space.drop_data();
    }
}
