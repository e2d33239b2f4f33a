//! # Observe: what sampled calls did, told to the sketch of their keyspace
//!
//! One call in 64 gets here (`sheaf_base::load`); everything in this file is off the usual path. Calls that failed are not told.

use sheaf_base::engine::Action;
use sheaf_base::load::{Call, Kind, LoadStats, Sample, Served};
use sheaf_base::store::{Kept, Store};

use crate::{Durability, Keyspace, Result};

/// Operations of a batch that are looked at one by one; of more, as many, which stand for the others.
const LOOKED_AT: usize = 64;

/// A point read, and how many bytes it found.
#[cold]
#[inline(never)]
pub(crate) fn read(store: &Store, kept: &Kept, sample: Sample, key: &[u8], found: Option<usize>) {
    let kind = if found.is_some() { Kind::GetFound } else { Kind::GetMissing };
    store.record(kept, sample, Some(Served::Read), &Call::new(kind, key).value(found));
}

/// A value that is read in parts.
#[cold]
#[inline(never)]
pub(crate) fn stream_read(store: &Store, kept: &Kept, sample: Sample, key: &[u8], found: Option<u64>) {
    let kind = if found.is_some() { Kind::StreamRead } else { Kind::GetMissing };
    let call = Call { value: found, ..Call::new(kind, key) };
    store.record(kept, sample, None, &call);
}

/// How a write was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledged {
    /// It was, as durably as it was asked.
    Now,
    /// Somebody has a ticket and may wait for it, or not.
    Later,
}

/// A commit of one operation.
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

/// An operation of a batch: its key, the length of the value that it sets, and whether the key was not there.
pub(crate) type Operation<'k> = (&'k [u8], Option<usize>, bool);

/// One keyspace's part of a batch.
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
    /// What it is used for: kinds of operations, sizes, skew, latencies, estimated from one operation in 64, over closings and
    /// crashes but for the newest part. What `sheaf advise` goes by. Takes well below a millisecond.
    ///
    /// Clearing, replacing and converting a keyspace leave it what it is used for; a conversion forgets latencies.
    pub fn load(&self) -> Result<LoadStats> {
        let kept = self.kept()?;
        Ok(self.handle().load_stats(&kept))
    }

    /// Begins the sketch anew: what [`load`](Keyspace::load) tells is of what comes from now on. After a fill, say, that will not come
    /// again. The file that keeps the sketch over closings follows in its time.
    pub fn forget_load(&self) -> Result<()> {
        self.kept()?.load().forget();
        Ok(())
    }

    /// Tells the sketch of what keeps the keyspace now.
    #[cold]
    #[inline(never)]
    pub(crate) fn observe(&self, sample: Sample, served: Option<Served>, call: &Call<'_>) {
        self.handle().record(&self.shared.kept.load(), sample, served, call);
    }
}
