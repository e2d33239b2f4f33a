//! # The segment table: from a slot to a segment, without a lock
//!
//! Readers load a pointer under an epoch guard. A dismissed segment goes through the epoch twice:
//! its slot is cleared once every guard of that moment is gone, as they may hold addresses into it;
//! the segment itself (and its mapping) goes, and the slot may be given out again, once every guard
//! is gone that may have loaded the pointer before it was cleared. Whoever collects garbage does
//! the first step; the second is begun by who takes the dead, so that it never waits in the bag of
//! a thread that does nothing more.

use std::collections::HashMap;
use std::sync::Arc;

use super::read::FIRST_READ;
use super::{Address, Frame, SLOT_COUNT, Segment};
use crate::error::{Damage, Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::epoch::{self, Guard};
use crate::types::SegmentId;

/// The table.
#[derive(Debug)]
pub struct SegmentTable {
    slots: Arc<[AtomicPtr<Segment>]>,
    free: Arc<Mutex<FreeSlots>>,
}

#[derive(Debug, Default)]
struct FreeSlots {
    returned: Vec<u32>,
    next: u32,
    /// How many are dismissed and not among the dead.
    removed: usize,
    /// Those out of their slots.
    cleared: Vec<Arc<Segment>>,
    /// Dismissed segments nobody can see any more: dropping one may unlink, truncate and discard,
    /// which is not for the thread that happens to collect garbage.
    unreferenced: Vec<Arc<Segment>>,
}

impl Default for SegmentTable {
    fn default() -> SegmentTable {
        SegmentTable::with_slots(SLOT_COUNT)
    }
}

impl SegmentTable {
    /// A table of `count` slots, at most [`SLOT_COUNT`].
    #[must_use]
    pub fn with_slots(count: usize) -> SegmentTable {
        debug_assert!(count <= SLOT_COUNT);
        let slots = (0..count).map(|_| AtomicPtr::default()).collect();
        SegmentTable { slots, free: Arc::default() }
    }

    /// Gives each of `segments` a slot, in a table that has none yet: the one that `then` says it
    /// had in an earlier life, so that addresses an engine has written down stay good. Slots of
    /// segments that are gone since stay empty until the next is admitted. False if there are more
    /// segments than slots.
    pub fn add_all(&self, segments: &[Arc<Segment>], then: &HashMap<SegmentId, u32>) -> bool {
        let mut taken = vec![false; self.slots.len()];
        let mut wanted: Vec<Option<u32>> = Vec::with_capacity(segments.len());
        for slot in then.values() {
            if let Some(taken) = taken.get_mut(*slot as usize) {
                *taken = true;
            }
        }
        let mut given = vec![false; self.slots.len()];
        for segment in segments {
            let slot = then.get(&segment.id()).copied();
            let free = slot.filter(|slot| given.get(*slot as usize) == Some(&false));
            if let Some(slot) = free {
                given[slot as usize] = true;
            }
            wanted.push(free);
        }
        let mut free = self.free.lock();
        debug_assert!(free.next == 0, "the table is empty");
        // What was never used first, then what is gone.
        let mut others = (0..).zip(&taken).filter(|(_, taken)| !**taken).map(|(slot, _)| slot);
        let mut gone: Vec<u32> = (0..)
            .zip(given.iter().zip(&taken))
            .filter(|(_, (given, taken))| **taken && !**given)
            .map(|(slot, _)| slot)
            .collect();
        for (segment, wanted) in segments.iter().zip(wanted) {
            let Some(slot) = wanted.or_else(|| others.next()).or_else(|| gone.pop()) else { return false };
            given[slot as usize] = true;
            free.next = free.next.max(slot + 1);
            self.put(slot, segment);
        }
        let next = free.next as usize;
        free.returned =
            (0..).zip(&given[..next]).filter(|(_, given)| !**given).map(|(slot, _)| slot).collect();
        true
    }

    fn put(&self, slot: u32, segment: &Arc<Segment>) {
        segment.slot.store(slot, Ordering::Relaxed);
        let pointer = Arc::into_raw(Arc::clone(segment)).cast_mut();
        let before = self.slots[slot as usize].swap(pointer, Ordering::AcqRel);
        assert!(before.is_null(), "slot {slot} was given out twice");
    }

    /// Gives `segment` a slot. `None` if all are taken.
    pub fn add(&self, segment: &Arc<Segment>) -> Option<u32> {
        let mut free = self.free.lock();
        let slot = match free.returned.pop() {
            Some(slot) => slot,
            None if (free.next as usize) < self.slots.len() => {
                free.next += 1;
                free.next - 1
            }
            None => return None,
        };
        drop(free);
        self.put(slot, segment);
        Some(slot)
    }

    /// The segment in `slot`, for as long as the guard lives.
    #[inline]
    pub fn at<'g>(&self, slot: u32, _guard: &'g Guard) -> Option<&'g Segment> {
        let pointer = self.slots.get(slot as usize)?.load(Ordering::Acquire);
        // SAFETY:
        // * The pointer came from `Arc::into_raw` in `add`; the table holds that count.
        // * The count is given back only after all guards are gone that were pinned before the slot
        //   was cleared, and ours was pinned before this load.
        unsafe { pointer.as_ref() }
    }

    /// Slots from 0 on, of which some may be empty; those behind them are.
    #[must_use]
    pub fn used_slots(&self) -> u32 {
        self.free.lock().next
    }

    /// A number above those of all segments that have a slot, and not above those of segments that
    /// get one later.
    #[must_use]
    pub fn next_id(&self, guard: &Guard) -> u64 {
        let used = self.free.lock().next;
        let ids = (0..used).filter_map(|slot| self.at(slot, guard)).map(|segment| segment.id().0 + 1);
        ids.max().unwrap_or(0)
    }

    /// Takes `segment` out of its slot, once every present guard is gone: until then addresses into
    /// it, loaded before, stay readable.
    pub fn remove(&self, segment: &Arc<Segment>) {
        let (slots, free, slot) = (Arc::clone(&self.slots), Arc::clone(&self.free), segment.slot());
        free.lock().removed += 1;
        let guard = epoch::pin();
        guard.defer(move || {
            let pointer = slots[slot as usize].swap(std::ptr::null_mut(), Ordering::AcqRel);
            if pointer.is_null() {
                return;
            }
            // SAFETY:
            // * The pointer came from `put`'s `Arc::into_raw`; the swap took it out, so this is the
            //   only place that takes the count over. It is held until `take_unreferenced` has been
            //   through the epoch with it.
            let segment = unsafe { Arc::from_raw(pointer) };
            free.lock().cleared.push(segment);
        });
        guard.flush();
    }

    /// Whether dismissed segments may still be seen by somebody.
    #[must_use]
    pub fn has_removed_in_use(&self) -> bool {
        self.free.lock().removed > 0
    }

    /// Takes the dismissed segments that nobody sees any more, for the caller to drop.
    pub fn take_unreferenced(&self) -> Vec<Arc<Segment>> {
        let cleared = std::mem::take(&mut self.free.lock().cleared);
        let guard = epoch::pin();
        if !cleared.is_empty() {
            let free = Arc::clone(&self.free);
            guard.defer(move || {
                let mut free = free.lock();
                free.removed -= cleared.len();
                free.returned.extend(cleared.iter().map(|segment| segment.slot()));
                free.unreferenced.extend(cleared);
            });
        }
        guard.flush();
        drop(guard);
        std::mem::take(&mut self.free.lock().unreferenced)
    }

    /// The frame at `address`, checked.
    #[inline]
    pub fn frame<'g>(&self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(Error::InvalidArgument {
                argument: "address",
                reason: format!("slot {} has no segment", address.slot()),
            }),
        }
    }

    /// Damage at `address`: in which file, and where.
    #[must_use]
    pub fn damage_error(&self, address: Address, what: Damage, guard: &Guard) -> Error {
        match self.at(address.slot(), guard) {
            Some(segment) => Error::corrupt(segment.path(), address.offset(), what),
            None => Error::InvalidArgument { argument: "address", reason: what.to_string() },
        }
    }

    /// The frame at `address` without a look at its checksum, and its segment to verify it with.
    #[inline]
    pub fn frame_unchecked<'g>(
        &self,
        address: Address,
        guard: &'g Guard,
    ) -> Result<(Frame<'g>, &'g Segment)> {
        match self.at(address.slot(), guard) {
            Some(segment) => {
                let limit = segment.limit_at(address.offset());
                Ok((segment.frame_unchecked(address.offset(), limit)?, segment))
            }
            None => Err(Error::InvalidArgument {
                argument: "address",
                reason: format!("slot {} has no segment", address.slot()),
            }),
        }
    }

    /// Asks for the entry at `address` to be loaded soon.
    #[inline]
    pub fn prefetch(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.prefetch(address.offset());
        }
    }

    /// As [`SegmentTable::prefetch`], for as much as a usual entry takes.
    #[inline]
    pub fn prefetch_entry(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.prefetch_frame(address.offset());
        }
    }

    /// Whether the entry at `address` is in memory, as far as one can know. A system call.
    pub fn is_cached(&self, address: Address, guard: &Guard) -> bool {
        self.at(address.slot(), guard).is_none_or(|segment| segment.file().is_cached(address.offset()))
    }

    /// Asks the device for the entry at `address`, and waits for nothing. A system call.
    pub fn will_need(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.file().will_need(address.offset(), FIRST_READ as u64);
        }
    }
}

impl Drop for SegmentTable {
    fn drop(&mut self) {
        let used = self.free.lock().next as usize; // slots beyond were never given out
        for slot in &self.slots[..used] {
            let pointer = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !pointer.is_null() {
                // SAFETY: `&mut self`: nobody reads through the table; the swap leaves null to deferred dismissals.
                drop(unsafe { Arc::from_raw(pointer) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DATA_START, SegmentIdentity};
    use super::*;
    use crate::disk::Disk;
    use crate::disk::sim::SimDisk;
    use crate::types::{Incarnation, LogId, StoreId};
    use std::path::Path;

    fn segment(id: u64) -> Arc<Segment> {
        let disk = SimDisk::new();
        disk.create_dir(Path::new("/flat")).unwrap();
        let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
        let identity = SegmentIdentity {
            store,
            log,
            id: SegmentId(id),
            stream: 0,
            incarnation,
            capacity: 2 * DATA_START,
        };
        Arc::new(Segment::create(&disk, Path::new("/flat"), identity).unwrap())
    }

    #[test]
    fn an_idle_thread_does_not_delay_freeing_of_segments() {
        let table = SegmentTable::with_slots(4);
        table.add(&segment(3));
        let one = segment(4);
        table.add(&one);
        table.remove(&one);
        let (cleared, is_cleared) = std::sync::mpsc::channel();
        let (rest, is_over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let table = &table;
            scope.spawn(move || {
                while table.at(1, &epoch::pin()).is_some() {
                    epoch::pin().flush();
                }
                cleared.send(()).unwrap();
                let _ = is_over.recv();
            });
            is_cleared.recv().unwrap();
            let mut dead = Vec::new();
            while table.has_removed_in_use() {
                dead.extend(table.take_unreferenced());
                assert!(
                    epoch::wait_for_guards(std::time::Duration::from_secs(60)),
                    "a guard is held for ever"
                );
            }
            dead.extend(table.take_unreferenced());
            assert_eq!(dead.len(), 1);
            drop(rest);
        });
        assert_eq!(table.add(&segment(5)), Some(1));
    }

    #[test]
    fn segments_get_their_former_slots_and_new_ones_get_others() {
        let all: Vec<Arc<Segment>> = [3, 4, 7, 9].map(segment).to_vec();
        // 5 is gone since; 7 and 9 came after the table was written.
        let then = HashMap::from([(SegmentId(3), 2), (SegmentId(4), 0), (SegmentId(5), 1)]);
        let table = SegmentTable::with_slots(5);
        assert!(table.add_all(&all, &then));
        assert_eq!(all.iter().map(|s| s.slot()).collect::<Vec<_>>(), [2, 0, 3, 4]);
        assert!(table.at(1, &epoch::pin()).is_none());
        assert_eq!(table.add(&segment(10)), Some(1));
        assert_eq!(table.add(&segment(11)), None);

        // What makes no sense is a table without it.
        let then = HashMap::from([(SegmentId(3), 1), (SegmentId(4), 1), (SegmentId(7), 77)]);
        let table = SegmentTable::with_slots(4);
        assert!(table.add_all(&all, &then));
        let mut slots: Vec<u32> = all.iter().map(|s| s.slot()).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3]);
        assert!(!SegmentTable::with_slots(3).add_all(&all, &then));
    }
}
