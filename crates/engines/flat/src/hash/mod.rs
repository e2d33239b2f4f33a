//! # Hash index: extendible hashing over cache-line buckets
//!
//! Maps the hash of a key to log addresses. Only splits take locks. This is CCEH (FAST'19) in
//! memory, as in FlatStore-H: a directory indexed by the top bits of the hash, and tables that
//! split one at a time. The index grows in steps of one table and never doubles as a whole.
//!
//! ## Picture
//!
//! ```text
//!  hash:  [ top 21 bits: kept in the word; the first `depth` of them choose the table ] ...
//!         ... [ low bits: home bucket ]
//!  word:  [ 21 bits of hash | step 2 | overflow (slot 7 only) | 40-bit address ] 0 = empty
//!  table: 256 buckets of 8 words; an entry is in its home bucket or in one of the next three;
//!         the first table of an index has 16 buckets, and is replaced when it is full
//! ```
//!
//! The kept bits and the step (number of buckets behind the home) suffice to split a table without
//! a read of any entry. The overflow bit of a bucket says that an entry was once put behind the
//! bucket. Without the bit, a lookup that finds nothing ends at the first cache line.
//!
//! ## Invariants
//!
//! 1. Between splits an entry does not move. A split builds both halves in new tables and publishes
//!    them by one store per directory slot. A reader with the old table sees the state before it.
//! 2. Words are changed by compare-and-swap. A change of a table that is being copied is repeated
//!    in the copy (`table`). A completed change is in the table of the directory, and only once.
//! 3. Tables and directories are retired through the epoch.

mod bucket_pool;
mod bulk_build;
mod image;
#[cfg(all(test, shuttle))]
mod interleavings;
mod table;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Bounds, ImageSink};
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};

use crate::index::{HashedKey, Index, IndexImage, PlaceRange, ScanDirection, Walk};

pub(crate) use table::{BucketWord, HashTable, SLOTS};

/// Number of hash bits that a word keeps.
pub(crate) const TAG_BITS: u32 = 21;
/// Size in bytes from which an index puts new tables on huge pages.
pub(crate) const HUGE_PAGE_THRESHOLD: u64 = 4 << 20;
/// Minimum depth of tables that a load or a bulk build puts on huge pages. An index with all tables
/// at this depth has 2^8 of them.
const HUGE_PAGE_DEPTH: u32 = 8;
/// Number of home buckets in a group. A cursor visits the buckets of a group together.
const BUCKETS_PER_GROUP: usize = 8;

/// Tables in the order of their hashes. Boxed, because readers hold their addresses.
#[allow(clippy::vec_box)]
pub(crate) type HashTables = Vec<Box<HashTable>>;

struct HashDirectory {
    depth: u32,
    tables: Box<[DirectorySlot]>,
}

/// Address of a table, and address of its buckets. A prefetch uses the latter and does not wait for
/// the table. The two are not stored atomically together, so `buckets` must not be dereferenced.
struct DirectorySlot {
    table: AtomicPtr<HashTable>,
    buckets: AtomicPtr<u8>,
}

impl DirectorySlot {
    /// Returns a slot for `table`, which is live and has its buckets at `buckets`.
    fn new(table: *mut HashTable, buckets: *mut u8) -> DirectorySlot {
        DirectorySlot { table: AtomicPtr::new(table), buckets: AtomicPtr::new(buckets) }
    }

    fn load(&self) -> *mut HashTable {
        self.table.load(Ordering::Acquire)
    }

    fn store(&self, table: *mut HashTable, buckets: *mut u8) {
        self.buckets.store(buckets, Ordering::Relaxed);
        self.table.store(table, Ordering::Release);
    }
}

impl HashDirectory {
    fn slot(&self, hash: u64) -> usize {
        usize::try_from(hash.checked_shr(64 - self.depth).unwrap_or(0)).unwrap_or(0)
    }
}

/// Hash index of one keyspace.
///
/// ## Costs
///
/// A slot takes 8 bytes. Tables split when four adjacent buckets are full, near 85 % load. The
/// average is about 12.5 bytes per key. A lookup is two dependent loads; the directory is usually
/// in the cache. An index of up to about a hundred keys takes 1.3 KiB.
///
/// ## Threads
///
/// The caller of a change owns the key. Other threads change other keys at the same time.
///
/// - A split takes the latch of its table, and then `writer` while the directory changes.
/// - Inserts into a small table or into a chain hold the latch of the table.
/// - `shrink_if_empty` latches all tables in the order of their hashes.
/// - Until a change is complete, a reader may see it and later the state before it.
pub(crate) struct HashIndex {
    context: Arc<EngineContext>,
    /// From `Box::into_raw`. Not null between construction and drop.
    directory: AtomicPtr<HashDirectory>,
    pub(crate) buckets: usize,
    /// Held while the directory or its slots change.
    writer: Mutex<()>,
    bytes: AtomicU64,
}

impl HashIndex {
    /// Returns an empty index.
    fn empty(context: Arc<EngineContext>) -> HashIndex {
        let buckets = if context.tiny { table::TINY_BUCKETS } else { table::BUCKETS };
        let index = HashIndex {
            context,
            directory: AtomicPtr::default(),
            buckets,
            writer: Mutex::new(()),
            bytes: AtomicU64::new(0),
        };
        index.install(vec![HashTable::small(buckets)]);
        index
    }

    /// Returns true if new tables should be on huge pages.
    fn is_large(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= HUGE_PAGE_THRESHOLD
    }

    fn account_memory(&self, grown: u64, shrunk: u64) {
        self.bytes.fetch_add(grown.wrapping_sub(shrunk), Ordering::Relaxed);
        self.context.memory.take(MemoryPart::Index, grown);
        self.context.memory.give_back(MemoryPart::Index, shrunk);
    }

    /// Replaces all tables by `tables`, which must cover all hashes in order. No other thread may
    /// change the index during the call, unless the caller has closed all tables.
    pub(crate) fn install(&self, mut tables: HashTables) {
        let guard = epoch::pin();
        if let [only] = &mut tables[..]
            && let Some(small) = only.shrunk_copy(&guard)
        {
            *only = small;
        }
        let _writer = self.writer.lock();
        let depth = tables.iter().map(|t| t.depth()).max().unwrap_or(0);
        let mut slots = Vec::with_capacity(1 << depth);
        let mut bytes = directory_bytes(depth);
        for table in tables {
            let copies = 1usize << (depth - table.depth());
            bytes += table.chain_bytes();
            let start = table.buckets_ptr();
            let pointer = Box::into_raw(table);
            slots.extend((0..copies).map(|_| DirectorySlot::new(pointer, start)));
        }
        let new = Box::new(HashDirectory { depth, tables: slots.into_boxed_slice() });
        let old = self.directory.swap(Box::into_raw(new), Ordering::AcqRel);
        self.account_memory(bytes, 0);
        self.retire_all(old, &guard);
    }

    fn retire_all(&self, old: *mut HashDirectory, guard: &Guard) {
        // SAFETY: `old` was the directory until the swap. It is retired only below, after this use.
        let Some(directory) = (unsafe { old.as_ref() }) else { return };
        let mut bytes = directory_bytes(directory.depth);
        let mut last = std::ptr::null_mut();
        for slot in &directory.tables {
            let table = slot.load();
            if table != last {
                last = table;
                // SAFETY: a table of the directory is live until it is retired, which happens
                // below.
                bytes += unsafe { &*table }.chain_bytes();
                // SAFETY: the table was unlinked with the directory. Adjacent slots with the same
                // pointer are skipped, so it is retired once.
                unsafe { retire_table(table, guard) };
            }
        }
        // SAFETY: the swap unlinked it, and only the thread that swapped it out retires it.
        unsafe { retire_directory(old, guard) };
        self.account_memory(0, bytes);
    }

    fn directory<'g>(&self, _guard: &'g Guard) -> &'g HashDirectory {
        // SAFETY: not null after construction. A directory is retired through the epoch, and
        // `guard` was pinned before the load.
        unsafe { &*self.directory.load(Ordering::Acquire) }
    }

    /// Returns the table that covers `hash`.
    #[inline]
    pub(crate) fn table<'g>(&self, hash: u64, guard: &'g Guard) -> &'g HashTable {
        let directory = self.directory(guard);
        // SAFETY: as for the directory, tables are retired through the epoch.
        unsafe { &*directory.tables[directory.slot(hash)].load() }
    }

    /// Calls `each` with the address of every entry that has the same kept bits as `hash`, until
    /// `each` returns false.
    #[inline]
    fn matches_hash(&self, hash: u64, guard: &Guard, mut each: impl FnMut(Address) -> bool) {
        let mut table = Some(self.table(hash, guard));
        while let Some(here) = table {
            if !here.matches(hash, &mut each) {
                return;
            }
            table = here.next(guard);
        }
    }

    /// Returns true if an entry of `hash` has the address `address`.
    #[cfg(test)]
    fn contains(&self, hash: u64, address: Address, guard: &Guard) -> bool {
        let mut found = false;
        self.matches_hash(hash, guard, |at| {
            found |= at == address;
            !found
        });
        found
    }

    /// Replaces the address `from` of an entry by `to`; [`Address::NONE`] removes the entry.
    /// Returns false if there is no such entry. The caller owns the key.
    fn repoint(&self, hash: u64, from: Address, to: Address) -> bool {
        let guard = &epoch::pin();
        let mut is_done = false;
        loop {
            let head = self.table(hash, guard);
            let mut table = Some(head);
            let is_here = std::iter::from_fn(|| {
                let here = table?;
                table = here.next(guard);
                Some(here)
            })
            .any(|here| here.replace(hash, from, to));
            // If the entry is missing after an exchange in an older table, that exchange was copied
            // here.
            if !is_here || head.confirm_change() {
                return is_here || is_done;
            }
            is_done = true;
        }
    }

    /// Adds an entry. The caller owns the key.
    fn add(&self, hash: u64, address: Address) {
        let guard = &epoch::pin();
        let mut was_put = false;
        loop {
            let head = self.table(hash, guard);
            // The copy of the table may already contain the entry.
            if was_put && has_entry(head, hash, address, guard) {
                return;
            }
            if !head.is_small() && head.insert(hash, address) {
                if head.confirm_change() {
                    return;
                }
                was_put = true;
            } else if self.add_latched(head, hash, address, guard) {
                return;
            }
        }
    }

    /// Adds an entry to a small table or to a full one, or makes room for it. Returns false if the
    /// caller must try again.
    #[cold]
    fn add_latched(&self, table: &HashTable, hash: u64, address: Address, guard: &Guard) -> bool {
        let Some(_latch) = table.latch() else { return false };
        if table.insert(hash, address) {
            return true;
        }
        if table.is_small() {
            table.close();
            table.grown_copy().into_iter().for_each(|grown| self.replace_single_table(grown, guard));
            return false;
        }
        if table.depth() < TAG_BITS && table.can_split_at(table.depth()) {
            self.split(table, hash, guard);
            return false;
        }
        // All hashes agree in all kept bits: use a chain, which lookups search completely.
        let mut last = table;
        while let Some(next) = last.next(guard) {
            if next.insert(hash, address) {
                return true;
            }
            last = next;
        }
        self.account_memory(HashTable::bytes(self.buckets), 0);
        let next = HashTable::new(table.depth(), self.buckets, self.is_large());
        let is_put = next.insert(hash, address);
        debug_assert!(is_put, "it is empty");
        last.append_to_chain(next);
        true
    }

    /// Replaces the only table, a small one, by `grown`. The caller holds its latch and has closed
    /// it.
    fn replace_single_table(&self, grown: Box<HashTable>, guard: &Guard) {
        let _writer = self.writer.lock();
        let slot = &self.directory(guard).tables[0];
        let (old, start) = (slot.load(), grown.buckets_ptr());
        // SAFETY: `old` is live until it is retired below.
        self.account_memory(grown.chain_bytes(), unsafe { &*old }.chain_bytes());
        slot.store(Box::into_raw(grown), start);
        // SAFETY: the directory of a small table has only this slot, which now points elsewhere.
        unsafe { retire_table(old, guard) };
    }

    /// Splits `table`, which covers `hash`, in two. The caller holds its latch.
    fn split(&self, table: &HashTable, hash: u64, guard: &Guard) {
        table.close();
        let (low, high) = table.halves(self.is_large(), guard);
        self.account_memory(low.chain_bytes() + high.chain_bytes(), table.chain_bytes());
        let _writer = self.writer.lock();
        let directory = self.directory(guard);
        let old = directory.tables[directory.slot(hash)].load();
        assert!(std::ptr::eq(old, table), "hash (I1): a split replaces the table in the directory");
        let directory = if table.depth() == directory.depth { self.double(guard) } else { directory };
        let span = 1usize << (directory.depth - table.depth());
        let first = directory.slot(hash) & !(span - 1);
        let starts = (low.buckets_ptr(), high.buckets_ptr());
        let (low, high) = (Box::into_raw(low), Box::into_raw(high));
        let (slots_of_low, slots_of_high) = directory.tables[first..first + span].split_at(span / 2);
        // Publish the high half first. A walk continues at the high half after the new low one; if
        // it found the old table there, it would visit the entries of the low half twice.
        slots_of_high.iter().for_each(|slot| slot.store(high, starts.1));
        slots_of_low.iter().for_each(|slot| slot.store(low, starts.0));
        // SAFETY: no slot of the present directory points to it. Older directories are reachable
        // only under guards that were pinned before; retirement waits for these guards.
        unsafe { retire_table(old, guard) };
    }

    /// Publishes a directory of twice the size. The caller holds `writer`.
    fn double<'g>(&self, guard: &'g Guard) -> &'g HashDirectory {
        let directory = self.directory(guard);
        let copy =
            |slot: &DirectorySlot| DirectorySlot::new(slot.load(), slot.buckets.load(Ordering::Relaxed));
        let tables = directory.tables.iter().flat_map(|slot| [copy(slot), copy(slot)]);
        let depth = directory.depth + 1;
        let new = Box::new(HashDirectory { depth, tables: tables.collect() });
        let old = self.directory.swap(Box::into_raw(new), Ordering::AcqRel);
        self.account_memory(directory_bytes(depth), directory_bytes(depth - 1));
        // SAFETY: the swap unlinked the directory, and its tables now belong to the new one.
        unsafe { retire_directory(old, guard) };
        self.directory(guard)
    }

    /// Returns the number of groups of home buckets. A cursor visits each group for every hash
    /// prefix.
    pub(crate) fn group_count(&self) -> usize {
        self.buckets.div_ceil(BUCKETS_PER_GROUP)
    }

    /// Returns the group of the home bucket of `hash`.
    pub(crate) fn group_of(&self, hash: u64) -> usize {
        table::home(hash, self.buckets) / BUCKETS_PER_GROUP
    }

    /// Calls `each` with every entry of `group` in the table that covers the hash prefix `start`.
    /// Returns the first and the last hash of the table.
    pub(crate) fn visit(
        &self,
        group: usize,
        start: u64,
        guard: &Guard,
        mut each: impl FnMut(Address),
    ) -> (u64, u64) {
        let head = self.table(start, guard);
        let (first, last) = range_of(start, head.depth());
        let mut table = Some(head);
        while let Some(here) = table {
            here.visit(group * BUCKETS_PER_GROUP, BUCKETS_PER_GROUP, &mut each);
            table = here.next(guard);
        }
        (first, last)
    }

    /// Calls `each` with the first table of every chain, in the order of hash prefixes.
    pub(crate) fn for_each_table<E>(
        &self,
        mut each: impl FnMut(&HashTable, &Guard) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = 0;
        loop {
            let guard = &epoch::pin();
            let table = self.table(start, guard);
            let (_, last) = range_of(start, table.depth());
            each(table, guard)?;
            match last.checked_add(1) {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }
}

impl Index for HashIndex {
    const NAME: &'static str = "flat";
    const ORDERED: bool = false;
    /// Group of the home bucket, then the hash.
    type Place = (usize, u64);
    type Walk = HashWalk;
    type BulkBuilder = bulk_build::HashBulkBuilder;

    fn new(context: Arc<EngineContext>) -> HashIndex {
        HashIndex::empty(context)
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.context.hash(key)
    }

    fn place(&self, hashed_key: HashedKey<'_>) -> (usize, u64) {
        (self.group_of(hashed_key.hash), hashed_key.hash)
    }

    #[inline]
    fn matches(&self, hashed_key: HashedKey<'_>, guard: &Guard, each: impl FnMut(Address) -> bool) {
        self.matches_hash(hashed_key.hash, guard, each);
    }

    #[inline]
    fn prefetch_if_cheap(&self, hashed_key: HashedKey<'_>, guard: &Guard) {
        let directory = self.directory(guard);
        let slot = &directory.tables[directory.slot(hashed_key.hash)];
        let at = table::home(hashed_key.hash, self.buckets) * table::BUCKET_BYTES;
        sheaf_platform::memory::prefetch(slot.table.load(Ordering::Relaxed).cast::<u8>().cast_const(), 1);
        sheaf_platform::memory::prefetch(
            slot.buckets.load(Ordering::Relaxed).wrapping_add(at).cast_const(),
            1,
        );
    }

    #[inline]
    fn prefetch(&self, hashed_key: HashedKey<'_>, guard: &Guard) {
        self.prefetch_if_cheap(hashed_key, guard);
    }

    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool {
        // A split needs two tables in addition, and at most a directory of twice the size.
        let growth = 2 * HashTable::bytes(self.buckets) + directory_bytes(self.directory(guard).depth + 1);
        self.context.memory.has_room(growth) || self.table(hashed_key.hash, guard).has_slot(hashed_key.hash)
    }

    fn insert(&self, hashed_key: HashedKey<'_>, address: Address) {
        self.add(hashed_key.hash, address);
    }

    fn replace(&self, hashed_key: HashedKey<'_>, from: Address, to: Address) -> bool {
        self.repoint(hashed_key.hash, from, to)
    }

    fn walk(_bounds: Bounds) -> HashWalk {
        HashWalk::default()
    }

    fn for_each(&self, mut each: impl FnMut(Address)) {
        let all = self.for_each_table::<Infallible>(|table, guard| {
            let mut here = Some(table);
            while let Some(table) = here {
                let words = table.for_each_bucket::<Infallible>(|words, _| {
                    let held = words.iter().map(|word| word.address()).filter(|at| *at != Address::NONE);
                    held.for_each(&mut each);
                    Ok(())
                });
                let Ok(()) = words;
                here = table.next(guard);
            }
            Ok(())
        });
        let Ok(()) = all;
    }

    fn clear(&self) {
        self.install(vec![HashTable::small(self.buckets)]);
    }

    fn may_be_empty(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool {
        self.table(hashed_key.hash, guard).is_home_vacant(hashed_key.hash)
    }

    fn shrink_if_empty(&self) {
        let guard = &epoch::pin();
        if self.directory(guard).depth == 0 {
            return;
        }
        let (mut closed, mut start, mut is_empty) = (Vec::new(), Some(0), true);
        while let Some(from) = start.filter(|_| is_empty) {
            let table = self.table(from, guard);
            let Some(latch) = table.latch() else { continue };
            table.close();
            is_empty = table.is_vacant(guard);
            closed.push((table, latch));
            start = range_of(from, table.depth()).1.checked_add(1);
        }
        // A writer that inserts into a closed table waits for its latch. Then it repeats the insert
        // in the new table, or finds its entry here if the table was opened again.
        if is_empty {
            self.clear();
        } else {
            closed.iter().for_each(|(table, _)| table.open());
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        image::save(self, out)
    }

    fn load(&self, image: &mut IndexImage<'_>) -> Result<()> {
        image::load(self, image)
    }
}

/// Walk over all entries: by groups of home buckets, and within a group by hash prefixes. Splits
/// during the walk neither hide nor repeat a key: the group of an entry never changes, and within a
/// group tables only divide. If all entries are removed during the walk, one table replaces all
/// tables; its entries are newer than the view of the walk.
#[derive(Default)]
pub(crate) struct HashWalk {
    unit: usize,
    start: u64,
}

impl Walk<HashIndex> for HashWalk {
    fn step(
        &mut self,
        index: &HashIndex,
        _way: ScanDirection,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<PlaceRange<(usize, u64)>> {
        let unit = self.unit;
        if unit >= index.group_count() {
            return None;
        }
        let (first, last) = index.visit(unit, self.start, guard, |address| heads.push(address));
        let first = first.max(self.start); // older versions before `start` were already visited
        match last.checked_add(1) {
            Some(next) => self.start = next,
            None => (self.unit, self.start) = (unit + 1, 0),
        }
        Some((Bound::Included((unit, first)), Bound::Included((unit, last))))
    }
}

/// Returns whether the table or its chain has the entry of `hash` at `address`.
fn has_entry(head: &HashTable, hash: u64, address: Address, guard: &Guard) -> bool {
    let mut is_here = false;
    let mut table = Some(head);
    while let Some(here) = table.filter(|_| !is_here) {
        here.matches(hash, &mut |at| {
            is_here = at == address;
            !is_here
        });
        table = here.next(guard);
    }
    is_here
}

/// Returns the first and the last hash that share the first `depth` bits with `hash`.
fn range_of(hash: u64, depth: u32) -> (u64, u64) {
    let rest = u64::MAX.checked_shr(depth).unwrap_or(0);
    (hash & !rest, hash | rest)
}

fn directory_bytes(depth: u32) -> u64 {
    (size_of::<DirectorySlot>() as u64) << depth
}

/// Frees `table` and its chain once all present guards are dropped.
///
/// # Safety
///
/// * `table` came from `Box::into_raw`, is unlinked, and is retired only once.
unsafe fn retire_table(table: *mut HashTable, guard: &Guard) {
    let address = table as usize;
    // SAFETY: the caller guarantees the conditions above; the closure owns the captured address.
    unsafe { guard.defer_unchecked(move || drop(Box::from_raw(address as *mut HashTable))) };
}

/// Frees `directory`, but not its tables, once all present guards are dropped.
///
/// # Safety
///
/// * `directory` came from `Box::into_raw`, is unlinked, and is retired only once.
unsafe fn retire_directory(directory: *mut HashDirectory, guard: &Guard) {
    let address = directory as usize;
    // SAFETY: the caller guarantees the conditions above; the closure owns the captured address.
    unsafe { guard.defer_unchecked(move || drop(Box::from_raw(address as *mut HashDirectory))) };
}

impl Drop for HashIndex {
    fn drop(&mut self) {
        let guard = &epoch::pin();
        let old = self.directory.swap(std::ptr::null_mut(), Ordering::AcqRel);
        self.retire_all(old, guard);
    }
}
