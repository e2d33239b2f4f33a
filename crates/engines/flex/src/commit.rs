//! # Commit: from the frozen memtable into the space, a step at a time
//!
//! A step takes the next few hundred changes in the order of keys, plans what becomes of each interval that they touch, and
//! does it all as one edit of the space and one publication.
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
//! the changes are removals; else it is time to rewrite. What a rewrite leaves small is merged with a neighbour.
//!
//! ## Versions
//!
//! Of each key the newest version goes into the space, and of those before it what a view needs. A rewrite lets go what no
//! view needs any more, and a removal under which nothing is left.
//!
//! ## Crash
//!
//! An edit is there whole or not at all. After a crash the journal brings all that was frozen back, and a step that was done
//! before is done again: versions with the same key and number are one.

use std::ops::{Bound, Range};
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;
use sheaf_flexspace::tree::Entry;
use smallvec::SmallVec;

use crate::block::{Block, BlockRef};
use crate::engine::FlexEngine;
use crate::index::{Index, Interval, State};
use crate::run::{self, Pair, RUN_HEAD};
use crate::slots::{Figures, UNKNOWN};
use crate::table::{Change, Piece, Plan, Table};
use sheaf_base::memtable::prefix::{Sep, between};
use sheaf_base::memtable::{Memtable, Version, blob_bytes, blob_of};

/// Limits of an interval, and of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// An interval is split beyond so many pairs ...
    pub(crate) pairs: usize,
    /// ... or bytes.
    pub(crate) bytes: usize,
    /// Runs it may have.
    pub(crate) runs: u32,
    /// Changes of a step, and their bytes.
    pub(crate) step: usize,
    pub(crate) step_bytes: usize,
    /// Bytes that a step writes, about.
    pub(crate) step_written: u64,
    /// Pairs of a keyspace that stay in memory and in the image, in bytes, as long as it has no space.
    pub(crate) small: u64,
    /// Bytes of the disk that a new space takes.
    pub(crate) least_space: u64,
    /// Bytes that a pair takes in the index and that of the space, at most: intervals half full, with their runs.
    pub(crate) indexed: u64,
}

impl Sizes {
    pub(crate) fn new(tiny: bool) -> Sizes {
        if tiny {
            Sizes {
                pairs: 4,
                bytes: 512,
                runs: 3,
                step: 6,
                step_bytes: 1 << 10,
                step_written: 2 << 10,
                small: 1 << 10,
                least_space: 32 << 10,
                indexed: 80,
            }
        } else {
            Sizes {
                pairs: 16,
                bytes: 16 << 10,
                runs: 8,
                step: 256,
                step_bytes: 256 << 10,
                step_written: 1 << 20,
                small: 64 << 10,
                least_space: 5 << 20,
                indexed: 32,
            }
        }
    }
}

/// Changes of a step on a full disk.
const FEW: usize = 4;

/// What a change is, its bytes in the batch's buffer.
#[derive(Clone, Debug)]
struct Item {
    key: Range<usize>,
    seq: Seq,
    kind: Kind,
    value: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Staged,
    Tomb,
}

/// Changes in the order of keys and falling numbers.
#[derive(Debug, Default)]
struct Batch {
    buffer: Vec<u8>,
    items: Vec<Item>,
}

impl Batch {
    fn push(&mut self, key: Range<usize>, seq: Seq, content: &Content<'_>) {
        let from = self.buffer.len();
        let kind = match content {
            Content::Put(value) => {
                self.buffer.extend_from_slice(value);
                Kind::Put
            }
            Content::Staged(blob) => {
                self.buffer.extend_from_slice(&blob_bytes(blob));
                Kind::Staged
            }
            Content::Remove => Kind::Tomb,
        };
        self.items.push(Item { key, seq, kind, value: from..self.buffer.len() });
    }

    fn key(&self, at: usize) -> &[u8] {
        &self.buffer[self.items[at].key.clone()]
    }

    fn pair(&self, at: usize) -> Pair<'_> {
        let item = &self.items[at];
        let value = &self.buffer[item.value.clone()];
        let content = match item.kind {
            Kind::Put => Content::Put(value),
            Kind::Staged => Content::Staged(blob_of(value)),
            Kind::Tomb => Content::Remove,
        };
        Pair { key: &self.buffer[item.key.clone()], seq: item.seq, content }
    }

    fn pairs(&self, range: Range<usize>) -> impl Iterator<Item = Pair<'_>> + Clone {
        range.map(|at| self.pair(at))
    }
}

/// What a view would see of a superseded version, and what becomes of those nobody sees.
struct Keeper<'a> {
    views: &'a Views,
    dead: &'a mut Vec<(Seq, u64)>,
}

impl Keeper<'_> {
    /// Appends to `out` what stays of a key's versions, which come with falling numbers.
    fn keep<'p>(&mut self, versions: &[Pair<'p>], out: &mut Vec<Pair<'p>>) {
        let start = out.len();
        let mut died = None;
        for version in versions {
            match died {
                Some(died) if !self.views.needs(version.seq, died) => {
                    if let Content::Staged(blob) = version.content {
                        self.dead.push((died, blob.id));
                    }
                }
                _ => out.push(*version),
            }
            died = Some(version.seq);
        }
        // A removal hides nothing if nothing is left below it.
        while out.len() > start && out.last().is_some_and(Pair::is_tomb) {
            out.pop();
        }
    }
}

impl FlexEngine {
    /// The next changes of `memtable` behind `after`; the last key, and whether there are more.
    fn gather(
        &self,
        memtable: &Memtable,
        after: Option<&[u8]>,
        most: usize,
        views: &Views,
        dead: &mut Vec<(Seq, u64)>,
        guard: &Guard,
    ) -> Result<(Batch, Option<Vec<u8>>)> {
        let low = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut places = Vec::new();
        memtable.ascend(low, most, guard, &mut places);
        let is_all = places.len() < most;
        for place in &places {
            let entry = memtable.entry(*place);
            memtable.prefetch_frame(entry.newest().word, &self.shelf.ground, guard);
        }
        let mut batch = Batch::default();
        for (number, place) in places.iter().enumerate() {
            let entry = memtable.entry(*place);
            if number > 0 && batch.buffer.len() >= self.sizes.step_bytes {
                let last = memtable.entry(places[number - 1]).key().to_vec();
                return Ok((batch, Some(last)));
            }
            let from = batch.buffer.len();
            batch.buffer.extend_from_slice(entry.key());
            let key = from..batch.buffer.len();
            let mut died: Option<Seq> = None;
            for Version { word, seq } in entry.versions() {
                if died.is_some_and(|died| died <= seq) {
                    continue; // seen twice
                }
                memtable.content(word, &self.shelf.ground, guard, |content| {
                    match (died, content) {
                        (Some(died), Content::Staged(blob)) if !views.needs(seq, died) => {
                            dead.push((died, blob.id));
                        }
                        (Some(died), _) if !views.needs(seq, died) => {}
                        (_, content) => batch.push(key.clone(), seq, &content),
                    }
                    Ok(())
                })?;
                died = Some(seq);
            }
        }
        let last = places.last().filter(|_| !is_all).map(|place| memtable.entry(*place).key().to_vec());
        Ok((batch, last))
    }

    /// One step: of the frozen memtable if there is one and `certain` covers it, else of the space's upkeep.
    pub(crate) fn step(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.learn_views(views);
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        let state = self.state(guard);
        let frozen = match &state.frozen {
            Some(frozen) if !self.is_moved() && frozen.newest() <= certain => frozen,
            _ => {
                return self.keep_house(&mut table, state, guard);
            }
        };
        if table.must_wait(&self.shelf, guard) {
            sheaf_base::sync::thread::yield_now();
            return Ok(true);
        }
        if table.space.is_none() && table.progress.is_none() && self.stays_small(frozen, guard)? {
            self.set_moved();
            return Ok(false);
        }
        if table.space.is_none() {
            table.open(&self.shelf.ground, self.id, true)?;
            table.prefix = Arc::new(frozen.prefix(guard));
        }
        let last = self.move_some(&mut table, state, frozen, views, guard)?;
        let is_done = last.is_none();
        table.progress = last;
        if is_done {
            table.look_at_heads(&self.shelf, guard);
        }
        let index = table.publish(&self.shelf, guard);
        self.note_room(&table);
        self.publish(guard, |now| State {
            active: Arc::clone(&now.active),
            frozen: now.frozen.clone().filter(|_| !is_done),
            index,
        });
        if is_done {
            self.memtable_gone(frozen);
            self.set_moved();
        }
        guard.flush();
        if let Some(space) = &table.space {
            space.pump()?;
        }
        Ok(!is_done)
    }

    /// A step of what is due when nothing is to be moved.
    fn keep_house(&self, table: &mut Table, state: &State, guard: &Guard) -> Result<bool> {
        self.shelf.slots.make_room(0, &self.shelf.ground, guard);
        guard.flush(); // states that nobody reads any more hold nodes and slots
        table.settle(&self.shelf, guard);
        let Some(space) = &table.space else { return Ok(false) };
        // What is garbage there is room that the journal waits for.
        let more = if self.is_disk_tight() { space.reclaim() } else { space.pump() };
        let is_behind = state.index.view.as_ref().is_some_and(|view| view.operations() != space.operations());
        if is_behind {
            // Our own view would keep what garbage collection has emptied.
            let index = table.publish(&self.shelf, guard);
            self.publish(guard, |now| State {
                active: Arc::clone(&now.active),
                frozen: now.frozen.clone(),
                index,
            });
        }
        self.note_room(table);
        Ok(more? || is_behind)
    }

    /// Moves the next changes; the last key, if there are more. An edit that is too large for the space's log is done in
    /// smaller ones, the smallest of which are single appends.
    fn move_some(
        &self,
        table: &mut Table,
        state: &State,
        frozen: &Memtable,
        views: &Views,
        guard: &Guard,
    ) -> Result<Option<Vec<u8>>> {
        let (mut most, mut appends) = (self.sizes.step, false);
        let is_tight = self.is_disk_tight();
        loop {
            let mut plan = Plan { appends, is_tight, ..Plan::default() };
            let after = table.progress.as_deref();
            let (batch, mut last) = self.gather(frozen, after, most, views, &mut plan.dead, guard)?;
            let planned = self.plan(&state.index, &batch, views, &mut plan, guard)?;
            if planned < batch.items.len() {
                last = Some(batch.key(planned - 1).to_vec());
            }
            match table.commit(&plan, last.is_none(), &self.shelf, guard) {
                Err(Error::TooLarge { .. }) if most > 1 => most /= 2,
                Err(Error::TooLarge { .. }) if !appends => appends = true,
                // On a full disk each rewrite gives back more than it takes, later; appends take the least.
                Err(Error::NoSpace { .. }) if most > FEW => most = FEW,
                Err(Error::NoSpace { .. }) if !appends => appends = true,
                done => {
                    done?;
                    self.note_moved(batch.buffer.len() as u64);
                    self.forget(&plan);
                    return Ok(last);
                }
            }
        }
    }

    /// Whether the room on the disk that moving counts on is being used up: rewrites may take more than what is moved.
    fn is_disk_tight(&self) -> bool {
        let Some(home) = &self.shelf.ground.home else { return false };
        let spared = self.sizes.least_space / 5;
        home.disk
            .free_space(&self.shelf.path)
            .is_ok_and(|free| free.saturating_add(spared) < self.counted_on())
    }

    /// Staged values that nothing names any more may go when what superseded them is durable.
    fn forget(&self, plan: &Plan) {
        if plan.dead.is_empty() {
            return;
        }
        let mut blobs = self.blobs.lock();
        for (died, id) in &plan.dead {
            if blobs.remove(id) {
                self.shelf.ground.blob_died(*died, *id);
            }
        }
    }

    /// Plans the changes of `batch`, the first ones of many; how many items.
    fn plan(
        &self,
        index: &Index,
        batch: &Batch,
        views: &Views,
        plan: &mut Plan,
        guard: &Guard,
    ) -> Result<usize> {
        let mut from = 0;
        while from < batch.items.len() && plan.counts.bytes < self.sizes.step_written {
            from = match index.find(batch.key(from)) {
                None => self.plan_first(batch, from, views, plan),
                Some(entry) => {
                    let next = index.next(&entry);
                    let to = self.end_of(index, batch, from, next.as_ref());
                    self.plan_interval(index, batch, from..to, &entry, views, plan, guard)?
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

    /// The first change from `from` on that belongs to the interval `next` or one behind.
    fn end_of(&self, index: &Index, batch: &Batch, from: usize, next: Option<&Entry<Interval>>) -> usize {
        let Some(next) = next else { return batch.items.len() };
        let sep = index.sep(&next.item);
        from + batch.items[from..].partition_point(|item| batch.buffer[item.key.clone()] < sep[..])
    }

    /// The space is empty.
    fn plan_first(&self, batch: &Batch, from: usize, views: &Views, plan: &mut Plan) -> usize {
        let merged =
            merge(&[], batch.pairs(from..batch.items.len()), &mut Keeper { views, dead: &mut plan.dead });
        let pieces = self.cut(&merged, None);
        if !pieces.is_empty() {
            plan.counts.inserted += pieces.len() as u64;
            plan.counts.bytes += bytes_of(&pieces);
            plan.changes.push(Change {
                at: 0,
                len: 0,
                old: Vec::new(),
                sep: Sep::LOWEST,
                appends: false,
                pieces,
            });
        }
        batch.items.len()
    }

    /// Plans what becomes of one interval, and maybe of its neighbours; the first change that is left.
    #[allow(clippy::too_many_arguments)] // called in one place
    fn plan_interval(
        &self,
        index: &Index,
        batch: &Batch,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        views: &Views,
        plan: &mut Plan,
        guard: &Guard,
    ) -> Result<usize> {
        let slot = self.shelf.slots.get(entry.item.slot);
        let figures = slot.figures();
        let is_last = index.next(entry).is_none();
        if plan.appends {
            self.plan_append(batch, changes.clone(), entry, plan, guard);
            return Ok(changes.end);
        }
        let cost = RUN_HEAD + batch.pairs(changes.clone()).map(|pair| pair.len()).sum::<usize>();
        if is_last && changes.len() * 4 >= self.sizes.pairs && slot.is_cached() {
            let block = index.block(entry, &self.shelf, guard)?;
            let is_behind = block.len() > 0 && block.pair(block.len() - 1).key < batch.key(changes.start);
            if is_behind && block.len() * 4 >= self.sizes.pairs * 3 {
                let last = block.pair(block.len() - 1).key.to_vec();
                let keeper = &mut Keeper { views, dead: &mut plan.dead };
                let merged = merge(&[], batch.pairs(changes.clone()), keeper);
                let pieces = self.cut(&merged, Some(&last));
                if !pieces.is_empty() {
                    plan.counts.inserted += pieces.len() as u64;
                    plan.counts.bytes += bytes_of(&pieces);
                    let at = entry.start + entry.len;
                    let sep = entry.item.sep;
                    plan.changes.push(Change { at, len: 0, old: Vec::new(), sep, appends: false, pieces });
                }
                return Ok(changes.end);
            }
        }
        let tombs = batch.pairs(changes.clone()).filter(Pair::is_tomb).count();
        let entries = figures.entries as usize + changes.len();
        let len = usize::try_from(entry.len).unwrap_or(usize::MAX / 2);
        let may_append = figures.runs < self.sizes.runs
            && entries <= 2 * self.sizes.pairs
            && len + cost <= 2 * self.sizes.bytes
            && tombs * 4 <= figures.entries as usize;
        let left = len / (figures.entries as usize).max(1) * (figures.entries as usize).saturating_sub(tombs);
        let makes_room = (left + cost) * 2 <= len || len * 4 <= cost;
        if (may_append && cost <= len) || (plan.is_tight && !makes_room) {
            self.plan_append(batch, changes.clone(), entry, plan, guard);
            return Ok(changes.end);
        }
        match self.plan_rewrite(index, batch, changes.clone(), entry, views, plan, guard) {
            Err(error) if error.is_corrupt() => {
                // What stands there cannot be read; what is new can still be kept behind it.
                self.plan_append(batch, changes.clone(), entry, plan, guard);
                Ok(changes.end)
            }
            other => other,
        }
    }

    fn plan_append(
        &self,
        batch: &Batch,
        changes: Range<usize>,
        entry: &Entry<Interval>,
        plan: &mut Plan,
        guard: &Guard,
    ) {
        let mut data = Vec::new();
        run::encode(false, batch.pairs(changes.clone()), &mut data);
        let slot = self.shelf.slots.get(entry.item.slot);
        let figures = slot.figures();
        let block = slot.block(guard).and_then(|block| {
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
    }

    /// Whether so many pairs of so many bytes, and those of `other`, are one interval.
    fn fit(&self, pairs: usize, bytes: usize, other: &Entry<Interval>) -> bool {
        let entries = self.shelf.slots.get(other.item.slot).figures().entries as usize;
        pairs + entries <= self.sizes.pairs && bytes as u64 + other.len <= self.sizes.bytes as u64
    }

    #[allow(clippy::too_many_arguments)] // called in one place
    fn plan_rewrite(
        &self,
        index: &Index,
        batch: &Batch,
        mut changes: Range<usize>,
        entry: &Entry<Interval>,
        views: &Views,
        plan: &mut Plan,
        guard: &Guard,
    ) -> Result<usize> {
        let mut stretch = vec![*entry];
        let mut blocks: Vec<BlockRef> = vec![index.block(entry, &self.shelf, guard)?.keep()];
        let mut before = None;
        // The last step of growing: what it takes out of the plan must not be lost to a block that cannot be read.
        let mut has_looked_back = false;
        let (pieces, dead) = loop {
            let mut dead = Vec::new();
            let refs: Vec<&Block> = blocks.iter().map(|block| &**block).collect();
            let merged = merge(&refs, batch.pairs(changes.clone()), &mut Keeper { views, dead: &mut dead });
            let bytes: usize = merged.iter().map(Pair::len).sum();
            let is_small = merged.len() * 2 <= self.sizes.pairs && bytes * 2 <= self.sizes.bytes;
            let first = stretch[0];
            let must_grow = merged.is_empty() && first.start == 0;
            let last = stretch[stretch.len() - 1];
            if let Some(next) = index.next(&last).filter(|next| {
                must_grow || (is_small && !has_looked_back && self.fit(merged.len(), bytes + RUN_HEAD, next))
            }) {
                let to = self.end_of(index, batch, changes.end, index.next(&next).as_ref());
                drop(merged);
                blocks.push(index.block(&next, &self.shelf, guard)?.keep());
                stretch.push(next);
                changes.end = to;
                plan.counts.merged += 1;
                continue;
            }
            if is_small && !has_looked_back {
                has_looked_back = true;
                if let Some(previous) = index.previous(&first) {
                    drop(merged);
                    match plan.changes.last_mut().filter(|change| change.at + change.len > previous.start) {
                        None if self.fit(blocks_len(&blocks), bytes + RUN_HEAD, &previous) => {
                            blocks.insert(0, index.block(&previous, &self.shelf, guard)?.keep());
                            stretch.insert(0, previous);
                            plan.counts.merged += 1;
                        }
                        // What was planned just before: its last piece is merged into this one.
                        Some(change)
                            if !change.appends
                                && change.pieces.last().is_some_and(|piece| {
                                    (piece.figures.entries as usize + blocks_len(&blocks) <= self.sizes.pairs)
                                        && piece.data.len() + bytes + RUN_HEAD <= self.sizes.bytes
                                        && piece.block.is_some()
                                }) =>
                        {
                            if let Some(piece) = change.pieces.pop()
                                && let Some(block) = piece.block
                            {
                                blocks.insert(0, block);
                                before = Some(piece.sep);
                                plan.counts.merged += 1;
                            }
                        }
                        _ => {}
                    }
                    continue;
                }
            }
            break (self.cut(&merged, None), dead);
        };
        plan.dead.extend(dead);
        plan.counts.rewritten += 1;
        plan.counts.bytes += bytes_of(&pieces);
        let (at, len) = (stretch[0].start, stretch.iter().map(|entry| entry.len).sum());
        let old = stretch.iter().map(|entry| entry.item.slot);
        match before {
            None => plan.changes.push(Change {
                at,
                len,
                old: old.collect(),
                sep: stretch[0].item.sep,
                appends: false,
                pieces,
            }),
            Some(sep) => {
                let Some(change) = plan.changes.last_mut() else { return Ok(changes.end) };
                change.len += len;
                change.old.extend(old);
                let mut pieces = pieces;
                if let Some(first) = pieces.first_mut() {
                    first.sep = sep;
                }
                change.pieces.extend(pieces);
            }
        }
        Ok(changes.end)
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
        };
        Piece { sep, data, figures, block }
    }

    /// Whether what is frozen is so little that it stays in memory and in images.
    fn stays_small(&self, frozen: &Memtable, guard: &Guard) -> Result<bool> {
        if frozen.count() * 8 > self.sizes.small {
            return Ok(false);
        }
        let mut places = Vec::new();
        frozen.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        let mut bytes = 0;
        for place in places {
            let entry = frozen.entry(place);
            bytes += entry.key().len() as u64 + 8;
            frozen.content(entry.newest().word, &self.shelf.ground, guard, |content| {
                bytes += if let Content::Put(value) = content { value.len() as u64 } else { 16 };
                Ok(())
            })?;
            if bytes > self.sizes.small {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn blocks_len(blocks: &[BlockRef]) -> usize {
    blocks.iter().map(|block| block.len()).sum()
}

fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.data.len() as u64).sum()
}

/// The versions that stay of what stands in blocks, one behind the other, and what changes.
fn merge<'p>(
    blocks: &[&'p Block],
    changes: impl Iterator<Item = Pair<'p>>,
    keeper: &mut Keeper<'_>,
) -> Vec<Pair<'p>> {
    let mut old = blocks.iter().flat_map(|block| (0..block.len()).map(|slot| block.pair(slot))).peekable();
    let mut new = changes.peekable();
    let mut out = Vec::with_capacity(32);
    let mut versions: SmallVec<[Pair<'p>; 4]> = SmallVec::new();
    loop {
        let key = match (old.peek(), new.peek()) {
            (None, None) => return out,
            (Some(pair), None) | (None, Some(pair)) => pair.key,
            (Some(a), Some(b)) => a.key.min(b.key),
        };
        versions.clear();
        while let Some(pair) = new.next_if(|pair| pair.key == key) {
            versions.push(pair);
        }
        let changed = versions.len();
        while let Some(pair) = old.next_if(|pair| pair.key == key) {
            versions.push(pair);
        }
        if changed > 0 && changed < versions.len() {
            versions.sort_by_key(|pair| std::cmp::Reverse(pair.seq));
            versions.dedup_by_key(|pair| pair.seq);
        }
        keeper.keep(&versions, &mut out);
    }
}
