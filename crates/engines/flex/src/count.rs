//! # Counting: live keys, interval by interval
//!
//! Intervals that no memtable has a key of say how many they have, if that is known; the others are merged with what memtables
//! have there. Keys of memtables are looked up some at a time: an answer that is there early costs little.

use std::ops::Bound;

use sheaf_base::error::Result;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_flexspace::tree::Entry as TreeEntry;

use crate::block::Block;
use crate::engine::FlexEngine;
use crate::index::{Interval, State};
use crate::lanes::{Lane, Source};
use crate::slots::UNKNOWN;

impl FlexEngine {
    /// Live keys; with `most` of them or more found, there may be others.
    pub(crate) fn count_keys(&self, most: u64) -> Result<u64> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let lane = |memtable| {
            let mut lane = Source { memtable, lane: Lane::default() };
            lane.fill(true, Bound::Unbounded, guard);
            lane
        };
        let mut lanes: Vec<Source<'_>> = state.memtables().map(|memtable| lane(memtable)).collect();
        let mut entries = state.index.tree.range(0).peekable();
        if entries.peek().is_none() {
            return Ok(count_lanes(&mut lanes, None, None, most, guard));
        }
        let mut total = 0;
        while let Some(entry) = entries.next().filter(|_| total < most) {
            let sep = entries.peek().map(|next| state.index.sep(&next.item));
            total += self.count_interval(state, &entry, sep.as_deref(), &mut lanes, most - total, guard)?;
        }
        Ok(total)
    }

    fn count_interval(
        &self,
        state: &State,
        entry: &TreeEntry<Interval>,
        sep: Option<&[u8]>,
        lanes: &mut [Source<'_>],
        most: u64,
        guard: &Guard,
    ) -> Result<u64> {
        let is_within = |key: &[u8]| sep.is_none_or(|sep| key < sep);
        if !lanes.iter().any(|lane| lane.key().is_some_and(is_within)) {
            let live = self.shelf.slots.get(entry.item.slot).figures().live;
            if live != UNKNOWN {
                return Ok(u64::from(live));
            }
        }
        let block = state.index.block(entry, &self.shelf, guard)?;
        Ok(count_lanes(lanes, Some(&block), sep, most, guard))
    }
}

/// Keys before `sep` that have a value, in memtables or the block, at most `most`.
fn count_lanes(
    lanes: &mut [Source<'_>],
    block: Option<&Block>,
    sep: Option<&[u8]>,
    most: u64,
    guard: &Guard,
) -> u64 {
    let mut count = 0;
    let mut slot = 0;
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
