//! # Changes: what a step takes out of the frozen memtable, and what of it stays
//!
//! A batch has the next changes in the order of keys, their bytes in one buffer. Of each key the newest version goes into
//! the space, and of those before it what a view needs; a removal under which nothing is left goes nowhere.
//!
//! ## Costs
//!
//! Four lines for each key that are in no cache: its record, its frame, and where the active memtable would have it. They are asked
//! for ahead, in turns over the whole batch, since each says where the next one is: that took a third of the committer's time before.

use std::mem;
use std::ops::{Bound, Range};

use sheaf_base::error::Result;
use sheaf_base::memtable::{Memtable, Place, Version, blob_bytes, blob_of};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::block::{Block, Known, print_of};
use crate::engine::FlexEngine;
use crate::hoard::Hoard;
use crate::run::Pair;
use crate::table::Plan;

/// What a change is, its bytes in the batch's buffer.
#[derive(Clone, Debug)]
struct Item {
    key: Range<usize>,
    print: u16,
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

/// Places of records that are asked for ahead.
const AHEAD: usize = 8;

/// Changes in the order of keys and falling numbers. Used again by the next step, so that its memory is.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    buffer: Vec<u8>,
    items: Vec<Item>,
    /// The records it comes from, and their hashes.
    places: Vec<Place>,
    hashes: Vec<u64>,
}

impl Batch {
    /// Changes in it.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The first change from `from` on whose key is not `before`, which holds for the first ones.
    pub(crate) fn end_before(&self, from: usize, before: impl Fn(&[u8]) -> bool) -> usize {
        from + self.items[from..].partition_point(|item| before(&self.buffer[item.key.clone()]))
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.items.clear();
        self.places.clear();
        self.hashes.clear();
    }

    fn push(&mut self, key: Range<usize>, print: u16, seq: Seq, content: &Content<'_>) {
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
        self.items.push(Item { key, print, seq, kind, value: from..self.buffer.len() });
    }

    pub(crate) fn key(&self, at: usize) -> &[u8] {
        &self.buffer[self.items[at].key.clone()]
    }

    pub(crate) fn pair(&self, at: usize) -> Pair<'_> {
        let item = &self.items[at];
        let value = &self.buffer[item.value.clone()];
        let content = match item.kind {
            Kind::Put => Content::Put(value),
            Kind::Staged => Content::Staged(blob_of(value)),
            Kind::Tomb => Content::Remove,
        };
        Pair { key: &self.buffer[item.key.clone()], seq: item.seq, content }
    }

    pub(crate) fn known(&self, at: usize) -> Known<'_> {
        Known { print: self.items[at].print, pair: self.pair(at) }
    }

    pub(crate) fn pairs(&self, range: Range<usize>) -> impl Iterator<Item = Pair<'_>> + Clone {
        range.map(|at| self.pair(at))
    }
}

/// Where changes come from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) frozen: &'a Memtable,
    pub(crate) active: &'a Memtable,
    pub(crate) views: &'a Views,
    pub(crate) guard: &'a Guard,
}

/// What a view would see of a superseded version, and what becomes of those nobody sees.
pub(crate) struct Keeper<'a> {
    pub(crate) views: &'a Views,
    pub(crate) dead: &'a mut Vec<(Seq, u64)>,
}

impl Keeper<'_> {
    /// Appends to `out` what stays of a key's versions, which come with falling numbers.
    fn keep<'p>(&mut self, versions: &[Known<'p>], out: &mut Vec<Known<'p>>) {
        let start = out.len();
        let mut died = None;
        for version in versions {
            let Pair { seq, content, .. } = version.pair;
            match died {
                Some(died) if !self.views.may_need(seq, died) => {
                    if let Content::Staged(blob) = content {
                        self.dead.push((died, blob.id));
                    }
                }
                _ => out.push(*version),
            }
            died = Some(seq);
        }
        // A removal hides nothing if nothing is left below it.
        while out.len() > start && out.last().is_some_and(|last| last.pair.is_tomb()) {
            out.pop();
        }
    }
}

impl FlexEngine {
    /// Makes `batch` the next changes of the frozen one of two memtables behind `after`; the last key, if there are more. What the
    /// active one supersedes stays behind: when the checkpoint ends that is durable, and the journal has it.
    pub(crate) fn gather(
        &self,
        source: &Source<'_>,
        after: Option<&[u8]>,
        most: usize,
        (batch, hoard): (&mut Batch, &mut Hoard),
        plan: &mut Plan,
    ) -> Result<Option<Vec<u8>>> {
        let Source { frozen: memtable, active, guard, .. } = *source;
        batch.clear();
        let low = after.map_or(Bound::Unbounded, Bound::Excluded);
        memtable.ascend(low, most, guard, &mut batch.places);
        let is_all = batch.places.len() < most;
        hoard.look_ahead(memtable, &batch.places, &self.shelf.ground, guard);
        let has_newer = !active.is_empty();
        batch.places.iter().take(AHEAD).for_each(|place| memtable.prefetch_record(*place));
        for (number, place) in batch.places.iter().enumerate() {
            if let Some(later) = batch.places.get(number + AHEAD) {
                memtable.prefetch_record(*later);
            }
            let entry = memtable.entry(*place);
            memtable.prefetch_frame(entry.newest().word, &self.shelf.ground, guard);
            let hash = self.shelf.hash(entry.key());
            if has_newer {
                active.prefetch(hash, guard);
            }
            batch.hashes.push(hash);
        }
        let (places, hashes) = (mem::take(&mut batch.places), mem::take(&mut batch.hashes));
        let moved = self.take_in(source, &places, &hashes, (batch, hoard), plan);
        let is_cut = matches!(moved, Ok(moved) if moved < places.len());
        let last = moved.map(|moved| places[..moved].last().filter(|_| is_cut || !is_all).copied());
        (batch.places, batch.hashes) = (places, hashes);
        Ok(last?.map(|place| memtable.entry(place).key().to_vec()))
    }

    /// Appends the changes of records to `batch`, until there are enough bytes: of how many records.
    fn take_in(
        &self,
        source: &Source<'_>,
        places: &[Place],
        hashes: &[u64],
        (batch, hoard): (&mut Batch, &Hoard),
        plan: &mut Plan,
    ) -> Result<usize> {
        let Source { frozen: memtable, active, views, guard } = *source;
        let has_newer = !active.is_empty();
        for (number, (place, hash)) in places.iter().zip(hashes).enumerate() {
            if number > 0 && batch.buffer.len() >= self.sizes.step_bytes {
                return Ok(number);
            }
            if let Some(later) = hashes.get(number + AHEAD).filter(|_| has_newer) {
                active.prefetch_found(*later, guard);
            }
            let entry = memtable.entry(*place);
            // The active memtable's newest version: those between it and ours, if there were any, died before.
            let newer = if has_newer { active.find(*hash, entry.key(), guard) } else { None };
            let mut died = newer.map(|newer| newer.newest().seq);
            let needs = |born: Seq, died: Seq| views.may_need(born, died);
            let newest = entry.newest();
            if let Some(died) = died
                && !newest.word.is_staged()
                && !needs(newest.seq, died)
                && entry.versions().count() == 1
            {
                plan.counts.skipped += 1;
                continue;
            }
            let from = batch.buffer.len();
            batch.buffer.extend_from_slice(entry.key());
            let key = from..batch.buffer.len();
            for Version { word, seq } in entry.versions() {
                if died.is_some_and(|died| died <= seq) {
                    continue; // seen twice
                }
                let mut take = |content: Content<'_>| {
                    match (died, content) {
                        (Some(died), Content::Staged(blob)) if !needs(seq, died) => {
                            plan.dead.push((died, blob.id));
                        }
                        (Some(died), _) if !needs(seq, died) => {}
                        (_, content) => batch.push(key.clone(), print_of(*hash), seq, &content),
                    }
                    Ok(())
                };
                match hoard.value(word) {
                    Some(value) => take(Content::Put(value))?,
                    None => memtable.content(word, &self.shelf.ground, guard, take)?,
                }
                died = Some(seq);
            }
        }
        Ok(places.len())
    }
}

/// The versions that stay of what stands in blocks, one behind the other, and what changes.
pub(crate) fn merge<'p>(
    blocks: &[&'p Block],
    changes: impl Iterator<Item = Known<'p>>,
    keeper: &mut Keeper<'_>,
) -> Vec<Known<'p>> {
    let stored = blocks.iter().map(|block| block.len()).sum::<usize>();
    let mut old = blocks.iter().flat_map(|block| (0..block.len()).map(|slot| block.known(slot))).peekable();
    let mut new = changes.peekable();
    let mut out = Vec::with_capacity(stored + new.size_hint().0);
    let mut versions: SmallVec<[Known<'p>; 4]> = SmallVec::new();
    loop {
        let key = match (old.peek(), new.peek()) {
            (None, None) => return out,
            (Some(one), None) | (None, Some(one)) => one.pair.key,
            (Some(a), Some(b)) => a.pair.key.min(b.pair.key),
        };
        versions.clear();
        while let Some(version) = new.next_if(|version| version.pair.key == key) {
            versions.push(version);
        }
        let changed = versions.len();
        while let Some(version) = old.next_if(|version| version.pair.key == key) {
            versions.push(version);
        }
        if changed > 0 && changed < versions.len() {
            versions.sort_by_key(|version| std::cmp::Reverse(version.pair.seq));
            versions.dedup_by_key(|version| version.pair.seq);
        }
        keeper.keep(&versions, &mut out);
    }
}
