//! # Block allocator: memory for the blocks of caches
//!
//! A cache frees blocks of all sizes in all threads, as fast as it allocates others. A general
//! allocator keeps freed memory for one thread and one size, so the process uses a multiple of the
//! cache. Here any allocation of any thread reuses freed memory, and free neighbors are merged.
//!
//! ## Picture
//!
//! ```text
//!  region (4 MiB of the system)
//!    └─ chunk (256 KiB): head: shard | bits `free`, `starts` | unit (512 bytes) | unit | ...
//!  shard ─> its chunks by their longest runs       block: units in a row, or a part of a slab
//!  spare: chunks without blocks; all but two have no memory
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk is listed in its shard by the length of its longest run of free units, unless that is
//!    zero; or it is spare.
//! 2. A bit of `free` is set exactly if no block has the unit. A bit of `starts` is set exactly if
//!    a block begins there.
//! 3. The shard in a head is written before a block of the chunk is allocated, and again when the
//!    last one is freed. The owner of a block may read it without a lock. The rest of the head is
//!    protected by the lock of that shard. No reference covers both.
//!
//! ## Threads
//!
//! Any thread may call. Each shard has a lock; its holder may take the lock of the spare chunks. An
//! allocation skips locked shards. Freeing in a locked shard puts the block on a list, which the
//! next holder of the lock empties. A forking thread takes all locks (`fork_locks.rs`).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::{HUGE_PAGE, MappedMemory, page_size};

pub use self::boxed::{BlockBox, BlockSlice};
#[cfg(target_os = "linux")]
pub use self::huge_pages::collapse_some;

mod boxed;
#[cfg(unix)]
mod fork_locks;
#[cfg(target_os = "linux")]
mod huge_pages;
mod slabs;
#[cfg(all(test, not(shuttle)))]
mod tests;

/// Alignment of blocks.
pub const ALIGN: usize = 64;
/// Alignment of blocks that the general allocator may serve.
const SMALL_ALIGN: usize = 16;
/// Bytes of a unit. Blocks that are smaller by [`ALIGN`] or more are parts of slabs.
const UNIT: usize = 512;
/// Maximum size of a block of a chunk. The general allocator serves larger ones.
pub const MAX_BLOCK: usize = 32 << 10;
/// Bytes and alignment of a chunk.
const CHUNK: usize = 256 << 10;
/// Number of units of a chunk. The first contains its head.
const UNITS: usize = CHUNK / UNIT;
const WORDS: usize = UNITS / 64;
/// One bit for each unit.
type UnitBits = [u64; WORDS];
/// Minimum number of bytes for a bit of [`ChunkUnits::released_pages`].
const MIN_PAGE: usize = CHUNK / 64;
/// Bytes of a region. Its alignment is that of a huge page.
const REGION: usize = 2 * HUGE_PAGE;
const SHARDS: usize = 8;
/// Number of empty chunks that keep their memory.
const MAX_RESIDENT_SPARES: usize = 2;

/// Head at the beginning of a chunk.
///
/// Regions are never unmapped and their provenance is exposed. The address of a chunk is the
/// address of a block with the low bits cleared, and always leads to a head. Only the owner of a
/// block uses its units. Allocation clears their `free` bits under the lock; the owner frees them
/// after its last use. An assertion detects a block that is freed twice, with a wrong length, or
/// was never allocated. This works as long as its chunk has other blocks or is spare.
#[derive(Debug)]
#[repr(C)]
struct ChunkHead {
    /// Number of its shard plus 1; 0 for a spare chunk (I3).
    shard: usize,
    units: ChunkUnits,
}

/// Use of the units of a chunk.
#[derive(Debug)]
struct ChunkUnits {
    /// Length of the longest run of free units.
    longest: usize,
    free: UnitBits,
    starts: UnitBits,
    /// Bits of the system pages that were released and not used since. All of their units are free.
    released_pages: u64,
}

const _: () =
    assert!(size_of::<ChunkHead>() <= UNIT && UNIT.is_multiple_of(ALIGN) && MAX_BLOCK < CHUNK - UNIT);

/// Chunks by the lengths of their longest runs, each set sorted by address.
#[derive(Debug)]
struct BlockShard {
    chunks: [BTreeSet<usize>; UNITS],
    /// Bits of the lengths that some chunk has.
    lengths: UnitBits,
    /// Slabs with free parts.
    partial: slabs::PartialSlabs,
}

/// Bytes of memory of all chunks.
static CHUNK_BYTES: AtomicU64 = AtomicU64::new(0);
/// Bytes of all blocks in chunks.
static BLOCK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Regions, and chunks without blocks.
#[derive(Debug)]
struct SpareChunks {
    /// Spare chunks with memory.
    resident: Vec<usize>,
    /// Spare chunks without memory: it was released.
    released: Vec<usize>,
    /// All regions.
    regions: Vec<usize>,
    /// Halves of regions that were collapsed to huge pages.
    collapsed: BTreeSet<usize>,
}

impl SpareChunks {
    /// Notes that some memory of a chunk is released: its half is no longer on a huge page.
    fn unmark_collapsed(&mut self, chunk: usize) {
        self.collapsed.remove(&(chunk & !(HUGE_PAGE - 1)));
    }
}

static OPEN: [Mutex<BlockShard>; SHARDS] = [const {
    Mutex::new(BlockShard {
        chunks: [const { BTreeSet::new() }; UNITS],
        lengths: [0; WORDS],
        partial: [const { Vec::new() }; slabs::CLASSES],
    })
}; SHARDS];
/// A block that was freed while its shard was locked. This is written to its first bytes.
#[derive(Debug)]
struct FreedBlock {
    next: *mut FreedBlock,
    place: ChunkPlace,
}

const _: () = assert!(size_of::<FreedBlock>() <= slabs::MIN_PART && align_of::<FreedBlock>() <= ALIGN);

/// Form of a block in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPlace {
    /// Part of a slab of this class.
    Part(usize),
    /// So many units.
    Units(usize),
}

/// Freed blocks of each shard that are not taken in yet, newest first.
static FREED: [AtomicPtr<FreedBlock>; SHARDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SHARDS];

static SPARE: Mutex<SpareChunks> = Mutex::new(SpareChunks {
    resident: Vec::new(),
    released: Vec::new(),
    regions: Vec::new(),
    collapsed: BTreeSet::new(),
});

/// Returns the bytes of memory between blocks, for all databases of the process.
#[must_use]
pub fn fragmented_bytes() -> u64 {
    CHUNK_BYTES.load(Ordering::Relaxed).saturating_sub(BLOCK_BYTES.load(Ordering::Relaxed))
}

/// Returns the bytes of blocks, for all databases of the process.
#[must_use]
pub fn in_use() -> u64 {
    BLOCK_BYTES.load(Ordering::Relaxed)
}

/// Returns the place of a block of `bytes` in a chunk. Returns `None` if the general allocator
/// serves it.
const fn chunk_place(bytes: usize) -> Option<ChunkPlace> {
    if bytes < slabs::MIN_PART || bytes > MAX_BLOCK {
        None
    } else if bytes <= slabs::MAX_PART {
        Some(ChunkPlace::Part(slabs::class_of(bytes)))
    } else {
        Some(ChunkPlace::Units(bytes.div_ceil(UNIT)))
    }
}

/// Returns the bytes of memory that a block of `bytes` takes.
#[must_use]
pub const fn memory_bytes(bytes: usize) -> u64 {
    match chunk_place(bytes) {
        Some(ChunkPlace::Units(units)) => (units * UNIT) as u64,
        Some(ChunkPlace::Part(class)) => slabs::part_memory(class),
        None => super::allocated(bytes as u64),
    }
}

/// Like [`chunk_place`]. With `--cfg shuttle` the general allocator serves all blocks, because no
/// explored run may affect the next one. So it is with `--cfg plain_pieces`, because sanitizers do
/// not know about blocks in chunks.
const fn place_of(bytes: usize) -> Option<ChunkPlace> {
    if cfg!(any(shuttle, plain_pieces)) { None } else { chunk_place(bytes) }
}

/// Returns the alignment of a block of `bytes`.
#[must_use]
pub const fn block_align(bytes: usize) -> usize {
    if bytes < slabs::MIN_PART { SMALL_ALIGN } else { ALIGN }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), block_align(bytes))
        .expect("a block is far below the half of all memory")
}

/// Returns the first bit from `from` on with the value `is_set`, or `UNITS` if there is none.
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

/// Returns the runs of set bits: the start and length of each.
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

/// Returns the pages that overlap `count` units from `first` on: the first page, and the one behind
/// the last. With `whole`, returns the pages that are completely inside of the units.
fn pages_of(first: usize, count: usize, whole: bool) -> (usize, usize) {
    let (page, start, end) = (page_bytes(), first * UNIT, (first + count) * UNIT);
    if whole { (start.div_ceil(page), end / page) } else { (start / page, end.div_ceil(page)) }
}

impl ChunkUnits {
    /// Marks pages as used again before their units are allocated. Returns the number of pages that
    /// were released.
    fn reuse_pages(&mut self, first: usize, count: usize) -> u32 {
        let (from, to) = pages_of(first, count, false);
        let before = self.released_pages.count_ones();
        (from..to).for_each(|page| self.released_pages &= !(1 << page));
        before - self.released_pages.count_ones()
    }

    /// Returns the runs of resident pages without a block (the first page, and the one behind the
    /// last), and marks them as released.
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

    /// Marks the start or the end of the use of `count` units from `first` on by a block. Returns
    /// the length of the longest free run before and after.
    fn flip(&mut self, first: usize, count: usize) -> (usize, usize) {
        flip(&mut self.free, first, count);
        flip(&mut self.starts, first, 1);
        let before = self.longest;
        self.longest = runs(&self.free).map(|(_, len)| len).max().unwrap_or(0);
        (before, self.longest)
    }

    /// Returns the number of units of the block that begins at `first`, if there is one.
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
        let was_listed = self.chunks[longest].remove(&chunk);
        assert!(was_listed == (longest > 0), "block_alloc (I1): a chunk is listed by its longest run");
        if self.chunks[longest].is_empty() {
            self.lengths[longest / 64] &= !(1 << (longest % 64));
        }
    }

    /// Updates the list entry of a chunk after its longest run may have changed (I1).
    fn update_listing(&mut self, chunk: usize, before: usize, longest: usize) {
        if longest != before {
            self.unlist(chunk, before);
            self.list(chunk, longest);
        }
    }

    /// Returns the units of a chunk.
    ///
    /// # Safety
    ///
    /// The chunk belongs to this shard. (`&mut self` proves that the caller holds the lock.)
    unsafe fn units(&mut self, chunk: usize) -> &mut ChunkUnits {
        let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
        // SAFETY: the head was written when the chunk was added to the shard. The owner of a block
        // reads only the other part of it (I3). All other accesses need the lock, and the result
        // borrows `self`.
        unsafe { &mut (*head).units }
    }

    /// Allocates a block of `count` units. `number` is that of the shard. Returns its address.
    fn allocate_units(&mut self, number: usize, count: usize) -> usize {
        let chunk = self.find(count).unwrap_or_else(|| {
            let chunk = new_chunk(number);
            self.list(chunk, UNITS - 1);
            chunk
        });
        chunk + self.cut(chunk, count) * UNIT
    }

    /// Frees the block at `address`. Returns its chunk if that was the last block, and the chunk
    /// has left the shard.
    ///
    /// # Safety
    ///
    /// The block was allocated from this shard with this place and is freed only once.
    unsafe fn free_block(&mut self, address: usize, place: ChunkPlace) -> Option<usize> {
        let (chunk, first) = block_position(address);
        let is_empty = match place {
            // SAFETY:
            // * The caller guarantees it.
            ChunkPlace::Part(class) => unsafe { self.free_part(address, class) },
            ChunkPlace::Units(count) => {
                assert!(address.is_multiple_of(UNIT), "block_alloc (I3): a block begins at a unit");
                // SAFETY:
                // * As above: the chunk belongs to the shard.
                unsafe { self.free_units(chunk, first, count) }
            }
        };
        is_empty.then_some(chunk)
    }

    /// Allocates a block of `count` units in a chunk of the shard with a long enough run. Returns
    /// the first unit.
    fn cut(&mut self, chunk: usize, count: usize) -> usize {
        // SAFETY:
        // * The chunk belongs to the shard.
        let units = unsafe { self.units(chunk) };
        let fitting = runs(&units.free).filter(|(_, len)| *len >= count).min_by_key(|(_, len)| *len);
        let (first, _) = fitting.expect("block_alloc (I1): the longest run of a listed chunk suffices");
        let again = u64::from(units.reuse_pages(first, count)) * page_bytes() as u64;
        let (before, longest) = units.flip(first, count);
        self.update_listing(chunk, before, longest);
        CHUNK_BYTES.fetch_add(again, Ordering::Relaxed);
        BLOCK_BYTES.fetch_add((count * UNIT) as u64, Ordering::Relaxed);
        first
    }

    /// Frees the units of a block. Returns true if that was the last block of the chunk, which then
    /// leaves the shard.
    ///
    /// # Safety
    ///
    /// The chunk belongs to the shard.
    unsafe fn free_units(&mut self, chunk: usize, first: usize, count: usize) -> bool {
        // SAFETY:
        // * The caller guarantees it.
        let units = unsafe { self.units(chunk) };
        let len = units.len_from(first);
        assert!(len == Some(count), "block_alloc (I2): a block is freed once, with its length");
        let (before, longest) = units.flip(first, count);
        self.update_listing(chunk, before, longest);
        BLOCK_BYTES.fetch_sub((count * UNIT) as u64, Ordering::Relaxed);
        if longest == UNITS - 1 {
            // SAFETY:
            // * As above. The chunk is counted as fully resident while it becomes spare.
            let again = unsafe { self.units(chunk) }.reuse_pages(0, UNITS);
            CHUNK_BYTES.fetch_add(u64::from(again) * page_bytes() as u64, Ordering::Relaxed);
            self.unlist(chunk, longest);
        }
        longest == UNITS - 1
    }

    /// Frees the blocks of this shard, number `number`, that were freed while it was locked.
    /// Returns the chunks that have no block any more; the caller must pass them to `make_spare`.
    #[must_use]
    fn drain_freed(&mut self, number: usize) -> Vec<usize> {
        let mut empty = Vec::new();
        if FREED[number].load(Ordering::Relaxed).is_null() {
            return empty;
        }
        let mut next = FREED[number].swap(std::ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY:
            // * `push_freed` wrote it before the exchange that put it on the list. The swap took
            //   the whole list, so no other thread uses it.
            let FreedBlock { next: behind, place } = unsafe { next.read() };
            // SAFETY:
            // * The block was not free yet, so its chunk still belongs to the shard.
            empty.extend(unsafe { self.free_block(next.expose_provenance(), place) });
            next = behind;
        }
        empty
    }

    /// Releases the resident pages of a chunk that no block uses. Returns their bytes.
    fn release_chunk_pages(&mut self, chunk: usize) -> u64 {
        // SAFETY:
        // * The chunk belongs to the shard.
        let gone = unsafe { self.units(chunk) }.take_releasable_pages();
        let page = page_bytes();
        if gone.is_empty() {
            return 0;
        }
        // Held until the pages are released. Otherwise the half could become fully resident and be
        // collapsed in between.
        let mut spare = lock(&SPARE);
        spare.unmark_collapsed(chunk);
        let mut bytes = 0;
        for (from, to) in gone {
            let start = with_exposed_provenance_mut::<u8>(chunk + from * page);
            let start = NonNull::new(start).expect("no chunk is at 0");
            // SAFETY:
            // * The pages consist of free units, which have no owner, and do not include the head.
            //   The lock of the shard is held, so none is allocated during the call.
            let _ = unsafe { super::release_pages(start, (to - from) * page) };
            bytes += ((to - from) * page) as u64;
        }
        CHUNK_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    /// Returns the chunk with the shortest of the longest runs that suffice.
    fn find(&self, units: usize) -> Option<usize> {
        let longest = next_bit(&self.lengths, units, true);
        self.chunks.get(longest)?.first().copied()
    }
}

/// Locks a mutex. Ignores poisoning: the data is consistent wherever an assertion can fail.
fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a shard, unless another thread holds the lock.
fn try_lock(shard: &'static Mutex<BlockShard>) -> Option<MutexGuard<'static, BlockShard>> {
    match shard.try_lock() {
        Ok(shard) => Some(shard),
        Err(TryLockError::Poisoned(shard)) => Some(shard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Locks a shard, if possible one that no other thread holds.
fn lock_any_shard() -> (usize, MutexGuard<'static, BlockShard>) {
    let free = OPEN.iter().enumerate().find_map(|(number, shard)| Some((number, try_lock(shard)?)));
    free.unwrap_or_else(|| (0, lock(&OPEN[0])))
}

/// Returns the chunk of a block at `address`, and its first unit.
fn block_position(address: usize) -> (usize, usize) {
    let chunk = address & !(CHUNK - 1);
    (chunk, (address - chunk) / UNIT)
}

/// Allocates uninitialized memory of `bytes` with the alignment of [`block_align`]. Aborts the
/// process if there is no memory, like [`Box::new`].
///
/// Uses the shortest run of free units that suffices. A block loses half a unit on average.
#[must_use]
pub fn allocate(bytes: usize) -> NonNull<u8> {
    let Some(place) = place_of(bytes) else {
        // SAFETY:
        // * The size of the layout is not zero.
        let start = unsafe { alloc(layout(bytes)) };
        return NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(bytes)));
    };
    let (number, mut shard) = lock_any_shard();
    let empty = shard.drain_freed(number);
    let address = match place {
        ChunkPlace::Part(class) => shard.allocate_part(number, class),
        ChunkPlace::Units(count) => shard.allocate_units(number, count),
    };
    drop(shard);
    make_all_spare(empty);
    NonNull::new(with_exposed_provenance_mut::<u8>(address)).expect("no chunk is at 0")
}

/// Frees a block.
///
/// # Safety
///
/// `start` comes from [`allocate`] with the same `bytes` and is freed only once. No code uses the
/// memory any more.
pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
    let Some(place) = place_of(bytes) else {
        // SAFETY:
        // * `allocate` used the same layout: the caller guarantees the same `bytes`.
        return unsafe { dealloc(start.as_ptr(), layout(bytes)) };
    };
    let (chunk, _) = block_position(start.addr().get());
    let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
    // SAFETY:
    // * The chunk has a block, so no thread writes the shard in its head (I3), and no reference
    //   covers it.
    let number = unsafe { (&raw const (*head).shard).read() };
    assert!(number != 0, "block_alloc (I3): the chunk of a block belongs to a shard");
    let number = number - 1;
    let Some(mut shard) = try_lock(&OPEN[number]) else {
        // SAFETY:
        // * The caller owns the block. It has at least the size and alignment of a `FreedBlock`.
        return unsafe { push_freed(start.cast(), place, &FREED[number]) };
    };
    // SAFETY:
    // * The chunk belongs to this shard, as its head says. The block of the caller keeps it there.
    let emptied = unsafe { shard.free_block(start.addr().get(), place) };
    let mut empty = shard.drain_freed(number);
    empty.extend(emptied);
    drop(shard);
    make_all_spare(empty);
}

/// Puts a block on a list of freed ones.
///
/// # Safety
///
/// The caller owns the block, and no other code uses it.
unsafe fn push_freed(piece: NonNull<FreedBlock>, place: ChunkPlace, list: &AtomicPtr<FreedBlock>) {
    let mut next = list.load(Ordering::Relaxed);
    loop {
        // SAFETY:
        // * The caller owns the block, until the exchange below succeeds.
        unsafe { piece.write(FreedBlock { next, place }) };
        match list.compare_exchange_weak(next, piece.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newest) => next = newest,
        }
    }
}

/// Makes chunks spare that lost their last block.
fn make_all_spare(empty: Vec<usize>) {
    for chunk in empty {
        // SAFETY:
        // * The chunk has no block and is in no shard, so no other thread knows it.
        unsafe { make_spare(chunk) }
    }
}

/// Does nothing: only Linux collapses memory to huge pages on request.
#[cfg(not(target_os = "linux"))]
pub fn collapse_some() {}

/// Returns the bytes for one bit of [`ChunkUnits::released_pages`].
fn page_bytes() -> usize {
    page_size().max(MIN_PAGE)
}

/// Releases the pages between blocks, and returns their bytes. Evictions free blocks in many
/// chunks, and without this call the memory would stay until a chunk is empty. Costs hundreds of
/// system calls for each MiB.
pub fn release_pages() -> u64 {
    let mut bytes = 0;
    for (number, shard) in OPEN.iter().enumerate() {
        let empty = lock(shard).drain_freed(number);
        make_all_spare(empty);
        let mut longest = 0;
        loop {
            // Takes the lock for one length at a time, since a thread may find all shards locked.
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

/// Returns a chunk without blocks, which now belongs to the shard.
fn new_chunk(shard: usize) -> usize {
    let chunk = {
        let mut spare = lock(&SPARE);
        if spare.resident.is_empty() && spare.released.is_empty() {
            #[cfg(unix)]
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
    free[0] &= !1; // the head
    let units = ChunkUnits { longest: UNITS - 1, free, starts: [0; WORDS], released_pages: 0 };
    // SAFETY:
    // * The spare chunk is mapped and aligned, and no other thread knows it.
    unsafe { with_exposed_provenance_mut::<ChunkHead>(chunk).write(ChunkHead { shard: shard + 1, units }) };
    chunk
}

/// Makes a chunk spare.
///
/// # Safety
///
/// The chunk has no blocks and is in no list. No other thread knows it.
unsafe fn make_spare(chunk: usize) {
    let head = with_exposed_provenance_mut::<ChunkHead>(chunk);
    // SAFETY:
    // * Only this thread knows the chunk: the caller guarantees it.
    unsafe { (&raw mut (*head).shard).write(0) };
    let mut spare = lock(&SPARE);
    if spare.resident.len() < MAX_RESIDENT_SPARES {
        return spare.resident.push(chunk);
    }
    spare.unmark_collapsed(chunk);
    drop(spare);
    if let Some(start) = NonNull::new(head.cast::<u8>()) {
        // SAFETY: whole pages of a mapping of this module, which no other thread knows. Zeros are
        // the shard of a spare chunk, and the rest of the head is written before it is read.
        let _ = unsafe { super::release_pages(start, CHUNK) };
    }
    CHUNK_BYTES.fetch_sub(CHUNK as u64, Ordering::Relaxed);
    let mut spare = lock(&SPARE);
    spare.unmark_collapsed(chunk); // it may have been collapsed again
    spare.released.push(chunk);
}
