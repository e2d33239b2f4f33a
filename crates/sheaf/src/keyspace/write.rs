//! # Writes to a keyspace: single keys, ranges, and all keys

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{Action, Bounds, EngineOp};
use sheaf_engine::workload::{SampleStart, is_sample_due};
use sheaf_log::types::Seq;
use sheaf_store::{CommitOutcome, CommitWrite, Expires, Store};

use super::Keyspace;
use super::range::require_ordered;
use crate::iter::KeyRange;
use crate::workload::{self, AckTime};
use crate::{CommitTicket, ConflictKeys, Durability, Error, Result, ValueWriter};

/// Tells whether a commit blocks on background work (`Block`) or returns [`Error::Busy`] (`None`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    Block,
    Fail,
}

impl WaitPolicy {
    pub(crate) fn commit(self, store: &Store, writes: &mut [CommitWrite<'_>]) -> Result<CommitOutcome> {
        match self {
            WaitPolicy::Block => store.commit(writes),
            WaitPolicy::Fail => store.try_commit(writes),
        }
    }
}

impl Keyspace {
    /// Sets `key` to `value`, with the default durability of the database. Costs one record in the
    /// log and a look-up of the old version.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.insert([0, 255], vec![7; 100_000])?; // any bytes
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), WaitPolicy::Block)
    }

    /// Removes `key`, with the default durability of the database. A missing key is no error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.remove("ada")?;
    /// users.remove("ada")?;
    /// assert!(users.get("ada")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, WaitPolicy::Block)
    }

    /// Sets `key` to `value` like [`Keyspace::insert`], but never blocks on background work. Waits
    /// briefly for other commits, and for the device with [`Durability::Sync`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Error;
    ///
    /// match users.try_insert("ada", "lovelace") {
    ///     Err(Error::Busy { waiting_for }) => println!("try again later: {waiting_for}"),
    ///     other => other?,
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] if the write would be throttled or would wait for memory, disk
    /// space, a segment or a conversion; nothing is written. Otherwise the [write
    /// errors](Keyspace#write-errors).
    pub fn try_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Put(value.as_ref()), WaitPolicy::Fail)
    }

    /// Removes `key` like [`Keyspace::remove`], but never blocks on background work.
    /// [`Keyspace::try_insert`] explains the difference.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.try_remove("ada")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Busy`] like [`Keyspace::try_insert`], and the [write
    /// errors](Keyspace#write-errors).
    pub fn try_remove(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write(key.as_ref(), Action::Remove, WaitPolicy::Fail)
    }

    /// Sets `key` to `value` without waiting for the device. On return the value is visible and
    /// survives the death of the process. The returned ticket waits for `durability`, like that of
    /// [`crate::Batch::submit`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use sheaf::Durability;
    ///
    /// let first = users.submit_insert("ada", "lovelace", Durability::Sync)?;
    /// let second = users.submit_insert("alan", "turing", Durability::Sync)?;
    /// second.wait()?; // one sync for both
    /// assert!(first.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn submit_insert(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<CommitTicket> {
        self.submit(key.as_ref(), Action::Put(value.as_ref()), durability)
    }

    /// Removes `key` without waiting for the device, and returns a ticket like
    /// [`Keyspace::submit_insert`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.submit_remove("ada", sheaf::Durability::Sync)?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn submit_remove(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<CommitTicket> {
        self.submit(key.as_ref(), Action::Remove, durability)
    }

    /// Returns a stream that sets `key` to the bytes written to it. Nothing is visible before
    /// [`ValueWriter::commit`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// use std::io::Write;
    ///
    /// let mut writer = users.writer("ada")?;
    /// writer.write_all(b"love")?;
    /// writer.write_all(b"lace")?;
    /// writer.commit()?;
    /// assert_eq!(users.get("ada")?, Some("lovelace".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the key is too long, and the [write
    /// errors](Keyspace#write-errors).
    pub fn writer(&self, key: impl AsRef<[u8]>) -> Result<ValueWriter> {
        ValueWriter::new(self, key.as_ref(), Expires::Default)
    }

    fn write(&self, key: &[u8], action: Action<'_>, policy: WaitPolicy) -> Result<()> {
        if is_sample_due() {
            return self.write_sampled(key, action, policy);
        }
        let (seq, _) = self.apply(key, action, Expires::Default, policy)?;
        self.store().acknowledge(seq, self.store().durability())
    }

    /// Does the same as [`Keyspace::write`] and records it in the workload statistics. Kept apart
    /// so that the usual path stays short.
    #[cold]
    #[inline(never)]
    fn write_sampled(&self, key: &[u8], action: Action<'_>, policy: WaitPolicy) -> Result<()> {
        let (sample, durability) = (self.store().begin_sample(), self.store().durability());
        let (seq, is_new) = self.apply(key, action, Expires::Default, policy)?;
        self.store().acknowledge(seq, durability)?;
        self.record_write(sample, (key, &action, is_new), (durability, AckTime::OnReturn));
        Ok(())
    }

    fn submit(&self, key: &[u8], action: Action<'_>, durability: Durability) -> Result<CommitTicket> {
        let sample = self.store().sample();
        let (seq, is_new) = self.apply(key, action, Expires::Default, WaitPolicy::Block)?;
        if let Some(sample) = sample {
            self.record_write(sample, (key, &action, is_new), (durability, AckTime::OnWait));
        }
        Ok(CommitTicket::new(Arc::clone(self.store()), seq, durability))
    }

    #[cold]
    #[inline(never)]
    fn record_write(
        &self,
        sample: SampleStart,
        what: (&[u8], &Action<'_>, bool),
        how: (Durability, AckTime),
    ) {
        workload::record_write(self.store(), &self.inner.state.load(), sample, what, how);
    }

    /// Commits one operation. Also returns whether the key did not exist before, if the engine
    /// looks it up.
    pub(super) fn apply(
        &self,
        key: &[u8],
        action: Action<'_>,
        expires: Expires,
        policy: WaitPolicy,
    ) -> Result<(Seq, bool)> {
        loop {
            let state = self.state()?;
            let write = CommitWrite::new(&state, EngineOp::new(key, action));
            let mut writes = [CommitWrite { expires, ..write }];
            match policy.commit(self.store(), &mut writes) {
                Ok(CommitOutcome::Committed(seq)) => return Ok((seq, writes[0].op.prior == Seq::ZERO)),
                Ok(CommitOutcome::Conflict(_)) => {
                    return Err(Error::conflict(&state.name(), ConflictKeys::Key(key.to_vec())));
                }
                Err(Error::KeyspaceNotFound { .. }) => {} // cleared or dropped: `state` decides
                Err(other) => return Err(other),
            }
        }
    }

    /// Removes all pairs atomically and durably. The cost does not depend on the number of keys.
    /// Snapshots and iterators still show the old pairs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.clear()?;
    /// assert!(users.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn clear(&self) -> Result<()> {
        loop {
            let state = self.state()?;
            match self.store().clear_keyspace(&state) {
                Ok(successor) => {
                    self.inner.state.store(successor);
                    return Ok(());
                }
                Err(Error::KeyspaceNotFound { .. }) => {} // cleared or dropped: `state` decides
                Err(other) => return Err(other),
            }
        }
    }

    /// Removes the pairs with keys in `range` in one commit, with the default durability of the
    /// database. Needs an ordered engine unless the range is `..`.
    ///
    /// `flex`, `kreon` and `delsm` write one record, and the cost does not depend on the number of
    /// pairs; background work frees their space. The other engines write a removal of each key.
    /// They start again if another commit changes a key in the range at the same time, up to a
    /// hundred times.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// for word in ["a", "b", "c"] {
    ///     users.insert(word, "")?;
    /// }
    /// users.remove_range("b"..)?;
    /// assert_eq!(users.len()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::range`] and the [write errors](Keyspace#write-errors), and
    /// nothing is removed. With the other engines also [`Error::TooLarge`] if the removals exceed
    /// [`MAX_BATCH`](crate::MAX_BATCH), and [`Error::Conflict`] after a hundred attempts.
    pub fn remove_range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<()> {
        let Bounds { low, high } = range.bounds();
        if low != Bound::Unbounded || high != Bound::Unbounded {
            require_ordered(&*self.state()?, "ranges")?; // also for an empty range
        }
        let mut batch = crate::Batch::new(Arc::clone(self.handle()));
        batch.remove_range(self, (low, high));
        batch.commit()
    }
}
