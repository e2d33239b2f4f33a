//! # Read-ahead: pairs that a cursor has read in advance
//!
//! For cursors that read a batch of pairs with scattered entries. Keys and values are copied to one
//! buffer. Blobs are read one at a time, when the cursor reaches them.

use std::cell::Cell;
use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::contract::Projection;
use sheaf_log::blob::{BlobRef, Blobs};
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, PrefetchedEntry, SegmentTable};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::Guard;

/// Number of cache lines that are prefetched together, while the previous group is arriving or
/// being read. It is half of the lines that a processor loads at a time. A processor continues past
/// a prefetch as soon as it knows the page. It therefore resolves several pages in parallel for
/// entries that are prefetched one right after the other; between reads it would wait for each.
const GROUP_LINES: usize = 12;
/// Number of entries of a usual batch.
const USUAL_BATCH: usize = 64;
/// Number of entries of a batch that are tested for being in memory. Each test is a system call.
const CACHE_PROBES: usize = 2;
/// Number of further batches for which the result "not in memory" is used.
const ABSENT_BATCHES: u32 = 64;
/// Number of further batches for which the result "in memory" is used. It doubles with each equal
/// result, up to the maximum.
const PRESENT_BATCHES: u32 = 16;
const MAX_PRESENT_BATCHES: u32 = 256;
/// Maximum capacity in bytes of a buffer that is kept for the next batch.
const MAX_KEPT_BUFFER: usize = 1 << 20;

/// A pair in the buffer: the key, then the value.
#[derive(Clone, Copy, Debug)]
struct BufferedPair {
    start: usize,
    key: usize,
    value: usize,
    rest: OnVisit,
}

/// Action of the cursor when it reaches a pair.
#[derive(Clone, Copy, Debug)]
enum OnVisit {
    /// None: the value is in the buffer.
    Nothing,
    /// Read the blob.
    Blob(BlobRef),
    /// Report the damage of this index. The key is that of the previous pair, if there is one.
    Damaged(usize),
}

/// Pairs of a batch, and the position of the cursor in them.
#[derive(Debug)]
pub struct PairBuffer {
    projection: Projection,
    bytes: Vec<u8>,
    pairs: Vec<BufferedPair>,
    /// Index of the next pair in `pairs`. The current one is before it.
    next: usize,
    /// Value of the current pair, if it is a blob.
    blob_value: Vec<u8>,
    /// Damage of this batch; `None` after it was reported.
    damages: Vec<Option<Error>>,
}

impl PairBuffer {
    /// Returns an empty buffer.
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

    /// Starts a new batch.
    pub fn clear(&mut self) {
        if self.bytes.capacity() > MAX_KEPT_BUFFER {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.pairs.clear();
        self.damages.clear();
        self.next = 0;
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the number of pairs of this batch that the cursor has passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.next
    }

    /// Returns true if there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Reserves memory for `count` pairs of about the present length.
    pub fn reserve(&mut self, count: usize) {
        self.pairs.reserve(count);
        self.bytes.reserve((self.bytes.len() * count).min(MAX_KEPT_BUFFER / 16));
    }

    /// Appends a pair.
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

    /// Records the result of reading a pair. If the pair is damaged, appends the damage, which the
    /// cursor reports when it reaches it.
    ///
    /// # Errors
    ///
    /// Returns the error if it is not [`Error::Corrupt`].
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

    /// Sorts the pairs behind the first `newest` ones into these. Of two pairs with the same key
    /// the first one remains.
    pub fn merge(&mut self, newest: usize, order: impl Fn(&[u8], &[u8]) -> Ordering) {
        if self.pairs.len() == newest {
            return;
        }
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.sort_by(|a, b| order(self.key_of(a), self.key_of(b)));
        // An entry for damage has no key: the pair behind it is compared with the pair before it.
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

    /// Moves to the next pair. Returns false if the batch has none. After damage the next call
    /// continues behind it.
    ///
    /// # Errors
    ///
    /// Returns the damage at this position, and the error of reading a blob.
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
            // The view of this cursor pins the blob, so it was not freed.
            None => return Err(blobs.missing_error(blob)),
        };
        Ok(())
    }

    /// Returns the key of the current pair.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.pair().0
    }

    /// Returns the value of the current pair.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.pair().1
    }

    /// Returns key and value of the current pair.
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

/// Calls `read` for each item in order, with its entry if that is in memory and valid. The entries
/// of the following items are prefetched by then. If entries tend not to be in memory, requests all
/// of them from the device first, so that it can read them in parallel.
///
/// # Errors
///
/// Returns the first error of `read`, and ends there.
pub fn read_ahead<'g, T>(
    items: &[T],
    (segments, guard): (&'g SegmentTable, &'g Guard),
    entry: impl Fn(&T) -> Option<Address>,
    mut read: impl FnMut(&T, Option<(Seq, Record<'g>)>) -> Result<()>,
) -> Result<()> {
    request_absent(items, (segments, guard), &entry);
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

/// Requests the entries of all items from the device if entries of this thread's batches tend not
/// to be in memory, and does not wait. Otherwise makes no system call, except for two tests in some
/// batches.
pub fn request_absent<T>(
    items: &[T],
    (segments, guard): (&SegmentTable, &Guard),
    entry: impl Fn(&T) -> Option<Address>,
) {
    let some = || items.iter().step_by(items.len().div_ceil(CACHE_PROBES).max(1)).filter_map(&entry);
    if !items.is_empty() && is_usually_absent(|| some().any(|address| !segments.is_cached(address, guard))) {
        items.iter().filter_map(&entry).for_each(|address| segments.will_need(address, guard));
    }
}

/// Result of a thread's last test.
#[derive(Clone, Copy, Debug)]
struct CacheProbe {
    is_absent: bool,
    /// Number of further batches for which it is used.
    left: u32,
    /// Number of batches for which it was used at first, if the entries were in memory.
    last: u32,
}

sheaf_platform::sync::thread_local! {
    static LAST_PROBE: Cell<CacheProbe> = const { Cell::new(CacheProbe { is_absent: false, left: 0, last: 0 }) };
}

/// Returns whether entries of this thread's batches tend not to be in memory. Calls `look` only
/// from time to time, since it makes system calls.
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
    use sheaf_log::types::{KeyspaceId, StoreId};
    use sheaf_platform::error::Damage;
    use sheaf_sim::SimDisk;

    fn holds_for(pieces: u32, answer: bool) {
        for _ in 0..pieces {
            assert_eq!(is_usually_absent(|| unreachable!("it holds")), answer);
        }
    }

    /// Returns the keys that a cursor sees, and `!` for damage.
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
        let damage = || Err(Error::corrupt(Path::new("/file"), 7, "record", Damage::bad_field("op", 1, 9)));
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
