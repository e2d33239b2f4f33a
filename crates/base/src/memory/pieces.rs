//! # Pieces: the memory of caches' blocks
//!
//! A cache lets go as much as it takes in, here and there, in all sizes, and by all threads. An allocator keeps what one thread let
//! go for that thread, and has a place for each size: of blocks that become longer it keeps the places of the shorter ones. That was three
//! times the cache, in all. Here what was given back is the next that is given out, whoever asks, and neighbours become one.
//!
//! ## Picture
//!
//! ```text
//!  region (4 MiB of the system's)
//!    └─ chunk (256 KiB): head: shard, longest run, a bit for each free unit | unit (512 bytes) | unit | ...     a piece: some in a row
//!  shard ─> its chunks by their longest runs          spare: chunks without pieces, all but two without memory
//! ```
//!
//! ## Invariants
//!
//! 1. A chunk is among its shard's under the length of its longest run of free units, unless that is none; or it is spare.
//! 2. A bit is set exactly if no piece has the unit.
//!
//! ## Threads
//!
//! Any. A shard has a lock, held for arithmetic only; who finds one locked goes to the next, so that there are no more in use than
//! threads that meet. Who holds it may take the lock of the spare chunks.
//!
//! ## Costs
//!
//! A tenth of a microsecond or two. Half a unit a piece, and what is free between pieces: the shortest run that is long enough is taken.
//! Regions stay mapped; empty chunks in them take nothing.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use parking_lot::{Mutex, MutexGuard};

use super::{Mapped, release};

/// Pieces begin at multiples of this.
pub const ALIGN: usize = 64;
/// Bytes of a unit. What is not larger than its half is the allocator's, ...
const UNIT: usize = 512;
/// ... and what is larger than this.
const MOST: usize = 32 << 10;
/// Bytes of a chunk, and what it begins at a multiple of.
const CHUNK: usize = 256 << 10;
/// Units of a chunk; its head has the first.
const UNITS: usize = CHUNK / UNIT;
const WORDS: usize = UNITS / 64;
/// Bytes of a region.
const REGION: usize = 4 << 20;
const SHARDS: usize = 8;
/// Empty chunks that keep their memory.
const WARM: usize = 2;

/// What stands at the beginning of a chunk.
#[derive(Debug)]
#[repr(C)]
struct Head {
    shard: usize,
    longest: usize,
    free: [u64; WORDS],
}

const _: () = assert!(size_of::<Head>() <= UNIT && UNIT.is_multiple_of(ALIGN) && MOST < CHUNK - UNIT);

/// Chunks by the lengths of their longest runs, each by address.
#[derive(Debug)]
struct Shard {
    chunks: [BTreeSet<usize>; UNITS],
    /// A bit for each length that some chunk has.
    lengths: [u64; WORDS],
}

/// Chunks without pieces.
#[derive(Debug)]
struct Spare {
    /// Their memory is still there.
    warm: Vec<usize>,
    /// It is given back.
    cold: Vec<usize>,
}

static OPEN: [Mutex<Shard>; SHARDS] =
    [const { Mutex::new(Shard { chunks: [const { BTreeSet::new() }; UNITS], lengths: [0; WORDS] }) }; SHARDS];
static SPARE: Mutex<Spare> = Mutex::new(Spare { warm: Vec::new(), cold: Vec::new() });

/// Units of a piece; none if it is the allocator's.
const fn units_of(bytes: usize) -> Option<usize> {
    if bytes <= UNIT / 2 || bytes > MOST { None } else { Some(bytes.div_ceil(UNIT)) }
}

/// Bytes of memory that a piece of `bytes` takes.
#[must_use]
pub const fn taken(bytes: usize) -> u64 {
    match units_of(bytes) {
        Some(units) => (units * UNIT) as u64,
        None => super::allocated(bytes as u64),
    }
}

/// The units, unless the interleavings are being explored, of which none may leave anything to the next.
fn pooled(bytes: usize) -> Option<usize> {
    if cfg!(shuttle) { None } else { units_of(bytes) }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), ALIGN).expect("a piece is far below the half of all memory")
}

/// The first bit from `from` on that is `is_set`, or all there are.
fn next_bit(words: &[u64; WORDS], from: usize, is_set: bool) -> usize {
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
fn runs(words: &[u64; WORDS]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = next_bit(words, at, true);
        at = next_bit(words, start, false);
        (start < UNITS).then_some((start, at - start))
    })
}

fn flip(words: &mut [u64; WORDS], start: usize, count: usize) {
    (start..start + count).for_each(|bit| words[bit / 64] ^= 1 << (bit % 64));
}

impl Shard {
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

    /// The longest run of a chunk is another (I1).
    fn relist(&mut self, chunk: usize, head: &mut Head) {
        let longest = runs(&head.free).map(|(_, len)| len).max().unwrap_or(0);
        if longest != head.longest {
            self.unlist(chunk, head.longest);
            self.list(chunk, longest);
            head.longest = longest;
        }
    }

    /// The chunk whose longest run is the shortest that is long enough.
    fn find(&self, units: usize) -> Option<usize> {
        let longest = next_bit(&self.lengths, units, true);
        self.chunks.get(longest)?.first().copied()
    }
}

/// A shard that nobody else is in, if there is one.
fn enter() -> (usize, MutexGuard<'static, Shard>) {
    let free = OPEN.iter().enumerate().find_map(|(number, shard)| Some((number, shard.try_lock()?)));
    free.unwrap_or_else(|| (0, OPEN[0].lock()))
}

/// Memory for `bytes`, at a multiple of [`ALIGN`]. What stands there is anything. The process ends if there is no memory, as for a box.
#[must_use]
pub fn take(bytes: usize) -> NonNull<u8> {
    let Some(units) = pooled(bytes) else {
        // SAFETY:
        // * Not of no bytes.
        let start = unsafe { alloc(layout(bytes)) };
        return NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout(bytes)));
    };
    let (number, mut shard) = enter();
    let chunk = shard.find(units).unwrap_or_else(|| {
        let chunk = new_chunk(number);
        shard.list(chunk, UNITS - 1);
        chunk
    });
    // SAFETY:
    // * A chunk of the shard, whose head was written when it became one; the lock of the shard is held.
    let head = unsafe { &mut *with_exposed_provenance_mut::<Head>(chunk) };
    let fitting = runs(&head.free).filter(|(_, len)| *len >= units).min_by_key(|(_, len)| *len);
    let (start, _) = fitting.expect("its longest run is long enough (I1)");
    flip(&mut head.free, start, units);
    shard.relist(chunk, head);
    NonNull::new(with_exposed_provenance_mut::<u8>(chunk + start * UNIT)).expect("no chunk is at 0")
}

/// Gives it back.
///
/// # Safety
///
/// `start` is of [`take`], with as many bytes, once; and nobody touches it any more.
pub unsafe fn give(start: NonNull<u8>, bytes: usize) {
    let Some(units) = pooled(bytes) else {
        // SAFETY:
        // * Allocated with this layout in `take`: the caller's promise.
        return unsafe { dealloc(start.as_ptr(), layout(bytes)) };
    };
    let chunk = start.addr().get() & !(CHUNK - 1);
    let first = (start.addr().get() - chunk) / UNIT;
    // SAFETY:
    // * The head of a chunk that has pieces; its shard was written before any piece of it was given out, and stays.
    let mut shard = OPEN[unsafe { (*with_exposed_provenance_mut::<Head>(chunk)).shard }].lock();
    // SAFETY:
    // * As above; the lock of its shard is held.
    let head = unsafe { &mut *with_exposed_provenance_mut::<Head>(chunk) };
    assert!(next_bit(&head.free, first, true) >= first + units, "given back once, as large as it is (I2)");
    flip(&mut head.free, first, units);
    shard.relist(chunk, head);
    if head.longest == UNITS - 1 {
        shard.unlist(chunk, UNITS - 1);
        drop(shard);
        retire(chunk);
    }
}

/// A chunk without pieces, which becomes the shard's.
fn new_chunk(shard: usize) -> usize {
    let chunk = {
        let mut spare = SPARE.lock();
        if spare.warm.is_empty() && spare.cold.is_empty() {
            let start = Mapped::new(REGION, CHUNK).into_start().expose_provenance().get();
            spare.cold.extend((0..REGION / CHUNK).rev().map(|number| start + number * CHUNK));
        }
        spare.warm.pop().or_else(|| spare.cold.pop()).expect("a region has some")
    };
    let mut head = Head { shard, longest: UNITS - 1, free: [u64::MAX; WORDS] };
    head.free[0] &= !1; // its own
    // SAFETY:
    // * A spare chunk: mapped, aligned, and nobody's but ours.
    unsafe { with_exposed_provenance_mut::<Head>(chunk).write(head) };
    chunk
}

/// Nobody has a piece of the chunk, which is in no shard.
fn retire(chunk: usize) {
    let mut spare = SPARE.lock();
    if spare.warm.len() < WARM {
        return spare.warm.push(chunk);
    }
    drop(spare);
    if let Some(start) = NonNull::new(with_exposed_provenance_mut::<u8>(chunk)) {
        // SAFETY:
        // * Of a mapping of ours; in no list: nobody else knows it. Its head is written again before it is read.
        let _ = unsafe { release(start, CHUNK) };
    }
    SPARE.lock().cold.push(chunk);
}

/// A box whose memory is a piece.
pub struct Piece<T>(NonNull<T>);

// SAFETY:
// * It owns its value, as a box does.
unsafe impl<T: Send> Send for Piece<T> {}
// SAFETY:
// * As above.
unsafe impl<T: Sync> Sync for Piece<T> {}

impl<T> Piece<T> {
    /// Puts `value` into a piece.
    pub fn new(value: T) -> Piece<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let start = take(size_of::<T>()).cast::<T>();
        // SAFETY:
        // * As large and as aligned as it must be, and ours alone.
        unsafe { start.write(value) };
        Piece(start)
    }

    /// Hands it to the caller, as [`Box::into_raw`].
    #[must_use]
    pub fn into_raw(self) -> *mut T {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes it up again.
    ///
    /// # Safety
    ///
    /// `raw` is of [`Piece::into_raw`], once.
    #[must_use]
    pub unsafe fn from_raw(raw: *mut T) -> Piece<T> {
        Piece(NonNull::new(raw).expect("of a piece"))
    }
}

impl<T> Deref for Piece<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY:
        // * Written in `new`, and owned.
        unsafe { self.0.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Piece<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Piece<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * Taken in `new` for such a value, which is owned, and nobody sees it from here on.
        unsafe {
            self.0.drop_in_place();
            give(self.0.cast(), size_of::<T>());
        }
    }
}

/// A boxed slice whose memory is a piece.
pub struct Row<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY:
// * It owns its items, as a box does.
unsafe impl<T: Send> Send for Row<T> {}
// SAFETY:
// * As above.
unsafe impl<T: Sync> Sync for Row<T> {}

impl<T> Row<T> {
    /// `count` items, each of which `item` makes.
    pub fn new(count: usize, item: impl Fn() -> T) -> Row<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let start = take(count * size_of::<T>()).cast::<T>();
        for index in 0..count {
            // SAFETY:
            // * There is room for `count` of them, aligned as they must be, and it is ours alone. (What was made before an `item` that
            //   panics is not dropped.)
            unsafe { start.add(index).write(item()) };
        }
        Row { start, count }
    }
}

impl<T> Deref for Row<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY:
        // * So many were written in `new`, and are owned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: fmt::Debug> fmt::Debug for Row<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Row<T> {
    fn drop(&mut self) {
        // SAFETY:
        // * Taken in `new` for so many items, which are owned, and nobody sees them from here on.
        unsafe {
            NonNull::slice_from_raw_parts(self.start, self.count).drop_in_place();
            give(self.start.cast(), self.count * size_of::<T>());
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_take_whole_units() {
        assert_eq!(
            (units_of(256), units_of(257), units_of(513), units_of(MOST + 1)),
            (None, Some(1), Some(2), None)
        );
        assert_eq!((taken(4160), taken(24), taken(MOST + 1)), (4608, 32, 40 << 10));
    }

    #[test]
    fn runs_are_found_and_flipped() {
        let mut words = [0; WORDS];
        for (start, count) in [(1, 3), (60, 10), (128, 64), (UNITS - 1, 1)] {
            flip(&mut words, start, count);
        }
        let found: Vec<(usize, usize)> = runs(&words).collect();
        assert_eq!(found, [(1, 3), (60, 10), (128, 64), (UNITS - 1, 1)]);
        assert_eq!((next_bit(&words, 4, true), next_bit(&words, 60, false)), (60, 70));
        flip(&mut words, 128, 64);
        assert_eq!(next_bit(&words, 71, true), UNITS - 1);
    }

    /// A piece with a mark in all of its bytes.
    struct Marked {
        start: usize,
        bytes: usize,
        mark: u8,
    }

    impl Marked {
        fn new(bytes: usize, mark: u8) -> Marked {
            let start = take(bytes);
            assert!(start.addr().get().is_multiple_of(ALIGN));
            // SAFETY:
            // * Taken just now, of so many bytes.
            unsafe { start.as_ptr().write_bytes(mark, bytes) };
            Marked { start: start.expose_provenance().get(), bytes, mark }
        }
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            let start = NonNull::new(with_exposed_provenance_mut::<u8>(self.start)).expect("of a piece");
            // SAFETY:
            // * A piece of so many bytes, ours, and written.
            unsafe {
                let held = std::slice::from_raw_parts(start.as_ptr(), self.bytes);
                assert!(held.iter().all(|byte| *byte == self.mark));
                give(start, self.bytes);
            }
        }
    }

    /// Threads take and give back pieces of all sizes, also each other's. No two overlap, and those that are left take
    /// not much more than they must.
    #[test]
    fn pieces_are_apart_and_come_back() {
        let (hand_on, handed) = std::sync::mpsc::channel::<Marked>();
        let handed = std::sync::Mutex::new(handed);
        std::thread::scope(|scope| {
            for thread in 1..=4u64 {
                let (hand_on, handed) = (hand_on.clone(), &handed);
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..3000 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(thread);
                        let bytes = 1 + usize::try_from(random >> 33).unwrap() % (MOST + 4000);
                        hand_on.send(Marked::new(bytes, u8::try_from(random >> 56).unwrap())).unwrap();
                        if random >> 40 & 3 != 0 {
                            drop(handed.lock().unwrap().try_recv());
                        }
                    }
                });
            }
        });
        drop(hand_on);
        let left: Vec<Marked> = handed.lock().unwrap().iter().collect();
        let pooled = left.iter().filter(|piece| units_of(piece.bytes).is_some());
        let (mut bytes, mut chunks) = (0, BTreeSet::new());
        for piece in pooled {
            bytes += taken(piece.bytes);
            chunks.insert(piece.start / CHUNK);
        }
        let held = (chunks.len() * CHUNK) as u64;
        assert!(held < bytes + bytes / 4 + (SHARDS * CHUNK) as u64, "{held} for {bytes}");
    }

    #[test]
    fn what_is_long_comes_where_what_is_short_was() {
        let short: Vec<Marked> = (0..300).map(|_| Marked::new(5000, 1)).collect();
        let stood: BTreeSet<usize> = short.iter().map(|piece| piece.start / CHUNK).collect();
        drop(short);
        let long: Vec<Marked> = (0..100).map(|_| Marked::new(15_000, 2)).collect();
        let again = long.iter().filter(|piece| stood.contains(&(piece.start / CHUNK))).count();
        assert!(again > 0, "other tests may have some of it");
    }

    #[test]
    fn a_piece_drops_what_it_holds() {
        let counted = std::sync::Arc::new(());
        let raw = Piece::new((std::sync::Arc::clone(&counted), [7u8; 3000])).into_raw();
        // SAFETY:
        // * Handed out just now.
        let piece = unsafe { Piece::from_raw(raw) };
        assert_eq!((piece.1[2999], std::sync::Arc::strong_count(&counted)), (7, 2));
        let row = Row::new(100, || std::sync::Arc::clone(&counted));
        assert_eq!((row.len(), std::sync::Arc::strong_count(&counted)), (100, 102));
        drop((piece, row));
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }
}
