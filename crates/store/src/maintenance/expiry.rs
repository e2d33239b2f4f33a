//! # Removal of expired pairs
//!
//! A round reads the hints that are due, in the order of time, and removes their pairs in
//! conditional commits. A pair is removed only if its stored time is due, so a pair that was
//! overwritten stays. Hints are removed in the same commits.
//!
//! ## Invariants
//!
//! 1. A commit removes a pair only if the version that was checked is still the newest one.
//! 2. `next_due` of a keyspace is at most the time of its first hint. It is raised before the view
//!    of the hints is taken, and lowered by each commit of a hint when that is visible.
//! 3. A round has a bounded number of commits. None of them waits: if the store needs other
//!    maintenance first, the round ends, and the next one continues.
//!
//! ## Threads
//!
//! The maintenance thread, and callers of [`Store::pump`] and [`Store::quiesce`]. `removal_lock` of
//! the keyspace admits one at a time. `pass_lock` is not held.
//!
//! ## Costs
//!
//! One read of the clock per pass, if a keyspace has expiry. For each pair two lookups and one
//! record in each log. GC frees the space.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::commit::CommitWrite;
use crate::commit::stall::CommitWaits;
use crate::commit::transaction::RangeReads;
use crate::expiry::KeyspaceExpiry;
use crate::expiry::index::{HINT_TIME_BYTES, hint_parts};
use crate::pass::PassOutcome;
use crate::{CommitOutcome, KeyspaceState, Store, View};
use sheaf_engine::contract::{Action, Bounds, Cursor, EngineOp, Projection};
use sheaf_log::types::Seq;
use sheaf_platform::clock::UnixMillis;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};

/// Hints of one commit.
const HINTS_PER_COMMIT: usize = 512;
/// Bytes of the hints of one commit.
const BYTES_PER_COMMIT: usize = 64 << 10;
/// Commits of one round. Then other maintenance has its turn.
const COMMITS_PER_ROUND: usize = 64;
/// Attempts of one commit, if its pairs change.
const MAX_ATTEMPTS: usize = 8;

/// Hints of one commit.
#[derive(Default)]
struct HintBatch {
    /// The hints, one after the other.
    bytes: Vec<u8>,
    /// End of each hint.
    ends: Vec<usize>,
    /// Time of the first hint that is not due yet, if the end of the due hints was reached.
    next: Option<UnixMillis>,
}

impl HintBatch {
    fn hint(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    /// Reads the next hints that are due at `now`.
    fn read(hints: &mut dyn Cursor, now: UnixMillis, most: usize) -> Result<HintBatch> {
        let mut batch = HintBatch::default();
        while batch.ends.len() < most && batch.bytes.len() < BYTES_PER_COMMIT {
            if !hints.next()? {
                batch.next = Some(UnixMillis(u64::MAX));
                return Ok(batch);
            }
            let hint = hints.key();
            if let Some((time, _)) = hint_parts(hint)
                && time > now
            {
                batch.next = Some(time);
                return Ok(batch);
            }
            batch.bytes.extend_from_slice(hint);
            batch.ends.push(batch.bytes.len());
        }
        Ok(batch)
    }
}

impl Store {
    /// Runs one round of removals, if a pair may have expired.
    pub(crate) fn remove_expired(&self) -> PassOutcome {
        let mut outcome = PassOutcome::default();
        if !self.expiry.is_used() {
            return outcome;
        }
        let now = self.clock.unix_millis();
        if self.expiry.next_due.load(Ordering::Acquire) > now.0 {
            return outcome;
        }
        self.expiry.next_due.store(u64::MAX, Ordering::Release);
        for keyspace in self.catalog.map().values() {
            let Some(expiry) = keyspace.expiry() else { continue };
            if expiry.next_due.load(Ordering::Acquire) <= now.0 {
                outcome.add(self.remove_expired_of(keyspace, expiry, now));
            }
            self.expiry.next_due.fetch_min(expiry.next_due.load(Ordering::Acquire), Ordering::AcqRel);
        }
        outcome
    }

    /// Removes pairs of one keyspace. Returns whether it removed a hint.
    fn remove_expired_of(
        &self,
        keyspace: &Arc<KeyspaceState>,
        expiry: &KeyspaceExpiry,
        now: UnixMillis,
    ) -> Result<bool> {
        let Some(index) = expiry.index() else {
            expiry.next_due.store(u64::MAX, Ordering::Release); // nothing lowers it
            return Ok(false);
        };
        let _removal = expiry.removal_lock.lock();
        expiry.next_due.store(u64::MAX, Ordering::Release); // I2
        let removed = self.remove_due(keyspace, expiry, (index, now));
        // After an error a hint may be due.
        let next = removed.as_ref().map_or(0, |(_, next)| next.0);
        expiry.next_due.fetch_min(next, Ordering::AcqRel);
        match removed {
            Ok((has_removed, _)) => Ok(has_removed),
            // Dropped or replaced: the successor has its own turn. Busy: the next round continues.
            Err(Error::KeyspaceNotFound { .. } | Error::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a hint was removed, and the time of the first hint that is left.
    fn remove_due(
        &self,
        keyspace: &Arc<KeyspaceState>,
        expiry: &KeyspaceExpiry,
        (index, now): (&Arc<KeyspaceState>, UnixMillis),
    ) -> Result<(bool, UnixMillis)> {
        let view = View::new(self)?;
        let mut hints = index.engine()?.cursor(view.seq(), Bounds::all(), Projection::Keys)?;
        let most = if self.options.tiny { 5 } else { HINTS_PER_COMMIT };
        let mut has_removed = false;
        for _ in 0..COMMITS_PER_ROUND {
            let batch = HintBatch::read(&mut *hints, now, most)?;
            if !batch.ends.is_empty() {
                has_removed |= self.remove_batch(keyspace, expiry, (index, now), &batch)?;
                self.yield_to_commits();
            }
            if let Some(next) = batch.next {
                return Ok((has_removed, next));
            }
        }
        Ok((has_removed, now))
    }

    /// Removes the hints of `batch`, and their pairs that are due. A pair that changes at the same
    /// time has a new hint, if it still expires.
    fn remove_batch(
        &self,
        keyspace: &Arc<KeyspaceState>,
        expiry: &KeyspaceExpiry,
        (index, now): (&Arc<KeyspaceState>, UnixMillis),
        batch: &HintBatch,
    ) -> Result<bool> {
        let keys = (0..batch.ends.len()).filter_map(|number| batch.hint(number).get(HINT_TIME_BYTES..));
        let mut keys: Vec<&[u8]> = keys.collect();
        keys.sort_unstable(); // a key may have two hints that are due
        keys.dedup();
        for _ in 0..MAX_ATTEMPTS {
            let mut due: Vec<EngineOp<'_>> = Vec::with_capacity(keys.len());
            for key in &keys {
                due.extend(self.expectation_if_due(keyspace, expiry, key, now)?);
            }
            let hints = (0..batch.ends.len()).map(|number| batch.hint(number));
            match self.commit_removals(keyspace, &due, index, hints)? {
                CommitOutcome::Committed(_) => {
                    let (removed, hints) = (due.len() as u64, batch.ends.len() as u64);
                    let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
                    add(&self.expiry.removed, removed);
                    add(&self.expiry.dropped_hints, hints.saturating_sub(removed));
                    return Ok(true);
                }
                // A pair changed, or a checkpoint outdated the expectations. All are read again: a
                // hint may be dropped only if its pair is not due.
                CommitOutcome::Conflict(_) => {}
            }
        }
        Err(Error::Busy { waiting_for: sheaf_platform::error::StallKind::Throttle })
    }

    /// Returns the expectation that the pair of `key` does not change, if it has expired.
    fn expectation_if_due<'k>(
        &self,
        keyspace: &KeyspaceState,
        expiry: &KeyspaceExpiry,
        key: &'k [u8],
        now: UnixMillis,
    ) -> Result<Option<EngineOp<'k>>> {
        let engine = keyspace.engine()?;
        let mut expect = EngineOp::new(key, Action::Expect);
        engine.prepare(&mut expect)?; // before the read: a later change makes the commit fail
        self.wait_visible(expect.prior)?;
        let stored = match expiry.stored_expiry(&**engine, key) {
            // A pair that cannot be read stays, without its hint. A repair reports it.
            Err(Error::Corrupt { .. }) => return Ok(None),
            other => other?,
        };
        let is_due = matches!(stored, Some(Some(time)) if time <= now) && expect.prior != Seq::ZERO;
        Ok(is_due.then_some(expect))
    }

    /// Removes the pairs of `due` and the hints, in one commit. All removals of expired pairs come
    /// from here.
    fn commit_removals<'h>(
        &self,
        keyspace: &Arc<KeyspaceState>,
        due: &[EngineOp<'h>],
        index: &Arc<KeyspaceState>,
        hints: impl Iterator<Item = &'h [u8]>,
    ) -> Result<CommitOutcome> {
        let expectations = due.iter().map(|expect| CommitWrite::new(keyspace, *expect));
        let remove = |of, key| CommitWrite::new(of, EngineOp::new(key, Action::Remove));
        let removals = due.iter().map(|expect| remove(keyspace, expect.key));
        let hints = hints.map(|hint| remove(index, hint));
        let mut writes: Vec<CommitWrite<'_>> = expectations.chain(removals).chain(hints).collect();
        let mut waits = CommitWaits::non_blocking();
        self.commit_stored(&mut writes, &mut SmallVec::new(), RangeReads::NONE, &mut waits)
    }
}
