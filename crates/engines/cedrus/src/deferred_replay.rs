//! # Owed: what a start found in the log, until somebody needs it
//!
//! A start reads the log behind the last checkpoint, as any engine's does, but notes of each record
//! only its hash and where it stands. The records are taken into the trie later, a part of the
//! hashes at a time: by whoever asks for a hash of the part, or by the background. So a start reads
//! one stretch of the log from front to back, and neither pages of the trie nor the records that
//! are replaced, which stand anywhere.
//!
//! ## Picture
//!
//! ```text
//!  replay: record ──hash──> part [ (hash, address) ... ]      as many parts as the root has digits
//!                              │ found(hash), a walk that comes by, or a step of the background: the part's lock
//!                              v
//!          by hash: what the trie has and what is owed ──> of each key the highest number ──> trie, accounts
//! ```
//!
//! ## Invariants
//!
//! 1. Nobody looks at a hash in the trie, and nothing is committed to it, before its part is taken
//!    in. So what is owed is older than all that the trie has got in this life.
//! 2. A segment goes only after the cleaner has asked about each of its records: their parts are
//!    taken in by then, and no address that is owed leads nowhere.
//! 3. A checkpoint begins when nothing is owed.
//! 4. A put that is owed counts as live; taking it in corrects that. So the cleaner never takes
//!    what it does not know for dead.
//! 5. Slots of segments that had gone at the start may be given out again. Until a part is taken
//!    in, all its entries there are of then: what lived there was moved, superseded or removed, and
//!    is owed.
//! 6. All records of a hash are read before the first change for them: what cannot be read changes
//!    nothing, and stays owed.
//!
//! ## Threads
//!
//! Any. A part's lock is taken before the trie's, and is held while pages and records are read.
//!
//! ## Costs
//!
//! 16 bytes a record until it is taken in, which takes about a microsecond; who comes first to a
//! part waits for all of it. Names of staged values have to be known before anything is served:
//! where there are any, nothing is put off.

use std::collections::HashSet;
use std::sync::OnceLock;

use sheaf_base::engine::ReplayRecord;
use sheaf_base::error::Result;
use sheaf_base::memory::MemoryPart;
use sheaf_base::record::RecordContent;
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use smallvec::SmallVec;

use crate::engine::CedrusEngine;
use crate::entry_list::TrieEntry;
use crate::shape::{HASH_BITS, TrieShape};

/// Parts that a step of the background takes in.
const PARTS_PER_STEP: usize = 8;
/// Records ahead whose lines are asked for.
const PREFETCH_DISTANCE: usize = 12;

/// A record that is not in the trie yet.
#[derive(Clone, Copy, Debug)]
struct DeferredRecord {
    hash: u32,
    address: Address,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DeferredReplay {
    /// Bits of a hash that say its part.
    bits: u32,
    /// Made when something is owed: most lives of a keyspace owe nothing.
    parts: OnceLock<Box<[Mutex<Vec<DeferredRecord>>]>>,
    /// Records in all parts.
    count: AtomicU64,
    /// The part that the background takes in next.
    next_part: AtomicUsize,
    /// Staged values are among what was read.
    has_blobs: AtomicBool,
    /// Slots whose segments were gone at the start.
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

    /// At the start: what the image has in `slot` is gone.
    pub(crate) fn mark_slot_gone(&self, slot: u32) {
        self.gone_slots.lock().insert(slot);
    }

    /// Whether what the image has in `slot` was gone at the start.
    pub(crate) fn is_slot_gone(&self, slot: u32) -> bool {
        self.gone_slots.lock().contains(&slot)
    }

    fn is_gone(&self, address: Address) -> bool {
        self.is_slot_gone(address.slot()) // (I5)
    }

    /// Whether there is anything.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(self.count.load(Ordering::Relaxed))
    }

    /// The parts, if anything was ever owed.
    fn parts(&self) -> &[Mutex<Vec<DeferredRecord>>] {
        self.parts.get().map_or(&[], |parts| parts)
    }

    fn add(&self, due: DeferredRecord) {
        let parts = self.parts.get_or_init(|| (0..1 << self.bits).map(|_| Mutex::default()).collect());
        parts[self.part_of(due.hash)].lock().push(due);
    }

    fn part_of(&self, hash: u32) -> usize {
        (hash >> (HASH_BITS - self.bits)) as usize
    }

    /// The last hash of the part that `hash` is in.
    fn end_of_part(&self, hash: u32) -> u32 {
        hash | u32::MAX >> self.bits
    }
}

fn bytes_of(count: u64) -> u64 {
    count * size_of::<DeferredRecord>() as u64
}

/// The newest record of a key, as far as was seen.
struct NewestRecord<'g> {
    address: Address,
    frame: Frame<'g>,
    is_in_trie: bool,
}

/// A record that is superseded.
struct SupersededRecord {
    address: Address,
    span: u64,
    /// It is in the trie.
    is_in_trie: bool,
    /// It counts as live.
    is_put: bool,
    blob: Option<u64>,
}

/// What the records of one hash come to.
#[derive(Default)]
struct HashReplayResult<'g> {
    newest: SmallVec<[NewestRecord<'g>; 2]>,
    superseded: SmallVec<[SupersededRecord; 2]>,
    /// Entries of segments that are gone.
    gone_addresses: SmallVec<[Address; 2]>,
    /// What is owed and stands in the trie already: counted twice.
    duplicates: SmallVec<[(Address, u64); 2]>,
}

fn negative(span: u64) -> i64 {
    -i64::try_from(span).unwrap_or(0)
}

impl CedrusEngine {
    /// Notes records of the log.
    pub(crate) fn defer_replay(&self, records: &[ReplayRecord<'_>]) {
        let guard = &epoch::pin();
        self.context.memory.take(MemoryPart::Index, bytes_of(records.len() as u64));
        for record in records {
            match record.content {
                RecordContent::Remove => self.accounting.count_tombstone(record.address, record.span, guard),
                _ => self.accounting.count_live(record.address, i64::from(record.span), guard), // I4
            }
            if record.content.blob_id().is_some() {
                self.deferred_replay.has_blobs.store(true, Ordering::Relaxed);
            }
            self.replay_cost.add_record(record.span);
            self.deferred_replay.add(DeferredRecord { hash: self.hash(record.key), address: record.address });
        }
        self.deferred_replay.count.fetch_add(records.len() as u64, Ordering::Release);
    }

    /// All is noted. Takes it in at once where staged values are named, which it decides about: a
    /// share of it, by one thread of `shares`.
    pub(crate) fn replay_if_blobs(&self, share: usize, shares: usize) -> Result<()> {
        let is_urgent =
            self.deferred_replay.has_blobs.load(Ordering::Relaxed) || self.accounting.blob_count() > 0;
        let mine = (share..self.deferred_replay.parts().len()).step_by(shares);
        if is_urgent { mine.into_iter().try_for_each(|part| self.replay_part(part)) } else { Ok(()) }
    }

    /// Before anybody looks at `hash` in the trie (I1).
    #[inline]
    pub(crate) fn ensure_replayed(&self, hash: u32) -> Result<()> {
        if self.deferred_replay.has_pending() {
            self.replay_part(self.deferred_replay.part_of(hash))
        } else {
            Ok(())
        }
    }

    /// Takes in the part of `from`; the last hash up to which the trie has all from there on.
    pub(crate) fn ensure_replayed_from(&self, from: u32) -> Result<u32> {
        if !self.deferred_replay.has_pending() {
            return Ok(u32::MAX);
        }
        self.replay_part(self.deferred_replay.part_of(from))?;
        Ok(self.deferred_replay.end_of_part(from))
    }

    /// Takes in everything.
    pub(crate) fn replay_all_deferred(&self) -> Result<()> {
        if self.deferred_replay.has_pending() {
            (0..self.deferred_replay.parts().len()).try_for_each(|part| self.replay_part(part))?;
        }
        Ok(())
    }

    /// A step of the background. True if there may be more. Damage is an error of whoever needs it.
    pub(crate) fn replay_deferred_step(&self) -> Result<bool> {
        let pay = |part| match self.replay_part(part) {
            Err(error) if error.is_corrupt() => Ok(()),
            other => other,
        };
        for _ in 0..PARTS_PER_STEP {
            let part = self.deferred_replay.next_part.fetch_add(1, Ordering::Relaxed);
            if part >= self.deferred_replay.parts().len() {
                // Waits for who has one in hand, and tries again what failed; so does every step
                // from here on, none says that there is more, and nobody goes round in circles
                // about what is damaged.
                self.deferred_replay.next_part.store(self.deferred_replay.parts().len(), Ordering::Relaxed);
                return (0..self.deferred_replay.parts().len()).try_for_each(pay).map(|()| false);
            }
            pay(part)?;
        }
        Ok(true)
    }

    /// The keyspace is dropped: nothing of what is owed is live.
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

    /// Takes in a part.
    fn replay_part(&self, part: usize) -> Result<()> {
        let mut due = self.deferred_replay.parts()[part].lock();
        if due.is_empty() {
            return Ok(());
        }
        due.sort_unstable_by_key(|one| (one.hash, one.address.bits()));
        let (mut done, mut result) = (0, Ok(()));
        for same in due.chunk_by(|a, b| a.hash == b.hash) {
            let guard = &epoch::pin(); // for this hash: what is evicted meanwhile stays in memory as long
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

    /// Asks for what is read soon: first the trie's lines, then the records that these name.
    fn prefetch_ahead(&self, due: &[DeferredRecord], guard: &Guard) {
        if let Some(later) = due.get(2 * PREFETCH_DISTANCE) {
            self.trie.prefetch(later.hash, guard);
        }
        if let Some(soon) = due.get(PREFETCH_DISTANCE) {
            let ask = |address| self.context.segments.prefetch_entry(address, guard);
            ask(soon.address);
            let _ = self.trie.find(soon.hash, guard, ask); // a hint: whoever looks up says what is wrong
        }
    }

    /// Takes in all that is owed of one hash.
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

    /// Weighs a record against the others of its key: the highest number stays, and of two copies
    /// the one that is in the trie.
    fn add_candidate<'g>(
        &self,
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

    /// Points the trie at the newest records (I6).
    fn apply_replayed(&self, hash: u32, settled: &HashReplayResult<'_>, guard: &Guard) -> Result<()> {
        let mut puts: SmallVec<[Address; 2]> = SmallVec::new();
        let mut staged: SmallVec<[(u64, Address); 2]> = SmallVec::new();
        for one in &settled.newest {
            let content = self.record(one.address, &one.frame, guard)?.content;
            staged.extend(content.blob_id().map(|blob| (blob, one.address)));
            if !one.is_in_trie && !matches!(content, RecordContent::Remove) {
                puts.push(one.address);
            }
        }
        let superseded =
            settled.superseded.iter().filter(|loser| loser.is_in_trie).map(|loser| loser.address);
        let mut old = settled.gone_addresses.iter().copied().chain(superseded);
        let mut new = puts.into_iter();
        loop {
            // Entries of a hash differ by their addresses only.
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
        // In this order: what loses may be a copy of what stays.
        for blob in settled.superseded.iter().filter_map(|loser| loser.blob) {
            self.accounting.remove_blob(blob);
        }
        staged.iter().for_each(|(blob, address)| self.accounting.add_blob(*blob, *address));
        Ok(())
    }
}
