//! # Commit of a batch: its operations become writes of one commit
//!
//! An attempt fails if another commit changed a key that it had read. It is then repeated with the
//! new state.

use std::collections::HashSet;
use std::sync::Arc;

use sheaf_engine::contract::{Action, EngineOp};
use sheaf_engine::workload::SampleStart;
use sheaf_log::types::Seq;
use sheaf_store::{CommitConflict, CommitOutcome, CommitWrite, Expires, KeyspaceState, RangeReads};

use super::merge::MergedEntry;
use super::resolve::ResolvedBatch;
use super::{Batch, BatchChange};
use crate::keyspace::{WaitPolicy, read_expected};
use crate::removed_range::{ListedRanges, RemovedRange};
use crate::workload;
use crate::{ConflictKeys, Durability, Error, Result};

/// Attempts to remove ranges key by key, before the commit fails because of other commits.
const MAX_RANGE_ATTEMPTS: u32 = 100;

impl Batch {
    /// Commits the batch, and repeats an attempt that another commit made void. Returns the seq of
    /// the commit, and its durability.
    pub(super) fn submit_with(&self, policy: WaitPolicy) -> Result<(Seq, Durability)> {
        let durability = self.durability.unwrap_or(self.store.durability());
        let sample = self.store.sample();
        let mut new_keys = sample.is_some().then(Vec::new);
        let mut range_attempts = 0;
        let seq = loop {
            if let Some(seq) = self.try_commit_once(policy, new_keys.as_mut(), &mut range_attempts)? {
                break seq;
            }
        };
        if let Some(sample) = sample {
            self.observe(sample, durability, &new_keys.unwrap_or_default());
        }
        Ok((seq, durability))
    }

    /// Records the batch in the workload statistics of each keyspace. `new_keys` lists, in order,
    /// the entries with keys that did not exist before.
    #[cold]
    #[inline(never)]
    fn observe(&self, sample: SampleStart, durability: Durability, new_keys: &[usize]) {
        let mut parts: Vec<(arc_swap::Guard<Arc<KeyspaceState>>, Vec<workload::BatchOperation<'_>>)> =
            Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let state = self.keyspaces[entry.keyspace].inner.state.load();
            let value = match &entry.change {
                BatchChange::Put(value, _) | BatchChange::Merge(value) => Some(self.bytes.get(*value).len()),
                BatchChange::Remove | BatchChange::RemoveRange(_) => None,
            };
            let operation = (self.key(entry), value, new_keys.binary_search(&index).is_ok());
            match parts.iter_mut().find(|part| part.0.id() == state.id()) {
                Some(part) => part.1.push(operation),
                None => parts.push((state, vec![operation])),
            }
        }
        for (state, operations) in &parts {
            workload::record_batch(&self.store, state, sample, durability, operations);
        }
    }

    /// Checks that all keyspaces belong to the database of the batch.
    fn check_keyspaces(&self) -> Result<()> {
        let mut keyspaces = self.keyspaces.iter().chain(self.expectations.iter().map(|e| &e.keyspace));
        match keyspaces.find(|keyspace| !Arc::ptr_eq(&keyspace.inner.store, &self.store)) {
            Some(foreign) => {
                let why = format!("{:?} belongs to another open database", foreign.name());
                Err(Error::InvalidArgument { argument: "keyspace", reason: why })
            }
            None => Ok(()),
        }
    }

    /// Tries to commit once. Returns `None` if an expected key changed between its check and the
    /// commit, or a key in a range that is removed key by key. `range_attempts` counts the latter.
    /// Adds to `new_keys` the entries with keys that did not exist before, if the engine looks them
    /// up.
    fn try_commit_once(
        &self,
        policy: WaitPolicy,
        new_keys: Option<&mut Vec<usize>>,
        range_attempts: &mut u32,
    ) -> Result<Option<Seq>> {
        self.check_keyspaces()?;
        if !self.expectations.is_empty() {
            self.store.check_open()?;
        }
        let expected = self
            .expectations
            .iter()
            .map(|e| Ok(Arc::clone(&*e.keyspace.state()?)))
            .collect::<Result<Vec<_>>>()?;
        let Some(expect_ops) = self.check_expectations(&expected)? else { return Ok(None) };
        let resolved = self.last_operations()?;
        let ResolvedBatch { states, order, ranges, .. } = &resolved;
        let merged = match self.merge_entries(&resolved) {
            Err(_) if states.iter().any(|state| state.is_dropped()) => return Ok(None),
            merged => merged?,
        };
        let conditions = order
            .iter()
            .filter_map(|(entry, state)| Some(CommitWrite::new(&states[*state], merged.get(entry)?.expect?)));
        let mut writes: Vec<CommitWrite<'_>> =
            Vec::with_capacity(ranges.len() + expected.len() + order.len());
        let to_list = self.add_range_removals(&resolved, &mut writes)?;
        writes.extend(expect_ops.into_iter().zip(&expected).map(|(op, state)| CommitWrite::new(state, op)));
        writes.extend(conditions);
        let first_op = writes.len();
        writes.extend(
            order.iter().map(|&(entry, state)| self.write_of(entry, &states[state], merged.get(&entry))),
        );
        let listed = match to_list.is_empty() {
            true => None,
            false => match ListedRanges::list(&self.store, states, &to_list) {
                Err(_) if states.iter().any(|state| state.is_dropped()) => return Ok(None),
                listed => Some(listed?),
            },
        };
        if let Some(listed) = &listed {
            self.add_removals(&resolved, listed, &mut writes);
        }
        let outcome = match &listed {
            None => policy.commit(&self.store, &mut writes),
            Some(listed) => {
                let (since, ranges) = listed.reads();
                let may_wait = policy == WaitPolicy::Block;
                self.store.commit_listed(&mut writes, RangeReads { since, ranges }, may_wait)
            }
        };
        match outcome {
            Ok(CommitOutcome::Conflict(CommitConflict::Range(_) | CommitConflict::TooManyChanges)) => {
                *range_attempts += 1;
                let refused = to_list.first().filter(|_| *range_attempts >= MAX_RANGE_ATTEMPTS);
                refused.map_or(Ok(None), |(state, range)| Err(range.conflict(&states[*state])))
            }
            Ok(CommitOutcome::Committed(seq)) => {
                if let Some(fresh) = new_keys {
                    let set = writes[first_op..].iter().zip(order);
                    fresh.extend(set.filter(|(w, _)| w.op.prior == Seq::ZERO).map(|(_, (entry, _))| *entry));
                    fresh.sort_unstable();
                }
                Ok(Some(seq))
            }
            // The keyspace was replaced or dropped: the next attempt finds its successor or fails.
            Ok(CommitOutcome::Conflict(_)) | Err(Error::KeyspaceNotFound { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Returns the write of an entry that puts or removes its key, or of a merge with its result.
    fn write_of<'w>(
        &'w self,
        entry: usize,
        state: &'w Arc<KeyspaceState>,
        merged: Option<&'w MergedEntry<'_>>,
    ) -> CommitWrite<'w> {
        let entry = &self.entries[entry];
        let (action, expires) = match (&entry.change, merged) {
            (_, Some(merged)) => (Action::Put(&merged.value), merged.expires),
            (BatchChange::Put(value, expires), None) => (Action::Put(self.bytes.get(*value)), *expires),
            _ => (Action::Remove, Expires::Default),
        };
        CommitWrite { expires, ..CommitWrite::new(state, EngineOp::new(self.key(entry), action)) }
    }

    /// Compares the expectations with the values in `expected`, the keyspace of each. Returns the
    /// condition of each for the commit, or `None` if a keyspace was dropped.
    fn check_expectations(&self, expected: &[Arc<KeyspaceState>]) -> Result<Option<Vec<EngineOp<'_>>>> {
        let mut ops = Vec::with_capacity(expected.len());
        for (expectation, state) in self.expectations.iter().zip(expected) {
            let found = read_expected(&self.store, state, &expectation.key);
            if state.is_dropped() {
                return Ok(None); // it may have been half dropped at the time of the read
            }
            let (op, value) = found?;
            if value != expectation.value {
                let keys = ConflictKeys::Key(expectation.key.to_vec());
                return Err(Error::conflict(&state.name(), keys));
            }
            ops.push(op);
        }
        Ok(Some(ops))
    }

    /// Adds each removal of a range that is one record of the log. Returns the other ranges, each
    /// with the number of its keyspace: their keys must be listed.
    fn add_range_removals<'w>(
        &'w self,
        resolved: &'w ResolvedBatch,
        writes: &mut Vec<CommitWrite<'w>>,
    ) -> Result<Vec<(usize, &'w RemovedRange)>> {
        let mut to_list = Vec::new();
        for (entry, state) in &resolved.ranges {
            let BatchChange::RemoveRange(range) = &self.entries[*entry].change else { continue };
            match range.is_one_record(&resolved.states[*state])? {
                true => writes.push(range.write(&resolved.states[*state])),
                false => to_list.push((*state, &**range)),
            }
        }
        Ok(to_list)
    }

    /// Adds a removal of each listed key that no operation of the batch changes afterwards.
    fn add_removals<'w>(
        &'w self,
        resolved: &'w ResolvedBatch<'_>,
        listed: &'w ListedRanges,
        writes: &mut Vec<CommitWrite<'w>>,
    ) {
        let of_entry = |&(entry, state): &(usize, usize)| (state, self.key(&self.entries[entry]));
        let mut done: HashSet<(usize, &[u8])> = resolved.order.iter().map(of_entry).collect();
        let fresh = listed.keys().filter(|listed| done.insert(*listed));
        writes.extend(fresh.map(|(state, key)| {
            CommitWrite::new(&resolved.states[state], EngineOp::new(key, Action::Remove))
        }));
    }
}
