//! # Levels as a whole: into an image, out of one, dropped
//!
//! What is done with all levels at once, under the lock of the steps (`spill.rs`), so that none is under way.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::ImageSink;
use sheaf_base::error::{Error, Result};
use sheaf_base::memtable::Layer;
use sheaf_base::segment::SLOT_COUNT;
use sheaf_base::sync::epoch::{self, Guard};

use crate::cache::Frame;
use crate::engine::KreonEngine;
use crate::space::{PAGE, RUN_BYTES};
use crate::spill::Spill;
use crate::tree::{Level, State, lowest};

impl KreonEngine {
    /// Everything is going to be in an image: what the levels are, with all that is in memory only written.
    pub(crate) fn seal<T>(
        &self,
        out: &mut dyn ImageSink,
        image: impl FnOnce(&mut dyn ImageSink, &[Level], u32, &[u64], &[(u32, u64)]) -> Result<T>,
    ) -> Result<T> {
        let mut spill = self.spill.lock();
        self.write_dirty(&mut spill)?;
        let (end, used) = self.shelf.space.seal()?;
        let guard = epoch::pin();
        let levels = Arc::clone(&self.state(&guard).levels);
        let is_there = |slot: &u32, id: u64| {
            self.ground.segments.at(*slot, &guard).is_some_and(|segment| segment.id().0 == id)
        };
        spill.counts.retain(|slot, (id, bytes)| *bytes > 0 && is_there(slot, *id));
        drop(guard);
        let mut counts: Vec<(u32, u64)> = spill
            .counts
            .iter()
            .map(|(slot, (_, bytes))| (*slot, u64::try_from(*bytes).unwrap_or(0)))
            .collect();
        counts.sort_unstable();
        drop(spill);
        image(out, &levels, end, &used, &counts)
    }

    /// Writes the inner nodes that are in memory only. They stay there as long as they are dirty, and only steps replace them, so that
    /// a guard need not be held from the first to the last, nor while the device syncs them: all that is let go by others waits for it.
    fn write_dirty(&self, spill: &mut Spill) -> Result<()> {
        let pages: Vec<u32> = spill.dirty.iter().copied().collect();
        for pages in pages.chunks(RUN_BYTES / PAGE) {
            let guard = &epoch::pin();
            let frames = self.dirty_frames(pages, guard)?;
            self.shelf.space.write(frames.iter().zip(pages).map(|(frame, page)| (*page, frame.bytes())))?;
        }
        // Only now: what is clean may go, and is not dirty any more.
        for pages in pages.chunks(RUN_BYTES / PAGE) {
            self.dirty_frames(pages, &epoch::pin())?.iter().for_each(|frame| frame.clean());
        }
        spill.dirty.clear();
        Ok(())
    }

    fn dirty_frames<'g>(&'g self, pages: &[u32], guard: &'g Guard) -> Result<Vec<&'g Frame>> {
        let frames = pages.iter().map(|page| self.shelf.cache.get(*page, guard)).collect::<Option<Vec<_>>>();
        frames.ok_or_else(|| Error::Invalid { what: "cache", why: "a changed page is missing".into() })
    }

    /// Takes up the levels of an image, with the bytes that they account for.
    pub(crate) fn take_up(&self, levels: Vec<Level>, counts: &[(u32, u64)]) {
        let guard = &epoch::pin();
        let mut spill = self.spill.lock();
        for (slot, bytes) in counts.iter().filter(|(slot, _)| (*slot as usize) < SLOT_COUNT) {
            let bytes = i64::try_from(*bytes).unwrap_or(i64::MAX / 2);
            if let Some(segment) = self.ground.segments.at(*slot, guard) {
                segment.account(bytes);
                spill.counts.insert(*slot, (segment.id().0, bytes));
            }
        }
        self.named.reset(lowest(&levels).is_some());
        self.state.replace(guard, |now| now.with(levels, false));
    }

    /// The keyspace is dropped: accounts for all it has, and forgets it.
    pub(crate) fn drop_all(&self) {
        let mut spill = self.spill.lock();
        let guard = &epoch::pin();
        let Spill { counts, done, .. } = std::mem::take(&mut *spill);
        for (slot, (id, bytes)) in counts {
            if let Some(segment) = self.ground.segments.at(slot, guard).filter(|s| s.id().0 == id) {
                segment.account(-bytes);
            }
        }
        let state = self.state(guard);
        for memtable in state.memtables.iter() {
            let mut places = Vec::new();
            // What went down already is among the levels' counts.
            let done = done.as_ref().filter(|(number, _)| *number == memtable.number);
            let low = done.map_or(Bound::Unbounded, |(_, key)| Bound::Excluded(&key[..]));
            memtable.ascend(low, usize::MAX, guard, &mut places);
            for word in
                places.iter().map(|place| memtable.version(*place).word).filter(|word| !word.is_tomb())
            {
                self.accounts.count(word.address(), -i64::try_from(word.span()).unwrap_or(0), guard);
            }
            memtable.gone(&self.ground.memory);
        }
        self.accounts.forget(&self.versions, guard);
        self.named.reset(false);
        self.state.replace(guard, |now| State {
            memtables: now.memtables.emptied(self.ground.tiny, guard),
            levels: Arc::new([]),
        });
        self.shelf.cache.clear(guard);
        self.shelf.filters.clear(guard);
        self.shelf.space.retire();
    }
}
