//! # Changes: what a step takes out of the frozen memtable, and what of it stays
//!
//! A batch has the next changes in the order of keys, their bytes in one buffer. Of each key the newest version goes into
//! the space, and of those before it what a view needs; a removal under which nothing is left goes nowhere.

use std::ops::{Bound, Range};

use sheaf_base::error::Result;
use sheaf_base::memtable::{Memtable, Version, blob_bytes, blob_of};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::block::Block;
use crate::engine::FlexEngine;
use crate::run::Pair;

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
pub(crate) struct Batch {
    buffer: Vec<u8>,
    items: Vec<Item>,
}

impl Batch {
    /// Changes in it.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The first change from `from` on whose key is not before `sep`.
    pub(crate) fn end_before(&self, from: usize, sep: &[u8]) -> usize {
        from + self.items[from..].partition_point(|item| self.buffer[item.key.clone()] < *sep)
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

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

    pub(crate) fn pairs(&self, range: Range<usize>) -> impl Iterator<Item = Pair<'_>> + Clone {
        range.map(|at| self.pair(at))
    }
}

/// What a view would see of a superseded version, and what becomes of those nobody sees.
pub(crate) struct Keeper<'a> {
    pub(crate) views: &'a Views,
    pub(crate) dead: &'a mut Vec<(Seq, u64)>,
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
    pub(crate) fn gather(
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
}

/// The versions that stay of what stands in blocks, one behind the other, and what changes.
pub(crate) fn merge<'p>(
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
