//! # Pairs that a cursor has read ahead
//!
//! For cursors that read a piece of a keyspace at once, whose entries lie here and there: their
//! keys and values stand one after the other in one buffer. Staged values are read when the walk
//! comes to them, one at a time.

use std::cell::Cell;
use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::blob::{BlobRef, Blobs};
use crate::engine::Projection;
use crate::error::{Error, Result};
use crate::record::{Record, RecordContent};
use crate::segment::{Address, PrefetchedEntry, SegmentTable};
use crate::sync::epoch::Guard;
use crate::types::Seq;

/// Lines of the cache that are asked for together, while those of the group before are on their way
/// or being read: half of what a processor loads at a time. It goes on past a prefetch when it
/// knows the page, so that of entries asked for one right after the other it looks several pages up
/// side by side; between two that are read it would wait for each.
const GROUP_LINES: usize = 12;
/// Entries of a usual piece.
const USUAL_BATCH: usize = 64;
/// How many of a piece are looked for in memory: a system call each.
const CACHE_PROBES: usize = 2;
/// For how many more pieces it holds that one had entries that were not in memory, ...
const ABSENT_BATCHES: u32 = 64;
/// ... and that it had none: twice as many after each look that says the same, up to the last.
const PRESENT_BATCHES: u32 = 16;
const MAX_PRESENT_BATCHES: u32 = 256;
/// A buffer above this is given back with its piece.
const MAX_KEPT_BUFFER: usize = 1 << 20;

/// A pair in the buffer: the key, then the value.
#[derive(Clone, Copy, Debug)]
struct BufferedPair {
    start: usize,
    key: usize,
    value: usize,
    rest: OnVisit,
}

/// What the walk does when it comes to a pair.
#[derive(Clone, Copy, Debug)]
enum OnVisit {
    /// Nothing: the value is in the buffer.
    Nothing,
    /// Reads the value.
    Blob(BlobRef),
    /// Reports the damage of this index. The key is that of the pair before, if there is one.
    Damaged(usize),
}

/// The pairs of a piece, and the place of the walk among them.
#[derive(Debug)]
pub struct PairBuffer {
    projection: Projection,
    bytes: Vec<u8>,
    pairs: Vec<BufferedPair>,
    /// The next pair's place in `pairs`; the present one is before it.
    next: usize,
    /// The present pair's value, if it was staged.
    blob_value: Vec<u8>,
    /// Damage of this piece; none where it was reported.
    damages: Vec<Option<Error>>,
}

impl PairBuffer {
    /// None yet.
    #[must_use]
    pub fn new(projection: Projection) -> PairBuffer {
        PairBuffer {
            projection,
            bytes: Vec::new(),
            pairs: Vec::new(),
            next: 0,
            blob_value: Vec::new(),
            damages: Vec::new(),
        }
    }

    /// Begins a new piece.
    pub fn clear(&mut self) {
        if self.bytes.capacity() > MAX_KEPT_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pairs.clear();
        self.damages.clear();
        self.next = 0;
    }

    /// Pairs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Pairs of this piece that the walk went over.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.next
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// There will be `count`, which are likely as long as what is there now.
    pub fn reserve(&mut self, count: usize) {
        self.pairs.reserve(count);
        self.bytes.reserve((self.bytes.len() * count).min(MAX_KEPT_BUFFER / 16));
    }

    /// Adds a pair.
    pub fn push(&mut self, record: &Record<'_>) {
        let (value, rest) = match record.content {
            RecordContent::Put(value) if self.projection == Projection::Pairs => (value, OnVisit::Nothing),
            RecordContent::Blob(blob) if self.projection == Projection::Pairs => {
                (&[][..], OnVisit::Blob(blob))
            }
            _ => (&[][..], OnVisit::Nothing),
        };
        let start = self.bytes.len();
        self.bytes.reserve(record.key.len() + value.len());
        self.bytes.extend_from_slice(record.key);
        self.bytes.extend_from_slice(value);
        self.pairs.push(BufferedPair { start, key: record.key.len(), value: value.len(), rest });
    }

    /// Adds the outcome of reading a pair: nothing more if it was read, and damage in its place,
    /// which the walk reports when it comes to it. Any other error is returned.
    ///
    /// # Errors
    ///
    /// The error, if it is no damage.
    #[inline]
    pub fn push_damage(&mut self, read: Result<()>) -> Result<()> {
        match read {
            Err(error) if error.is_corrupt() => {
                self.add_damage(error);
                Ok(())
            }
            other => other,
        }
    }

    #[cold]
    fn add_damage(&mut self, error: Error) {
        let (start, key) = self.pairs.last().map_or((0, 0), |last| (last.start, last.key));
        let rest = OnVisit::Damaged(self.damages.len());
        self.damages.push(Some(error));
        self.pairs.push(BufferedPair { start, key, value: 0, rest });
    }

    /// Brings what was added behind the first `newest` pairs into order with these; of a key in
    /// both the first stays.
    pub fn merge(&mut self, newest: usize, order: impl Fn(&[u8], &[u8]) -> Ordering) {
        if self.pairs.len() == newest {
            return;
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_by(|a, b| order(self.key_of(a), self.key_of(b)));
        // In the place of damage there is no key: what is behind it is compared with the pair
        // before it.
        let mut last: Option<BufferedPair> = None;
        pairs.retain(|pair| {
            let is_damage = matches!(pair.rest, OnVisit::Damaged(_));
            let is_again = !is_damage && last.is_some_and(|last| self.key_of(&last) == self.key_of(pair));
            if !is_damage {
                last = Some(*pair);
            }
            !is_again
        });
        self.pairs = pairs;
    }

    /// Goes on to the next pair. False if there is none in this piece. After damage the next call
    /// goes on behind it.
    ///
    /// # Errors
    ///
    /// Damage that stands in the place of the pair, or that of its value.
    #[inline]
    pub fn advance(&mut self, blobs: &Blobs) -> Result<bool> {
        let Some(pair) = self.pairs.get(self.next) else { return Ok(false) };
        let rest = pair.rest;
        self.next += 1;
        if matches!(rest, OnVisit::Nothing) { Ok(true) } else { self.advance_special(rest, blobs) }
    }

    #[cold]
    fn advance_special(&mut self, rest: OnVisit, blobs: &Blobs) -> Result<bool> {
        match rest {
            OnVisit::Nothing => Ok(true),
            OnVisit::Blob(blob) => self.read_blob(&blob, blobs).map(|()| true),
            // Reported once: `next` is behind it.
            OnVisit::Damaged(index) => self.damages[index].take().map_or(Ok(true), Err),
        }
    }

    fn read_blob(&mut self, blob: &BlobRef, blobs: &Blobs) -> Result<()> {
        self.blob_value = match blobs.read(blob)? {
            Some(value) => value,
            // This cursor's view pins it: it cannot have gone in order.
            None => return Err(blobs.missing_error(blob)),
        };
        Ok(())
    }

    /// The key of the present pair.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.pair().0
    }

    /// The value of the present pair.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.pair().1
    }

    /// The present pair: its key and its value.
    #[inline]
    #[must_use]
    pub fn pair(&self) -> (&[u8], &[u8]) {
        let Some(pair) = self.current() else { return (&[], &[]) };
        let (key, rest) = self.bytes[pair.start..].split_at(pair.key);
        (key, if matches!(pair.rest, OnVisit::Blob(_)) { &self.blob_value } else { &rest[..pair.value] })
    }

    fn current(&self) -> Option<&BufferedPair> {
        self.pairs.get(self.next.checked_sub(1)?)
    }

    fn key_of(&self, pair: &BufferedPair) -> &[u8] {
        &self.bytes[pair.start..pair.start + pair.key]
    }
}

/// Hands `items` to `read` in their order, with the entries that they name if these are in memory
/// without a flaw; those of the next items were asked for by then. Where memory does not hold them
/// all are asked of the device first, side by side: one that answers in 100 µs answers many at a
/// time.
pub fn read_ahead<'g, T>(
    items: &[T],
    (segments, guard): (&SegmentTable, &'g Guard),
    entry: impl Fn(&T) -> Option<Address>,
    mut read: impl FnMut(&T, Option<(Seq, Record<'g>)>) -> Result<()>,
) -> Result<()> {
    let some = || items.iter().step_by(items.len().div_ceil(CACHE_PROBES).max(1)).filter_map(&entry);
    if is_usually_absent(|| some().any(|address| !segments.is_cached(address, guard))) {
        items.iter().filter_map(&entry).for_each(|address| segments.will_need(address, guard));
    }
    let mut spots: SmallVec<[Option<PrefetchedEntry<'g>>; USUAL_BATCH]> = SmallVec::new();
    let ask = |spots: &mut SmallVec<_>| {
        let mut lines = 0;
        while lines < GROUP_LINES && spots.len() < items.len() {
            let spot =
                entry(&items[spots.len()]).and_then(|address| segments.prefetch_located(address, guard));
            lines += spot.as_ref().map_or(1, PrefetchedEntry::lines);
            spots.push(spot);
        }
    };
    ask(&mut spots);
    let mut group = 0;
    for (number, item) in items.iter().enumerate() {
        if number == group {
            group = spots.len();
            ask(&mut spots);
        }
        read(item, spots[number].as_ref().and_then(PrefetchedEntry::entry))?;
    }
    Ok(())
}

/// What a thread's last look said.
#[derive(Clone, Copy, Debug)]
struct CacheProbe {
    is_absent: bool,
    /// For how many more pieces that holds.
    left: u32,
    /// For how many it was to hold if it said that they are present.
    last: u32,
}

crate::sync::thread_local! {
    static LAST_PROBE: Cell<CacheProbe> = const { Cell::new(CacheProbe { is_absent: false, left: 0, last: 0 }) };
}

/// Whether entries of this thread's pieces tend not to be in memory, as `look` says from time to
/// time: it takes a microsecond.
fn is_usually_absent(look: impl FnOnce() -> bool) -> bool {
    let before = LAST_PROBE.with(Cell::get);
    let now = match before.left.checked_sub(1) {
        Some(left) => CacheProbe { left, ..before },
        None if look() => CacheProbe { is_absent: true, left: ABSENT_BATCHES, last: 0 },
        None => {
            let pieces = (2 * before.last).clamp(PRESENT_BATCHES, MAX_PRESENT_BATCHES);
            CacheProbe { is_absent: false, left: pieces, last: pieces }
        }
    };
    LAST_PROBE.with(|looked| looked.set(now));
    now.is_absent
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::error::Damage;
    use crate::types::{KeyspaceId, StoreId};

    fn holds_for(pieces: u32, answer: bool) {
        for _ in 0..pieces {
            assert_eq!(is_usually_absent(|| unreachable!("it holds")), answer);
        }
    }

    /// What a walk over them shows: keys, and `!` in the place of damage.
    fn shown(pairs: &mut PairBuffer, blobs: &Blobs) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            match pairs.advance(blobs) {
                Ok(false) => return all,
                Ok(true) => all.push(String::from_utf8_lossy(pairs.key()).into_owned()),
                Err(_) => all.push("!".to_owned()),
            }
        }
    }

    #[test]
    fn damage_is_reported_in_order_and_other_pairs_are_returned_once() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "/db".into(), 1, StoreId(1), true);
        let put = |pairs: &mut PairBuffer, key: &str| {
            let (keyspace, content) = (KeyspaceId(1), RecordContent::Put(b"v"));
            pairs.push(&Record { keyspace, key: key.as_bytes(), content });
        };
        let damage = || Err(Error::corrupt(Path::new("/file"), 7, Damage::BadMagic));
        for first_is_damaged in [false, true] {
            let mut pairs = PairBuffer::new(Projection::Pairs);
            if first_is_damaged {
                pairs.push_damage(damage()).expect("it is damage");
            }
            ["", "b"].into_iter().for_each(|key| put(&mut pairs, key));
            pairs.push_damage(damage()).expect("it is damage");
            put(&mut pairs, "d");
            let newest = pairs.len();
            ["a", "", "b", "c"].into_iter().for_each(|key| put(&mut pairs, key));
            pairs.merge(newest, |a, b| a.cmp(b));
            let mut expected = vec!["", "a", "b", "!", "c", "d"];
            if first_is_damaged {
                expected.insert(0, "!");
            }
            assert_eq!(shown(&mut pairs, &blobs), expected);
        }
        let mut pairs = PairBuffer::new(Projection::Keys);
        assert!(pairs.push_damage(Err(Error::Closed)).is_err() && pairs.is_empty());
    }

    #[test]
    fn a_look_holds_for_some_pieces() {
        let fresh = CacheProbe { is_absent: false, left: 0, last: 0 };
        LAST_PROBE.with(|looked| looked.set(fresh));
        assert!(is_usually_absent(|| true));
        holds_for(ABSENT_BATCHES, true);
        for pieces in [16, 32, 64, 128, 256, 256] {
            assert!(!is_usually_absent(|| false));
            holds_for(pieces, false);
        }
        assert!(is_usually_absent(|| true));
        holds_for(ABSENT_BATCHES, true);
        assert!(!is_usually_absent(|| false));
        holds_for(PRESENT_BATCHES, false);
        LAST_PROBE.with(|looked| looked.set(fresh));
    }
}
