//! # Range removal: the range tombstones of a frozen memtable, applied to the levels
//!
//! Runs before the keys of the memtable are spilled, in the order of levels and keys and in bounded
//! steps. Readers use the tombstones until the memtable is spilled, so a step changes no result.
//!
//! ```text
//!  tombstone           [─────────────────────)
//!  leaves of a level  [ rewritten ][ dropped ][ rewritten ]
//! ```
//!
//! ## Invariants
//!
//! 1. An upper level comes before a lower one. A version that a view needs is then among the old
//!    versions before an older one, which ends where it begins.
//! 2. A version of the frozen memtable that is newer than the entry of its key is the one that
//!    superseded the entry, unless a tombstone is older.
//!
//! ## Crash
//!
//! The image is made after the spill. An opening before that replays the tombstones and all later
//! commits, and applies the tombstones again.
//!
//! ## Costs
//!
//! The leaves in the ranges are read, because each entry is subtracted from the live bytes of a
//! segment of the log. No record is read, and only leaves at the ends of a range are written.

use sheaf_engine::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::maintenance::level_edit::{GatheredEntries, LevelEdit};
use crate::maintenance::merge_accounting::MergeAccounting;
use crate::maintenance::spill::{SpillState, count_removals};
use crate::memtable::KreonMemtable;
use crate::tree::node::{LeafEntry, LeafPair, NodeRef, fingerprint_of};
use crate::tree::{KreonState, Level, LevelEntry, SeekTarget};

/// Progress of the range tombstones of a frozen memtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeProgress {
    /// Number of the memtable.
    memtable: u32,
    /// Level at which the next step continues, and the key.
    level: usize,
    next: Vec<u8>,
}

impl KreonEngine {
    /// Applies the range tombstones of the frozen memtable to some leaves. Returns false if there
    /// was nothing to do: then its keys may be spilled.
    pub(crate) fn remove_ranges_step(
        &self,
        spill: &mut SpillState,
        state: &KreonState,
        frozen: &KreonMemtable,
        views: &Views,
        guard: &Guard,
    ) -> Result<bool> {
        if frozen.ranges().is_empty() {
            return Ok(false);
        }
        let begun = spill.range_progress.take().filter(|progress| progress.memtable == frozen.number);
        let progress = begun.unwrap_or_else(|| {
            self.remove_hidden_candidates(frozen, guard);
            RangeProgress { memtable: frozen.number, level: 0, next: Vec::new() }
        });
        spill.range_progress = Some(progress.clone()); // stays if the step fails
        let Some(level) = state.levels.get(progress.level) else { return Ok(false) };
        let next =
            self.remove_from_level(spill, (progress.level, level), frozen, &progress.next, views, guard)?;
        spill.range_progress = Some(match next {
            Some(next) => RangeProgress { next, ..progress },
            None => RangeProgress { level: progress.level + 1, next: Vec::new(), ..progress },
        });
        Ok(true)
    }

    /// Removes the hidden entries from some leaves of a level, from key `from` on. Returns the key
    /// at which the next step continues, or `None` at the end of the level.
    fn remove_from_level(
        &self,
        spill: &mut SpillState,
        (number, level): (usize, &Level),
        frozen: &KreonMemtable,
        from: &[u8],
        views: &Views,
        guard: &Guard,
    ) -> Result<Option<Vec<u8>>> {
        let (leaves, next) = self.leaves_in_ranges(level, frozen, from, guard)?;
        if leaves.is_empty() {
            return Ok(next);
        }
        let lower = self.state(guard).levels.iter().skip(number + 1);
        let mut merge_accounting = self.merge_accounting(views, lower, None, guard);
        merge_accounting.only_removes = true;
        let stamp = self.level_store.stamp(guard);
        let mut change = LevelEdit::new(&self.level_store, guard, stamp, &mut merge_accounting);
        change.read_ahead(&leaves)?;
        let mut hidden = GatheredEntries::default();
        for leaf in &leaves {
            self.gather_hidden(&change, *leaf, frozen, &mut hidden, guard)?;
        }
        let olds: Vec<LeafPair<'_>> = hidden.entries.iter().map(|old| hidden.pair(old)).collect();
        if olds.is_empty() {
            return Ok(next);
        }
        let pairs: Vec<LeafPair<'_>> =
            olds.iter().map(|old| self.superseding_pair(frozen, old.key, guard)).collect();
        let made = change.apply(level, &pairs);
        let done =
            self.publish_step(spill, &mut change, made.map(|level| vec![(number, level)]), None, guard);
        drop(change);
        done?;
        spill.adjust_removals(number, 0, count_removals(&olds));
        self.account_published(spill, merge_accounting, guard);
        Ok(next)
    }

    /// Returns leaves of a level that may have hidden keys from `from` on, at most those of one
    /// step, and the key behind them, unless they are the last ones.
    fn leaves_in_ranges(
        &self,
        level: &Level,
        frozen: &KreonMemtable,
        from: &[u8],
        guard: &Guard,
    ) -> Result<(Vec<NodeRef>, Option<Vec<u8>>)> {
        let (most_entries, most, _) = self.step_sizes();
        let (mut leaves, mut entries, mut next) = (Vec::new(), 0, Some(from.to_vec()));
        while let Some(key) = next.take_if(|_| leaves.len() < most && entries < most_entries) {
            let Some(first) = frozen.ranges().next_from(&key, guard) else { break };
            let Some(leaf) = self.level_store.locate(level, SeekTarget::Containing(&first), guard)? else {
                break;
            };
            leaves.push(leaf.at);
            entries += leaf.at.count as usize;
            next = leaf.high;
        }
        Ok((leaves, next))
    }

    /// Adds the entries of a leaf that the range tombstones of `frozen` hide to `hidden`.
    fn gather_hidden<'a>(
        &'a self,
        change: &LevelEdit<'_, MergeAccounting<'_>>,
        leaf: NodeRef,
        frozen: &KreonMemtable,
        hidden: &mut GatheredEntries,
        guard: &'a Guard,
    ) -> Result<()> {
        let node = match change.prefetched_leaves.get(&leaf.page) {
            Some(frame) => frame.node(),
            None => self.level_store.node(leaf, 0, guard)?.node(),
        };
        let damaged = |what| self.level_store.space.page_file.damage_error(leaf.page, what);
        let mut key = Vec::new();
        for slot in 0..node.len() {
            key.clear();
            node.key(slot, &mut key);
            let removed = frozen.ranges().seq_of(&key, Seq::LATEST, guard);
            if removed != Seq::ZERO && self.is_hidden(&LevelEntry::from_slot(&node, slot), removed, guard)? {
                hidden.add(&node, slot).map_err(damaged)?;
            }
        }
        Ok(())
    }

    /// Returns the version of the frozen memtable that superseded a hidden entry of `key`, or else
    /// its range tombstone (I2).
    fn superseding_pair<'k>(&self, frozen: &KreonMemtable, key: &'k [u8], guard: &Guard) -> LeafPair<'k> {
        let hash = self.hash(key);
        if let Some(place) = frozen.find(hash, key, guard) {
            let version = frozen.version(place);
            let entry = self.entry_of(version, fingerprint_of(hash), &mut Vec::new());
            return LeafPair { key, entry, max_seq: version.seq, value: &[] };
        }
        let removed = frozen.ranges().seq_of(key, Seq::LATEST, guard);
        LeafPair {
            key,
            entry: LeafEntry::tombstone(removed, fingerprint_of(hash), 0),
            max_seq: removed,
            value: &[],
        }
    }
}
