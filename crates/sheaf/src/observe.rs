//! # Observe: adds sampled calls to the workload statistics of their keyspace
//!
//! One call in 64 is sampled (`sheaf_base::load`), so nothing in this file is on the usual path.
//! Failed calls are not recorded.

use sheaf_base::engine::Action;
use sheaf_base::load::{Call, Kind, LoadStats, Sample, Served};
use sheaf_base::store::{Kept, Store};

use crate::{Durability, Keyspace, Result};

/// Most operations of a batch that are recorded one by one. Of a larger batch as many are recorded,
/// and each represents several.
const LOOKED_AT: usize = 64;

/// Records a point read, and the length of the value found.
#[cold]
#[inline(never)]
pub(crate) fn read(store: &Store, kept: &Kept, sample: Sample, key: &[u8], found: Option<usize>) {
    let kind = if found.is_some() { Kind::GetFound } else { Kind::GetMissing };
    store.record(kept, sample, Some(Served::Read), &Call::new(kind, key).value(found));
}

/// Records a read of a value by parts.
#[cold]
#[inline(never)]
pub(crate) fn stream_read(store: &Store, kept: &Kept, sample: Sample, key: &[u8], found: Option<u64>) {
    let kind = if found.is_some() { Kind::StreamRead } else { Kind::GetMissing };
    let call = Call { value: found, ..Call::new(kind, key) };
    store.record(kept, sample, None, &call);
}

/// Time of the acknowledgement of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// At the return of the call, with the requested durability.
    Now,
    /// After the caller waits for the ticket, or never.
    Later,
}

/// Records a commit of one operation.
#[cold]
#[inline(never)]
pub(crate) fn write(
    store: &Store,
    kept: &Kept,
    sample: Sample,
    (key, action, is_new): (&[u8], &Action<'_>, bool),
    (durability, acknowledged): (Durability, Acknowledged),
) {
    let is_durable = durability == Durability::Sync;
    let served = match (is_durable, acknowledged) {
        (false, _) => Some(Served::Write),
        (true, Acknowledged::Now) => Some(Served::DurableWrite),
        (true, Acknowledged::Later) => None,
    };
    let call = match action {
        Action::Put(value) => Call { is_new, ..Call::new(Kind::Insert, key).value(Some(value.len())) },
        _ => Call::new(Kind::Remove, key),
    };
    store.record(kept, sample, served, &call);
    kept.load().record_durability(is_durable);
}

/// Operation of a batch: its key, the length of its value if it sets one, and whether the key was
/// new.
pub(crate) type Operation<'k> = (&'k [u8], Option<usize>, bool);

/// Records the part of a batch that belongs to one keyspace.
pub(crate) fn batch(
    store: &Store,
    kept: &Kept,
    sample: Sample,
    durability: Durability,
    operations: &[Operation<'_>],
) {
    store.record(kept, sample, Some(Served::Batch), &Call::new(Kind::Batch, &[]));
    kept.load().record_durability(durability == Durability::Sync);
    let step = operations.len().div_ceil(LOOKED_AT).max(1);
    for (index, (key, value, was_absent)) in operations.iter().enumerate().step_by(step) {
        let kind = if value.is_some() { Kind::BatchInsert } else { Kind::BatchRemove };
        let count = step.min(operations.len() - index) as u64;
        let is_new = value.is_some() && *was_absent;
        kept.load().record(&Call { count, is_new, ..Call::new(kind, key).value(*value) }, None);
    }
}

impl Keyspace {
    /// Returns the workload statistics of the keyspace: kinds of operations, sizes, skew and
    /// latencies, estimated from one operation in 64. `sheaf advise` uses them. Takes far less than
    /// a millisecond.
    ///
    /// The statistics persist over reopening and crashes, except for the newest part. Clearing,
    /// replacing and converting the keyspace keeps them; a conversion resets the latencies.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// for _ in 0..1000 {
    ///     users.get("ada")?;
    /// }
    /// assert!(users.load()?.gets_missing > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoKeyspace`](crate::Error::NoKeyspace) and
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn load(&self) -> Result<LoadStats> {
        let kept = self.kept()?;
        Ok(self.handle().load_stats(&kept))
    }

    /// Resets the workload statistics, for example after a bulk fill that will not be repeated. The
    /// file that stores them is updated later.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// for _ in 0..1000 {
    ///     users.get("ada")?;
    /// }
    /// users.forget_load()?;
    /// assert_eq!(users.load()?.samples, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoKeyspace`](crate::Error::NoKeyspace) and
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn forget_load(&self) -> Result<()> {
        self.kept()?.load().forget();
        Ok(())
    }

    /// Records a call in the workload statistics of the present state of the keyspace.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe(&self, sample: Sample, served: Option<Served>, call: &Call<'_>) {
        self.handle().record(&self.shared.kept.load(), sample, served, call);
    }
}
