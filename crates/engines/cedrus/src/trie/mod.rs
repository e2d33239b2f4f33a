//! # The lazy-trie
//!
//! Hashes are read digit by digit. A node has a child for every value of its digit; a child is a
//! node, a list of entries (entry_list.rs) or nothing. Only what lies below the last fork of a path
//! is compressed, as in the paper (§2.2): a list stands where its hashes first differ from all
//! others, and inner nodes may have one child. Splitting is sluggish (§2.3): a list is split when
//! it overflows, and again until every part is within the limit.
//!
//! What the paper has not: a list may serve several digits of its node, two, four, up to all of
//! them. It then splits bit by bit, into halves, and becomes a node only when one digit is left. So
//! lists stay half full or more at any number of keys, where splits by the whole branching factor
//! leave them nearly empty soon after each level is begun, and the footprint has no cliff. Lists
//! whose hashes are all equal are chained without limit.
//!
//! ## Picture
//!
//! ```text
//!  root  [ a a a a b b c d ... ]         a: a list for four digits     c: a node below
//!                      |
//!                 node [ e e e e e e e e f f f f g g h h ]
//!                                                    |
//!                                              node [ ... ]             reference: node? 1 | page 25 | line 6, 0 for nothing
//! ```
//!
//! ## Invariants
//!
//! 1. A list's references are a run of words of one node, as many as a power of two and aligned to
//!    it.
//! 2. Everything that a reader of some hash may see changes only while the version of its shard is
//!    odd.
//! 3. Lists of different hashes have at most `most` entries. An emptied list is given back;
//!    neighbours that are nearly empty become one, and a node whose only child is a list gives way
//!    to it.
//!
//! ## Threads
//!
//! One writer for each shard (shard.rs), under the shard's lock; lines and pages are taken and
//! given back under the heap's lock, which comes after it. Readers take no lock: they remember the
//! version of their hash's shard, look, and look again if it has moved. What they see meanwhile may
//! be nonsense, so every step is checked. A reader that finds a writer in its way several times
//! waits for the shard's lock, so that it never spins on a thread without a core. The trie does no
//! I/O: what is not in memory is an answer ([`TrieError::NotResident`]) that the caller acts on.
//!
//! ## Costs
//!
//! A look-up: the root, a line a node (three of them at 5 million keys, the first two nearly always
//! cached), a list of up to five lines. A change: that, and bytes in one list; one in about twenty
//! rewrites a list of a few lines, one in a hundred splits one.

mod change;
mod root;
mod shard;
#[cfg(test)]
mod tests;

use sheaf_base::memory::prefetch;
use sheaf_base::segment::Address;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::sync::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use self::root::TrieRoot;
use self::shard::{ShardGuard, TrieShards};
use crate::entry_list::{EntryList, TrieEntry, hash_prefix};
use crate::heap::{FrozenTrie, PageHeap, PageKind};
use crate::resident_pages::{MAX_PAGES, ResidentPages};
use crate::shape::{HASH_BITS, LINE_WORDS, TrieShape};

/// Looks of a reader before it waits for the writer.
const READ_RETRIES: usize = 16;
/// Links of a chain that are believed in.
const MAX_LINKS: usize = 1 << 20;
/// A list that shrinks keeps room for so many.
const SLACK: usize = 1;

pub(crate) const NODE_FLAG: u32 = 1 << 31;
const LINE_BITS: u32 = 6;
/// Nothing.
pub(crate) const EMPTY_REF: u32 = 0;

/// Something on cache lines of its own.
#[repr(align(64))]
struct CacheAligned<T>(T);

/// Why a look did not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrieError {
    /// This page is not in memory.
    NotResident(u32),
    /// This page has an invalid content.
    Invalid(u32, &'static str),
    /// There are as many pages as there can be.
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

/// A node on a path, and the digit that the path takes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathStep {
    /// Its reference; `EMPTY_REF` for the root.
    node: u32,
    /// Bits above it.
    pub(crate) depth: u32,
    /// Bits of its digit.
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

    /// The hashes below `len` digits from `digit` on, of which `hash` shares the bits above.
    pub(crate) fn range(&self, hash: u32, digit: usize, len: usize) -> (u32, u32) {
        let below = HASH_BITS - self.depth - self.bits;
        let at = |digit: usize| u64::from(hash_prefix(hash, self.depth)) + ((digit as u64) << below);
        let cut = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        (cut(at(digit)), cut(at(digit + len) - 1))
    }
}

type TriePath = SmallVec<[PathStep; 8]>;
/// Entries that were gathered.
type TrieEntries = SmallVec<[TrieEntry; 36]>;
/// Addresses that may be a key's.
pub(crate) type FoundAddresses = SmallVec<[Address; 4]>;

/// See the module.
pub(crate) struct Trie {
    shape: TrieShape,
    /// Its `omitted_hash_bytes`.
    omitted_bytes: u32,
    root: TrieRoot,
    pages: ResidentPages,
    /// A change tells only the readers of its own shard.
    shards: TrieShards,
    heap: CacheAligned<Mutex<PageHeap>>,
    heap_stats: CacheAligned<HeapStats>,
}

/// Figures of the heap, to be read without its lock.
#[derive(Default)]
struct HeapStats {
    resident: AtomicU64,
    page_count: AtomicU64,
    free_lines: AtomicU64,
    /// Pages that are not on disk as they are.
    dirty: AtomicU64,
    /// [`PageHeap::is_fragmented`].
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

    /// A trie with these entries, as versions without shards left it: its lists serve digits of
    /// several shards.
    #[cfg(test)]
    pub(crate) fn without_shards(
        shape: TrieShape,
        entries: impl IntoIterator<Item = (u32, Address)>,
    ) -> Trie {
        let mut trie = Trie::with_shards(shape, TrieShards::single());
        let guard = &sheaf_base::sync::epoch::pin();
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

    /// Whether references reach that many pages more than there are.
    pub(crate) fn can_grow_by(&self, pages: u64) -> bool {
        self.heap_stats.0.page_count.load(Ordering::Relaxed) + pages < u64::from(MAX_PAGES)
    }

    /// Bytes of pages in memory, and of the root.
    pub(crate) fn bytes(&self) -> u64 {
        self.heap_stats.0.resident.load(Ordering::Relaxed) * self.shape.page_bytes() as u64
            + self.root.bytes()
    }

    /// Whether so many lines are free in pages in memory that entries find room without a page
    /// more, once it is pressed together.
    pub(crate) fn has_free_lines(&self) -> bool {
        let lines = self.heap_stats.0.resident.load(Ordering::Relaxed) * self.shape.page_lines as u64;
        self.heap_stats.0.free_lines.load(Ordering::Relaxed) * 8 > lines
    }

    /// The part of the lines in memory that is used.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn fill_ratio(&self) -> f64 {
        let lines = self.heap_stats.0.resident.load(Ordering::Relaxed) * (self.shape.page_lines as u64 - 1);
        1.0 - self.heap_stats.0.free_lines.load(Ordering::Relaxed) as f64 / lines.max(1) as f64
    }

    /// Entries. With changes under way it counts some of them.
    pub(crate) fn len(&self) -> u64 {
        self.shards.entries()
    }

    /// Entries in each slot's segment, between changes.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.shards.counts(&mut self.shards.lock_all())
    }

    // Looking.

    #[inline]
    fn page<'g>(&self, reference: u32, guard: &'g Guard) -> TrieResult<&'g [AtomicU64]> {
        let page = page_of(reference);
        self.pages.get(page, guard).map_or_else(|| self.restored_page(page, guard), Ok)
    }

    /// A page that was evicted under a guard that is still pinned is in memory again. The caller
    /// has not the heap's lock.
    #[cold]
    fn restored_page<'g>(&self, page: u32, guard: &'g Guard) -> TrieResult<&'g [AtomicU64]> {
        self.heap().heap.restore_evicted(page, &self.pages, guard).ok_or(TrieError::NotResident(page))
    }

    /// The word of a node's child `digit`, in a page, and which half of it.
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

    /// The way to the list of `hash`, if there is one: its last node, and the reference there.
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

    /// The list that `reference` names.
    #[inline]
    pub(crate) fn list<'g>(&self, reference: u32, guard: &'g Guard) -> TrieResult<EntryList<'g>> {
        let page = self.page(reference, guard)?;
        EntryList::parse(page, line_of(reference), self.omitted_bytes)
            .ok_or(TrieError::Invalid(page_of(reference), "list"))
    }

    /// Calls `each` with the links behind the first.
    pub(crate) fn for_each_link<'g>(
        &self,
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

    /// Another one after every change of what a look-up of `hash` may find; odd while it changes.
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

    /// The addresses of all entries of `hash`. `ask` is told of each as soon as it is seen, right
    /// or not.
    #[inline]
    pub(crate) fn find(&self, hash: u32, guard: &Guard, ask: impl Fn(Address)) -> TrieResult<FoundAddresses> {
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
                // Another hash's chain, which an insertion would split from this one's.
                return self.for_each_link(&list, guard, |_, _| {}).map(|()| found);
            }
            let mut gather = |list: &EntryList<'_>| {
                list.matches(hash, |index| {
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

    /// The entries of hashes from `from` on that stand together, in `out`, and the last hash that
    /// these could have.
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<TrieEntry>) -> TrieResult<u32> {
        self.visit_with_level(from, guard, out).map(|(last, _)| last)
    }

    /// The same, and how many nodes are on the way.
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
            // Not beyond the shard: entries there would be cut off again, and looked at once for
            // each shard.
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
                return Ok((self.truncate_at_shard(from, last, out), level)); // the version is that of the first shard
            }
            if out.iter().any(|entry| entry.hash > last) {
                return Err(TrieError::Invalid(page_of(child), "prefix"));
            }
            Ok((last, level))
        })
    }

    /// Sets `last` to the last hash of what the reference beside the way to `from` stands for, as
    /// far down as nodes can be read: a list, or a node.
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

    /// Cuts a piece at the end of its first shard, whose version is the one that is looked at.
    fn truncate_at_shard(&self, from: u32, last: u32, out: &mut Vec<TrieEntry>) -> u32 {
        let end = last.min(self.shards.shard_end(from));
        out.retain(|entry| entry.hash <= end);
        end
    }

    // Pages come and go.

    /// The heap, while no thread takes or gives lines or pages.
    pub(crate) fn heap(&self) -> HeapGuard<'_> {
        HeapGuard { trie: self, heap: self.heap.0.lock() }
    }

    /// A page came from disk, if what came `is_still` what stands there. What was put in meanwhile
    /// stays.
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

    /// Lets up to `most` pages go that are on disk as they are, but keeps `least`. How many went;
    /// `went` is told which.
    pub(crate) fn evict(&self, most: usize, least: u64, guard: &Guard, went: impl FnMut(u32)) -> usize {
        self.heap().heap.evict(most, least, &self.pages, guard, went)
    }

    /// Bytes of the pages that are on disk as they are, about: those that may go.
    pub(crate) fn clean_bytes(&self) -> u64 {
        let resident = self.heap_stats.0.resident.load(Ordering::Relaxed);
        let clean = resident.saturating_sub(self.heap_stats.0.dirty.load(Ordering::Relaxed));
        clean * self.shape.page_bytes() as u64
    }

    /// Freezes the dirty pages and the marks that they are dirty, between changes.
    pub(crate) fn freeze(&self) {
        let mut held = self.shards.lock_all();
        let (entries, counts) = (self.len(), self.shards.counts(&mut held));
        self.heap().heap.freeze(FrozenTrie::new(self.root.runs(), entries, counts), &self.pages);
    }

    /// Restores an image, in an empty trie without readers.
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

    /// Digits of a node that one list may serve: all; in the root, those of a shard.
    fn max_list_digits(&self, step: &PathStep) -> usize {
        let bits = if step.is_root() { step.bits - self.shards.bits() } else { step.bits };
        1 << bits
    }

    pub(crate) fn pages(&self) -> &ResidentPages {
        &self.pages
    }
}

/// Whether a list that `run` digits of a node name can be what stands there for `hash`: if so, its
/// entries can be split among these digits.
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

/// The heap, locked; its figures are published when it is given back.
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
        // Others read the line: it is written only if something is new.
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
