//! # Observe: adds sampled calls to the workload statistics of their keyspace
//!
//! One call in 64 is sampled (`sheaf_engine::workload`), so nothing in this file is on the usual
//! path. Failed calls are not recorded.

use sheaf_engine::contract::Action;
use sheaf_engine::workload::{CallKind, LatencyKind, SampleStart, SampledCall, WorkloadStats};
use sheaf_store::{KeyspaceState, Store};

use crate::{Durability, Keyspace, Result};

/// Most operations of a batch that are recorded one by one. Of a larger batch as many are recorded,
/// and each represents several.
const MAX_RECORDED_OPERATIONS: usize = 64;

/// Records a point read, and the length of the value found.
#[cold]
#[inline(never)]
pub(crate) fn record_read(
    store: &Store,
    state: &KeyspaceState,
    sample: SampleStart,
    key: &[u8],
    found: Option<usize>,
) {
    let kind = if found.is_some() { CallKind::GetFound } else { CallKind::GetMissing };
    store.record_call(state, sample, Some(LatencyKind::Read), &SampledCall::new(kind, key).value(found));
}

/// Records a read of a value by parts.
#[cold]
#[inline(never)]
pub(crate) fn record_stream_read(
    store: &Store,
    state: &KeyspaceState,
    sample: SampleStart,
    key: &[u8],
    found: Option<u64>,
) {
    let kind = if found.is_some() { CallKind::StreamRead } else { CallKind::GetMissing };
    let call = SampledCall { value: found, ..SampledCall::new(kind, key) };
    store.record_call(state, sample, None, &call);
}

/// Time of the acknowledgement of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckTime {
    /// At the return of the call, with the requested durability.
    OnReturn,
    /// After the caller waits for the ticket, or never.
    OnWait,
}

/// Records a commit of one operation.
#[cold]
#[inline(never)]
pub(crate) fn record_write(
    store: &Store,
    state: &KeyspaceState,
    sample: SampleStart,
    (key, action, is_new): (&[u8], &Action<'_>, bool),
    (durability, acknowledged): (Durability, AckTime),
) {
    let is_durable = durability == Durability::Sync;
    let served = match (is_durable, acknowledged) {
        (false, _) => Some(LatencyKind::Write),
        (true, AckTime::OnReturn) => Some(LatencyKind::DurableWrite),
        (true, AckTime::OnWait) => None,
    };
    let call = match action {
        Action::Put(value) => {
            SampledCall { is_new, ..SampledCall::new(CallKind::Insert, key).value(Some(value.len())) }
        }
        _ => SampledCall::new(CallKind::Remove, key),
    };
    store.record_call(state, sample, served, &call);
    state.workload().record_durability(is_durable);
}

/// Operation of a batch: its key, the length of its value if it sets one, and whether the key was
/// new.
pub(crate) type BatchOperation<'k> = (&'k [u8], Option<usize>, bool);

/// Records the part of a batch that belongs to one keyspace.
pub(crate) fn record_batch(
    store: &Store,
    state: &KeyspaceState,
    sample: SampleStart,
    durability: Durability,
    operations: &[BatchOperation<'_>],
) {
    store.record_call(state, sample, Some(LatencyKind::Batch), &SampledCall::new(CallKind::Batch, &[]));
    state.workload().record_durability(durability == Durability::Sync);
    let step = operations.len().div_ceil(MAX_RECORDED_OPERATIONS).max(1);
    for (index, (key, value, was_absent)) in operations.iter().enumerate().step_by(step) {
        let kind = if value.is_some() { CallKind::BatchInsert } else { CallKind::BatchRemove };
        let count = step.min(operations.len() - index) as u64;
        let is_new = value.is_some() && *was_absent;
        state
            .workload()
            .record(&SampledCall { count, is_new, ..SampledCall::new(kind, key).value(*value) }, None);
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
    /// assert!(users.workload()?.gets_missing > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`](crate::Error::KeyspaceNotFound) and
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn workload(&self) -> Result<WorkloadStats> {
        let state = self.state()?;
        Ok(self.handle().workload_stats(&state))
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
    /// users.reset_workload()?;
    /// assert_eq!(users.workload()?.samples, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceNotFound`](crate::Error::KeyspaceNotFound) and
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn reset_workload(&self) -> Result<()> {
        self.state()?.workload().reset();
        Ok(())
    }

    /// Records a call in the workload statistics of the present state of the keyspace.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_call(
        &self,
        sample: SampleStart,
        served: Option<LatencyKind>,
        call: &SampledCall<'_>,
    ) {
        self.handle().record_call(&self.inner.state.load(), sample, served, call);
    }
}
