//! # Rest: garbage that no merge meets
//!
//! A version that a table supersedes stays until a merge meets it, and a level that is not full is never merged. So when
//! nothing else is to do, tables are surveyed for what goes with them, and merged while that is too much.
//!
//! ## Picture
//!
//! ```text
//!  no commit for some looks ─> files of flushed tables get their names ─> survey, some keys a step
//!                                  ┌────────────────────────────────────────┘
//!                                  v
//!      too much garbage? ── no ──> rest
//!            │ yes                  dead: the table that supersedes most goes down, or is written anew
//!            └─> a merge, and again holes: the tables that name the emptiest pack are written anew
//! ```
//!
//! *Dead* is a version that a newer one supersedes and no view needs, and a removal, which hides nothing once its table is at
//! the bottom. *Holes* are bytes of packs that no table names. Of each there is at most one byte to [`SHARE`] live ones at rest,
//! beyond [`Sizes::least_garbage`](crate::sizes::Sizes); and what a memtable at rest supersedes is at most one to [`MEMTABLE_SHARE`].
//!
//! ## Invariants
//!
//! 1. What a survey counts as dead goes with merges of the surveyed table and nothing else: down, until it meets it, or in place. A
//!    merge moves tables down or makes them smaller, so this comes to an end.
//! 2. A table is surveyed once, and again when views were released that may have needed what it supersedes. What is
//!    below it may change meanwhile; that it supersedes something there does not.
//!
//! ## Costs
//!
//! A survey looks up each key of a table in those below that overlap it; most tables overlap none and are not read. Garbage of
//! an eighth is removed by writing lists of 45 bytes a key, but packed values by copying packs that have holes of an eighth.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::lull::Lull;
use sheaf_base::record::Content;
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::engine::DelsmEngine;
use crate::list::{Item, What};
use crate::manifest::LEVELS;
use crate::merge::Merge;
use crate::tree::{Below, State, Table, Version};
use crate::work::Work;

/// Live bytes to a dead one, and to one of a hole.
const SHARE: u64 = 8;
/// Live bytes to one that a memtable supersedes.
const MEMTABLE_SHARE: u64 = 20;
/// About what a list takes for an entry.
const ENTRY: u64 = 48;

/// What goes with a table.
#[derive(Clone, Copy, Debug, Default)]
struct Dead {
    bytes: u64,
    /// A view needs some of what it supersedes.
    is_pinned: bool,
}

/// A table that is being surveyed.
#[derive(Debug)]
struct Survey {
    table: Arc<Table>,
    block: usize,
    found: Dead,
}

/// What is known of garbage.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// As it is seen when there is nothing to do.
    lull: Lull,
    /// By number of list.
    known: HashMap<u64, Dead>,
    survey: Option<Survey>,
}

impl DelsmEngine {
    /// What is to do when nothing else is. False if there is nothing, or no rest.
    pub(crate) fn rest(&self, work: &mut Work, views: &Views, version: &Arc<Version>) -> Result<bool> {
        let rest = &mut work.rest;
        let looks = rest.lull.look(self.state(&epoch::pin()).memtables.active.newest());
        if self.released.swap(false, Ordering::Relaxed) {
            rest.known.retain(|_, dead| !dead.is_pinned);
        }
        if looks < self.sizes.looks {
            return Ok(false);
        }
        let unsettled: Vec<Arc<Table>> = version.tables().filter(|t| !t.is_settled()).cloned().collect();
        if !unsettled.is_empty() {
            return self.settle(work, unsettled).map(|()| true);
        }
        if self.survey(&mut work.rest, views, version)? {
            return Ok(true);
        }
        match self.plan_tidy(work, version) {
            Some(merge) => self.begin_merge(work, views, version, merge).map(|()| true),
            None => Ok(false),
        }
    }

    /// Surveys some more. False if all is known.
    fn survey(&self, rest: &mut Rest, views: &Views, version: &Version) -> Result<bool> {
        let is_there = |number: u64| version.tables().any(|table| table.list.number() == number);
        let mut survey = match rest.survey.take().filter(|survey| is_there(survey.table.list.number())) {
            Some(survey) => survey,
            None => match version.tables().find(|table| !rest.known.contains_key(&table.list.number())) {
                Some(table) => Survey { table: Arc::clone(table), block: 0, found: Dead::default() },
                None => return Ok(false),
            },
        };
        let Some(below) = version.below(&survey.table) else { return Ok(true) };
        let is_bottom = version.is_bottom(&survey.table, below);
        let blocks = survey.table.list.block_count();
        if is_bottom && !survey.table.is_layered {
            survey.found.bytes = survey.table.list.totals().removals * ENTRY;
            survey.block = blocks;
        }
        let mut seen = 0;
        while survey.block < blocks && seen < self.sizes.surveyed {
            let items = survey.table.list.items(survey.block)?;
            for group in items.chunk_by(|a, b| a.key == b.key) {
                let found = self.dead_of(group, (version, below), views)?;
                survey.found.bytes += found.bytes;
                survey.found.is_pinned |= found.is_pinned;
            }
            seen += items.len();
            survey.block += 1;
        }
        if survey.block == blocks {
            rest.known.retain(|number, _| is_there(*number));
            rest.known.insert(survey.table.list.number(), survey.found);
        } else {
            rest.survey = Some(survey);
        }
        Ok(true)
    }

    /// What goes with the versions of a key in a table, the newest first: of themselves, and of what the next table below has.
    fn dead_of(&self, group: &[Item], (version, below): (&Version, Below), views: &Views) -> Result<Dead> {
        let mut dead = Dead::default();
        let Some(oldest) = group.last() else { return Ok(dead) };
        let mut supersede = |born: Seq, died: Seq, what: &What| match views.may_need(born, died) {
            true => dead.is_pinned = true,
            false => dead.bytes += ENTRY + bytes_of(what),
        };
        for pair in group.windows(2) {
            supersede(pair[1].seq, pair[0].seq, &pair[1].what);
        }
        let hash = self.shelf.hash(&oldest.key);
        if let Some((_, seq, what)) = version.find_below(below, hash, &oldest.key, Seq::LATEST)? {
            supersede(seq, oldest.seq, &what);
        }
        if oldest.what == What::Gone && !dead.is_pinned {
            dead.bytes += ENTRY;
        }
        Ok(dead)
    }

    /// A merge that frees most, if there is too much garbage.
    fn plan_tidy(&self, work: &mut Work, version: &Version) -> Option<Merge> {
        let known = &work.rest.known;
        let bytes_of = |table: &Arc<Table>| known.get(&table.list.number()).map_or(0, |dead| dead.bytes);
        let dead: u64 = version.tables().map(bytes_of).sum();
        let live = version.tables().map(named_bytes).sum::<u64>().saturating_sub(dead);
        let too_much = live / SHARE + self.sizes.least_garbage;
        if dead > too_much {
            let of_level = |level: usize| version.levels[level].iter().map(move |table| (level, table));
            let (level, table) = (0..LEVELS).flat_map(of_level).max_by_key(|(_, table)| bytes_of(table))?;
            let is_bottom = version.below(table).is_none_or(|below| version.is_bottom(table, below));
            return match is_bottom {
                true => Some(self.rewrite(version, level, table)),
                false => self.plan_down(work, version, level, Some(table)),
            };
        }
        if work.is_cramped {
            return None; // copies take room first
        }
        let named = version.live_of_packs();
        let named = |pack: u64| named.get(&pack).copied().unwrap_or(0);
        let holes = |pack: u64, bytes: u64| bytes.saturating_sub(named(pack));
        let all: u64 = version.packs.values().map(|pack| holes(pack.number, pack.bytes())).sum();
        if all <= too_much {
            return None;
        }
        let leaky = version.packs.values().filter(|p| holes(p.number, p.bytes()) * SHARE > named(p.number));
        let leaky: HashSet<u64> = leaky.map(|pack| pack.number).collect();
        self.plan_leaving(version, leaky)
    }

    /// Whether what a small memtable at rest supersedes, in tables and in itself, is too much.
    pub(crate) fn hides_much(&self, state: &State, guard: &Guard) -> Result<bool> {
        let (active, version) = (&state.memtables.active, &state.version);
        let (mut places, mut dead) = (Vec::new(), 0);
        active.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        for place in places {
            let entry = active.entry(place);
            for older in entry.versions().skip(1) {
                dead += active.content(older.word, &self.shelf.ground, guard, |content| {
                    Ok(match content {
                        Content::Put(value) => value.len() as u64,
                        Content::Staged(blob) => u64::from(blob.len),
                        Content::Remove => 0,
                    })
                })?;
            }
            let key = entry.key();
            if let Some((_, _, what)) = version.find(self.shelf.hash(key), key, Seq::LATEST)? {
                dead += bytes_of(&what);
            }
        }
        let all: u64 = version.tables().map(named_bytes).sum();
        Ok(dead > all / MEMTABLE_SHARE + self.sizes.least_garbage)
    }
}

/// Bytes of a value.
fn bytes_of(what: &What) -> u64 {
    match what {
        What::File { blob, .. } => u64::from(blob.len),
        What::Packed { len, .. } => u64::from(*len),
        What::Gone => 0,
    }
}

/// Bytes of what a table names, and of its list, about.
fn named_bytes(table: &Arc<Table>) -> u64 {
    let totals = table.list.totals();
    totals.file_bytes + totals.packed_bytes() + totals.entries * ENTRY
}
