//! # Pieces: the memory of caches' blocks
//!
//! A cache lets go as much as it takes in, here and there, in all sizes, and by all threads. An
//! allocator keeps what one thread let go for that thread, and has a place for each size: of blocks
//! that become longer it keeps the places of the shorter ones. That was three times the cache, in
//! all. Here what was given back is the next that is given out, whoever asks, and neighbours become
//! one.
//!
//! ## Picture
//!
//! ```text
//!  region (4 MiB of the system's)
//!    └─ chunk (256 KiB): head: shard | units: free ones, where pieces begin | unit (512 bytes) | unit | ...     a piece: some in a row
//!  shard ─> its chunks by their longest runs          spare: chunks without pieces, all but two without memory
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk is among its shard's under the length of its longest run of free units, unless that
//!    is none; or it is spare.
//! 2. A bit of `free` is set exactly if no piece has the unit; one of `starts`, exactly if a piece
//!    begins there.
//! 3. A head's shard is written before a piece of the chunk is given out, and again when none is
//!    left: whoever has a piece may read it without a lock. What else is in the head is behind the
//!    lock of that shard. No reference covers both.
//!
//! ## Threads
//!
//! Any. A shard has a lock. A thread that takes a piece and finds a shard locked goes to the next
//! one, so no more shards are in use than threads that meet. A thread that gives a piece back does
//! not wait either: it puts the piece on the shard's list of returned pieces, and the next thread
//! that locks the shard takes them in. The holder of a shard's lock may take the lock of the spare
//! chunks. Nothing belongs to a thread, so none leaves anything behind. Who forks takes all locks
//! before and lets go of them after, so that a child finds everything whole (`fork_locks.rs`).
//!
//! ## Why it is sound
//!
//! Regions are never unmapped and their provenance is exposed: a chunk's address, which is a
//! piece's with the low bits cleared, leads to its head for ever. A piece's units are touched by
//! its owner only: they are given out while their bits are set, under the lock, which then are not;
//! and given back with what the owner did before. What is given back twice, or as long as it is
//! not, or was never a piece, fails an assertion as long as the chunk has other pieces or is spare.
//!
//! Sanitizers do not see what becomes of a piece. With `--cfg plain_pieces` each is the
//! allocator's, and they do.
//!
//! ## Costs
//!
//! A tenth of a microsecond or two. Half a unit a piece, and what is free between pieces: the
//! shortest run that is long enough is taken. Regions stay mapped; empty chunks in them take
//! nothing, nor do pages between pieces after a [`release_pages`]. Halves of regions that stay full
//! come to stand on huge pages ([`collapse_some`]).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::{HUGE_PAGE, MappedMemory, page_size};

pub use self::boxed::{BlockBox, BlockSlice};
pub use self::huge_pages::collapse_some;

mod boxed;
mod fork_locks;
mod huge_pages;
#[cfg(all(test, not(shuttle)))]
mod tests;

/// Pieces begin at multiples of this, ...
pub const ALIGN: usize = 64;
/// ... those of not more than half a unit at multiples of this.
const SMALL_ALIGN: usize = 16;
/// Bytes of a unit. What is not larger than its half is the allocator's, ...
const UNIT: usize = 512;
/// ... and what is larger than this.
pub const MAX_BLOCK: usize = 32 << 10;
/// Bytes of a chunk, and what it begins at a multiple of.
const CHUNK: usize = 256 << 10;
/// Units of a chunk; its head has the first.
const UNITS: usize = CHUNK / UNIT;
const WORDS: usize = UNITS / 64;
/// A bit for each unit.
type UnitBits = [u64; WORDS];
/// A bit of [`ChunkUnits::released_pages`] is for so many bytes at least.
const MIN_PAGE: usize = CHUNK / 64;
/// Bytes of a region, which begins at a multiple of a huge page.
const REGION: usize = 2 * HUGE_PAGE;
const SHARDS: usize = 8;
/// Empty chunks that keep their memory.
const MAX_RESIDENT_SPARES: usize = 2;

/// What stands at the beginning of a chunk.
#[derive(Debug)]
#[repr(C)]
struct ChunkHead {
    /// The number of its shard, and 1; 0 of a spare chunk (I3).
    shard: usize,
    units: ChunkUnits,
}

/// What the units of a chunk are in use for.
#[derive(Debug)]
struct ChunkUnits {
    /// The length of the longest run of free ones.
    longest: usize,
    free: UnitBits,
    starts: UnitBits,
    /// A bit for each of the system's pages that was given back, and not used since: all its units
    /// are free.
    released_pages: u64,
}

const _: () =
    assert!(size_of::<ChunkHead>() <= UNIT && UNIT.is_multiple_of(ALIGN) && MAX_BLOCK < CHUNK - UNIT);

/// Chunks by the lengths of their longest runs, each by address.
#[derive(Debug)]
struct BlockShard {
    chunks: [BTreeSet<usize>; UNITS],
    /// A bit for each length that some chunk has.
    lengths: UnitBits,
}

/// Bytes of memory that chunks have, ...
static CHUNK_BYTES: AtomicU64 = AtomicU64::new(0);
/// ... and of pieces in them.
static BLOCK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Chunks without pieces.
#[derive(Debug)]
struct SpareChunks {
    /// Their memory is still there.
    resident: Vec<usize>,
    /// It is given back.
    released: Vec<usize>,
    /// All regions.
    regions: Vec<usize>,
    /// Their halves that stand on huge pages.
    collapsed: BTreeSet<usize>,
}

impl SpareChunks {
    /// Some of a chunk's memory is given back.
    fn unmark_collapsed(&mut self, chunk: usize) {
        self.collapsed.remove(&(chunk & !(HUGE_PAGE - 1)));
    }
}

static OPEN: [Mutex<BlockShard>; SHARDS] =
    [const { Mutex::new(BlockShard { chunks: [const { BTreeSet::new() }; UNITS], lengths: [0; WORDS] }) };
        SHARDS];
/// A piece that was given back while its shard was locked: this stands in its first bytes.
#[derive(Debug)]
struct FreedBlock {
    next: *mut FreedBlock,
    /// Units of the piece.
    count: usize,
}

const _: () = assert!(size_of::<FreedBlock>() <= UNIT && align_of::<FreedBlock>() <= ALIGN);

/// The returned pieces of each shard, the newest first.
static FREED: [AtomicPtr<FreedBlock>; SHARDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SHARDS];

static SPARE: Mutex<SpareChunks> = Mutex::new(SpareChunks {
    resident: Vec::new(),
    released: Vec::new(),
    regions: Vec::new(),
    collapsed: BTreeSet::new(),
});

/// Bytes of memory between pieces, of all databases of the process.
#[must_use]
pub fn fragmented_bytes() -> u64 {
    CHUNK_BYTES.load(Ordering::Relaxed).saturating_sub(BLOCK_BYTES.load(Ordering::Relaxed))
}

/// Bytes of pieces, of all databases of the process.
#[must_use]
pub fn in_use() -> u64 {
    BLOCK_BYTES.load(Ordering::Relaxed)
}

/// Units of a piece; none if it is the allocator's.
const fn units_of(bytes: usize) -> Option<usize> {
    if bytes <= UNIT / 2 || bytes > MAX_BLOCK { None } else { Some(bytes.div_ceil(UNIT)) }
}

/// Bytes of memory that a piece of `bytes` takes.
#[must_use]
pub const fn memory_bytes(bytes: usize) -> u64 {
    match units_of(bytes) {
        Some(units) => (units * UNIT) as u64,
        None => super::allocated(bytes as u64),
    }
}

/// The units, unless the interleavings are being explored, of which none may leave anything to the
/// next; or a sanitizer looks.
fn pooled(bytes: usize) -> Option<usize> {
    if cfg!(any(shuttle, plain_pieces)) { None } else { units_of(bytes) }
}

/// What a piece of so many bytes begins at a multiple of.
#[must_use]
pub const fn block_align(bytes: usize) -> usize {
    if bytes <= UNIT / 2 { SMALL_ALIGN } else { ALIGN }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), block_align(bytes))
        .expect("a piece is far below the half of all memory")
}

/// The first bit from `from` on that is `is_set`, or all there are.
fn next_bit(words: &UnitBits, from: usize, is_set: bool) -> usize {
    let mut at = from;
    while at < UNITS {
        let word = if is_set { words[at / 64] } else { !words[at / 64] };
        let rest = word >> (at % 64);
        if rest != 0 {
            return at + rest.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    UNITS
}

/// Runs of bits that are set: where each begins, and how long it is.
fn runs(words: &UnitBits) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = next_bit(words, at, true);
        at = next_bit(words, start, false);
        (start < UNITS).then_some((start, at - start))
    })
}

fn flip(words: &mut UnitBits, start: usize, count: usize) {
    (start..start + count).for_each(|bit| words[bit / 64] ^= 1 << (bit % 64));
}

/// Pages that have something of so many units from `first` on, or that have nothing else if
/// `whole`: the first, and behind the last.
fn pages_of(first: usize, count: usize, whole: bool) -> (usize, usize) {
    let (page, start, end) = (page_bytes(), first * UNIT, (first + count) * UNIT);
    if whole { (start.div_ceil(page), end / page) } else { (start / page, end.div_ceil(page)) }
}

impl ChunkUnits {
    /// Units are going to be used: pages of theirs that were given back come again. How many.
    fn reuse_pages(&mut self, first: usize, count: usize) -> u32 {
        let (from, to) = pages_of(first, count, false);
        let before = self.released_pages.count_ones();
        (from..to).for_each(|page| self.released_pages &= !(1 << page));
        before - self.released_pages.count_ones()
    }

    /// Runs of pages without a piece that have their memory: the first, and behind the last. They
    /// are taken as given back.
    fn take_releasable_pages(&mut self) -> Vec<(usize, usize)> {
        let mut gone: Vec<(usize, usize)> = Vec::new();
        for (first, count) in runs(&self.free) {
            let (from, to) = pages_of(first, count, true);
            for page in (from..to).filter(|page| self.released_pages >> page & 1 == 0) {
                match gone.last_mut() {
                    Some(run) if run.1 == page => run.1 += 1,
                    _ => gone.push((page, page + 1)),
                }
            }
        }
        gone.iter().flat_map(|(from, to)| *from..*to).for_each(|page| self.released_pages |= 1 << page);
        gone
    }

    /// A piece of so many units begins at `first` from now on, or does no more: how long the
    /// longest run was, and is.
    fn flip(&mut self, first: usize, count: usize) -> (usize, usize) {
        flip(&mut self.free, first, count);
        flip(&mut self.starts, first, 1);
        let before = self.longest;
        self.longest = runs(&self.free).map(|(_, len)| len).max().unwrap_or(0);
        (before, self.longest)
    }

    /// Units of the piece that begins at `first`, if one does.
    fn len_from(&self, first: usize) -> Option<usize> {
        let is_one = self.starts[first / 64] >> (first % 64) & 1 == 1;
        let end = next_bit(&self.starts, first + 1, true).min(next_bit(&self.free, first + 1, true));
        is_one.then(|| end - first)
    }
}

impl BlockShard {
    fn list(&mut self, chunk: usize, longest: usize) {
        if longest > 0 {
            self.chunks[longest].insert(chunk);
            self.lengths[longest / 64] |= 1 << (longest % 64);
        }
    }

    fn unlist(&mut self, chunk: usize, longest: usize) {
        self.chunks[longest].remove(&chunk);
        if self.chunks[longest].is_empty() {
            self.lengths[longest / 64] &= !(1 << (longest % 64));
        }
    }

    /// The longest run of a chunk may be another (I1): how long it is.
    fn update_listing(&mut self, chunk: usize, before: usize, longest: usize) {
        if longest != before {
            self.unlist(chunk, before);
            self.list(chunk, longest);
        }
    }

    /// What the units of a chunk are in use for.
    ///
    /// # Safety
    ///
    /// The chunk is this shard's, or was found to be so with a piece of it in hand. (`&mut self` is
    /// the lock.)
    unsafe fn units(&mut self, chunk: usize) -> &mut ChunkUnits {
        let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
        // SAFETY:
        // * Written when it became the shard's; who has a piece reads the other part of the head
        //   only (I3), everybody else comes through the lock, and this reference is gone before
        //   `self` is used again.
        unsafe { &mut (*head).units }
    }

    /// Makes a piece of so many units of a chunk of the shard's whose longest run is long enough;
    /// the first of them.
    fn cut(&mut self, chunk: usize, count: usize) -> usize {
        // SAFETY:
        // * A chunk of the shard.
        let units = unsafe { self.units(chunk) };
        let fitting = runs(&units.free).filter(|(_, len)| *len >= count).min_by_key(|(_, len)| *len);
        let (first, _) = fitting.expect("its longest run is long enough (I1)");
        let again = u64::from(units.reuse_pages(first, count)) * page_bytes() as u64;
        let (before, longest) = units.flip(first, count);
        self.update_listing(chunk, before, longest);
        CHUNK_BYTES.fetch_add(again, Ordering::Relaxed);
        BLOCK_BYTES.fetch_add((count * UNIT) as u64, Ordering::Relaxed);
        first
    }

    /// The units of a piece are free. True if that was the last piece of the chunk, which is the
    /// shard's no more.
    ///
    /// # Safety
    ///
    /// The chunk is the shard's.
    unsafe fn free_units(&mut self, chunk: usize, first: usize, count: usize) -> bool {
        // SAFETY:
        // * The caller's promise.
        let units = unsafe { self.units(chunk) };
        assert!(units.len_from(first) == Some(count), "a piece is given back once, as long as it is (I2)");
        let (before, longest) = units.flip(first, count);
        self.update_listing(chunk, before, longest);
        BLOCK_BYTES.fetch_sub((count * UNIT) as u64, Ordering::Relaxed);
        if longest == UNITS - 1 {
            // SAFETY:
            // * As above. It becomes spare as if it had all of its memory.
            let again = unsafe { self.units(chunk) }.reuse_pages(0, UNITS);
            CHUNK_BYTES.fetch_add(u64::from(again) * page_bytes() as u64, Ordering::Relaxed);
            self.unlist(chunk, longest);
        }
        longest == UNITS - 1
    }

    /// Takes in the pieces of shard `number`, this one, that were given back while it was locked.
    /// Returns the chunks that have no piece any more; the caller must `make_spare` them.
    #[must_use]
    fn drain_freed(&mut self, number: usize) -> Vec<usize> {
        let mut empty = Vec::new();
        if FREED[number].load(Ordering::Relaxed).is_null() {
            return empty;
        }
        let mut next = FREED[number].swap(std::ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY:
            // * Written by `push_freed` before the exchange that put it on the list. The swap took
            //   all of the list, so it is ours.
            let FreedBlock { next: behind, count } = unsafe { next.read() };
            let (chunk, first) = block_position(next.expose_provenance());
            // SAFETY:
            // * The piece is not free yet, so its chunk stayed the shard's.
            if unsafe { self.free_units(chunk, first, count) } {
                empty.push(chunk);
            }
            next = behind;
        }
        empty
    }

    /// Gives pages of a chunk of the shard's back that no piece has. Their bytes.
    fn release_chunk_pages(&mut self, chunk: usize) -> u64 {
        // SAFETY:
        // * A chunk of the shard.
        let gone = unsafe { self.units(chunk) }.take_releasable_pages();
        let page = page_bytes();
        if gone.is_empty() {
            return 0;
        }
        // Until it is done, so that the half does not become whole again in the midst of it,
        // unnoticed.
        let mut spare = lock(&SPARE);
        spare.unmark_collapsed(chunk);
        let mut bytes = 0;
        for (from, to) in gone {
            let start = with_exposed_provenance_mut::<u8>(chunk + from * page);
            let start = NonNull::new(start).expect("no chunk is at 0");
            // SAFETY:
            // * Whole pages of units that are free, so nobody's, and not the head's; the lock is
            //   held, so that none is taken meanwhile.
            let _ = unsafe { super::release_pages(start, (to - from) * page) };
            bytes += ((to - from) * page) as u64;
        }
        CHUNK_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    /// The chunk whose longest run is the shortest that is long enough.
    fn find(&self, units: usize) -> Option<usize> {
        let longest = next_bit(&self.lengths, units, true);
        self.chunks.get(longest)?.first().copied()
    }
}

/// The lock. What it covers is whole whenever an assertion of ours may fail.
fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of a shard, if nobody else holds it.
fn try_lock(shard: &'static Mutex<BlockShard>) -> Option<MutexGuard<'static, BlockShard>> {
    match shard.try_lock() {
        Ok(shard) => Some(shard),
        Err(TryLockError::Poisoned(shard)) => Some(shard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A shard that nobody else is in, if there is one.
fn lock_any_shard() -> (usize, MutexGuard<'static, BlockShard>) {
    let free = OPEN.iter().enumerate().find_map(|(number, shard)| Some((number, try_lock(shard)?)));
    free.unwrap_or_else(|| (0, lock(&OPEN[0])))
}

/// The chunk of a piece that begins at `address`, and its first unit.
fn block_position(address: usize) -> (usize, usize) {
    let chunk = address & !(CHUNK - 1);
    (chunk, (address - chunk) / UNIT)
}

/// Memory for `bytes`, aligned as [`block_align`] says. What stands there is anything. The process
/// ends if there is no memory, as for a box.
#[must_use]
pub fn allocate(bytes: usize) -> NonNull<u8> {
    let Some(count) = pooled(bytes) else {
        // SAFETY:
        // * Not of no bytes.
        let start = unsafe { alloc(layout(bytes)) };
        return NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(bytes)));
    };
    let (number, mut shard) = lock_any_shard();
    let empty = shard.drain_freed(number);
    let chunk = shard.find(count).unwrap_or_else(|| {
        let chunk = new_chunk(number);
        shard.list(chunk, UNITS - 1);
        chunk
    });
    let first = shard.cut(chunk, count);
    drop(shard);
    make_all_spare(empty);
    NonNull::new(with_exposed_provenance_mut::<u8>(chunk + first * UNIT)).expect("no chunk is at 0")
}

/// Gives it back.
///
/// # Safety
///
/// `start` is of [`allocate`], with as many bytes, once; and nobody touches it any more.
pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
    let Some(count) = pooled(bytes) else {
        // SAFETY:
        // * Allocated with this layout in `take`: the caller's promise.
        return unsafe { dealloc(start.as_ptr(), layout(bytes)) };
    };
    let (chunk, first) = block_position(start.addr().get());
    let rest = start.addr().get() % UNIT;
    let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
    // SAFETY:
    // * The head of a chunk that has a piece, so that nobody writes its shard (I3); no reference
    //   covers that.
    let number = unsafe { (&raw const (*head).shard).read() };
    assert!(number != 0 && rest == 0, "a piece is given back once: its chunk has none");
    let number = number - 1;
    let Some(mut shard) = try_lock(&OPEN[number]) else {
        // SAFETY:
        // * The piece is the caller's to give, as large and as aligned as a `FreedBlock` must be.
        return unsafe { push_freed(start.cast(), count, &FREED[number]) };
    };
    // SAFETY:
    // * Of this shard: read just now.
    let is_empty = unsafe { shard.free_units(chunk, first, count) };
    let mut empty = shard.drain_freed(number);
    empty.extend(is_empty.then_some(chunk));
    drop(shard);
    make_all_spare(empty);
}

/// Puts a piece of `count` units on a list of returned ones.
///
/// # Safety
///
/// The caller owns the piece, and nobody touches it any more.
unsafe fn push_freed(piece: NonNull<FreedBlock>, count: usize, list: &AtomicPtr<FreedBlock>) {
    let mut next = list.load(Ordering::Relaxed);
    loop {
        // SAFETY:
        // * The piece is ours until the exchange below succeeds: the caller's promise.
        unsafe { piece.write(FreedBlock { next, count }) };
        match list.compare_exchange_weak(next, piece.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newest) => next = newest,
        }
    }
}

/// Chunks that lost their last piece are spare.
fn make_all_spare(empty: Vec<usize>) {
    for chunk in empty {
        // SAFETY:
        // * It has no piece, and is in no shard, so nobody but us knows of it.
        unsafe { make_spare(chunk) }
    }
}

/// Bytes of a bit of [`ChunkUnits::released_pages`].
fn page_bytes() -> usize {
    page_size().max(MIN_PAGE)
}

/// Gives the pages between pieces back. A cache that gives way lets blocks go here and there; their
/// memory would stay until all others of a chunk have gone. Some hundred calls of the system for
/// each MiB. How many bytes went.
pub fn release_pages() -> u64 {
    let mut bytes = 0;
    for (number, shard) in OPEN.iter().enumerate() {
        let empty = lock(shard).drain_freed(number);
        make_all_spare(empty);
        let mut longest = 0;
        loop {
            // The lock for one length at a time: a thread may find all shards locked.
            let mut shard = lock(shard);
            longest = next_bit(&shard.lengths, longest + 1, true);
            if longest >= UNITS {
                break;
            }
            let chunks: Vec<usize> = shard.chunks[longest].iter().copied().collect();
            bytes += chunks.into_iter().map(|chunk| shard.release_chunk_pages(chunk)).sum::<u64>();
        }
    }
    bytes
}

/// A chunk without pieces, which becomes the shard's.
fn new_chunk(shard: usize) -> usize {
    let chunk = {
        let mut spare = lock(&SPARE);
        if spare.resident.is_empty() && spare.released.is_empty() {
            fork_locks::install();
            let start =
                MappedMemory::with_base_pages(REGION, HUGE_PAGE).into_start().expose_provenance().get();
            spare.regions.push(start);
            spare.released.extend((0..REGION / CHUNK).rev().map(|number| start + number * CHUNK));
        }
        spare.resident.pop().unwrap_or_else(|| {
            CHUNK_BYTES.fetch_add(CHUNK as u64, Ordering::Relaxed);
            spare.released.pop().expect("a region has some")
        })
    };
    let mut free = [u64::MAX; WORDS];
    free[0] &= !1; // its own
    let units = ChunkUnits { longest: UNITS - 1, free, starts: [0; WORDS], released_pages: 0 };
    // SAFETY:
    // * A spare chunk: mapped, aligned, and nobody's but ours.
    unsafe { with_exposed_provenance_mut::<ChunkHead>(chunk).write(ChunkHead { shard: shard + 1, units }) };
    chunk
}

/// A chunk is spare.
///
/// # Safety
///
/// A chunk that has no pieces and is in no list; nobody else knows it.
unsafe fn make_spare(chunk: usize) {
    let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
    // SAFETY:
    // * Ours alone: the caller's promise.
    unsafe { (&raw mut (*head).shard).write(0) };
    let mut spare = lock(&SPARE);
    if spare.resident.len() < MAX_RESIDENT_SPARES {
        return spare.resident.push(chunk);
    }
    spare.unmark_collapsed(chunk);
    drop(spare);
    if let Some(start) = NonNull::new(head.cast::<u8>()) {
        // SAFETY:
        // * Of a mapping of ours, whole pages; nobody else knows it. Zeros are a spare chunk's
        //   shard, and the rest of its head is written again before it is read.
        let _ = unsafe { super::release_pages(start, CHUNK) };
    }
    CHUNK_BYTES.fetch_sub(CHUNK as u64, Ordering::Relaxed);
    let mut spare = lock(&SPARE);
    spare.unmark_collapsed(chunk); // it may have become whole again meanwhile
    spare.released.push(chunk);
}
