//! # Table: the keys of a memtable, by hash and in order
//!
//! A record for each key: a word and a number that change, and the key, which does not. What the word means is the
//! owner's.
//!
//! ## Picture
//!
//! ```text
//!  hash -> stripe -> cell: tag 32 | record 32 ──┐          ordered tree (`order.rs`) ──┐
//!                                               v                                     v
//!  record:  word 8 | seq 8 | key length 4 | link 4, if the owner has links | key
//! ```
//!
//! ## Invariants
//!
//! 1. One writer: whoever holds the commit lock (or opens the database). Readers take no lock.
//! 2. A record is never moved nor removed; only its word, number and link change. Its number is stored before the word,
//!    and a reader loads the word first: the number it then sees is that of the word or a later one.
//! 3. `len` of a stripe counts the records that whoever loaded it will find in it.
//! 4. What can be found is no newer than `newest`; `count` counts what was found in order, too.

use std::ops::Bound;
use std::ptr;
use std::sync::OnceLock;

use super::arena::{Arena, Place, high, low};
use super::load::{WAITING, Waiting};
use super::order::{Keys, Order};
use super::prefix::Prefix;
use crate::memory::pieces::Row;
use crate::memory::prefetch;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::epoch::{Guard, note_deferred};
use crate::sync::{Mutex, bare};
use crate::types::Seq;

/// Stripes of the hash table: each grows on its own, so that no growth takes long.
const STRIPES: usize = 256;
const TINY_STRIPES: usize = 4;
/// Cells of a new stripe.
const FIRST_CELLS: usize = 8;

// Where the parts of a record are, in bytes.
const WORD: usize = 0;
const SEQ: usize = 8;
const KEY_LEN: usize = 16;
const HEAD: usize = 20;

#[derive(Debug)]
struct Cells {
    cells: Row<AtomicU64>,
}

impl Cells {
    fn new(count: usize) -> Cells {
        Cells { cells: Row::new(count, || AtomicU64::new(0)) }
    }

    /// Where the search for a tag begins, and what to wrap around with.
    fn start(&self, tag: u32) -> (usize, usize) {
        let mask = self.cells.len() - 1;
        (tag as usize & mask, mask)
    }

    fn put(&self, cell: u64) {
        let (mut slot, mask) = self.start(high(cell));
        while self.cells[slot].load(Ordering::Relaxed) != 0 {
            slot = (slot + 1) & mask;
        }
        self.cells[slot].store(cell, Ordering::Release);
    }
}

#[derive(Debug)]
struct Stripe {
    cells: AtomicPtr<Cells>,
    len: AtomicU32,
}

/// Of so many stripes, a power of two, that of `hash`.
#[inline]
fn stripe_of(stripes: &[Stripe], hash: u64) -> &Stripe {
    &stripes[high(hash) as usize >> 24 & (stripes.len() - 1)]
}

/// The keys. A record has `LINK` bytes, 4 or none, for a link of the owner's.
#[derive(Debug)]
pub struct Table<const LINK: usize> {
    /// Where the records are; the owner may have more in it. One writer.
    pub arena: Arena,
    /// Made with the first key: most keyspaces of many are empty.
    stripes: OnceLock<Box<[Stripe]>>,
    stripe_count: usize,
    order: Order,
    count: AtomicU64,
    /// Bytes of memory, without the order's.
    bytes: AtomicU64,
    newest: AtomicU64,
    /// Keys that are not in order yet (`load.rs`), and how many they are.
    pub(super) waiting: Mutex<Waiting>,
    waiting_count: AtomicU64,
}

impl<const LINK: usize> Keys for Table<LINK> {
    #[inline]
    fn key(&self, record: Place) -> &[u8] {
        let len = self.part32(record, KEY_LEN).load(Ordering::Relaxed) as usize;
        // SAFETY:
        // * A record's key was written behind its head before its place was published, and never changes.
        unsafe { std::slice::from_raw_parts(self.arena.at(record).add(HEAD + LINK), len) }
    }
}

impl<const LINK: usize> Table<LINK> {
    /// An empty one. `prefix` is what its keys are thought to share.
    #[must_use]
    pub fn new(prefix: Prefix, tiny: bool) -> Table<LINK> {
        const { assert!(LINK == 0 || LINK == 4) };
        let arena = Arena::new();
        let order = Order::new(&arena, prefix, tiny);
        Table {
            stripes: OnceLock::new(),
            stripe_count: if tiny { TINY_STRIPES } else { STRIPES },
            order,
            arena,
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            waiting: Mutex::new(Waiting::default()),
            waiting_count: AtomicU64::new(0),
        }
    }

    pub(super) fn order(&self) -> &Order {
        &self.order
    }

    pub(super) fn note_waiting(&self, count: u64) {
        self.waiting_count.store(count, Ordering::Relaxed);
    }

    #[inline]
    fn part64(&self, place: Place, at: usize) -> &bare::AtomicU64 {
        // SAFETY:
        // * Places of records start with a head, aligned to 8 bytes, of zeros or what was stored; `at` is `WORD` or `SEQ`.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU64>() }
    }

    #[inline]
    fn part32(&self, place: Place, at: usize) -> &bare::AtomicU32 {
        // SAFETY:
        // * As in `part64`; `at` is `KEY_LEN`, or `HEAD` where records have links.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU32>() }
    }

    /// A record's link. 0 to begin with.
    #[inline]
    pub fn link(&self, place: Place) -> &bare::AtomicU32 {
        const { assert!(LINK == 4, "its records have no links") };
        self.part32(place, HEAD)
    }

    /// Keys in it, removed ones included.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// True if nothing can be found in it. Whoever found something finds this false.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.newest() == Seq::ZERO
    }

    /// Bytes of memory. What the arena holds ahead is used up by what comes, so that a change may take less than it uses.
    pub fn bytes(&self) -> u64 {
        let waiting = WAITING * self.waiting_count.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed) + self.order.bytes() + waiting + self.arena.ahead()
    }

    /// The owner put so many bytes into the arena.
    pub fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The newest commit in it.
    pub fn newest(&self) -> Seq {
        Seq(self.newest.load(Ordering::Acquire))
    }

    /// What the heads of its keys leave out.
    pub fn prefix(&self, guard: &Guard) -> Prefix {
        self.order.prefix(guard)
    }

    /// The stripe of `hash`; none if there is no key.
    #[inline]
    fn stripe(&self, hash: u64) -> Option<&Stripe> {
        #[cfg(shuttle)]
        crate::sync::step(); // they may be made now, or not yet
        self.stripes.get().map(|stripes| stripe_of(stripes, hash))
    }

    /// As [`Table::stripe`], which is there from now on.
    fn stripe_to_be(&self, hash: u64) -> &Stripe {
        let stripe = || Stripe { cells: AtomicPtr::new(ptr::null_mut()), len: AtomicU32::new(0) };
        let stripes = self.stripes.get_or_init(|| (0..self.stripe_count).map(|_| stripe()).collect());
        stripe_of(stripes, hash)
    }

    /// How many records share `hash`'s stripe; see (I3).
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.stripe(hash).map_or(0, |stripe| stripe.len.load(Ordering::Acquire))
    }

    #[inline]
    fn cells<'g>(stripe: &Stripe, _guard: &'g Guard) -> Option<&'g Cells> {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was replaced, or with `self`.
        unsafe { stripe.cells.load(Ordering::Acquire).as_ref() }
    }

    /// The record of `key`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<Place> {
        let cells = Table::<LINK>::cells(self.stripe(hash)?, guard)?;
        let tag = low(hash);
        let (mut slot, mask) = cells.start(tag);
        loop {
            let cell = cells.cells[slot].load(Ordering::Acquire);
            if cell == 0 {
                return None;
            }
            if high(cell) == tag && self.key(low(cell)) == key {
                return Some(low(cell));
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Hints that `hash` is about to be looked up.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        if let Some(stripe) = self.stripe(hash)
            && let Some(cells) = Table::<LINK>::cells(stripe, guard)
        {
            let (slot, _) = cells.start(low(hash));
            prefetch((&raw const cells.cells[slot]).cast(), 1);
        }
    }

    /// Hints that the record of `hash`, if there is one, is about to be looked at. Reads the table: [`Table::prefetch`] comes before.
    #[inline]
    pub fn prefetch_found(&self, hash: u64, guard: &Guard) {
        let Some(stripe) = self.stripe(hash) else { return };
        let Some(cells) = Table::<LINK>::cells(stripe, guard) else { return };
        let tag = low(hash);
        let (mut slot, mask) = cells.start(tag);
        loop {
            let cell = cells.cells[slot].load(Ordering::Relaxed);
            if cell == 0 {
                return;
            }
            if high(cell) == tag {
                return prefetch(self.arena.at(low(cell)), 1);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Brings the beginning of a record into the processor's cache, soon.
    #[inline]
    pub fn prefetch_record(&self, place: Place) {
        prefetch(self.arena.at(place), 1);
    }

    /// The word and number of a record.
    #[inline]
    pub fn get(&self, place: Place) -> (u64, Seq) {
        let word = self.part64(place, WORD).load(Ordering::Acquire); // first (I2)
        (word, Seq(self.part64(place, SEQ).load(Ordering::Acquire)))
    }

    /// Gives a record another word and number. One writer.
    pub fn set(&self, place: Place, word: u64, seq: Seq) {
        self.part64(place, SEQ).store(seq.0, Ordering::Release); // (I2)
        self.part64(place, WORD).store(word, Ordering::Release);
        self.newest.fetch_max(seq.0, Ordering::AcqRel);
    }

    /// A record that no key leads to. One writer.
    pub fn make(&self, key: &[u8], word: u64, seq: Seq) -> Place {
        let bytes = HEAD + LINK + key.len();
        let place = self.arena.alloc(bytes, false);
        self.part64(place, WORD).store(word, Ordering::Relaxed);
        self.part64(place, SEQ).store(seq.0, Ordering::Relaxed);
        self.part32(place, KEY_LEN).store(u32::try_from(key.len()).unwrap_or(0), Ordering::Relaxed);
        // SAFETY:
        // * The place was given out just now with room for the key behind the head; nobody else knows it.
        unsafe { ptr::copy_nonoverlapping(key.as_ptr(), self.arena.at(place).add(HEAD + LINK), key.len()) };
        self.add_bytes(bytes.next_multiple_of(8));
        place
    }

    /// Adds a record for a key that has none. One writer.
    pub fn add(&self, hash: u64, key: &[u8], word: u64, seq: Seq, guard: &Guard) {
        let place = self.add_found(hash, key, word, seq, guard);
        self.order.insert(&self.arena, self, place, guard);
        self.count_one();
    }

    /// Adds a record that is found by its hash, and not in order.
    pub(super) fn add_found(&self, hash: u64, key: &[u8], word: u64, seq: Seq, guard: &Guard) -> Place {
        let place = self.make(key, word, seq);
        self.newest.fetch_max(seq.0, Ordering::AcqRel); // before it is found (I4)
        self.hash_in(hash, place, guard);
        place
    }

    pub(super) fn count_one(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    fn hash_in(&self, hash: u64, place: Place, guard: &Guard) {
        let stripe = self.stripe_to_be(hash);
        let len = stripe.len.load(Ordering::Relaxed) as usize;
        let cells = Table::<LINK>::cells(stripe, guard);
        let before = cells.map_or(0, |cells| cells.cells.len());
        if len >= before / 4 * 3 {
            let grown = Cells::new((2 * before).max(FIRST_CELLS));
            for cell in cells.iter().flat_map(|cells| &*cells.cells) {
                let cell = cell.load(Ordering::Relaxed);
                if cell != 0 {
                    grown.put(cell);
                }
            }
            self.add_bytes(8 * (grown.cells.len() - before));
            let old = stripe.cells.swap(Box::into_raw(Box::new(grown)), Ordering::AcqRel) as usize;
            if old != 0 {
                guard.defer(move || {
                    // SAFETY:
                    // * Made from a box, replaced just now; every guard that may have seen it is gone.
                    drop(unsafe { Box::from_raw(old as *mut Cells) });
                });
                note_deferred(8 * before);
            }
        }
        if let Some(cells) = Table::<LINK>::cells(stripe, guard) {
            cells.put(u64::from(low(hash)) << 32 | u64::from(place));
        }
        stripe.len.store(u32::try_from(len + 1).unwrap_or(u32::MAX), Ordering::Release); // (I3)
    }

    /// Appends to `out` the records from `low` on, until there are `limit`.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.order.ascend(&self.arena, self, low, limit, guard, out);
    }

    /// Appends to `out` the records from `high` down, until there are `limit`.
    pub fn fall(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.order.fall(&self.arena, self, high, limit, guard, out);
    }
}

impl<const LINK: usize> Drop for Table<LINK> {
    fn drop(&mut self) {
        for stripe in self.stripes.get().into_iter().flatten() {
            let cells = stripe.cells.load(Ordering::Relaxed);
            if !cells.is_null() {
                // SAFETY:
                // * Made from a box, and `&mut self`: nobody reads it.
                drop(unsafe { Box::from_raw(cells) });
            }
        }
    }
}
