//! # Transactions: commits that depend on the data of a snapshot
//!
//! A transaction reads at a snapshot and commits only if nothing that it read has changed since
//! (decisions/0051).
//!
//! - **Keys.** The commit has an [`Action::Expect`] operation for each key, with a
//!   [`VersionCheck`]. It holds the stripe of the key until it is complete. If no commit after the
//!   snapshot held the stripe, the key is unchanged, and no lookup is needed.
//! - **Ranges.** The transaction registers as a range reader before it takes its snapshot. While
//!   there are readers, commits record their keys. The commit closes the window, waits for all
//!   commits that have a seq, and looks for recorded keys in its ranges.
//!
//! [`Action::Expect`]: sheaf_engine::contract::Action::Expect

use std::sync::Arc;

use super::{CommitConflict, CommitOutcome, CommitWrite};
use crate::commit::stall::CommitWaits;
use crate::snapshot::view::View;
use crate::{KeyspaceState, Store};
use sheaf_engine::contract::{Action, Bounds, EngineOp};
use sheaf_engine::window::{ChangedKey, ClosedWindow, RangeReader, RecentChange, stripe_of};
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use smallvec::SmallVec;

/// Condition on a key that a transaction read.
#[derive(Clone, Copy, Debug)]
pub struct VersionCheck {
    /// Snapshot at which the key was read.
    pub since: Seq,
    /// Whether the key existed there.
    pub existed: bool,
    /// Whether the operation was prepared. Until then only the stripe of the key can show that the
    /// key is unchanged.
    is_prepared: bool,
}

impl VersionCheck {
    /// Returns the condition that a key that was read at `since` is unchanged.
    #[must_use]
    pub fn new(since: Seq, existed: bool) -> VersionCheck {
        VersionCheck { since, existed, is_prepared: false }
    }

    /// Returns whether the key is unchanged, given the seq of its newest version, or zero if the
    /// key does not exist. A key that was inserted and removed again counts as unchanged, if its
    /// engine keeps no seq of the removal.
    fn holds(&self, newest: Seq) -> bool {
        newest <= self.since && (newest != Seq::ZERO || !self.existed)
    }
}

impl CommitWrite<'_> {
    /// Looks up the key of a check. Returns whether the key is unchanged.
    pub(super) fn prepare_check(&mut self, check: VersionCheck) -> Result<bool> {
        self.op = EngineOp { hash: self.op.hash, ..EngineOp::new(self.op.key, Action::Expect) };
        self.keyspace.engine()?.prepare(&mut self.op)?;
        self.check = Some(VersionCheck { is_prepared: true, ..check });
        Ok(check.holds(self.op.prior))
    }
}

/// Ranges that a transaction read.
#[derive(Clone, Copy, Debug)]
pub struct RangeReads<'a> {
    /// Snapshot at which they were read.
    pub since: Seq,
    /// The ranges.
    pub ranges: &'a [RangeRead],
}

impl RangeReads<'_> {
    /// The reads of a commit that read no ranges.
    pub const NONE: RangeReads<'static> = RangeReads { since: Seq::ZERO, ranges: &[] };
}

/// A range that a transaction read.
#[derive(Clone, Debug)]
pub struct RangeRead {
    /// Keyspace of the range.
    pub keyspace: Arc<KeyspaceState>,
    /// The keys.
    pub bounds: Bounds,
}

/// A view for reads of ranges: commits after it record their keys until it is dropped.
pub struct RangeView {
    view: Arc<View>,
    /// `None` after it was released by the drop.
    reader: Option<RangeReader>,
}

impl RangeView {
    /// Registers a reader of ranges, and returns a view of all commits that are visible.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::check_open`].
    pub fn new(store: Arc<Store>) -> Result<RangeView> {
        store.check_open()?;
        let mut reader = store.pipeline.recent_keys.register(&store.pipeline.progress);
        let view = match store.view() {
            Ok(view) => Arc::new(view),
            Err(error) => {
                store.pipeline.recent_keys.release(reader, &store.context.memory);
                return Err(error);
            }
        };
        store.pipeline.recent_keys.set_bound(&mut reader, view.seq());
        Ok(RangeView { view, reader: Some(reader) })
    }

    /// Returns the view.
    #[must_use]
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }
}

impl Drop for RangeView {
    fn drop(&mut self) {
        let store = self.view.store();
        if store.health.is_forked_child() {
            return; // a thread that exists only in the parent may hold the lock
        }
        if let Some(reader) = self.reader.take() {
            store.pipeline.recent_keys.release(reader, &store.context.memory);
        }
    }
}

impl Store {
    /// Commits `writes` as one, like [`Store::commit`], if no commit after the snapshot of `reads`
    /// changed a key in its ranges. `writes` must contain at least one change if there are ranges,
    /// and the snapshot must be that of a live [`RangeView`].
    ///
    /// A commit with ranges stops other commits from taking a seq for about as long as the running
    /// commits need to complete.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::commit`].
    pub fn commit_transaction(
        &self,
        writes: &mut [CommitWrite<'_>],
        reads: RangeReads<'_>,
    ) -> Result<CommitOutcome> {
        let done = self.commit_with_reads(writes, &mut SmallVec::new(), reads);
        match &done {
            Ok(CommitOutcome::Committed(_)) => self.counters.transactions.fetch_add(1, Ordering::Relaxed),
            Ok(CommitOutcome::Conflict(_)) => {
                self.counters.transaction_conflicts.fetch_add(1, Ordering::Relaxed)
            }
            Err(_) => 0,
        };
        done
    }

    /// Commits like [`Store::commit_transaction`], for the removal of ranges key by key. Unless
    /// `may_wait`, returns [`Error::Busy`](sheaf_platform::error::Error::Busy) where it would wait
    /// for anything but other commits.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::commit`] and [`Store::try_commit`].
    pub fn commit_listed(
        &self,
        writes: &mut [CommitWrite<'_>],
        reads: RangeReads<'_>,
        may_wait: bool,
    ) -> Result<CommitOutcome> {
        if may_wait {
            return self.commit_with_reads(writes, &mut SmallVec::new(), reads);
        }
        let mut waits = CommitWaits::non_blocking();
        self.commit_with_waits(writes, &mut SmallVec::new(), reads, &mut waits)
    }

    /// Returns whether a commit after `since` may have changed `key`. All commits that change the
    /// key afterwards count. May return true without a reason.
    #[must_use]
    pub fn may_have_changed(&self, keyspace: &KeyspaceState, key: &[u8], since: Seq) -> bool {
        self.pipeline.stripes.last(stripe_of(keyspace.id(), key)) > since
    }

    /// Records the keys that a commit changes, for transactions that read ranges.
    #[cold]
    pub(super) fn record_recent_keys(&self, seq: Seq, writes: &[CommitWrite<'_>]) {
        let changes = writes.iter().filter(|write| write.op.address != Address::NONE);
        let keys = changes.map(|write| {
            let change = match write.range() {
                None => ChangedKey::Key(write.op.key),
                Some((first, end)) => ChangedKey::Range(Bounds::between(first, end)),
            };
            (write.keyspace.id(), change)
        });
        self.pipeline.recent_keys.record(seq, keys, &self.context.memory);
    }

    /// Returns whether the preparation of `write` no longer shows that its key is unchanged. The
    /// caller holds the stripe of the key.
    #[inline]
    pub(super) fn is_outdated(&self, write: &CommitWrite<'_>) -> bool {
        match write.check {
            Some(check) if !self.may_have_changed(write.keyspace, write.op.key, check.since) => false,
            Some(VersionCheck { is_prepared: false, .. }) => true,
            _ => !write.keyspace.engine().is_ok_and(|engine| engine.is_current(&write.op)),
        }
    }

    /// Looks for a change of the ranges that a transaction read. Returns it with the last commit
    /// that has a seq.
    #[cold]
    pub(super) fn check_ranges(&self, reads: RangeReads<'_>) -> Result<Option<(CommitConflict, Seq)>> {
        if reads.ranges.is_empty() {
            return Ok(None);
        }
        let _order = self.pipeline.commit_state.lock();
        self.check_writable()?;
        self.find_range_conflict(&self.pipeline.window.close(), reads)
    }

    /// Like [`Store::check_ranges`], for a caller that has closed the window. The commits that have
    /// a seq hold all that they need, and this thread waits only for them.
    pub(super) fn find_range_conflict(
        &self,
        closed: &ClosedWindow<'_>,
        reads: RangeReads<'_>,
    ) -> Result<Option<(CommitConflict, Seq)>> {
        if reads.ranges.is_empty() {
            return Ok(None);
        }
        let last = self.pipeline.progress.last_assigned(closed.word.reserved());
        self.pipeline.progress.wait(last)?;
        if let Some(dropped) = reads.ranges.iter().position(|range| range.keyspace.is_dropped()) {
            return Ok(Some((CommitConflict::Range(dropped), last)));
        }
        let ranges = reads.ranges.iter().map(|range| (range.keyspace.id(), &range.bounds));
        let change = self.pipeline.recent_keys.find_change(reads.since, ranges);
        Ok(change.map(|change| match change {
            RecentChange::InRange(index) => (CommitConflict::Range(index), last),
            RecentChange::Forgotten => (CommitConflict::TooManyChanges, last),
        }))
    }
}
