//! # Count: the number of live keys, interval by interval
//!
//! An interval without keys in memtables contributes its count of live keys, if that is known.
//! Other intervals are merged with the memtables. Keys of memtables are looked up in small groups:
//! a count may end early, for example if the caller asks only whether the keyspace is empty.

use std::ops::Bound;

use sheaf_engine::memtable::MemtableVersion;
use sheaf_engine::memtable::removed_ranges::SkipTarget;
use sheaf_flexspace::tree::TreeEntry;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::FlexEngine;
use crate::index::slots::UNKNOWN_LIVE;
use crate::index::{EngineState, Interval};
use crate::interval::block::Block;
use crate::read::merge_inputs::{MergeInput, MergeSource};

/// Number of intervals that are examined under one guard.
const INTERVALS_PER_GUARD: usize = 256;

impl FlexEngine {
    /// Counts the live keys. Stops after `most` of them; there may be more. Releases the guard
    /// after some intervals, because evicted blocks are freed only without guards, and they may be
    /// as large as the data on disk.
    pub(crate) fn count_keys(&self, most: u64) -> Result<u64> {
        let (mut total, mut from) = (0, Some(Vec::new()));
        while let Some(low) = from.filter(|_| total < most) {
            let (count, next) = self.count_some(&low, most - total)?;
            (total, from) = (total + count, next);
        }
        Ok(total)
    }

    /// Counts live keys of some intervals from `low` on. Also returns the separator of the next
    /// interval, if there is one.
    fn count_some(&self, low: &[u8], most: u64) -> Result<(u64, Option<Vec<u8>>)> {
        let skipped = match self.removed_ranges.skip(Bound::Included(low), true, Seq::LATEST) {
            Some(SkipTarget::End) => return Ok((0, None)),
            Some(SkipTarget::To(key)) => Some(key),
            None => None,
        };
        let low = skipped.as_deref().unwrap_or(low);
        let guard = &epoch::pin();
        let state = self.state(guard);
        let source = |memtable| {
            let mut source = MergeSource { memtable, input: MergeInput::default() };
            source.fill(true, Bound::Included(low), guard);
            source
        };
        let mut sources: Vec<MergeSource<'_>> =
            state.memtables.filled().map(|memtable| source(memtable)).collect();
        let first = state.index.find(low).map_or(0, |entry| entry.start);
        let mut entries = state.index.tree.range(first).peekable();
        if entries.peek().is_none() {
            return Ok((count_merged(state, &mut sources, None, (low, None), most, guard), None));
        }
        let mut total = 0;
        for _ in 0..INTERVALS_PER_GUARD {
            let Some(entry) = entries.next().filter(|_| total < most) else { return Ok((total, None)) };
            let separator = entries.peek().map(|next| state.index.separator_bytes(&next.item));
            let bounds = (low, separator.as_deref());
            total += self.count_interval(state, &entry, bounds, &mut sources, most - total, guard)?;
        }
        Ok((total, entries.peek().map(|next| state.index.separator_bytes(&next.item))))
    }

    fn count_interval(
        &self,
        state: &EngineState,
        entry: &TreeEntry<Interval>,
        (low, separator): (&[u8], Option<&[u8]>),
        sources: &mut [MergeSource<'_>],
        most: u64,
        guard: &Guard,
    ) -> Result<u64> {
        let is_within = |key: &[u8]| separator.is_none_or(|separator| key < separator);
        // The interval may have been merged with its predecessor, which was counted.
        let is_whole = state.index.separator_bytes(&entry.item)[..] >= *low;
        let is_removed = || state.memtables.has_ranges_in(low, separator, Seq::LATEST, guard);
        if is_whole && !is_removed() && !sources.iter().any(|source| source.key().is_some_and(is_within)) {
            let live = self.interval_cache.slots.get(entry.item.slot).interval_counts().live;
            if live != UNKNOWN_LIVE {
                return Ok(u64::from(live));
            }
        }
        let block = state.index.block(entry, &self.interval_cache, guard)?;
        Ok(count_merged(state, sources, Some(&block), (low, separator), most, guard))
    }
}

/// Counts keys from `low` on and before `separator` that have a value in memtables or the block; at
/// most `most`.
fn count_merged(
    state: &EngineState,
    sources: &mut [MergeSource<'_>],
    block: Option<&Block>,
    (low, separator): (&[u8], Option<&[u8]>),
    most: u64,
    guard: &Guard,
) -> u64 {
    let mut count = 0;
    let mut slot = 0;
    while let Some(block) = block.filter(|block| slot < block.len() && block.pair(slot).key < low) {
        slot = block.end_of_key(slot);
    }
    while count < most {
        let stored = block.filter(|block| slot < block.len()).map(|block| block.pair(slot).key);
        let least = sources.iter().filter_map(MergeSource::key).chain(stored).min();
        let Some(key) = least.filter(|key| separator.is_none_or(|separator| *key < separator)) else { break };
        let mut live = None;
        for source in sources.iter_mut().filter(|source| source.key() == Some(key)) {
            let entry = source.memtable.entry(source.input.places[source.input.next]);
            let MemtableVersion { word, seq } = entry.newest();
            live.get_or_insert((!word.is_tombstone()).then_some(seq));
            source.advance(true, guard);
        }
        if let Some(block) = block.filter(|_| stored == Some(key)) {
            let pair = block.pair(slot);
            live.get_or_insert((!pair.is_tombstone()).then_some(pair.seq));
            slot = block.end_of_key(slot);
        }
        let is_hidden = |seq: Seq| state.memtables.range_seq(key, Seq::LATEST, guard) > seq;
        count += u64::from(live.flatten().is_some_and(|seq| !is_hidden(seq)));
    }
    count
}
