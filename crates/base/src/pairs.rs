//! # Pairs that a cursor has read ahead
//!
//! For cursors that read a piece of a keyspace at once, whose entries lie here and there: their keys and values stand one after
//! the other in one buffer. Staged values are read when the walk comes to them, one at a time.

use std::cell::Cell;
use std::cmp::Ordering;

use crate::blob::{BlobRef, Blobs};
use crate::engine::Want;
use crate::error::Result;
use crate::record::{Content, Record};
use crate::segment::{Address, Segments};
use crate::sync::epoch::Guard;

/// How many entries are asked for before the first is read: as many as the processor loads at a time.
const AHEAD: usize = 8;
/// How many of a piece are looked for in memory: a system call each.
const LOOKS: usize = 2;
/// For how many more pieces it holds that one had entries that were not in memory, and that it had none.
const ABSENT_FOR: u32 = 64;
const PRESENT_FOR: u32 = 16;
/// A buffer above this is given back with its piece.
const KEEP_BUFFER: usize = 1 << 20;

/// A pair in the buffer: the key, then the value.
#[derive(Clone, Copy, Debug)]
struct Pair {
    start: usize,
    key: usize,
    value: usize,
    staged: Option<BlobRef>,
}

/// The pairs of a piece, and the place of the walk among them.
#[derive(Debug)]
pub struct Pairs {
    want: Want,
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
    /// The next pair's place in `pairs`; the present one is before it.
    next: usize,
    /// The present pair's value, if it was staged.
    staged: Vec<u8>,
}

impl Pairs {
    /// None yet.
    #[must_use]
    pub fn new(want: Want) -> Pairs {
        Pairs { want, bytes: Vec::new(), pairs: Vec::new(), next: 0, staged: Vec::new() }
    }

    /// Begins a new piece.
    pub fn clear(&mut self) {
        if self.bytes.capacity() > KEEP_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pairs.clear();
        self.next = 0;
    }

    /// Pairs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// There will be `count`, which are likely as long as what is there now.
    pub fn expect(&mut self, count: usize) {
        self.pairs.reserve(count);
        self.bytes.reserve((self.bytes.len() * count).min(KEEP_BUFFER / 16));
    }

    /// Adds a pair.
    pub fn push(&mut self, record: &Record<'_>) {
        let (value, staged) = match record.content {
            Content::Put(value) if self.want == Want::Pairs => (value, None),
            Content::Staged(blob) if self.want == Want::Pairs => (&[][..], Some(blob)),
            _ => (&[][..], None),
        };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(record.key);
        self.bytes.extend_from_slice(value);
        self.pairs.push(Pair { start, key: record.key.len(), value: value.len(), staged });
    }

    /// Brings what was added behind the first `newest` pairs into order with these; of a key in both the first stays.
    pub fn merge(&mut self, newest: usize, order: impl Fn(&[u8], &[u8]) -> Ordering) {
        if self.pairs.len() == newest {
            return;
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_by(|a, b| order(self.key_of(a), self.key_of(b)));
        pairs.dedup_by(|b, a| self.key_of(a) == self.key_of(b));
        self.pairs = pairs;
    }

    /// Goes on to the next pair. False if there is none in this piece.
    pub fn advance(&mut self, blobs: &Blobs) -> Result<bool> {
        let Some(pair) = self.pairs.get(self.next) else { return Ok(false) };
        if let Some(blob) = pair.staged {
            self.staged = match blobs.read(&blob)? {
                Some(value) => value,
                // This cursor's view pins it: it cannot have gone in order.
                None => return Err(blobs.missing(&blob)),
            };
        }
        self.next += 1;
        Ok(true)
    }

    /// The key of the present pair.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.now().map_or(&[], |pair| self.key_of(pair))
    }

    /// The value of the present pair.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        match self.now() {
            Some(pair) if pair.staged.is_some() => &self.staged,
            Some(pair) => {
                let start = pair.start + pair.key;
                &self.bytes[start..start + pair.value]
            }
            None => &[],
        }
    }

    fn now(&self) -> Option<&Pair> {
        self.pairs.get(self.next.checked_sub(1)?)
    }

    fn key_of(&self, pair: &Pair) -> &[u8] {
        &self.bytes[pair.start..pair.start + pair.key]
    }
}

/// Reads `items` in their order, having asked for the entries that they name some way ahead. Where memory does not hold them all are
/// asked of the device first, side by side: one that answers in 100 µs answers many at a time.
pub fn read_ahead<T>(
    items: &[T],
    (segments, guard): (&Segments, &Guard),
    entry: impl Fn(&T) -> Option<Address>,
    mut read: impl FnMut(&T) -> Result<()>,
) -> Result<()> {
    let some = || items.iter().step_by(items.len().div_ceil(LOOKS).max(1)).filter_map(&entry);
    if are_absent(|| some().any(|address| !segments.is_cached(address, guard))) {
        items.iter().filter_map(&entry).for_each(|address| segments.will_need(address, guard));
    }
    let ask = |item: &T| entry(item).into_iter().for_each(|address| segments.prefetch_entry(address, guard));
    items.iter().take(AHEAD).for_each(ask);
    for (number, item) in items.iter().enumerate() {
        items.get(number + AHEAD).into_iter().for_each(ask);
        read(item)?;
    }
    Ok(())
}

crate::sync::thread_local! {
    /// What this thread's last look said, and for how many pieces it holds.
    static LOOKED: Cell<(bool, u32)> = const { Cell::new((false, 0)) };
}

/// Whether entries of this thread's pieces tend not to be in memory, as `look` says from time to time: it takes a microsecond.
fn are_absent(look: impl FnOnce() -> bool) -> bool {
    let (are_absent, pieces) = LOOKED.with(Cell::get);
    let now = match pieces.checked_sub(1) {
        Some(left) => (are_absent, left),
        None if look() => (true, ABSENT_FOR),
        None => (false, PRESENT_FOR),
    };
    LOOKED.with(|looked| looked.set(now));
    now.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_holds_for_some_pieces() {
        LOOKED.with(|looked| looked.set((false, 0)));
        assert!(are_absent(|| true));
        for _ in 0..ABSENT_FOR {
            assert!(are_absent(|| unreachable!("it holds")));
        }
        assert!(!are_absent(|| false));
        for _ in 0..PRESENT_FOR {
            assert!(!are_absent(|| unreachable!("it holds")));
        }
        assert!(are_absent(|| true));
        LOOKED.with(|looked| looked.set((false, 0)));
    }
}
