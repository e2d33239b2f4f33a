//! # Run: carrying out a workload, and writing down what it was promised
//!
//! The history is written *around* every call: a commit is issued before it and acknowledged after it.
//! A watcher that reads the marks in between knows what a crash at that moment may leave.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::sync::Arc;

use sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions, LoadOptions};
use sheaf_base::sync::Mutex;

use super::history::{Change, History, NAMES};
use super::workload::{ENGINES, Put, Step, key_bytes, value_bytes};
use super::world::World;

/// A workload on its way.
pub struct Run {
    /// The machine.
    pub world: World,
    /// What was promised.
    pub history: Arc<Mutex<History>>,
    db: Option<Database>,
    spaces: [Option<Keyspace>; NAMES.len()],
}

impl Run {
    /// A workload on `world` that knows nothing yet.
    #[must_use]
    pub fn new(world: World) -> Run {
        Run { world, history: Arc::default(), db: None, spaces: Default::default() }
    }

    /// The open database.
    pub fn db(&mut self) -> Result<Database, Error> {
        if self.db.is_none() {
            self.db = Some(self.world.open()?);
        }
        Ok(self.db.as_ref().expect("opened above").clone())
    }

    /// The database, if it is open.
    #[must_use]
    pub fn opened(&self) -> Option<&Database> {
        self.db.as_ref()
    }

    /// Lets go of every handle.
    pub fn abandon(&mut self) {
        self.spaces = Default::default();
        self.db = None;
    }

    /// Carries out `steps`; stops at the first error.
    pub fn all(&mut self, steps: &[Step]) -> Result<(), Error> {
        self.db()?;
        steps.iter().enumerate().try_for_each(|(number, step)| self.step(number, step))
    }

    /// Carries out one step. On an error the newest commit may be issued and not acknowledged.
    pub fn step(&mut self, number: usize, step: &Step) -> Result<(), Error> {
        match step {
            Step::Reopen => {
                self.spaces = Default::default();
                if let Some(db) = self.db.take() {
                    db.close()?;
                    self.history.lock().persisted();
                }
                self.db()?;
            }
            Step::Abandon => {
                self.abandon();
                self.db()?;
            }
            _ => {
                let db = self.db()?;
                self.carry_out(&db, number, step)?;
            }
        }
        if let Some(db) = &self.db {
            let stats = db.stats();
            self.history.lock().claim(stats.visible, stats.durable);
        }
        Ok(())
    }

    fn carry_out(&mut self, db: &Database, number: usize, step: &Step) -> Result<(), Error> {
        match step {
            Step::One(put) => self.one(number, *put)?,
            Step::Batch(puts, sync) => self.batch(db, number, puts, *sync)?,
            Step::Persist => {
                db.persist()?;
                self.history.lock().persisted();
            }
            Step::Tick => {
                self.world.tick(db)?;
            }
            Step::Work => self.world.work(db)?,
            Step::Clear(space) => {
                let keyspace = self.space(*space)?;
                self.history.lock().issue(vec![Change::Clear(usize::from(*space))]);
                keyspace.clear()?;
                self.history.lock().acknowledge(true);
            }
            Step::Drop(space) => {
                let space = usize::from(*space);
                if self.history.lock().newest().spaces[space].is_some() {
                    self.history.lock().issue(vec![Change::Drop(space)]);
                    db.drop_keyspace(NAMES[space])?;
                    self.spaces[space] = None;
                    self.history.lock().acknowledge(true);
                }
            }
            Step::Compact(space) => drop(self.space(*space)?.compact()?),
            Step::Load(space, count) => self.load(db, number, usize::from(*space), *count)?,
            Step::Convert(space, to) => self.convert(db, number, *space, *to)?,
            Step::Reopen | Step::Abandon => {}
        }
        Ok(())
    }

    /// One commit of everything, which is the keyspace from then on.
    fn load(&mut self, db: &Database, number: usize, space: usize, count: u8) -> Result<(), Error> {
        self.space(space as u8)?;
        let mut loader = db.bulk_load(NAMES[space], LoadOptions::default().replace(true))?;
        let mut changes = vec![Change::Clear(space)];
        for key in 2..count.saturating_add(2) {
            let len = if key % 16 == 5 { 1_500 } else { u32::from(key) * 3 };
            // In the order of keys, beside those of the other steps.
            let (key, value) =
                (format!("key{:03}", key).into_bytes(), value_bytes(number, usize::from(key), len));
            loader.push(&key, &value)?;
            changes.push(Change::Put(space, key, value));
        }
        self.history.lock().issue(changes);
        loader.finish()?;
        self.history.lock().acknowledge(true);
        Ok(())
    }

    fn convert(&mut self, db: &Database, number: usize, space: u8, to: u8) -> Result<(), Error> {
        self.space(space)?;
        let Some(mut conversion) =
            db.begin_conversion(NAMES[usize::from(space)], ENGINES[usize::from(to)])?
        else {
            return Ok(());
        };
        for step in 1.. {
            match conversion.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert!(conversion.step().is_err(), "a conversion goes on after {error}");
                    return Err(error);
                }
            }
            // Writes to it go on, but not for ever.
            if step % 3 == 0 && step < 30 {
                let len = (step % 4 > 0).then_some(step as u32 * 7);
                self.one(number, (space, 2 + (step % 5) as u8, len))?;
            }
        }
        Ok(())
    }

    /// The keyspace of this number, made if need be.
    pub fn space(&mut self, space: u8) -> Result<Keyspace, Error> {
        let space = usize::from(space);
        if let Some(keyspace) = &self.spaces[space] {
            return Ok(keyspace.clone());
        }
        let db = self.db()?;
        let is_new = self.history.lock().newest().spaces[space].is_none();
        if is_new {
            self.history.lock().issue(vec![Change::Create(space)]);
        }
        let subject = &self.world.subject;
        // One that is there may have been converted.
        let options =
            if is_new { subject.options_of(subject.engines()[space]) } else { KeyspaceOptions::default() };
        let keyspace = db.keyspace(NAMES[space], options)?;
        if is_new {
            self.history.lock().acknowledge(true);
        }
        self.spaces[space] = Some(keyspace.clone());
        Ok(keyspace)
    }

    fn one(&mut self, number: usize, put: Put) -> Result<(), Error> {
        let (space, key, len) = put;
        let keyspace = self.space(space)?;
        self.history.lock().issue(vec![change(number, 0, put)]);
        match len {
            Some(len) => keyspace.insert(key_bytes(key), value_bytes(number, 0, len))?,
            None => keyspace.remove(key_bytes(key))?,
        }
        self.history.lock().acknowledge(false);
        Ok(())
    }

    fn batch(&mut self, db: &Database, number: usize, puts: &[Put], sync: bool) -> Result<(), Error> {
        for (space, _, _) in puts {
            self.space(*space)?;
        }
        let mut batch = db.batch();
        let mut changes = Vec::new();
        for (write, put) in puts.iter().enumerate() {
            let (space, key, len) = *put;
            let keyspace = self.space(space)?;
            match len {
                Some(len) => batch.insert(&keyspace, key_bytes(key), value_bytes(number, write, len)),
                None => batch.remove(&keyspace, key_bytes(key)),
            };
            changes.push(change(number, write, *put));
        }
        batch.durability(if sync { Durability::Sync } else { Durability::Buffer });
        self.history.lock().issue(changes);
        let ticket = batch.submit()?;
        {
            let mut history = self.history.lock();
            history.acknowledge(false);
            history.marks.seq = history.marks.seq.max(ticket.seq());
        }
        ticket.wait()?;
        if sync {
            self.history.lock().persisted();
        }
        Ok(())
    }
}

fn change(number: usize, write: usize, (space, key, len): Put) -> Change {
    let (space, key) = (usize::from(space), key_bytes(key));
    match len {
        Some(len) => Change::Put(space, key, value_bytes(number, write, len)),
        None => Change::Remove(space, key),
    }
}
