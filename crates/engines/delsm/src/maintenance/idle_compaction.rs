//! # Idle compaction: removes garbage that regular merges do not reach
//!
//! A superseded version stays until a merge reads it, and a level below its limit is never merged.
//! An idle keyspace scans its tables for dead bytes, and merges while there are too many.
//!
//! ## Picture
//!
//! ```text
//!  no commit for some time ─> files of flushed tables are linked ─> scan, some keys per step
//!                                  ┌─────────────────────────────────┘
//!                                  v
//!      too much garbage? ── no ──> done
//!            │ yes                 dead bytes: push down or rewrite the table that frees most
//!            └─> merge, scan       holes: rewrite a table that names a pack with many holes
//! ```
//!
//! A *dead* version is superseded by a newer one, and no view needs it. A tombstone is dead if it
//! hides nothing, once its table is at the bottom. *Holes* are bytes of packs that no table names.
//! In an idle database there is at most one byte of each for [`MAX_GARBAGE_DIVISOR`] live ones,
//! beyond [`Sizes::min_garbage_bytes`](crate::sizes::Sizes). An idle memtable supersedes at most
//! one byte for [`MAX_SUPERSEDED_DIVISOR`].
//!
//! ## Invariants
//!
//! 1. Bytes that a scan counts as dead are freed only by merges of the scanned table: in place,
//!    or downwards until it meets them. A merge moves tables down or makes them smaller, so this
//!    ends.
//! 2. A table is scanned once, and again after a release of views that may have needed the
//!    versions that it supersedes. Tables below may change, but some version there remains
//!    superseded.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::idle::IdleDetector;
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::DelsmEngine;
use crate::files::list::{ListEntry, ValueRef};
use crate::files::manifest::LEVELS;
use crate::maintenance::MaintenanceState;
use crate::maintenance::merge::Merge;
use crate::tree::{DelsmState, Table, TablesBelow, Version};

/// Minimum number of live bytes per dead byte, and per byte of holes.
const MAX_GARBAGE_DIVISOR: u64 = 8;
/// Minimum number of live bytes per byte that a memtable supersedes.
const MAX_SUPERSEDED_DIVISOR: u64 = 20;
/// Approximate bytes of a list entry.
const LIST_ENTRY_BYTES: u64 = 48;

/// Bytes that merges of a table free.
#[derive(Clone, Copy, Debug, Default)]
struct DeadBytes {
    bytes: u64,
    /// True if a view needs some of the versions that the table supersedes.
    is_pinned: bool,
}

/// Scan of a table in progress.
#[derive(Debug)]
struct DeadByteScan {
    table: Arc<Table>,
    block: usize,
    found: DeadBytes,
}

/// Known garbage, and the progress of scans.
///
/// ## Costs
///
/// A scan looks up each key of a table in the overlapping tables below; most tables overlap none
/// and are not read. Removing dead versions costs writing key lists, for packed values also copying
/// packs.
#[derive(Debug, Default)]
pub(crate) struct IdleCompaction {
    /// Observed when there is no other work.
    idle_detector: IdleDetector,
    /// Dead bytes by the number of the list.
    dead_by_list: HashMap<u64, DeadBytes>,
    scan: Option<DeadByteScan>,
}

impl DelsmEngine {
    /// Executes a step of idle work. Returns false if there is none, or if the database is not
    /// idle.
    pub(crate) fn compact_if_idle(
        &self,
        work: &mut MaintenanceState,
        views: &Views,
        version: &Arc<Version>,
    ) -> Result<bool> {
        let rest = &mut work.idle_compaction;
        let looks = rest.idle_detector.observe(self.state(&epoch::pin()).memtables.active.newest());
        if self.has_released_views.swap(false, Ordering::Relaxed) {
            rest.dead_by_list.retain(|_, dead| !dead.is_pinned);
        }
        if looks < self.sizes.idle_samples {
            return Ok(false);
        }
        let unsettled: Vec<Arc<Table>> = version.tables().filter(|t| !t.is_linked()).cloned().collect();
        if !unsettled.is_empty() {
            return self.start_linking(work, unsettled).map(|()| true);
        }
        if self.scan_tables(&mut work.idle_compaction, views, version)? {
            return Ok(true);
        }
        match self.plan_garbage_merge(work, version) {
            Some(merge) => self.begin_merge(work, views, version, merge).map(|()| true),
            None => Ok(false),
        }
    }

    /// Continues the scan. Returns false if all tables are scanned.
    fn scan_tables(&self, rest: &mut IdleCompaction, views: &Views, version: &Version) -> Result<bool> {
        let is_there = |number: u64| version.tables().any(|table| table.list.number() == number);
        let mut scan = match rest.scan.take().filter(|scan| is_there(scan.table.list.number())) {
            Some(scan) => scan,
            None => {
                match version.tables().find(|table| !rest.dead_by_list.contains_key(&table.list.number())) {
                    Some(table) => {
                        DeadByteScan { table: Arc::clone(table), block: 0, found: DeadBytes::default() }
                    }
                    None => return Ok(false),
                }
            }
        };
        let Some(below) = version.tables_below(&scan.table) else { return Ok(true) };
        let is_bottom = version.is_bottom(&scan.table, below);
        let blocks = scan.table.list.block_count();
        if is_bottom && !scan.table.has_old_versions {
            scan.found.bytes = scan.table.list.totals().removals * LIST_ENTRY_BYTES;
            scan.block = blocks;
        }
        let mut seen = 0;
        while scan.block < blocks && seen < self.sizes.entries_per_scan_step {
            let items = scan.table.list.entries_of_block(scan.block)?;
            for group in items.chunk_by(|a, b| a.key == b.key) {
                let found = self.dead_bytes_of(group, (version, below), views)?;
                scan.found.bytes += found.bytes;
                scan.found.is_pinned |= found.is_pinned;
            }
            seen += items.len();
            scan.block += 1;
        }
        if scan.block == blocks {
            rest.dead_by_list.retain(|number, _| is_there(*number));
            let before = rest.dead_by_list.insert(scan.table.list.number(), scan.found);
            assert!(before.is_none(), "idle_compaction (I2): a table is scanned once");
        } else {
            rest.scan = Some(scan);
        }
        Ok(true)
    }

    /// Returns the bytes that the versions of a key in a table make dead, the newest version first:
    /// among themselves, and in the next table below.
    fn dead_bytes_of(
        &self,
        group: &[ListEntry],
        (version, below): (&Version, TablesBelow),
        views: &Views,
    ) -> Result<DeadBytes> {
        let mut dead = DeadBytes::default();
        let Some(oldest) = group.last() else { return Ok(dead) };
        let mut supersede =
            |begin_seq: Seq, end_seq: Seq, what: &ValueRef| match views.may_need(begin_seq, end_seq) {
                true => dead.is_pinned = true,
                false => dead.bytes += LIST_ENTRY_BYTES + what.bytes(),
            };
        for pair in group.windows(2) {
            supersede(pair[1].seq, pair[0].seq, &pair[1].value);
        }
        let hash = self.keyspace.hash(&oldest.key);
        if let Some((_, seq, what)) = version.find_below(below, hash, &oldest.key, Seq::LATEST)? {
            supersede(seq, oldest.seq, &what);
        }
        if oldest.value == ValueRef::Removed && !dead.is_pinned {
            dead.bytes += LIST_ENTRY_BYTES;
        }
        Ok(dead)
    }

    /// Returns the merge that frees most, if there is too much garbage.
    fn plan_garbage_merge(&self, work: &mut MaintenanceState, version: &Version) -> Option<Merge> {
        let known = &work.idle_compaction.dead_by_list;
        let bytes_of = |table: &Arc<Table>| known.get(&table.list.number()).map_or(0, |dead| dead.bytes);
        let dead: u64 = version.tables().map(bytes_of).sum();
        let live = version.tables().map(referenced_bytes).sum::<u64>().saturating_sub(dead);
        let too_much = live / MAX_GARBAGE_DIVISOR + self.sizes.min_garbage_bytes;
        if dead > too_much {
            let of_level = |level: usize| version.levels[level].iter().map(move |table| (level, table));
            let (level, table) = (0..LEVELS).flat_map(of_level).max_by_key(|(_, table)| bytes_of(table))?;
            let is_bottom = version.tables_below(table).is_none_or(|below| version.is_bottom(table, below));
            return match is_bottom {
                true => Some(self.plan_table_rewrite(version, level, table)),
                false => self.plan_push_down(work, version, level, Some(table)),
            };
        }
        if work.is_space_short {
            return None; // copies need space first
        }
        let live_bytes = version.live_pack_bytes();
        let live_bytes = |pack: u64| live_bytes.get(&pack).copied().unwrap_or(0);
        let holes = |pack: u64, bytes: u64| bytes.saturating_sub(live_bytes(pack));
        let all: u64 = version.packs.values().map(|pack| holes(pack.number, pack.bytes())).sum();
        if all <= too_much {
            return None;
        }
        let leaky = version
            .packs
            .values()
            .filter(|p| holes(p.number, p.bytes()) * MAX_GARBAGE_DIVISOR > live_bytes(p.number));
        let leaky: HashSet<u64> = leaky.map(|pack| pack.number).collect();
        self.plan_rewrite_without(version, leaky)
    }

    /// Returns true if a small idle memtable supersedes too many bytes, in tables and in itself.
    pub(crate) fn is_superseding_much(&self, state: &DelsmState, guard: &Guard) -> Result<bool> {
        let (active, version) = (&state.memtables.active, &state.version);
        let (mut places, mut dead) = (Vec::new(), 0);
        active.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        for place in places {
            let entry = active.entry(place);
            for older in entry.versions().skip(1) {
                dead += active.content(older.word, &self.keyspace.context, guard, |content| {
                    Ok(match content {
                        RecordContent::Put(value) => value.len() as u64,
                        RecordContent::Blob(blob) => u64::from(blob.len),
                        RecordContent::Remove | RecordContent::RemoveRange(_) => 0,
                    })
                })?;
            }
            let key = entry.key();
            if let Some((_, _, what)) = version.find(self.keyspace.hash(key), key, Seq::LATEST)? {
                dead += what.bytes();
            }
        }
        let all: u64 = version.tables().map(referenced_bytes).sum();
        Ok(dead > all / MAX_SUPERSEDED_DIVISOR + self.sizes.min_garbage_bytes)
    }
}

/// Returns approximately the bytes of the values that a table names, and of its list.
fn referenced_bytes(table: &Arc<Table>) -> u64 {
    let totals = table.list.totals();
    totals.file_bytes + totals.packed_bytes() + totals.entries * LIST_ENTRY_BYTES
}
