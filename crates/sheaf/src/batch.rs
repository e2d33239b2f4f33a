//! # Batch: many operations, over any keyspaces, as one commit

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sheaf_base::engine::{Action, Op};
use sheaf_base::load::Sample;
use sheaf_base::store::{Kept, Outcome, Write};
use sheaf_base::types::{KeyspaceId, Seq};

use crate::handle::Handle;
use crate::keyspace::{Patience, expect_now};
use crate::observe;
use crate::{Durability, Error, Keyspace, Result, Value};

enum Change {
    Put(Value),
    Remove,
}

struct Entry {
    keyspace: Keyspace,
    key: Value,
    change: Change,
}

struct Expectation {
    keyspace: Keyspace,
    key: Value,
    value: Option<Value>,
}

/// Operations that become one commit: there whole or not at all, after any crash. The last operation
/// on a key wins. Dropping it writes nothing.
///
/// A commit of more than [`MAX_BATCH`](crate::MAX_BATCH) bytes (64 MiB) is refused with
/// [`Error::TooLarge`]. All of a batch is in memory until then.
pub struct Batch {
    store: Arc<Handle>,
    entries: Vec<Entry>,
    expectations: Vec<Expectation>,
    durability: Option<Durability>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("operations", &self.entries.len())
            .field("expectations", &self.expectations.len())
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Batch {
    pub(crate) fn new(store: Arc<Handle>) -> Batch {
        Batch { store, entries: Vec::new(), expectations: Vec::new(), durability: None }
    }

    /// Sets `key` to `value` in `keyspace`. Limits are checked at the commit.
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut Batch {
        self.push(keyspace, key.as_ref(), Change::Put(Value::new(value.as_ref())))
    }

    /// Removes `key` from `keyspace`.
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut Batch {
        self.push(keyspace, key.as_ref(), Change::Remove)
    }

    fn push(&mut self, keyspace: &Keyspace, key: &[u8], change: Change) -> &mut Batch {
        self.entries.push(Entry { keyspace: keyspace.clone(), key: Value::new(key), change });
        self
    }

    /// The commit happens only if `key` has this value (`None`: is not there) at that moment; else it
    /// answers [`Error::Conflict`] and writes nothing.
    pub fn expect(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: Option<&[u8]>) -> &mut Batch {
        self.expectations.push(Expectation {
            keyspace: keyspace.clone(),
            key: Value::new(key.as_ref()),
            value: value.map(Value::new),
        });
        self
    }

    /// Removes all operations and expectations. The durability that was asked stays.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-batch-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let (mut all, mut part) = (db.batch(), db.batch());
    /// part.insert(&users, "ada", "lovelace");
    /// all.append(&mut part);
    /// part.insert(&users, "alan", "turing").clear();
    /// assert!(part.is_empty() && all.len() == 1);
    /// all.commit()?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&mut self) -> &mut Batch {
        self.entries.clear();
        self.expectations.clear();
        self
    }

    /// Moves all operations and expectations of `other` behind those of this batch. If both have an
    /// operation on a key, that of `other` wins. The durability of this batch stays.
    pub fn append(&mut self, other: &mut Batch) -> &mut Batch {
        self.entries.append(&mut other.entries);
        self.expectations.append(&mut other.expectations);
        self
    }

    /// How durable the commit is when it is acknowledged, in place of the database's default.
    pub fn durability(&mut self, durability: Durability) -> &mut Batch {
        self.durability = Some(durability);
        self
    }

    /// How many operations it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Commits and waits for the durability asked.
    pub fn commit(self) -> Result<()> {
        self.submit()?.wait()
    }

    /// Commits and returns a ticket without waiting for the device: the batch is visible and survives
    /// a killed process on return. Tickets become durable in commit order.
    pub fn submit(self) -> Result<Commit> {
        let (seq, durability) = self.submit_with(Patience::Any)?;
        Ok(Commit::new(self.store, seq, durability))
    }

    /// As [`Batch::commit`], but where the commit would be slowed down, or wait for background work, memory, or another engine,
    /// it answers [`Error::Busy`] at once, and nothing is left of it. It waits for the commit lock, which is short, and for
    /// the durability asked. After an error the batch is as it was and can be tried again, after `Ok` it is empty.
    pub fn try_commit(&mut self) -> Result<()> {
        self.try_submit()?.wait()
    }

    /// As [`Batch::submit`], or [`Error::Busy`]: see [`Batch::try_commit`].
    pub fn try_submit(&mut self) -> Result<Commit> {
        let (seq, durability) = self.submit_with(Patience::None)?;
        self.entries.clear();
        self.expectations.clear();
        Ok(Commit::new(Arc::clone(&self.store), seq, durability))
    }

    fn submit_with(&self, patience: Patience) -> Result<(Seq, Durability)> {
        let durability = self.durability.unwrap_or(self.store.durability());
        let sample = self.store.sample();
        let mut fresh = sample.is_some().then(Vec::new);
        let seq = loop {
            if let Some(seq) = self.attempt(patience, fresh.as_mut())? {
                break seq;
            }
        };
        if let Some(sample) = sample {
            self.observe(sample, durability, &fresh.unwrap_or_default());
        }
        Ok((seq, durability))
    }

    /// Tells each keyspace's sketch of its part. `fresh` are the entries whose keys were not there, in order.
    #[cold]
    #[inline(never)]
    fn observe(&self, sample: Sample, durability: Durability, fresh: &[usize]) {
        let mut parts: Vec<(arc_swap::Guard<Arc<Kept>>, Vec<observe::Operation<'_>>)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let kept = entry.keyspace.shared.kept.load();
            let value = match &entry.change {
                Change::Put(value) => Some(value.len()),
                Change::Remove => None,
            };
            let operation = (&*entry.key, value, fresh.binary_search(&index).is_ok());
            match parts.iter_mut().find(|part| part.0.id() == kept.id()) {
                Some(part) => part.1.push(operation),
                None => parts.push((kept, vec![operation])),
            }
        }
        for (kept, operations) in &parts {
            observe::batch(&self.store, kept, sample, durability, operations);
        }
    }

    /// All keyspaces must be of the batch's database.
    fn check_keyspaces(&self) -> Result<()> {
        let entries = self.entries.iter().map(|e| &e.keyspace);
        let mut keyspaces = entries.chain(self.expectations.iter().map(|e| &e.keyspace));
        match keyspaces.find(|keyspace| !Arc::ptr_eq(&keyspace.shared.store, &self.store)) {
            Some(foreign) => {
                let why = format!("{:?} belongs to another open database", foreign.name());
                Err(Error::Invalid { what: "keyspace", why })
            }
            None => Ok(()),
        }
    }

    /// One attempt. `None` if an expected key changed between the look and the commit. `fresh` gets the entries whose keys were not
    /// there, as far as the engines look.
    fn attempt(&self, patience: Patience, fresh: Option<&mut Vec<usize>>) -> Result<Option<Seq>> {
        self.check_keyspaces()?;
        if !self.expectations.is_empty() {
            self.store.check_open()?;
        }
        let expected = self
            .expectations
            .iter()
            .map(|e| Ok(Arc::clone(&*e.keyspace.kept()?)))
            .collect::<Result<Vec<_>>>()?;
        let mut expect_ops = Vec::with_capacity(expected.len());
        for (expectation, kept) in self.expectations.iter().zip(&expected) {
            let found = kept.engine().and_then(|engine| expect_now(&self.store, &**engine, &expectation.key));
            if kept.is_gone() {
                return Ok(None); // it may have been half gone when it was looked at
            }
            let (op, value) = found?;
            if value != expectation.value {
                return Err(Error::Conflict);
            }
            expect_ops.push(op);
        }
        let (kepts, order) = self.last_wins()?;
        let mut writes: Vec<Write<'_>> = expect_ops
            .into_iter()
            .zip(&expected)
            .map(|(op, kept)| Write { kept, op })
            .chain(order.iter().map(|&(entry, kept)| {
                let entry = &self.entries[entry];
                let action = match &entry.change {
                    Change::Put(value) => Action::Put(value),
                    Change::Remove => Action::Remove,
                };
                Write { kept: &kepts[kept], op: Op::new(&entry.key, action) }
            }))
            .collect();
        match patience.commit(&self.store, &mut writes) {
            Ok(Outcome::Done(seq)) => {
                if let Some(fresh) = fresh {
                    let set = writes[expected.len()..].iter().zip(&order);
                    fresh.extend(set.filter(|(w, _)| w.op.prior == Seq::ZERO).map(|(_, (entry, _))| *entry));
                    fresh.sort_unstable();
                }
                Ok(Some(seq))
            }
            // A keyspace that was cleared or converted meanwhile goes on; one that was dropped is found out next.
            Ok(Outcome::Stale) | Err(Error::NoKeyspace { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The keyspaces, and which entry of which keyspace is the last on its key (R2).
    #[allow(clippy::type_complexity)]
    fn last_wins(&self) -> Result<(Vec<Arc<Kept>>, Vec<(usize, usize)>)> {
        let mut kepts: Vec<Arc<Kept>> = Vec::new();
        let mut seen: HashMap<(KeyspaceId, &[u8]), usize> = HashMap::with_capacity(self.entries.len());
        let mut order: Vec<(usize, usize)> = Vec::with_capacity(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate() {
            let kept = entry.keyspace.kept()?;
            let position = match kepts.iter().position(|k| Arc::ptr_eq(k, &kept)) {
                Some(position) => position,
                None => {
                    kepts.push(Arc::clone(&kept));
                    kepts.len() - 1
                }
            };
            match seen.entry((kept.id(), &entry.key)) {
                std::collections::hash_map::Entry::Occupied(at) => order[*at.get()].0 = index,
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(order.len());
                    order.push((index, position));
                }
            }
        }
        Ok((kepts, order))
    }
}

/// A ticket for what was submitted.
pub struct Commit {
    store: Arc<Handle>,
    seq: Seq,
    durability: Durability,
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit")
            .field("seq", &self.seq.0)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Commit {
    pub(crate) fn new(store: Arc<Handle>, seq: Seq, durability: Durability) -> Commit {
        Commit { store, seq, durability }
    }

    /// The commit's sequence number: greater than that of every commit acknowledged before. A batch
    /// that changed nothing has that of the newest commit.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq.0
    }

    /// Whether a power cut can no longer take it.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.store.durable() >= self.seq
    }

    /// Waits for the durability the batch asked for.
    pub fn wait(&self) -> Result<()> {
        self.store.acknowledge(self.seq, self.durability)
    }

    /// Waits until the commit, and all before it, are on the device.
    pub fn wait_durable(&self) -> Result<()> {
        self.store.acknowledge(self.seq, Durability::Sync)
    }
}
