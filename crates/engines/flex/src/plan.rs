//! # Plan: what becomes of the intervals that a step touches
//!
//! ## The rule
//!
//! For each touched interval, with c bytes of changes and l bytes that stand there:
//!
//! ```text
//!  insert    nothing stands there, or all changes lie behind the last key of the last interval and are many:
//!            new intervals, nothing is read or moved                                                costs c
//!  append    the run goes behind the others, nothing is read                                        costs c
//!  rewrite   all is read, merged, and written as one run for each sixteen pairs                     costs l + c
//! ```
//!
//! Append is taken while it is at most half of what a rewrite costs, the interval has few runs and few versions, and few of
//! the changes are removals; else it is time to rewrite. Where staged values are named it is always: only a rewrite finds out which
//! of them are superseded, and they are large. What a rewrite leaves small is merged with a neighbour. `Counts` says
//! how often each was taken.
//!
//! ## Versions
//!
//! Of each key the newest version goes into the space, and of those before it what a view needs. A rewrite lets go what no
//! view needs any more, and a removal under which nothing is left.

use std::ops::Range;

use sheaf_base::error::Result;
use sheaf_base::memtable::prefix::{Sep, between};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;
use sheaf_flexspace::tree::Entry;

use crate::block::{Block, BlockRef};
use crate::changes::{Batch, Keeper, merge};
use crate::engine::FlexEngine;
use crate::index::{Index, Interval};
use crate::run::{self, Pair, RUN_HEAD};
use crate::slots::{Figures, UNKNOWN};
use crate::table::{Change, Piece, Plan};

/// What a step plans with.
pub(crate) struct Planning<'a> {
    pub(crate) index: &'a Index,
    pub(crate) batch: &'a Batch,
    pub(crate) views: &'a Views,
    pub(crate) guard: &'a Guard,
}

impl Planning<'_> {
    /// The first change from `from` on that belongs to the interval `next` or one behind.
    fn end_of(&self, from: usize, next: Option<&Entry<Interval>>) -> usize {
        next.map_or(self.batch.len(), |next| self.batch.end_before(from, &self.index.sep(&next.item)))
    }
}

/// Neighbouring intervals that become one, and the changes of all of them.
struct Stretch {
    intervals: Vec<Entry<Interval>>,
    /// What stands in them; first that of an interval that is only planned, if there is `before`.
    blocks: Vec<BlockRef>,
    changes: Range<usize>,
    /// The separator of the last piece planned before, which is taken back into this.
    before: Option<Option<Vec<u8>>>,
    /// The last step of growing: what it takes out of the plan must not be lost to a block that cannot be read.
    has_looked_back: bool,
}

impl Stretch {
    /// The versions that stay, and which staged values go.
    fn merge<'p>(&'p self, now: &'p Planning<'_>, dead: &mut Vec<(Seq, u64)>) -> Vec<Pair<'p>> {
        let blocks: Vec<&Block> = self.blocks.iter().map(|block| &**block).collect();
        merge(&blocks, now.batch.pairs(self.changes.clone()), &mut Keeper { views: now.views, dead })
    }

    fn last(&self) -> &Entry<Interval> {
        &self.intervals[self.intervals.len() - 1]
    }

    /// Versions that stand there.
    fn stored(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum()
    }
}

impl FlexEngine {
    /// Plans the changes of a batch, the first ones of many; how many.
    pub(crate) fn plan(&self, now: &Planning<'_>, plan: &mut Plan) -> Result<usize> {
        let batch = now.batch;
        let mut from = 0;
        while from < batch.len() && plan.counts.bytes < self.sizes.step_written {
            from = match now.index.find(batch.key(from)) {
                None => self.plan_new(now, from..batch.len(), None, plan),
                Some(entry) => {
                    let to = now.end_of(from, now.index.next(&entry).as_ref());
                    self.plan_interval(now, from..to, &entry, plan)?
                }
            };
        }
        for at in 0..from {
            if let Content::Staged(blob) = batch.pair(at).content {
                plan.named.push(blob.id);
            }
        }
        Ok(from)
    }

    /// Plans new intervals: the first ones, or those behind `last` and its last key. The first change that is left.
    fn plan_new(
        &self,
        now: &Planning<'_>,
        changes: Range<usize>,
        last: Option<(&Entry<Interval>, &[u8])>,
        plan: &mut Plan,
    ) -> usize {
        let keeper = &mut Keeper { views: now.views, dead: &mut plan.dead };
        let merged = merge(&[], now.batch.pairs(changes.clone()), keeper);
        let pieces = self.cut(&merged, last.map(|(_, key)| key));
        if !pieces.is_empty() {
            plan.counts.inserted += pieces.len() as u64;
            plan.counts.bytes += bytes_of(&pieces);
            let at = last.map_or(0, |(entry, _)| entry.start + entry.len);
            let sep = last.map_or(Sep::LOWEST, |(entry, _)| entry.item.sep);
            plan.changes.push(Change { at, len: 0, old: Vec::new(), sep, appends: false, pieces });
        }
        changes.end
    }

    /// Plans what becomes of one interval, and maybe of its neighbours; the first change that is left.
    fn plan_interval(
        &self,
        now: &Planning<'_>,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        plan: &mut Plan,
    ) -> Result<usize> {
        if plan.appends {
            return Ok(self.plan_append(now, changes, entry, plan));
        }
        if let Some(last) = self.is_behind(now, &changes, entry)? {
            return Ok(self.plan_new(now, changes, Some((entry, &last)), plan));
        }
        if self.appends(now, &changes, entry, plan.is_tight) {
            return Ok(self.plan_append(now, changes, entry, plan));
        }
        match self.plan_rewrite(now, changes.clone(), entry, plan) {
            // What stands there cannot be read; what is new can still be kept behind it.
            Err(error) if error.is_corrupt() => Ok(self.plan_append(now, changes, entry, plan)),
            other => other,
        }
    }

    /// The last key of the last interval, if that is nearly full and many changes lie behind it.
    fn is_behind(
        &self,
        now: &Planning<'_>,
        changes: &Range<usize>,
        entry: &Entry<Interval>,
    ) -> Result<Option<Vec<u8>>> {
        let is_cached = self.shelf.slots.get(entry.item.slot).is_cached();
        if changes.len() * 4 < self.sizes.pairs || !is_cached || now.index.next(entry).is_some() {
            return Ok(None);
        }
        let block = now.index.block(entry, &self.shelf, now.guard)?;
        let last = block.len().checked_sub(1).map(|last| block.pair(last).key);
        let is_full = block.len() * 4 >= self.sizes.pairs * 3;
        Ok(last.filter(|last| is_full && *last < now.batch.key(changes.start)).map(<[u8]>::to_vec))
    }

    /// Whether changes are appended to an interval and not merged with it: see the rule.
    fn appends(
        &self,
        now: &Planning<'_>,
        changes: &Range<usize>,
        entry: &Entry<Interval>,
        is_tight: bool,
    ) -> bool {
        let figures = self.shelf.slots.get(entry.item.slot).figures();
        let stored = figures.entries as usize;
        let cost = RUN_HEAD + now.batch.pairs(changes.clone()).map(|pair| pair.len()).sum::<usize>();
        let tombs = now.batch.pairs(changes.clone()).filter(Pair::is_tomb).count();
        let len = usize::try_from(entry.len).unwrap_or(usize::MAX / 2);
        let may_append = !figures.is_staged
            && figures.runs < self.sizes.runs
            && stored + changes.len() <= 2 * self.sizes.pairs
            && len + cost <= 2 * self.sizes.bytes
            && tombs * 4 <= stored;
        let left = len / stored.max(1) * stored.saturating_sub(tombs);
        let makes_room = (left + cost) * 2 <= len || len * 4 <= cost;
        (may_append && cost <= len) || (is_tight && !makes_room)
    }

    /// Plans a run behind the others; the first change that is left.
    fn plan_append(
        &self,
        now: &Planning<'_>,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        plan: &mut Plan,
    ) -> usize {
        let mut data = Vec::new();
        run::encode(false, now.batch.pairs(changes.clone()), &mut data);
        let slot = self.shelf.slots.get(entry.item.slot);
        let figures = slot.figures();
        let block = slot.block(now.guard).and_then(|block| {
            let mut whole = Vec::with_capacity(block.data().len() + data.len());
            whole.extend_from_slice(block.data());
            whole.extend_from_slice(&data);
            self.shelf.block_of(&whole).ok()
        });
        let added = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        let figures = Figures {
            entries: figures.entries.saturating_add(added),
            live: block.as_ref().map_or(UNKNOWN, |block| block.live()),
            runs: figures.runs + 1,
            is_staged: figures.is_staged || now.batch.pairs(changes.clone()).any(|pair| pair.is_staged()),
        };
        plan.counts.appended += 1;
        plan.counts.bytes += data.len() as u64;
        plan.changes.push(Change {
            at: entry.start,
            len: entry.len,
            old: vec![entry.item.slot],
            sep: entry.item.sep,
            appends: true,
            pieces: vec![Piece { sep: None, data, figures, block }],
        });
        changes.end
    }

    /// Whether so many pairs of so many bytes, and those of `other`, are one interval.
    fn fit(&self, pairs: usize, bytes: usize, other: &Entry<Interval>) -> bool {
        let entries = self.shelf.slots.get(other.item.slot).figures().entries as usize;
        pairs + entries <= self.sizes.pairs && bytes as u64 + other.len <= self.sizes.bytes as u64
    }

    /// Plans one interval's rewriting, and that of neighbours that fit; the first change that is left.
    fn plan_rewrite(
        &self,
        now: &Planning<'_>,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        plan: &mut Plan,
    ) -> Result<usize> {
        let block = now.index.block(entry, &self.shelf, now.guard)?.keep();
        let mut stretch = Stretch {
            intervals: vec![*entry],
            blocks: vec![block],
            changes,
            before: None,
            has_looked_back: false,
        };
        loop {
            let mut dead = Vec::new();
            let merged = stretch.merge(now, &mut dead);
            let (pairs, bytes) = (merged.len(), merged.iter().map(Pair::len).sum::<usize>());
            let is_small = pairs * 2 <= self.sizes.pairs && bytes * 2 <= self.sizes.bytes;
            let may_grow = is_small && !stretch.has_looked_back;
            // Nothing can be the first interval: that begins with the lowest key.
            let must_grow = pairs == 0 && stretch.intervals[0].start == 0;
            let next = now.index.next(stretch.last());
            let fits = |next: &Entry<Interval>| may_grow && self.fit(pairs, bytes + RUN_HEAD, next);
            if let Some(next) = next.filter(|next| must_grow || fits(next)) {
                drop(merged);
                stretch.changes.end = now.end_of(stretch.changes.end, now.index.next(&next).as_ref());
                stretch.blocks.push(now.index.block(&next, &self.shelf, now.guard)?.keep());
                stretch.intervals.push(next);
                plan.counts.merged += 1;
            } else if may_grow {
                drop(merged);
                self.look_back(now, &mut stretch, bytes, plan)?;
            } else {
                let pieces = self.cut(&merged, None);
                drop(merged);
                plan.dead.extend(dead);
                plan.rewrite(&stretch.intervals, stretch.before, pieces);
                return Ok(stretch.changes.end);
            }
        }
    }

    /// Merges the interval before a small stretch into it, if both together are one: that of the index, or, if it was planned
    /// just before, the last piece of that.
    fn look_back(
        &self,
        now: &Planning<'_>,
        stretch: &mut Stretch,
        bytes: usize,
        plan: &mut Plan,
    ) -> Result<()> {
        stretch.has_looked_back = true;
        let Some(previous) = now.index.previous(&stretch.intervals[0]) else { return Ok(()) };
        let stored = stretch.stored();
        let Some(change) = plan.changes.last_mut().filter(|change| change.at + change.len > previous.start)
        else {
            if self.fit(stored, bytes + RUN_HEAD, &previous) {
                stretch.blocks.insert(0, now.index.block(&previous, &self.shelf, now.guard)?.keep());
                stretch.intervals.insert(0, previous);
                plan.counts.merged += 1;
            }
            return Ok(());
        };
        let fits = |piece: &mut Piece| {
            piece.figures.entries as usize + stored <= self.sizes.pairs
                && piece.data.len() + bytes + RUN_HEAD <= self.sizes.bytes
                && piece.block.is_some()
        };
        if !change.appends
            && let Some(Piece { sep, block: Some(block), .. }) = change.pieces.pop_if(fits)
        {
            stretch.blocks.insert(0, block);
            stretch.before = Some(sep);
            plan.counts.merged += 1;
        }
        Ok(())
    }

    /// Cuts sorted pairs into intervals of about the same size. `low` is the key before them all, if they begin
    /// an interval of their own.
    fn cut(&self, pairs: &[Pair<'_>], low: Option<&[u8]>) -> Vec<Piece> {
        let parts = pairs.len().div_ceil(self.sizes.pairs).max(1);
        let each = pairs.len().div_ceil(parts).max(1);
        let mut pieces = Vec::with_capacity(parts);
        let mut from = 0;
        while from < pairs.len() {
            let (mut to, mut bytes) = (from, 0);
            while to < pairs.len() {
                // Versions of one key stay together.
                let is_new = to == from || pairs[to].key != pairs[to - 1].key;
                bytes += pairs[to].len();
                if is_new && to > from && (to - from >= each || bytes > self.sizes.bytes) {
                    break;
                }
                to += 1;
            }
            let before = if from > 0 { Some(pairs[from - 1].key) } else { low };
            let sep = before.map(|before| between(before, pairs[from].key));
            pieces.push(self.piece(&pairs[from..to], sep));
            from = to;
        }
        pieces
    }

    fn piece(&self, pairs: &[Pair<'_>], sep: Option<Vec<u8>>) -> Piece {
        let mut data = Vec::with_capacity(pairs.iter().map(Pair::len).sum::<usize>() + RUN_HEAD);
        run::encode(true, pairs.iter().copied(), &mut data);
        let block = self.shelf.block_of(&data).ok();
        let figures = Figures {
            entries: u32::try_from(pairs.len()).unwrap_or(u32::MAX),
            live: block.as_ref().map_or(UNKNOWN, |block| block.live()),
            runs: 1,
            is_staged: pairs.iter().any(Pair::is_staged),
        };
        Piece { sep, data, figures, block }
    }
}

impl Plan {
    /// `pieces` take the place of `intervals`; and, if there is `before`, of the last piece planned, whose separator that is.
    fn rewrite(
        &mut self,
        intervals: &[Entry<Interval>],
        before: Option<Option<Vec<u8>>>,
        mut pieces: Vec<Piece>,
    ) {
        self.counts.rewritten += 1;
        self.counts.bytes += bytes_of(&pieces);
        let len = intervals.iter().map(|entry| entry.len).sum::<u64>();
        let old = intervals.iter().map(|entry| entry.item.slot);
        if let Some(sep) = before
            && let Some(change) = self.changes.last_mut()
        {
            change.len += len;
            change.old.extend(old);
            if let Some(first) = pieces.first_mut() {
                first.sep = sep;
            }
            change.pieces.extend(pieces);
            return;
        }
        let (at, sep) = (intervals[0].start, intervals[0].item.sep);
        self.changes.push(Change { at, len, old: old.collect(), sep, appends: false, pieces });
    }
}

fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.data.len() as u64).sum()
}
