//! # A life: random steps on a database and on maps

use std::collections::BTreeMap;
use std::time::Duration;

use sheaf::{Database, Keyspace, Snapshot};

use super::{Pairs, Verdict, must};
use crate::conformance::bytes;
use crate::crash::workload::Random;
use crate::stage::Stage;

/// Keys there are.
const KEYS: usize = 90;
/// Snapshots open at a time.
const OPEN: usize = 3;

/// What each keyspace has.
pub type Maps = BTreeMap<String, Pairs>;

/// See the module.
pub struct Life<'a> {
    stage: &'a Stage,
    db: Database,
    engines: Vec<&'static str>,
    maps: Maps,
    snapshots: Vec<(Snapshot, Maps)>,
    draw: Random,
}

impl<'a> Life<'a> {
    /// A new one, with a keyspace of each of `engines`.
    pub fn new(stage: &'a Stage, db: Database, engines: &[&'static str], seed: u64) -> Life<'a> {
        let maps = (0..engines.len()).map(|space| (name_of(space), Pairs::new())).collect();
        let life = Life::with(stage, db, engines, seed, maps);
        (0..engines.len()).for_each(|space| drop(life.keyspace(space)));
        life
    }

    /// One that goes on.
    pub fn with(stage: &'a Stage, db: Database, engines: &[&'static str], seed: u64, maps: Maps) -> Life<'a> {
        let draw = Random::new(seed.wrapping_mul(77));
        Life { stage, db, engines: engines.to_vec(), maps, snapshots: Vec::new(), draw }
    }

    /// The database.
    #[must_use]
    pub fn db(&self) -> &Database {
        &self.db
    }

    /// What it has.
    #[must_use]
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The draws.
    pub fn draw(&mut self) -> &mut Random {
        &mut self.draw
    }

    fn keyspace(&self, space: usize) -> Verdict<Keyspace> {
        let options = self.stage.subject.options_of(self.engines[space]);
        must("keyspace", self.db.keyspace(&name_of(space), options))
    }

    fn map(&mut self, space: usize) -> &mut Pairs {
        self.maps.entry(name_of(space)).or_default()
    }

    fn key(&mut self) -> Vec<u8> {
        let few = self.draw.index(3) == 0;
        format!("key-{:04}", self.draw.index(if few { 9 } else { KEYS })).into_bytes()
    }

    /// Values in the log, in packs, in slots of chunks, in files of their own.
    fn value(&mut self) -> Vec<u8> {
        let len = match self.draw.index(24) {
            0 => 1_100 + self.draw.index(3_000),
            1 => 300 + self.draw.index(300),
            2 => 20_000,
            _ => self.draw.index(150),
        };
        bytes(len, self.draw.next())
    }

    fn change(&mut self) -> Option<Vec<u8>> {
        if self.draw.index(4) == 0 { None } else { Some(self.value()) }
    }

    fn note(&mut self, space: usize, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.map(space).insert(key, value)),
            None => drop(self.map(space).remove(&key)),
        }
    }

    /// One step.
    pub fn step(&mut self) -> Verdict {
        let space = self.draw.index(self.engines.len());
        match self.draw.index(100) {
            0..=54 => self.change_one(space),
            55..=69 => self.batch(),
            70..=86 => must("pump", self.db.pump()).map(drop),
            87..=92 => {
                self.stage.advance(Duration::from_millis(60));
                Ok(())
            }
            93..=95 => self.look_back(),
            96 => {
                must("clear", self.keyspace(space)?.clear())?;
                self.map(space).clear();
                Ok(())
            }
            97 => {
                must("drop", self.db.drop_keyspace(&name_of(space)))?;
                self.maps.remove(&name_of(space));
                Ok(())
            }
            _ => must("persist", self.db.persist()),
        }
    }

    fn change_one(&mut self, space: usize) -> Verdict {
        let (keyspace, key, value) = (self.keyspace(space)?, self.key(), self.change());
        self.map(space); // it is there now
        match &value {
            Some(value) => must("insert", keyspace.insert(&key, value))?,
            None => must("remove", keyspace.remove(&key))?,
        }
        self.note(space, key, value);
        Ok(())
    }

    fn batch(&mut self) -> Verdict {
        let mut batch = self.db.batch();
        let mut changes = Vec::new();
        for _ in 0..1 + self.draw.index(12) {
            let space = self.draw.index(self.engines.len());
            changes.push((space, self.keyspace(space)?, self.key(), self.change()));
        }
        for (_, keyspace, key, value) in &changes {
            match value {
                Some(value) => batch.insert(keyspace, key, value),
                None => batch.remove(keyspace, key),
            };
        }
        must("batch", batch.commit())?;
        for (space, _, key, value) in changes {
            self.map(space);
            self.note(space, key, value);
        }
        Ok(())
    }

    /// Opens a snapshot, or compares one and closes it.
    fn look_back(&mut self) -> Verdict {
        if self.snapshots.len() < OPEN && self.draw.index(2) == 0 {
            let snapshot = must("snapshot", self.db.snapshot())?;
            self.snapshots.push((snapshot, self.maps.clone()));
            return Ok(());
        }
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let which = self.draw.index(self.snapshots.len());
        let (snapshot, maps) = self.snapshots.swap_remove(which);
        for (name, map) in maps {
            let keyspace = must("keyspace of a snapshot", snapshot.keyspace(&name))?;
            let pairs = must("iter", keyspace.iter())?;
            same(&name, pairs, &map).map_err(|why| format!("snapshot: {why}"))?;
        }
        Ok(())
    }

    /// A checkpoint, cleaning, whatever is due; in an orderly way or by a kill.
    pub fn settle(&mut self) -> Verdict {
        self.snapshots.clear();
        for _ in 0..40 {
            self.stage.advance(Duration::from_millis(60));
            must("pump", self.db.pump())?;
        }
        Ok(())
    }

    /// Closes; what it had.
    pub fn close(mut self) -> Verdict<Maps> {
        self.snapshots.clear();
        must("close", self.db.close())?;
        Ok(self.maps)
    }

    /// Closes, opens again, and compares.
    pub fn end(self) -> Verdict {
        let stage = self.stage;
        let maps = self.close()?;
        compare(&must("open", stage.try_open())?, &maps).map_err(|why| format!("reopened: {why}"))
    }
}

fn name_of(space: usize) -> String {
    format!("space-{space}")
}

/// Whether the database has exactly these keyspaces with exactly these pairs.
pub fn compare(db: &Database, maps: &Maps) -> Verdict {
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    if !names.iter().eq(maps.keys()) {
        return Err(format!("keyspaces {names:?}, not {:?}", maps.keys()));
    }
    for (name, map) in maps {
        let Some(keyspace) = must("keyspace", db.existing_keyspace(name))? else { continue };
        same(name, must("iter", keyspace.iter())?, map)?;
        for (key, value) in map.iter().step_by(7) {
            let got = must("get", keyspace.get(key))?;
            if got.as_deref() != Some(value) {
                return Err(format!("{name}: {} is wrong", key.escape_ascii()));
            }
        }
    }
    Ok(())
}

fn same(name: &str, pairs: sheaf::Iter, map: &Pairs) -> Verdict {
    let mut found = Pairs::new();
    for pair in pairs {
        let (key, value) = must("iterator", pair)?;
        found.insert(key.to_vec(), value.to_vec());
    }
    if found == *map {
        return Ok(());
    }
    let differs = |key: &&Vec<u8>| found.get(*key) != map.get(*key);
    let keys: Vec<String> = map
        .keys()
        .chain(found.keys())
        .filter(differs)
        .take(4)
        .map(|k| k.escape_ascii().to_string())
        .collect();
    Err(format!("{name} has {} pairs, not {}; they differ at {keys:?}", found.len(), map.len()))
}
