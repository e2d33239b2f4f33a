//! # Lazy-trie
//!
//! A trie over hashes that compresses paths only below their last fork (the paper's §2.2). A child
//! of a node is a node, a list of entries (entry_list.rs) or empty. A list is split when it
//! overflows (§2.3).
//!
//! ## Picture
//!
//! ```text
//!  root  [ a a a a b b c d ... ]       a: a list for four digits     c: a node below
//!                      |
//!                 node [ e e e e e e e e f f f f g g h h ]
//!                                                    |
//!                                              node [ ... ]
//!  reference: is_node 1 bit | page 25 bits | line 6 bits; 0 is empty
//! ```
//!
//! ## Invariants
//!
//! 1. The references to a list are a run of one node. Its length is a power of two, and it is
//!    aligned to its length.
//! 2. Data that readers of a hash may see changes only while its shard's version is odd.
//! 3. A list with different hashes has at most `max_list_entries` entries. An empty list is freed.
//!    Neighbours that are nearly empty are merged, and a node with a single list is replaced by the
//!    list, if their pages are in memory.
//!
//! ## Threads
//!
//! Each shard has one writer, under the shard's lock (shard.rs). The heap's lock comes after it.
//! Readers take no lock: they check each step, and retry if the shard's version has changed.

mod change;
mod root;
mod shard;
#[cfg(test)]
mod tests;

use sheaf_log::segment::Address;
use sheaf_platform::memory::prefetch;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sheaf_platform::sync::epoch::Guard;
use sheaf_platform::sync::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use self::root::TrieRoot;
use self::shard::{ShardGuard, TrieShards};
use crate::entry_list::{EntryList, KeyHash, TrieEntry, hash_prefix};
use crate::heap::{FrozenTrie, PageHeap, PageKind};
use crate::resident_pages::{MAX_PAGES, ResidentPages};
use crate::shape::{HASH_BITS, LINE_WORDS, TrieShape};

/// Attempts of a reader before it takes the lock of the shard. It never spins for long on a writer
/// that is not running.
const READ_RETRIES: usize = 16;
/// Maximum length of a chain. A longer one is damage.
const MAX_LINKS: usize = 1 << 20;
/// Number of free entries for which a list that shrinks keeps room.
const SLACK: usize = 1;

pub(crate) const NODE_FLAG: u32 = 1 << 31;
const LINE_BITS: u32 = 6;
/// Reference to nothing.
pub(crate) const EMPTY_REF: u32 = 0;

/// Value that shares no cache line with other data.
#[repr(align(64))]
struct CacheAligned<T>(T);

/// Error of an operation on the trie, which does no I/O itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrieError {
    /// The page is not in memory. The caller loads it and retries.
    NotResident(u32),
    /// The page has invalid content.
    Invalid(u32, &'static str),
    /// The maximum number of pages is reached.
    OutOfPages,
}

type TrieResult<T> = Result<T, TrieError>;

pub(crate) fn page_of(reference: u32) -> u32 {
    (reference & !NODE_FLAG) >> LINE_BITS
}

pub(crate) fn line_of(reference: u32) -> usize {
    (reference & ((1 << LINE_BITS) - 1)) as usize
}

fn reference((page, line): (u32, usize), kind: u32) -> u32 {
    kind | page << LINE_BITS | u32::try_from(line).unwrap_or(0)
}

/// Node on a path, and the digit of the path in this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathStep {
    /// Reference of the node; `EMPTY_REF` for the root.
    node: u32,
    /// Number of hash bits above the node.
    pub(crate) depth: u32,
    /// Number of bits of the node's digit.
    pub(crate) bits: u32,
    digit: usize,
}

impl PathStep {
    pub(crate) fn new(node: u32, depth: u32, bits: u32, hash: u32) -> PathStep {
        let below = hash.checked_shl(depth).unwrap_or(0);
        PathStep { node, depth, bits, digit: below.checked_shr(HASH_BITS - bits).unwrap_or(0) as usize }
    }

    fn is_root(&self) -> bool {
        self.depth == 0
    }

    /// Returns the first and the last hash of `len` digits from `digit` on. They share the bits
    /// above the node with `hash`.
    pub(crate) fn range(&self, hash: u32, digit: usize, len: usize) -> (u32, u32) {
        let below = HASH_BITS - self.depth - self.bits;
        let at = |digit: usize| u64::from(hash_prefix(hash, self.depth)) + ((digit as u64) << below);
        let cut = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        (cut(at(digit)), cut(at(digit + len) - 1))
    }
}

type TriePath = SmallVec<[PathStep; 8]>;
/// Entries collected for a split or a merge.
type TrieEntries = SmallVec<[TrieEntry; 36]>;
/// Addresses of the records with one hash.
pub(crate) type FoundAddresses = SmallVec<[Address; 4]>;

/// Lazy-trie of one keyspace.
///
/// Unlike in the paper, one list may serve 2, 4, ... or all digits of its node. It splits into
/// halves, and becomes a node only at one digit. So lists stay at least about half full at any
/// number of keys. Splits by the whole branching factor would leave lists nearly empty after each
/// new level. Lists of one hash are chained without limit.
pub(crate) struct Trie {
    shape: TrieShape,
    /// Cached result of [`TrieShape::omitted_hash_bytes`].
    omitted_bytes: u32,
    root: TrieRoot,
    pages: ResidentPages,
    /// Locks and versions. A change affects only the readers of its own shard.
    shards: TrieShards,
    heap: CacheAligned<Mutex<PageHeap>>,
    heap_stats: CacheAligned<HeapStats>,
}

/// Copies of the heap's figures that are readable without its lock.
#[derive(Default)]
struct HeapStats {
    resident: AtomicU64,
    page_count: AtomicU64,
    free_lines: AtomicU64,
    /// Approximate number of pages that differ from their copy on disk.
    dirty: AtomicU64,
    /// Copy of [`PageHeap::is_fragmented`].
    is_fragmented: AtomicBool,
}

impl Trie {
    pub(crate) fn new(shape: TrieShape) -> Trie {
        Trie::with_shards(shape, TrieShards::new(shape.root_bits))
    }

    fn with_shards(shape: TrieShape, shards: TrieShards) -> Trie {
        Trie {
            shape,
            omitted_bytes: shape.omitted_hash_bytes(),
            root: TrieRoot::new(shape.root_bits),
            pages: ResidentPages::new(shape.page_lines),
            shards,
            heap: CacheAligned(Mutex::new(PageHeap::new(shape))),
            heap_stats: CacheAligned(HeapStats::default()),
        }
    }

    /// Returns a trie with these entries as older versions without shards wrote it: a list may
    /// serve digits of several shards.
    #[cfg(test)]
    pub(crate) fn without_shards(
        shape: TrieShape,
        entries: impl IntoIterator<Item = (u32, Address)>,
    ) -> Trie {
        let mut trie = Trie::with_shards(shape, TrieShards::single());
        let guard = &sheaf_platform::sync::epoch::pin();
        for (hash, at) in entries {
            trie.insert(TrieEntry::new(hash, at), guard).expect("all of it is in memory");
        }
        let (entries, counts) = (trie.len(), trie.counts());
        trie.shards = TrieShards::new(shape.root_bits);
        trie.shards.set_counts(&mut trie.shards.lock_all(), entries, &counts);
        trie
    }

    pub(crate) fn shape(&self) -> &TrieShape {
        &self.shape
    }

    /// Returns whether the references can address `pages` more pages.
    pub(crate) fn can_grow_by(&self, pages: u64) -> bool {
        self.heap_stats.0.page_count.load(Ordering::Relaxed) + pages < u64::from(MAX_PAGES)
    }

    /// Returns the bytes of the pages in memory and of the root.
    pub(crate) fn bytes(&self) -> u64 {
        self.heap_stats.0.resident.load(Ordering::Relaxed) * self.shape.page_bytes() as u64
            + self.root.bytes()
    }

    /// Returns whether the pages in memory have enough free lines for new entries without a new
    /// page, after compaction.
    pub(crate) fn has_free_lines(&self) -> bool {
        let lines = self.heap_stats.0.resident.load(Ordering::Relaxed) * self.shape.page_lines as u64;
        self.heap_stats.0.free_lines.load(Ordering::Relaxed) * 8 > lines
    }

    /// Returns the used fraction of the lines in memory.
    #[cfg(feature = "measure")]
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn fill_ratio(&self) -> f64 {
        let lines = self.heap_stats.0.resident.load(Ordering::Relaxed) * (self.shape.page_lines as u64 - 1);
        1.0 - self.heap_stats.0.free_lines.load(Ordering::Relaxed) as f64 / lines.max(1) as f64
    }

    /// Returns the number of entries. Concurrent changes may or may not be counted.
    pub(crate) fn len(&self) -> u64 {
        self.shards.entries()
    }

    /// Returns the number of entries in the segment of each slot. Waits for running changes.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.shards.counts(&mut self.shards.lock_all())
    }

    // Look-ups.

    #[inline]
    fn page<'g>(&'g self, reference: u32, guard: &'g Guard) -> TrieResult<&'g [AtomicU64]> {
        let page = page_of(reference);
        self.pages.get(page, guard).map_or_else(|| self.restored_page(page, guard), Ok)
    }

    /// Restores a page that was evicted under a guard that is still pinned. The caller must not
    /// hold the heap's lock.
    #[cold]
    fn restored_page<'g>(&'g self, page: u32, guard: &'g Guard) -> TrieResult<&'g [AtomicU64]> {
        self.heap().heap.restore_evicted(page, &self.pages, guard).ok_or(TrieError::NotResident(page))
    }

    /// Returns the index of the word with child `digit` of a node in its page, and the shift within
    /// the word.
    fn child_at(&self, node: u32, digit: usize) -> (usize, usize) {
        (line_of(node) * LINE_WORDS + digit / 2, 32 * (digit % 2))
    }

    #[inline]
    fn child(&self, node: u32, digit: usize, guard: &Guard) -> TrieResult<u32> {
        let page = self.page(node, guard)?;
        let (word, shift) = self.child_at(node, digit);
        let word = page.get(word).ok_or(TrieError::Invalid(page_of(node), "node"))?;
        Ok(u32::try_from(word.load(Ordering::Relaxed) >> shift & u64::from(u32::MAX)).unwrap_or(0))
    }

    pub(crate) fn child_of(&self, step: &PathStep, digit: usize, guard: &Guard) -> TrieResult<u32> {
        if step.is_root() { Ok(self.root.get(digit)) } else { self.child(step.node, digit, guard) }
    }

    /// Descends to the list of `hash`. Returns the last node on the path, and the reference in it,
    /// which may be empty.
    #[inline]
    fn descend(
        &self,
        hash: u32,
        guard: &Guard,
        mut each: impl FnMut(PathStep),
    ) -> TrieResult<(PathStep, u32)> {
        let mut step = PathStep::new(EMPTY_REF, 0, self.shape.root_bits, hash);
        let mut child = self.root.get(step.digit);
        while child & NODE_FLAG != 0 {
            each(step);
            let depth = step.depth + step.bits;
            if depth >= HASH_BITS {
                return Err(TrieError::Invalid(page_of(child), "depth of a node"));
            }
            step = PathStep::new(child, depth, self.shape.digit_bits(depth), hash);
            child = self.child(child, step.digit, guard)?;
        }
        Ok((step, child))
    }

    /// Returns the list at `reference`.
    #[inline]
    pub(crate) fn list<'g>(&'g self, reference: u32, guard: &'g Guard) -> TrieResult<EntryList<'g>> {
        let page = self.page(reference, guard)?;
        EntryList::parse(page, line_of(reference), self.omitted_bytes)
            .ok_or(TrieError::Invalid(page_of(reference), "list"))
    }

    /// Calls `each` with every link of the chain after the first.
    pub(crate) fn for_each_link<'g>(
        &'g self,
        first: &EntryList<'g>,
        guard: &'g Guard,
        mut each: impl FnMut(u32, &EntryList<'g>),
    ) -> TrieResult<()> {
        let (mut next, mut count) = (first.next(), 0);
        while next != EMPTY_REF {
            let link = self.list(next, guard)?;
            count += 1;
            if !link.is_link || link.prefix != first.prefix || count > MAX_LINKS {
                return Err(TrieError::Invalid(page_of(next), "link"));
            }
            each(next, &link);
            next = link.next();
        }
        Ok(())
    }

    /// Returns the version of the shard of `hash`. Every change that a look-up of `hash` may see
    /// changes it. It is odd during a change.
    #[inline]
    pub(crate) fn version(&self, hash: u32) -> u32 {
        self.shards.version(hash).load(Ordering::Acquire)
    }

    /// Returns the result of `look` over the shard of `hash` while no writer changes it.
    #[inline]
    fn read_consistent<T>(&self, hash: u32, mut look: impl FnMut() -> TrieResult<T>) -> TrieResult<T> {
        let version = self.shards.version(hash);
        for _ in 0..READ_RETRIES {
            let before = version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let seen = look();
                fence(Ordering::Acquire);
                if version.load(Ordering::Relaxed) == before {
                    return seen;
                }
            }
            std::hint::spin_loop();
        }
        let _no_writer = self.shards.lock(self.shards.shard_of(hash));
        look()
    }

    /// Returns the addresses of all entries of `hash`. Calls `ask` with each address as soon as it
    /// is read, for a prefetch; it may be wrong.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: impl Into<KeyHash>,
        guard: &Guard,
        ask: impl Fn(Address),
    ) -> TrieResult<FoundAddresses> {
        let key_hash = hash.into();
        let hash = key_hash.path;
        self.read_consistent(hash, || {
            let mut found = FoundAddresses::new();
            let (_, child) = self.descend(hash, guard, |_| {})?;
            if child == EMPTY_REF {
                return Ok(found);
            }
            let list = self.list(child, guard)?;
            if !list.has_prefix_of(hash) {
                if !list.is_link {
                    return Err(TrieError::Invalid(page_of(child), "prefix"));
                }
                // The chain of another hash. Only an insertion separates it from `hash`.
                return self.for_each_link(&list, guard, |_, _| {}).map(|()| found);
            }
            let mut gather = |list: &EntryList<'_>| {
                list.matches(key_hash, |index| {
                    let address = Address::from_bits(list.address(index));
                    ask(address);
                    found.push(address);
                    true
                });
            };
            gather(&list);
            self.for_each_link(&list, guard, |_, link| gather(link))?;
            Ok(found)
        })
    }

    /// Prefetches the lines that a look-up of `hash` reads.
    pub(crate) fn prefetch(&self, hash: u32, guard: &Guard) {
        if let Ok((_, child)) = self.descend(hash, guard, |_| {})
            && child != EMPTY_REF
            && let Ok(page) = self.page(child, guard)
            && let Some(first) = page.get(line_of(child) * LINE_WORDS)
        {
            prefetch(std::ptr::from_ref(first).cast(), 4);
        }
    }

    /// Reads into `out` the entries from hash `from` on that are in one list. Returns the last hash
    /// that this list may have.
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<TrieEntry>) -> TrieResult<u32> {
        self.visit_with_level(from, guard, out).map(|(last, _)| last)
    }

    /// Like [`Trie::visit`], and also returns the number of nodes on the path.
    pub(crate) fn visit_with_level(
        &self,
        from: u32,
        guard: &Guard,
        out: &mut Vec<TrieEntry>,
    ) -> TrieResult<(u32, usize)> {
        self.read_consistent(from, || {
            out.clear();
            let mut level = 1;
            let (step, child) = self.descend(from, guard, |_| level += 1)?;
            let mut end = step.digit + 1;
            let (_, mut last) = step.range(from, step.digit, 1);
            // Does not read beyond the shard. The entries behind it would be discarded, and read
            // again for each shard.
            while end < 1 << step.bits
                && self.shards.shard_of(last) == self.shards.shard_of(from)
                && self.child_of(&step, end, guard)? == child
            {
                end += 1;
                (_, last) = step.range(from, step.digit, end - step.digit);
            }
            if child != EMPTY_REF {
                let list = self.list(child, guard)?;
                let wanted = |entry: &TrieEntry| entry.hash >= from;
                out.extend(list.entries().filter(wanted));
                self.for_each_link(&list, guard, |_, link| out.extend(link.entries().filter(wanted)))?;
            }
            if self.shards.shard_of(last) != self.shards.shard_of(from) {
                //
                // Only the version of the first shard is validated.
                return Ok((self.truncate_at_shard(from, last, out), level));
            }
            if out.iter().any(|entry| entry.hash > last) {
                return Err(TrieError::Invalid(page_of(child), "prefix"));
            }
            Ok((last, level))
        })
    }

    /// Sets `last` to the last hash of the subtree at `from`: of the list there, or of the lowest
    /// node that is readable. `last` is also set if the result is an error.
    pub(crate) fn find_subtree_end(&self, from: u32, guard: &Guard, last: &mut u32) -> TrieResult<()> {
        self.read_consistent(from, || {
            let (step, child) =
                self.descend(from, guard, |step| *last = step.range(from, step.digit, 1).1)?;
            let mut end = step.digit + 1;
            while end < 1 << step.bits && self.child_of(&step, end, guard)? == child {
                end += 1;
            }
            *last = step.range(from, step.digit, end - step.digit).1;
            Ok(())
        })
    }

    /// Truncates a range at the end of its first shard, the only one with a validated version.
    fn truncate_at_shard(&self, from: u32, last: u32, out: &mut Vec<TrieEntry>) -> u32 {
        let end = last.min(self.shards.shard_end(from));
        out.retain(|entry| entry.hash <= end);
        end
    }

    // Loads and evictions of pages.

    /// Locks the heap. Until the guard is dropped, no thread allocates or frees lines or pages.
    pub(crate) fn heap(&self) -> HeapGuard<'_> {
        HeapGuard { trie: self, heap: self.heap.0.lock() }
    }

    /// Adds a page that was read from disk, if `is_still` returns that the place on disk is still
    /// current. Keeps a page that another thread has added before.
    ///
    /// # Errors
    ///
    /// Returns [`TrieError::Invalid`] if the head of the page is invalid or the page is not in use.
    pub(crate) fn add_loaded_page(
        &self,
        page: u32,
        content: &[u64],
        is_still: impl Fn() -> bool,
        guard: &Guard,
    ) -> TrieResult<()> {
        let nonsense = Err(TrieError::Invalid(page, "head of a page"));
        let &[used, head, ..] = content else { return nonsense };
        let Some(kind) = PageKind::of(head, page) else { return nonsense };
        let most = u64::MAX >> (64 - self.shape.page_lines.min(64));
        if used & 1 == 0 || used > most || content.len() != self.shape.page_lines * LINE_WORDS {
            return nonsense;
        }
        let mut heap = self.heap();
        if !heap.is_used(page) {
            return Err(TrieError::Invalid(page, "reference"));
        }
        if self.pages.get(page, guard).is_none() && is_still() {
            let fresh = self.pages.new_page();
            fresh.words().iter().zip(content).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
            self.pages.put(page, fresh);
            if let Some(words) = self.pages.get(page, guard) {
                heap.heap.add_loaded(page, kind, words);
            }
        }
        Ok(())
    }

    /// Evicts up to `most` clean pages, but keeps at least `least` pages in memory. Returns the
    /// number of evicted pages, and calls `went` with each of them.
    pub(crate) fn evict(&self, most: usize, least: u64, guard: &Guard, went: impl FnMut(u32)) -> usize {
        self.heap().heap.evict(most, least, &self.pages, guard, went)
    }

    /// Returns the approximate bytes of clean pages, which may be evicted.
    pub(crate) fn clean_bytes(&self) -> u64 {
        let resident = self.heap_stats.0.resident.load(Ordering::Relaxed);
        let clean = resident.saturating_sub(self.heap_stats.0.dirty.load(Ordering::Relaxed));
        clean * self.shape.page_bytes() as u64
    }

    /// Freezes the dirty pages and clears their dirty flags. Waits for running changes.
    pub(crate) fn freeze(&self) {
        let mut held = self.shards.lock_all();
        let (entries, counts) = (self.len(), self.shards.counts(&mut held));
        self.heap().heap.freeze(FrozenTrie::new(self.root.runs(), entries, counts), &self.pages);
    }

    /// Restores an image. The trie must be empty and have no readers.
    pub(crate) fn restore(
        &self,
        is_used: impl Iterator<Item = bool>,
        root: &[(u32, u32)],
        entries: u64,
        counts: &[u64],
    ) {
        let mut held = self.shards.lock_all();
        self.shards.set_counts(&mut held, entries, counts);
        self.heap().heap.restore(is_used);
        self.root.set_runs(root);
    }

    /// Returns the number of digits of a node that one list may serve: all, but in the root only
    /// those of a shard.
    fn max_list_digits(&self, step: &PathStep) -> usize {
        let bits = if step.is_root() { step.bits - self.shards.bits() } else { step.bits };
        1 << bits
    }

    pub(crate) fn pages(&self) -> &ResidentPages {
        &self.pages
    }
}

/// Checks that a list can belong to this run of digits for `hash`. Then its entries can be split
/// among these digits.
///
/// # Errors
///
/// Returns the name of the invalid field.
pub(crate) fn check_list(
    step: &PathStep,
    (first, len): (usize, usize),
    list: &EntryList<'_>,
    hash: u32,
) -> Result<(), &'static str> {
    if !len.is_power_of_two() || !first.is_multiple_of(len) {
        return Err("references to a list");
    }
    let bits = step.depth + step.bits - len.trailing_zeros();
    if list.bits != bits && !list.is_link || hash_prefix(list.prefix, bits) != hash_prefix(hash, bits) {
        return Err("prefix");
    }
    Ok(())
}

/// Lock of the heap. It publishes the heap's figures when it is dropped.
pub(crate) struct HeapGuard<'a> {
    trie: &'a Trie,
    heap: MutexGuard<'a, PageHeap>,
}

impl std::ops::Deref for HeapGuard<'_> {
    type Target = PageHeap;

    fn deref(&self) -> &PageHeap {
        &self.heap
    }
}

impl std::ops::DerefMut for HeapGuard<'_> {
    fn deref_mut(&mut self) -> &mut PageHeap {
        &mut self.heap
    }
}

impl Drop for HeapGuard<'_> {
    fn drop(&mut self) {
        self.trie.publish(&self.heap);
    }
}

impl Trie {
    fn publish(&self, heap: &PageHeap) {
        let HeapStats { resident, page_count, free_lines, dirty, is_fragmented } = &self.heap_stats.0;
        let figures = [
            (resident, heap.resident),
            (page_count, heap.page_count()),
            (free_lines, heap.free_lines),
            (dirty, heap.dirty_pages()),
        ];
        // Other threads read this cache line, so it is written only if a figure has changed.
        for (figure, now) in figures {
            if figure.load(Ordering::Relaxed) != now {
                figure.store(now, Ordering::Relaxed);
            }
        }
        let now = heap.is_fragmented();
        if is_fragmented.load(Ordering::Relaxed) != now {
            is_fragmented.store(now, Ordering::Relaxed);
        }
    }
}
