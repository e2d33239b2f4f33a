//! # Owed: what a start found in the log, until somebody needs it
//!
//! A start reads the log behind the last checkpoint, as any engine's does, but notes of each record only its hash and where it
//! stands. The records are taken into the trie later, a part of the hashes at a time: by whoever asks for a hash of the
//! part, or by the background. So a start reads one stretch of the log from front to back, and neither pages of the trie nor
//! the records that are replaced, which stand anywhere.
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
//! 1. Nobody looks at a hash in the trie, and nothing is committed to it, before its part is taken in. So what is owed is older
//!    than all that the trie has got in this life.
//! 2. A segment goes only after the cleaner has asked about each of its records: their parts are taken in by then, and no
//!    address that is owed leads nowhere.
//! 3. A checkpoint begins when nothing is owed.
//! 4. A put that is owed counts as live; taking it in corrects that. So the cleaner never takes what it does not know for dead.
//! 5. Slots of segments that had gone at the start may be given out again. Until a part is taken in, all its entries there are of
//!    then: what lived there was moved, superseded or removed, and is owed.
//! 6. All records of a hash are read before the first change for them: what cannot be read changes nothing, and stays owed.
//!
//! ## Threads
//!
//! Any. A part's lock is taken before the trie's, and is held while pages and records are read.
//!
//! ## Costs
//!
//! 16 bytes a record until it is taken in, which takes about a microsecond; who comes first to a part waits for all of it.
//! Names of staged values have to be known before anything is served: where there are any, nothing is put off.

use std::collections::HashSet;
use std::sync::OnceLock;

use sheaf_base::engine::Replay;
use sheaf_base::error::Result;
use sheaf_base::memory::Part;
use sheaf_base::record::Content;
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use smallvec::SmallVec;

use crate::engine::CedrusEngine;
use crate::list::Entry;
use crate::shape::{HASH_BITS, Shape};

/// Parts that a step of the background takes in.
const PARTS_A_STEP: usize = 8;
/// Records ahead whose lines are asked for.
const AHEAD: usize = 12;

/// A record that is not in the trie yet.
#[derive(Clone, Copy, Debug)]
struct Due {
    hash: u32,
    address: Address,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Owed {
    /// Bits of a hash that say its part.
    bits: u32,
    /// Made when something is owed: most lives of a keyspace owe nothing.
    parts: OnceLock<Box<[Mutex<Vec<Due>>]>>,
    /// Records in all parts.
    count: AtomicU64,
    /// The part that the background takes in next.
    next: AtomicUsize,
    /// Staged values are among what was read.
    has_staged: AtomicBool,
    /// Slots whose segments were gone at the start.
    gone: Mutex<HashSet<u32>>,
}

impl Owed {
    pub(crate) fn new(shape: &Shape) -> Owed {
        Owed {
            bits: shape.root_bits,
            parts: OnceLock::new(),
            count: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            has_staged: AtomicBool::new(false),
            gone: Mutex::default(),
        }
    }

    /// At the start: what the image has in `slot` is gone.
    pub(crate) fn lose(&self, slot: u32) {
        self.gone.lock().insert(slot);
    }

    /// Whether what the image has in `slot` was gone at the start.
    pub(crate) fn has_lost(&self, slot: u32) -> bool {
        self.gone.lock().contains(&slot)
    }

    fn is_gone(&self, address: Address) -> bool {
        self.has_lost(address.slot()) // (I5)
    }

    /// Whether there is anything.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(self.count.load(Ordering::Relaxed))
    }

    /// The parts, if anything was ever owed.
    fn parts(&self) -> &[Mutex<Vec<Due>>] {
        self.parts.get().map_or(&[], |parts| parts)
    }

    fn add(&self, due: Due) {
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
    count * size_of::<Due>() as u64
}

/// The newest record of a key, as far as was seen.
struct Newest<'g> {
    address: Address,
    frame: Frame<'g>,
    is_there: bool,
}

/// A record that is superseded.
struct Loser {
    address: Address,
    span: u64,
    /// It is in the trie.
    is_there: bool,
    /// It counts as live.
    is_put: bool,
    blob: Option<u64>,
}

/// What the records of one hash come to.
#[derive(Default)]
struct Settled<'g> {
    newest: SmallVec<[Newest<'g>; 2]>,
    losers: SmallVec<[Loser; 2]>,
    /// Entries of segments that are gone.
    gone: SmallVec<[Address; 2]>,
    /// What is owed and stands in the trie already: counted twice.
    twice: SmallVec<[(Address, u64); 2]>,
}

fn negative(span: u64) -> i64 {
    -i64::try_from(span).unwrap_or(0)
}

impl CedrusEngine {
    /// Notes records of the log.
    pub(crate) fn owe(&self, records: &[Replay<'_>]) {
        let guard = &epoch::pin();
        self.ground.memory.take(Part::Index, bytes_of(records.len() as u64));
        for record in records {
            match record.content {
                Content::Remove => self.accounts.count_tomb(record.address, record.span, guard),
                _ => self.accounts.count(record.address, i64::from(record.span), guard), // I4
            }
            if record.content.staged().is_some() {
                self.owed.has_staged.store(true, Ordering::Relaxed);
            }
            self.tail.add(record.span);
            self.owed.add(Due { hash: self.hash(record.key), address: record.address });
        }
        self.owed.count.fetch_add(records.len() as u64, Ordering::Release);
    }

    /// All is noted. Takes it in at once where staged values are named, which it decides about: a share of it, by one thread of
    /// `shares`.
    pub(crate) fn take_in_if_urgent(&self, share: usize, shares: usize) -> Result<()> {
        let is_urgent = self.owed.has_staged.load(Ordering::Relaxed) || self.accounts.staged() > 0;
        let mine = (share..self.owed.parts().len()).step_by(shares);
        if is_urgent { mine.into_iter().try_for_each(|part| self.take_in(part)) } else { Ok(()) }
    }

    /// Before anybody looks at `hash` in the trie (I1).
    #[inline]
    pub(crate) fn pay(&self, hash: u32) -> Result<()> {
        if self.owed.is_any() { self.take_in(self.owed.part_of(hash)) } else { Ok(()) }
    }

    /// Takes in the part of `from`; the last hash up to which the trie has all from there on.
    pub(crate) fn pay_from(&self, from: u32) -> Result<u32> {
        if !self.owed.is_any() {
            return Ok(u32::MAX);
        }
        self.take_in(self.owed.part_of(from))?;
        Ok(self.owed.end_of_part(from))
    }

    /// Takes in everything.
    pub(crate) fn pay_all(&self) -> Result<()> {
        if self.owed.is_any() {
            (0..self.owed.parts().len()).try_for_each(|part| self.take_in(part))?;
        }
        Ok(())
    }

    /// A step of the background. True if there may be more. Damage is an error of whoever needs it.
    pub(crate) fn pay_some(&self) -> Result<bool> {
        let pay = |part| match self.take_in(part) {
            Err(error) if error.is_corrupt() => Ok(()),
            other => other,
        };
        for _ in 0..PARTS_A_STEP {
            let part = self.owed.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.owed.parts().len() {
                // Waits for who has one in hand, and tries again what failed; so does every step from here on, none says that
                // there is more, and nobody goes round in circles about what is damaged.
                self.owed.next.store(self.owed.parts().len(), Ordering::Relaxed);
                return (0..self.owed.parts().len()).try_for_each(pay).map(|()| false);
            }
            pay(part)?;
        }
        Ok(true)
    }

    /// The keyspace is dropped: nothing of what is owed is live.
    pub(crate) fn forget_owed(&self, guard: &Guard) {
        for part in self.owed.parts() {
            let due = std::mem::take(&mut *part.lock());
            for one in &due {
                let frame = self.frame(one.address, guard).ok();
                let put = frame.filter(|frame| {
                    let record = self.record(one.address, frame, guard);
                    record.is_ok_and(|record| !matches!(record.content, Content::Remove))
                });
                if let Some(frame) = put {
                    self.accounts.count(one.address, negative(frame.span()), guard);
                }
            }
            self.paid(due.len());
        }
    }

    fn paid(&self, count: usize) {
        self.ground.memory.give(Part::Index, bytes_of(count as u64));
        self.owed.count.fetch_sub(count as u64, Ordering::Release);
    }

    /// Takes in a part.
    fn take_in(&self, part: usize) -> Result<()> {
        let mut due = self.owed.parts()[part].lock();
        if due.is_empty() {
            return Ok(());
        }
        due.sort_unstable_by_key(|one| (one.hash, one.address.bits()));
        let (mut done, mut result) = (0, Ok(()));
        for same in due.chunk_by(|a, b| a.hash == b.hash) {
            let guard = &epoch::pin(); // for this hash: what is evicted meanwhile stays in memory as long
            self.ask_ahead(&due[done..], guard);
            result = self.take_in_hash(same, guard);
            if result.is_err() {
                break;
            }
            done += same.len();
        }
        due.drain(..done);
        if due.is_empty() {
            *due = Vec::new();
        }
        self.paid(done);
        result
    }

    /// Asks for what is read soon: first the trie's lines, then the records that these name.
    fn ask_ahead(&self, due: &[Due], guard: &Guard) {
        if let Some(later) = due.get(2 * AHEAD) {
            self.trie.prefetch(later.hash, guard);
        }
        if let Some(soon) = due.get(AHEAD) {
            let ask = |address| self.ground.segments.prefetch_entry(address, guard);
            ask(soon.address);
            let _ = self.trie.find(soon.hash, guard, ask); // a hint: whoever looks up says what is wrong
        }
    }

    /// Takes in all that is owed of one hash.
    fn take_in_hash(&self, due: &[Due], guard: &Guard) -> Result<()> {
        let hash = due[0].hash;
        let found = self.with_pages(guard, || self.trie.find(hash, guard, |_| {}))?;
        let mut settled = Settled::default();
        for address in found.iter().copied() {
            match self.owed.is_gone(address) {
                true => settled.gone.push(address),
                false => self.weigh(&mut settled, address, true, guard)?,
            }
        }
        for one in due {
            if found.contains(&one.address) && !self.owed.is_gone(one.address) {
                settled.twice.push((one.address, self.frame(one.address, guard)?.span()));
            } else {
                self.weigh(&mut settled, one.address, false, guard)?;
            }
        }
        self.settle(hash, &settled, guard)
    }

    /// Weighs a record against the others of its key: the highest number stays, and of two copies the one that is in the trie.
    fn weigh<'g>(
        &self,
        settled: &mut Settled<'g>,
        address: Address,
        is_there: bool,
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
        let one = Newest { address, frame, is_there };
        let Some(index) = same else {
            settled.newest.push(one);
            return Ok(());
        };
        let rank = |one: &Newest<'_>| -> (Seq, bool) { (one.frame.header.seq, one.is_there) };
        let best = &mut settled.newest[index];
        let loser = if rank(&one) > rank(best) { std::mem::replace(best, one) } else { one };
        let content = self.record(loser.address, &loser.frame, guard)?.content;
        settled.losers.push(Loser {
            address: loser.address,
            span: loser.frame.span(),
            is_there: loser.is_there,
            is_put: !matches!(content, Content::Remove),
            blob: content.staged(),
        });
        Ok(())
    }

    /// Points the trie at the newest records (I6).
    fn settle(&self, hash: u32, settled: &Settled<'_>, guard: &Guard) -> Result<()> {
        let mut puts: SmallVec<[Address; 2]> = SmallVec::new();
        let mut staged: SmallVec<[(u64, Address); 2]> = SmallVec::new();
        for one in &settled.newest {
            let content = self.record(one.address, &one.frame, guard)?.content;
            staged.extend(content.staged().map(|blob| (blob, one.address)));
            if !one.is_there && !matches!(content, Content::Remove) {
                puts.push(one.address);
            }
        }
        let superseded = settled.losers.iter().filter(|loser| loser.is_there).map(|loser| loser.address);
        let mut old = settled.gone.iter().copied().chain(superseded);
        let mut new = puts.into_iter();
        loop {
            // Entries of a hash differ by their addresses only.
            let changed = match (old.next(), new.next()) {
                (Some(from), Some(to)) => self.trie.replace(hash, from, to, guard).map(drop),
                (Some(from), None) => self.trie.remove(hash, from, guard).map(drop),
                (None, Some(to)) => self.trie.insert(Entry::new(hash, to), guard),
                (None, None) => break,
            };
            if self.done(changed).is_none() {
                return Err(self.broken());
            }
        }
        for loser in settled.losers.iter().filter(|loser| loser.is_put) {
            self.accounts.count(loser.address, negative(loser.span), guard);
        }
        for (address, span) in &settled.twice {
            self.accounts.count(*address, negative(*span), guard);
        }
        // In this order: what loses may be a copy of what stays.
        for blob in settled.losers.iter().filter_map(|loser| loser.blob) {
            self.accounts.unname(blob);
        }
        staged.iter().for_each(|(blob, address)| self.accounts.name(*blob, *address));
        Ok(())
    }
}
