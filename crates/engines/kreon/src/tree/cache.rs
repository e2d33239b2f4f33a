//! # Node cache: pages of the levels in memory, instead of the paper's kernel path
//!
//! A *frame* is the memory of a cached page. A page number leads to its frame with two loads and
//! without a lock or system call. A hit writes only a mark, at most once per round of the clock.
//! The ideas are those of kmmap and FastMap: priorities by kind, eviction of clean pages only, no
//! read of a page that was never written. While there is room, a missed leaf is read with its
//! neighbours. An evicted leaf that lookups have used leaves its [`LeafFingerprints`].
//!
//! ## Picture
//!
//! ```text
//!  page -> chunk of the table -> frame: bytes, marks    rings: leaves | fingerprints | inner nodes
//!  page -> chunk of the table -> fingerprints of an evicted leaf
//! ```
//!
//! ## Invariants
//!
//! 1. A frame found under a guard stays allocated until the guard is dropped: removed frames are
//!    freed through the epoch.
//! 2. The table contains pages of the current levels. A thread that changes a page calls
//!    [`NodeCache::replace`] or [`NodeCache::remove`], and does so only when no reader can refer to
//!    the old content.
//! 3. Frames in the table were checked: the checksum against the parent's, the lengths by
//!    [`Node::parse`].
//! 4. Inner nodes are evicted only after all leaves and fingerprints, dirty pages never.
//! 5. Fingerprints are of the current page: see [`NodeCache::add_fingerprints`].
//!
//! ## Threads
//!
//! Any. A miss takes the lock of the rings; a hit does not.

use std::collections::VecDeque;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_platform::memory::allocated;
use sheaf_platform::memory::block_alloc::{self, BlockBox};
use sheaf_platform::memory::cache_arbiter::{CacheShare, MAX_EVICTIONS_BY_LOOKUP};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{Guard, free_deferred};

use super::level_file::PAGE;
use super::node::{LeafFingerprints, Node};
use super::page_table::{PageTable, borrow_until_unpin};

/// Bytes of a frame in memory.
const FRAME_BYTES: u64 = block_alloc::memory_bytes(size_of::<CachedNode>());
/// Bytes of a frame in the rings.
const RING_ENTRY_BYTES: u64 = 16;
/// Quarters of the cache that fingerprints may take. With the same memory they answer lookups for
/// four times as many leaves, but scans and steps need the leaves.
const MAX_FINGERPRINT_QUARTERS: u64 = 3;

/// Maximum effort of an eviction.
#[derive(Clone, Copy, Debug)]
struct EvictionLimits {
    /// Pages that are visited.
    visits: usize,
    /// Pages that are evicted.
    evictions: usize,
}

impl EvictionLimits {
    const NONE: EvictionLimits = EvictionLimits { visits: usize::MAX, evictions: usize::MAX };
    const FOR_LOOKUP: EvictionLimits = EvictionLimits { visits: 1024, evictions: MAX_EVICTIONS_BY_LOOKUP };
}

/// Mark of a frame: it was used since the clock came by.
const REFERENCED: u8 = 1;
/// Mark of a frame: a lookup has used it.
const LOOKED_UP: u8 = 2;

/// A node in memory. The bytes of a single-page node directly follow the other fields, so a lookup
/// finds the node's header in the next cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CachedNode {
    /// Combination of [`REFERENCED`] and [`LOOKED_UP`].
    marks: AtomicU8,
    is_dirty: AtomicBool,
    is_leaf: bool,
    len: u32,
    /// Bytes of a node of several pages.
    long: Box<[u8]>,
    short: [u8; PAGE],
}

impl CachedNode {
    /// Creates a frame for a node that was parsed or built before.
    pub(crate) fn new(bytes: &[u8], is_leaf: bool, is_dirty: bool) -> BlockBox<CachedNode> {
        assert!(Node::is_kind(bytes, is_leaf), "cache (I3): a frame contains a node");
        let (marks, is_dirty) = (AtomicU8::new(0), AtomicBool::new(is_dirty));
        let long = if bytes.len() > PAGE { Box::from(bytes) } else { Box::default() };
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let mut frame = CachedNode { marks, is_dirty, is_leaf, len, long, short: [0; PAGE] };
        if let Some(short) = frame.short.get_mut(..bytes.len()) {
            short.copy_from_slice(bytes);
        }
        BlockBox::new(frame)
    }

    #[inline]
    pub(crate) fn node(&self) -> Node<'_> {
        Node::from_checked(self.bytes())
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.short.get(..self.len as usize).unwrap_or(&self.long)
    }

    /// Marks the frame as used.
    #[inline]
    fn mark(&self, marks: u8) {
        let before = self.marks.load(Ordering::Relaxed);
        if before | marks != before {
            self.marks.store(before | marks, Ordering::Relaxed);
        }
    }

    /// Marks the frame as read for a lookup.
    pub(crate) fn mark_looked_up(&self) {
        self.mark(LOOKED_UP);
    }

    /// Marks the frame as written to the file.
    pub(crate) fn mark_clean(&self) {
        self.is_dirty.store(false, Ordering::Release);
    }

    fn cost(&self) -> u64 {
        FRAME_BYTES + allocated(self.long.len() as u64) + RING_ENTRY_BYTES
    }
}

/// Pages in the order of the clock: leaves, fingerprints, inner nodes.
type ClockRings = [VecDeque<u32>; 3];
const LEAF_RING: usize = 0;
const FINGERPRINT_RING: usize = 1;
const INNER_RING: usize = 2;

/// The cache of a keyspace; see the header of the module.
#[derive(Debug)]
pub(crate) struct NodeCache {
    context: Arc<EngineContext>,
    table: PageTable<CachedNode>,
    fingerprints: PageTable<LeafFingerprints>,
    rings: Mutex<ClockRings>,
    cache_share: CacheShare,
    /// Number of frames and fingerprints.
    item_count: AtomicU64,
    /// Bytes of fingerprints.
    fingerprint_bytes: AtomicU64,
    /// Whether the last leaf for which fingerprints were requested had any.
    has_last_leaf_fingerprints: AtomicBool,
    pages_read: AtomicU64,
    reads_saved: AtomicU64,
}

impl NodeCache {
    pub(crate) fn new(context: Arc<EngineContext>) -> NodeCache {
        NodeCache {
            table: PageTable::new(Arc::clone(&context)),
            fingerprints: PageTable::new(Arc::clone(&context)),
            cache_share: CacheShare::new(context.memory.budget()),
            context,
            rings: Mutex::default(),
            item_count: AtomicU64::new(0),
            fingerprint_bytes: AtomicU64::new(0),
            has_last_leaf_fingerprints: AtomicBool::new(true),
            pages_read: AtomicU64::new(0),
            reads_saved: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of the frames, the fingerprints and the tables.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache_share.bytes() + self.table.bytes() + self.fingerprints.bytes()
    }

    /// Returns the part of the budget that frames and fingerprints take.
    pub(crate) fn cache_share(&self) -> &CacheShare {
        &self.cache_share
    }

    /// Returns the number of pages read since the opening.
    pub(crate) fn pages_read(&self) -> u64 {
        self.pages_read.load(Ordering::Relaxed)
    }

    /// Returns the number of reads that fingerprints saved since the opening.
    pub(crate) fn reads_saved(&self) -> u64 {
        self.reads_saved.load(Ordering::Relaxed)
    }

    /// Counts a lookup that fingerprints answered.
    pub(crate) fn count_saved_read(&self) {
        self.reads_saved.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the frame of `page` if it is cached.
    #[inline]
    pub(crate) fn get<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g CachedNode> {
        let frame = self.table.get(page, guard)?;
        frame.mark(REFERENCED);
        Some(frame)
    }

    /// Like [`NodeCache::get`], for a lookup: an eviction of a leaf then leaves its fingerprints.
    #[inline]
    pub(crate) fn get_for_lookup<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g CachedNode> {
        let frame = self.table.get(page, guard)?;
        frame.mark(REFERENCED | LOOKED_UP);
        Some(frame)
    }

    /// Returns the fingerprints of the leaf at `page` if they are cached.
    pub(crate) fn fingerprints<'g>(&'g self, page: u32, guard: &'g Guard) -> Option<&'g LeafFingerprints> {
        let fingerprints = self.fingerprints.get(page, guard)?;
        fingerprints.mark_referenced();
        Some(fingerprints)
    }

    /// Whether `page` is cached. Sets no mark.
    pub(crate) fn contains(&self, page: u32) -> bool {
        self.table.contains(page)
    }

    /// Whether fingerprints of the leaf at `page` are cached.
    pub(crate) fn has_fingerprints(&self, page: u32) -> bool {
        self.fingerprints.contains(page)
    }

    /// Inserts a page that was read, if there is room. Returns the frame to use.
    pub(crate) fn insert_read<'g>(
        &'g self,
        page: u32,
        frame: BlockBox<CachedNode>,
        guard: &'g Guard,
    ) -> &'g CachedNode {
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        let cost = frame.cost();
        let is_leaf = frame.is_leaf;
        self.cache_share.record_miss(u64::from(page), cost);
        let has_room = || self.cache_share.has_room(cost, &self.context.memory);
        if !self.evict_until(EvictionLimits::FOR_LOOKUP, guard, has_room) {
            self.cache_share.record_eviction(u64::from(page), cost);
            return borrow_until_unpin(frame, guard);
        }
        self.account(cost);
        match self.table.add(page, frame, guard) {
            Ok(frame) => {
                self.add_to_ring(page, is_leaf);
                frame
            }
            Err(frame) => {
                self.unaccount_node(Some(&*frame)); // another thread was faster
                borrow_until_unpin(frame, guard)
            }
        }
    }

    /// Whether leaves were evicted and have left fingerprints.
    #[inline]
    pub(crate) fn is_memory_short(&self) -> bool {
        self.fingerprint_bytes.load(Ordering::Relaxed) > 0
    }

    /// Whether fingerprints of `leaves` leaves fit without evicting others.
    pub(crate) fn has_room_for_fingerprints(&self, leaves: u32) -> bool {
        let coming = u64::from(leaves) * PAGE as u64 / 4;
        self.has_last_leaf_fingerprints.load(Ordering::Relaxed) && !self.is_fingerprint_share_exceeded(coming)
    }

    /// Whether twice the number of pages fits without evicting anything, so that other readers have
    /// room too.
    pub(crate) fn has_room_for_read_around(&self, pages: u32) -> bool {
        self.cache_share
            .has_room(2 * u64::from(pages) * (FRAME_BYTES + RING_ENTRY_BYTES), &self.context.memory)
    }

    /// Inserts a leaf that was read as the neighbour of another, if there is room, or else its
    /// fingerprints. Records no miss.
    pub(crate) fn insert_neighbor(&self, page: u32, leaf: BlockBox<CachedNode>, guard: &Guard) {
        let cost = leaf.cost();
        if !self.cache_share.has_room(cost, &self.context.memory) {
            let has_room = || self.cache_share.has_room(cost / 4, &self.context.memory);
            if self.has_room_for_fingerprints(1)
                && self.evict_until(EvictionLimits::FOR_LOOKUP, guard, has_room)
            {
                self.add_fingerprints(page, &leaf, &mut self.rings.lock()[FINGERPRINT_RING], guard);
            }
            return;
        }
        self.account(cost);
        match self.table.add(page, leaf, guard) {
            Ok(_) => self.add_to_ring(page, true),
            Err(_) => self.unaccount(cost),
        }
    }

    /// Adds `cost` to the accounts, before other threads can find and evict the frame.
    fn account(&self, cost: u64) {
        self.cache_share.take(cost, &self.context.memory);
        self.item_count.fetch_add(1, Ordering::Relaxed);
    }

    fn add_to_ring(&self, page: u32, is_leaf: bool) {
        let ring = if is_leaf { LEAF_RING } else { INNER_RING };
        self.push_to_ring(&mut self.rings.lock()[ring], page, |page| self.contains(page));
    }

    /// Adds `page` to a ring. `is_here` tells whether a page belongs to the ring.
    fn push_to_ring(&self, ring: &mut VecDeque<u32>, page: u32, is_here: impl Fn(u32) -> bool) {
        ring.push_back(page);
        if ring.len() as u64 > 2 * self.item_count.load(Ordering::Relaxed) + 1024 {
            // Drop pages that were removed, and duplicates.
            let mut pages: Vec<u32> = ring.drain(..).filter(|page| is_here(*page)).collect();
            pages.sort_unstable();
            pages.dedup();
            ring.extend(pages);
        }
    }

    /// Replaces the content of `page` by a node that was just built.
    pub(crate) fn replace(&self, page: u32, frame: BlockBox<CachedNode>, guard: &Guard) {
        let (cost, is_leaf) = (frame.cost(), frame.is_leaf);
        self.account(cost);
        let (before, is_there) = self.table.replace(page, frame, guard);
        self.unaccount_node(before);
        self.remove_fingerprints(page, guard);
        if is_there {
            self.add_to_ring(page, is_leaf);
        } else {
            self.unaccount(cost);
        }
    }

    /// Removes `page` and its fingerprints.
    pub(crate) fn remove(&self, page: u32, guard: &Guard) {
        self.unaccount_node(self.table.remove(page, guard));
        self.remove_fingerprints(page, guard);
    }

    /// Removes the fingerprints of the old content of `page` (I5).
    fn remove_fingerprints(&self, page: u32, guard: &Guard) {
        let _rings = self.rings.lock();
        self.unaccount_fingerprints(self.fingerprints.remove(page, guard));
    }

    /// Subtracts the cost of a frame that was removed from the table, or not added to it.
    fn unaccount_node(&self, frame: Option<&CachedNode>) {
        if let Some(frame) = frame {
            self.unaccount(frame.cost());
        }
    }

    /// Subtracts the cost of fingerprints that were removed from the table.
    fn unaccount_fingerprints(&self, fingerprints: Option<&LeafFingerprints>) {
        if let Some(fingerprints) = fingerprints {
            let cost = fingerprints.cost() + RING_ENTRY_BYTES;
            self.fingerprint_bytes.fetch_sub(cost, Ordering::Relaxed);
            self.unaccount(cost);
        }
    }

    fn unaccount(&self, cost: u64) {
        self.item_count.fetch_sub(1, Ordering::Relaxed);
        self.cache_share.give_back(cost, &self.context.memory);
    }

    /// Evicts clean pages until `bytes` more fit into the budget. Returns false if they do not.
    pub(crate) fn evict_until_room(&self, bytes: u64, guard: &Guard) -> bool {
        self.evict_until(EvictionLimits::NONE, guard, || self.context.memory.has_room(bytes))
    }

    /// Evicts about `bytes` bytes of clean pages.
    pub(crate) fn evict(&self, bytes: u64, guard: &Guard) {
        let until = self.cache_share.bytes().saturating_sub(bytes);
        self.evict_until(EvictionLimits::NONE, guard, || self.cache_share.bytes() <= until);
    }

    /// Evicts clean pages until `enough` returns true, within `limits`. Returns false if it does
    /// not.
    fn evict_until(&self, limits: EvictionLimits, guard: &Guard, enough: impl Fn() -> bool) -> bool {
        free_deferred(guard); // evicted earlier, or read and not inserted
        if enough() {
            return true;
        }
        let mut rings = self.rings.lock();
        // Twice around each ring: the first round clears marks.
        let mut turns = rings.each_ref().map(|ring| 2 * ring.len());
        let mut evictions = 0;
        for _ in 0..limits.visits {
            let ring = match turns.map(|turns| turns > 0) {
                [_, true, _] if self.is_fingerprint_share_exceeded(0) => FINGERPRINT_RING,
                [true, ..] => LEAF_RING,
                [_, true, _] => FINGERPRINT_RING,
                [.., true] => INNER_RING,
                _ => return false,
            };
            assert!(
                ring != INNER_RING || turns[..INNER_RING] == [0, 0],
                "cache (I4): inner nodes are evicted after all leaves and fingerprints"
            );
            turns[ring] -= 1;
            let Some(page) = rings[ring].pop_front() else { continue };
            let stays = if ring == FINGERPRINT_RING {
                self.evict_fingerprints_unless_referenced(page, guard)
            } else {
                self.evict_unless_referenced(page, &mut rings, guard)
            };
            if stays {
                rings[ring].push_back(page);
            }
            evictions += usize::from(!stays);
            if enough() {
                return true;
            }
            if evictions == limits.evictions {
                break;
            }
        }
        false
    }

    /// Whether fingerprints would take too much of the cache with `coming` more bytes.
    fn is_fingerprint_share_exceeded(&self, coming: u64) -> bool {
        self.fingerprint_bytes.load(Ordering::Relaxed) + coming
            > self.cache_share.bytes() / 4 * MAX_FINGERPRINT_QUARTERS
    }

    /// Moves the clock past a page. Returns whether the page stays.
    fn evict_unless_referenced(&self, page: u32, rings: &mut ClockRings, guard: &Guard) -> bool {
        let Some(frame) = self.table.get(page, guard) else { return false };
        if frame.is_dirty.load(Ordering::Acquire)
            || frame.marks.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
        {
            return true;
        }
        if self.table.remove_if_same(page, frame, guard) {
            assert!(!frame.is_dirty.load(Ordering::Relaxed), "cache (I4): a dirty page stays in memory");
            self.cache_share.record_eviction(u64::from(page), frame.cost());
            self.unaccount_node(Some(frame));
            if frame.is_leaf && frame.marks.load(Ordering::Relaxed) & LOOKED_UP != 0 {
                self.add_fingerprints(page, frame, &mut rings[FINGERPRINT_RING], guard);
            }
        }
        false
    }

    /// Adds the fingerprints of the leaf at `page`.
    ///
    /// Fingerprints change under the lock of the rings. They are built from a frame that was in the
    /// table until then, or from a page that the guard of its reader protects (I2). A thread that
    /// replaces or removes a page removes the fingerprints after the frame. So all fingerprints are
    /// of the current page (I5).
    fn add_fingerprints(&self, page: u32, leaf: &CachedNode, ring: &mut VecDeque<u32>, guard: &Guard) {
        if self.fingerprints.contains(page) {
            return;
        }
        let fingerprints = LeafFingerprints::of_leaf(&leaf.node(), |key| self.context.hash(key));
        self.has_last_leaf_fingerprints.store(fingerprints.is_some(), Ordering::Relaxed);
        let Some(fingerprints) = fingerprints else { return };
        let cost = fingerprints.cost() + RING_ENTRY_BYTES;
        if self.fingerprints.add(page, fingerprints, guard).is_ok() {
            self.account(cost);
            self.fingerprint_bytes.fetch_add(cost, Ordering::Relaxed);
            self.push_to_ring(ring, page, |page| self.fingerprints.contains(page));
        }
    }

    /// Moves the clock past fingerprints. Returns whether they stay.
    fn evict_fingerprints_unless_referenced(&self, page: u32, guard: &Guard) -> bool {
        let Some(fingerprints) = self.fingerprints.get(page, guard) else { return false };
        if fingerprints.is_referenced.swap(false, Ordering::Relaxed) {
            return true;
        }
        self.cache_share.record_eviction(u64::from(page), fingerprints.cost());
        self.unaccount_fingerprints(self.fingerprints.remove(page, guard));
        false
    }

    /// Removes everything.
    pub(crate) fn clear(&self, guard: &Guard) {
        let mut rings = self.rings.lock();
        *rings = ClockRings::default();
        self.table.clear(guard, |frame| self.unaccount_node(Some(frame)));
        self.fingerprints.clear(guard, |fingerprints| self.unaccount_fingerprints(Some(fingerprints)));
    }
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        self.cache_share.give_back(self.cache_share.bytes(), &self.context.memory);
    }
}
