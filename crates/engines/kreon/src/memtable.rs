//! # Memtable: L0, a tree in memory over pointers into the log
//!
//! Keys in memory, values where the log has them. A record says where a key's newest entry stands; it is found by a hash, and
//! in order. One memtable takes commits, one before it may be frozen and on its way into the levels.
//!
//! ## Picture
//!
//! ```text
//!  hash -> stripe -> cell: tag 32 | record 32 ──┐          ordered tree (order.rs of base) ┐
//!                                               v                                        v
//!  record:  word 8 | seq 8 | key length 4 | key                   word: flags 4 | span / 8: 20 | address 40
//! ```
//!
//! ## Invariants
//!
//! 1. One writer: whoever holds the commit lock (or opens the database). Readers take no lock.
//! 2. A record is never moved nor removed; only its word and number change. The number is stored before the word, and a
//!    reader loads the word first: the number it then sees is that of the word or a later one.
//! 3. `len` of a stripe counts the records that whoever loaded it will find in it.
//! 4. What was superseded here and a view needs is among the versions before the word says something newer.

use std::ops::Bound;
use std::ptr;

use sheaf_base::memory::prefetch;
use sheaf_base::memtable::arena::{Arena, Place, high, low};
use sheaf_base::memtable::order::{Keys, Order};
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_base::sync::bare;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;

/// Stripes of the hash table: each grows on its own, so that no growth takes long.
const STRIPES: usize = 256;
const TINY_STRIPES: usize = 4;
const FIRST_CELLS: usize = 8;
/// Bytes of a record before its key.
const HEAD: usize = 20;
/// About what a key costs beside itself.
const COST: usize = HEAD + 8 + 16 + 18;

const TOMB: u64 = 1 << 62;
const STAGED: u64 = 1 << 61;
const BELOW: u64 = 1 << 60;
const SPAN_BITS: u32 = 20;

/// What a record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) fn put(address: Address, span: u64, is_staged: bool) -> Word {
        let units = (span / 8).min((1 << SPAN_BITS) - 1);
        Word(address.bits() | units << Address::BITS | if is_staged { STAGED } else { 0 })
    }

    pub(crate) fn tomb() -> Word {
        Word(TOMB)
    }

    /// The same; what the levels have of the key is not accounted as live any more, if `is`.
    pub(crate) fn below(self, is: bool) -> Word {
        Word(if is { self.0 | BELOW } else { self.0 })
    }

    pub(crate) fn at(self, address: Address) -> Word {
        Word(self.0 & !((1 << Address::BITS) - 1) | address.bits())
    }

    pub(crate) fn is_tomb(self) -> bool {
        self.0 & TOMB != 0
    }

    pub(crate) fn is_staged(self) -> bool {
        self.0 & STAGED != 0
    }

    pub(crate) fn is_below(self) -> bool {
        self.0 & BELOW != 0
    }

    pub(crate) fn address(self) -> Address {
        Address::from_bits(self.0)
    }

    pub(crate) fn span(self) -> u64 {
        (self.0 >> Address::BITS & ((1 << SPAN_BITS) - 1)) * 8
    }

    pub(crate) fn is_at(self, address: Address) -> bool {
        !self.is_tomb() && self.address() == address
    }
}

/// A version of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) word: Word,
    pub(crate) seq: Seq,
}

#[repr(C)]
struct Head {
    word: bare::AtomicU64,
    seq: bare::AtomicU64,
    key_len: bare::AtomicU32,
}

#[derive(Debug)]
struct Cells {
    cells: Box<[AtomicU64]>,
}

impl Cells {
    fn new(count: usize) -> Cells {
        Cells { cells: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

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

/// See the module.
#[derive(Debug)]
pub(crate) struct Memtable {
    /// Tells one from the next.
    pub(crate) number: u32,
    arena: Arena,
    stripes: Box<[Stripe]>,
    order: Order,
    count: AtomicU64,
    bytes: AtomicU64,
    newest: AtomicU64,
}

impl Keys for Memtable {
    #[inline]
    fn key(&self, record: Place) -> &[u8] {
        let len = self.head(record).key_len.load(Ordering::Relaxed) as usize;
        // SAFETY:
        // * A record's key was written behind its head before its place was published, and never changes.
        unsafe { std::slice::from_raw_parts(self.arena.at(record).add(HEAD), len) }
    }
}

impl Memtable {
    pub(crate) fn new(number: u32, prefix: Prefix, tiny: bool) -> Memtable {
        let arena = Arena::new();
        let order = Order::new(&arena, prefix, tiny);
        let stripe = || Stripe { cells: AtomicPtr::new(ptr::null_mut()), len: AtomicU32::new(0) };
        Memtable {
            number,
            stripes: (0..if tiny { TINY_STRIPES } else { STRIPES }).map(|_| stripe()).collect(),
            order,
            arena,
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            newest: AtomicU64::new(0),
        }
    }

    #[inline]
    fn head(&self, place: Place) -> &Head {
        // SAFETY:
        // * Places of records start with a head; its fields are atomics.
        unsafe { &*self.arena.at(place).cast::<Head>() }
    }

    /// Keys in it, removed ones included.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.order.bytes()
    }

    /// The newest commit in it.
    pub(crate) fn newest(&self) -> Seq {
        Seq(self.newest.load(Ordering::Acquire))
    }

    /// What the heads of its keys leave out.
    pub(crate) fn prefix(&self, guard: &Guard) -> Prefix {
        self.order.prefix(guard)
    }

    /// What a new key costs in memory, about.
    pub(crate) fn cost(key: &[u8]) -> u64 {
        (COST + key.len()) as u64
    }

    #[inline]
    fn stripe(&self, hash: u64) -> &Stripe {
        &self.stripes[high(hash) as usize >> 24 & (self.stripes.len() - 1)]
    }

    /// How many records share `hash`'s stripe; see (I3).
    #[inline]
    pub(crate) fn stripe_len(&self, hash: u64) -> u32 {
        self.stripe(hash).len.load(Ordering::Acquire)
    }

    #[inline]
    fn cells<'g>(stripe: &Stripe, _guard: &'g Guard) -> Option<&'g Cells> {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was replaced, or with `self`.
        unsafe { stripe.cells.load(Ordering::Acquire).as_ref() }
    }

    /// The record of `key`.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<Place> {
        let cells = Memtable::cells(self.stripe(hash), guard)?;
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

    /// What the record at `place` says now.
    #[inline]
    pub(crate) fn version(&self, place: Place) -> Version {
        let head = self.head(place);
        let word = Word(head.word.load(Ordering::Acquire)); // first (I2)
        Version { word, seq: Seq(head.seq.load(Ordering::Acquire)) }
    }

    /// Hints that `hash` is about to be looked up.
    pub(crate) fn prefetch(&self, hash: u64, guard: &Guard) {
        if let Some(cells) = Memtable::cells(self.stripe(hash), guard) {
            let (slot, _) = cells.start(low(hash));
            prefetch((&raw const cells.cells[slot]).cast(), 1);
        }
    }

    /// Adds a record for a key that has none. One writer.
    pub(crate) fn add(&self, hash: u64, key: &[u8], version: Version, guard: &Guard) {
        let place = self.arena.alloc(HEAD + key.len(), false);
        let head = self.head(place);
        head.word.store(version.word.0, Ordering::Relaxed);
        head.seq.store(version.seq.0, Ordering::Relaxed);
        head.key_len.store(u32::try_from(key.len()).unwrap_or(0), Ordering::Relaxed);
        // SAFETY:
        // * The place was given out just now with room for the key behind the head; nobody else knows it.
        unsafe { ptr::copy_nonoverlapping(key.as_ptr(), self.arena.at(place).add(HEAD), key.len()) };
        self.hash_in(hash, place, guard);
        self.order.insert(&self.arena, self, place, guard);
        self.newest.fetch_max(version.seq.0, Ordering::AcqRel);
        self.bytes.fetch_add(((HEAD + key.len()).next_multiple_of(8)) as u64, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn hash_in(&self, hash: u64, place: Place, guard: &Guard) {
        let stripe = self.stripe(hash);
        let len = stripe.len.load(Ordering::Relaxed) as usize;
        let cells = Memtable::cells(stripe, guard);
        let before = cells.map_or(0, |cells| cells.cells.len());
        if len >= before / 4 * 3 {
            let grown = Cells::new((2 * before).max(FIRST_CELLS));
            for cell in cells.iter().flat_map(|cells| &cells.cells) {
                let cell = cell.load(Ordering::Relaxed);
                if cell != 0 {
                    grown.put(cell);
                }
            }
            self.bytes.fetch_add(8 * (grown.cells.len() - before) as u64, Ordering::Relaxed);
            let old = stripe.cells.swap(Box::into_raw(Box::new(grown)), Ordering::AcqRel) as usize;
            if old != 0 {
                guard.defer(move || {
                    // SAFETY:
                    // * Made from a box, replaced just now; every guard that may have seen it is gone.
                    drop(unsafe { Box::from_raw(old as *mut Cells) });
                });
            }
        }
        if let Some(cells) = Memtable::cells(stripe, guard) {
            cells.put(u64::from(low(hash)) << 32 | u64::from(place));
        }
        stripe.len.store(u32::try_from(len + 1).unwrap_or(u32::MAX), Ordering::Release); // (I3)
    }

    /// Gives a record another version, or another place of the same one. One writer.
    pub(crate) fn replace(&self, place: Place, version: Version) {
        let head = self.head(place);
        head.seq.store(version.seq.0, Ordering::Release); // (I2)
        head.word.store(version.word.0, Ordering::Release);
        self.newest.fetch_max(version.seq.0, Ordering::AcqRel);
    }

    /// Appends to `out` the records from `low` on, until there are `limit`.
    pub(crate) fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.order.ascend(&self.arena, self, low, limit, guard, out);
    }

    /// Appends to `out` the records from `high` down, until there are `limit`.
    pub(crate) fn fall(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.order.fall(&self.arena, self, high, limit, guard, out);
    }
}

impl Drop for Memtable {
    fn drop(&mut self) {
        for stripe in &self.stripes {
            let cells = stripe.cells.load(Ordering::Relaxed);
            if !cells.is_null() {
                // SAFETY:
                // * Made from a box, and `&mut self`: nobody reads it.
                drop(unsafe { Box::from_raw(cells) });
            }
        }
    }
}
