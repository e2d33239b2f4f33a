//! # Count: the number of keys with a value
//!
//! If only the last level has entries, its root has their number. Else all sources are merged.

use std::ops::Bound;

use sheaf_engine::keys::borrow_bound;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::KreonEngine;
use crate::read::merge_input::{Direction, MergeInput, next_key, take_damaged};
use crate::tree::Level;

/// Number of keys that a count examines under one guard.
const COUNT_BATCH: usize = 4096;

impl KreonEngine {
    /// Walks over all keys with a value until `count` returns true. Releases the guard after some
    /// keys, because evicted pages are freed only without guards, and they may be as large as the
    /// data on disk.
    fn walk_keys(&self, mut count: impl FnMut(u64) -> bool) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let guard = &epoch::pin();
            let state = self.state(guard);
            let mut merge_inputs =
                self.merge_inputs(state, Direction::Forward, borrow_bound(&from), None, guard);
            let mut left = COUNT_BATCH;
            from = loop {
                if let Some(unreadable) = take_damaged(&mut merge_inputs, Direction::Forward) {
                    return Err(unreadable.error);
                }
                let Some(key) = next_key(&merge_inputs, Direction::Forward).map(<[u8]>::to_vec) else {
                    return Ok(());
                };
                let removed = state.range_seq(&key, Seq::LATEST, guard);
                if self.advance_past(&mut merge_inputs, &key, removed, guard)? && count(1) {
                    return Ok(());
                }
                left -= 1;
                if left == 0 {
                    break Bound::Excluded(key);
                }
            };
        }
    }

    /// Advances all inputs past `key`, the next one. Returns whether its newest version is a value
    /// that the range tombstone of commit `removed` does not hide.
    fn advance_past<'g>(
        &'g self,
        merge_inputs: &mut [MergeInput<'g>],
        key: &[u8],
        removed: Seq,
        guard: &'g Guard,
    ) -> Result<bool> {
        let mut newest = None;
        for merge_input in merge_inputs.iter_mut().filter(|merge_input| merge_input.key() == Some(key)) {
            if newest.is_none() {
                let is_hidden = removed != Seq::ZERO && merge_input.is_hidden(self, removed, guard)?;
                newest = Some(!is_hidden && merge_input.is_value());
            }
            merge_input.advance(Direction::Forward, guard);
        }
        Ok(newest == Some(true))
    }

    /// Returns the number of keys of the last level if everything above it is empty. The last level
    /// has no tombstones.
    fn last_level_count(&self, guard: &Guard) -> Option<u64> {
        let state = self.state(guard);
        let mut others = state.levels.iter().rev().skip(1);
        let is_alone = state.memtables.filled().next().is_none() && others.all(|level| level.root.is_none());
        is_alone.then(|| state.levels.last().map_or(0, Level::count))
    }

    /// Returns the number of live keys, or `enough` if there are more.
    pub(crate) fn count_keys(&self, enough: u64) -> Result<u64> {
        if let Some(count) = self.last_level_count(&epoch::pin()) {
            return Ok(count.min(enough));
        }
        let mut all = 0;
        self.walk_keys(|count| {
            all += count;
            all >= enough
        })?;
        Ok(all.min(enough))
    }
}
