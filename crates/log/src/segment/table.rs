//! # Segment table: from a slot to a segment, without a lock
//!
//! Readers load a pointer under an epoch guard. A removed segment passes through two epochs:
//!
//! 1. Its slot is cleared after all guards of that moment were dropped, since their readers may
//!    have addresses in the segment.
//! 2. The segment is released, with its mapping, after all guards were dropped that may have loaded
//!    the pointer before the slot was cleared. Then the slot may be assigned again.
//!
//! The thread that runs deferred functions of the epoch does step 1. The caller of
//! [`SegmentTable::take_unreferenced`] starts step 2, so that it never waits in the queue of an
//! idle thread.

use std::collections::HashMap;
use std::sync::Arc;

use super::read::FIRST_READ;
use super::{Address, Frame, SLOT_COUNT, Segment};
use crate::types::SegmentId;
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};

/// Table of the segments of a database.
#[derive(Debug)]
pub struct SegmentTable {
    slots: Arc<[AtomicPtr<Segment>]>,
    free: Arc<Mutex<FreeSlots>>,
}

#[derive(Debug, Default)]
struct FreeSlots {
    returned: Vec<u32>,
    next: u32,
    /// Number of removed segments that are not in `unreferenced` yet.
    removed: usize,
    /// Removed segments with a cleared slot (step 1).
    cleared: Vec<Arc<Segment>>,
    /// Removed segments without references. They are not dropped by the thread that runs deferred
    /// functions, because a drop may unlink, truncate and discard a file.
    unreferenced: Vec<Arc<Segment>>,
}

impl Default for SegmentTable {
    fn default() -> SegmentTable {
        SegmentTable::with_slots(SLOT_COUNT)
    }
}

impl SegmentTable {
    /// Creates a table of `count` slots, at most [`SLOT_COUNT`].
    #[must_use]
    pub fn with_slots(count: usize) -> SegmentTable {
        debug_assert!(count <= SLOT_COUNT);
        let slots = (0..count).map(|_| AtomicPtr::default()).collect();
        SegmentTable { slots, free: Arc::default() }
    }

    /// Assigns a slot to each of `segments` in an empty table. A segment gets its slot in `then`,
    /// the assignment of an earlier process, so that addresses in saved images of engines stay
    /// valid. Slots of segments that do not exist any more stay empty until the next
    /// [`SegmentTable::add`]. Returns false if there are more segments than slots.
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
        // Assign slots that were never used first, then slots of deleted segments.
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
        assert!(before.is_null(), "segment (I3): a slot is assigned to one segment (slot {slot})");
    }

    /// Assigns a slot to `segment`. Returns `None` if all are taken.
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

    /// Returns the segment in `slot`, valid while the guard and the table live.
    ///
    /// ```compile_fail,E0505
    /// let table = sheaf_log::segment::SegmentTable::default();
    /// let guard = sheaf_platform::sync::epoch::pin();
    /// let segment = table.at(0, &guard);
    /// drop(table); // would free the segment
    /// drop(segment);
    /// ```
    #[inline]
    pub fn at<'g>(&'g self, slot: u32, _guard: &'g Guard) -> Option<&'g Segment> {
        let pointer = self.slots.get(slot as usize)?.load(Ordering::Acquire);
        // SAFETY: the pointer came from `Arc::into_raw` in `put`. The table, which is borrowed,
        // releases that reference after all guards that were pinned before the slot was cleared.
        // The guard of the caller was pinned before this load.
        unsafe { pointer.as_ref() }
    }

    /// Returns the number of slots, counted from 0, that were ever assigned. Some may be empty; all
    /// later ones are.
    #[must_use]
    pub fn used_slots(&self) -> u32 {
        self.free.lock().next
    }

    /// Returns a number above those of all segments that have a slot, and not above those of
    /// segments that get one later.
    #[must_use]
    pub fn next_id(&self, guard: &Guard) -> u64 {
        let used = self.free.lock().next;
        let ids = (0..used).filter_map(|slot| self.at(slot, guard)).map(|segment| segment.id().0 + 1);
        ids.max().unwrap_or(0)
    }

    /// Clears the slot of `segment` after every present guard was dropped. Until then, addresses
    /// that were loaded before stay readable.
    pub fn remove(&self, segment: &Arc<Segment>) {
        let (slots, free, slot) = (Arc::clone(&self.slots), Arc::clone(&self.free), segment.slot());
        free.lock().removed += 1;
        let guard = epoch::pin();
        guard.defer(move || {
            let pointer = slots[slot as usize].swap(std::ptr::null_mut(), Ordering::AcqRel);
            if pointer.is_null() {
                return;
            }
            // SAFETY: the pointer came from `Arc::into_raw` in `put`. The swap removed it, so only
            // this closure takes over the reference; `take_unreferenced` keeps it for one more
            // epoch.
            let segment = unsafe { Arc::from_raw(pointer) };
            free.lock().cleared.push(segment);
        });
        guard.flush();
    }

    /// Returns whether a reader may still use a removed segment.
    #[must_use]
    pub fn has_removed_in_use(&self) -> bool {
        self.free.lock().removed > 0
    }

    /// Takes the removed segments without references, for the caller to drop.
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

    /// Returns the frame at `address` after verification.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if there is no valid frame, [`Error::Io`] if the file cannot be
    /// read, and [`Error::InvalidArgument`] if the slot has no segment.
    #[inline]
    pub fn frame<'g>(&'g self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(Error::InvalidArgument {
                argument: "address",
                reason: format!("slot {} has no segment", address.slot()),
            }),
        }
    }

    /// Returns an error for damage of the record at `address`, with the path and the offset.
    #[must_use]
    pub fn damage_error(&self, address: Address, what: Damage, guard: &Guard) -> Error {
        match self.at(address.slot(), guard) {
            Some(segment) => Error::corrupt(segment.path(), address.offset(), "record", what),
            None => Error::InvalidArgument { argument: "address", reason: what.to_string() },
        }
    }

    /// Returns the frame at `address` without verifying its checksum, and its segment for
    /// [`Segment::check`].
    ///
    /// # Errors
    ///
    /// Like [`SegmentTable::frame`], except that a wrong checksum is not detected.
    #[inline]
    pub fn frame_unchecked<'g>(
        &'g self,
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

    /// Prefetches the start of the entry at `address` into the cache of the processor.
    #[inline]
    pub fn prefetch(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.prefetch(address.offset());
        }
    }

    /// Prefetches the entry at `address`, as far as a usual entry reaches.
    #[inline]
    pub fn prefetch_entry(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.prefetch_frame(address.offset());
        }
    }

    /// Returns whether the entry at `address` is in the page cache, as far as the system can tell.
    /// Makes a system call.
    pub fn is_cached(&self, address: Address, guard: &Guard) -> bool {
        self.at(address.slot(), guard).is_none_or(|segment| segment.file().is_cached(address.offset()))
    }

    /// Requests the entry at `address` from the device and does not wait. Makes a system call.
    pub fn will_need(&self, address: Address, guard: &Guard) {
        if let Some(segment) = self.at(address.slot(), guard) {
            segment.file().will_need(address.offset(), FIRST_READ as u64);
        }
    }
}

impl Drop for SegmentTable {
    fn drop(&mut self) {
        let used = self.free.lock().next as usize; // later slots were never assigned
        for slot in &self.slots[..used] {
            let pointer = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !pointer.is_null() {
                // SAFETY: `&mut self` excludes readers of the table. The swap leaves null for
                // deferred removals, so they do not release the reference again.
                drop(unsafe { Arc::from_raw(pointer) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DATA_START, SegmentIdentity};
    use super::*;
    use crate::types::{Incarnation, LogId, StoreId};
    use sheaf_platform::disk::Disk;
    use sheaf_sim::SimDisk;
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
        // Segment 5 was deleted since; 7 and 9 were created after the slots were saved.
        let then = HashMap::from([(SegmentId(3), 2), (SegmentId(4), 0), (SegmentId(5), 1)]);
        let table = SegmentTable::with_slots(5);
        assert!(table.add_all(&all, &then));
        assert_eq!(all.iter().map(|s| s.slot()).collect::<Vec<_>>(), [2, 0, 3, 4]);
        assert!(table.at(1, &epoch::pin()).is_none());
        assert_eq!(table.add(&segment(10)), Some(1));
        assert_eq!(table.add(&segment(11)), None);

        // Contradictory or impossible slots are replaced.
        let then = HashMap::from([(SegmentId(3), 1), (SegmentId(4), 1), (SegmentId(7), 77)]);
        let table = SegmentTable::with_slots(4);
        assert!(table.add_all(&all, &then));
        let mut slots: Vec<u32> = all.iter().map(|s| s.slot()).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3]);
        assert!(!SegmentTable::with_slots(3).add_all(&all, &then));
    }
}
