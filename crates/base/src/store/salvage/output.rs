//! # Output: the new database, on its way
//!
//! Each keyspace is one in the making (`making`): it gets its name when all of it is there. Pairs go in the order of keys, straight into
//! the engine's files, as long as they come so; else by commits.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::open::{Space, damage};
use super::report::{Fate, KeyspaceRepair, RepairFinding, RepairOptions, RepairProgress};
use crate::clock::Clock;
use crate::disk::{Disk, Locked, Share, check_free, create_dirs, not_empty, remove_tree};
use crate::engine::EngineFactory;
use crate::error::{Error, IoContext, Result};
use crate::store::close::LOCK;
use crate::store::fill::Filling;
use crate::store::{Options, Store};
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

/// The directory of the new database: gone again, unless it is kept. It is claimed by its lock before anything is read, which may take
/// hours, and what others put there meanwhile stays.
pub(super) struct Target {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    was_there: bool,
    ours: Ours,
}

/// What of a target is its own.
enum Ours {
    /// The lock, which is held, and nothing else.
    Lock(Box<dyn fmt::Debug + Send + Sync>),
    All,
    Nothing,
}

impl Target {
    /// `dir`, which must not be there, or be empty but for a lock that nobody holds.
    pub(super) fn claim(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Target> {
        let was_there = check_free(&**disk, dir, Some(LOCK))?; // which may be left of one who was killed
        create_dirs(&**disk, dir)?;
        let lock = match disk.lock(&dir.join(LOCK), Share::Exclusive).during("lock", dir) {
            Ok(Locked::Held(lock)) => lock,
            Ok(Locked::Busy(pid)) => {
                return Err(Error::Locked { path: dir.to_path_buf(), pid, no_door: false });
            }
            Err(error) => {
                if !was_there {
                    let _ = disk.remove_dir(dir);
                }
                return Err(error);
            }
        };
        let ours = Ours::Lock(lock);
        let target = Target { disk: Arc::clone(disk), dir: dir.to_path_buf(), was_there, ours };
        check_free(&**disk, dir, Some(LOCK))?; // somebody may have come and gone since a moment ago
        Ok(target)
    }

    /// Has `open` make a database of it.
    pub(super) fn hand_over<T>(&mut self, open: impl FnOnce() -> Result<T>) -> Result<T> {
        self.ours = Ours::All; // and the lock is free
        open().inspect_err(|error| {
            if matches!(error, Error::Locked { .. } | Error::NotADatabase { .. } | Error::Invalid { .. }) {
                self.ours = Ours::Nothing; // somebody was faster
            }
        })
    }

    pub(super) fn keep(mut self) {
        self.ours = Ours::Nothing;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // What cannot be removed is half a database, without names for its keyspaces; or somebody else's.
        match std::mem::replace(&mut self.ours, Ours::Nothing) {
            Ours::Nothing => {}
            Ours::Lock(lock) => {
                let _ = self.disk.remove(&self.dir.join(LOCK));
                if !self.was_there {
                    let _ = self.disk.remove_dir(&self.dir);
                }
                drop(lock);
            }
            Ours::All => {
                if remove_tree(&*self.disk, &self.dir).is_ok() && self.was_there {
                    let _ = self.disk.create_dir(&self.dir);
                }
            }
        }
    }
}

/// The new database, and what is said of it.
pub(super) struct Output<'a, 'o> {
    pub(super) store: Arc<Store>,
    pub(super) spaces: &'a [Space],
    pub(super) repairs: Vec<KeyspaceRepair>,
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
            ..KeyspaceRepair::default()
        };
        Ok(Output {
            store,
            spaces,
            repairs: spaces.iter().map(of_space).collect(),
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
        self.tell(at, key, seq, Fate::Lost { why });
        Ok(())
    }

    /// Tells whoever listens.
    pub(super) fn tell(&mut self, at: usize, key: &[u8], seq: Option<Seq>, fate: Fate<'_>) {
        let keyspace = &self.spaces[at].name;
        if let Some(listener) = &mut self.options.listener {
            listener(&RepairFinding { keyspace, key, seq, fate });
        }
    }

    /// Gives all keyspaces their names, and ends the new database in order.
    pub(super) fn finish(mut self) -> Result<(Vec<KeyspaceRepair>, RepairProgress)> {
        for at in 0..self.spaces.len() {
            let is_named = !self.spaces[at].is_nameless || self.repairs[at].doubtful > 0;
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
        let nameless: Vec<bool> = self.spaces.iter().map(|space| space.is_nameless).collect();
        let all = self.repairs.into_iter().zip(nameless);
        let mut repairs: Vec<KeyspaceRepair> = all
            .filter(|(repair, nameless)| !nameless || repair.doubtful > 0)
            .map(|(repair, _)| repair)
            .collect();
        repairs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((repairs, self.progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::How;
    use crate::disk::sim::SimDisk;

    fn claim(disk: &Arc<dyn Disk>) -> Target {
        Target::claim(disk, Path::new("/new")).unwrap()
    }

    fn names(disk: &Arc<dyn Disk>) -> Vec<String> {
        let entries = disk.list(Path::new("/new")).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn what_others_put_into_a_target_outlives_a_repair_that_fails() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let target = claim(&disk);
        disk.open(Path::new("/new/letter"), How::Create).unwrap();
        drop(target);
        assert_eq!(names(&disk), ["letter"]);
        disk.remove(Path::new("/new/letter")).unwrap();
        let mut target = claim(&disk);
        disk.open(Path::new("/new/letter"), How::Create).unwrap();
        let why = || Error::NotADatabase { path: "/new".into(), why: "it has a letter".to_owned() };
        assert!(target.hand_over(|| Err::<(), _>(why())).is_err());
        drop(target);
        assert!(names(&disk).contains(&"letter".to_owned()));
    }

    #[test]
    fn nobody_opens_a_target_that_is_claimed() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let target = claim(&disk);
        assert!(matches!(disk.lock(Path::new("/new/LOCK"), Share::Exclusive), Ok(Locked::Busy(_))));
        assert!(matches!(Target::claim(&disk, Path::new("/new")), Err(Error::Locked { .. })));
        drop(target);
        assert!(disk.list(Path::new("/new")).is_err(), "it was not there before");
    }

    #[test]
    fn the_lock_of_one_who_was_killed_is_no_obstacle() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        disk.create_dir(Path::new("/new")).unwrap();
        disk.open(Path::new("/new/LOCK"), How::Create).unwrap();
        drop(claim(&disk));
        assert!(names(&disk).is_empty());
    }

    #[test]
    fn a_target_that_was_handed_over_goes_with_what_was_made_in_it() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        disk.create_dir(Path::new("/new")).unwrap();
        let mut target = claim(&disk);
        target
            .hand_over(|| {
                disk.open(Path::new("/new/ROOT.0"), How::Create).during("create", Path::new("/new"))
            })
            .unwrap();
        drop(target);
        assert!(names(&disk).is_empty(), "it was there before, and empty");
    }
}
