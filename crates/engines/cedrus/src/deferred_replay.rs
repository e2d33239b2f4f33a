//! # Deferred replay: records of the log that are not in the trie yet
//!
//! An opening reads the log behind the last checkpoint, but stores only the hash and the address of
//! each record. The records of a part of the hashes are inserted when an operation needs the part,
//! or in the background. So an opening reads the log sequentially, and neither pages of the trie
//! nor the replaced records.
//!
//! ## Picture
//!
//! ```text
//!  replay: record ──hash──> part [ (hash, address) ... ]     a part for each digit of the root
//!                              │ look-up, cursor or background step; takes the lock of the part
//!                              v
//!          by hash: entries of trie and part ──> newest record of each key ──> trie, accounting
//! ```
//!
//! ## Invariants
//!
//! 1. No operation reads a hash in the trie, or commits to it, before its part is replayed. So
//!    deferred records are older than every commit since the opening.
//! 2. GC frees a segment only after it has asked about each of its records. By then their parts are
//!    replayed, so no deferred address is dangling.
//! 3. A checkpoint begins when no record is deferred.
//! 4. A deferred put counts as live; its replay corrects the count. So GC never treats an unknown
//!    record as dead.
//! 5. Slots of segments that were freed before the opening may be reused. Until a part is replayed,
//!    all its entries with such a slot belong to the old segment, and their replacement or removal
//!    is deferred.
//! 6. All records of a hash are read before the first change for them. If a read fails, nothing
//!    changes.

use std::collections::HashSet;
use std::sync::OnceLock;

use sheaf_engine::contract::ReplayRecord;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::Seq;
use sheaf_platform::disk::cached_reads;
use sheaf_platform::error::{IoContext, IoOp, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use crate::engine::CedrusEngine;
use crate::entry_list::{KeyHash, TrieEntry};
use crate::shape::{HASH_BITS, TrieShape};

/// Number of parts that one background step replays.
const PARTS_PER_STEP: usize = 8;
/// Number of records ahead for which memory is prefetched.
const PREFETCH_DISTANCE: usize = 12;

/// Record that is not in the trie yet. It takes 16 bytes.
#[derive(Clone, Copy, Debug)]
struct DeferredRecord {
    hash: KeyHash,
    address: Address,
}

/// Deferred records of a keyspace, usable from any thread. The lock of a part comes before the
/// locks of the trie. It is held while pages and records are read.
#[derive(Debug)]
pub(crate) struct DeferredReplay {
    /// Number of hash bits that select the part.
    bits: u32,
    /// Allocated on first use: most openings find no records to defer.
    parts: OnceLock<Box<[Mutex<Vec<DeferredRecord>>]>>,
    /// Number of records in all parts.
    count: AtomicU64,
    /// Next part that the background replays.
    next_part: AtomicUsize,
    /// True if a deferred record refers to a blob.
    has_blobs: AtomicBool,
    /// Slots with segments that no longer existed at the opening.
    gone_slots: Mutex<HashSet<u32>>,
}

impl DeferredReplay {
    pub(crate) fn new(shape: &TrieShape) -> DeferredReplay {
        DeferredReplay {
            bits: shape.root_bits,
            parts: OnceLock::new(),
            count: AtomicU64::new(0),
            next_part: AtomicUsize::new(0),
            has_blobs: AtomicBool::new(false),
            gone_slots: Mutex::default(),
        }
    }

    /// Marks the segment of `slot` in the image as freed. Its entries are dropped when their hashes
    /// are replayed. All of them are replayed: GC freed the segment only after all its records had
    /// been moved, superseded or removed. These changes are newer than the image, so they are in
    /// the log (I5).
    pub(crate) fn mark_slot_gone(&self, slot: u32) {
        self.gone_slots.lock().insert(slot);
    }

    /// Returns whether the segment of `slot` in the image was freed before the opening.
    pub(crate) fn is_slot_gone(&self, slot: u32) -> bool {
        self.gone_slots.lock().contains(&slot)
    }

    fn is_gone(&self, address: Address) -> bool {
        self.is_slot_gone(address.slot()) // I5
    }

    /// Returns whether records are deferred.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(self.count.load(Ordering::Relaxed))
    }

    /// Returns the parts; empty if no record was ever deferred.
    fn parts(&self) -> &[Mutex<Vec<DeferredRecord>>] {
        self.parts.get().map_or(&[], |parts| parts)
    }

    fn add(&self, due: DeferredRecord) {
        let parts = self.parts.get_or_init(|| (0..1 << self.bits).map(|_| Mutex::default()).collect());
        parts[self.part_of(due.hash.path)].lock().push(due);
    }

    fn part_of(&self, hash: u32) -> usize {
        (hash >> (HASH_BITS - self.bits)) as usize
    }

    /// Returns the last hash of the part of `hash`.
    fn end_of_part(&self, hash: u32) -> u32 {
        hash | u32::MAX >> self.bits
    }
}

fn bytes_of(count: u64) -> u64 {
    count * size_of::<DeferredRecord>() as u64
}

/// Newest record of a key among the records read so far.
struct NewestRecord<'g> {
    address: Address,
    frame: Frame<'g>,
    is_in_trie: bool,
}

/// Record that a newer record of its key supersedes.
struct SupersededRecord {
    address: Address,
    span: u64,
    /// True if the record is in the trie.
    is_in_trie: bool,
    /// True if the record counts as live.
    is_put: bool,
    blob: Option<u64>,
}

/// Combined result of the records of one hash.
#[derive(Default)]
struct HashReplayResult<'g> {
    newest: SmallVec<[NewestRecord<'g>; 2]>,
    superseded: SmallVec<[SupersededRecord; 2]>,
    /// Entries of the trie in freed segments.
    gone_addresses: SmallVec<[Address; 2]>,
    /// Deferred records that are in the trie already, and were counted as live twice.
    duplicates: SmallVec<[(Address, u64); 2]>,
}

fn negative(span: u64) -> i64 {
    -i64::try_from(span).unwrap_or(0)
}

impl CedrusEngine {
    /// Defers records of the log.
    pub(crate) fn defer_replay(&self, records: &[ReplayRecord<'_>]) {
        let guard = &epoch::pin();
        self.context.memory.take(MemoryPart::Index, bytes_of(records.len() as u64));
        for record in records {
            match record.content {
                RecordContent::Remove => self.accounting.count_tombstone(record.address, record.span, guard),
                // I4
                _ => self.accounting.count_live(record.address, i64::from(record.span), guard),
            }
            if record.content.blob_id().is_some() {
                self.deferred_replay.has_blobs.store(true, Ordering::Relaxed);
            }
            self.replay_cost.add_record(record.span);
            self.deferred_replay.add(DeferredRecord { hash: self.hash(record.key), address: record.address });
        }
        self.deferred_replay.count.fetch_add(records.len() as u64, Ordering::Release);
    }

    /// Called when all records are deferred. Replays them at once if records refer to blobs,
    /// because the blobs in use must be known before the first request. This call replays the parts
    /// of one thread of `shares`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`](sheaf_platform::error::Error::Io) or
    /// [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if a page or record cannot be
    /// read.
    pub(crate) fn replay_if_blobs(&self, share: usize, shares: usize) -> Result<()> {
        let is_urgent =
            self.deferred_replay.has_blobs.load(Ordering::Relaxed) || self.accounting.blob_count() > 0;
        let mine = (share..self.deferred_replay.parts().len()).step_by(shares);
        if is_urgent { mine.into_iter().try_for_each(|part| self.replay_part(part)) } else { Ok(()) }
    }

    /// Replays the part of `hash`. Must be called before each read of `hash` in the trie (I1).
    ///
    /// # Errors
    ///
    /// Same as [`CedrusEngine::replay_if_blobs`].
    #[inline]
    pub(crate) fn ensure_replayed(&self, hash: u32) -> Result<()> {
        if self.deferred_replay.has_pending() { self.replay_part_of(hash) } else { Ok(()) }
    }

    /// Replays the part of `hash`. A caller that must not wait for the device finds the part
    /// replayed, or is refused.
    #[cold]
    fn replay_part_of(&self, hash: u32) -> Result<()> {
        let part = self.deferred_replay.part_of(hash);
        if cached_reads::is_active() {
            let due = self.deferred_replay.parts()[part].try_lock();
            if due.is_none_or(|due| !due.is_empty()) {
                return Err(cached_reads::refuse()).during(IoOp::Read, &self.trie_file.page_file.path);
            }
            return Ok(());
        }
        self.replay_part(part)
    }

    /// Replays the part of `from`. Returns the last hash up to which the trie is complete from
    /// there on.
    ///
    /// # Errors
    ///
    /// Same as [`CedrusEngine::replay_if_blobs`].
    pub(crate) fn ensure_replayed_from(&self, from: u32) -> Result<u32> {
        if !self.deferred_replay.has_pending() {
            return Ok(u32::MAX);
        }
        self.replay_part(self.deferred_replay.part_of(from))?;
        Ok(self.deferred_replay.end_of_part(from))
    }

    /// Replays all parts.
    ///
    /// # Errors
    ///
    /// Same as [`CedrusEngine::replay_if_blobs`].
    pub(crate) fn replay_all_deferred(&self) -> Result<()> {
        if self.deferred_replay.has_pending() {
            (0..self.deferred_replay.parts().len()).try_for_each(|part| self.replay_part(part))?;
        }
        Ok(())
    }

    /// Performs a background step. Returns true if there may be more. Damage is not an error here:
    /// operations that need the part report it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`](sheaf_platform::error::Error::Io) if a read fails.
    pub(crate) fn replay_deferred_step(&self) -> Result<bool> {
        let pay = |part| match self.replay_part(part) {
            Err(error) if error.is_corrupt() => Ok(()),
            other => other,
        };
        for _ in 0..PARTS_PER_STEP {
            let part = self.deferred_replay.next_part.fetch_add(1, Ordering::Relaxed);
            if part >= self.deferred_replay.parts().len() {
                // All parts were visited. Waits for threads that replay a part, and retries the
                // failed parts. Every later step does the same. It returns false, so that damage
                // does not keep the background busy.
                self.deferred_replay.next_part.store(self.deferred_replay.parts().len(), Ordering::Relaxed);
                return (0..self.deferred_replay.parts().len()).try_for_each(pay).map(|()| false);
            }
            pay(part)?;
        }
        Ok(true)
    }

    /// Drops all deferred records and their live bytes. The keyspace is dropped.
    pub(crate) fn drop_deferred(&self, guard: &Guard) {
        for part in self.deferred_replay.parts() {
            let due = std::mem::take(&mut *part.lock());
            for one in &due {
                let frame = self.frame(one.address, guard).ok();
                let put = frame.filter(|frame| {
                    let record = self.record(one.address, frame, guard);
                    record.is_ok_and(|record| !matches!(record.content, RecordContent::Remove))
                });
                if let Some(frame) = put {
                    self.accounting.count_live(one.address, negative(frame.span()), guard);
                }
            }
            self.note_replayed(due.len());
        }
    }

    fn note_replayed(&self, count: usize) {
        self.context.memory.give_back(MemoryPart::Index, bytes_of(count as u64));
        self.deferred_replay.count.fetch_sub(count as u64, Ordering::Release);
    }

    /// Replays a part. The caller waits for all of its records.
    fn replay_part(&self, part: usize) -> Result<()> {
        let mut due = self.deferred_replay.parts()[part].lock();
        if due.is_empty() {
            return Ok(());
        }
        due.sort_unstable_by_key(|one| (one.hash, one.address.bits()));
        let (mut done, mut result) = (0, Ok(()));
        for same in due.chunk_by(|a, b| a.hash == b.hash) {
            //
            // One guard for each hash: pages evicted under it stay in memory until it ends.
            let guard = &epoch::pin();
            self.prefetch_ahead(&due[done..], guard);
            result = self.replay_hash(same, guard);
            if result.is_err() {
                break;
            }
            done += same.len();
        }
        due.drain(..done);
        if due.is_empty() {
            *due = Vec::new();
        }
        self.note_replayed(done);
        result
    }

    /// Prefetches the data of later records: first the lines of the trie, then the records at the
    /// addresses found there.
    fn prefetch_ahead(&self, due: &[DeferredRecord], guard: &Guard) {
        if let Some(later) = due.get(2 * PREFETCH_DISTANCE) {
            self.trie.prefetch(later.hash.path, guard);
        }
        if let Some(soon) = due.get(PREFETCH_DISTANCE) {
            let ask = |address| self.context.segments.prefetch_entry(address, guard);
            ask(soon.address);
            let _ = self.trie.find(soon.hash, guard, ask); // a prefetch only: errors are ignored
        }
    }

    /// Replays all deferred records of one hash.
    fn replay_hash(&self, due: &[DeferredRecord], guard: &Guard) -> Result<()> {
        let hash = due[0].hash;
        let found = self.with_pages(guard, || self.trie.find(hash, guard, |_| {}))?;
        let mut settled = HashReplayResult::default();
        for address in found.iter().copied() {
            match self.deferred_replay.is_gone(address) {
                true => settled.gone_addresses.push(address),
                false => self.add_candidate(&mut settled, address, true, guard)?,
            }
        }
        for one in due {
            if found.contains(&one.address) && !self.deferred_replay.is_gone(one.address) {
                settled.duplicates.push((one.address, self.frame(one.address, guard)?.span()));
            } else {
                self.add_candidate(&mut settled, one.address, false, guard)?;
            }
        }
        self.apply_replayed(hash, &settled, guard)
    }

    /// Compares a record with the other records of its key. The highest seq wins, and of two copies
    /// the one in the trie.
    fn add_candidate<'g>(
        &'g self,
        settled: &mut HashReplayResult<'g>,
        address: Address,
        is_in_trie: bool,
        guard: &'g Guard,
    ) -> Result<()> {
        let frame = self.frame(address, guard)?;
        let key = self.record(address, &frame, guard)?.key;
        let mut same = None;
        for (index, newest) in settled.newest.iter().enumerate() {
            if self.record(newest.address, &newest.frame, guard)?.key == key {
                same = Some(index);
            }
        }
        let one = NewestRecord { address, frame, is_in_trie };
        let Some(index) = same else {
            settled.newest.push(one);
            return Ok(());
        };
        let rank = |one: &NewestRecord<'_>| -> (Seq, bool) { (one.frame.header.seq, one.is_in_trie) };
        let best = &mut settled.newest[index];
        let loser = if rank(&one) > rank(best) { std::mem::replace(best, one) } else { one };
        let content = self.record(loser.address, &loser.frame, guard)?.content;
        settled.superseded.push(SupersededRecord {
            address: loser.address,
            span: loser.frame.span(),
            is_in_trie: loser.is_in_trie,
            is_put: !matches!(content, RecordContent::Remove),
            blob: content.blob_id(),
        });
        Ok(())
    }

    /// Points the trie at the newest records. All reads were successful (I6).
    fn apply_replayed(&self, hash: KeyHash, settled: &HashReplayResult<'_>, guard: &Guard) -> Result<()> {
        let mut puts: SmallVec<[Address; 2]> = SmallVec::new();
        let mut blobs: SmallVec<[(u64, Address); 2]> = SmallVec::new();
        for one in &settled.newest {
            let content = self.record(one.address, &one.frame, guard)?.content;
            blobs.extend(content.blob_id().map(|blob| (blob, one.address)));
            if !one.is_in_trie && !matches!(content, RecordContent::Remove) {
                puts.push(one.address);
            }
        }
        let superseded =
            settled.superseded.iter().filter(|loser| loser.is_in_trie).map(|loser| loser.address);
        let mut old = settled.gone_addresses.iter().copied().chain(superseded);
        let mut new = puts.into_iter();
        loop {
            // Entries of one hash differ only in their addresses, so any old entry can be reused
            // for any new one.
            let changed = match (old.next(), new.next()) {
                (Some(from), Some(to)) => self.trie.replace(hash, from, to, guard).map(drop),
                (Some(from), None) => self.trie.remove(hash, from, guard).map(drop),
                (None, Some(to)) => self.trie.insert(TrieEntry::new(hash, to), guard),
                (None, None) => break,
            };
            if self.note_change_result(changed).is_none() {
                return Err(self.failure_error());
            }
        }
        for loser in settled.superseded.iter().filter(|loser| loser.is_put) {
            self.accounting.count_live(loser.address, negative(loser.span), guard);
        }
        for (address, span) in &settled.duplicates {
            self.accounting.count_live(*address, negative(*span), guard);
        }
        // In this order, because a superseded record may be a copy of the newest one, with the same
        // blob.
        for blob in settled.superseded.iter().filter_map(|loser| loser.blob) {
            self.accounting.remove_blob(blob);
        }
        blobs.iter().for_each(|(blob, address)| self.accounting.add_blob(*blob, *address));
        Ok(())
    }
}
