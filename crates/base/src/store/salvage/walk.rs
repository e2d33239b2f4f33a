//! # Walk: every pair that an engine can still give, in spite of what it cannot read
//!
//! ## Picture
//!
//! ```text
//!   first ───────────────> a [damaged: a leaf, an interval, a table] b <─────────────── last
//!         pairs, or keys       keys between a and b, halved again       keys, backwards
//!         and a look at each   and again in search of more
//! ```
//!
//! A value that cannot be read costs its pair, whose key is known. A place where no keys can be read costs what stands there; for what
//! stands behind it the walk begins anew from the other end, and, where there are several such places, from keys in between.
//!
//! ## Costs
//!
//! One walk, as long as nothing is damaged. Each place costs a few descents, and some hundred at most are tried in vain.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::open::damage;
use crate::engine::{Bounds, Cursor, Engine, Want};
use crate::error::{Error, Result};
use crate::types::Seq;
use crate::value::{Stored, ValueFile};

/// Keys in between that are tried in vain.
const VAIN: usize = 128;
/// Keys in between that are tried at all.
const TRIES: usize = 4096;

/// What a walk meets.
pub(super) enum Met<'a> {
    /// A pair whose value is these bytes.
    Pair(&'a [u8], &'a [u8]),
    /// One whose value is a file.
    File(&'a [u8], ValueFile),
    /// The value cannot be read.
    Lost(&'a [u8], Error),
    /// From now on keys come in no order.
    Disorder,
}

type Visit<'v> = dyn FnMut(Met<'_>) -> Result<()> + 'v;

/// Keys between two others, both left out. No upper one: all above.
struct Gap {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

impl Gap {
    fn bounds(&self) -> Bounds {
        let bound = |key: &Option<Vec<u8>>| key.clone().map_or(Bound::Unbounded, Bound::Excluded);
        Bounds { low: bound(&self.low), high: bound(&self.high) }
    }
}

/// How to walk `engine`: keys and a look at each, where a value may be a file that is larger than memory.
pub(super) fn way(engine: &Arc<dyn Engine>) -> Want {
    let mut staged = Vec::new();
    let is_known = engine.blobs(&mut staged).is_ok();
    if engine.adopts_files() || !staged.is_empty() || !is_known { Want::Keys } else { Want::Pairs }
}

/// Goes through all pairs of `engine`. False if there are places where no keys could be read.
pub(super) fn walk(engine: &Arc<dyn Engine>, want: Want, visit: &mut Visit<'_>) -> Result<bool> {
    let mut walker = Walker { engine, visit, vain: 0 };
    let mut all = Gap { low: None, high: None };
    let is_done = walker.go(&mut all, want, true)?;
    if is_done || !engine.capabilities().ordered {
        return Ok(is_done);
    }
    if want == Want::Pairs && walker.go(&mut all, Want::Keys, true)? {
        return Ok(true); // it was about a value
    }
    (walker.visit)(Met::Disorder)?;
    if walker.go(&mut all, Want::Keys, false)? {
        return Ok(true); // an error that has gone: a device may answer in the end
    }
    walker.probe(all)?;
    Ok(false)
}

struct Walker<'a, 'v> {
    engine: &'a Arc<dyn Engine>,
    visit: &'a mut Visit<'v>,
    vain: usize,
}

impl<'a> Walker<'a, '_> {
    fn cursor(&self, bounds: Bounds, want: Want) -> Result<Option<Box<dyn Cursor + 'a>>> {
        match self.engine.cursor(Seq::LATEST, bounds, want) {
            Ok(cursor) => Ok(Some(cursor)),
            Err(error) => damage(error).map(|_| None),
        }
    }

    /// Goes through `gap` from one end, and makes it smaller by what was read. True if that was all of it.
    fn go(&mut self, gap: &mut Gap, want: Want, is_up: bool) -> Result<bool> {
        let bounds = if self.engine.capabilities().ordered { gap.bounds() } else { Bounds::all() };
        let Some(mut cursor) = self.cursor(bounds, want)? else { return Ok(false) };
        loop {
            match if is_up { cursor.next() } else { cursor.prev() } {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(error) => {
                    damage(error)?;
                    return Ok(false);
                }
            }
            match want {
                Want::Pairs => (self.visit)(Met::Pair(cursor.key(), cursor.value()))?,
                Want::Keys => self.look(cursor.key())?,
            }
            let reached = if is_up { &mut gap.low } else { &mut gap.high };
            let reached = reached.get_or_insert_default();
            reached.clear();
            reached.extend_from_slice(cursor.key());
        }
    }

    /// The value of a key that is there.
    fn look(&mut self, key: &[u8]) -> Result<()> {
        let (mut bytes, mut file) = (None, None);
        let looked = self.engine.look(Seq::LATEST, key, &mut |stored| match stored {
            Stored::Bytes(found) => bytes = Some(found.to_vec()),
            Stored::File(found) => file = Some(found),
        });
        match (looked, bytes, file) {
            (Err(error), ..) => (self.visit)(Met::Lost(key, damage(error)?)),
            (_, Some(bytes), _) => (self.visit)(Met::Pair(key, &bytes)),
            (_, _, Some(file)) => (self.visit)(Met::File(key, file)),
            (Ok(_), None, None) => Ok(()),
        }
    }

    /// Looks for places between two damaged ones.
    fn probe(&mut self, gap: Gap) -> Result<()> {
        let mut gaps = VecDeque::from([gap]);
        for _ in 0..TRIES {
            let Some(mut gap) = gaps.pop_front().filter(|_| self.vain < VAIN) else { return Ok(()) };
            let Some(middle) = between(gap.low.as_deref(), gap.high.as_deref()) else { continue };
            let high = gap.high.take();
            let (mut upper, mut lower) =
                (Gap { low: Some(middle.clone()), high }, Gap { low: gap.low, high: Some(middle.clone()) });
            let was = upper.low.clone();
            let is_upper_done = self.go(&mut upper, Want::Keys, true)?;
            let has_moved = upper.low != was;
            // `middle` itself may be a key: it belongs to the lower half.
            lower.high = next_above(middle);
            let was = lower.high.clone();
            let is_lower_done = self.go(&mut lower, Want::Keys, false)?;
            if !has_moved && lower.high == was && !is_upper_done && !is_lower_done {
                self.vain += 1;
            }
            gaps.extend((!is_lower_done).then_some(lower));
            gaps.extend((!is_upper_done).then_some(upper));
        }
        Ok(())
    }
}

/// The lowest key above `key`.
fn next_above(mut key: Vec<u8>) -> Option<Vec<u8>> {
    key.push(0);
    Some(key)
}

/// A key about halfway between two others; none if they are neighbours, as far as that matters.
fn between(low: Option<&[u8]>, high: Option<&[u8]>) -> Option<Vec<u8>> {
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
    fn what_is_between_two_keys_is_above_the_one_and_below_the_other() {
        for (low, high) in [
            (&b""[..], &b"\x01"[..]),
            (b"a", b"b"),
            (b"key-000001", b"key-000009"),
            (b"key", b"key-1"),
            (b"\xff\xff", b"\xff\xff\xff\x02"),
        ] {
            let middle = between(Some(low), Some(high)).expect("there is room");
            assert!(&middle[..] > low && &middle[..] < high, "{low:?} {middle:?} {high:?}");
        }
        assert!(between(None, None).is_some() && between(Some(b"z"), None).is_some());
        assert!(between(Some(b"a"), Some(b"a\0\0\0\0\0\0\0\x01")).is_none());
    }
}
