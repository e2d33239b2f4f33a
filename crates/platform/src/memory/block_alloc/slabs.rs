//! # Slabs: blocks of less than a unit
//!
//! A slab is a block of [`SLAB_UNITS`] units that is divided into parts of equal size. Each part is
//! a block. With a general allocator, threads would free such blocks of each other, and so wait for
//! its locks.
//!
//! ```text
//!  slab: head (64 bytes): free parts | position in the list | part | part | ...
//! ```
//!
//! ## Invariants
//!
//! 1. A slab has at least one part in use. It is in the list of its shard and class exactly if a
//!    part is free, at the position in its head.
//!
//! ## Threads
//!
//! The lock of the shard protects heads and lists.

use std::ptr::with_exposed_provenance_mut;

use super::{ALIGN, BLOCK_BYTES, BlockShard, Ordering, UNIT, UNITS, block_position, next_bit};

/// Units of a slab.
const SLAB_UNITS: usize = 8;
/// Bytes of a slab.
const SLAB: usize = SLAB_UNITS * UNIT;
/// Minimum size of a block in a slab. The general allocator serves smaller ones.
pub(super) const MIN_PART: usize = ALIGN + 1;
/// Maximum size of a block in a slab.
pub(super) const MAX_PART: usize = 7 * ALIGN;
/// Number of sizes of parts: the multiples of [`ALIGN`] from `2 * ALIGN` to [`MAX_PART`].
pub(super) const CLASSES: usize = MAX_PART / ALIGN - 1;
/// Position of a slab that is in no list.
const NOT_LISTED: usize = usize::MAX;

/// Slabs of a shard with free parts, by class.
pub(super) type PartialSlabs = [Vec<usize>; CLASSES];

/// Head at the beginning of a slab.
#[derive(Debug)]
#[repr(C)]
struct SlabHead {
    /// Bits of the free parts.
    free: u64,
    /// Position in the list of slabs with free parts.
    position: usize,
}

const _: () = assert!(size_of::<SlabHead>() <= ALIGN && SLAB / (2 * ALIGN) <= 64);

/// Returns the class of blocks of `bytes`, which must be from [`MIN_PART`] to [`MAX_PART`].
pub(super) const fn class_of(bytes: usize) -> usize {
    bytes.div_ceil(ALIGN) - 2
}

const fn part_bytes(class: usize) -> usize {
    (class + 2) * ALIGN
}

const fn parts(class: usize) -> usize {
    (SLAB - ALIGN) / part_bytes(class)
}

/// Returns the bytes of memory that a part takes, with its share of the rest of the slab.
pub(super) const fn part_memory(class: usize) -> u64 {
    SLAB.div_ceil(parts(class)) as u64
}

const fn all_free(class: usize) -> u64 {
    (1 << parts(class)) - 1
}

impl BlockShard {
    /// Returns the head of a slab.
    ///
    /// # Safety
    ///
    /// `slab` is a slab of this shard. (`&mut self` proves that the caller holds the lock.)
    unsafe fn slab(&mut self, slab: usize) -> &mut SlabHead {
        // SAFETY:
        // * `allocate_part` wrote the head. Owners of parts do not use it, all other accesses need
        //   the lock, and the result borrows `self`.
        unsafe { &mut *with_exposed_provenance_mut::<SlabHead>(slab) }
    }

    /// Allocates a part. `number` is the number of the shard. Returns its address.
    pub(super) fn allocate_part(&mut self, number: usize, class: usize) -> usize {
        let slab = self.partial[class].last().copied().unwrap_or_else(|| self.add_slab(number, class));
        // SAFETY:
        // * The slab is in a list of this shard.
        let head = unsafe { self.slab(slab) };
        let part = head.free.trailing_zeros() as usize;
        assert!(part < parts(class), "slabs (I1): a listed slab has a free part");
        head.free &= !(1 << part);
        if head.free == 0 {
            head.position = NOT_LISTED;
            self.partial[class].pop();
        }
        BLOCK_BYTES.fetch_add(part_memory(class), Ordering::Relaxed);
        slab + ALIGN + part * part_bytes(class)
    }

    /// Adds a slab, and lists it.
    fn add_slab(&mut self, number: usize, class: usize) -> usize {
        let slab = self.allocate_units(number, SLAB_UNITS);
        BLOCK_BYTES.fetch_sub(SLAB as u64, Ordering::Relaxed); // its parts are counted
        let head = SlabHead { free: all_free(class), position: self.partial[class].len() };
        // SAFETY:
        // * The block has the size of a slab and is aligned, and no other code knows it.
        unsafe { with_exposed_provenance_mut::<SlabHead>(slab).write(head) };
        self.partial[class].push(slab);
        slab
    }

    /// Frees the part at `address`. Returns true if its chunk has lost its last block and leaves
    /// the shard.
    ///
    /// # Safety
    ///
    /// The part was allocated from this shard with this class and is freed only once.
    pub(super) unsafe fn free_part(&mut self, address: usize, class: usize) -> bool {
        let (chunk, unit) = block_position(address);
        // SAFETY:
        // * The chunk has the slab, so it belongs to the shard.
        let first = unsafe { self.units(chunk) }.start_before(unit);
        let slab = chunk + first * UNIT;
        let part = (address - slab - ALIGN) / part_bytes(class);
        // SAFETY:
        // * The slab has the part of the caller.
        let head = unsafe { self.slab(slab) };
        let (was_free, bit) = (head.free, 1 << part);
        assert!(was_free & bit == 0, "slabs (I1): a part is freed once");
        head.free |= bit;
        let (is_empty, position) = (head.free == all_free(class), head.position);
        BLOCK_BYTES.fetch_sub(part_memory(class), Ordering::Relaxed);
        if is_empty {
            if was_free != 0 {
                self.unlist_slab(class, position);
            }
            BLOCK_BYTES.fetch_add(SLAB as u64, Ordering::Relaxed); // `free_units` subtracts it
            // SAFETY:
            // * As above.
            return unsafe { self.free_units(chunk, first, SLAB_UNITS) };
        }
        if was_free == 0 {
            let position = self.partial[class].len();
            self.partial[class].push(slab);
            // SAFETY:
            // * As above.
            unsafe { self.slab(slab) }.position = position;
        }
        false
    }

    /// Removes the slab at `position` from the list of its class.
    fn unlist_slab(&mut self, class: usize, position: usize) {
        self.partial[class].swap_remove(position);
        if let Some(moved) = self.partial[class].get(position).copied() {
            // SAFETY:
            // * The slab is in a list of this shard.
            unsafe { self.slab(moved) }.position = position;
        }
    }
}

impl super::ChunkUnits {
    /// Returns the first unit of the block that contains `unit`.
    fn start_before(&self, unit: usize) -> usize {
        let start = (0..=unit).rev().find(|at| self.starts[at / 64] >> (at % 64) & 1 == 1);
        let start = start.filter(|start| unit < start + SLAB_UNITS);
        let start = start.expect("slabs (I1): a part is in a slab");
        debug_assert!(next_bit(&self.free, start, true).min(UNITS) >= start + SLAB_UNITS);
        start
    }
}

#[cfg(all(test, not(any(shuttle, plain_pieces))))]
mod tests {
    use std::collections::BTreeSet;
    use std::ptr::NonNull;

    use super::super::{allocate, free, memory_bytes};
    use super::*;
    use crate::fork::FORKING;

    #[test]
    fn a_slab_has_parts_of_one_size() {
        assert_eq!((class_of(MIN_PART), class_of(128), class_of(129), class_of(MAX_PART)), (0, 0, 1, 5));
        assert_eq!((0..CLASSES).map(parts).collect::<Vec<_>>(), [31, 21, 15, 12, 10, 9]);
        assert_eq!((memory_bytes(100), memory_bytes(256), memory_bytes(MAX_PART)), (133, 274, 456));
    }

    /// Parts of all classes are disjoint. The memory of freed parts is used again, also for another
    /// class.
    #[test]
    fn parts_are_disjoint_and_reused() {
        let _alone = FORKING.lock(); // the fork tests allocate and free much, too
        let mut random = 7_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % limit
        };
        let mut held: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
        let release = |(start, bytes, mark): (NonNull<u8>, usize, u8)| {
            // SAFETY:
            // * The block was allocated with `bytes` and written, and is freed once.
            unsafe {
                let all = std::slice::from_raw_parts(start.as_ptr(), bytes);
                assert!(all.iter().all(|byte| *byte == mark));
                free(start, bytes);
            }
        };
        for round in 0..40_000 {
            let grows = round / 10_000 % 2 == 0;
            if held.is_empty() || below(10) < if grows { 7 } else { 3 } {
                let (bytes, mark) =
                    (MIN_PART + below(MAX_PART - MIN_PART + 1), u8::try_from(below(256)).unwrap());
                let start = allocate(bytes);
                // SAFETY:
                // * The block has `bytes`.
                unsafe { start.as_ptr().write_bytes(mark, bytes) };
                held.push((start, bytes, mark));
            } else {
                release(held.swap_remove(below(held.len())));
            }
        }
        let bytes: u64 = held.iter().map(|(_, bytes, _)| memory_bytes(*bytes)).sum();
        let slabs: BTreeSet<_> = held.iter().map(|(start, ..)| start.addr().get() / UNIT).collect();
        assert!((slabs.len() * UNIT) as u64 <= 2 * bytes, "{} units for {bytes} bytes", slabs.len());
        held.drain(..).for_each(release);
    }
}
