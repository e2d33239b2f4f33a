//! # Merge: tables of one level are merged into the next
//!
//! A merge reads only key lists. Files of the upper tables are linked into the directories of the
//! lower ones. Files of a lower table stay in place, unless the table has grown too large and is
//! split. (The paper moves both; here a value moves once per level.) Packed values move by
//! reference. They are copied to another pack if less than half of their pack is live.
//!
//! ## Picture
//!
//! ```text
//!  upper      [a ........ m]  [c ........ z]             level 0: all tables; else one table
//!  lower           [f .. k]      [p .. t]  [u .. w]      tables that overlap the upper ones
//!  parts      <───────────────><──────────><───────>     one step each; skipped without upper keys
//! ```
//!
//! Tables that overlap no table below only change their level.

use sheaf_engine::contract::EnginePressure;
use sheaf_engine::views::Views;
use sheaf_log::blob::BlobRef;
use sheaf_platform::error::{IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;
use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use crate::engine::DelsmEngine;
use crate::files::file_names;
use crate::files::list::{BlobLocation, ListEntry, ValueRef};
use crate::files::manifest::LEVELS;
use crate::files::pack::{Pack, PackWriter};
use crate::maintenance::file_moves::FileMoves;
use crate::maintenance::{Garbage, Job, MaintenanceState, SortedTableBuilder, TableOutputs};
use crate::read::merge_inputs::{Direction, MergeHeads, TableInput};
use crate::recovery::open::pending_blob_garbage;
use crate::tree::{Table, Version};

/// Merge in progress.
#[derive(Debug)]
pub(crate) struct Merge {
    /// Level of the outputs.
    level: usize,
    upper: Vec<Arc<Table>>,
    lower: Vec<Arc<Table>>,
    /// Number of the next part.
    part: usize,
    /// True if no table below the outputs overlaps them.
    is_bottom: bool,
    /// True if parts without upper keys are also rewritten.
    is_rewrite: bool,
    outputs: Vec<Arc<Table>>,
    /// Directories of lower tables that remain unchanged.
    untouched: HashSet<u64>,
    /// Packs to which the outputs must not refer.
    dropped_packs: HashSet<u64>,
    pack: Option<PackWriter>,
    /// Files of lower tables that are dead or move elsewhere: directory and name.
    stale_files: Vec<(u64, String)>,
    /// Blobs of tables that were not linked; they are dead or move.
    stale_blobs: Vec<u64>,
}

/// Amount of data of a table or a part.
#[derive(Clone, Copy, Debug, Default)]
struct TableSize {
    files: u64,
    entries: u64,
    bytes: u64,
}

impl TableSize {
    fn add(&mut self, what: &ValueRef) {
        self.entries += 1;
        match what {
            ValueRef::File { .. } => self.files += 1,
            ValueRef::Packed { len, .. } => self.bytes += u64::from(*len),
            ValueRef::Removed => {}
        }
    }
}

impl DelsmEngine {
    /// Starts a merge if one is due. Returns false if there is nothing to do.
    pub(crate) fn plan_merge(&self, work: &mut MaintenanceState, views: &Views) -> Result<bool> {
        let version = self.version();
        self.update_new_key_percent(&version);
        let level = (0..LEVELS - 1).find(|level| self.is_over_limit(&version, *level));
        let merge = match level {
            Some(level) => self.plan_push_down(work, &version, level, None),
            None if work.is_space_short => None,
            None => self.plan_pack_rewrite(&version),
        };
        match merge {
            Some(merge) => self.begin_merge(work, views, &version, merge).map(|()| true),
            None => self.compact_if_idle(work, views, &version),
        }
    }

    /// Starts a merge if level 0 is over its limit. Otherwise a series of flushes would only add
    /// tables and packs of superseded values. Returns false if no merge is started.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` or `Error::Io` if a list or a pack cannot be read, and `Error::Io`
    /// if a file of the outputs cannot be written or synced.
    pub(crate) fn merge_before_flush(&self, work: &mut MaintenanceState, views: &Views) -> Result<bool> {
        let version = self.version();
        self.update_new_key_percent(&version);
        if !self.is_over_limit(&version, 0) || !self.has_room_to_copy(&version) {
            return Ok(false);
        }
        let Some(merge) = self.plan_push_down(work, &version, 0, None) else { return Ok(false) };
        self.begin_merge(work, views, &version, merge).map(|()| true)
    }

    /// Returns true if the disk has space for a flush after a merge that copies all packs. With
    /// less space the flush must come first, because it frees the journal.
    fn has_room_to_copy(&self, version: &Version) -> bool {
        let packs: u64 = version.packs.values().map(|pack| pack.len).sum();
        let wanted = self.disk_reserve().unwrap_or(0).saturating_add(packs);
        self.disk()
            .and_then(|disk| disk.free_space(&self.keyspace.path).during(IoOp::Measure, &self.keyspace.path))
            .is_ok_and(|free| free >= wanted)
    }

    /// Updates the percentage of keys in the newest table of level 0 that are in no other table.
    /// The estimated waste of the next memtable depends on it.
    fn update_new_key_percent(&self, version: &Version) {
        let Some(newest) = version.levels[0].first() else { return };
        let hidden =
            version.superseding_count(newest).saturating_mul(100) / newest.list.totals().entries.max(1);
        self.new_key_percent.store(100 - hidden.min(100), Ordering::Relaxed);
    }

    /// Executes the first part of `merge`, or all of it if the tables only change their level.
    pub(crate) fn begin_merge(
        &self,
        work: &mut MaintenanceState,
        views: &Views,
        version: &Arc<Version>,
        merge: Merge,
    ) -> Result<()> {
        assert!(work.job.is_none(), "maintenance (I3): a merge starts when no job is in progress");
        if !merge.is_rewrite && merge.lower.is_empty() && self.is_trivial_move(&merge) {
            return self.move_tables_down(work, version, merge);
        }
        work.job = Some(Job::Merging(Box::new(merge)));
        self.merge_next(work, views)
    }

    /// Returns true if the upper tables may move down unchanged: they do not overlap each other, no
    /// table of level 0 is small, and no tombstone has become useless.
    fn is_trivial_move(&self, merge: &Merge) -> bool {
        let mut sorted: Vec<&Arc<Table>> = merge.upper.iter().collect();
        sorted.sort_by(|a, b| a.list.first_key().cmp(b.list.first_key()));
        let is_apart = sorted.windows(2).all(|pair| pair[0].list.last_key() < pair[1].list.first_key());
        let is_large = |table: &Arc<Table>| {
            let totals = table.list.totals();
            totals.files * 4 >= self.sizes.table_files
                || totals.entries * 4 >= self.sizes.table_entries
                || totals.packed_bytes() * 4 >= self.sizes.table_bytes
        };
        let is_idle = |table: &Arc<Table>| merge.is_bottom && table.list.totals().removals > 0;
        is_apart && merge.upper.iter().all(|table| (merge.level > 1 || is_large(table)) && !is_idle(table))
    }

    /// Returns true if a level is over its limit.
    pub(crate) fn is_over_limit(&self, version: &Version, level: usize) -> bool {
        let load = |level: usize| {
            let mut load = TableSize::default();
            for table in &version.levels[level] {
                let totals = table.list.totals();
                load.files += totals.files + totals.removals / 16;
                load.entries += totals.entries;
                load.bytes += totals.packed_bytes();
            }
            load
        };
        let here = load(level);
        if here.entries == 0 {
            return false;
        }
        let times = self.sizes.ratio.pow(u32::try_from(level).unwrap_or(0));
        let is_wide = level == 0 && version.levels[0].len() >= self.sizes.level_tables;
        // More than one dead version for four live ones: versions hidden by a level above, and
        // tombstones.
        let below: u64 = (level + 1..LEVELS).map(|level| load(level).entries).sum();
        let hides = if level == 0 {
            let hides = |table: &Arc<Table>| version.superseding_count(table) + table.list.totals().removals;
            let hidden: u64 = version.levels[0].iter().map(hides).sum();
            hidden * 4 > (here.entries + below).saturating_sub(hidden)
        } else {
            below > 0 && here.entries * 4 > below
        };
        is_wide
            || hides
            || here.files > self.sizes.level_files * times
            || here.bytes > self.sizes.level_bytes * times
    }

    /// Plans to move all of level 0 down, or one table of another level: `chosen`, or the next one.
    pub(crate) fn plan_push_down(
        &self,
        work: &mut MaintenanceState,
        version: &Version,
        level: usize,
        chosen: Option<&Arc<Table>>,
    ) -> Option<Merge> {
        let upper = if level == 0 {
            version.levels[0].clone()
        } else if let Some(table) = chosen {
            vec![Arc::clone(table)]
        } else {
            work.last_pushed_down.resize(LEVELS, Vec::new());
            let after =
                |table: &&Arc<Table>| table.list.first_key() > work.last_pushed_down[level].as_slice();
            let table = version.levels[level].iter().find(after).or(version.levels[level].first())?;
            work.last_pushed_down[level] = table.list.first_key().to_vec();
            vec![Arc::clone(table)]
        };
        let low = upper.iter().map(|table| table.list.first_key()).min()?;
        let high = upper.iter().map(|table| table.list.last_key()).max()?;
        let lower = version.overlapping(level + 1, low, high);
        let is_bottom = (level + 2..LEVELS).all(|level| version.overlapping(level, low, high).is_empty());
        let leaving = if work.is_space_short { HashSet::new() } else { self.sparse_packs(version) };
        Some(Merge::new(level + 1, upper, lower, is_bottom, leaving))
    }

    /// Plans to rewrite a table that refers to a pack with less than half of its bytes live.
    fn plan_pack_rewrite(&self, version: &Version) -> Option<Merge> {
        let live = version.live_pack_bytes();
        let is_half_dead = |pack: &Arc<Pack>| live.get(&pack.number).copied().unwrap_or(0) * 2 < pack.bytes();
        let half_dead: HashSet<u64> =
            version.packs.values().filter(|pack| is_half_dead(pack)).map(|pack| pack.number).collect();
        self.plan_rewrite_without(version, half_dead)
    }

    /// Plans to rewrite a table that refers to one of `packs`, so that it no longer does.
    pub(crate) fn plan_rewrite_without(&self, version: &Version, packs: HashSet<u64>) -> Option<Merge> {
        let names_one =
            |table: &Arc<Table>| table.list.totals().packs.iter().any(|(pack, _)| packs.contains(pack));
        let levels = version.levels.iter().enumerate();
        let mut tables = levels.flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)));
        let (level, table) = tables.find(|(_, table)| names_one(table))?;
        let mut merge = self.plan_table_rewrite(version, level, table);
        merge.dropped_packs.extend(self.sparse_packs(version));
        merge.dropped_packs.extend(packs);
        Some(merge)
    }

    /// Plans to rewrite a table in its level.
    pub(crate) fn plan_table_rewrite(&self, version: &Version, level: usize, table: &Arc<Table>) -> Merge {
        let is_bottom = version.tables_below(table).is_none_or(|below| version.is_bottom(table, below));
        let merge = Merge::new(level, Vec::new(), vec![Arc::clone(table)], is_bottom, HashSet::new());
        Merge { is_rewrite: true, ..merge }
    }

    fn sparse_packs(&self, version: &Version) -> HashSet<u64> {
        let live = version.live_pack_bytes();
        let is_poor = |pack: &&Arc<Pack>| {
            pack.len < self.sizes.small_pack_bytes
                || live.get(&pack.number).copied().unwrap_or(0) * 2 < pack.bytes()
        };
        version.packs.values().filter(is_poor).map(|pack| pack.number).collect()
    }

    /// Moves tables that overlap nothing below down, without a rewrite.
    fn move_tables_down(
        &self,
        work: &mut MaintenanceState,
        version: &Arc<Version>,
        merge: Merge,
    ) -> Result<()> {
        let mut next = Version::clone(version);
        for level in &mut next.levels {
            level.retain(|table| merge.upper.iter().all(|upper| !Arc::ptr_eq(table, upper)));
        }
        next.levels[merge.level].extend(merge.upper);
        next.levels[merge.level].sort_by(|a, b| a.list.first_key().cmp(b.list.first_key()));
        let flushed_seq = work.flushed_seq;
        self.write_manifest(work, &next, flushed_seq)?;
        let lowered = next.levels[merge.level].iter().filter(|table| !table.is_linked()).cloned().collect();
        self.publish_version(next, 0);
        self.start_linking(work, lowered)
    }

    /// Starts to move the files of flushed tables into the directories of the tables.
    pub(crate) fn start_linking(&self, work: &mut MaintenanceState, tables: Vec<Arc<Table>>) -> Result<()> {
        if !tables.is_empty() {
            let after = pending_blob_garbage(&tables)?;
            work.job = Some(Job::Moving(FileMoves::new(tables, after)));
        }
        Ok(())
    }

    /// Executes one part, or the end of the merge.
    pub(crate) fn merge_next(&self, work: &mut MaintenanceState, views: &Views) -> Result<()> {
        let Some(Job::Merging(mut merge)) = work.job.take() else { return Ok(()) };
        let answer = if merge.part < merge.lower.len().max(1) {
            self.merge_part(work, &mut merge, views)
        } else {
            match self.end_merge(work, &mut merge) {
                Ok(()) => return Ok(()),
                other => other,
            }
        };
        match answer {
            Ok(()) => work.job = Some(Job::Merging(merge)),
            // The merge starts again later, once there is space. The sweep removes its unfinished
            // files.
            Err(ref error) => {
                work.is_sweep_due = true;
                work.is_space_short = error.is_no_space();
                work.is_stuck = true;
            }
        }
        answer
    }

    fn merge_part(&self, work: &mut MaintenanceState, merge: &mut Merge, views: &Views) -> Result<()> {
        let (part, last) = (merge.part, merge.lower.len().saturating_sub(1));
        let lower = merge.lower.get(part).cloned();
        let low = lower.as_ref().filter(|_| part > 0).map(|table| table.list.first_key().to_vec());
        let high =
            merge.lower.get(part + 1).filter(|_| part < last).map(|table| table.list.first_key().to_vec());
        let from = low.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let is_within = |key: &[u8]| high.as_deref().is_none_or(|high| key < high);

        let mut load = TableSize::default();
        for table in &merge.upper {
            let mut merge_input = TableInput::new(vec![Arc::clone(table)], from, Direction::Forward);
            while merge_input.peek().is_some_and(is_within) {
                merge_input.take_group()?.1.iter().for_each(|item| load.add(&item.value));
            }
        }
        merge.part += 1;
        if load.entries == 0 && !merge.is_rewrite {
            merge.untouched.extend(lower.map(|table| table.dir));
            return Ok(());
        }
        if let Some(totals) = lower.as_ref().map(|table| table.list.totals()) {
            load.files += totals.files;
            load.entries += totals.entries;
            load.bytes += totals.packed_bytes();
        }
        let pieces = self.output_count(&load);
        let share = TableSize {
            files: load.files / pieces + 1,
            entries: load.entries / pieces + 1,
            bytes: load.bytes / pieces + 1,
        };
        let mut merge_inputs = Vec::new();
        for table in merge.upper.iter().chain(&lower) {
            merge_inputs.push(TableInput::new(vec![Arc::clone(table)], from, Direction::Forward));
        }
        let lower = lower.map(|table| table.dir);
        let mut part_outputs = PartOutputs {
            outputs: TableOutputs::default(),
            current_size: TableSize::default(),
            target_size: share,
            lower,
        };
        let mut merge_heads = MergeHeads::new(merge_inputs.iter().map(TableInput::peek), Direction::Forward);
        let mut with = Vec::new();
        loop {
            let next = merge_heads.next_key(|merge_input| merge_inputs[merge_input].peek(), &mut with);
            let Some(key) = next.filter(|key| is_within(key)).map(<[u8]>::to_vec) else { break };
            let mut versions: Vec<(Arc<Table>, ListEntry)> = Vec::new();
            for merge_input in &with {
                let (table, items) = merge_inputs[*merge_input].take_group()?;
                merge_heads.update(*merge_input, merge_inputs[*merge_input].peek());
                versions.extend(items.into_iter().map(|item| (Arc::clone(&table), item)));
            }
            self.add_versions(work, merge, &mut part_outputs, views, &key, versions)?;
        }
        merge.outputs.extend(self.finish_tables(part_outputs.outputs)?);
        Ok(())
    }

    /// Returns the number of tables for this amount of data.
    fn output_count(&self, load: &TableSize) -> u64 {
        let times = |have: u64, share: u64| if have > share * 2 { have.div_ceil(share) } else { 1 };
        times(load.files, self.sizes.table_files)
            .max(times(load.entries, self.sizes.table_entries))
            .max(times(load.bytes, self.sizes.table_bytes))
    }

    /// Adds the versions of a key that a view or a later reader may still need.
    fn add_versions(
        &self,
        work: &mut MaintenanceState,
        merge: &mut Merge,
        part_outputs: &mut PartOutputs,
        views: &Views,
        key: &[u8],
        versions: Vec<(Arc<Table>, ListEntry)>,
    ) -> Result<()> {
        let mut kept: Vec<(Arc<Table>, ListEntry)> = Vec::new();
        let mut newer = None;
        for (table, item) in versions {
            let is_needed = newer.is_none_or(|newer| views.may_need(item.seq, newer));
            newer = Some(item.seq);
            match (is_needed, item.value) {
                (true, _) => kept.push((table, item)),
                (false, ValueRef::File { blob, .. }) => {
                    merge.note_stale(part_outputs.lower, &table, key, &blob)
                }
                (false, _) => {}
            }
        }
        while merge.is_bottom && kept.last().is_some_and(|(_, item)| item.value == ValueRef::Removed) {
            kept.pop();
        }
        if kept.is_empty() {
            return Ok(());
        }
        let hash = self.keyspace.hash(key);
        let dir = part_outputs.dir_for_next_key(self, work)?;
        for (table, mut item) in kept {
            part_outputs.current_size.add(&item.value);
            match &mut item.value {
                ValueRef::File { blob, location } => {
                    *location = match table.is_linked() {
                        false => BlobLocation::BlobStore,
                        true if table.dir == dir => BlobLocation::OwnDir,
                        true => BlobLocation::OtherDir(table.dir),
                    };
                    if *location != BlobLocation::OwnDir {
                        merge.note_stale(part_outputs.lower, &table, key, blob);
                    }
                }
                ValueRef::Packed { pack, offset, len, sum } if merge.dropped_packs.contains(pack) => {
                    if let Some(from) = self.version().packs.get(pack) {
                        let (to, disk) = (merge.pack_writer(self, work), self.disk()?);
                        *offset = from.read(*offset, *len, *sum, |value| to.add(value))?;
                        *pack = to.number;
                        to.write_if_full(disk)?;
                    }
                }
                ValueRef::Packed { .. } | ValueRef::Removed => {}
            }
            if let Some(made) = &mut part_outputs.outputs.current {
                made.writer.add(hash, &item);
            }
        }
        Ok(())
    }

    /// Writes the manifest with the outputs and publishes them.
    fn end_merge(&self, work: &mut MaintenanceState, merge: &mut Merge) -> Result<()> {
        let present = self.version();
        let mut next = Version::clone(&present);
        let is_input = |table: &Arc<Table>| {
            let same = |other: &Arc<Table>| Arc::ptr_eq(table, other);
            merge.upper.iter().any(same)
                || (merge.lower.iter().any(same) && !merge.untouched.contains(&table.dir))
        };
        let position = next.levels[merge.level].iter().position(is_input).unwrap_or(0);
        for level in &mut next.levels {
            level.retain(|table| !is_input(table));
        }
        if let Some(pack) = &mut merge.pack
            && let Some(pack) = pack.finish(self.disk()?)?
        {
            let path = &self.keyspace.path;
            self.disk()?.sync_dir(path).during(IoOp::SyncDirectory, path)?;
            next.packs.insert(pack.number, Arc::new(pack));
        }
        let at = position.min(next.levels[merge.level].len());
        next.levels[merge.level].splice(at..at, merge.outputs.iter().cloned());
        if merge.level > 0 {
            next.levels[merge.level].sort_by(|a, b| a.list.first_key().cmp(b.list.first_key()));
        }
        let live = next.live_pack_bytes();
        let is_dead = |pack: &&u64| !live.contains_key(*pack);
        let mut after: Vec<Garbage> = next
            .packs
            .keys()
            .filter(is_dead)
            .map(|pack| Garbage::File(self.keyspace.path.join(file_names::pack_name(*pack))))
            .collect();
        next.packs.retain(|pack, _| live.contains_key(pack));
        let staying: HashSet<u64> = next.tables().map(|table| table.dir).collect();
        for table in present.tables().filter(|table| is_input(table)) {
            after.push(Garbage::File(self.keyspace.path.join(file_names::list_name(table.list.number()))));
            if !staying.contains(&table.dir) {
                after.push(Garbage::Directory(self.keyspace.dir(table.dir), None));
            }
        }
        let gone = merge.stale_files.iter().filter(|(dir, _)| staying.contains(dir));
        after.extend(gone.map(|(dir, name)| Garbage::Value(*dir, name.clone())));
        merge.stale_blobs.sort_unstable(); // in the order of their inodes
        after.extend(merge.stale_blobs.iter().map(|id| Garbage::Blob(*id)));
        let flushed_seq = work.flushed_seq;
        self.write_manifest(work, &next, flushed_seq)?;
        self.publish_version(next, 0);
        (work.is_space_short, work.is_stuck) = (false, false);
        let tables = std::mem::take(&mut merge.outputs);
        work.job = Some(Job::Moving(FileMoves::new(tables, after)));
        Ok(())
    }
}

/// Outputs of a part.
struct PartOutputs {
    outputs: TableOutputs,
    current_size: TableSize,
    target_size: TableSize,
    /// Directory of the lower table, which the first output keeps.
    lower: Option<u64>,
}

impl PartOutputs {
    /// Returns the directory of the table for the next key. Starts a new table if the present one
    /// is full.
    fn dir_for_next_key(&mut self, engine: &DelsmEngine, work: &mut MaintenanceState) -> Result<u64> {
        let (piece, share) = (&self.current_size, &self.target_size);
        let is_full =
            piece.files >= share.files || piece.entries >= share.entries || piece.bytes >= share.bytes;
        if let Some(made) = self.outputs.current.as_ref().filter(|_| !is_full) {
            return Ok(made.dir);
        }
        self.current_size = TableSize::default();
        let (dir, is_new) = match self.lower.filter(|_| self.outputs.is_empty()) {
            Some(dir) => (dir, false),
            None => (work.next_number(), true),
        };
        let made = SortedTableBuilder::new(&engine.keyspace, dir, is_new, work.next_number());
        engine.start_table(&mut self.outputs, made)?;
        Ok(dir)
    }
}

impl Merge {
    /// Returns the blobs that are removed when the merge is done.
    pub(crate) fn stale_blobs(&self) -> &[u64] {
        &self.stale_blobs
    }

    fn new(
        level: usize,
        upper: Vec<Arc<Table>>,
        lower: Vec<Arc<Table>>,
        is_bottom: bool,
        leaving: HashSet<u64>,
    ) -> Merge {
        Merge {
            level,
            upper,
            lower,
            part: 0,
            is_bottom,
            is_rewrite: false,
            outputs: Vec::new(),
            untouched: HashSet::new(),
            dropped_packs: leaving,
            pack: None,
            stale_files: Vec::new(),
            stale_blobs: Vec::new(),
        }
    }

    /// Schedules the removal of the name that a file has in `table`: the file then has another
    /// name, or is dead. A name in a directory that is removed as a whole needs no entry.
    fn note_stale(&mut self, lower: Option<u64>, table: &Table, key: &[u8], blob: &BlobRef) {
        if !table.is_linked() {
            self.stale_blobs.push(blob.id);
        } else if Some(table.dir) == lower {
            self.stale_files.push((table.dir, file_names::value_name(key, blob.id)));
        }
    }

    fn pack_writer(&mut self, engine: &DelsmEngine, work: &mut MaintenanceState) -> &mut PackWriter {
        self.pack.get_or_insert_with(|| {
            PackWriter::new(&engine.keyspace.path, engine.keyspace.owner(), work.next_number())
        })
    }
}
