//! # Output: the new database, on its way
//!
//! Each keyspace is one in the making (`making`): it gets its name when all of it is there. Pairs go in the order of keys, straight into
//! the engine's files, as long as they come so; else by commits.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::open::{Space, damage};
use super::report::{
    Fate, Harms, KeyGap, KeyspaceRepair, MOST_GAPS, RepairFinding, RepairOptions, RepairProgress,
};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::engine::EngineFactory;
use crate::error::{Error, Result};
use crate::store::fill::Filling;
use crate::store::{Options, Store};
use crate::target::not_empty;
use crate::types::Seq;
use crate::value::ValueFile;

/// Progress is told after so many pairs, or bytes.
const OFTEN: u64 = 1 << 12;
const FAR: u64 = 4 << 20;

/// A value as it was found.
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    File(ValueFile),
}

/// Whether anybody misses a keyspace: it has a name, or pairs, or files that nothing could be read of.
fn is_missed(space: &Space, repair: &KeyspaceRepair) -> bool {
    !space.is_nameless || space.has_files || space.has_skipped || repair.doubtful > 0 || repair.lost > 0
}

/// The new database, and what is said of it.
pub(super) struct Output<'a, 'o> {
    pub(super) store: Arc<Store>,
    pub(super) spaces: &'a [Space],
    pub(super) repairs: Vec<KeyspaceRepair>,
    pub(super) harms: Harms,
    fillings: Vec<Option<Filling>>,
    options: &'a mut RepairOptions<'o>,
    progress: RepairProgress,
    told: RepairProgress,
}

impl<'a, 'o> Output<'a, 'o> {
    /// A new database at `dir`, for what `spaces` will give.
    pub(super) fn new(
        dir: &Path,
        options: Options,
        (disk, clock): (&Arc<dyn Disk>, &Arc<dyn Clock>),
        factories: &[Arc<dyn EngineFactory>],
        spaces: &'a [Space],
        repair: &'a mut RepairOptions<'o>,
        harms: Harms,
    ) -> Result<Output<'a, 'o>> {
        let store = Store::open(dir, options, Arc::clone(disk), Arc::clone(clock), factories.to_vec())?;
        if !store.keyspaces().is_empty() {
            return Err(not_empty(dir));
        }
        let of_space = |space: &Space| KeyspaceRepair {
            name: space.name.clone(),
            id: space.id,
            engine: space.engine_name.clone(),
            unindexed: space.unindexed.clone(),
            and_more: space.has_skipped,
            ..KeyspaceRepair::default()
        };
        Ok(Output {
            store,
            spaces,
            repairs: spaces.iter().map(of_space).collect(),
            harms,
            fillings: spaces.iter().map(|_| None).collect(),
            options: repair,
            progress: RepairProgress::default(),
            told: RepairProgress::default(),
        })
    }

    /// So many more bytes will be read.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.progress.total += bytes;
    }

    /// So many were.
    pub(super) fn read(&mut self, bytes: u64) -> Result<()> {
        self.progress.done += bytes;
        let Some(watcher) = &mut self.options.watcher else { return Ok(()) };
        let is_due =
            self.progress.done - self.told.done >= FAR || self.progress.pairs - self.told.pairs >= OFTEN;
        if is_due && watcher(self.progress) == ControlFlow::Break(()) {
            return Err(Error::Cancelled);
        }
        if is_due {
            self.told = self.progress;
        }
        Ok(())
    }

    /// Begins the keyspace in place `at`: in the order of keys if `is_sorted`.
    pub(super) fn begin(&mut self, at: usize, is_sorted: bool) -> Result<&mut Filling> {
        let (space, store) = (&self.spaces[at], &self.store);
        let filling = match self.fillings[at].take() {
            Some(filling) => filling,
            None => {
                Filling::new(store.begin_making(&space.name, &space.engine_name, &space.options)?, is_sorted)?
            }
        };
        Ok(self.fillings[at].insert(filling))
    }

    /// From now on pairs come in no order.
    pub(super) fn end_order(&mut self, at: usize) -> Result<()> {
        self.begin(at, false)?.end_order()
    }

    /// Whether the pair of `key` was written already.
    pub(super) fn has(&mut self, at: usize, key: &[u8]) -> Result<bool> {
        let filling = self.begin(at, false)?;
        filling.end_order()?;
        filling.kept().engine()?.contains(Seq::LATEST, key)
    }

    /// A pair: written if it is certain, or if doubtful ones are wanted.
    pub(super) fn pair(
        &mut self,
        at: usize,
        (key, seq): (&[u8], Option<Seq>),
        value: Value<'_>,
        is_doubtful: bool,
    ) -> Result<()> {
        if let Value::File(file) = &value
            && let Err(error) = file.check()
        {
            return self.lost(at, (key, seq), &damage(error)?);
        }
        self.progress.pairs += 1;
        let repair = &mut self.repairs[at];
        match is_doubtful {
            true => repair.doubtful += 1,
            false => repair.certain += 1,
        }
        if is_doubtful {
            self.tell(at, key, seq, Fate::Doubtful { kept: self.options.doubtful });
        }
        if is_doubtful && !self.options.doubtful {
            return Ok(());
        }
        let filling = self.begin(at, false)?;
        match value {
            Value::Bytes(value) => filling.put(key, value),
            Value::File(file) => filling.put_foreign(key, &file),
        }
    }

    /// A key whose value cannot be read.
    pub(super) fn lost(&mut self, at: usize, (key, seq): (&[u8], Option<Seq>), why: &Error) -> Result<()> {
        self.repairs[at].lost += 1;
        self.harms.error(why);
        self.tell(at, key, seq, Fate::Lost { why });
        Ok(())
    }

    /// Keys between these two cannot be read.
    pub(super) fn gap(&mut self, at: usize, (after, before): (Option<&[u8]>, Option<&[u8]>), why: &str) {
        let repair = &mut self.repairs[at];
        repair.and_more = true;
        if repair.gaps.len() < MOST_GAPS {
            let (after, before) = (after.map(<[u8]>::to_vec), before.map(<[u8]>::to_vec));
            repair.gaps.push(KeyGap { after, before, why: why.to_owned() });
        }
    }

    /// Tells whoever listens.
    pub(super) fn tell(&mut self, at: usize, key: &[u8], seq: Option<Seq>, fate: Fate<'_>) {
        let keyspace = &self.spaces[at].name;
        if let Some(listener) = &mut self.options.listener {
            listener(&RepairFinding { keyspace, key, seq, fate });
        }
    }

    /// Gives all keyspaces their names, and ends the new database in order.
    pub(super) fn finish(mut self) -> Result<(Vec<KeyspaceRepair>, Harms)> {
        for at in 0..self.spaces.len() {
            let is_named = is_missed(&self.spaces[at], &self.repairs[at]);
            if !is_named {
                continue; // nothing that anybody misses
            }
            self.begin(at, false)?;
            let Some(filling) = self.fillings[at].take() else { continue };
            let store = Arc::clone(&self.store);
            let _changing = store.catalogue.changing();
            filling.publish(None)?;
        }
        self.store.close()?;
        if let Some(watcher) = &mut self.options.watcher {
            let _ = watcher(self.progress);
        }
        let all = self.repairs.into_iter().zip(self.spaces);
        let missed = all.filter(|(repair, space)| is_missed(space, repair));
        let mut repairs: Vec<KeyspaceRepair> = missed.map(|(repair, _)| repair).collect();
        repairs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((repairs, self.harms))
    }
}
