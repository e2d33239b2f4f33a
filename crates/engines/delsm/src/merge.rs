//! # Merge: tables of one level go down into those of the next
//!
//! Only key lists are read. Files of the upper tables are linked into the directories of the lower ones; those of a lower
//! table stay where they are, unless it has grown too large and is split. (The paper moves both; here a value moves once
//! a level.) Values in packs move by reference, but are copied to another pack where less than half of theirs is live.
//!
//! ## Picture
//!
//! ```text
//!  upper      [a ........ m]  [c ........ z]                       level 0: all; else one table
//!  lower           [f .. k]      [p .. t]  [u .. w]                those in between
//!  parts      <───────────────><──────────><───────>               each a step; one without upper keys stays as it is
//! ```
//!
//! Tables whose keys overlap nothing below only change their level.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::Engine;
use sheaf_base::error::{IoContext, Result};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::views::Views;

use crate::engine::DelsmEngine;
use crate::lanes::{Front, TableLane, Way};
use crate::list::{Home, Item, What};
use crate::manifest::LEVELS;
use crate::moves::Moving;
use crate::names;
use crate::open::staged_garbage;
use crate::pack::{Pack, PackWriter};
use crate::tree::{Table, Version};
use crate::work::{Garbage, Job, Made, Outputs, Work};

/// A merge under way.
#[derive(Debug)]
pub(crate) struct Merge {
    /// Where the outputs go.
    level: usize,
    upper: Vec<Arc<Table>>,
    lower: Vec<Arc<Table>>,
    /// The next part.
    part: usize,
    /// Nothing below the outputs.
    is_bottom: bool,
    /// Parts are written even without upper keys.
    is_rewrite: bool,
    outputs: Vec<Arc<Table>>,
    /// Lower tables that stay as they are, by directory.
    untouched: HashSet<u64>,
    /// Packs to leave.
    leaving: HashSet<u64>,
    pack: Option<PackWriter>,
    /// Files of lower tables that are dead or move elsewhere: directory and name.
    gone: Vec<(u64, String)>,
    /// Files of tables that were not settled, dead or moved.
    staged: Vec<u64>,
}

/// A table's share of a part.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    files: u64,
    entries: u64,
    bytes: u64,
}

impl Load {
    fn add(&mut self, what: &What) {
        self.entries += 1;
        match what {
            What::File { .. } => self.files += 1,
            What::Packed { len, .. } => self.bytes += u64::from(*len),
            What::Gone => {}
        }
    }
}

impl DelsmEngine {
    /// Finds something to merge. False if there is nothing.
    pub(crate) fn plan(&self, work: &mut Work, views: &Views) -> Result<bool> {
        let version = self.version();
        self.look_at_fresh(&version);
        let level = (0..LEVELS - 1).find(|level| self.is_over_full(&version, *level));
        let merge = match level {
            Some(level) => self.plan_down(work, &version, level, None),
            None if work.is_cramped => None,
            None => self.plan_rewrite(&version),
        };
        match merge {
            Some(merge) => self.begin_merge(work, views, &version, merge).map(|()| true),
            None => self.rest(work, views, &version),
        }
    }

    /// Begins a merge if level 0 has more than it may: flushes that follow each other would only
    /// add tables and packs whose values are superseded. False if there is none to begin.
    ///
    /// # Errors
    ///
    /// Returns the error of the merge.
    pub(crate) fn merge_before_flush(&self, work: &mut Work, views: &Views) -> Result<bool> {
        let version = self.version();
        self.look_at_fresh(&version);
        if !self.is_over_full(&version, 0) || !self.has_room_to_copy(&version) {
            return Ok(false);
        }
        let Some(merge) = self.plan_down(work, &version, 0, None) else { return Ok(false) };
        self.begin_merge(work, views, &version, merge).map(|()| true)
    }

    /// Whether the disk has room for a flush after a merge that copies all packs: with less the
    /// flush comes first, as it frees the journal.
    fn has_room_to_copy(&self, version: &Version) -> bool {
        let packs: u64 = version.packs.values().map(|pack| pack.len).sum();
        let wanted = self.room_to_settle().unwrap_or(0).saturating_add(packs);
        self.disk()
            .and_then(|disk| disk.free_space(&self.shelf.path).during("measure", &self.shelf.path))
            .is_ok_and(|free| free >= wanted)
    }

    /// Notes how many keys of the newest table of level 0 are in no other: how much the next
    /// memtable wastes depends on it.
    fn look_at_fresh(&self, version: &Version) {
        let Some(newest) = version.levels[0].first() else { return };
        let hidden = version.hidden_by(newest).saturating_mul(100) / newest.list.totals().entries.max(1);
        self.fresh.store(100 - hidden.min(100), Ordering::Relaxed);
    }

    /// The first part of `merge`, or all of it if tables only change their level.
    pub(crate) fn begin_merge(
        &self,
        work: &mut Work,
        views: &Views,
        version: &Arc<Version>,
        merge: Merge,
    ) -> Result<()> {
        if !merge.is_rewrite && merge.lower.is_empty() && self.goes_down_whole(&merge) {
            return self.lower_level(work, version, merge);
        }
        work.job = Some(Job::Merging(Box::new(merge)));
        self.merge_some(work, views)
    }

    /// The upper tables may go down as they are: no two of them overlap, none is small, and no removal has become idle.
    fn goes_down_whole(&self, merge: &Merge) -> bool {
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

    /// Whether a level has more than it may.
    pub(crate) fn is_over_full(&self, version: &Version, level: usize) -> bool {
        let load = |level: usize| {
            let mut load = Load::default();
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
        // To four that live one is dead, or may be: what a version above hides, and removals.
        let below: u64 = (level + 1..LEVELS).map(|level| load(level).entries).sum();
        let hides = if level == 0 {
            let hides = |table: &Arc<Table>| version.hidden_by(table) + table.list.totals().removals;
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

    /// All of level 0 goes down, or a table of a level: `chosen`, or the next one.
    pub(crate) fn plan_down(
        &self,
        work: &mut Work,
        version: &Version,
        level: usize,
        chosen: Option<&Arc<Table>>,
    ) -> Option<Merge> {
        let upper = if level == 0 {
            version.levels[0].clone()
        } else if let Some(table) = chosen {
            vec![Arc::clone(table)]
        } else {
            work.taken.resize(LEVELS, Vec::new());
            let after = |table: &&Arc<Table>| table.list.first_key() > work.taken[level].as_slice();
            let table = version.levels[level].iter().find(after).or(version.levels[level].first())?;
            work.taken[level] = table.list.first_key().to_vec();
            vec![Arc::clone(table)]
        };
        let low = upper.iter().map(|table| table.list.first_key()).min()?;
        let high = upper.iter().map(|table| table.list.last_key()).max()?;
        let lower = version.overlapping(level + 1, low, high);
        let is_bottom = (level + 2..LEVELS).all(|level| version.overlapping(level, low, high).is_empty());
        let leaving = if work.is_cramped { HashSet::new() } else { self.poor_packs(version) };
        Some(Merge::new(level + 1, upper, lower, is_bottom, leaving))
    }

    /// A table that names a pack of which less than half is live.
    fn plan_rewrite(&self, version: &Version) -> Option<Merge> {
        let live = version.live_of_packs();
        let is_half_dead = |pack: &Arc<Pack>| live.get(&pack.number).copied().unwrap_or(0) * 2 < pack.bytes();
        let half_dead: HashSet<u64> =
            version.packs.values().filter(|pack| is_half_dead(pack)).map(|pack| pack.number).collect();
        self.plan_leaving(version, half_dead)
    }

    /// A table that names one of `packs` is written anew, without them.
    pub(crate) fn plan_leaving(&self, version: &Version, packs: HashSet<u64>) -> Option<Merge> {
        let names_one =
            |table: &Arc<Table>| table.list.totals().packs.iter().any(|(pack, _)| packs.contains(pack));
        let levels = version.levels.iter().enumerate();
        let mut tables = levels.flat_map(|(level, tables)| tables.iter().map(move |table| (level, table)));
        let (level, table) = tables.find(|(_, table)| names_one(table))?;
        let mut merge = self.rewrite(version, level, table);
        merge.leaving.extend(self.poor_packs(version));
        merge.leaving.extend(packs);
        Some(merge)
    }

    /// A table is written anew where it is.
    pub(crate) fn rewrite(&self, version: &Version, level: usize, table: &Arc<Table>) -> Merge {
        let is_bottom = version.below(table).is_none_or(|below| version.is_bottom(table, below));
        let merge = Merge::new(level, Vec::new(), vec![Arc::clone(table)], is_bottom, HashSet::new());
        Merge { is_rewrite: true, ..merge }
    }

    fn poor_packs(&self, version: &Version) -> HashSet<u64> {
        let live = version.live_of_packs();
        let is_poor = |pack: &&Arc<Pack>| {
            pack.len < self.sizes.small_pack
                || live.get(&pack.number).copied().unwrap_or(0) * 2 < pack.bytes()
        };
        version.packs.values().filter(is_poor).map(|pack| pack.number).collect()
    }

    /// Tables that overlap nothing below go down as they are.
    fn lower_level(&self, work: &mut Work, version: &Arc<Version>, merge: Merge) -> Result<()> {
        let mut next = Version::clone(version);
        for level in &mut next.levels {
            level.retain(|table| merge.upper.iter().all(|upper| !Arc::ptr_eq(table, upper)));
        }
        next.levels[merge.level].extend(merge.upper);
        next.levels[merge.level].sort_by(|a, b| a.list.first_key().cmp(b.list.first_key()));
        let up_to = work.up_to;
        self.write_manifest(work, &next, up_to)?;
        let lowered = next.levels[merge.level].iter().filter(|table| !table.is_settled()).cloned().collect();
        self.publish_version(next, false);
        self.settle(work, lowered)
    }

    /// Has the files of flushed tables moved into their directories.
    pub(crate) fn settle(&self, work: &mut Work, tables: Vec<Arc<Table>>) -> Result<()> {
        if !tables.is_empty() {
            let after = staged_garbage(&tables)?;
            work.job = Some(Job::Moving(Moving::new(tables, after)));
        }
        Ok(())
    }

    /// One part, or the end of the merge.
    pub(crate) fn merge_some(&self, work: &mut Work, views: &Views) -> Result<()> {
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
            // It begins anew, once there is room: what it has written goes.
            Err(ref error) => {
                work.sweep_due = true;
                work.is_cramped = error.is_no_space();
                work.is_stuck = true;
            }
        }
        answer
    }

    fn merge_part(&self, work: &mut Work, merge: &mut Merge, views: &Views) -> Result<()> {
        let (part, last) = (merge.part, merge.lower.len().saturating_sub(1));
        let lower = merge.lower.get(part).cloned();
        let low = lower.as_ref().filter(|_| part > 0).map(|table| table.list.first_key().to_vec());
        let high =
            merge.lower.get(part + 1).filter(|_| part < last).map(|table| table.list.first_key().to_vec());
        let from = low.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let is_within = |key: &[u8]| high.as_deref().is_none_or(|high| key < high);

        let mut load = Load::default();
        for table in &merge.upper {
            let mut lane = TableLane::new(vec![Arc::clone(table)], from, Way::Up);
            while lane.peek().is_some_and(is_within) {
                lane.take_group()?.1.iter().for_each(|item| load.add(&item.what));
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
        let pieces = self.pieces(&load);
        let share = Load {
            files: load.files / pieces + 1,
            entries: load.entries / pieces + 1,
            bytes: load.bytes / pieces + 1,
        };
        let mut lanes = Vec::new();
        for table in merge.upper.iter().chain(&lower) {
            lanes.push(TableLane::new(vec![Arc::clone(table)], from, Way::Up));
        }
        let lower = lower.map(|table| table.dir);
        let mut maker = Maker { outputs: Outputs::default(), piece: Load::default(), share, lower };
        let mut front = Front::new(lanes.iter().map(TableLane::peek), Way::Up);
        let mut with = Vec::new();
        loop {
            let next = front.first(|lane| lanes[lane].peek(), &mut with);
            let Some(key) = next.filter(|key| is_within(key)).map(<[u8]>::to_vec) else { break };
            let mut versions: Vec<(Arc<Table>, Item)> = Vec::new();
            for lane in &with {
                let (table, items) = lanes[*lane].take_group()?;
                front.renew(*lane, lanes[*lane].peek());
                versions.extend(items.into_iter().map(|item| (Arc::clone(&table), item)));
            }
            self.keep(work, merge, &mut maker, views, &key, versions)?;
        }
        merge.outputs.extend(self.end_lists(maker.outputs)?);
        Ok(())
    }

    /// Into how many tables so much goes.
    fn pieces(&self, load: &Load) -> u64 {
        let times = |have: u64, share: u64| if have > share * 2 { have.div_ceil(share) } else { 1 };
        times(load.files, self.sizes.table_files)
            .max(times(load.entries, self.sizes.table_entries))
            .max(times(load.bytes, self.sizes.table_bytes))
    }

    /// Adds those versions of a key that anybody may still see.
    fn keep(
        &self,
        work: &mut Work,
        merge: &mut Merge,
        maker: &mut Maker,
        views: &Views,
        key: &[u8],
        versions: Vec<(Arc<Table>, Item)>,
    ) -> Result<()> {
        let mut kept: Vec<(Arc<Table>, Item)> = Vec::new();
        let mut newer = None;
        for (table, item) in versions {
            let is_needed = newer.is_none_or(|newer| views.may_need(item.seq, newer));
            newer = Some(item.seq);
            match (is_needed, item.what) {
                (true, _) => kept.push((table, item)),
                (false, What::File { blob, .. }) => merge.note_gone(maker.lower, &table, key, &blob),
                (false, _) => {}
            }
        }
        while merge.is_bottom && kept.last().is_some_and(|(_, item)| item.what == What::Gone) {
            kept.pop();
        }
        if kept.is_empty() {
            return Ok(());
        }
        let hash = self.shelf.hash(key);
        let dir = maker.table(self, work)?;
        for (table, mut item) in kept {
            maker.piece.add(&item.what);
            match &mut item.what {
                What::File { blob, home } => {
                    *home = match table.is_settled() {
                        false => Home::Staged,
                        true if table.dir == dir => Home::Here,
                        true => Home::Dir(table.dir),
                    };
                    if *home != Home::Here {
                        merge.note_gone(maker.lower, &table, key, blob);
                    }
                }
                What::Packed { pack, offset, len, sum } if merge.leaving.contains(pack) => {
                    if let Some(from) = self.version().packs.get(pack) {
                        let (to, disk) = (merge.pack_writer(self, work), self.disk()?);
                        *offset = from.read(*offset, *len, *sum, |value| to.add(value))?;
                        *pack = to.number;
                        to.write_if_full(disk)?;
                    }
                }
                What::Packed { .. } | What::Gone => {}
            }
            if let Some(made) = &mut maker.outputs.open {
                made.writer.add(hash, &item);
            }
        }
        Ok(())
    }

    /// Names the outputs in the manifest, and publishes them.
    fn end_merge(&self, work: &mut Work, merge: &mut Merge) -> Result<()> {
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
            let path = &self.shelf.path;
            self.disk()?.sync_dir(path).during("sync directory", path)?;
            next.packs.insert(pack.number, Arc::new(pack));
        }
        let at = position.min(next.levels[merge.level].len());
        next.levels[merge.level].splice(at..at, merge.outputs.iter().cloned());
        if merge.level > 0 {
            next.levels[merge.level].sort_by(|a, b| a.list.first_key().cmp(b.list.first_key()));
        }
        let live = next.live_of_packs();
        let is_dead = |pack: &&u64| !live.contains_key(*pack);
        let mut after: Vec<Garbage> = next
            .packs
            .keys()
            .filter(is_dead)
            .map(|pack| Garbage::File(self.shelf.path.join(names::pack_name(*pack))))
            .collect();
        next.packs.retain(|pack, _| live.contains_key(pack));
        let staying: HashSet<u64> = next.tables().map(|table| table.dir).collect();
        for table in present.tables().filter(|table| is_input(table)) {
            after.push(Garbage::File(self.shelf.path.join(names::list_name(table.list.number()))));
            if !staying.contains(&table.dir) {
                after.push(Garbage::Tree(self.shelf.dir(table.dir), None));
            }
        }
        let gone = merge.gone.iter().filter(|(dir, _)| staying.contains(dir));
        after.extend(gone.map(|(dir, name)| Garbage::Value(*dir, name.clone())));
        merge.staged.sort_unstable(); // as their inodes lie
        after.extend(merge.staged.iter().map(|id| Garbage::Staged(*id)));
        let up_to = work.up_to;
        self.write_manifest(work, &next, up_to)?;
        self.publish_version(next, false);
        (work.is_cramped, work.is_stuck) = (false, false);
        let tables = std::mem::take(&mut merge.outputs);
        work.job = Some(Job::Moving(Moving::new(tables, after)));
        Ok(())
    }
}

/// Outputs of a part.
struct Maker {
    outputs: Outputs,
    piece: Load,
    share: Load,
    /// The lower table's directory, which the first output keeps.
    lower: Option<u64>,
}

impl Maker {
    /// The directory of the table that the next key goes to.
    fn table(&mut self, engine: &DelsmEngine, work: &mut Work) -> Result<u64> {
        let (piece, share) = (&self.piece, &self.share);
        let is_full =
            piece.files >= share.files || piece.entries >= share.entries || piece.bytes >= share.bytes;
        if let Some(made) = self.outputs.open.as_ref().filter(|_| !is_full) {
            return Ok(made.dir);
        }
        self.piece = Load::default();
        let (dir, is_new) = match self.lower.filter(|_| self.outputs.is_empty()) {
            Some(dir) => (dir, false),
            None => (work.number(), true),
        };
        let made = Made::new(&engine.shelf, dir, is_new, work.number());
        engine.begin_list(&mut self.outputs, made)?;
        Ok(dir)
    }
}

impl Merge {
    /// Staged values that go when it is done.
    pub(crate) fn staged(&self) -> &[u64] {
        &self.staged
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
            leaving,
            pack: None,
            gone: Vec::new(),
            staged: Vec::new(),
        }
    }

    /// The name that a file had in `table` goes, with its directory if that goes: the file has another by then, or is dead.
    fn note_gone(&mut self, lower: Option<u64>, table: &Table, key: &[u8], blob: &BlobRef) {
        if !table.is_settled() {
            self.staged.push(blob.id);
        } else if Some(table.dir) == lower {
            self.gone.push((table.dir, names::value_name(key, blob.id)));
        }
    }

    fn pack_writer(&mut self, engine: &DelsmEngine, work: &mut Work) -> &mut PackWriter {
        self.pack
            .get_or_insert_with(|| PackWriter::new(&engine.shelf.path, engine.shelf.owner(), work.number()))
    }
}
