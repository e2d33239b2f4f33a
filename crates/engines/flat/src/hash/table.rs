//! # Hash table: cache-line buckets
//!
//! One table of the hash index, with the chain of tables behind it.
//!
//! An index starts with a *small* table of few buckets, so that an empty keyspace uses little
//! memory. Lookups treat it like any other table. When it is full, a table of the usual size
//! replaces it. The words of a small table do not determine the home of an entry in that table;
//! `HomeBuckets` stores it.
//!
//! ## Closing
//!
//! Several writers exchange words of an open table at the same time, without a lock. Before its
//! entries are copied to other tables, a table is *closed* under its latch. A writer reads the flag
//! after its exchange. All four accesses are sequentially consistent: either the writer sees the
//! flag, or the copy contains its word. A writer that saw the flag waits for the latch and repeats
//! its change in the new table.

use sheaf_log::segment::Address;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Mutex, MutexGuard};

use super::TAG_BITS;
use super::bucket_pool::Buckets;

/// Number of words in a bucket.
pub(crate) const SLOTS: usize = 8;
/// Number of buckets that may contain an entry, starting at its home.
const PROBE_BUCKETS: usize = 4;
/// Number of buckets in a table of the usual size.
pub(crate) const BUCKETS: usize = 256;
pub(crate) const TINY_BUCKETS: usize = 8;
/// Number of buckets in a small table.
const SMALL_BUCKETS: usize = 16;
const TINY_SMALL_BUCKETS: usize = PROBE_BUCKETS;
const OVERFLOW: u64 = 1 << Address::BITS;
const STEP_SHIFT: u32 = Address::BITS + 1;
const STEP_MASK: u64 = PROBE_BUCKETS as u64 - 1;
const TAG_SHIFT: u32 = 64 - TAG_BITS;

/// Content of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketWord(pub(crate) u64);

impl BucketWord {
    fn new(hash: u64, address: Address) -> BucketWord {
        BucketWord(hash >> TAG_SHIFT << TAG_SHIFT | address.bits())
    }

    /// Returns the address of the entry, or [`Address::NONE`] if the slot is empty.
    pub(crate) fn address(self) -> Address {
        Address::from_bits(self.0)
    }

    /// Returns the number of buckets between the home of the entry and its bucket.
    fn step(self) -> usize {
        usize::try_from(self.0 >> STEP_SHIFT & STEP_MASK).unwrap_or(0)
    }

    fn with_step(self, step: usize) -> BucketWord {
        BucketWord(self.0 & !(STEP_MASK << STEP_SHIFT) | (step as u64) << STEP_SHIFT)
    }

    /// Returns a word for the same key with another address.
    pub(crate) fn with_address(self, address: Address) -> BucketWord {
        BucketWord(self.0 & !(OVERFLOW - 1) | address.bits())
    }

    /// Returns the bits for a slot with the overflow bit `flag`.
    fn with_overflow(self, flag: u64) -> u64 {
        if self.address() == Address::NONE { flag } else { self.0 & !OVERFLOW | flag }
    }

    fn has_tag_of(self, hash: u64) -> bool {
        (self.0 ^ hash) >> TAG_SHIFT == 0 && self.address() != Address::NONE
    }
}

#[repr(align(64))]
#[derive(Default)]
pub(super) struct Bucket([AtomicU64; SLOTS]);

impl Bucket {
    fn word(&self, slot: usize) -> BucketWord {
        BucketWord(self.0[slot].load(Ordering::Acquire))
    }

    /// Sets a slot of a table that no other thread can access.
    fn set(&self, slot: usize, word: BucketWord) {
        let flag = self.0[slot].load(Ordering::Relaxed) & OVERFLOW;
        self.0[slot].store(word.with_overflow(flag), Ordering::Release);
    }

    /// Stores `to` in a slot if the slot has an entry at `from`. Returns false otherwise.
    fn exchange(&self, slot: usize, from: Address, to: BucketWord) -> bool {
        let mut before = self.0[slot].load(Ordering::Relaxed);
        while Address::from_bits(before) == from {
            // Repeats at most once, if the overflow bit was set, unless another entry has come.
            let now = to.with_overflow(before & OVERFLOW);
            match self.0[slot].compare_exchange(before, now, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => before = other,
            }
        }
        false
    }

    /// Returns true if the bucket has no entry. The loads are in one total order with all
    /// exchanges.
    fn is_vacant(&self) -> bool {
        self.0.iter().all(|word| Address::from_bits(word.load(Ordering::SeqCst)) == Address::NONE)
    }

    /// Removes all entries and the overflow bit. No other thread may access the bucket.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    pub(super) fn has_overflowed(&self) -> bool {
        self.0[SLOTS - 1].load(Ordering::Acquire) & OVERFLOW != 0
    }

    pub(super) fn mark_overflowed(&self) {
        if !self.has_overflowed() {
            self.0[SLOTS - 1].fetch_or(OVERFLOW, Ordering::AcqRel);
        }
    }
}

/// Size of a bucket in bytes.
pub(crate) const BUCKET_BYTES: usize = size_of::<Bucket>();

/// Returns the home bucket of `hash` among `buckets` buckets; `buckets` is a power of two.
pub(crate) fn home(hash: u64, buckets: usize) -> usize {
    usize::try_from(hash & (buckets as u64 - 1)).unwrap_or(0)
}

/// Home buckets for the slots of a small table. For each slot it has the home bucket of the entry
/// in a table of `buckets` buckets. The home is stored before the word of the entry, under the
/// latch.
struct HomeBuckets {
    buckets: usize,
    homes: [AtomicU8; SMALL_BUCKETS * SLOTS],
}

impl HomeBuckets {
    fn get(&self, slot: usize) -> usize {
        usize::from(self.homes[slot].load(Ordering::Acquire)) & (self.buckets - 1)
    }

    fn set(&self, slot: usize, home: usize) {
        // Release order: a reader that sees this home also sees the removal of the previous entry.
        self.homes[slot].store(u8::try_from(home & (self.buckets - 1)).unwrap_or(0), Ordering::Release);
    }
}

/// A table, and the chain behind it.
pub(crate) struct HashTable {
    depth: u32,
    buckets: Buckets,
    is_large: bool,
    next: AtomicPtr<HashTable>,
    /// Held by a thread that replaces the table, extends its chain, or adds an entry to a small
    /// table. The latch of the first table protects the whole chain.
    latch: Mutex<()>,
    /// True while the table is being copied, and after it was replaced. Written under the latch.
    is_closed: AtomicBool,
    /// Present only in a small table.
    home_buckets: Option<Box<HomeBuckets>>,
}

impl HashTable {
    /// Returns an empty small table of an index with `buckets` buckets in its usual tables.
    pub(crate) fn small(buckets: usize) -> Box<HashTable> {
        debug_assert!(buckets.is_power_of_two() && buckets <= 1 << u8::BITS);
        let count = if buckets == TINY_BUCKETS { TINY_SMALL_BUCKETS } else { SMALL_BUCKETS };
        let homes = HomeBuckets { buckets, homes: std::array::from_fn(|_| AtomicU8::new(0)) };
        let mut table = HashTable::new(0, count, false);
        table.home_buckets = Some(Box::new(homes));
        table
    }

    /// Returns a table of the usual size with the same entries. Returns `None` if this one is not
    /// small.
    pub(crate) fn grown_copy(&self) -> Option<Box<HashTable>> {
        let homes = self.home_buckets.as_ref()?;
        let grown = HashTable::new(self.depth, homes.buckets, false);
        self.for_each_entry(|home, word| grown.put_in_chain(home, word));
        Some(grown)
    }

    /// Returns a small table with the same entries, if this is the only table and its entries fit.
    pub(crate) fn shrunk_copy(&self, guard: &Guard) -> Option<Box<HashTable>> {
        if self.depth > 0 || self.home_buckets.is_some() || self.next(guard).is_some() {
            return None;
        }
        let (small, mut has_all) = (HashTable::small(self.buckets.len()), true);
        self.for_each_entry(|home, word| has_all = has_all && small.put(home, word));
        has_all.then_some(small)
    }

    /// Returns an empty table; `is_large` requests huge pages.
    pub(crate) fn new(depth: u32, buckets: usize, is_large: bool) -> Box<HashTable> {
        debug_assert!(buckets.is_power_of_two() && buckets >= PROBE_BUCKETS);
        Box::new(HashTable {
            depth,
            buckets: Buckets::new(buckets, is_large),
            is_large,
            next: AtomicPtr::default(),
            latch: Mutex::new(()),
            is_closed: AtomicBool::new(false),
            home_buckets: None,
        })
    }

    /// Returns true if this is a small table.
    pub(crate) fn is_small(&self) -> bool {
        self.home_buckets.is_some()
    }

    /// Takes the latch. Returns `None` if the table was replaced: the directory then has another
    /// one.
    pub(crate) fn latch(&self) -> Option<MutexGuard<'_, ()>> {
        let latch = self.latch.lock();
        (!self.is_closed.load(Ordering::Relaxed)).then_some(latch)
    }

    /// Marks the table as about to be copied, for all writers that change it from now on. The
    /// caller holds the latch until the directory refers to the copies.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst); // before the words are read
    }

    /// Undoes [`HashTable::close`]: the table stays in use. The caller holds the latch.
    pub(crate) fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// Returns true if a change that was made before this call will be in all copies of the table.
    /// Otherwise waits until the copies have replaced the table and returns false. The caller must
    /// then look for the change in the new table.
    pub(crate) fn confirm_change(&self) -> bool {
        let is_open = !self.is_closed.load(Ordering::SeqCst);
        if !is_open {
            drop(self.latch.lock());
        }
        is_open
    }

    /// Returns true if neither the table nor its chain has an entry.
    pub(crate) fn is_vacant(&self, guard: &Guard) -> bool {
        let mut table = Some(self);
        while let Some(here) = table {
            if !here.buckets.iter().all(Bucket::is_vacant) {
                return false;
            }
            table = here.next(guard);
        }
        true
    }

    /// Returns true if the home bucket of `hash` has no entry.
    pub(crate) fn is_home_vacant(&self, hash: u64) -> bool {
        self.buckets[home(hash, self.buckets.len())].is_vacant()
    }

    /// Returns the bytes of a table with `buckets` buckets, without its chain.
    pub(crate) fn bytes(buckets: usize) -> u64 {
        (buckets * size_of::<Bucket>() + size_of::<HashTable>()) as u64
    }

    /// Returns the bytes of the table and its chain.
    pub(crate) fn chain_bytes(&self) -> u64 {
        let guard = epoch::pin();
        let mut bytes = 0;
        let mut table = Some(self);
        while let Some(here) = table {
            bytes += HashTable::bytes(here.buckets.len());
            bytes += here.home_buckets.as_ref().map_or(0, |_| size_of::<HomeBuckets>() as u64);
            table = here.next(&guard);
        }
        bytes
    }

    /// Returns the number of hash bits that select this table in the directory.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the next table of the chain.
    pub(crate) fn next<'g>(&'g self, _guard: &'g Guard) -> Option<&'g HashTable> {
        // SAFETY: a chained table is owned by the table before it, which is borrowed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    /// Appends `table` to the chain; this table must be the last one. The caller holds the latch of
    /// the first table, or no other thread can access the chain.
    pub(crate) fn append_to_chain(&self, table: Box<HashTable>) {
        let before = self.next.swap(Box::into_raw(table), Ordering::AcqRel);
        assert!(before.is_null(), "only the last table of a chain is extended");
    }

    fn probe(&self, hash: u64) -> impl Iterator<Item = &Bucket> {
        self.probe_from(home(hash, self.buckets.len()))
    }

    fn probe_from(&self, home: usize) -> impl Iterator<Item = &Bucket> {
        let mask = self.buckets.len() - 1;
        (0..PROBE_BUCKETS).map(move |step| &self.buckets[(home + step) & mask])
    }

    /// Calls `each` with the entries that have the same kept bits as `hash`. Returns false as soon
    /// as `each` returns false.
    #[inline]
    pub(crate) fn matches(&self, hash: u64, each: &mut impl FnMut(Address) -> bool) -> bool {
        for bucket in self.probe(hash) {
            for slot in 0..SLOTS {
                let word = bucket.word(slot);
                if word.has_tag_of(hash) && !each(word.address()) {
                    return false;
                }
            }
            if !bucket.has_overflowed() {
                break;
            }
        }
        true
    }

    /// Replaces the address `from` of an entry by `to`. Only one thread at a time changes this
    /// entry.
    pub(crate) fn replace(&self, hash: u64, from: Address, to: Address) -> bool {
        for bucket in self.probe(hash) {
            for slot in 0..SLOTS {
                let word = bucket.word(slot);
                if word.has_tag_of(hash) && word.address() == from {
                    return bucket.exchange(slot, from, word.with_address(to));
                }
            }
            if !bucket.has_overflowed() {
                break;
            }
        }
        false
    }

    /// Returns true if a new entry of `hash` would find a free slot now.
    pub(crate) fn has_slot(&self, hash: u64) -> bool {
        self.probe(hash).any(|bucket| (0..SLOTS).any(|slot| bucket.word(slot).address() == Address::NONE))
    }

    /// Adds an entry in the first free slot. Returns false if there is none. If the table is small,
    /// the caller holds the latch.
    pub(crate) fn insert(&self, hash: u64, address: Address) -> bool {
        self.put(self.full_size_home(hash), BucketWord::new(hash, address))
    }

    /// Returns the home of `hash` in a table of the usual size. Its low bits are the home in a
    /// small table.
    fn full_size_home(&self, hash: u64) -> usize {
        home(hash, self.home_buckets.as_ref().map_or(self.buckets.len(), |homes| homes.buckets))
    }

    /// Adds `word` in the first free slot; `home` is its home in a table of the usual size.
    fn put(&self, home: usize, word: BucketWord) -> bool {
        let mask = self.buckets.len() - 1;
        for (step, bucket) in self.probe_from(home).enumerate() {
            // If another thread takes a slot first, the next slot is tried.
            for slot in 0..SLOTS {
                if bucket.word(slot).address() != Address::NONE {
                    continue;
                }
                if let Some(homes) = &self.home_buckets {
                    homes.set(((home + step) & mask) * SLOTS + slot, home);
                }
                if bucket.exchange(slot, Address::NONE, word.with_step(step)) {
                    return true;
                }
            }
            bucket.mark_overflowed();
        }
        false
    }

    /// Returns true if a split at `depth` separates any two entries.
    pub(crate) fn can_split_at(&self, depth: u32) -> bool {
        let bit = 1u64 << (63 - depth);
        let mut words = self
            .buckets
            .iter()
            .flat_map(|b| (0..SLOTS).map(|s| b.word(s)))
            .filter(|w| w.address() != Address::NONE);
        let Some(first) = words.next() else { return true };
        words.any(|word| (word.0 ^ first.0) & bit != 0)
    }

    /// Returns the two tables that a split makes of this one. Each entry is placed anew from its
    /// home.
    pub(crate) fn halves(&self, is_large: bool, guard: &Guard) -> (Box<HashTable>, Box<HashTable>) {
        let is_closed = self.is_closed.load(Ordering::Relaxed);
        assert!(is_closed, "hash (I2): a table is closed before it is copied");
        let halves = [(); 2].map(|()| HashTable::new(self.depth + 1, self.buckets.len(), is_large));
        let bit = 1u64 << (63 - self.depth);
        let mut table = Some(self);
        while let Some(here) = table {
            here.for_each_entry(|home, word| halves[usize::from(word.0 & bit != 0)].put_in_chain(home, word));
            table = here.next(guard);
        }
        let [low, high] = halves;
        (low, high)
    }

    /// Adds an entry to the table or its chain.
    pub(super) fn insert_in_chain(&self, hash: u64, address: Address) {
        self.put_in_chain(self.full_size_home(hash), BucketWord::new(hash, address));
    }

    fn put_in_chain(&self, home: usize, word: BucketWord) {
        if self.put(home, word) {
            return;
        }
        let guard = &epoch::pin();
        if self.next(guard).is_none() {
            self.append_to_chain(HashTable::new(self.depth, self.buckets.len(), self.is_large));
        }
        if let Some(next) = self.next(guard) {
            next.put_in_chain(home, word);
        }
    }

    /// Returns the entry in a slot: its home in a table of the usual size, and its word.
    fn entry(&self, number: usize, slot: usize) -> Option<(usize, BucketWord)> {
        let bucket = &self.buckets[number];
        loop {
            let word = bucket.word(slot);
            if word.address() == Address::NONE {
                return None;
            }
            let Some(homes) = &self.home_buckets else {
                return Some(((number + self.buckets.len() - word.step()) & (self.buckets.len() - 1), word));
            };
            let home = homes.get(number * SLOTS + slot);
            // A new entry may have changed the slot and its home between the two loads.
            if bucket.word(slot) == word {
                return Some((home, word));
            }
        }
    }

    /// Calls `each` with the home bucket, in a table of the usual size, and the word of every
    /// entry.
    fn for_each_entry(&self, mut each: impl FnMut(usize, BucketWord)) {
        let slots = (0..self.buckets.len()).flat_map(|number| (0..SLOTS).map(move |slot| (number, slot)));
        slots.filter_map(|(number, slot)| self.entry(number, slot)).for_each(|(home, word)| each(home, word));
    }

    /// Calls `each` with every entry that has its home, in a table of the usual size, among the
    /// `count` buckets from `first`.
    pub(crate) fn visit(&self, first: usize, count: usize, each: &mut impl FnMut(Address)) {
        if self.home_buckets.is_some() {
            return self.for_each_entry(|home, word| {
                if (first..first + count).contains(&home) {
                    each(word.address());
                }
            });
        }
        let total = self.buckets.len();
        let reach = (count + PROBE_BUCKETS - 1).min(total);
        for step in 0..reach {
            let bucket = &self.buckets[(first + step) & (total - 1)];
            for word in (0..SLOTS).map(|slot| bucket.word(slot)).filter(|w| w.address() != Address::NONE) {
                let home = (first + step + total - word.step()) & (total - 1);
                if (first..first + count).contains(&home) {
                    each(word.address());
                }
            }
        }
    }

    /// Calls `each` with the words of each bucket and its overflow bit.
    pub(crate) fn for_each_bucket<E>(
        &self,
        mut each: impl FnMut([BucketWord; SLOTS], bool) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buckets.iter().try_for_each(|bucket| {
            each(std::array::from_fn(|slot| bucket.word(slot)), bucket.has_overflowed())
        })
    }

    /// Sets a bucket of a table that no other thread can access yet.
    pub(crate) fn set_bucket(&self, number: usize, words: [BucketWord; SLOTS], overflowed: bool) {
        let bucket = &self.buckets[number];
        for (slot, word) in words.into_iter().enumerate() {
            bucket.set(slot, word);
        }
        if overflowed {
            bucket.mark_overflowed();
        }
    }

    /// Returns the address of the buckets, for prefetches only. (A plain load without a dependent
    /// instruction would also serve as a hint. But it occupies a place in the load queue of the
    /// processor until it completes, and a few of them fill the queue.)
    pub(crate) fn buckets_ptr(&self) -> *mut u8 {
        self.buckets.as_ptr().cast::<u8>().cast_mut()
    }
}

impl Drop for HashTable {
    fn drop(&mut self) {
        let next = *self.next.get_mut();
        if !next.is_null() {
            // SAFETY: chained tables come from `Box::into_raw` in `append_to_chain`, and each of
            // them has one predecessor, which owns it.
            drop(unsafe { Box::from_raw(next) });
        }
    }
}
