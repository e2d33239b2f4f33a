//! # Resolved batch: the operations that count
//!
//! The last operation of each key counts (docs/commit.md R2), unless a later one removes a range
//! with the key. Takes O((keys + ranges) × log(ranges)) time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;

use sheaf_log::types::KeyspaceId;
use sheaf_store::KeyspaceState;

use super::last_removals::LastRemovals;
use super::{Batch, BatchChange};
use crate::Result;

/// Operations of a batch that count, and the keyspaces that they change.
pub(super) struct ResolvedBatch<'b> {
    pub(super) states: Vec<Arc<KeyspaceState>>,
    /// Last entry of each key, with the number of its keyspace.
    pub(super) order: Vec<(usize, usize)>,
    /// Entries of ranges, with the number of their keyspace.
    pub(super) ranges: Vec<(usize, usize)>,
    /// For each last entry of a key that is a merge: the entries of the key since the last one that
    /// sets or removes it, which comes first.
    pub(super) merges: HashMap<usize, Vec<usize>>,
    /// Ranges of each keyspace. Empty if there are none.
    removals: Vec<LastRemovals<&'b [u8]>>,
}

impl ResolvedBatch<'_> {
    /// Returns the last entry that removes a range with `key` from keyspace number `state`.
    pub(super) fn last_removal(&self, state: usize, key: &[u8]) -> Option<usize> {
        self.removals.get(state)?.of(&key)
    }
}

impl Batch {
    /// Returns the operations that count.
    pub(super) fn last_operations(&self) -> Result<ResolvedBatch<'_>> {
        let mut resolved = ResolvedBatch {
            states: Vec::new(),
            order: Vec::with_capacity(self.entries.len()),
            ranges: Vec::new(),
            merges: HashMap::new(),
            removals: Vec::new(),
        };
        let mut seen: HashMap<(KeyspaceId, &[u8]), usize> = HashMap::with_capacity(self.entries.len());
        for (index, entry) in self.entries.iter().enumerate() {
            let state = entry.keyspace.state()?;
            let position = match resolved.states.iter().position(|k| Arc::ptr_eq(k, &state)) {
                Some(position) => position,
                None => {
                    resolved.states.push(Arc::clone(&state));
                    resolved.states.len() - 1
                }
            };
            if let BatchChange::RemoveRange(_) = &entry.change {
                resolved.ranges.push((index, position));
                continue;
            }
            let before = match seen.entry((state.id(), &entry.key)) {
                Entry::Occupied(at) => Some(mem::replace(&mut resolved.order[*at.get()].0, index)),
                Entry::Vacant(free) => {
                    free.insert(resolved.order.len());
                    resolved.order.push((index, position));
                    None
                }
            };
            let earlier = before.and_then(|before| resolved.merges.remove(&before));
            if let BatchChange::Merge(_) = &entry.change {
                let mut chain = earlier.unwrap_or_else(|| before.into_iter().collect());
                chain.push(index);
                resolved.merges.insert(index, chain);
            }
        }
        self.apply_ranges(&mut resolved);
        Ok(resolved)
    }

    /// Drops the operations of keys that a later operation removes with a range.
    fn apply_ranges<'b>(&'b self, resolved: &mut ResolvedBatch<'b>) {
        if resolved.ranges.is_empty() {
            return;
        }
        let mut of_state = vec![Vec::new(); resolved.states.len()];
        for &(entry, state) in &resolved.ranges {
            if let BatchChange::RemoveRange(range) = &self.entries[entry].change {
                of_state[state].push((&*range.first, range.end.as_deref(), entry));
            }
        }
        resolved.removals = of_state.into_iter().map(LastRemovals::new).collect();
        let mut order = mem::take(&mut resolved.order);
        order.retain(|&(entry, state)| {
            let removal = resolved.last_removal(state, &self.entries[entry].key);
            removal.is_none_or(|removal| removal < entry)
        });
        resolved.order = order;
    }
}
