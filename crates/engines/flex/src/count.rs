//! # Counting: live keys, interval by interval
//!
//! Intervals that no memtable has a key of say how many they have, if that is known; the others are merged with what memtables
//! have there. Keys of memtables are looked up some at a time: an answer that is there early costs little.

use std::ops::Bound;

use sheaf_base::error::Result;
use sheaf_base::memtable::gaps::Skip;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_flexspace::tree::Entry as TreeEntry;

use crate::block::Block;
use crate::engine::FlexEngine;
use crate::index::{Interval, State};
use crate::lanes::{Lane, Source};
use crate::slots::UNKNOWN;

/// Intervals that are looked at under one guard.
const WALK: usize = 256;

impl FlexEngine {
    /// Live keys; with `most` of them or more found, there may be others. Some intervals at a time: what goes out of the cache meanwhile
    /// is let go when no guard of its moment is left, and may be as much as there is on disk.
    pub(crate) fn count_keys(&self, most: u64) -> Result<u64> {
        let (mut total, mut from) = (0, Some(Vec::new()));
        while let Some(low) = from.filter(|_| total < most) {
            let (count, next) = self.count_some(&low, most - total)?;
            (total, from) = (total + count, next);
        }
        Ok(total)
    }

    /// Live keys from `low` on, of some intervals; and where the next one begins, if there is one.
    fn count_some(&self, low: &[u8], most: u64) -> Result<(u64, Option<Vec<u8>>)> {
        let skipped = match self.gaps.skip(Bound::Included(low), true, Seq::LATEST) {
            Some(Skip::End) => return Ok((0, None)),
            Some(Skip::To(key)) => Some(key),
            None => None,
        };
        let low = skipped.as_deref().unwrap_or(low);
        let guard = &epoch::pin();
        let state = self.state(guard);
        let lane = |memtable| {
            let mut lane = Source { memtable, lane: Lane::default() };
            lane.fill(true, Bound::Included(low), guard);
            lane
        };
        let mut lanes: Vec<Source<'_>> = state.memtables.filled().map(|memtable| lane(memtable)).collect();
        let first = state.index.find(low).map_or(0, |entry| entry.start);
        let mut entries = state.index.tree.range(first).peekable();
        if entries.peek().is_none() {
            return Ok((count_lanes(&mut lanes, None, (low, None), most, guard), None));
        }
        let mut total = 0;
        for _ in 0..WALK {
            let Some(entry) = entries.next().filter(|_| total < most) else { return Ok((total, None)) };
            let sep = entries.peek().map(|next| state.index.sep(&next.item));
            let bounds = (low, sep.as_deref());
            total += self.count_interval(state, &entry, bounds, &mut lanes, most - total, guard)?;
        }
        Ok((total, entries.peek().map(|next| state.index.sep(&next.item))))
    }

    fn count_interval(
        &self,
        state: &State,
        entry: &TreeEntry<Interval>,
        (low, sep): (&[u8], Option<&[u8]>),
        lanes: &mut [Source<'_>],
        most: u64,
        guard: &Guard,
    ) -> Result<u64> {
        let is_within = |key: &[u8]| sep.is_none_or(|sep| key < sep);
        // It may have become one with the interval before it, which was counted.
        let is_whole = state.index.sep(&entry.item)[..] >= *low;
        if is_whole && !lanes.iter().any(|lane| lane.key().is_some_and(is_within)) {
            let live = self.shelf.slots.get(entry.item.slot).figures().live;
            if live != UNKNOWN {
                return Ok(u64::from(live));
            }
        }
        let block = state.index.block(entry, &self.shelf, guard)?;
        Ok(count_lanes(lanes, Some(&block), (low, sep), most, guard))
    }
}

/// Keys from `low` on and before `sep` that have a value, in memtables or the block, at most `most`.
fn count_lanes(
    lanes: &mut [Source<'_>],
    block: Option<&Block>,
    (low, sep): (&[u8], Option<&[u8]>),
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
        let least = lanes.iter().filter_map(Source::key).chain(stored).min();
        let Some(key) = least.filter(|key| sep.is_none_or(|sep| *key < sep)) else { break };
        let mut live = None;
        for lane in lanes.iter_mut().filter(|lane| lane.key() == Some(key)) {
            let entry = lane.memtable.entry(lane.lane.places[lane.lane.next]);
            live.get_or_insert(!entry.newest().word.is_tomb());
            lane.advance(true, guard);
        }
        if let Some(block) = block.filter(|_| stored == Some(key)) {
            live.get_or_insert(!block.pair(slot).is_tomb());
            slot = block.end_of_key(slot);
        }
        count += u64::from(live == Some(true));
    }
    count
}
