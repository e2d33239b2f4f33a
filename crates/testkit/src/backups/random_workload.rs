//! # Random workload: random steps on a database and on maps

use std::collections::BTreeMap;
use std::time::Duration;

use sheaf::{Database, Keyspace, Snapshot};

use super::{CheckResult, PairMap, expect_ok};
use crate::conformance::bytes;
use crate::crash::workload::TestRandom;
use crate::fixture::Fixture;

/// Number of keys.
const KEYS: usize = 90;
/// Maximum number of open snapshots.
const MAX_OPEN_SNAPSHOTS: usize = 3;

/// Expected pairs of each keyspace, by name.
pub type KeyspaceMaps = BTreeMap<String, PairMap>;

/// A database and its expected pairs.
pub struct RandomWorkload<'a> {
    fixture: &'a Fixture,
    db: Database,
    engines: Vec<&'static str>,
    maps: KeyspaceMaps,
    snapshots: Vec<(Snapshot, KeyspaceMaps)>,
    random: TestRandom,
}

impl<'a> RandomWorkload<'a> {
    /// Returns a new workload, with a keyspace for each of `engines`.
    pub fn new(
        fixture: &'a Fixture,
        db: Database,
        engines: &[&'static str],
        seed: u64,
    ) -> RandomWorkload<'a> {
        let maps = (0..engines.len()).map(|space| (keyspace_name(space), PairMap::new())).collect();
        let life = RandomWorkload::resume(fixture, db, engines, seed, maps);
        (0..engines.len()).for_each(|space| drop(life.keyspace(space)));
        life
    }

    /// Returns a workload that continues on a database with these pairs.
    pub fn resume(
        fixture: &'a Fixture,
        db: Database,
        engines: &[&'static str],
        seed: u64,
        maps: KeyspaceMaps,
    ) -> RandomWorkload<'a> {
        let draw = TestRandom::new(seed.wrapping_mul(77));
        RandomWorkload { fixture, db, engines: engines.to_vec(), maps, snapshots: Vec::new(), random: draw }
    }

    /// Returns the database.
    #[must_use]
    pub fn db(&self) -> &Database {
        &self.db
    }

    /// Returns the expected pairs.
    #[must_use]
    pub fn maps(&self) -> &KeyspaceMaps {
        &self.maps
    }

    /// Returns the random number generator.
    pub fn random(&mut self) -> &mut TestRandom {
        &mut self.random
    }

    fn keyspace(&self, space: usize) -> CheckResult<Keyspace> {
        let options = self.fixture.subject.options_of(self.engines[space]);
        expect_ok("keyspace", self.db.keyspace(&keyspace_name(space), options))
    }

    fn map(&mut self, space: usize) -> &mut PairMap {
        self.maps.entry(keyspace_name(space)).or_default()
    }

    fn key(&mut self) -> Vec<u8> {
        let few = self.random.index_below(3) == 0;
        format!("key-{:04}", self.random.index_below(if few { 9 } else { KEYS })).into_bytes()
    }

    /// Draws a value that is stored in the log, in a pack, in a slot of a chunk file, or in its own
    /// file.
    fn value(&mut self) -> Vec<u8> {
        let len = match self.random.index_below(24) {
            0 => 1_100 + self.random.index_below(3_000),
            1 => 300 + self.random.index_below(300),
            2 => 20_000,
            _ => self.random.index_below(150),
        };
        bytes(len, self.random.next())
    }

    fn random_value(&mut self) -> Option<Vec<u8>> {
        if self.random.index_below(4) == 0 { None } else { Some(self.value()) }
    }

    fn record_change(&mut self, space: usize, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.map(space).insert(key, value)),
            None => drop(self.map(space).remove(&key)),
        }
    }

    /// Executes one step.
    ///
    /// # Errors
    ///
    /// Returns the error of the step, or a wrong snapshot.
    pub fn step(&mut self) -> CheckResult {
        let space = self.random.index_below(self.engines.len());
        match self.random.index_below(100) {
            0..=54 => self.put_or_remove(space),
            55..=69 => self.batch(),
            70..=86 => expect_ok("pump", self.db.pump()).map(drop),
            87..=92 => {
                self.fixture.advance(Duration::from_millis(60));
                Ok(())
            }
            93..=95 => self.check_snapshot(),
            96 => {
                expect_ok("clear", self.keyspace(space)?.clear())?;
                self.map(space).clear();
                Ok(())
            }
            97 => {
                expect_ok("drop", self.db.drop_keyspace(&keyspace_name(space)))?;
                self.maps.remove(&keyspace_name(space));
                Ok(())
            }
            _ => expect_ok("persist", self.db.persist()),
        }
    }

    fn put_or_remove(&mut self, space: usize) -> CheckResult {
        let (keyspace, key, value) = (self.keyspace(space)?, self.key(), self.random_value());
        self.map(space); // the keyspace exists from now on
        match &value {
            Some(value) => expect_ok("insert", keyspace.insert(&key, value))?,
            None => expect_ok("remove", keyspace.remove(&key))?,
        }
        self.record_change(space, key, value);
        Ok(())
    }

    fn batch(&mut self) -> CheckResult {
        let mut batch = self.db.batch();
        let mut changes = Vec::new();
        for _ in 0..1 + self.random.index_below(12) {
            let space = self.random.index_below(self.engines.len());
            changes.push((space, self.keyspace(space)?, self.key(), self.random_value()));
        }
        for (_, keyspace, key, value) in &changes {
            match value {
                Some(value) => batch.insert(keyspace, key, value),
                None => batch.remove(keyspace, key),
            };
        }
        expect_ok("batch", batch.commit())?;
        for (space, _, key, value) in changes {
            self.map(space);
            self.record_change(space, key, value);
        }
        Ok(())
    }

    /// Opens a snapshot, or compares one and closes it.
    fn check_snapshot(&mut self) -> CheckResult {
        if self.snapshots.len() < MAX_OPEN_SNAPSHOTS && self.random.index_below(2) == 0 {
            let snapshot = expect_ok("snapshot", self.db.snapshot())?;
            self.snapshots.push((snapshot, self.maps.clone()));
            return Ok(());
        }
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let which = self.random.index_below(self.snapshots.len());
        let (snapshot, maps) = self.snapshots.swap_remove(which);
        for (name, map) in maps {
            let keyspace = expect_ok("keyspace of a snapshot", snapshot.keyspace(&name))?;
            let pairs = expect_ok("iter", keyspace.iter())?;
            compare_keyspace(&name, pairs, &map).map_err(|why| format!("snapshot: {why}"))?;
        }
        Ok(())
    }

    /// Runs all background work that is due, for example checkpoints and GC.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    pub fn run_background(&mut self) -> CheckResult {
        self.snapshots.clear();
        for _ in 0..40 {
            self.fixture.advance(Duration::from_millis(60));
            expect_ok("pump", self.db.pump())?;
        }
        Ok(())
    }

    /// Closes the database and returns the expected pairs.
    ///
    /// # Errors
    ///
    /// Returns the error of the close.
    pub fn close(mut self) -> CheckResult<KeyspaceMaps> {
        self.snapshots.clear();
        expect_ok("close", self.db.close())?;
        Ok(self.maps)
    }

    /// Closes the database, opens it again, and compares it.
    ///
    /// # Errors
    ///
    /// Returns an error of the database, or the first difference.
    pub fn reopen_and_compare(self) -> CheckResult {
        let fixture = self.fixture;
        let maps = self.close()?;
        compare(&expect_ok("open", fixture.try_open())?, &maps).map_err(|why| format!("reopened: {why}"))
    }
}

fn keyspace_name(space: usize) -> String {
    format!("space-{space}")
}

/// Compares the database with the expected keyspaces and pairs.
///
/// # Errors
///
/// Returns an error of the database, or the first difference.
pub fn compare(db: &Database, maps: &KeyspaceMaps) -> CheckResult {
    let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    if !names.iter().eq(maps.keys()) {
        return Err(format!("keyspaces {names:?}, not {:?}", maps.keys()));
    }
    for (name, map) in maps {
        let Some(keyspace) = expect_ok("keyspace", db.open_keyspace(name))? else { continue };
        compare_keyspace(name, expect_ok("iter", keyspace.iter())?, map)?;
        for (key, value) in map.iter().step_by(7) {
            let got = expect_ok("get", keyspace.get(key))?;
            if got.as_deref() != Some(value) {
                return Err(format!("{name}: {} is wrong", key.escape_ascii()));
            }
        }
    }
    Ok(())
}

fn compare_keyspace(name: &str, pairs: sheaf::Iter, map: &PairMap) -> CheckResult {
    let mut found = PairMap::new();
    for pair in pairs {
        let (key, value) = expect_ok("iterator", pair)?;
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
