//! # Resolved batch: the operations that count
//!
//! The last operation of each key counts (docs/commit.md R2), unless a later one removes a range
//! with the key. Takes O((keys + ranges) × log(ranges)) time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use sheaf_log::types::KeyspaceId;
use sheaf_store::KeyspaceState;

use super::last_removals::LastRemovals;
use super::{Batch, BatchChange};
use crate::{Keyspace, Result};

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
        let positions = self.positions(&mut resolved.states)?;
        let ids: Vec<KeyspaceId> = resolved.states.iter().map(|state| state.id()).collect();
        // Positions in `order`. A map would have a copy of each key's address, length and keyspace.
        let mut seen: HashTable<usize> = HashTable::with_capacity(self.entries.len());
        let hasher = RandomState::new();
        for (index, entry) in self.entries.iter().enumerate() {
            let position = positions[entry.keyspace];
            if let BatchChange::RemoveRange(_) = &entry.change {
                resolved.ranges.push((index, position));
                continue;
            }
            let key_of = |(entry, state): (usize, usize)| (ids[state], self.key(&self.entries[entry]));
            let (key, order) = (key_of((index, position)), &resolved.order);
            let is_same = |at: &usize| key_of(order[*at]) == key;
            let hash_of = |at: &usize| hasher.hash_one(key_of(order[*at]));
            let before = match seen.entry(hasher.hash_one(key), is_same, hash_of) {
                Entry::Occupied(at) => Some(mem::replace(&mut resolved.order[*at.get()].0, index)),
                Entry::Vacant(free) => {
                    free.insert(order.len());
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

    /// Adds the state of each keyspace to `states`, once. Returns the position of each there.
    fn positions(&self, states: &mut Vec<Arc<KeyspaceState>>) -> Result<Vec<usize>> {
        let position = |keyspace: &Keyspace| {
            let state = keyspace.state()?;
            Ok(states.iter().position(|known| Arc::ptr_eq(known, &state)).unwrap_or_else(|| {
                states.push(Arc::clone(&state));
                states.len() - 1
            }))
        };
        self.keyspaces.iter().map(position).collect()
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
            let removal = resolved.last_removal(state, self.key(&self.entries[entry]));
            removal.is_none_or(|removal| removal < entry)
        });
        resolved.order = order;
    }
}
