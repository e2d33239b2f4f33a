//! # Workload run: executes a workload and records its history
//!
//! The history is updated *around* every call: a commit is issued before the call and acknowledged
//! after it. An observer that reads the marks in between therefore knows the states that a crash at
//! that point may leave.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::Arc;
use std::time::Duration;

use sheaf::{BulkLoadOptions, Database, Durability, Error, Keyspace, KeyspaceOptions};
use sheaf_platform::clock::{Clock, UnixMillis};
use sheaf_platform::sync::Mutex;

use super::history::{CommitHistory, HistoryChange, KEYSPACE_NAMES};
use super::machine::TestMachine;
use super::workload::{CONVERSION_ENGINES, CrashStep, PutSpec, key_bytes, value_bytes};

/// A workload in progress.
pub struct WorkloadRun {
    /// The machine.
    pub machine: TestMachine,
    /// Commits issued and acknowledged so far.
    pub history: Arc<Mutex<CommitHistory>>,
    db: Option<Database>,
    keyspaces: [Option<Keyspace>; KEYSPACE_NAMES.len()],
}

impl WorkloadRun {
    /// Returns a run on `machine` with an empty history.
    #[must_use]
    pub fn new(machine: TestMachine) -> WorkloadRun {
        WorkloadRun { machine, history: Arc::default(), db: None, keyspaces: Default::default() }
    }

    /// Returns the database, and opens it if necessary.
    ///
    /// # Errors
    ///
    /// Returns the errors of the opening.
    pub fn db(&mut self) -> Result<Database, Error> {
        if self.db.is_none() {
            self.db = Some(self.machine.open()?);
        }
        Ok(self.db.as_ref().expect("opened above").clone())
    }

    /// Returns the database, if it is open.
    #[must_use]
    pub fn open_db(&self) -> Option<&Database> {
        self.db.as_ref()
    }

    /// Drops all handles.
    pub fn drop_handles(&mut self) {
        self.keyspaces = Default::default();
        self.db = None;
    }

    /// Executes `steps`, and stops at the first error.
    ///
    /// # Errors
    ///
    /// Returns the error of the first step that fails.
    pub fn run_steps(&mut self, steps: &[CrashStep]) -> Result<(), Error> {
        self.db()?;
        steps.iter().enumerate().try_for_each(|(number, step)| self.run_step(number, step))
    }

    /// Executes one step. After an error the newest commit may be issued, but not acknowledged.
    ///
    /// # Errors
    ///
    /// Returns the error of the first database call that fails.
    pub fn run_step(&mut self, number: usize, step: &CrashStep) -> Result<(), Error> {
        match step {
            CrashStep::Reopen => {
                self.keyspaces = Default::default();
                if let Some(db) = self.db.take() {
                    db.close()?;
                    self.history.lock().mark_all_durable();
                }
                self.db()?;
            }
            CrashStep::DropHandles => {
                self.drop_handles();
                self.db()?;
            }
            _ => {
                let db = self.db()?;
                self.execute_step(&db, number, step)?;
            }
        }
        if let Some(db) = &self.db {
            let stats = db.stats();
            self.history.lock().update_from_stats(stats.visible_seq, stats.durable_seq);
        }
        Ok(())
    }

    fn execute_step(&mut self, db: &Database, number: usize, step: &CrashStep) -> Result<(), Error> {
        match step {
            CrashStep::Put(put) => self.put_or_remove(number, *put)?,
            CrashStep::Batch(puts, sync) => self.batch(db, number, puts, *sync)?,
            CrashStep::Merge(puts) => self.merge(db, number, puts)?,
            CrashStep::PutExpiring(space, key, len, ttl) => {
                self.put_expiring(number, (*space, *key, *len), *ttl)?;
            }
            CrashStep::Persist => {
                db.persist()?;
                self.history.lock().mark_all_durable();
            }
            CrashStep::SyncInterval => {
                self.machine.tick(db)?;
            }
            CrashStep::Background => self.machine.run_background(db)?,
            CrashStep::Clear(space) => {
                let keyspace = self.keyspace(*space)?;
                self.history.lock().begin_commit(vec![HistoryChange::Clear(usize::from(*space))]);
                keyspace.clear()?;
                self.history.lock().acknowledge(true);
            }
            CrashStep::Drop(space) => {
                let space = usize::from(*space);
                if self.history.lock().newest().keyspaces[space].is_some() {
                    self.history.lock().begin_commit(vec![HistoryChange::Drop(space)]);
                    db.drop_keyspace(KEYSPACE_NAMES[space])?;
                    self.keyspaces[space] = None;
                    self.history.lock().acknowledge(true);
                }
            }
            CrashStep::Rename(from, to) => {
                let (from, to) = (usize::from(*from), usize::from(*to));
                let exists = [from, to].map(|space| self.history.lock().newest().keyspaces[space].is_some());
                if exists == [true, false] {
                    self.history.lock().begin_commit(vec![HistoryChange::Rename(from, to)]);
                    db.rename_keyspace(KEYSPACE_NAMES[from], KEYSPACE_NAMES[to])?;
                    self.keyspaces[to] = self.keyspaces[from].take();
                    self.history.lock().acknowledge(true);
                }
            }
            CrashStep::Compact(space) => drop(self.keyspace(*space)?.compact()?),
            CrashStep::Load(space, count) => self.bulk_load(db, number, usize::from(*space), *count)?,
            CrashStep::Convert(space, to) => self.convert(db, number, *space, *to)?,
            CrashStep::Reopen | CrashStep::DropHandles => {}
        }
        Ok(())
    }

    /// Loads the keyspace in a single commit of the history. Replaces its pairs, or keeps them if
    /// `count` is odd.
    fn bulk_load(&mut self, db: &Database, number: usize, space: usize, count: u8) -> Result<(), Error> {
        self.keyspace(space as u8)?;
        let (options, keeps) = (BulkLoadOptions::default(), count % 2 == 1);
        let options = if keeps { options.keep(true) } else { options.replace(true) };
        let mut loader = db.bulk_load(KEYSPACE_NAMES[space], options)?;
        let mut changes = Vec::new();
        if !keeps {
            changes.push(HistoryChange::Clear(space));
        }
        for key in 2..count.saturating_add(2) {
            let len = if key % 16 == 5 { 1_500 } else { u32::from(key) * 3 };
            // These keys sort between those of the other steps.
            let (key, value) =
                (format!("key{:03}", key).into_bytes(), value_bytes(number, usize::from(key), len));
            loader.push(&key, &value)?;
            changes.push(HistoryChange::Put(space, key, value));
        }
        self.history.lock().begin_commit(changes);
        loader.finish()?;
        self.history.lock().acknowledge(true);
        Ok(())
    }

    fn convert(&mut self, db: &Database, number: usize, space: u8, to: u8) -> Result<(), Error> {
        self.keyspace(space)?;
        let Some(mut conversion) =
            db.begin_conversion(KEYSPACE_NAMES[usize::from(space)], CONVERSION_ENGINES[usize::from(to)])?
        else {
            return Ok(());
        };
        for step in 1.. {
            match conversion.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert!(conversion.step().is_err(), "a conversion continues after {error}");
                    return Err(error);
                }
            }
            // Write during the conversion, but only for some steps, so that it ends.
            if step % 3 == 0 && step < 30 {
                let len = (step % 4 > 0).then_some(step as u32 * 7);
                self.put_or_remove(number, (space, 2 + (step % 5) as u8, len))?;
            }
        }
        Ok(())
    }

    /// Returns the keyspace of this number, and creates it if necessary.
    ///
    /// # Errors
    ///
    /// Returns the errors of the opening and of the creation.
    pub fn keyspace(&mut self, space: u8) -> Result<Keyspace, Error> {
        let space = usize::from(space);
        if let Some(keyspace) = &self.keyspaces[space] {
            return Ok(keyspace.clone());
        }
        let db = self.db()?;
        let is_new = self.history.lock().newest().keyspaces[space].is_none();
        if is_new {
            self.history.lock().begin_commit(vec![HistoryChange::Create(space)]);
        }
        // An existing keyspace may have been converted to another engine.
        let options = if is_new { self.machine.keyspace_options(space) } else { KeyspaceOptions::default() };
        let keyspace = db.keyspace(KEYSPACE_NAMES[space], options)?;
        if is_new {
            self.history.lock().acknowledge(true);
        }
        self.keyspaces[space] = Some(keyspace.clone());
        Ok(keyspace)
    }

    fn put_or_remove(&mut self, number: usize, put: PutSpec) -> Result<(), Error> {
        let (space, key, len) = put;
        let keyspace = self.keyspace(space)?;
        self.history.lock().begin_commit(vec![change(number, 0, put)]);
        match len {
            Some(len) => keyspace.insert(key_bytes(key), value_bytes(number, 0, len))?,
            None => keyspace.remove(key_bytes(key))?,
        }
        self.history.lock().acknowledge(false);
        Ok(())
    }

    fn put_expiring(&mut self, number: usize, put: (u8, u8, u32), ttl_ms: u32) -> Result<(), Error> {
        let (space, key, len) = put;
        let (keyspace, key, value) = (self.keyspace(space)?, key_bytes(key), value_bytes(number, 0, len));
        let time = UnixMillis(self.machine.clock.unix_millis().0 + u64::from(ttl_ms));
        let change = HistoryChange::PutExpiring(usize::from(space), key.clone(), value.clone(), time);
        self.history.lock().begin_commit(vec![change]);
        keyspace.insert_with_ttl(key, value, Duration::from_millis(ttl_ms.into()))?;
        self.history.lock().acknowledge(false);
        Ok(())
    }

    /// Merges the values of `puts`. Each commit is issued with the values that the operator must
    /// compute.
    fn merge(&mut self, db: &Database, number: usize, puts: &[PutSpec]) -> Result<(), Error> {
        for (space, _, _) in puts {
            self.keyspace(*space)?;
        }
        let (mut state, now) = (self.history.lock().newest().clone(), self.machine.clock.unix_millis());
        let mut changes = Vec::new();
        for (write, put) in puts.iter().enumerate() {
            let change = match change(number, write, *put) {
                // The operator is `append`. A pair keeps its time.
                HistoryChange::Put(space, key, operand) => match state.get_at(space, &key, now) {
                    Some((before, Some(time))) => {
                        let value = [before, &operand].concat();
                        HistoryChange::PutExpiring(space, key, value, time)
                    }
                    Some((before, None)) => HistoryChange::Put(space, key, [before, &operand].concat()),
                    None => HistoryChange::Put(space, key, operand),
                },
                other => other,
            };
            state.apply(&change);
            changes.push(change);
        }
        if let [(space, key, Some(len))] = *puts {
            let keyspace = self.keyspace(space)?;
            self.history.lock().begin_commit(changes);
            keyspace.merge(key_bytes(key), value_bytes(number, 0, len))?;
        } else {
            let mut batch = db.batch();
            for (write, (space, key, len)) in puts.iter().enumerate() {
                let keyspace = self.keyspace(*space)?;
                match len {
                    Some(len) => batch.merge(&keyspace, key_bytes(*key), value_bytes(number, write, *len)),
                    None => batch.remove(&keyspace, key_bytes(*key)),
                };
            }
            self.history.lock().begin_commit(changes);
            batch.commit()?;
        }
        self.history.lock().acknowledge(false);
        Ok(())
    }

    fn batch(&mut self, db: &Database, number: usize, puts: &[PutSpec], sync: bool) -> Result<(), Error> {
        for (space, _, _) in puts {
            self.keyspace(*space)?;
        }
        let mut batch = db.batch();
        let mut changes = Vec::new();
        for (write, put) in puts.iter().enumerate() {
            let (space, key, len) = *put;
            let keyspace = self.keyspace(space)?;
            match len {
                Some(len) => batch.insert(&keyspace, key_bytes(key), value_bytes(number, write, len)),
                None => batch.remove(&keyspace, key_bytes(key)),
            };
            changes.push(change(number, write, *put));
        }
        batch.durability(if sync { Durability::Sync } else { Durability::Buffer });
        self.history.lock().begin_commit(changes);
        let ticket = batch.submit()?;
        {
            let mut history = self.history.lock();
            history.acknowledge(false);
            history.marks.seq = history.marks.seq.max(ticket.seq());
        }
        ticket.wait()?;
        if sync {
            self.history.lock().mark_all_durable();
        }
        Ok(())
    }
}

fn change(number: usize, write: usize, (space, key, len): PutSpec) -> HistoryChange {
    let (space, key) = (usize::from(space), key_bytes(key));
    match len {
        Some(len) => HistoryChange::Put(space, key, value_bytes(number, write, len)),
        None => HistoryChange::Remove(space, key),
    }
}
