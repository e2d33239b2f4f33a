//! # Walk: every pair that an engine can still give, in spite of what it cannot read
//!
//! ## Picture
//!
//! ```text
//!   pairs ───────> a [damaged] b ────────> c [damaged, up to an unknown place]        the first walk
//!                    keys, and a look                  ... d <─────────── last        the open end: backwards, then
//!                    at each value                     halved again and again         from keys in between
//! ```
//!
//! A cursor continues behind damage and reports it. A value that cannot be read costs its pair: a
//! second walk, over the keys of the stretch, finds the key. A stretch where no keys can be
//! read is a *gap*: the visitor gets the keys around it.
//!
//! ## Costs
//!
//! One walk, as long as nothing is damaged. Each stretch costs a few descents, and for an open end
//! some hundred at most are tried in vain. Stretches beyond [`MOST`] are not walked again: each of
//! them is a gap.

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
/// Stretches that are walked again.
const MOST: usize = 1000;

/// What a walk meets.
pub(super) enum Met<'a> {
    /// A pair whose value is these bytes.
    Pair(&'a [u8], &'a [u8]),
    /// One whose value is a file.
    File(&'a [u8], ValueFile),
    /// The value cannot be read.
    Lost(&'a [u8], Error),
    /// A damaged place.
    Damaged(&'a Error),
    /// Keys above the first and below the second one cannot be read, as the error's text says.
    Gap(Option<&'a [u8]>, Option<&'a [u8]>, &'a str),
    /// From now on keys come in no order.
    Disorder,
}

type Visit<'v> = dyn FnMut(Met<'_>) -> Result<()> + 'v;

/// Keys between two others, both left out. No upper one: all above.
#[derive(Default)]
struct Gap {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    /// The first damage in it.
    why: String,
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

/// Walks the keys of `engine` once, and shows each damaged place once.
pub(super) fn survey(engine: &Arc<dyn Engine>, visit: &mut Visit<'_>) -> Result<()> {
    let is_ordered = engine.capabilities().ordered;
    let mut walker = Walker { engine, visit, is_ordered, vain: 0, again: Vec::new(), gaps: Vec::new() };
    let mut all = Gap::default();
    if !walker.go(&mut all, Want::Keys, true)? {
        walker.gaps.push(all);
    }
    walker.tell_gaps().map(drop)
}

/// Goes through all pairs of `engine`. False if there are places where no keys could be read.
pub(super) fn walk(engine: &Arc<dyn Engine>, want: Want, visit: &mut Visit<'_>) -> Result<bool> {
    let is_ordered = engine.capabilities().ordered;
    let mut walker = Walker { engine, visit, is_ordered, vain: 0, again: Vec::new(), gaps: Vec::new() };
    let mut all = Gap::default();
    let is_done = walker.go(&mut all, want, true)?;
    if !is_ordered {
        return Ok(is_done && walker.gaps.is_empty());
    }
    let mut todo = std::mem::take(&mut walker.again);
    if !is_done {
        todo.push(all);
    }
    if !todo.is_empty() {
        (walker.visit)(Met::Disorder)?;
    }
    for mut gap in todo {
        let is_open = gap.high.is_none();
        let is_walked = is_open && want == Want::Keys;
        // The keys, if it is about a value; then backwards, to damage without a known end.
        if (is_walked || !walker.go(&mut gap, Want::Keys, true)?)
            && !walker.go(&mut gap, Want::Keys, false)?
        {
            match is_open {
                true => walker.probe(gap)?,
                false => walker.gaps.push(gap),
            }
        }
    }
    walker.tell_gaps()
}

struct Walker<'a, 'v> {
    engine: &'a Arc<dyn Engine>,
    visit: &'a mut Visit<'v>,
    is_ordered: bool,
    vain: usize,
    /// Stretches for a walk over keys.
    again: Vec<Gap>,
    /// Stretches without a key that could be read.
    gaps: Vec<Gap>,
}

impl<'a> Walker<'a, '_> {
    fn cursor(&mut self, gap: &mut Gap, want: Want) -> Result<Option<Box<dyn Cursor + 'a>>> {
        let bounds = if self.is_ordered { gap.bounds() } else { Bounds::all() };
        match self.engine.cursor(Seq::LATEST, bounds, want) {
            Ok(cursor) => Ok(Some(cursor)),
            Err(error) => {
                gap.why = self.damaged(error)?;
                Ok(None)
            }
        }
    }

    /// Shows a damaged place; its text.
    fn damaged(&mut self, error: Error) -> Result<String> {
        let error = damage(error)?;
        (self.visit)(Met::Damaged(&error))?;
        Ok(error.to_string())
    }

    /// Goes through `gap` from one end, and makes it smaller by what was read. True if that was all of it.
    fn go(&mut self, gap: &mut Gap, want: Want, is_up: bool) -> Result<bool> {
        let Some(mut cursor) = self.cursor(gap, want)? else { return Ok(false) };
        let mut why: Option<String> = None;
        loop {
            match if is_up { cursor.next() } else { cursor.prev() } {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let text = self.damaged(error)?;
                    why.get_or_insert(text);
                    continue; // behind it
                }
            }
            let key = cursor.key();
            if let Some(why) = why.take() {
                let (here, reached) = (Some(key.to_vec()), if is_up { &gap.low } else { &gap.high }.clone());
                let (low, high) = if is_up { (reached, here) } else { (here, reached) };
                self.stretch(Gap { low, high, why }, want)?;
            }
            match want {
                Want::Pairs => (self.visit)(Met::Pair(key, cursor.value()))?,
                Want::Keys => self.look(key)?,
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

    /// A damaged stretch, with the intact keys on both sides.
    fn stretch(&mut self, gap: Gap, want: Want) -> Result<()> {
        if want == Want::Pairs && self.is_ordered && self.again.len() < MOST {
            self.again.push(gap);
        } else if self.gaps.len() < MOST {
            self.gaps.push(gap);
        } else {
            (self.visit)(Met::Gap(gap.low.as_deref(), gap.high.as_deref(), &gap.why))?;
        }
        Ok(())
    }

    /// Shows the gaps, those that overlap as one. True if there are none.
    fn tell_gaps(&mut self) -> Result<bool> {
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
            (self.visit)(Met::Gap(gap.low.as_deref(), gap.high.as_deref(), &gap.why))?;
        }
        Ok(gaps.is_empty())
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
            let Some(mut gap) = gaps.pop_front() else { return Ok(()) };
            let middle = between(gap.low.as_deref(), gap.high.as_deref()).filter(|_| self.vain < VAIN);
            let Some(middle) = middle else {
                self.gaps.push(gap);
                continue;
            };
            let (high, why) = (gap.high.take(), gap.why);
            let mut upper = Gap { low: Some(middle.clone()), high, why: why.clone() };
            let mut lower = Gap { low: gap.low, high: Some(middle.clone()), why };
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
        self.gaps.extend(gaps);
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
