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
//! Append is taken while it is at most half of what a rewrite costs, the interval has few runs, no more superseded versions than
//! live ones (at the usual limit of space), and few of the changes are removals; else it is time to rewrite. While there is time, and reads come from memory, a
//! neighbour that the next change would have rewritten is rewritten with it. Where staged values are named it is always: only a rewrite finds out which
//! of them are superseded, and they are large. What a rewrite leaves small is merged with a neighbour. `Counts` says
//! how often each was taken.
//!
//! ## Costs
//!
//! Which intervals a batch touches is known from one walk over the index, before any of them is looked at: their slots are asked for
//! then, and their blocks a few intervals ahead; where reads wait for the device, those that will be rewritten are asked of it further ahead. Fingerprints of keys are taken over, from blocks and from the look into the active
//! memtable, and an interval that is appended to is not decoded.
//!
//! ## Versions
//!
//! Of each key the newest version goes into the space, and of those before it what a view needs. A rewrite lets go what no
//! view needs any more, and a removal under which nothing is left.

use std::ops::Range;

use sheaf_base::error::Result;
use sheaf_base::keys::between;
use sheaf_base::memtable::prefix::Sep;
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;
use sheaf_flexspace::tree::Entry;
use smallvec::{SmallVec, smallvec};

use crate::block::{Block, BlockRef, Known};
use crate::changes::{Batch, Keeper, merge};
use crate::engine::FlexEngine;
use crate::index::{Index, Interval};
use crate::route::Route;
use crate::run::{self, Pair, RUN_HEAD};
use crate::slots::{Figures, UNKNOWN};
use crate::table::{Change, Draft, Plan};

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
        next.map_or(self.batch.len(), |next| {
            self.batch.end_before(from, |key| self.index.is_before(key, next))
        })
    }
}

/// Blocks that are asked for ahead.
const AHEAD: usize = 4;
/// Intervals ahead that are asked of the device, if they will be read.
const READ_AHEAD: usize = 32;
/// Most neighbours that one rewrite joins: emptied intervals always fit, and may be all there are.
const MOST_JOINED: usize = 32;

/// Neighbouring intervals that become one, and the changes of all of them.
struct Stretch {
    intervals: SmallVec<[Entry<Interval>; 2]>,
    /// What stands in them; first that of an interval that is only planned, if there is `before`.
    blocks: SmallVec<[BlockRef; 2]>,
    changes: Range<usize>,
    /// Versions that stay, and their bytes.
    stays: [usize; 2],
    /// The separator of the last draft planned before, which is taken back into this.
    before: Option<Option<Vec<u8>>>,
}

impl Stretch {
    /// The versions that stay, and which staged values go.
    fn merge<'p>(&'p self, now: &'p Planning<'_>, dead: &mut Vec<(Seq, u64)>) -> Vec<Known<'p>> {
        let blocks: SmallVec<[&Block; 2]> = self.blocks.iter().map(|block| &**block).collect();
        let changes = self.changes.clone().map(|at| now.batch.known(at));
        merge(&blocks, changes, &mut Keeper { views: now.views, dead })
    }

    /// Adds a neighbour behind the others, with the changes up to `end`. Only the neighbour's versions are gone through:
    /// no key is in two intervals.
    fn push(&mut self, now: &Planning<'_>, next: Entry<Interval>, block: BlockRef, end: usize) {
        let changes = (self.changes.end..end).map(|at| now.batch.known(at));
        let dead = &mut Vec::new(); // counted when all is merged
        let stays = sizes_of(&merge(&[&block], changes, &mut Keeper { views: now.views, dead }));
        self.stays = [self.stays[0] + stays[0], self.stays[1] + stays[1]];
        self.changes.end = end;
        self.blocks.push(block);
        self.intervals.push(next);
    }

    /// The removal that an emptied stretch keeps at the start of the space, where some interval has to begin with the lowest
    /// key: that of its lowest key.
    fn placeholder<'p>(&'p self, now: &'p Planning<'_>) -> Option<Known<'p>> {
        let stored = self.blocks.iter().find(|block| block.len() > 0).map(|block| block.known(0));
        let changed = self.changes.clone().next().map(|at| now.batch.known(at));
        let order = |known: &Known<'p>| (known.pair.key, std::cmp::Reverse(known.pair.seq));
        stored
            .into_iter()
            .chain(changed)
            .min_by(|a, b| order(a).cmp(&order(b)))
            .filter(|known| known.pair.is_tomb())
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
        let routes = now.routes();
        let mut from = if routes.is_empty() { self.plan_new(now, 0..batch.len(), None, plan) } else { 0 };
        routes.iter().for_each(|route| self.shelf.slots.prefetch(route.entry.item.slot));
        let prefetch = |route: &Route| {
            self.shelf.slots.get(route.entry.item.slot).prefetch(route.entry.len, now.guard);
        };
        routes.iter().take(AHEAD).for_each(prefetch);
        let asks = self.shelf.wait.is_long();
        if asks {
            routes.iter().take(READ_AHEAD).for_each(|route| self.ask(now, route, plan));
        }
        for (number, Route { entry, next, changes }) in routes.iter().enumerate() {
            routes.get(number + AHEAD).into_iter().for_each(prefetch);
            if let Some(route) = routes.get(number + READ_AHEAD).filter(|_| asks) {
                self.ask(now, route, plan);
            }
            if changes.start < from {
                continue; // merged with one before
            }
            if plan.counts.bytes >= self.sizes.step_written || plan.looked >= self.sizes.step {
                break;
            }
            from = self.plan_interval(now, changes.clone(), entry, plan)?;
            if let Some(next) = next {
                from = self.tidy(now, from, next, plan)?;
            }
        }
        for at in 0..from {
            if let Content::Staged(blob) = batch.pair(at).content {
                plan.named.push(blob.id);
            }
        }
        Ok(from)
    }

    /// Asks the device for what will be read to rewrite an interval.
    fn ask(&self, now: &Planning<'_>, route: &Route, plan: &Plan) {
        let Route { entry, changes, .. } = route;
        if let Some(view) = &now.index.view
            && !self.shelf.slots.get(entry.item.slot).is_cached()
            && !plan.appends
            && !self.appends(now, changes, entry, plan.is_tight)
        {
            view.will_need(entry.start, entry.len);
        }
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
        let merged = merge(&[], changes.clone().map(|at| now.batch.known(at)), keeper);
        let drafts = self.cut(&merged, last.map(|(_, key)| key), &mut plan.bytes);
        if !drafts.is_empty() {
            plan.sample(0, u32::try_from(changes.len()).unwrap_or(u32::MAX), changes.len());
            plan.counts.inserted += drafts.len() as u64;
            plan.counts.bytes += bytes_of(&drafts);
            let at = last.map_or(0, |(entry, _)| entry.start + entry.len);
            let sep = last.map_or(Sep::LOWEST, |(entry, _)| entry.item.sep);
            plan.changes.push(Change { at, len: 0, old: SmallVec::new(), sep, appends: false, drafts });
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

    /// Rewrites an interval that nothing changes, and that the next change would have rewritten, if there is time for it. The
    /// first change that is left: that is `from`, or behind a neighbour that was merged with it.
    fn tidy(
        &self,
        now: &Planning<'_>,
        from: usize,
        entry: &Entry<Interval>,
        plan: &mut Plan,
    ) -> Result<usize> {
        if !plan.has_leisure || !self.is_fragmented(self.shelf.slots.get(entry.item.slot).figures()) {
            return Ok(from);
        }
        let is_untouched = now.end_of(from, now.index.next(entry).as_ref()) == from
            && plan.changes.last().is_some_and(|last| last.at + last.len <= entry.start);
        if !is_untouched {
            return Ok(from);
        }
        match self.plan_rewrite(now, from..from, entry, plan) {
            Err(error) if error.is_corrupt() => Ok(from),
            planned => {
                plan.counts.tidied += 1;
                planned
            }
        }
    }

    /// Whether an interval has as many runs, or as many versions that nobody reads, as it may have.
    fn is_fragmented(&self, figures: Figures) -> bool {
        let dead = if figures.live == UNKNOWN { 0 } else { figures.entries.saturating_sub(figures.live) };
        figures.runs >= self.sizes.runs || u64::from(dead) * 100 >= u64::from(figures.live) * self.sizes.slack
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
        // What is superseded there, and what would be if no change is of a new key.
        let (live, slack) = (u64::from(figures.live), self.sizes.slack);
        let dead = (stored + changes.len()) as u64 - live.min(stored as u64);
        let is_within = figures.live == UNKNOWN || dead * 100 <= live * slack;
        let may_append = !figures.is_staged
            && is_within
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
        let start = plan.bytes.len();
        let mut places: SmallVec<[u32; 16]> = SmallVec::new();
        let stands = |at: usize| places.push(u32::try_from(at).unwrap_or(u32::MAX));
        run::encode(false, now.batch.pairs(changes.clone()), &mut plan.bytes, stands);
        let data = start..plan.bytes.len();
        let slot = self.shelf.slots.get(entry.item.slot);
        let figures = slot.figures();
        let known = || changes.clone().map(|at| now.batch.known(at)).zip(places.iter().copied());
        let block = slot.block(now.guard).and_then(|block| {
            let added: SmallVec<[(Known<'_>, u32); 16]> = known().collect();
            block.with(&plan.bytes[data.clone()], &added).ok()
        });
        let prints = slot.prints(now.guard).and_then(|prints| {
            let added: SmallVec<[(u16, u32); 16]> = known().map(|(known, at)| (known.print, at)).collect();
            prints.with(entry.len, &plan.bytes[data.clone()], added.into_iter())
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
        plan.sample(slot.figures().live, figures.live, changes.len());
        plan.changes.push(Change {
            at: entry.start,
            len: entry.len,
            old: smallvec![entry.item.slot],
            sep: entry.item.sep,
            appends: true,
            drafts: smallvec![Draft { sep: None, data, figures, block, prints }],
        });
        changes.end
    }

    /// Whether so many pairs of so many bytes, and those of `other`, are one interval.
    fn fit(&self, pairs: usize, bytes: usize, other: &Entry<Interval>) -> bool {
        let entries = self.shelf.slots.get(other.item.slot).figures().entries as usize;
        pairs + entries <= self.sizes.pairs && bytes as u64 + other.len <= self.sizes.bytes as u64
    }

    /// Plans one interval's rewriting, and that of neighbours that fit; the first change that is left.
    pub(crate) fn plan_rewrite(
        &self,
        now: &Planning<'_>,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        plan: &mut Plan,
    ) -> Result<usize> {
        let block = now.index.block(entry, &self.shelf, now.guard)?.keep();
        let mut stretch = Stretch {
            intervals: smallvec![*entry],
            blocks: smallvec![block],
            changes,
            stays: [0; 2],
            before: None,
        };
        let mut dead = Vec::new();
        let merged = stretch.merge(now, &mut dead);
        let stays = sizes_of(&merged);
        plan.note_read(stretch.stored());
        if !self.is_small(stays) {
            let drafts = self.cut(&merged, None, &mut plan.bytes);
            drop(merged);
            plan.dead.extend(dead);
            return Ok(plan.take(stretch, drafts));
        }
        drop(merged);
        stretch.stays = stays;
        self.grow(now, &mut stretch, plan)?;
        plan.note_read(stretch.stored());
        dead.clear();
        let mut merged = stretch.merge(now, &mut dead);
        let is_first = stretch.intervals[0].start == 0 && stretch.before.is_none();
        if merged.is_empty() && is_first && now.index.next(stretch.last()).is_some() {
            merged.extend(stretch.placeholder(now));
        }
        let drafts = self.cut(&merged, None, &mut plan.bytes);
        drop(merged);
        plan.dead.extend(dead);
        Ok(plan.take(stretch, drafts))
    }

    /// Whether so many pairs and bytes are less than half an interval.
    fn is_small(&self, [pairs, bytes]: [usize; 2]) -> bool {
        pairs * 2 <= self.sizes.pairs && bytes * 2 <= self.sizes.bytes
    }

    /// Adds neighbours to a small stretch while they fit: those behind it, then the one before.
    fn grow(&self, now: &Planning<'_>, stretch: &mut Stretch, plan: &mut Plan) -> Result<()> {
        while self.is_small(stretch.stays) && stretch.intervals.len() < MOST_JOINED {
            let [pairs, bytes] = stretch.stays;
            // Nothing can be the first interval: that begins with the lowest key.
            let must_grow = pairs == 0 && stretch.intervals[0].start == 0;
            let fits = |next: &Entry<Interval>| must_grow || self.fit(pairs, bytes + RUN_HEAD, next);
            let Some(next) = now.index.next(stretch.last()).filter(fits) else { break };
            let end = now.end_of(stretch.changes.end, now.index.next(&next).as_ref());
            let block = now.index.block(&next, &self.shelf, now.guard)?.keep();
            plan.note_read(block.len());
            stretch.push(now, next, block, end);
            plan.counts.merged += 1;
        }
        if self.is_small(stretch.stays) {
            self.look_back(now, stretch, plan)?;
        }
        Ok(())
    }

    /// The last step of growing: what it takes out of the plan must not be lost to a block that cannot be read.
    /// Merges the interval before a small stretch into it, if both together are one: that of the index, or, if it was planned
    /// just before, the last draft of that.
    fn look_back(&self, now: &Planning<'_>, stretch: &mut Stretch, plan: &mut Plan) -> Result<()> {
        let bytes = stretch.stays[1];
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
        let fits = |draft: &Draft| {
            draft.figures.entries as usize + stored <= self.sizes.pairs
                && draft.data.len() + bytes + RUN_HEAD <= self.sizes.bytes
                && draft.block.is_some()
        };
        if !change.appends
            && change.drafts.last().is_some_and(fits)
            && let Some(Draft { sep, block: Some(block), .. }) = change.drafts.pop()
        {
            stretch.blocks.insert(0, block);
            stretch.before = Some(sep);
            plan.counts.merged += 1;
        }
        Ok(())
    }

    /// Cuts sorted pairs into intervals of about the same size. `low` is the key before them all, if they begin
    /// an interval of their own.
    fn cut(&self, pairs: &[Known<'_>], low: Option<&[u8]>, bytes: &mut Vec<u8>) -> SmallVec<[Draft; 2]> {
        let parts = pairs.len().div_ceil(self.sizes.pairs).max(1);
        let each = pairs.len().div_ceil(parts).max(1);
        let mut drafts = SmallVec::with_capacity(parts);
        let key = |at: usize| pairs[at].pair.key;
        let mut from = 0;
        while from < pairs.len() {
            let (mut to, mut len) = (from, 0);
            while to < pairs.len() {
                // Versions of one key stay together.
                let is_new = to == from || key(to) != key(to - 1);
                len += pairs[to].pair.len();
                if is_new && to > from && (to - from >= each || len > self.sizes.bytes) {
                    break;
                }
                to += 1;
            }
            let before = if from > 0 { Some(key(from - 1)) } else { low };
            let sep = before.map(|before| between(before, key(from)).to_vec());
            drafts.push(draft(&pairs[from..to], sep, bytes));
            from = to;
        }
        drafts
    }
}

/// An interval of sorted pairs; its bytes go behind `bytes`.
fn draft(pairs: &[Known<'_>], sep: Option<Vec<u8>>, bytes: &mut Vec<u8>) -> Draft {
    let start = bytes.len();
    let mut places: SmallVec<[u32; 32]> = SmallVec::new();
    let stands = |at: usize| places.push(u32::try_from(at).unwrap_or(u32::MAX));
    run::encode(true, pairs.iter().map(|known| known.pair), bytes, stands);
    let data = start..bytes.len();
    let block = Block::of(&bytes[data.clone()], pairs.iter().copied().zip(places)).ok();
    let figures = Figures {
        entries: u32::try_from(pairs.len()).unwrap_or(u32::MAX),
        live: block.as_ref().map_or(UNKNOWN, |block| block.live()),
        runs: 1,
        is_staged: pairs.iter().any(|known| known.pair.is_staged()),
    };
    Draft { sep, data, figures, block, prints: None }
}

impl Plan {
    /// Of so many changes, live keys before and after are known, if they are.
    fn sample(&mut self, before: u32, after: u32, changes: usize) {
        if before != UNKNOWN && after != UNKNOWN {
            self.sampled[0] += u64::from(after.saturating_sub(before));
            self.sampled[1] += changes as u64;
        }
    }

    /// So many versions were gone through, of one interval more.
    fn note_read(&mut self, versions: usize) {
        self.looked += 1;
        self.counts.read += versions as u64;
    }

    /// `drafts` take the place of a stretch; the first change that is left.
    fn take(&mut self, stretch: Stretch, drafts: SmallVec<[Draft; 2]>) -> usize {
        let before = stretch.blocks.iter().map(|block| block.live()).sum();
        let after = drafts.iter().map(|draft| draft.figures.live).sum();
        self.sample(before, after, stretch.changes.len());
        self.rewrite(&stretch.intervals, stretch.before, drafts);
        stretch.changes.end
    }

    /// `drafts` take the place of `intervals`; and, if there is `before`, of the last draft planned, whose separator that is.
    fn rewrite(
        &mut self,
        intervals: &[Entry<Interval>],
        before: Option<Option<Vec<u8>>>,
        mut drafts: SmallVec<[Draft; 2]>,
    ) {
        self.counts.rewritten += 1;
        self.counts.bytes += bytes_of(&drafts);
        let len = intervals.iter().map(|entry| entry.len).sum::<u64>();
        let old = intervals.iter().map(|entry| entry.item.slot);
        if let Some(sep) = before
            && let Some(change) = self.changes.last_mut()
        {
            change.len += len;
            change.old.extend(old);
            if let Some(first) = drafts.first_mut() {
                first.sep = sep;
            }
            change.drafts.extend(drafts);
            return;
        }
        let (at, sep) = (intervals[0].start, intervals[0].item.sep);
        self.changes.push(Change { at, len, old: old.collect(), sep, appends: false, drafts });
    }
}

/// How many versions, and their bytes.
fn sizes_of(merged: &[Known<'_>]) -> [usize; 2] {
    [merged.len(), merged.iter().map(|known| known.pair.len()).sum()]
}

fn bytes_of(drafts: &[Draft]) -> u64 {
    drafts.iter().map(|draft| draft.data.len() as u64).sum()
}
