//! # Prints: what stays in memory of a leaf that goes
//!
//! A look-up wants one entry of a leaf. Two bytes of each key's hash, and where its record stands, take a quarter of what the leaf
//! takes; the record itself has the key. So a look-up that finds prints in place of the leaf reads the device once, not twice.
//!
//! ## Picture
//!
//! ```text
//!  prints n x 2 | tags n x 1 | places n x 7            in the order of the leaf
//! ```
//!
//! ## Invariants
//!
//! 1. What no print equals is not in the leaf. What one equals may be: one key in some hundred leaves passes for another, so that
//!    the record decides.
//! 2. What only the leaf has (a value, a staged value's number, the commit of a removal) is not here: such an entry says so.

use sheaf_base::memory::pieces::{self, Piece, Row};
use sheaf_base::sync::atomic::{AtomicBool, Ordering};
use sheaf_base::types::Seq;

use super::{Entry, INLINE, Node, PLACE, STAGED, TOMB};

const PRINT: usize = 2;
/// Bytes of a key.
const EACH: usize = PRINT + 1 + PLACE;
/// A leaf has prints if at most this part of its entries are such that only the leaf answers.
const DEAF: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Prints {
    /// They were asked since the clock came by.
    pub(crate) mark: AtomicBool,
    stamp: u64,
    newest: Seq,
    count: usize,
    columns: Row<u8>,
}

/// The part of a hash that is kept: not the byte that leaves keep.
fn print_of(hash: u64) -> [u8; PRINT] {
    [hash.to_be_bytes()[0], hash.to_be_bytes()[1]]
}

impl Prints {
    /// Those of a leaf, unless too much of it is nowhere else.
    pub(crate) fn of(leaf: &Node<'_>, hash: impl Fn(&[u8]) -> u64) -> Option<Piece<Prints>> {
        let count = leaf.len();
        if (0..count).filter(|slot| is_deaf(leaf.tag(*slot))).count() > count / DEAF {
            return None;
        }
        let (mut columns, mut key) = (Vec::with_capacity(count * EACH), Vec::new());
        for slot in 0..count {
            key.clear();
            leaf.key(slot, &mut key);
            columns.extend_from_slice(&print_of(hash(&key)));
        }
        columns.extend_from_slice(&leaf.bytes[leaf.tags..leaf.tags + count]);
        columns.extend_from_slice(&leaf.bytes[leaf.places..leaf.places + count * PLACE]);
        let (mark, columns) = (AtomicBool::new(false), Row::copy(&columns));
        Some(Piece::new(Prints { mark, stamp: leaf.stamp(), newest: leaf.newest(), count, columns }))
    }

    /// The leaf's stamp.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// No entry is of a later commit.
    pub(crate) fn newest(&self) -> Seq {
        self.newest
    }

    /// Entries that may be of a key with this hash, whose byte in leaves is `print`; nothing in the place of one that only the leaf has.
    pub(crate) fn like(&self, hash: u64, print: u8) -> impl Iterator<Item = Option<Entry>> {
        let wanted = print_of(hash);
        let (prints, rest) = self.columns.split_at(self.count * PRINT);
        let (tags, places) = rest.split_at(self.count);
        let slots = prints.as_chunks::<PRINT>().0.iter().zip(0..).filter(move |(here, _)| **here == wanted);
        slots.map(move |(_, slot): (_, usize)| {
            let (flags, place) = (tags[slot] & super::FLAGS, places.as_chunks::<PLACE>().0[slot]);
            (!is_deaf(flags)).then_some(Entry { flags, print, place, blob: 0 })
        })
    }

    /// Bytes of memory.
    pub(crate) fn cost(&self) -> u64 {
        pieces::taken(self.columns.len()) + pieces::taken(size_of::<Prints>())
    }

    /// They were asked.
    pub(crate) fn touch(&self) {
        if !self.mark.load(Ordering::Relaxed) {
            self.mark.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether only the leaf has what an entry with these flags says.
fn is_deaf(flags: u8) -> bool {
    flags & (TOMB | STAGED | INLINE) != 0
}
