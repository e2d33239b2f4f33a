//! # Pair walk: all pairs that an engine can still read
//!
//! ## Picture
//!
//! ```text
//!   pairs ───────> a [damaged] b ────────> c [damaged, end unknown]                first walk
//!                    walk the keys,              ... d <─────────── last           backward, then
//!                    get each value              halved repeatedly                from probed keys
//! ```
//!
//! A cursor continues behind damage and reports it. An unreadable value hides its pair: a second
//! walk, over the keys of the range, finds the key. A range without a readable key is a *gap*: the
//! visitor gets the keys around it.
//!
//! ## Costs
//!
//! One walk if nothing is damaged. Each damaged range costs a few cursors, and a range with an open
//! end up to [`MAX_PROBES`] probes. Ranges beyond [`MAX_RANGES`] are not walked again and become
//! gaps.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::open::into_damage;
use sheaf_engine::contract::{Bounds, Cursor, Engine, Projection};
use sheaf_log::blob_reader::{OpenBlob, StoredValue};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};

/// Maximum number of probes that find nothing.
const MAX_FAILED_PROBES: usize = 128;
/// Maximum number of probes per range.
const MAX_PROBES: usize = 4096;
/// Maximum number of ranges that are walked again.
const MAX_RANGES: usize = 1000;

/// Event of a walk.
pub(super) enum WalkEvent<'a> {
    /// Pair with the bytes of its value.
    Pair(&'a [u8], &'a [u8]),
    /// Pair with its opened blob.
    Blob(&'a [u8], OpenBlob),
    /// Key with an unreadable value.
    Lost(&'a [u8], Error),
    /// Damage.
    Damaged(&'a Error),
    /// Range of unreadable keys: both bounds, exclusive, and the text of the error.
    Unreadable(Option<&'a [u8]>, Option<&'a [u8]>, &'a str),
    /// The following keys are not in order.
    Unordered,
}

type WalkVisitor<'v> = dyn FnMut(WalkEvent<'_>) -> Result<()> + 'v;

/// Range of keys, both bounds exclusive; `None` is unbounded.
#[derive(Default)]
struct KeySpan {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    /// First damage in the range.
    why: String,
}

impl KeySpan {
    fn bounds(&self) -> Bounds {
        let bound = |key: &Option<Vec<u8>>| key.clone().map_or(Bound::Unbounded, Bound::Excluded);
        Bounds { low: bound(&self.low), high: bound(&self.high) }
    }
}

/// Returns the projection for a walk of `engine`. If a value may be a blob that does not fit into
/// memory, this is keys, with a get for each.
pub(super) fn walk_projection(engine: &Arc<dyn Engine>) -> Projection {
    let mut blobs = Vec::new();
    let is_known = engine.blobs(&mut blobs).is_ok();
    if engine.takes_blob_files() || !blobs.is_empty() || !is_known {
        Projection::Keys
    } else {
        Projection::Pairs
    }
}

/// Walks the keys of `engine` once and reports each damage once.
pub(super) fn verify_keys(engine: &Arc<dyn Engine>, visit: &mut WalkVisitor<'_>) -> Result<()> {
    let is_ordered = engine.capabilities().ordered;
    let mut walker =
        PairWalker { engine, visit, is_ordered, failed_probes: 0, rewalk: Vec::new(), gaps: Vec::new() };
    let mut all = KeySpan::default();
    if !walker.walk_range(&mut all, Projection::Keys, true)? {
        walker.gaps.push(all);
    }
    walker.report_gaps().map(drop)
}

/// Visits all pairs of `engine`. Returns false if there are gaps.
pub(super) fn walk(
    engine: &Arc<dyn Engine>,
    projection: Projection,
    visit: &mut WalkVisitor<'_>,
) -> Result<bool> {
    let is_ordered = engine.capabilities().ordered;
    let mut walker =
        PairWalker { engine, visit, is_ordered, failed_probes: 0, rewalk: Vec::new(), gaps: Vec::new() };
    let mut all = KeySpan::default();
    let is_done = walker.walk_range(&mut all, projection, true)?;
    if !is_ordered {
        return Ok(is_done && walker.gaps.is_empty());
    }
    let mut todo = std::mem::take(&mut walker.rewalk);
    if !is_done {
        todo.push(all);
    }
    if !todo.is_empty() {
        (walker.visit)(WalkEvent::Unordered)?;
    }
    for mut gap in todo {
        let is_open = gap.high.is_none();
        let is_walked = is_open && projection == Projection::Keys;
        // Forward over the keys, in case a value is damaged; then backward to the end of the
        // damage.
        if (is_walked || !walker.walk_range(&mut gap, Projection::Keys, true)?)
            && !walker.walk_range(&mut gap, Projection::Keys, false)?
        {
            match is_open {
                true => walker.probe(gap)?,
                false => walker.gaps.push(gap),
            }
        }
    }
    walker.report_gaps()
}

struct PairWalker<'a, 'v> {
    engine: &'a Arc<dyn Engine>,
    visit: &'a mut WalkVisitor<'v>,
    is_ordered: bool,
    failed_probes: usize,
    /// Ranges to walk by keys.
    rewalk: Vec<KeySpan>,
    /// Ranges without a readable key.
    gaps: Vec<KeySpan>,
}

impl<'a> PairWalker<'a, '_> {
    fn cursor(&mut self, gap: &mut KeySpan, projection: Projection) -> Result<Option<Box<dyn Cursor + 'a>>> {
        let bounds = if self.is_ordered { gap.bounds() } else { Bounds::all() };
        match self.engine.cursor(Seq::LATEST, bounds, projection) {
            Ok(cursor) => Ok(Some(cursor)),
            Err(error) => {
                gap.why = self.damaged(error)?;
                Ok(None)
            }
        }
    }

    /// Reports damage and returns its text.
    fn damaged(&mut self, error: Error) -> Result<String> {
        let error = into_damage(error)?;
        (self.visit)(WalkEvent::Damaged(&error))?;
        Ok(error.to_string())
    }

    /// Walks `gap` from one end and shrinks it by the keys that were read. Returns true if
    /// everything was read.
    fn walk_range(&mut self, gap: &mut KeySpan, projection: Projection, is_up: bool) -> Result<bool> {
        let Some(mut cursor) = self.cursor(gap, projection)? else { return Ok(false) };
        let mut why: Option<String> = None;
        loop {
            match if is_up { cursor.next() } else { cursor.prev() } {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let text = self.damaged(error)?;
                    why.get_or_insert(text);
                    continue; // continue behind it
                }
            }
            let key = cursor.key();
            if let Some(why) = why.take() {
                let (here, reached) = (Some(key.to_vec()), if is_up { &gap.low } else { &gap.high }.clone());
                let (low, high) = if is_up { (reached, here) } else { (here, reached) };
                self.walk_around_damage(KeySpan { low, high, why }, projection)?;
            }
            match projection {
                Projection::Pairs => (self.visit)(WalkEvent::Pair(key, cursor.value()))?,
                Projection::Keys => self.read_value(key)?,
            }
            let reached = if is_up { &mut gap.low } else { &mut gap.high };
            let reached = reached.get_or_insert_default();
            reached.clear();
            reached.extend_from_slice(key);
        }
        let is_done = why.is_none();
        gap.why = why.unwrap_or_default();
        Ok(is_done)
    }

    /// Handles a damaged range with intact keys on both sides.
    fn walk_around_damage(&mut self, gap: KeySpan, projection: Projection) -> Result<()> {
        if projection == Projection::Pairs && self.is_ordered && self.rewalk.len() < MAX_RANGES {
            self.rewalk.push(gap);
        } else if self.gaps.len() < MAX_RANGES {
            self.gaps.push(gap);
        } else {
            (self.visit)(WalkEvent::Unreadable(gap.low.as_deref(), gap.high.as_deref(), &gap.why))?;
        }
        Ok(())
    }

    /// Reports the gaps, and overlapping ones as one. Returns true if there are none.
    fn report_gaps(&mut self) -> Result<bool> {
        let mut gaps = std::mem::take(&mut self.gaps);
        gaps.sort_by(|a, b| a.low.cmp(&b.low));
        gaps.dedup_by(|next, gap| {
            let touches = gap.high.is_none() || next.low < gap.high;
            if touches && gap.high.is_some() && (next.high.is_none() || next.high > gap.high) {
                gap.high = next.high.take();
            }
            touches
        });
        for gap in &gaps {
            (self.visit)(WalkEvent::Unreadable(gap.low.as_deref(), gap.high.as_deref(), &gap.why))?;
        }
        Ok(gaps.is_empty())
    }

    /// Reads the value of an existing key.
    fn read_value(&mut self, key: &[u8]) -> Result<()> {
        let (mut bytes, mut file) = (None, None);
        let looked = self.engine.get_stored(Seq::LATEST, key, &mut |stored| match stored {
            StoredValue::Bytes(found) => bytes = Some(found.to_vec()),
            StoredValue::Blob(found) => file = Some(found),
        });
        match (looked, bytes, file) {
            (Err(error), ..) => (self.visit)(WalkEvent::Lost(key, into_damage(error)?)),
            (_, Some(bytes), _) => (self.visit)(WalkEvent::Pair(key, &bytes)),
            (_, _, Some(file)) => (self.visit)(WalkEvent::Blob(key, file)),
            (Ok(_), None, None) => Ok(()),
        }
    }

    /// Searches for readable keys between two damaged places.
    fn probe(&mut self, gap: KeySpan) -> Result<()> {
        let mut gaps = VecDeque::from([gap]);
        for _ in 0..MAX_PROBES {
            let Some(mut gap) = gaps.pop_front() else { return Ok(()) };
            let middle = middle_key(gap.low.as_deref(), gap.high.as_deref())
                .filter(|_| self.failed_probes < MAX_FAILED_PROBES);
            let Some(middle) = middle else {
                self.gaps.push(gap);
                continue;
            };
            let (high, why) = (gap.high.take(), gap.why);
            let mut upper = KeySpan { low: Some(middle.clone()), high, why: why.clone() };
            let mut lower = KeySpan { low: gap.low, high: Some(middle.clone()), why };
            let was = upper.low.clone();
            let is_upper_done = self.walk_range(&mut upper, Projection::Keys, true)?;
            let has_moved = upper.low != was;
            // `middle` itself may be a key: it belongs to the lower half.
            lower.high = successor_key(middle);
            let was = lower.high.clone();
            let is_lower_done = self.walk_range(&mut lower, Projection::Keys, false)?;
            if !has_moved && lower.high == was && !is_upper_done && !is_lower_done {
                self.failed_probes += 1;
            }
            gaps.extend((!is_lower_done).then_some(lower));
            gaps.extend((!is_upper_done).then_some(upper));
        }
        self.gaps.extend(gaps);
        Ok(())
    }
}

/// Returns the lowest key above `key`.
fn successor_key(mut key: Vec<u8>) -> Option<Vec<u8>> {
    key.push(0);
    Some(key)
}

/// Returns a key about halfway between two others, or `None` if their first eight differing bytes
/// leave no room.
fn middle_key(low: Option<&[u8]>, high: Option<&[u8]>) -> Option<Vec<u8>> {
    let low = low.unwrap_or_default();
    let shared = high.map_or(0, |high| low.iter().zip(high).take_while(|(a, b)| a == b).count());
    let word = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = key.get(shared..).unwrap_or_default();
        let len = rest.len().min(8);
        bytes[..len].copy_from_slice(&rest[..len]);
        u64::from_be_bytes(bytes)
    };
    let (from, to) = (word(low), high.map_or(u64::MAX, word));
    let middle = from + to.checked_sub(from)? / 2;
    let mut key = low[..shared].to_vec();
    key.extend_from_slice(&middle.to_be_bytes());
    (middle > from).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_key_is_strictly_between_two_keys() {
        for (low, high) in [
            (&b""[..], &b"\x01"[..]),
            (b"a", b"b"),
            (b"key-000001", b"key-000009"),
            (b"key", b"key-1"),
            (b"\xff\xff", b"\xff\xff\xff\x02"),
        ] {
            let middle = middle_key(Some(low), Some(high)).expect("there is room");
            assert!(&middle[..] > low && &middle[..] < high, "{low:?} {middle:?} {high:?}");
        }
        assert!(middle_key(None, None).is_some() && middle_key(Some(b"z"), None).is_some());
        assert!(middle_key(Some(b"a"), Some(b"a\0\0\0\0\0\0\0\x01")).is_none());
    }
}
