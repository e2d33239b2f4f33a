//! # Pairs that a cursor has read ahead
//!
//! For cursors that read a piece of a keyspace at once, whose entries lie here and there: their keys and values stand one after
//! the other in one buffer. Staged values are read when the walk comes to them, one at a time.

use std::cmp::Ordering;

use crate::blob::{BlobRef, Blobs};
use crate::engine::Want;
use crate::error::Result;
use crate::record::{Content, Record};

/// How many entries are asked for before the first is read: as many as the processor loads at a time.
const AHEAD: usize = 8;
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

/// Reads `items` in their order, having asked for those some way ahead.
pub fn read_ahead<T>(items: &[T], ask: impl Fn(&T), mut read: impl FnMut(&T) -> Result<()>) -> Result<()> {
    items.iter().take(AHEAD).for_each(&ask);
    for (number, item) in items.iter().enumerate() {
        items.get(number + AHEAD).into_iter().for_each(&ask);
        read(item)?;
    }
    Ok(())
}
