//! # Swaps: writes that depend on the present value
//!
//! A swap reads the key, decides the new value without a lock, and commits with the expectation
//! that the key is unchanged. If the key changed, the swap starts again.

use sheaf_engine::contract::{Action, EngineOp};
use sheaf_engine::workload::{CallKind, LatencyKind, SampleStart, SampledCall};
use sheaf_log::types::Seq;
use sheaf_store::{CommitOutcome, CommitWrite, KeyspaceState, ReadPoint, Store};

use super::{Keyspace, get_at};
use crate::{Durability, Error, Result, Value};

impl Keyspace {
    /// Replaces the value of `key` by the result of `change`, atomically, and returns the new
    /// value. `None` is a missing key as the argument and removes the key as the result. The new
    /// value gets the default time to live of the keyspace, if there is one. If the key changes in
    /// between, `change` is called again; it should therefore have no side effects. No lock is held
    /// while it runs.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let count = |old: Option<&[u8]>| Some(vec![old.map_or(1, |old| old[0] + 1)]);
    /// users.update("logins", count)?;
    /// assert_eq!(users.update("logins", count)?, Some([2].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Value>> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        let mut new = None;
        self.swap(key, |old| {
            new = change(old);
            Some(new.clone())
        })?;
        if let Some(sample) = sample {
            self.record_update(sample, key, new.as_deref());
        }
        Ok(new.map(Value::from))
    }

    /// Sets `key` to `new` if its value is `expected`, atomically, and returns true; otherwise
    /// returns false and changes nothing. `None` means that the key is missing, or is removed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// assert!(users.compare_and_swap("ada", None, Some(b"byron"))?);
    /// assert!(!users.compare_and_swap("ada", Some(b"king"), Some(b"lovelace"))?);
    /// assert_eq!(users.get("ada")?, Some("byron".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [read errors](Keyspace#read-errors) and [write errors](Keyspace#write-errors).
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let (sample, key) = (self.store().sample(), key.as_ref());
        let is_swapped = self.swap(key, |old| (old == expected).then(|| new.map(<[u8]>::to_vec)))?;
        if let Some(sample) = sample {
            self.record_update(sample, key, new);
        }
        Ok(is_swapped)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn record_update(&self, sample: SampleStart, key: &[u8], new: Option<&[u8]>) {
        self.record_call(
            sample,
            Some(LatencyKind::Update),
            &SampledCall::new(CallKind::Update, key).value(new.map(<[u8]>::len)),
        );
        self.inner.state.load().workload().record_durability(self.store().durability() == Durability::Sync);
    }

    /// Reads, decides and writes, and starts again if the key changed in between. `decide` returns
    /// `None` to write nothing. Returns true if a value or a removal was written.
    pub(super) fn swap(
        &self,
        key: &[u8],
        mut decide: impl FnMut(Option<&[u8]>) -> Option<Option<Vec<u8>>>,
    ) -> Result<bool> {
        loop {
            match self.try_swap(key, &mut decide)? {
                SwapOutcome::Written => return Ok(true),
                SwapOutcome::Declined => return Ok(false),
                SwapOutcome::Conflict => {}
            }
        }
    }

    /// Reads, decides and writes once.
    fn try_swap(
        &self,
        key: &[u8],
        decide: impl FnOnce(Option<&[u8]>) -> Option<Option<Vec<u8>>>,
    ) -> Result<SwapOutcome> {
        let state = self.state()?;
        self.store().check_open()?;
        let found = read_expected(self.store(), &state, key);
        if state.is_dropped() {
            return Ok(SwapOutcome::Conflict); // perhaps half dropped during the read
        }
        let (expect, old) = found?;
        let Some(new) = decide(old.as_deref()) else { return Ok(SwapOutcome::Declined) };
        let action = match &new {
            Some(value) => Action::Put(value),
            None => Action::Remove,
        };
        let mut writes =
            [CommitWrite::new(&state, expect), CommitWrite::new(&state, EngineOp::new(key, action))];
        match self.store().commit(&mut writes) {
            // A replaced keyspace counts as changed. If it was dropped, the next attempt fails.
            Ok(CommitOutcome::Conflict(_)) | Err(Error::KeyspaceNotFound { .. }) => Ok(SwapOutcome::Conflict),
            Ok(CommitOutcome::Committed(seq)) => {
                self.store().acknowledge(seq, self.store().durability())?;
                Ok(SwapOutcome::Written)
            }
            Err(other) => Err(other),
        }
    }
}

/// Outcome of one attempt.
enum SwapOutcome {
    /// The new value was written.
    Written,
    /// `decide` wanted no write.
    Declined,
    /// The key or the keyspace changed in between.
    Conflict,
}

/// Returns the value of `key`, and an operation that makes a commit stale if the value has changed.
pub(crate) fn read_expected<'k>(
    store: &Store,
    state: &KeyspaceState,
    key: &'k [u8],
) -> Result<(EngineOp<'k>, Option<Value>)> {
    let engine = state.engine()?;
    loop {
        let mut expect = EngineOp::new(key, Action::Expect);
        engine.prepare(&mut expect)?; // before the read: a later change makes the commit stale
        store.wait_visible(expect.prior)?;
        let value = get_at(store, state, ReadPoint::LATEST, key, Value::new)?;
        // Missing at the first read, present at the second: the expectation would miss a removal.
        if expect.prior != Seq::ZERO || value.is_none() {
            return Ok((expect, value));
        }
    }
}
