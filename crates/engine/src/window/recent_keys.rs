//! # Recent keys: the keys of recent commits, for transactions that read ranges
//!
//! A transaction that reads a range registers as a reader. While there are readers, each commit
//! records its keys. When the transaction commits, it looks for a recorded key in its ranges. It
//! thus finds changes without reading data that did not change (decisions/0051, scenario W42).
//!
//! ## Picture
//!
//! ```text
//!   reader:  registers ─> snapshot A ─> ... ─> window closed, commits complete ─> check, commit
//!   commit:  reserves seq ─> any readers? records its keys ─> complete
//!   shards:  keyspace -> key -> newest seq          one for some threads, each with a limit
//! ```
//!
//! ## Invariants
//!
//! 1. A reader registers before it takes its snapshot. A commit looks for readers after it reserved
//!    its seq, and records before it is complete. Hence every commit after the snapshot that is
//!    complete is recorded.
//! 2. The bound of a reader is at most the seq of its snapshot. Keys are dropped up to the lowest
//!    bound, or all at once by the last reader that ends.
//! 3. If a shard exceeds its limit, it drops its keys and raises the floor to their newest seq. A
//!    check of a snapshot below the floor fails.
//!
//! ## Costs
//!
//! Without readers, a commit reads one flag. With readers, it takes the lock of its thread's shard
//! and copies its keys. A check takes each lock once and costs O(log n) for each range and shard,
//! and O(1) for each recorded key in a range.

use std::collections::BTreeMap;
use std::ops::Bound;

use crossbeam_utils::CachePadded;

use super::CommitProgress;
use crate::contract::Bounds;
use crate::keys::borrow_bound;
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sheaf_platform::sync::{self, Mutex};

/// Number of shards. A thread records in one of them.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 16 };
/// Estimated bytes of an entry besides its key.
const ENTRY_BYTES: usize = 48;

/// Keys that recent commits changed.
#[derive(Debug)]
pub struct RecentKeys {
    /// Number of registered readers.
    readers: CachePadded<AtomicUsize>,
    /// Number of readers by their bound.
    bounds: Mutex<BTreeMap<Seq, usize>>,
    /// The lowest bound of the present readers, or of the last ones.
    lowest: AtomicU64,
    /// Commits up to this seq may be missing.
    floor: AtomicU64,
    shards: [CachePadded<Mutex<RecentShard>>; SHARDS],
    /// Largest number of bytes of one shard.
    shard_limit: usize,
}

#[derive(Debug, Default)]
struct RecentShard {
    /// The newest recorded commit of each key.
    keyspaces: BTreeMap<KeyspaceId, BTreeMap<Box<[u8]>, Seq>>,
    /// Ranges that commits removed.
    ranges: Vec<(KeyspaceId, Bounds, Seq)>,
    bytes: usize,
    /// Number of bytes from which the shard looks for keys that no reader needs.
    trim_at: usize,
    newest: Seq,
}

impl RecentShard {
    fn insert(&mut self, seq: Seq, keyspace: KeyspaceId, key: &[u8]) {
        self.newest = self.newest.max(seq);
        let keys = self.keyspaces.entry(keyspace).or_default();
        match keys.get_mut(key) {
            Some(newest) => *newest = seq.max(*newest),
            None => {
                keys.insert(key.into(), seq);
                self.bytes += key.len() + ENTRY_BYTES;
            }
        }
    }

    fn insert_range(&mut self, seq: Seq, keyspace: KeyspaceId, range: Bounds) {
        self.newest = self.newest.max(seq);
        self.bytes += range_bytes(&range);
        self.ranges.push((keyspace, range, seq));
    }

    /// Drops the keys of commits up to `upto`.
    fn drop_upto(&mut self, upto: Seq) {
        self.ranges.retain(|(_, _, seq)| *seq > upto);
        let mut bytes = self.ranges.iter().map(|(_, range, _)| range_bytes(range)).sum();
        for keys in self.keyspaces.values_mut() {
            keys.retain(|key, seq| {
                let stays = *seq > upto;
                bytes += if stays { key.len() + ENTRY_BYTES } else { 0 };
                stays
            });
        }
        self.keyspaces.retain(|_, keys| !keys.is_empty());
        self.bytes = bytes;
    }

    fn has_newer(&self, since: Seq, keyspace: KeyspaceId, bounds: &Bounds) -> bool {
        let is_removed = |(of, range, seq): &(KeyspaceId, Bounds, Seq)| {
            *of == keyspace && *seq > since && range.overlaps(bounds)
        };
        if self.ranges.iter().any(is_removed) {
            return true;
        }
        let Some(keys) = self.keyspaces.get(&keyspace).filter(|_| !bounds.is_empty()) else { return false };
        let range = (borrow_bound(&bounds.low), borrow_bound(&bounds.high));
        keys.range::<[u8], _>(range).any(|(_, seq)| *seq > since)
    }
}

/// Returns the estimated bytes of a recorded range.
fn range_bytes(range: &Bounds) -> usize {
    let len = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.len(),
        Bound::Unbounded => 0,
    };
    2 * ENTRY_BYTES + len(&range.low) + len(&range.high)
}

/// Change that a commit records.
#[derive(Clone, Debug)]
pub enum ChangedKey<'k> {
    /// One key.
    Key(&'k [u8]),
    /// All keys of a range, which was removed.
    Range(Bounds),
}

/// Registration of a reader. The owner passes it to [`RecentKeys::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the registration must be released"]
pub struct RangeReader {
    bound: Seq,
}

impl RecentKeys {
    /// Creates an empty record of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> RecentKeys {
        let shard_limit = (limit / SHARDS).max(ENTRY_BYTES);
        let shard = || RecentShard { trim_at: shard_limit / 4, ..RecentShard::default() };
        RecentKeys {
            readers: CachePadded::default(),
            bounds: Mutex::new(BTreeMap::new()),
            lowest: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            shards: std::array::from_fn(|_| CachePadded::new(Mutex::new(shard()))),
            shard_limit,
        }
    }

    /// Registers a reader. It must take its snapshot afterwards, and the snapshot must include all
    /// commits that had a seq when it was taken.
    pub fn register(&self, progress: &CommitProgress) -> RangeReader {
        let mut bounds = self.bounds.lock();
        let bound = progress.visible();
        let lowest = bounds.keys().next().copied().unwrap_or(bound);
        *bounds.entry(bound).or_default() += 1;
        self.lowest.store(lowest.min(bound).0, Ordering::SeqCst);
        self.readers.fetch_add(1, Ordering::SeqCst);
        RangeReader { bound }
    }

    /// Raises the bound of `reader` to the seq of its snapshot.
    pub fn set_bound(&self, reader: &mut RangeReader, snapshot: Seq) {
        assert!(reader.bound <= snapshot, "recent_keys (I2): a bound is at most the snapshot");
        let mut bounds = self.bounds.lock();
        self.remove_bound(&mut bounds, reader.bound);
        *bounds.entry(snapshot).or_default() += 1;
        reader.bound = snapshot;
        self.lowest.store(bounds.keys().next().map_or(0, |seq| seq.0), Ordering::SeqCst);
    }

    fn remove_bound(&self, bounds: &mut BTreeMap<Seq, usize>, bound: Seq) {
        if let Some(count) = bounds.get_mut(&bound) {
            *count -= 1;
            if *count == 0 {
                bounds.remove(&bound);
            }
        }
    }

    /// Ends the registration of a reader.
    pub fn release(&self, reader: RangeReader, memory: &Memory) {
        let mut bounds = self.bounds.lock();
        self.remove_bound(&mut bounds, reader.bound);
        match bounds.keys().next() {
            Some(lowest) => {
                self.lowest.store(lowest.0, Ordering::SeqCst);
                self.readers.fetch_sub(1, Ordering::SeqCst);
            }
            None => {
                self.readers.fetch_sub(1, Ordering::SeqCst);
                // Under the lock, so that no reader registers before the keys are dropped.
                for shard in &self.shards {
                    let mut shard = shard.lock();
                    memory.give_back(MemoryPart::Buffers, shard.bytes as u64);
                    *shard = RecentShard { trim_at: self.shard_limit / 4, ..RecentShard::default() };
                }
            }
        }
    }

    /// Returns whether commits must record their keys. A commit asks after it reserved its seq.
    #[inline]
    #[must_use]
    pub fn has_readers(&self) -> bool {
        self.readers.load(Ordering::SeqCst) > 0
    }

    /// Records the keys of commit `seq`. Must be called before the commit is complete.
    #[cold]
    pub fn record<'k>(
        &self,
        seq: Seq,
        keys: impl Iterator<Item = (KeyspaceId, ChangedKey<'k>)>,
        memory: &Memory,
    ) {
        let mut shard = self.shards[sync::thread_shard() % SHARDS].lock();
        if !self.has_readers() {
            return; // the last reader has ended, and no key may remain
        }
        let before = shard.bytes;
        keys.for_each(|(keyspace, key)| match key {
            ChangedKey::Key(key) => shard.insert(seq, keyspace, key),
            ChangedKey::Range(range) => shard.insert_range(seq, keyspace, range),
        });
        if shard.bytes > shard.trim_at {
            shard.drop_upto(Seq(self.lowest.load(Ordering::SeqCst)));
            if shard.bytes > self.shard_limit {
                self.floor.fetch_max(shard.newest.0, Ordering::SeqCst);
                *shard = RecentShard::default();
            }
            shard.trim_at = (2 * shard.bytes).clamp(self.shard_limit / 4, self.shard_limit);
        }
        match shard.bytes.checked_sub(before) {
            Some(more) => memory.take(MemoryPart::Buffers, more as u64),
            None => memory.give_back(MemoryPart::Buffers, (before - shard.bytes) as u64),
        }
    }

    /// Looks for a commit after `since` that changed a key in one of `ranges`. The caller must have
    /// registered before it took the snapshot `since`, and no commit may have a seq and be
    /// incomplete.
    #[must_use]
    pub fn find_change<'r>(
        &self,
        since: Seq,
        ranges: impl Iterator<Item = (KeyspaceId, &'r Bounds)> + Clone,
    ) -> Option<RecentChange> {
        if since.0 < self.floor.load(Ordering::SeqCst) {
            return Some(RecentChange::Forgotten);
        }
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let mut ranges = ranges.clone().enumerate();
            let found = ranges.find(|(_, (keyspace, bounds))| shard.has_newer(since, *keyspace, bounds));
            found.map(|(index, _)| RecentChange::InRange(index))
        })
    }

    /// Returns the number of readers, and the bytes of the recorded keys.
    #[must_use]
    pub fn stats(&self) -> (usize, u64) {
        let bytes = self.shards.iter().map(|shard| shard.lock().bytes as u64).sum();
        (self.readers.load(Ordering::Relaxed), bytes)
    }
}

/// Answer of [`RecentKeys::find_change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecentChange {
    /// A commit changed a key in the range of this index.
    InRange(usize),
    /// Keys were dropped because the record was full, so a change may be missing.
    Forgotten,
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;

    const USERS: KeyspaceId = KeyspaceId(1);

    fn range(low: &str, high: &str) -> Bounds {
        Bounds { low: Bound::Included(low.into()), high: Bound::Excluded(high.into()) }
    }

    fn record(keys: &RecentKeys, seq: u64, key: &str, memory: &Memory) {
        let key = (USERS, ChangedKey::Key(key.as_bytes()));
        keys.record(Seq(seq), [key].into_iter(), memory);
    }

    fn find(keys: &RecentKeys, since: u64, ranges: &[Bounds]) -> Option<RecentChange> {
        keys.find_change(Seq(since), ranges.iter().map(|bounds| (USERS, bounds)))
    }

    #[test]
    fn a_check_finds_changes_in_its_ranges_after_its_snapshot() {
        let (keys, memory, progress) =
            (RecentKeys::new(1 << 20), Memory::new(1 << 20), CommitProgress::started());
        let reader = keys.register(&progress);
        record(&keys, 1, "b", &memory);
        record(&keys, 2, "d", &memory);
        assert_eq!(find(&keys, 0, &[range("a", "b"), range("b", "c")]), Some(RecentChange::InRange(1)));
        assert_eq!(find(&keys, 1, &[range("b", "c"), range("c", "d")]), None, "not after the snapshot");
        assert_eq!(find(&keys, 1, &[Bounds::all()]), Some(RecentChange::InRange(0)));
        assert_eq!(find(&keys, 0, &[range("c", "a"), range("x", "x")]), None, "empty ranges");
        let elsewhere = Bounds::all();
        let other = keys.find_change(Seq(0), [(KeyspaceId(2), &elsewhere)].into_iter());
        assert_eq!(other, None, "another keyspace");
        assert!(memory.used(MemoryPart::Buffers) > 0);
        keys.release(reader, &memory);
        assert_eq!((keys.stats(), memory.used(MemoryPart::Buffers)), ((0, 0), 0));
    }

    #[test]
    fn nothing_is_recorded_without_readers() {
        let (keys, memory) = (RecentKeys::new(1 << 20), Memory::new(1 << 20));
        record(&keys, 1, "b", &memory);
        assert_eq!(keys.stats(), (0, 0));
    }

    #[test]
    fn a_full_record_fails_checks_of_older_snapshots_only() {
        let (keys, memory, progress) = (RecentKeys::new(1), Memory::new(1 << 20), CommitProgress::started());
        let reader = keys.register(&progress);
        record(&keys, 7, "b", &memory);
        assert_eq!(find(&keys, 6, &[range("x", "y")]), Some(RecentChange::Forgotten));
        assert_eq!(find(&keys, 7, &[Bounds::all()]), None);
        assert_eq!(memory.used(MemoryPart::Buffers), 0);
        keys.release(reader, &memory);
    }

    #[test]
    fn keys_that_no_reader_needs_are_dropped_before_the_record_is_full() {
        let (memory, progress) = (Memory::new(1 << 20), CommitProgress::started());
        let keys = RecentKeys::new(SHARDS * 100 * ENTRY_BYTES);
        let mut reader = keys.register(&progress);
        for seq in 1..=10_000u64 {
            record(&keys, seq, &format!("{seq:06}"), &memory);
            keys.set_bound(&mut reader, Seq(seq));
        }
        assert_eq!(find(&keys, 9_999, &[Bounds::all()]), Some(RecentChange::InRange(0)));
        assert!(keys.stats().1 <= (100 * ENTRY_BYTES) as u64);
        keys.release(reader, &memory);
        assert_eq!(keys.stats().1, 0);
    }
}
